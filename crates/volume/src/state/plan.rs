//! Planning: from a request to the record that carries it out, or to the reason why not.
//!
//! A plan reads the state and changes nothing. The rules themselves (who may do what, and what a change makes of a file) are
//! [`firn_vfs::rules`]; here they meet the names and inodes they are about.

use super::{Missing, State};
use crate::{
    inode::{DirectoryShape, Inode, XATTRS_BYTES},
    record::Operation,
};
use bytes::Bytes;
use firn_vfs::{
    AT_END, Acl, Attributes, Caller, CreateMode, FileKind, Name, SetAttributes, Timestamp, VfsError,
    XattrMode,
    rules::{self, NewFile, Subject, XattrUse},
};
use std::collections::BTreeMap;

/// Most hard links, and most subdirectories: what ext4 allows is 65,000; nothing here needs a lower bound.
pub const LINKS_MAX: u32 = 1_000_000;

/// Directories between a directory and the root; deeper trees cannot be made, so every walk upwards is bounded.
const DEPTH_MAX: usize = 100_000;

/// Why a plan was not made.
#[derive(Debug)]
pub enum Stop {
    /// Something must be loaded; then plan again.
    Missing(Missing),
    /// The request is refused.
    Refused(VfsError),
}

impl From<Missing> for Stop {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<VfsError> for Stop {
    fn from(error: VfsError) -> Self {
        Self::Refused(error)
    }
}

/// A file as a plan sees it: a copy, so that several can be looked at together.
pub struct Seen {
    pub attributes: Attributes,
    pub acl: Acl,
}

impl Seen {
    pub fn subject(&self) -> Subject<'_> {
        Subject::new(&self.attributes, Some(&self.acl))
    }
}

/// What a new file is, besides what it inherits.
pub struct NewKind {
    pub kind: FileKind,
    pub symlink_target: Bytes,
    pub exclusive_verifier: Option<[u8; 8]>,
}

/// What a CREATE comes to.
pub enum PlannedCreate {
    /// A new file.
    New(Operation),
    /// The file is there already and only its attributes change.
    Existing(u64, Option<Operation>),
}

impl State {
    /// The attributes and ACL of an existing inode.
    ///
    /// # Errors
    /// `Stale` if it does not exist; `Missing` if it is not loaded.
    pub fn see(&mut self, number: u64) -> Result<Seen, Stop> {
        let file_system = self.file_system;
        let inode = self.inode(number)?.ok_or(VfsError::Stale)?;
        Ok(Seen {
            attributes: inode.attributes(file_system),
            acl: inode.access_acl.clone(),
        })
    }

    fn see_searchable(&mut self, directory: u64, caller: &Caller) -> Result<Seen, Stop> {
        let seen = self.see(directory)?;
        rules::may_search(seen.subject(), &caller.credentials)?;
        Ok(seen)
    }

    /// LOOKUP.
    pub fn plan_lookup(&mut self, caller: &Caller, directory: u64, name: &Name) -> Result<u64, Stop> {
        self.see_searchable(directory, caller)?;
        Ok(self.find(directory, name.as_bytes())?.ok_or(VfsError::NotFound)?)
    }

    /// Refuses what would add data or names once the quota is reached. Asked last: whoever may not anyway learns that.
    fn check_quota(&self) -> Result<(), VfsError> {
        if self.quota_reached {
            return Err(VfsError::QuotaExceeded);
        }
        Ok(())
    }

    fn check_room(&self, bytes: u64, quota_bytes: u64) -> Result<(), VfsError> {
        if self.counters.used_bytes.saturating_add(bytes) > quota_bytes {
            return Err(VfsError::NoSpace);
        }
        Ok(())
    }

