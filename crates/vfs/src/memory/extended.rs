//! Calls on extended attributes and ACLs.

use super::state::State;
use crate::{
    Acl, Caller, ChangedAttributes, FileHandle, Timestamp, VfsError, XattrMode,
    rules::{self, XattrUse},
};
use bytes::Bytes;

impl State {
    pub(super) fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        let names = self.get(file)?.xattrs.keys();
        Ok(names
            .filter(|name| rules::xattr_is_listed(&caller.credentials, name))
            .cloned()
            .collect())
    }

    pub(super) fn get_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<Bytes, VfsError> {
        let inode = self.get(file)?;
        rules::check_xattr(inode.subject(), &caller.credentials, name, XattrUse::Get)?;
        inode.xattrs.get(name).cloned().ok_or(VfsError::NoAttribute)
    }

    pub(super) fn set_xattr(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
        now: Timestamp,
    ) -> Result<ChangedAttributes, VfsError> {
        let inode = self.get(file)?;
        rules::check_xattr(inode.subject(), &caller.credentials, name, XattrUse::Change)?;
        if value.len() > rules::XATTR_VALUE_BYTES_MAX {
            return Err(VfsError::TooLarge);
        }
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(VfsError::Exists),
            (XattrMode::Replace, false) => return Err(VfsError::NoAttribute),
            (XattrMode::Create | XattrMode::Either, false) => {
                let listed: usize = inode.xattrs.keys().map(|name| name.len() + 1).sum();
                if listed + name.len() + 1 > rules::XATTR_LIST_BYTES_MAX {
                    return Err(VfsError::NoSpace);
                }
            }
            (XattrMode::Replace | XattrMode::Either, true) => {}
        }
        let name = Bytes::copy_from_slice(name);
        let changed = self.change_file(file.inode, now, |inode| {
            inode.xattrs.insert(name, value);
        });
        self.complete(caller, None);
        Ok(changed)
    }

    pub(super) fn remove_xattr(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        now: Timestamp,
    ) -> Result<ChangedAttributes, VfsError> {
        let inode = self.get(file)?;
        rules::check_xattr(inode.subject(), &caller.credentials, name, XattrUse::Change)?;
        if !inode.xattrs.contains_key(name) {
            return Err(VfsError::NoAttribute);
        }
        let changed = self.change_file(file.inode, now, |inode| {
            inode.xattrs.remove(name);
        });
        self.complete(caller, None);
        Ok(changed)
    }

    pub(super) fn set_acl(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
        now: Timestamp,
    ) -> Result<ChangedAttributes, VfsError> {
        let inode = self.get(file)?;
        let plan = rules::set_acl(&inode.attributes, &caller.credentials, access, default)?;
        let changed = self.change_file(file.inode, now, |inode| {
            inode.set_mode(plan.mode);
            if let Some(access) = plan.access {
                inode.access_acl = access;
            }
            if let Some(default) = plan.default {
                inode.default_acl = default;
            }
        });
        self.complete(caller, None);
        Ok(changed)
    }
}
