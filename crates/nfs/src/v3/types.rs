//! Arguments and results of the NFSv3 procedures (RFC 1813 §2.5, §3.3), in wire order.
//!
//! Every structure converts both ways: the server decodes calls and encodes results, the client the opposite. A result is
//! `Result<Success, Failed<Failure>>`: a status, then what the procedure gives in either case.

use super::status::Status;
use crate::{
    handle::WireHandle,
    xdr::{Decode, Decoder, Encode, Encoder, Opaque, XdrError, xdr_enum, xdr_struct},
};
use bytes::Bytes;

/// Names longer than this are refused by the decoder; names between [`firn_vfs::Name::MAX_BYTES`] and this get the
/// answer `NameTooLong`, as programs that probe the limit expect.
pub const WIRE_NAME_MAX_BYTES: usize = 4096;
/// As for names: the volume's own limit gives the answer.
pub const WIRE_TARGET_MAX_BYTES: usize = 16_384;

/// Eight bytes that change when unstable writes may have been lost.
pub type Verifier = [u8; 8];
/// A file name as it came.
pub type WireName = Opaque<WIRE_NAME_MAX_BYTES>;

xdr_enum! {
    /// What a file is (ftype3).
    pub enum FileType {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Block device.
        BlockDevice = 3,
        /// Character device.
        CharacterDevice = 4,
        /// Symbolic link.
        Symlink = 5,
        /// Socket.
        Socket = 6,
        /// Named pipe.
        Fifo = 7,
    }

    /// How durable written data is to be, or is (stable_how).
    pub enum StableHow {
        /// Level 0 until COMMIT.
        Unstable = 0,
        /// Level 1 for the data.
        DataSync = 1,
        /// Level 1 for data and attributes.
        FileSync = 2,
    }
}