    /// CREATE of a regular file.
    pub fn plan_create(
        &mut self,
        caller: &Caller,
        directory: u64,
        name: &Name,
        mode: &CreateMode,
        now: Timestamp,
    ) -> Result<PlannedCreate, Stop> {
        self.see_searchable(directory, caller)?;
        let existing = self.find(directory, name.as_bytes())?;
        let none = SetAttributes::default();
        let (asked, verifier) = match (mode, existing) {
            (CreateMode::Unchecked(asked), Some(number)) => {
                return self.plan_open_existing(caller, number, asked, now);
            }
            (CreateMode::Guarded(_), Some(_)) => return Err(VfsError::Exists.into()),
            (CreateMode::Exclusive(verifier), Some(number)) => {
                let inode = self.inode(number)?.ok_or(VfsError::Stale)?;
                if inode.exclusive_verifier == Some(*verifier) {
                    return Ok(PlannedCreate::Existing(number, None));
                }
                return Err(VfsError::Exists.into());
            }
            (CreateMode::Unchecked(asked) | CreateMode::Guarded(asked), None) => (asked, None),
            (CreateMode::Exclusive(verifier), None) => (&none, Some(*verifier)),
        };
        let new = NewKind {
            kind: FileKind::Regular,
            symlink_target: Bytes::new(),
            exclusive_verifier: verifier,
        };
        self.plan_new(caller, directory, name, new, asked, now)
            .map(PlannedCreate::New)
    }

    /// An unchecked CREATE of a name that exists opens the file, and truncates it if asked to.
    fn plan_open_existing(
        &mut self,
        caller: &Caller,
        number: u64,
        asked: &SetAttributes,
        now: Timestamp,
    ) -> Result<PlannedCreate, Stop> {
        let seen = self.see(number)?;
        if seen.attributes.kind != FileKind::Regular {
            return Err(VfsError::Exists.into());
        }
        let change = SetAttributes {
            size_bytes: asked.size_bytes,
            ..SetAttributes::default()
        };
        let operation = self.plan_set_attributes(caller, number, &change, None, now)?;
        Ok(PlannedCreate::Existing(number, operation))
    }

    /// Any new inode under a name that is free.
    pub fn plan_new(
        &mut self,
        caller: &Caller,
        directory: u64,
        name: &Name,
        new: NewKind,
        asked: &SetAttributes,
        now: Timestamp,
    ) -> Result<Operation, Stop> {
        let seen = self.see_searchable(directory, caller)?;
        if self.find(directory, name.as_bytes())?.is_some() {
            return Err(VfsError::Exists.into());
        }
        if !matches!(
            new.kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        ) {
            rules::may_make_node(new.kind, &caller.credentials)?;
        }
        rules::may_create(seen.subject(), &caller.credentials)?;
        if new.kind == FileKind::Directory && seen.attributes.links >= LINKS_MAX {
            return Err(VfsError::TooManyLinks.into());
        }
        if !self.has_room_for(directory, name.as_bytes())? {
            return Err(VfsError::NoSpace.into());
        }
        let default_acl = self.inode(directory)?.ok_or(VfsError::Stale)?.default_acl.clone();
        let file = rules::inherit(
            &seen.attributes,
            &default_acl,
            new.kind,
            asked,
            &caller.credentials,
            now,
        )?;
        self.check_quota()?;
        let inode = new_inode(self.counters.next_inode, directory, new, file, now);
        Ok(Operation::Create {
            directory,
            name: name.bytes(),
            inode: Box::new(inode),
        })
    }

