//! Attribute rules: what a change of attributes may do and does, and what a new file inherits.

use super::{Subject, WRITE, acl::acl_after_chmod, acl::inherit_acl, owns, permits};
use crate::{Acl, Attributes, Credentials, FileKind, SetAttributes, SetTime, Timestamp, VfsError};

/// Execute as the owner.
pub const SET_UID: u32 = 0o4000;
/// Execute as the group; on a directory: entries inherit its group.
pub const SET_GID: u32 = 0o2000;
/// On a directory: only owners remove entries.
pub const STICKY: u32 = 0o1000;

const MODE_BITS: u32 = 0o7777;
const GROUP_EXECUTE: u32 = 0o0010;

/// The largest file, 8 EiB - 1: `off_t` is signed.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Marks one change of a file: its change time rises by at least a nanosecond, even if the clock went back, and its
/// change counter by one.
pub fn stamp(attributes: &mut Attributes, now: Timestamp) {
    let old = attributes.changed;
    let next = if old.nanoseconds == 999_999_999 {
        Timestamp {
            seconds: old.seconds + 1,
            nanoseconds: 0,
        }
    } else {
        Timestamp {
            seconds: old.seconds,
            nanoseconds: old.nanoseconds + 1,
        }
    };
    attributes.changed = now.max(next);
    attributes.change += 1;
}

/// The mode after `caller` wrote or truncated the file: set-uid goes, and set-gid where it means execution as the group.
/// Root keeps both.
pub fn mode_after_write(mode: u32, caller: &Credentials) -> u32 {
    if caller.is_root() {
        mode
    } else {
        without_privilege(mode)
    }
}

/// The mode without what makes a file run as its owner or group.
pub fn without_privilege(mode: u32) -> u32 {
    // Set-gid without group execution is the old mark for mandatory locking and gives no privilege.
    if mode & GROUP_EXECUTE == 0 {
        mode & !SET_UID
    } else {
        mode & !(SET_UID | SET_GID)
    }
}

/// What a permitted change of attributes makes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The attributes afterwards, stamped; `used_bytes` is still that of before.
    pub attributes: Attributes,
    /// The access ACL afterwards, if the change of mode changed it.
    pub access_acl: Option<Acl>,
    /// Set when the length is to be set (even to what it is): the data beyond it goes, or a hole is added.
    pub truncate_to: Option<u64>,
}

/// Judges a SETATTR and works out its effect; `None` when it asks for nothing, and then not even the change time moves.
///
/// - owner: root may change it; anybody may "change" their own file to themselves;
/// - group: root, or the owner into a group they are in;
/// - both clear set-uid and set-gid of what is not a directory, whoever does it, as Linux has it;
/// - mode: the owner or root; set-gid is dropped if the caller is not in the file's group; ignored on a symbolic link;
/// - times: to a value, the owner or root; to the server's clock, also whoever may write the file;
/// - length: whoever may write the file, and the owner in any case; sets the modification time.
///
/// # Errors
/// `NotPermitted`, `AccessDenied`, `IsDirectory` or `InvalidArgument` for the length of what is no regular file,
/// `FileTooLarge`, `NotSynchronised` if `guard` is not the current change time.
pub fn set_attributes(
    file: Subject<'_>,
    caller: &Credentials,
    change: &SetAttributes,
    guard: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<PlannedChange>, VfsError> {
    let old = file.attributes;
    if guard.is_some_and(|guard| guard != old.changed) {
        return Err(VfsError::NotSynchronised);
    }
    if *change == SetAttributes::default() {
        return Ok(None);
    }
    check_owner_and_group(old, caller, change)?;
    if change.mode.is_some() && !owns(old, caller) {
        return Err(VfsError::NotPermitted);
    }
    check_times(file, caller, change)?;
    if let Some(size_bytes) = change.size_bytes {
        super::may_write(file, caller)?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(VfsError::FileTooLarge);
        }
    }

    let mut new = old.clone();
    if let Some(size_bytes) = change.size_bytes {
        new.size_bytes = size_bytes;
        new.modified = now;
        new.mode = mode_after_write(new.mode, caller);
    }
    new.uid = change.uid.unwrap_or(old.uid);
    new.gid = change.gid.unwrap_or(old.gid);
    let mut access_acl = None;
    if let Some(mode) = change.mode.filter(|_| old.kind != FileKind::Symlink) {
        new.mode = mode & MODE_BITS;
        if !caller.is_root() && !caller.in_group(new.gid) {
            new.mode &= !SET_GID;
        }
        access_acl = file
            .acl
            .filter(|acl| !acl.entries.is_empty())
            .map(|acl| acl_after_chmod(acl, new.mode));
    }
    if (change.uid.is_some() || change.gid.is_some()) && old.kind != FileKind::Directory {
        new.mode = without_privilege(new.mode);
    }
    set_time(&mut new.accessed, change.accessed, now);
    set_time(&mut new.modified, change.modified, now);
    stamp(&mut new, now);
    Ok(Some(PlannedChange {
        attributes: new,
        access_acl,
        truncate_to: change.size_bytes,
    }))
}

