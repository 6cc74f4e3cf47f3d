//! The rules of POSIX, as pure functions: what a call may do and what it changes.
//!
//! Both the engine and the executable model ([`MemoryVfs`](crate::MemoryVfs)) call these, so a rule exists once. Nothing
//! here reads a clock or touches storage: a function gets the attributes and ACLs as they are at the instant of the change
//! and says `Ok` or which error, or returns the attributes after the change. The reference is Linux (ext4 behind knfsd),
//! because that is what applications and pjdfstest were written against:
//!
//! - names: [`may_search`], [`may_list`], [`may_create`], [`may_make_node`], [`may_delete`], [`may_rename`], [`may_link`];
//! - data: [`may_read`], [`may_write`], [`mode_after_write`];
//! - attributes: [`set_attributes`], [`inherit`] (a new file), [`stamp`] (change time and counter);
//! - ACLs: [`check_acl`], [`set_acl`], [`acl_after_chmod`]; extended attributes: [`check_xattr`];
//! - RFC 1813 ACCESS: [`granted`];
//! - all of them by one [`verdict()`] on permissions, which names the line that decided.

mod acl;
mod attributes;
mod verdict;
mod xattr;

pub use acl::{ACL_ENTRIES_MAX, PlannedAcl, acl_after_chmod, check_acl, set_acl};
pub use attributes::{
    FILE_BYTES_MAX, NewFile, PlannedChange, SET_GID, SET_UID, STICKY, inherit, mode_after_write,
    set_attributes, stamp, without_privilege,
};
pub use verdict::{DecidedBy, Deletion, Letters, Verdict, deletion, verdict};
pub use xattr::{
    XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XattrUse, check_xattr, xattr_is_listed,
};

use crate::{AccessMask, Acl, Attributes, Credentials, FileKind, VfsError};

/// Permission to read, as in one octal digit of a mode.
pub const READ: u8 = 4;
/// Permission to write.
pub const WRITE: u8 = 2;
/// Permission to execute, or to search a directory.
pub const EXECUTE: u8 = 1;

/// A file as the rules see it: its attributes and, if it has one, its access ACL.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// Its access ACL; `None` or an empty one: the mode decides.
    pub acl: Option<&'a Acl>,
}

impl<'a> Subject<'a> {
    /// Pairs attributes with an access ACL.
    pub fn new(attributes: &'a Attributes, acl: Option<&'a Acl>) -> Self {
        Self { attributes, acl }
    }

    fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }
}

/// Whether `caller` is the owner of the file, or root.
pub fn owns(attributes: &Attributes, caller: &Credentials) -> bool {
    caller.is_root() || caller.uid == attributes.uid
}

/// Whether `caller` has all permissions in `wanted` at once; [`verdict()`] says by which line.
pub fn permits(file: Subject<'_>, caller: &Credentials, wanted: u8) -> bool {
    verdict(file, caller, wanted).is_allowed()
}

fn require(file: Subject<'_>, caller: &Credentials, wanted: u8) -> Result<(), VfsError> {
    if permits(file, caller, wanted) {
        Ok(())
    } else {
        Err(VfsError::AccessDenied)
    }
}

fn require_directory(file: Subject<'_>) -> Result<(), VfsError> {
    if file.is_directory() {
        Ok(())
    } else {
        Err(VfsError::NotDirectory)
    }
}

/// Whether names in `directory` may be looked up: LOOKUP, and the first step of every call on a name.
///
/// # Errors
/// `NotDirectory`, `AccessDenied`.
pub fn may_search(directory: Subject<'_>, caller: &Credentials) -> Result<(), VfsError> {
    require_directory(directory)?;
    require(directory, caller, EXECUTE)
}

/// Whether the entries of `directory` may be listed.
///
/// # Errors
/// `NotDirectory`, `AccessDenied`.
pub fn may_list(directory: Subject<'_>, caller: &Credentials) -> Result<(), VfsError> {
    require_directory(directory)?;
    require(directory, caller, READ)
}

/// Whether a name may be added to `directory`. Ask [`may_search`] first and answer `Exists` for a name that is there:
/// POSIX wants EEXIST rather than EACCES then.
///
/// # Errors
/// `NotDirectory`; `AccessDenied`; `NotFound` if the directory itself has been removed.
pub fn may_create(directory: Subject<'_>, caller: &Credentials) -> Result<(), VfsError> {
    require_directory(directory)?;
    if directory.attributes.links == 0 {
        return Err(VfsError::NotFound);
    }
    require(directory, caller, WRITE | EXECUTE)
}

/// Whether `kind` may be made by `caller` with [`make_node`](crate::Vfs::make_node).
///
/// # Errors
/// `InvalidArgument` for kinds that are not nodes; `NotPermitted` for devices, which only root may make.
pub fn may_make_node(kind: FileKind, caller: &Credentials) -> Result<(), VfsError> {
    match kind {
        FileKind::Fifo | FileKind::Socket => Ok(()),
        FileKind::BlockDevice { .. } | FileKind::CharacterDevice { .. } if caller.is_root() => Ok(()),
        FileKind::BlockDevice { .. } | FileKind::CharacterDevice { .. } => Err(VfsError::NotPermitted),
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => Err(VfsError::InvalidArgument),
    }
}

