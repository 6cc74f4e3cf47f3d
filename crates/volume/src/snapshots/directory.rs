//! `.snapshots`: the snapshots as directories that can only be read, for every protocol.
//!
//! [`SnapshotAccess`] is the volume with one more name at its root. `.snapshots` is a directory that is nowhere stored; each of
//! its entries is the root directory of a snapshot. By default a listing of the root does not show it, so that a backup of
//! the root or an `rm -r` does not walk into it; looking it up always works.
//!
//! | file system of the handle | what it is |
//! |---|---|
//! | the volume's | the live tree: the call goes to the volume |
//! | that of the directory of snapshots | `.snapshots` itself |
//! | that of a snapshot | the snapshot; `Stale` once it is deleted |
//!
//! Numbers of file systems follow from the volume's and the snapshot's ids, so handles stay valid over restarts.

mod listing;

use super::view::snapshot_file_system_id;
use crate::{filesystem::IO_BYTES_MAX, read_view::ReadView, state::Snapshot, volume::Volume};
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::{ROOT_DIRECTORY, VolumeId};
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode,
};
use std::sync::Arc;

/// The name at the root of an export under which its snapshots are.
pub const SNAPSHOTS_DIRECTORY: &str = ".snapshots";

/// The inode of `.snapshots`, and what stands for it in a listing of the root.
const DIRECTORY_INODE: u64 = 1;

/// Everyone may look; nobody may change.
const DIRECTORY_MODE: u32 = 0o555;

/// A volume with its snapshots; see the module.
#[derive(Clone)]
pub struct SnapshotAccess {
    volume: Volume,
    /// Of `.snapshots`.
    file_system: u64,
    visible: bool,
    root: FileHandle,
}

enum Where {
    Live,
    Directory,
    Snapshot(u64),
}

fn directory_file_system_id(volume: VolumeId) -> u64 {
    let hash = blake3::derive_key("firn directory of snapshots file system id v1", &volume.0);
    u64::from_le_bytes(hash[..8].try_into().expect("a hash has 32 bytes"))
}

impl SnapshotAccess {
    /// The volume with `.snapshots` at its root; `visible`: also in listings of the root.
    pub fn new(volume: &Volume, visible: bool) -> Self {
        Self {
            file_system: directory_file_system_id(volume.inner.volume),
            root: volume.root(),
            volume: volume.clone(),
            visible,
        }
    }

    /// The same with a snapshot as its root, for a share of its own.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name.
    pub fn rooted(&self, name: &[u8]) -> Result<Self, VfsError> {
        let state = self.volume.inner.lock();
        let snapshot = state.snapshot_named(name).ok_or(VfsError::NotFound)?;
        Ok(Self {
            root: self.snapshot_root(snapshot),
            ..self.clone()
        })
    }

    fn place(&self, handle: FileHandle) -> Where {
        if handle.file_system == self.volume.root().file_system {
            Where::Live
        } else if handle.file_system == self.file_system {
            Where::Directory
        } else {
            Where::Snapshot(handle.file_system)
        }
    }

    fn handle(&self) -> FileHandle {
        FileHandle {
            file_system: self.file_system,
            inode: DIRECTORY_INODE,
        }
    }

    /// Whether this is the name in the root directory that stands for the snapshots.
    fn is_reserved(&self, directory: FileHandle, name: &Name) -> bool {
        directory == self.volume.root() && name.as_bytes() == SNAPSHOTS_DIRECTORY.as_bytes()
    }

    /// A change to the live tree, or nothing at all.
    fn live(&self, handle: FileHandle) -> Result<(), VfsError> {
        match self.place(handle) {
            Where::Live => Ok(()),
            Where::Directory => Err(VfsError::ReadOnly),
            // What is gone is stale, whatever was wanted of it.
            Where::Snapshot(file_system) => {
                self.volume.inner.view(file_system)?;
                Err(VfsError::ReadOnly)
            }
        }
    }

    /// A new name; the reserved one is taken.
    fn live_name(&self, directory: FileHandle, name: &Name) -> Result<(), VfsError> {
        self.live(directory)?;
        if self.is_reserved(directory, name) {
            return Err(VfsError::Exists);
        }
        Ok(())
    }

