//! Extended attributes and access control lists.

use crate::volume::{ChangeRequest, Inner};
use bytes::Bytes;
use firn_vfs::{
    Acl, Caller, ChangedAttributes, FileHandle, VfsError, XattrMode,
    rules::{self, Subject, XattrUse},
};

impl Inner {
    pub(super) async fn list_xattrs(
        &self,
        caller: &Caller,
        file: FileHandle,
    ) -> Result<Vec<Bytes>, VfsError> {
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

    pub(super) async fn get_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<Bytes, VfsError> {
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

    pub(super) async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        let number = self.number(file)?;
        let request = ChangeRequest {
            extra_bytes: value.len() as u64,
            ..ChangeRequest::metadata()
        };
        self.change_inode(caller, number, request, |state, _| {
            state
                .plan_xattr(caller, number, name, Some(value.clone()), mode)
                .map(Some)
        })
        .await
    }

    pub(super) async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        let number = self.number(file)?;
        self.change_inode(caller, number, ChangeRequest::removal(), |state, _| {
            state
                .plan_xattr(caller, number, name, None, XattrMode::Replace)
                .map(Some)
        })
        .await
    }

    pub(super) async fn get_acl(&self, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        let number = self.number(file)?;
        self.ask(|state| {
            let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
            Ok((inode.access_acl.clone(), inode.default_acl.clone()))
        })
        .await
    }

    pub(super) async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        let number = self.number(file)?;
        self.change_inode(caller, number, ChangeRequest::metadata(), |state, _| {
            state
                .plan_acl(caller, number, access.clone(), default.clone())
                .map(Some)
        })
        .await
    }
}
