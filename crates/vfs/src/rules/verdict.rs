//! The verdict on a request for permissions: which line of a file's permissions decides, and what that line grants.
//!
//! Every access check is one of these, so that an explanation of a refusal (`firn-edge id`) cannot differ from the refusal. The line is found as IEEE 1003.1e
//! draft 17 and Linux have it, the first that applies:
//!
//! ```text
//! root            reads and writes anything, searches any directory, executes what anybody may
//! owner           the owner's bits, whatever an ACL says
//! named user      that entry, bounded by the mask
//! groups          of the matching entries, owning group and named ones, the first that grants all that is wanted at once; bounded by the mask
//! others          the rest
//! ```

use super::{EXECUTE, READ, STICKY, Subject, WRITE, owns};
use crate::{AclTag, Attributes, Credentials};
use std::fmt;

/// The line of a file's permissions that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The caller is the superuser.
    Root,
    /// Three bits of the mode: the owner's, the owning group's, or others'.
    Mode(AclTag),
    /// An entry of the access ACL, its permissions, and the mask if that bounds it.
    Entry {
        /// Whom it is about.
        tag: AclTag,
        /// As written.
        permissions: u8,
        /// The mask, where it counts.
        mask: Option<u8>,
    },
}

/// What was wanted of a file, and the line that granted or refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The permissions that were wanted at once.
    pub wanted: u8,
    /// The line that counts. Of several entries for groups that all refuse, the first.
    pub by: DecidedBy,
    /// What it grants, bounded by the mask.
    pub granted: u8,
}

impl Verdict {
    /// Whether all that was wanted is granted.
    pub fn is_allowed(&self) -> bool {
        self.granted & self.wanted == self.wanted
    }
}

/// Who gets `wanted` of `file`, and by which line of its permissions.
///
/// One single matching group entry must grant everything at once, as the draft standard and Linux have it.
pub fn verdict(file: Subject<'_>, caller: &Credentials, wanted: u8) -> Verdict {
    let attributes = file.attributes;
    let of = |by: DecidedBy, granted: u8| Verdict { wanted, by, granted };
    let of_mode = |tag: AclTag, shift: u32| of(DecidedBy::Mode(tag), (attributes.mode >> shift & 7) as u8);
    if caller.is_root() {
        let executable = file.is_directory() || attributes.mode & 0o111 != 0;
        return of(
            DecidedBy::Root,
            READ | WRITE | if executable { EXECUTE } else { 0 },
        );
    }
    if caller.uid == attributes.uid {
        return of_mode(AclTag::UserObject, 6);
    }
    let entries = file.acl.map_or(&[][..], |acl| &acl.entries);
    if entries.is_empty() {
        return match caller.in_group(attributes.gid) {
            true => of_mode(AclTag::GroupObject, 3),
            false => of_mode(AclTag::Other, 0),
        };
    }
    let find = |tag: AclTag| entries.iter().find(|entry| entry.tag == tag);
    let mask = find(AclTag::Mask).map(|entry| entry.permissions);
    let bounded = |tag: AclTag, permissions: u8| {
        let by = DecidedBy::Entry {
            tag,
            permissions,
            mask,
        };
        of(by, permissions & mask.unwrap_or(7))
    };
    if let Some(named) = find(AclTag::User(caller.uid)) {
        return bounded(named.tag, named.permissions);
    }
    let mut refusing = None;
    for entry in entries {
        let applies = match entry.tag {
            AclTag::GroupObject => caller.in_group(attributes.gid),
            AclTag::Group(gid) => caller.in_group(gid),
            AclTag::UserObject | AclTag::User(_) | AclTag::Mask | AclTag::Other => false,
        };
        if applies {
            let verdict = bounded(entry.tag, entry.permissions);
            if verdict.is_allowed() {
                return verdict;
            }
            refusing = refusing.or(Some(verdict));
        }
    }
    refusing.unwrap_or_else(|| {
        let permissions = find(AclTag::Other).map_or(0, |entry| entry.permissions);
        let by = DecidedBy::Entry {
            tag: AclTag::Other,
            permissions,
            mask: None,
        };
        of(by, permissions)
    })
}

/// The verdict on taking the entry of a file out of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// On writing to the directory and searching it.
    pub directory: Verdict,
    /// Whether the directory's sticky bit refuses it: the caller owns neither the file nor the directory.
    pub is_sticky: bool,
}

/// Who may take the entry for `victim` out of `directory`: write permission, and in a sticky directory only the owner of the file or of the directory.
pub fn deletion(directory: Subject<'_>, victim: &Attributes, caller: &Credentials) -> Deletion {
    let has_sticky_bit = directory.attributes.mode & STICKY != 0;
    Deletion {
        directory: verdict(directory, caller, WRITE | EXECUTE),
        is_sticky: has_sticky_bit && !owns(victim, caller) && caller.uid != directory.attributes.uid,
    }
}

/// Three permissions as `ls` and `getfacl` write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letters(pub u8);

impl fmt::Display for Letters {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in [(READ, 'r'), (WRITE, 'w'), (EXECUTE, 'x')] {
            write!(out, "{}", if self.0 & bit != 0 { letter } else { '-' })?;
        }
        Ok(())
    }
}

/// As `getfacl -n` writes whom an entry is about.
impl fmt::Display for AclTag {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserObject => out.write_str("user::"),
            Self::User(uid) => write!(out, "user:{uid}:"),
            Self::GroupObject => out.write_str("group::"),
            Self::Group(gid) => write!(out, "group:{gid}:"),
            Self::Mask => out.write_str("mask::"),
            Self::Other => out.write_str("other::"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granted = Letters(self.granted);
        match self.by {
            DecidedBy::Root => write!(out, "root, whom permissions do not bind ({granted})"),
            DecidedBy::Mode(AclTag::UserObject) => write!(out, "the owner's bits {granted} of the mode"),
            DecidedBy::Mode(AclTag::GroupObject) => write!(out, "the group's bits {granted} of the mode"),
            DecidedBy::Mode(_) => write!(out, "others' bits {granted} of the mode"),
            DecidedBy::Entry {
                tag,
                permissions,
                mask,
            } => {
                write!(out, "the ACL entry {tag}{}", Letters(permissions))?;
                match mask {
                    Some(mask) if mask & permissions != permissions => {
                        write!(out, " within mask::{}", Letters(mask))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