    fn directory(&self) -> Result<Attributes, VfsError> {
        let inner = &self.volume.inner;
        inner.check_serving()?;
        let state = inner.lock();
        let newest = state.snapshots().iter().map(|snapshot| snapshot.created_ms).max();
        let changed = Timestamp::from_nanos(newest.unwrap_or(0).saturating_mul(1_000_000));
        Ok(Attributes {
            inode: DIRECTORY_INODE,
            kind: FileKind::Directory,
            mode: DIRECTORY_MODE,
            links: 2 + u32::try_from(state.snapshots().len()).unwrap_or(u32::MAX - 2),
            uid: 0,
            gid: 0,
            size_bytes: 4096,
            used_bytes: 0,
            accessed: changed,
            modified: changed,
            changed,
            born: Timestamp::default(),
            // Differs whenever the list does: a creation changes the sum of ids, and so does a deletion.
            change: state
                .snapshots()
                .iter()
                .fold(1, |sum, snapshot| snapshot.id.wrapping_add(sum)),
            file_system: self.file_system,
        })
    }

    fn snapshot_root(&self, snapshot: &Snapshot) -> FileHandle {
        FileHandle {
            file_system: snapshot_file_system_id(self.volume.inner.volume, snapshot.id),
            inode: ROOT_DIRECTORY,
        }
    }

    /// Asks a snapshot.
    async fn in_snapshot<T>(
        &self,
        file_system: u64,
        ask: impl AsyncFnOnce(ReadView<'_>) -> Result<T, VfsError>,
    ) -> Result<T, VfsError> {
        let inner = &self.volume.inner;
        inner.check_serving()?;
        let view = inner.view(file_system)?;
        ask(inner.shown_in(&view)).await
    }
}

#[async_trait]
impl Vfs for SnapshotAccess {
    fn root(&self) -> FileHandle {
        self.root
    }

    fn limits(&self) -> Limits {
        self.volume.limits()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.volume.write_verifier()
    }