/// Whether the entry for `victim` may be taken out of `directory`: write permission, and in a sticky directory only for
/// the owner of the file or of the directory. Says nothing about kinds or emptiness.
///
/// # Errors
/// `NotDirectory`; `AccessDenied` without write permission; `NotPermitted` for the sticky bit.
pub fn may_delete(directory: Subject<'_>, victim: &Attributes, caller: &Credentials) -> Result<(), VfsError> {
    require_directory(directory)?;
    let deletion = deletion(directory, victim, caller);
    match (deletion.directory.is_allowed(), deletion.is_sticky) {
        (false, _) => Err(VfsError::AccessDenied),
        (true, true) => Err(VfsError::NotPermitted),
        (true, false) => Ok(()),
    }
}

/// Whether a hard link to `file` may be added to `directory` (whose name is free).
///
/// # Errors
/// Those of [`may_create`]; `NotPermitted` for a directory; `TooManyLinks` at `links_max`; `NotFound` for a file whose last
/// name is gone.
pub fn may_link(
    file: &Attributes,
    directory: Subject<'_>,
    caller: &Credentials,
    links_max: u32,
) -> Result<(), VfsError> {
    may_create(directory, caller)?;
    if file.kind == FileKind::Directory {
        return Err(VfsError::NotPermitted);
    }
    if file.links == 0 {
        return Err(VfsError::NotFound);
    }
    if file.links >= links_max {
        return Err(VfsError::TooManyLinks);
    }
    Ok(())
}

/// A rename to be judged. The two directories may be the same.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Where the file is.
    pub from: Subject<'a>,
    /// The file.
    pub moved: Subject<'a>,
    /// Where it goes.
    pub to: Subject<'a>,
    /// What stands at the new name.
    pub replaced: Option<&'a Attributes>,
}

/// Whether a rename is allowed by permissions and by kinds. The caller has searched both directories and has already
/// answered: `Ok` without any change when both names are one file, `InvalidArgument` when `to` is `moved` or below it,
/// `NotEmpty` when `replaced` is above `from`. It still has to answer `NotEmpty` for a target directory with entries.
///
/// # Errors
/// Those of [`may_delete`] and [`may_create`]; `IsDirectory` / `NotDirectory` when the kinds do not match; `AccessDenied`
/// when a directory that the caller cannot write would get another parent (its `..` changes); `TooManyLinks` when the new
/// parent cannot have another subdirectory.
pub fn may_rename(rename: Rename<'_>, caller: &Credentials, links_max: u32) -> Result<(), VfsError> {
    let Rename {
        from,
        moved,
        to,
        replaced,
    } = rename;
    may_delete(from, moved.attributes, caller)?;
    match replaced {
        None => may_create(to, caller)?,
        Some(target) => {
            may_delete(to, target, caller)?;
            match (moved.is_directory(), target.kind == FileKind::Directory) {
                (true, false) => return Err(VfsError::NotDirectory),
                (false, true) => return Err(VfsError::IsDirectory),
                (true, true) | (false, false) => {}
            }
        }
    }
    let new_parent = from.attributes.inode != to.attributes.inode;
    if new_parent && moved.is_directory() {
        require(moved, caller, WRITE)?;
        if replaced.is_none() && to.attributes.links >= links_max {
            return Err(VfsError::TooManyLinks);
        }
    }
    Ok(())
}

/// Whether the file's data may be read. The owner always may, since a client that opened the file before a chmod goes on
/// reading (RFC 1813 §4.4), and execute permission suffices for a program's text, which a client can only get by READ.
///
/// # Errors
/// `IsDirectory`; `InvalidArgument` for other kinds that hold no data; `AccessDenied`.
pub fn may_read(file: Subject<'_>, caller: &Credentials) -> Result<(), VfsError> {
    require_regular(file)?;
    if owns(file.attributes, caller) || permits(file, caller, EXECUTE) {
        return Ok(());
    }
    require(file, caller, READ)
}

/// Whether the file's data may be written. The owner always may, as in [`may_read`].
///
/// # Errors
/// `IsDirectory`; `InvalidArgument` for other kinds that hold no data; `AccessDenied`.
pub fn may_write(file: Subject<'_>, caller: &Credentials) -> Result<(), VfsError> {
    require_regular(file)?;
    if owns(file.attributes, caller) {
        return Ok(());
    }
    require(file, caller, WRITE)
}

fn require_regular(file: Subject<'_>) -> Result<(), VfsError> {
    match file.attributes.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(VfsError::IsDirectory),
        FileKind::Symlink
        | FileKind::BlockDevice { .. }
        | FileKind::CharacterDevice { .. }
        | FileKind::Fifo
        | FileKind::Socket => Err(VfsError::InvalidArgument),
    }
}

/// Which of the permissions `asked` about the caller has (RFC 1813 §3.3.4). The owner override of reads and writes does
/// not show here: a client uses the answer to decide `open` and `access`.
pub fn granted(file: Subject<'_>, caller: &Credentials, asked: AccessMask) -> AccessMask {
    let may = |wanted: u8| permits(file, caller, wanted);
    if file.is_directory() {
        let change = may(WRITE | EXECUTE);
        return AccessMask {
            read: asked.read && may(READ),
            lookup: asked.lookup && may(EXECUTE),
            modify: asked.modify && change,
            extend: asked.extend && change,
            delete: asked.delete && change,
            execute: false,
        };
    }
    AccessMask {
        read: asked.read && may(READ),
        lookup: false,
        modify: asked.modify && may(WRITE),
        extend: asked.extend && may(WRITE),
        delete: false,
        execute: asked.execute && may(EXECUTE),
    }
}

#[cfg(test)]
mod tests;