    /// SETATTR; `None`: nothing to do.
    pub fn plan_set_attributes(
        &mut self,
        caller: &Caller,
        number: u64,
        change: &SetAttributes,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Option<Operation>, Stop> {
        let seen = self.see(number)?;
        let planned = rules::set_attributes(seen.subject(), &caller.credentials, change, guard, now)?;
        let truncated = planned.as_ref().and_then(|planned| planned.truncate_to);
        if truncated.is_some_and(|size_bytes| size_bytes > seen.attributes.size_bytes) {
            self.check_quota()?;
        }
        Ok(planned.map(|planned| {
            let new = planned.attributes;
            Operation::SetAttributes {
                inode: number,
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                size_bytes: planned.truncate_to,
                accessed: (new.accessed != seen.attributes.accessed).then_some(new.accessed),
                modified: (new.modified != seen.attributes.modified).then_some(new.modified),
                access_acl: planned.access_acl,
            }
        }))
    }

    /// WRITE of `length` bytes, at least one.
    pub fn plan_write(
        &mut self,
        caller: &Caller,
        number: u64,
        offset: u64,
        length: u64,
        quota_bytes: u64,
    ) -> Result<Operation, Stop> {
        let seen = self.see(number)?;
        rules::may_write(seen.subject(), &caller.credentials)?;
        let offset = match offset {
            AT_END => seen.attributes.size_bytes,
            offset => offset,
        };
        if offset
            .checked_add(length)
            .is_none_or(|end| end > rules::FILE_BYTES_MAX)
        {
            return Err(VfsError::FileTooLarge.into());
        }
        self.check_quota()?;
        self.check_room(length, quota_bytes)?;
        let mode = rules::mode_after_write(seen.attributes.mode, &caller.credentials);
        Ok(Operation::Write {
            inode: number,
            offset,
            mode,
        })
    }

    /// LINK.
    pub fn plan_link(
        &mut self,
        caller: &Caller,
        number: u64,
        directory: u64,
        name: &Name,
    ) -> Result<Operation, Stop> {
        let file = self.see(number)?;
        let seen = self.see_searchable(directory, caller)?;
        if self.find(directory, name.as_bytes())?.is_some() {
            return Err(VfsError::Exists.into());
        }
        rules::may_link(&file.attributes, seen.subject(), &caller.credentials, LINKS_MAX)?;
        if !self.has_room_for(directory, name.as_bytes())? {
            return Err(VfsError::NoSpace.into());
        }
        self.check_quota()?;
        Ok(Operation::Link {
            inode: number,
            directory,
            name: name.bytes(),
        })
    }

    /// REMOVE (`want_directory` false) and RMDIR (true).
    pub fn plan_unlink(
        &mut self,
        caller: &Caller,
        directory: u64,
        name: &Name,
        want_directory: bool,
    ) -> Result<Operation, Stop> {
        let seen = self.see_searchable(directory, caller)?;
        let number = self.find(directory, name.as_bytes())?.ok_or(VfsError::NotFound)?;
        let victim = self.see(number)?;
        rules::may_delete(seen.subject(), &victim.attributes, &caller.credentials)?;
        match (want_directory, victim.attributes.kind == FileKind::Directory) {
            (true, false) => return Err(VfsError::NotDirectory.into()),
            (false, true) => return Err(VfsError::IsDirectory.into()),
            (true, true) => self.require_empty(number)?,
            (false, false) => {}
        }
        let orphan = self.is_retained(number);
        Ok(Operation::Unlink {
            directory,
            name: name.bytes(),
            inode: number,
            orphan,
        })
    }

    fn require_empty(&mut self, directory: u64) -> Result<(), Stop> {
        let inode = self.inode(directory)?.ok_or(VfsError::Stale)?;
        if inode.directory.entries == 0 {
            Ok(())
        } else {
            Err(VfsError::NotEmpty.into())
        }
    }

    /// RENAME; `None`: both names are the same file, nothing to do.
    pub fn plan_rename(
        &mut self,
        caller: &Caller,
        from: (u64, &Name),
        to: (u64, &Name),
    ) -> Result<Option<Operation>, Stop> {
        let from_seen = self.see_searchable(from.0, caller)?;
        let to_seen = self.see_searchable(to.0, caller)?;
        let number = self.find(from.0, from.1.as_bytes())?.ok_or(VfsError::NotFound)?;
        let replaced = self.find(to.0, to.1.as_bytes())?;
        if replaced == Some(number) {
            return Ok(None);
        }
        let moved = self.see(number)?;
        if moved.attributes.kind == FileKind::Directory && self.is_within(to.0, number)? {
            return Err(VfsError::InvalidArgument.into());
        }
        let target = match replaced {
            None => None,
            Some(target) => {
                if self.is_within(from.0, target)? {
                    return Err(VfsError::NotEmpty.into());
                }
                Some(self.see(target)?)
            }
        };
        let rename = rules::Rename {
            from: from_seen.subject(),
            moved: moved.subject(),
            to: to_seen.subject(),
            replaced: target.as_ref().map(|seen| &seen.attributes),
        };
        rules::may_rename(rename, &caller.credentials, LINKS_MAX)?;
        match replaced {
            Some(target) => {
                if moved.attributes.kind == FileKind::Directory {
                    self.require_empty(target)?;
                }
            }
            None => {
                if !self.has_room_for(to.0, to.1.as_bytes())? {
                    return Err(VfsError::NoSpace.into());
                }
            }
        }
        let orphan = replaced.is_some_and(|target| self.is_retained(target));
        Ok(Some(Operation::Rename {
            from_directory: from.0,
            from_name: from.1.bytes(),
            to_directory: to.0,
            to_name: to.1.bytes(),
            inode: number,
            replaced,
            orphan,
        }))
    }

    /// Whether `directory` is `ancestor` or below it.
    fn is_within(&mut self, directory: u64, ancestor: u64) -> Result<bool, Stop> {
        let mut here = directory;
        for _ in 0..DEPTH_MAX {
            if here == ancestor {
                return Ok(true);
            }
            let inode = self.inode(here)?.ok_or(VfsError::Stale)?;
            if inode.parent == here {
                return Ok(false);
            }
            here = inode.parent;
        }
        Err(VfsError::Io("the directory tree is deeper than can be".into()).into())
    }

    /// Setting or removing (`value` is `None`) an extended attribute.
    pub fn plan_xattr(
        &mut self,
        caller: &Caller,
        number: u64,
        name: &[u8],
        value: Option<Bytes>,
        mode: XattrMode,
    ) -> Result<Operation, Stop> {
        let seen = self.see(number)?;
        rules::check_xattr(seen.subject(), &caller.credentials, name, XattrUse::Change)?;
        let inode = self.inode(number)?.ok_or(VfsError::Stale)?;
        let exists = inode.xattrs.contains_key(name);
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(VfsError::Exists.into()),
            (XattrMode::Replace, false) => return Err(VfsError::NoAttribute.into()),
            (XattrMode::Either | XattrMode::Create, false)
            | (XattrMode::Either | XattrMode::Replace, true) => {}
        }
        if let Some(value) = &value {
            let names: usize = inode.xattrs.keys().map(|name| name.len() + 1).sum();
            if value.len() > rules::XATTR_VALUE_BYTES_MAX {
                return Err(VfsError::TooLarge.into());
            }
            let old = inode.xattrs.get(name).map_or(0, |value| value.len());
            if (!exists && names + name.len() + 1 > rules::XATTR_LIST_BYTES_MAX)
                || inode.xattr_bytes() - old + name.len() + value.len() + 8 > XATTRS_BYTES
            {
                return Err(VfsError::NoSpace.into());
            }
            self.check_quota()?;
        }
        Ok(Operation::SetXattr {
            inode: number,
            name: Bytes::copy_from_slice(name),
            value,
        })
    }