xdr_struct! {
    /// A time (nfstime3).
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds since 1970.
        pub seconds: u32,
        /// Nanoseconds.
        pub nanoseconds: u32,
    }

    /// A device number (specdata3).
    #[derive(Copy)]
    pub struct Device {
        /// Major.
        pub major: u32,
        /// Minor.
        pub minor: u32,
    }

    /// Attributes (fattr3).
    pub struct FileAttributes {
        /// What the file is.
        pub kind: FileType,
        /// Permission bits.
        pub mode: u32,
        /// Hard links.
        pub links: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length.
        pub size_bytes: u64,
        /// Space taken.
        pub used_bytes: u64,
        /// Of a device node.
        pub device: Device,
        /// The file system.
        pub file_system: u64,
        /// The inode.
        pub inode: u64,
        /// Last read.
        pub accessed: Time,
        /// Last change of content.
        pub modified: Time,
        /// Last change of content or attributes.
        pub changed: Time,
    }

    /// What a client compares to see whether only it changed a file (wcc_attr).
    #[derive(Copy)]
    pub struct WccAttributes {
        /// Length.
        pub size_bytes: u64,
        /// Last change of content.
        pub modified: Time,
        /// Last change of content or attributes.
        pub changed: Time,
    }

    /// Attributes around an operation (wcc_data).
    #[derive(Default)]
    pub struct WccData {
        /// At the instant before it.
        pub before: Option<WccAttributes>,
        /// At the instant after it.
        pub after: Option<FileAttributes>,
    }

    /// Attributes to set (sattr3).
    #[derive(Default)]
    pub struct NewAttributes {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Length.
        pub size_bytes: Option<u64>,
        /// Last read.
        pub accessed: NewTime,
        /// Last change of content.
        pub modified: NewTime,
    }

    /// A name in a directory (diropargs3).
    pub struct Entry {
        /// The directory.
        pub directory: WireHandle,
        /// The name.
        pub name: WireName,
    }

    /// SETATTR.
    pub struct SetAttributesCall {
        /// The file.
        pub file: WireHandle,
        /// What to set.
        pub attributes: NewAttributes,
        /// The change time the file must have.
        pub guard: Option<Time>,
    }

    /// ACCESS.
    pub struct AccessCall {
        /// The file.
        pub file: WireHandle,
        /// See the `ACCESS_` constants.
        pub mask: u32,
    }

    /// READ.
    pub struct ReadCall {
        /// The file.
        pub file: WireHandle,
        /// Where to begin.
        pub offset: u64,
        /// How much.
        pub count: u32,
    }

    /// WRITE.
    pub struct WriteCall {
        /// The file.
        pub file: WireHandle,
        /// Where to begin.
        pub offset: u64,
        /// The length of `data`.
        pub count: u32,
        /// How durable.
        pub stable: StableHow,
        /// What to write.
        pub data: Payload,
    }

    /// CREATE.
    pub struct CreateCall {
        /// Where.
        pub at: Entry,
        /// How.
        pub how: CreateHow,
    }

    /// MKDIR.
    pub struct MakeDirectoryCall {
        /// Where.
        pub at: Entry,
        /// Its first attributes.
        pub attributes: NewAttributes,
    }

    /// SYMLINK.
    pub struct SymlinkCall {
        /// Where.
        pub at: Entry,
        /// Its first attributes.
        pub attributes: NewAttributes,
        /// What it points to.
        pub target: Opaque<WIRE_TARGET_MAX_BYTES>,
    }

    /// MKNOD.
    pub struct MakeNodeCall {
        /// Where.
        pub at: Entry,
        /// What.
        pub node: NewNode,
    }

    /// RENAME.
    pub struct RenameCall {
        /// The name now.
        pub from: Entry,
        /// The name afterwards.
        pub to: Entry,
    }

    /// LINK.
    pub struct LinkCall {
        /// The file.
        pub file: WireHandle,
        /// Its further name.
        pub at: Entry,
    }

    /// READDIR.
    pub struct ReadDirectoryCall {
        /// The directory.
        pub directory: WireHandle,
        /// Zero, or that of the last entry received.
        pub cookie: u64,
        /// Zero, or as received with the cookie.
        pub verifier: Verifier,
        /// The most bytes of results.
        pub count: u32,
    }

    /// READDIRPLUS.
    pub struct ReadDirectoryPlusCall {
        /// The directory.
        pub directory: WireHandle,
        /// Zero, or that of the last entry received.
        pub cookie: u64,
        /// Zero, or as received with the cookie.
        pub verifier: Verifier,
        /// The most bytes of names, numbers and cookies.
        pub directory_count: u32,
        /// The most bytes of results.
        pub maximum_count: u32,
    }

    /// COMMIT.
    pub struct CommitCall {
        /// The file.
        pub file: WireHandle,
        /// Where the range begins.
        pub offset: u64,
        /// Its length; zero: to the end.
        pub count: u32,
    }

    /// LOOKUP's results.
    pub struct Found {
        /// The file.
        pub file: WireHandle,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// The directory's.
        pub directory: Option<FileAttributes>,
    }

    /// ACCESS's results.
    pub struct AccessGranted {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// Of what was asked, what is granted.
        pub mask: u32,
    }

    /// READLINK's results.
    pub struct LinkTarget {
        /// The link's.
        pub attributes: Option<FileAttributes>,
        /// What it points to.
        pub target: Opaque<WIRE_TARGET_MAX_BYTES>,
    }

    /// READ's results.
    pub struct ReadData {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// The length of `data`.
        pub count: u32,
        /// Whether the file ends with it.
        pub end_of_file: bool,
        /// What was read.
        pub data: Payload,
    }

    /// WRITE's results.
    pub struct Written {
        /// The file around the write.
        pub file: WccData,
        /// How much was written.
        pub count: u32,
        /// How durable it is.
        pub committed: StableHow,
        /// See [`Verifier`].
        pub verifier: Verifier,
    }

    /// The results of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct Made {
        /// The new file.
        pub file: Option<WireHandle>,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// The directory around the change.
        pub directory: WccData,
    }

    /// RENAME's results, of success and failure.
    #[derive(Default)]
    pub struct RenameDirectories {
        /// The source directory.
        pub from: WccData,
        /// The target directory.
        pub to: WccData,
    }

    /// LINK's results, of success and failure.
    #[derive(Default)]
    pub struct LinkResult {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// The directory.
        pub directory: WccData,
    }

    /// An entry of READDIR.
    pub struct DirectoryEntry {
        /// The file's number.
        pub inode: u64,
        /// Its name.
        pub name: WireName,
        /// Where to go on behind it.
        pub cookie: u64,
    }

    /// An entry of READDIRPLUS.
    pub struct DirectoryEntryPlus {
        /// The file's number.
        pub inode: u64,
        /// Its name.
        pub name: WireName,
        /// Where to go on behind it.
        pub cookie: u64,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// Its handle.
        pub handle: Option<WireHandle>,
    }

    /// READDIR's results.
    pub struct DirectoryList {
        /// The directory's.
        pub attributes: Option<FileAttributes>,
        /// To be sent with the cookies.
        pub verifier: Verifier,
        /// In order.
        pub entries: Vec<DirectoryEntry>,
        /// Whether the directory ends with them.
        pub end: bool,
    }

    /// READDIRPLUS's results.
    pub struct DirectoryListPlus {
        /// The directory's.
        pub attributes: Option<FileAttributes>,
        /// To be sent with the cookies.
        pub verifier: Verifier,
        /// In order.
        pub entries: Vec<DirectoryEntryPlus>,
        /// Whether the directory ends with them.
        pub end: bool,
    }

    /// FSSTAT's results.
    pub struct FileSystemStatus {
        /// The root's.
        pub attributes: Option<FileAttributes>,
        /// Size.
        pub total_bytes: u64,
        /// Unused.
        pub free_bytes: u64,
        /// Unused and to be had by this caller.
        pub available_bytes: u64,
        /// Inodes.
        pub total_files: u64,
        /// Unused.
        pub free_files: u64,
        /// Unused and to be had by this caller.
        pub available_files: u64,
        /// How long these numbers are not expected to change: zero, they may at any time.
        pub invariant_seconds: u32,
    }

    /// FSINFO's results.
    pub struct FileSystemInformation {
        /// The root's.
        pub attributes: Option<FileAttributes>,
        /// Largest READ.
        pub read_maximum: u32,
        /// Best READ.
        pub read_preferred: u32,
        /// Best multiple for READ.
        pub read_multiple: u32,
        /// Largest WRITE.
        pub write_maximum: u32,
        /// Best WRITE.
        pub write_preferred: u32,
        /// Best multiple for WRITE.
        pub write_multiple: u32,
        /// Best READDIR.
        pub directory_preferred: u32,
        /// Largest file.
        pub file_maximum_bytes: u64,
        /// Resolution of times.
        pub time_resolution: Time,
        /// See the `PROPERTY_` constants.
        pub properties: u32,
    }

    /// PATHCONF's results.
    pub struct PathConfiguration {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// Most hard links.
        pub links_maximum: u32,
        /// Longest name.
        pub name_maximum: u32,
        /// Longer names are errors, not cut off.
        pub no_truncation: bool,
        /// Only root may give files away.
        pub chown_restricted: bool,
        /// Names differ by case.
        pub case_insensitive: bool,
        /// Names keep their case.
        pub case_preserving: bool,
    }

    /// COMMIT's results.
    pub struct Committed {
        /// The file.
        pub file: WccData,
        /// See [`Verifier`].
        pub verifier: Verifier,
    }
}

