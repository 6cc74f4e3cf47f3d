//! Extended attributes and access control lists.

use crate::{change::ChangeRequest, volume::Inner};
use bytes::Bytes;
use firn_vfs::{Acl, Caller, ChangedAttributes, FileHandle, VfsError, XattrMode};

impl Inner {
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
