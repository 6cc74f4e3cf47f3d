//! The follower as protocols see it: reads wait until the tree is fresh enough, changes are refused (EROFS).

use crate::volume::Volume;
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CreateMode, Created, DirectoryPage, FileHandle,
    FileKind, FileSystemStatus, Name, ReadReply, Removed, Renamed, SeekTo, SetAttributes, Stability,
    Timestamp, Vfs, VfsError, VfsLayer, WriteReply, XattrMode,
};

/// Newer roots that one call is made again on.
const REFRESHES_MAX: usize = 4;

/// See the module.
pub struct FollowerVfs(Volume);

impl FollowerVfs {
    /// Over a volume that [`Volume::follow`] opened; over another one it does nothing.
    pub fn new(volume: Volume) -> Self {
        Self(volume)
    }

    /// Makes a call that changes nothing.
    async fn reading<T, F: Future<Output = Result<T, VfsError>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, VfsError> {
        let inner = &self.0.inner;
        let Some(follower) = &inner.follower else {
            return call().await;
        };
        follower.fresh(inner).await?;
        for _ in 0..REFRESHES_MAX {
            let version = follower.version();
            match call().await {
                // The cleaner may have deleted what only older roots need.
                Err(VfsError::Io(_) | VfsError::Corrupt { .. })
                    if follower.refresh(inner, version).await? => {}
                answer => return answer,
            }
        }
        call().await
    }

    fn changing<T>(&self) -> Result<T, VfsError> {
        Err(VfsError::ReadOnly)
    }
}

#[async_trait]
impl VfsLayer for FollowerVfs {
    fn below(&self) -> &dyn Vfs {
        &self.0
    }

    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        self.reading(|| Vfs::attributes(&self.0, file)).await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.reading(|| Vfs::lookup(&self.0, caller, directory, name))
            .await
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.reading(|| Vfs::parent(&self.0, caller, directory)).await
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        self.reading(|| Vfs::check_access(&self.0, caller, file, asked))
            .await
    }

    async fn read_link(&self, caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        self.reading(|| Vfs::read_link(&self.0, caller, file)).await
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        self.reading(|| Vfs::read(&self.0, caller, file, offset, length_bytes))
            .await
    }

    async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        self.reading(|| Vfs::seek(&self.0, caller, file, offset, to))
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
        self.reading(|| Vfs::read_directory(&self.0, caller, directory, cookie, limit, with_attributes))
            .await
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        self.reading(|| Vfs::file_system_status(&self.0)).await
    }

    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        self.reading(|| Vfs::list_xattrs(&self.0, caller, file)).await
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        self.reading(|| Vfs::get_xattr(&self.0, caller, file, name)).await
    }

    async fn get_acl(&self, caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        self.reading(|| Vfs::get_acl(&self.0, caller, file)).await
    }

    // An open file is read for as long as its objects are there.

    async fn retain(&self, file: FileHandle) -> Result<(), VfsError> {
        self.reading(|| Vfs::attributes(&self.0, file)).await.map(drop)
    }

    async fn release(&self, _: FileHandle) -> Result<(), VfsError> {
        Ok(())
    }

    async fn set_attributes(
        &self,
        _: &Caller,
        _: FileHandle,
        _: SetAttributes,
        _: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.changing()
    }

    async fn write(
        &self,
        _: &Caller,
        _: FileHandle,
        _: u64,
        _: Vec<Bytes>,
        _: Stability,
    ) -> Result<WriteReply, VfsError> {
        self.changing()
    }

    async fn commit(&self, _: &Caller, _: FileHandle) -> Result<ChangedAttributes, VfsError> {
        self.changing()
    }

    /// Nothing is changed here.
    async fn settle(&self, _: &Caller) -> Result<(), VfsError> {
        Ok(())
    }

    async fn create(&self, _: &Caller, _: FileHandle, _: &Name, _: CreateMode) -> Result<Created, VfsError> {
        self.changing()
    }

    async fn make_directory(
        &self,
        _: &Caller,
        _: FileHandle,
        _: &Name,
        _: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.changing()
    }

    async fn make_symlink(
        &self,
        _: &Caller,
        _: FileHandle,
        _: &Name,
        _: Bytes,
        _: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.changing()
    }

    async fn make_node(
        &self,
        _: &Caller,
        _: FileHandle,
        _: &Name,
        _: FileKind,
        _: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.changing()
    }

    async fn link(
        &self,
        _: &Caller,
        _: FileHandle,
        _: FileHandle,
        _: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        self.changing()
    }

    async fn remove(&self, _: &Caller, _: FileHandle, _: &Name) -> Result<Removed, VfsError> {
        self.changing()
    }

    async fn remove_directory(&self, _: &Caller, _: FileHandle, _: &Name) -> Result<Removed, VfsError> {
        self.changing()
    }

    async fn rename(
        &self,
        _: &Caller,
        _: FileHandle,
        _: &Name,
        _: FileHandle,
        _: &Name,
    ) -> Result<Renamed, VfsError> {
        self.changing()
    }

    async fn set_xattr(
        &self,
        _: &Caller,
        _: FileHandle,
        _: &[u8],
        _: Bytes,
        _: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        self.changing()
    }

    async fn remove_xattr(&self, _: &Caller, _: FileHandle, _: &[u8]) -> Result<ChangedAttributes, VfsError> {
        self.changing()
    }

    async fn set_acl(
        &self,
        _: &Caller,
        _: FileHandle,
        _: Option<Acl>,
        _: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.changing()
    }
}
