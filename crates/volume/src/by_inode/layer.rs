//! A volume that is shared by inode as protocols see it: reads wait until what they show is as new as the freshness says.

use crate::volume::{Inner, Volume};
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, DirectoryPage, FileHandle, FileSystemStatus, Name, ReadReply,
    SeekTo, Vfs, VfsError, VfsLayer,
};
use std::time::Duration;

/// Newer roots that one call is made again on.
const NEWER_ROOTS_MAX: usize = 4;

/// See the module. Changes are made by the volume, which asks for leases.
pub struct ByInodeVfs {
    volume: Volume,
    freshness: Duration,
}

impl ByInodeVfs {
    /// Over a volume that [`Volume::open_by_inode`] opened. `freshness` is how old the read of the root may be that a read is answered by; zero: it began after
    /// the read came.
    ///
    /// # Panics
    /// Over any other volume.
    pub fn new(volume: Volume, freshness: Duration) -> Self {
        assert!(volume.inner.by_inode.is_some(), "opened by a member by inode");
        Self { volume, freshness }
    }

    fn inner(&self) -> &Inner {
        &self.volume.inner
    }

    /// Makes a call that shows nothing but `file`.
    async fn reading<T, F: Future<Output = Result<T, VfsError>>>(
        &self,
        file: FileHandle,
        call: impl Fn() -> F,
    ) -> Result<T, VfsError> {
        let inner = self.inner();
        inner.by_inode().last_call.note(inner.env.now());
        match inner.is_newest(file.inode) {
            true => call().await,
            false => self.by_root(call).await,
        }
    }

    /// Makes a call that may show anything.
    async fn by_root<T, F: Future<Output = Result<T, VfsError>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, VfsError> {
        let inner = self.inner();
        inner.by_inode().last_call.note(inner.env.now());
        inner.fresh(self.freshness).await?;
        for _ in 0..NEWER_ROOTS_MAX {
            let version = inner.by_inode().adopted_version();
            match call().await {
                // The cleaner may have deleted what only older roots need.
                Err(VfsError::Io(_) | VfsError::Corrupt { .. })
                    if inner.is_newer_at_hand(version).await? => {}
                answer => return answer,
            }
        }
        call().await
    }
}

#[async_trait]
impl VfsLayer for ByInodeVfs {
    fn below(&self) -> &dyn Vfs {
        &self.volume
    }

    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        self.reading(file, || Vfs::attributes(&self.volume, file)).await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let call = || Vfs::lookup(&self.volume, caller, directory, name);
        if self.inner().is_newest(directory.inode) {
            match call().await {
                // The name is the newest there is; the file's attributes may not be.
                Ok((file, _)) if !self.inner().is_newest(file.inode) => {}
                answer => return answer,
            }
        }
        self.by_root(call).await
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.by_root(|| Vfs::parent(&self.volume, caller, directory))
            .await
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        self.reading(file, || Vfs::check_access(&self.volume, caller, file, asked))
            .await
    }

    async fn read_link(&self, caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        self.reading(file, || Vfs::read_link(&self.volume, caller, file))
            .await
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        self.reading(file, || {
            Vfs::read(&self.volume, caller, file, offset, length_bytes)
        })
        .await
    }

    async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        self.reading(file, || Vfs::seek(&self.volume, caller, file, offset, to))
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
        let call = || Vfs::read_directory(&self.volume, caller, directory, cookie, limit, with_attributes);
        match with_attributes {
            true => self.by_root(call).await,
            false => self.reading(directory, call).await,
        }
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        self.by_root(|| Vfs::file_system_status(&self.volume)).await
    }

    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        self.reading(file, || Vfs::list_xattrs(&self.volume, caller, file))
            .await
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        self.reading(file, || Vfs::get_xattr(&self.volume, caller, file, name))
            .await
    }

    async fn get_acl(&self, caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        self.reading(file, || Vfs::get_acl(&self.volume, caller, file))
            .await
    }
}
