//! The [`Vfs`] trait and the values that cross it.

use crate::{Acl, Attributes, ChangedAttributes, Credentials, FileKind, SetAttributes, VfsError};
use async_trait::async_trait;
use bytes::Bytes;

/// Names one file for as long as it exists. Protocols wrap it (with a MAC) before it leaves the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle {
    /// The volume or snapshot.
    pub file_system: u64,
    /// Never reused within a volume, so no generation is needed beside it.
    pub inode: u64,
}

/// A file name: 1 to 255 bytes, any but `/` and NUL; never `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

impl Name {
    /// The longest name in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks `bytes` as the name of a new or existing entry.
    ///
    /// # Errors
    /// `NameTooLong`; `InvalidArgument` for an empty name or one with `/` or NUL; `Exists` for `.` and `..`, which stand
    /// in every directory already.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, VfsError> {
        let bytes = bytes.into();
        match &bytes[..] {
            b"." | b".." => Err(VfsError::Exists),
            [] => Err(VfsError::InvalidArgument),
            long if long.len() > Self::MAX_BYTES => Err(VfsError::NameTooLong),
            any if any.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(VfsError::InvalidArgument),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, shared.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

/// Recognises a retransmitted request, also after a restart (duplicate request cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// A hash of the client's address and credentials flavour.
    pub client: u64,
    /// The protocol's transaction id.
    pub transaction: u32,
    /// A checksum over the request, since transaction ids wrap and restart.
    pub checksum: u32,
}

/// How durable what a call promises to be stable is when the call returns. In the order of their strength.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Level 0: applied, and journaled in the order of all changes; a crash may lose it. Whoever asks for this [settles](Vfs::settle)
    /// before anybody is told more.
    Memory,
    /// Level 1: in the journal, on the edge's own disk.
    #[default]
    Journal,
    /// Level 2: in the bucket, under a root that is committed.
    Cloud,
}

/// Who calls, and in which request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// On whose behalf, after squashing.
    pub credentials: Credentials,
    /// Set for calls that are not idempotent.
    pub request: Option<RequestId>,
    /// How durable stable changes are when they are answered.
    pub durability: Durability,
}

impl Caller {
    /// Who asks in no request that could be sent again, and is content with the journal.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            request: None,
            durability: Durability::Journal,
        }
    }
}

/// A change that was made and journaled for a request; enough to answer its retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Which request.
    pub request: RequestId,
    /// The file it created, if it created one.
    pub created: Option<FileHandle>,
}

/// How durable written data is (RFC 1813 §3.3.7). What stable means is the caller's [`Durability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Level 0: in memory until [`Vfs::commit`].
    Unstable,
    /// Stable: the data and what is needed to read it.
    DataSync,
    /// Stable: data and all attributes.
    FileSync,
}

/// How a regular file is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// An existing regular file is opened, and truncated if the attributes say so.
    Unchecked(SetAttributes),
    /// An existing name is an error.
    Guarded(SetAttributes),
    /// An existing name is an error unless the file was made with this same verifier.
    Exclusive([u8; 8]),
}

/// A new (or, unchecked, existing) file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The file.
    pub handle: FileHandle,
    /// Its attributes.
    pub attributes: Attributes,
    /// The directory around the change.
    pub directory: ChangedAttributes,
}

/// A removed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The directory around the change.
    pub directory: ChangedAttributes,
}

/// A rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The source directory around the change.
    pub from: ChangedAttributes,
    /// The target directory around the change.
    pub to: ChangedAttributes,
}

/// Bytes read.
#[derive(Clone, Debug)]
pub struct ReadReply {
    /// In order; shared with the cache, not copied.
    pub data: Vec<Bytes>,
    /// Whether the end of the file was reached.
    pub end_of_file: bool,
    /// The file's attributes after the read.
    pub attributes: Attributes,
}

/// As an offset of [`Vfs::write`]: the end that the file has when it is written. No file reaches so far.
pub const AT_END: u64 = u64::MAX;

/// Bytes written.
#[derive(Clone, Debug)]
pub struct WriteReply {
    /// How durable they are: at least as asked.
    pub stability: Stability,
    /// The file around the change.
    pub file: ChangedAttributes,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name; `.` and `..` come first with cookies 1 and 2.
    pub name: Bytes,
    /// The file it names.
    pub handle: FileHandle,
    /// Where to go on after this entry; stays valid for ever.
    pub cookie: u64,
    /// If asked for. `None` also when the file was removed meanwhile.
    pub attributes: Option<Attributes>,
}

/// A part of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryPage {
    /// In cookie order.
    pub entries: Vec<DirectoryEntry>,
    /// Whether the last entry of the directory is among them.
    pub end: bool,
    /// The directory's attributes.
    pub directory: Attributes,
}