/// ACCESS: read data or list.
pub const ACCESS_READ: u32 = 0x01;
/// ACCESS: look a name up.
pub const ACCESS_LOOKUP: u32 = 0x02;
/// ACCESS: change content.
pub const ACCESS_MODIFY: u32 = 0x04;
/// ACCESS: append, or add entries.
pub const ACCESS_EXTEND: u32 = 0x08;
/// ACCESS: remove entries.
pub const ACCESS_DELETE: u32 = 0x10;
/// ACCESS: execute.
pub const ACCESS_EXECUTE: u32 = 0x20;

/// FSINFO: hard links exist.
pub const PROPERTY_LINKS: u32 = 0x01;
/// FSINFO: symbolic links exist.
pub const PROPERTY_SYMLINKS: u32 = 0x02;
/// FSINFO: PATHCONF is the same for all files.
pub const PROPERTY_HOMOGENEOUS: u32 = 0x08;
/// FSINFO: times can be set to any value.
pub const PROPERTY_CAN_SET_TIME: u32 = 0x10;

/// A time to set (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NewTime {
    /// None.
    #[default]
    Keep,
    /// The server's clock.
    ServerTime,
    /// The client's value.
    ClientTime(Time),
}

impl Encode for NewTime {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::Keep => out.u32(0),
            Self::ServerTime => out.u32(1),
            Self::ClientTime(time) => {
                out.u32(2);
                time.encode(out);
            }
        }
    }
}

