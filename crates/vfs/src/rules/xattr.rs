//! Extended attribute rules: namespaces, who may use them, sizes.

use super::{READ, STICKY, Subject, WRITE, owns, permits};
use crate::{Credentials, FileKind, VfsError};

/// Longest name, with its namespace.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest value.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of all names of one file, each with a NUL: what `listxattr` can return.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// What is done with an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrUse {
    /// Its value is read.
    Get,
    /// It is set or removed.
    Change,
}

/// Whether `caller` may use the attribute `name`, by its namespace (xattr(7)):
///
/// - `user.`: regular files and directories, with read or write permission; in a sticky directory only its owner changes;
/// - `trusted.`: root only, and nobody else learns whether it exists;
/// - `security.`: everybody reads, root changes;
/// - `system.` and anything else: not kept here; ACLs have calls of their own.
///
/// # Errors
/// `InvalidArgument` for an empty name or one with NUL; `TooLarge` for a long one; `NotSupported`; `NotPermitted`;
/// `AccessDenied`; `NoAttribute` for what is hidden from the caller.
pub fn check_xattr(
    file: Subject<'_>,
    caller: &Credentials,
    name: &[u8],
    use_: XattrUse,
) -> Result<(), VfsError> {
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(VfsError::TooLarge);
    }
    if name.contains(&0) {
        return Err(VfsError::InvalidArgument);
    }
    let (namespace, rest) = match name.iter().position(|byte| *byte == b'.') {
        Some(dot) => name.split_at(dot + 1),
        None => (name, &[][..]),
    };
    if name.is_empty() || namespace.ends_with(b".") && rest.is_empty() {
        return Err(VfsError::InvalidArgument);
    }
    match (namespace, use_) {
        (b"user.", _) => check_user(file, caller, use_),
        (b"trusted.", _) | (b"security.", XattrUse::Change) if caller.is_root() => Ok(()),
        (b"trusted.", XattrUse::Get) => Err(VfsError::NoAttribute),
        (b"trusted." | b"security.", XattrUse::Change) => Err(VfsError::NotPermitted),
        (b"security.", XattrUse::Get) => Ok(()),
        (_, _) => Err(VfsError::NotSupported),
    }
}

fn check_user(file: Subject<'_>, caller: &Credentials, use_: XattrUse) -> Result<(), VfsError> {
    let attributes = file.attributes;
    let change = use_ == XattrUse::Change;
    match attributes.kind {
        FileKind::Regular => {}
        FileKind::Directory => {
            if change && attributes.mode & STICKY != 0 && !owns(attributes, caller) {
                return Err(VfsError::NotPermitted);
            }
        }
        FileKind::Symlink
        | FileKind::BlockDevice { .. }
        | FileKind::CharacterDevice { .. }
        | FileKind::Fifo
        | FileKind::Socket => {
            return Err(if change {
                VfsError::NotPermitted
            } else {
                VfsError::NoAttribute
            });
        }
    }
    if permits(file, caller, if change { WRITE } else { READ }) {
        Ok(())
    } else {
        Err(VfsError::AccessDenied)
    }
}

/// Whether `caller` sees `name` in a list.
pub fn xattr_is_listed(caller: &Credentials, name: &[u8]) -> bool {
    caller.is_root() || !name.starts_with(b"trusted.")
}