/// A set of permissions asked about or granted (RFC 1813 §3.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AccessMask {
    /// Read data or list.
    pub read: bool,
    /// Look a name up in a directory.
    pub lookup: bool,
    /// Change existing content.
    pub modify: bool,
    /// Append or add entries.
    pub extend: bool,
    /// Remove entries of a directory.
    pub delete: bool,
    /// Execute a file.
    pub execute: bool,
}

/// What `df` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemStatus {
    /// The quota, or a very large number.
    pub total_bytes: u64,
    /// Not used.
    pub free_bytes: u64,
    /// Inodes that may exist.
    pub total_files: u64,
    /// Of them not used.
    pub free_files: u64,
}

/// Fixed properties of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest file.
    pub file_bytes: u64,
    /// Most hard links.
    pub links: u32,
    /// The read and write size that is most efficient.
    pub preferred_io_bytes: u32,
    /// The largest read or write in one call.
    pub maximum_io_bytes: u32,
}

/// What [`Vfs::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// A byte of data (SEEK_DATA).
    Data,
    /// A byte in a hole (SEEK_HOLE).
    Hole,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Created or replaced.
    Either,
    /// Must not exist.
    Create,
    /// Must exist.
    Replace,
}

/// A file system.
///
/// Every call checks permissions itself, at the instant of the change. Calls are atomic and linearizable; a call that
/// returned an error changed nothing, unless the error says otherwise ([`VfsError::NotInCloud`], [`VfsError::Unanswered`]). Metadata
/// changes are stable when they return: as durable as the caller asks ([`Caller::durability`]). Dropping a returned future
/// is safe: the change then happens completely or not at all.
#[async_trait]
pub trait Vfs: Send + Sync {
    /// The root directory.
    fn root(&self) -> FileHandle;
    /// Fixed properties.
    fn limits(&self) -> Limits;
    /// Changes at every start that may have lost unstable writes (RFC 1813 §3.3.7).
    fn write_verifier(&self) -> [u8; 8];
    /// Requests known to be done before this start, oldest first.
    fn completed_requests(&self) -> Vec<CompletedRequest>;

    /// Attributes of a file. Needs no permission.
    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError>;
    /// Changes attributes; `guard` is the change time the caller expects (else `NotSynchronised`).
    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<crate::Timestamp>,
    ) -> Result<ChangedAttributes, VfsError>;
    /// Finds a name. Needs execute permission on the directory.
    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError>;
    /// The directory a directory is in; the root's is itself.
    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError>;
    /// Which of the asked permissions the caller has.
    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError>;
    /// The target of a symbolic link.
    async fn read_link(&self, caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError>;

    /// Reads up to `length_bytes` at `offset`. The owner may read regardless of mode, as NFS servers allow (RFC 1813 §4.4).
    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError>;
    /// The first byte at or behind `offset` that is data, or in a hole; `None` if there is none before the end, which counts as a hole.
    /// All of a hole reads as zeros; what reads as zeros need not be one.
    async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError>;
    /// Writes `data` at `offset`, whole; at [`AT_END`] behind whatever the file has in that instant. The owner may write regardless of mode.
    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError>;
    /// Makes earlier unstable writes of the file stable, and waits until all earlier changes of it are as durable as the caller asks.
    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError>;
    /// Waits until everything that was changed before this call is as durable as the caller asks.
    async fn settle(&self, caller: &Caller) -> Result<(), VfsError>;

    /// Creates a regular file.
    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError>;
    /// Creates a directory.
    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError>;
    /// Creates a symbolic link to `target` (1 to 4095 bytes).
    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError>;
    /// Creates a device node, pipe or socket; `kind` is one of these.
    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError>;
    /// Adds a hard link to `file`; returns the file's attributes and the directory's.
    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError>;
    /// Removes a name that is not a directory.
    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError>;
    /// Removes an empty directory.
    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError>;
    /// Renames atomically, replacing a compatible target.
    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError>;
    /// Entries after `cookie` (0: from the start), at most `limit`; with attributes if asked. An entry that exists
    /// throughout a scan is returned exactly once.
    async fn read_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError>;

    /// What `df` shows.
    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError>;

    /// Keeps an unlinked file readable until the matching [`Vfs::release`] (open files of SMB, FUSE, NFSv4).
    async fn retain(&self, file: FileHandle) -> Result<(), VfsError>;
    /// Ends one [`Vfs::retain`]; the last frees an unlinked file.
    async fn release(&self, file: FileHandle) -> Result<(), VfsError>;

    /// The names of the extended attributes, sorted.
    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError>;
    /// The value of an extended attribute.
    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError>;
    /// Sets an extended attribute (name ≤ 255 bytes, value ≤ 64 KiB).
    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError>;
    /// Removes an extended attribute.
    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError>;
    /// The access and default ACL; empty where there is none.
    async fn get_acl(&self, caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError>;
    /// Sets the access and default ACL; `None` leaves one as it is. The access ACL also sets the mode bits.
    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError>;
}