impl Decode for NewTime {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ServerTime),
            2 => Ok(Self::ClientTime(Time::decode(input)?)),
            value => Err(XdrError::UnknownValue { value }),
        }
    }
}

/// How CREATE treats an existing name (createhow3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// It is opened.
    Unchecked(NewAttributes),
    /// It is an error.
    Guarded(NewAttributes),
    /// It is an error unless made with the same verifier.
    Exclusive(Verifier),
}

impl Encode for CreateHow {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::Unchecked(attributes) => {
                out.u32(0);
                attributes.encode(out);
            }
            Self::Guarded(attributes) => {
                out.u32(1);
                attributes.encode(out);
            }
            Self::Exclusive(verifier) => {
                out.u32(2);
                verifier.encode(out);
            }
        }
    }
}

impl Decode for CreateHow {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::Unchecked(NewAttributes::decode(input)?)),
            1 => Ok(Self::Guarded(NewAttributes::decode(input)?)),
            2 => Ok(Self::Exclusive(input.fixed()?)),
            value => Err(XdrError::UnknownValue { value }),
        }
    }
}

/// What MKNOD makes (mknoddata3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewNode {
    /// A character device.
    CharacterDevice(NewAttributes, Device),
    /// A block device.
    BlockDevice(NewAttributes, Device),
    /// A socket.
    Socket(NewAttributes),
    /// A named pipe.
    Fifo(NewAttributes),
    /// Something MKNOD does not make; the answer is `BadType`.
    Other(FileType),
}

impl Encode for NewNode {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::CharacterDevice(attributes, device) => {
                FileType::CharacterDevice.encode(out);
                attributes.encode(out);
                device.encode(out);
            }
            Self::BlockDevice(attributes, device) => {
                FileType::BlockDevice.encode(out);
                attributes.encode(out);
                device.encode(out);
            }
            Self::Socket(attributes) => {
                FileType::Socket.encode(out);
                attributes.encode(out);
            }
            Self::Fifo(attributes) => {
                FileType::Fifo.encode(out);
                attributes.encode(out);
            }
            Self::Other(kind) => kind.encode(out),
        }
    }
}

impl Decode for NewNode {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        let kind = FileType::decode(input)?;
        let mut attributes = || NewAttributes::decode(input);
        match kind {
            FileType::CharacterDevice => Ok(Self::CharacterDevice(attributes()?, Device::decode(input)?)),
            FileType::BlockDevice => Ok(Self::BlockDevice(attributes()?, Device::decode(input)?)),
            FileType::Socket => Ok(Self::Socket(attributes()?)),
            FileType::Fifo => Ok(Self::Fifo(attributes()?)),
            FileType::Regular | FileType::Directory | FileType::Symlink => Ok(Self::Other(kind)),
        }
    }
}

/// File data: encoded by reference, decoded as a slice of the message.
#[derive(Clone, Debug, Default)]
pub struct Payload(pub Vec<Bytes>);

impl Payload {
    /// Its length.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

/// Equal bytes, however they are cut.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.0.iter().flatten().eq(other.0.iter().flatten())
    }
}

impl Eq for Payload {}

impl Encode for Payload {
    fn encode(&self, out: &mut Encoder) {
        out.shared(&self.0);
    }
}

impl Decode for Payload {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        // The message is bounded, and so is what can be in it.
        Ok(Self(vec![input.opaque(u32::MAX as usize)?]))
    }
}

/// An error status and what the procedure gives with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed<F> {
    /// Why; never `Ok`.
    pub status: Status,
    /// Attributes, as far as they could be had.
    pub body: F,
}

impl<S: Encode, F: Encode> Encode for Result<S, Failed<F>> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(success) => {
                Status::Ok.encode(out);
                success.encode(out);
            }
            Err(failed) => {
                failed.status.encode(out);
                failed.body.encode(out);
            }
        }
    }
}

impl<S: Decode, F: Decode> Decode for Result<S, Failed<F>> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match Status::decode(input)? {
            Status::Ok => Ok(Ok(S::decode(input)?)),
            status => Ok(Err(Failed {
                status,
                body: F::decode(input)?,
            })),
        }
    }
}
