//! [`IndexedVfs`]: a file system that notes in the case-folded index what is made through it.

use crate::case_index::CaseIndex;
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    Attributes, Caller, ChangedAttributes, CreateMode, Created, FileHandle, FileKind, Name, Renamed,
    SetAttributes, Vfs, VfsError, VfsLayer,
};
use std::sync::Arc;

/// See the module.
pub(crate) struct IndexedVfs {
    below: Arc<dyn Vfs>,
    index: Arc<CaseIndex>,
}

impl IndexedVfs {
    pub(crate) fn new(below: Arc<dyn Vfs>, index: Arc<CaseIndex>) -> Self {
        Self { below, index }
    }

    /// A call that returned an error changed nothing.
    fn noted<T>(
        &self,
        result: Result<T, VfsError>,
        directory: FileHandle,
        name: &Name,
    ) -> Result<T, VfsError> {
        if result.is_ok() {
            self.index.touched(directory, name);
        }
        result
    }
}

#[async_trait]
impl VfsLayer for IndexedVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let made = self.below.create(caller, directory, name, mode).await;
        self.noted(made, directory, name)
    }
    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let made = self
            .below
            .make_directory(caller, directory, name, attributes)
            .await;
        self.noted(made, directory, name)
    }
    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let made = self
            .below
            .make_symlink(caller, directory, name, target, attributes)
            .await;
        self.noted(made, directory, name)
    }
    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let made = self
            .below
            .make_node(caller, directory, name, kind, attributes)
            .await;
        self.noted(made, directory, name)
    }
    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        let made = self.below.link(caller, file, directory, name).await;
        self.noted(made, directory, name)
    }
    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let renamed = self
            .below
            .rename(caller, from_directory, from_name, to_directory, to_name)
            .await;
        self.noted(renamed, to_directory, to_name)
    }
}