    /// Setting ACLs.
    pub fn plan_acl(
        &mut self,
        caller: &Caller,
        number: u64,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<Operation, Stop> {
        let seen = self.see(number)?;
        let planned = rules::set_acl(&seen.attributes, &caller.credentials, access, default)?;
        Ok(Operation::SetAcl {
            inode: number,
            mode: planned.mode,
            access: planned.access,
            default: planned.default,
        })
    }
}

fn new_inode(number: u64, parent: u64, new: NewKind, file: NewFile, now: Timestamp) -> Inode {
    let directory = new.kind == FileKind::Directory;
    Inode {
        number,
        kind: new.kind,
        mode: file.mode,
        links: if directory { 2 } else { 1 },
        uid: file.uid,
        gid: file.gid,
        size_bytes: match new.kind {
            FileKind::Directory => super::directory_size_bytes(0),
            FileKind::Symlink => new.symlink_target.len() as u64,
            FileKind::Regular
            | FileKind::BlockDevice { .. }
            | FileKind::CharacterDevice { .. }
            | FileKind::Fifo
            | FileKind::Socket => file.size_bytes,
        },
        used_bytes: 0,
        accessed: file.accessed,
        modified: file.modified,
        changed: now,
        born: now,
        change: 1,
        parent,
        exclusive_verifier: new.exclusive_verifier,
        symlink_target: new.symlink_target,
        xattrs: BTreeMap::new(),
        access_acl: file.access_acl,
        default_acl: file.default_acl,
        directory: DirectoryShape::default(),
    }
}

/// The root directory of a new volume.
pub fn root_inode(number: u64, mode: u32, (uid, gid): (u32, u32), now: Timestamp) -> Inode {
    let file = NewFile {
        mode,
        uid,
        gid,
        size_bytes: 0,
        accessed: now,
        modified: now,
        access_acl: Acl::default(),
        default_acl: Acl::default(),
    };
    let new = NewKind {
        kind: FileKind::Directory,
        symlink_target: Bytes::new(),
        exclusive_verifier: None,
    };
    new_inode(number, number, new, file, now)
}