    fn completed_requests(&self) -> Vec<CompletedRequest> {
        self.volume.completed_requests()
    }

    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        match self.place(file) {
            Where::Live => self.volume.attributes(file).await,
            Where::Directory => self.directory(),
            Where::Snapshot(id) => self.in_snapshot(id, async |shown| shown.see(file).await).await,
        }
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.live(file)?;
        self.volume.set_attributes(caller, file, change, guard).await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        match self.place(directory) {
            Where::Live if self.is_reserved(directory, name) => Ok((self.handle(), self.directory()?)),
            Where::Live => self.volume.lookup(caller, directory, name).await,
            Where::Directory => {
                let snapshot = {
                    let state = self.volume.inner.lock();
                    state.snapshot_named(name.as_bytes()).cloned()
                };
                let handle = self.snapshot_root(&snapshot.ok_or(VfsError::NotFound)?);
                Ok((handle, self.attributes(handle).await?))
            }
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.lookup(caller, directory, name).await)
                    .await
            }
        }
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        match self.place(directory) {
            Where::Live => self.volume.parent(caller, directory).await,
            Where::Directory => {
                let root = self.volume.root();
                Ok((root, self.volume.attributes(root).await?))
            }
            Where::Snapshot(id) if directory.inode == ROOT_DIRECTORY => {
                self.volume.inner.view(id)?;
                Ok((self.handle(), self.directory()?))
            }
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.parent(caller, directory).await)
                    .await
            }
        }
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        let reading = AccessMask {
            modify: false,
            extend: false,
            delete: false,
            ..asked
        };
        match self.place(file) {
            Where::Live => self.volume.check_access(caller, file, asked).await,
            Where::Directory => Ok((reading, self.directory()?)),
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.check_access(caller, file, reading).await)
                    .await
            }
        }
    }

    async fn read_link(&self, caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        match self.place(file) {
            Where::Live => self.volume.read_link(caller, file).await,
            Where::Directory => Err(VfsError::InvalidArgument),
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.read_link(file).await)
                    .await
            }
        }
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        match self.place(file) {
            Where::Live => self.volume.read(caller, file, offset, length_bytes).await,
            Where::Directory => Err(VfsError::IsDirectory),
            Where::Snapshot(id) => {
                let length_bytes = length_bytes.min(IO_BYTES_MAX);
                self.in_snapshot(id, async |shown| {
                    shown.read_unchanging(caller, file, offset, length_bytes).await
                })
                .await
            }
        }
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        self.live(file)?;
        self.volume.write(caller, file, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        self.live(file)?;
        self.volume.commit(caller, file).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        self.live_name(directory, name)?;
        self.volume.create(caller, directory, name, mode).await
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.live_name(directory, name)?;
        self.volume
            .make_directory(caller, directory, name, attributes)
            .await
    }

    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.live_name(directory, name)?;
        self.volume
            .make_symlink(caller, directory, name, target, attributes)
            .await
    }

    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.live_name(directory, name)?;
        self.volume
            .make_node(caller, directory, name, kind, attributes)
            .await
    }

    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        self.live_name(directory, name)?;
        if !matches!(self.place(file), Where::Live) {
            return Err(VfsError::CrossDevice);
        }
        self.volume.link(caller, file, directory, name).await
    }

    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        self.live(directory)?;
        if self.is_reserved(directory, name) {
            return Err(VfsError::ReadOnly);
        }
        self.volume.remove(caller, directory, name).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        self.live(directory)?;
        if self.is_reserved(directory, name) {
            return Err(VfsError::ReadOnly);
        }
        self.volume.remove_directory(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        self.live(from_directory)?;
        self.live(to_directory)?;
        if self.is_reserved(from_directory, from_name) || self.is_reserved(to_directory, to_name) {
            return Err(VfsError::ReadOnly);
        }
        self.volume
            .rename(caller, from_directory, from_name, to_directory, to_name)
            .await
    }

    async fn read_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        match self.place(directory) {
            Where::Live if self.visible && directory == self.volume.root() => {
                self.list_root(caller, cookie, limit, with_attributes).await
            }
            Where::Live => {
                self.volume
                    .read_directory(caller, directory, cookie, limit, with_attributes)
                    .await
            }
            Where::Directory => self.list_snapshots(cookie, limit, with_attributes).await,
            Where::Snapshot(id) => {
                let mut page = self
                    .in_snapshot(id, async |shown| {
                        shown
                            .list_directory(caller, directory, cookie, limit, with_attributes)
                            .await
                    })
                    .await?;
                if directory.inode == ROOT_DIRECTORY {
                    for entry in page.entries.iter_mut().filter(|entry| entry.cookie == 2) {
                        entry.handle = self.handle();
                        if with_attributes {
                            entry.attributes = Some(self.directory()?);
                        }
                    }
                }
                Ok(page)
            }
        }
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        self.volume.file_system_status().await
    }

    async fn retain(&self, file: FileHandle) -> Result<(), VfsError> {
        match self.place(file) {
            Where::Live => self.volume.retain(file).await,
            Where::Directory => Ok(()),
            // A snapshot is retained or gone as a whole.
            Where::Snapshot(id) => self.volume.inner.view(id).map(|_: Arc<_>| ()),
        }
    }

    async fn release(&self, file: FileHandle) -> Result<(), VfsError> {
        match self.place(file) {
            Where::Live => self.volume.release(file).await,
            Where::Directory | Where::Snapshot(_) => Ok(()),
        }
    }

    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        match self.place(file) {
            Where::Live => self.volume.list_xattrs(caller, file).await,
            Where::Directory => Ok(Vec::new()),
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.list_xattrs(caller, file).await)
                    .await
            }
        }
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        match self.place(file) {
            Where::Live => self.volume.get_xattr(caller, file, name).await,
            Where::Directory => Err(VfsError::NoAttribute),
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.get_xattr(caller, file, name).await)
                    .await
            }
        }
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        self.live(file)?;
        self.volume.set_xattr(caller, file, name, value, mode).await
    }

    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        self.live(file)?;
        self.volume.remove_xattr(caller, file, name).await
    }

    async fn get_acl(&self, caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        match self.place(file) {
            Where::Live => self.volume.get_acl(caller, file).await,
            Where::Directory => Ok((Acl::default(), Acl::default())),
            Where::Snapshot(id) => {
                self.in_snapshot(id, async |shown| shown.get_acl(file).await)
                    .await
            }
        }
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.live(file)?;
        self.volume.set_acl(caller, file, access, default).await
    }
}