fn check_owner_and_group(
    old: &Attributes,
    caller: &Credentials,
    change: &SetAttributes,
) -> Result<(), VfsError> {
    if caller.is_root() {
        return Ok(());
    }
    let owner = caller.uid == old.uid;
    let uid_allowed = change.uid.is_none_or(|uid| owner && uid == old.uid);
    let gid_allowed = change
        .gid
        .is_none_or(|gid| owner && (gid == old.gid || caller.in_group(gid)));
    if uid_allowed && gid_allowed {
        Ok(())
    } else {
        Err(VfsError::NotPermitted)
    }
}

fn check_times(file: Subject<'_>, caller: &Credentials, change: &SetAttributes) -> Result<(), VfsError> {
    if owns(file.attributes, caller) {
        return Ok(());
    }
    let times = [change.accessed, change.modified];
    if times.iter().any(|time| matches!(time, SetTime::To(_))) {
        return Err(VfsError::NotPermitted);
    }
    if times.contains(&SetTime::Now) && !permits(file, caller, WRITE) {
        return Err(VfsError::AccessDenied);
    }
    Ok(())
}

fn set_time(time: &mut Timestamp, change: SetTime, now: Timestamp) {
    match change {
        SetTime::Keep => {}
        SetTime::Now => *time = now,
        SetTime::To(value) => *time = value,
    }
}

/// The owner, mode, times and ACLs of a file about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length: a hole, if the caller asked for one (regular files only).
    pub size_bytes: u64,
    /// Access time.
    pub accessed: Timestamp,
    /// Modification time.
    pub modified: Timestamp,
    /// Access ACL; empty: none.
    pub access_acl: Acl,
    /// Default ACL (directories only); empty: none.
    pub default_acl: Acl,
}

/// What a new file of `kind` in `directory` gets.
///
/// A set-gid directory hands down its group, and to directories the bit itself. A default ACL becomes the access ACL,
/// limited by the asked mode, and is handed down to directories. The asked owner counts for root only; the asked group for
/// root and its members; otherwise they are ignored, as knfsd does. Without an asked mode it is 0 (0777 for a symbolic
/// link): a client that creates exclusively sets it afterwards. `mkdir` cannot ask for set-uid or set-gid.
///
/// # Errors
/// `FileTooLarge`.
pub fn inherit(
    directory: &Attributes,
    directory_default_acl: &Acl,
    kind: FileKind,
    asked: &SetAttributes,
    caller: &Credentials,
    now: Timestamp,
) -> Result<NewFile, VfsError> {
    let size_bytes = asked
        .size_bytes
        .filter(|_| kind == FileKind::Regular)
        .unwrap_or(0);
    if size_bytes > FILE_BYTES_MAX {
        return Err(VfsError::FileTooLarge);
    }
    let inherits_group = directory.mode & SET_GID != 0;
    let uid = asked.uid.filter(|_| caller.is_root()).unwrap_or(caller.uid);
    let gid = asked
        .gid
        .filter(|gid| caller.is_root() || caller.in_group(*gid))
        .unwrap_or(if inherits_group { directory.gid } else { caller.gid });
    let (mode, access_acl, default_acl) = match kind {
        FileKind::Symlink => (0o777, Acl::default(), Acl::default()),
        FileKind::Directory => {
            let mut mode = asked.mode.unwrap_or(0) & (0o777 | STICKY);
            if inherits_group {
                mode |= SET_GID;
            }
            let (mode, access) = inherit_acl(directory_default_acl, mode);
            (mode, access, directory_default_acl.clone())
        }
        FileKind::Regular
        | FileKind::BlockDevice { .. }
        | FileKind::CharacterDevice { .. }
        | FileKind::Fifo
        | FileKind::Socket => {
            let mut mode = asked.mode.unwrap_or(0) & MODE_BITS;
            let runs_as_group = mode & SET_GID != 0 && mode & GROUP_EXECUTE != 0;
            if runs_as_group && !caller.is_root() && !caller.in_group(gid) {
                mode &= !SET_GID;
            }
            let (mode, access) = inherit_acl(directory_default_acl, mode);
            (mode, access, Acl::default())
        }
    };
    let mut file = NewFile {
        mode,
        uid,
        gid,
        size_bytes,
        accessed: now,
        modified: now,
        access_acl,
        default_acl,
    };
    set_time(&mut file.accessed, asked.accessed, now);
    set_time(&mut file.modified, asked.modified, now);
    Ok(file)
}
