//! Questions about files, of the live tree or of a snapshot's.

use crate::read_view::ReadView;
use bytes::Bytes;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, FileHandle, FileKind, Name, VfsError,
    rules::{self, Subject, XattrUse},
};

impl ReadView<'_> {
    pub async fn see(&self, handle: FileHandle) -> Result<Attributes, VfsError> {
        let number = self.number(handle)?;
        self.ask(|state| Ok(state.see(number)?.attributes)).await
    }

    pub async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let directory = self.number(directory)?;
        self.ask(|state| {
            let number = state.plan_lookup(caller, directory, name)?;
            let seen = state.see(number)?;
            Ok((
                FileHandle {
                    file_system: state.file_system,
                    inode: number,
                },
                seen.attributes,
            ))
        })
        .await
    }

    pub async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let directory = self.number(directory)?;
        self.ask(|state| {
            let seen = state.see(directory)?;
            rules::may_search(seen.subject(), &caller.credentials)?;
            let parent = state.inode(directory)?.ok_or(VfsError::Stale)?.parent;
            let seen = state.see(parent)?;
            Ok((
                FileHandle {
                    file_system: state.file_system,
                    inode: parent,
                },
                seen.attributes,
            ))
        })
        .await
    }

    pub async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let seen = state.see(number)?;
            Ok((
                rules::granted(seen.subject(), &caller.credentials, asked),
                seen.attributes,
            ))
        })
        .await
    }

    pub async fn read_link(&self, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let attributes = state.see(number)?.attributes;
            if attributes.kind != FileKind::Symlink {
                return Err(VfsError::InvalidArgument.into());
            }
            let target = state
                .inode(number)?
                .ok_or(VfsError::Stale)?
                .symlink_target
                .clone();
            Ok((target, attributes))
        })
        .await
    }

    pub async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
            let seen = inode.xattrs.keys();
            Ok(seen
                .filter(|name| rules::xattr_is_listed(&caller.credentials, name))
                .cloned()
                .collect())
        })
        .await
    }

    pub async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let seen = state.see(number)?;
            let subject = Subject::new(&seen.attributes, Some(&seen.acl));
            rules::check_xattr(subject, &caller.credentials, name, XattrUse::Get)?;
            let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
            Ok(inode.xattrs.get(name).cloned().ok_or(VfsError::NoAttribute)?)
        })
        .await
    }

    pub async fn get_acl(&self, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
            Ok((inode.access_acl.clone(), inode.default_acl.clone()))
        })
        .await
    }
}
