//! Access control lists: what makes one valid, and how it and the mode bits follow each other.
//!
//! A file with an ACL shows the mask (or, without one, the owning group's entry) as the group bits of its mode. So the two
//! are kept in step: chmod writes owner, mask and others into the ACL; setting the ACL writes them into the mode; and an
//! ACL that says no more than a mode can is not kept at all.

use super::{SET_GID, owns};
use crate::{Acl, AclEntry, AclTag, Attributes, Credentials, FileKind, VfsError};

/// Most entries of one ACL: what the NFSACL protocol carries.
pub const ACL_ENTRIES_MAX: usize = 1024;

/// Checks that `acl` is empty, or complete and in order: owner, owning group and others once each, no tag twice, a mask
/// as soon as anybody is named.
///
/// # Errors
/// `InvalidArgument`; `TooLarge` for more than [`ACL_ENTRIES_MAX`] entries.
pub fn check_acl(acl: &Acl) -> Result<(), VfsError> {
    let entries = &acl.entries;
    if entries.is_empty() {
        return Ok(());
    }
    if entries.len() > ACL_ENTRIES_MAX {
        return Err(VfsError::TooLarge);
    }
    let ordered = entries.is_sorted_by(|a, b| a.tag < b.tag);
    let in_range = entries.iter().all(|entry| entry.permissions <= 7);
    let has = |tag: AclTag| entries.iter().any(|entry| entry.tag == tag);
    let complete = has(AclTag::UserObject) && has(AclTag::GroupObject) && has(AclTag::Other);
    let names_somebody = entries
        .iter()
        .any(|entry| matches!(entry.tag, AclTag::User(_) | AclTag::Group(_)));
    if ordered && in_range && complete && (has(AclTag::Mask) || !names_somebody) {
        Ok(())
    } else {
        Err(VfsError::InvalidArgument)
    }
}

/// The ACL after the mode bits became `mode`. An empty one stays empty.
pub fn acl_after_chmod(acl: &Acl, mode: u32) -> Acl {
    let has_mask = acl.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    let entries = acl.entries.iter().map(|entry| AclEntry {
        tag: entry.tag,
        permissions: match entry.tag {
            AclTag::UserObject => digit(mode, 6),
            AclTag::Mask => digit(mode, 3),
            AclTag::GroupObject if !has_mask => digit(mode, 3),
            AclTag::Other => digit(mode, 0),
            AclTag::User(_) | AclTag::GroupObject | AclTag::Group(_) => entry.permissions,
        },
    });
    Acl {
        entries: entries.collect(),
    }
}

/// What setting ACLs makes of a file. `None`: stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAcl {
    /// The mode afterwards.
    pub mode: u32,
    /// The access ACL to keep; empty when the mode says it all.
    pub access: Option<Acl>,
    /// The default ACL to keep.
    pub default: Option<Acl>,
}

/// Judges the setting of ACLs and works out its effect; the caller stamps the attributes.
///
/// # Errors
/// `NotSupported` on a symbolic link; `NotPermitted` for anybody but owner and root; `AccessDenied` for a default ACL on
/// what is no directory; those of [`check_acl`].
pub fn set_acl(
    attributes: &Attributes,
    caller: &Credentials,
    access: Option<Acl>,
    default: Option<Acl>,
) -> Result<PlannedAcl, VfsError> {
    if attributes.kind == FileKind::Symlink {
        return Err(VfsError::NotSupported);
    }
    if !owns(attributes, caller) {
        return Err(VfsError::NotPermitted);
    }
    if let Some(default) = &default {
        check_acl(default)?;
        if attributes.kind != FileKind::Directory && !default.entries.is_empty() {
            return Err(VfsError::AccessDenied);
        }
    }
    let mut mode = attributes.mode;
    let access = match access {
        None => None,
        Some(acl) => {
            check_acl(&acl)?;
            if acl.entries.is_empty() {
                Some(acl)
            } else {
                mode = mode & !0o777 | mode_of(&acl);
                if !caller.is_root() && !caller.in_group(attributes.gid) {
                    mode &= !SET_GID;
                }
                Some(unless_minimal(acl))
            }
        }
    };
    Ok(PlannedAcl {
        mode,
        access,
        default,
    })
}

/// The mode and access ACL of a new file asked for with `mode` where the directory's default ACL is `default`.
pub(super) fn inherit_acl(default: &Acl, mode: u32) -> (u32, Acl) {
    if default.entries.is_empty() {
        return (mode, Acl::default());
    }
    let has_mask = default.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    let entries = default.entries.iter().map(|entry| AclEntry {
        tag: entry.tag,
        permissions: match entry.tag {
            AclTag::UserObject => entry.permissions & digit(mode, 6),
            AclTag::Mask => entry.permissions & digit(mode, 3),
            AclTag::GroupObject if !has_mask => entry.permissions & digit(mode, 3),
            AclTag::Other => entry.permissions & digit(mode, 0),
            AclTag::User(_) | AclTag::GroupObject | AclTag::Group(_) => entry.permissions,
        },
    });
    let acl = Acl {
        entries: entries.collect(),
    };
    (mode & !0o777 | mode_of(&acl), unless_minimal(acl))
}

fn digit(mode: u32, shift: u32) -> u8 {
    (mode >> shift & 7) as u8
}

/// The nine permission bits a valid, non-empty ACL shows.
fn mode_of(acl: &Acl) -> u32 {
    let find = |tag: AclTag| {
        acl.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| u32::from(entry.permissions & 7))
    };
    let group = find(AclTag::Mask).or_else(|| find(AclTag::GroupObject));
    find(AclTag::UserObject).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | find(AclTag::Other).unwrap_or(0)
}

/// Empty if the three entries every ACL has are all there is.
fn unless_minimal(acl: Acl) -> Acl {
    let minimal = acl.entries.iter().all(|entry| {
        matches!(
            entry.tag,
            AclTag::UserObject | AclTag::GroupObject | AclTag::Other
        )
    });
    if minimal { Acl::default() } else { acl }
}
