//! Calls on names: lookup, creation, links, removal, rename and listing.

use super::{
    content::Content,
    directory::{COOKIE_MAX, Directory, PARENT_COOKIE, SELF_COOKIE},
    inode::{Body, Inode},
    state::{ROOT_INODE, State, unchanged},
};
use crate::{
    Attributes, Caller, ChangedAttributes, CreateMode, Created, DirectoryEntry, DirectoryPage, FileHandle,
    FileKind, Name, Removed, Renamed, SetAttributes, Timestamp, VfsError, rules,
};
use bytes::Bytes;
use std::sync::Arc;

/// Longest symbolic link, as Linux has it (`PATH_MAX` with its NUL).
const SYMLINK_BYTES_MAX: usize = 4095;

impl State {
    /// The directory, if `caller` may look names up in it.
    fn searched(&self, caller: &Caller, directory: FileHandle) -> Result<(&Inode, &Directory), VfsError> {
        let inode = self.get(directory)?;
        rules::may_search(inode.subject(), &caller.credentials)?;
        let entries = inode.directory().ok_or(VfsError::NotDirectory)?;
        Ok((inode, entries))
    }

    /// The file a name stands for, if `caller` may look it up.
    fn find(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Option<u64>, VfsError> {
        Ok(self.searched(caller, directory)?.1.get(name.as_bytes()))
    }

    pub(super) fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let inode = self.find(caller, directory, name)?.ok_or(VfsError::NotFound)?;
        Ok((self.handle(inode), self.at(inode).attributes.clone()))
    }

    pub(super) fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let (inode, entries) = self.searched(caller, directory)?;
        if inode.attributes.links == 0 {
            return Err(VfsError::NotFound);
        }
        Ok((
            self.handle(entries.parent),
            self.at(entries.parent).attributes.clone(),
        ))
    }

    pub(super) fn create(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: &CreateMode,
        now: Timestamp,
    ) -> Result<Created, VfsError> {
        let (asked, verifier) = match mode {
            CreateMode::Unchecked(asked) | CreateMode::Guarded(asked) => (asked.clone(), None),
            CreateMode::Exclusive(verifier) => (SetAttributes::default(), Some(*verifier)),
        };
        let Some(existing) = self.find(caller, directory, name)? else {
            let body = Body::Regular(Content::hole(asked.size_bytes.unwrap_or(0)));
            let created = self.add(caller, directory, name, FileKind::Regular, &asked, body, now)?;
            self.edit(created.handle.inode).create_verifier = verifier;
            return Ok(created);
        };
        let inode = self.at(existing);
        if inode.content().is_none() {
            return Err(VfsError::Exists);
        }
        let handle = self.handle(existing);
        match mode {
            CreateMode::Guarded(_) => return Err(VfsError::Exists),
            CreateMode::Exclusive(_) if inode.create_verifier != verifier => return Err(VfsError::Exists),
            CreateMode::Exclusive(_) => {}
            CreateMode::Unchecked(asked) => {
                let truncation = SetAttributes {
                    size_bytes: asked.size_bytes,
                    ..SetAttributes::default()
                };
                self.change_attributes(caller, handle, &truncation, None, now)?;
            }
        }
        self.complete(caller, Some(handle));
        Ok(Created {
            handle,
            attributes: self.at(existing).attributes.clone(),
            directory: unchanged(&self.get(directory)?.attributes),
        })
    }

    pub(super) fn make_directory(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        asked: &SetAttributes,
        now: Timestamp,
    ) -> Result<Created, VfsError> {
        self.require_absent(caller, directory, name)?;
        let body = Body::Directory(Directory::new(directory.inode));
        self.add(caller, directory, name, FileKind::Directory, asked, body, now)
    }

    pub(super) fn make_symlink(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        asked: &SetAttributes,
        now: Timestamp,
    ) -> Result<Created, VfsError> {
        self.require_absent(caller, directory, name)?;
        if target.is_empty() {
            return Err(VfsError::NotFound);
        }
        if target.contains(&0) {
            return Err(VfsError::InvalidArgument);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(VfsError::NameTooLong);
        }
        let body = Body::Symlink(target);
        self.add(caller, directory, name, FileKind::Symlink, asked, body, now)
    }

    pub(super) fn make_node(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        asked: &SetAttributes,
        now: Timestamp,
    ) -> Result<Created, VfsError> {
        self.require_absent(caller, directory, name)?;
        rules::may_make_node(kind, &caller.credentials)?;
        self.add(caller, directory, name, kind, asked, Body::Node, now)
    }

    fn require_absent(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<(), VfsError> {
        match self.find(caller, directory, name)? {
            Some(_) => Err(VfsError::Exists),
            None => Ok(()),
        }
    }

    /// Makes a file under a name that is free.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a creation, named by its five callers"
    )]
    fn add(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        asked: &SetAttributes,
        body: Body,
        now: Timestamp,
    ) -> Result<Created, VfsError> {
        let parent = self.get(directory)?;
        rules::may_create(parent.subject(), &caller.credentials)?;
        if kind == FileKind::Directory && parent.attributes.links >= self.options.limits.links {
            return Err(VfsError::TooManyLinks);
        }
        let new = rules::inherit(
            &parent.attributes,
            &parent.default_acl,
            kind,
            asked,
            &caller.credentials,
            now,
        )?;
        if new.size_bytes > self.options.limits.file_bytes {
            return Err(VfsError::FileTooLarge);
        }
        if self.inodes.len() as u64 >= self.options.files_max {
            return Err(VfsError::NoSpace);
        }
        let number = self.next_inode;
        self.next_inode += 1;
        let is_directory = kind == FileKind::Directory;
        let attributes = Attributes {
            inode: number,
            kind,
            mode: new.mode,
            links: if is_directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            size_bytes: new.size_bytes,
            used_bytes: 0,
            accessed: new.accessed,
            modified: new.modified,
            changed: now,
            born: now,
            change: 1,
            file_system: self.options.file_system,
        };
        let mut inode = Inode::new(attributes, body);
        inode.access_acl = new.access_acl;
        inode.default_acl = new.default_acl;
        let attributes = inode.attributes.clone();
        self.inodes.insert(number, Arc::new(inode));
        let bits = self.options.cookie_bits;
        let directory = self.change_directory(directory.inode, now, |entries, attributes| {
            entries.set(&name.bytes(), number, bits);
            attributes.links += u32::from(is_directory);
        });
        let handle = self.handle(number);
        self.complete(caller, Some(handle));
        Ok(Created {
            handle,
            attributes,
            directory,
        })
    }

    pub(super) fn link(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
        now: Timestamp,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        if file.file_system != directory.file_system {
            return Err(VfsError::CrossDevice);
        }
        let subject = self.get(file)?;
        self.require_absent(caller, directory, name)?;
        rules::may_link(
            &subject.attributes,
            self.get(directory)?.subject(),
            &caller.credentials,
            self.options.limits.links,
        )?;
        let bits = self.options.cookie_bits;
        let changed = self.change_directory(directory.inode, now, |entries, _| {
            entries.set(&name.bytes(), file.inode, bits);
        });
        let linked = self.change_file(file.inode, now, |inode| inode.attributes.links += 1);
        self.complete(caller, None);
        Ok((linked.after, changed))
    }

    pub(super) fn remove(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        of_directory: bool,
        now: Timestamp,
    ) -> Result<Removed, VfsError> {
        let victim = self.find(caller, directory, name)?.ok_or(VfsError::NotFound)?;
        let inode = self.at(victim);
        rules::may_delete(
            self.get(directory)?.subject(),
            &inode.attributes,
            &caller.credentials,
        )?;
        match (inode.directory(), of_directory) {
            (Some(_), false) => return Err(VfsError::IsDirectory),
            (None, true) => return Err(VfsError::NotDirectory),
            (Some(entries), true) if !entries.is_empty() => return Err(VfsError::NotEmpty),
            (Some(_), true) | (None, false) => {}
        }
        let directory = self.change_directory(directory.inode, now, |entries, attributes| {
            entries.remove(name.as_bytes());
            attributes.links -= u32::from(of_directory);
        });
        self.drop_link(victim, now);
        self.complete(caller, None);
        Ok(Removed { directory })
    }

    /// A name of `inode` is gone; of a directory, that was its only one.
    fn drop_link(&mut self, inode: u64, now: Timestamp) {
        self.change_file(inode, now, |inode| {
            let links = &mut inode.attributes.links;
            *links = if inode.attributes.kind == FileKind::Directory {
                0
            } else {
                *links - 1
            };
        });
        self.free_if_unused(inode);
    }

    pub(super) fn rename(
        &mut self,
        caller: &Caller,
        (from_directory, from_name): (FileHandle, &Name),
        (to_directory, to_name): (FileHandle, &Name),
        now: Timestamp,
    ) -> Result<Renamed, VfsError> {
        if from_directory.file_system != to_directory.file_system {
            return Err(VfsError::CrossDevice);
        }
        let source = self.find(caller, from_directory, from_name)?;
        let replaced = self.find(caller, to_directory, to_name)?;
        let moved = source.ok_or(VfsError::NotFound)?;
        let from = self.get(from_directory)?;
        let to = self.get(to_directory)?;
        if replaced == Some(moved) {
            return Ok(Renamed {
                from: unchanged(&from.attributes),
                to: unchanged(&to.attributes),
            });
        }
        if self.is_at_or_above(moved, to_directory.inode) {
            return Err(VfsError::InvalidArgument);
        }
        if replaced.is_some_and(|replaced| self.is_at_or_above(replaced, from_directory.inode)) {
            return Err(VfsError::NotEmpty);
        }
        let rename = rules::Rename {
            from: from.subject(),
            moved: self.at(moved).subject(),
            to: to.subject(),
            replaced: replaced.map(|replaced| &self.at(replaced).attributes),
        };
        rules::may_rename(rename, &caller.credentials, self.options.limits.links)?;
        let replaced_entries = replaced.and_then(|replaced| self.at(replaced).directory());
        if replaced_entries.is_some_and(|entries| !entries.is_empty()) {
            return Err(VfsError::NotEmpty);
        }

        let is_directory = self.at(moved).directory().is_some();
        let bits = self.options.cookie_bits;
        let take_out = |entries: &mut Directory, attributes: &mut Attributes| {
            entries.remove(from_name.as_bytes());
            attributes.links -= u32::from(is_directory);
        };
        let put_in = |entries: &mut Directory, attributes: &mut Attributes| {
            entries.set(&to_name.bytes(), moved, bits);
            attributes.links += u32::from(is_directory && replaced.is_none());
        };
        let renamed = if from_directory == to_directory {
            let changed = self.change_directory(from_directory.inode, now, |entries, attributes| {
                take_out(entries, attributes);
                put_in(entries, attributes);
            });
            Renamed {
                from: changed.clone(),
                to: changed,
            }
        } else {
            Renamed {
                from: self.change_directory(from_directory.inode, now, take_out),
                to: self.change_directory(to_directory.inode, now, put_in),
            }
        };
        self.change_file(moved, now, |inode| {
            if let Body::Directory(entries) = &mut inode.body {
                entries.parent = to_directory.inode;
            }
        });
        if let Some(replaced) = replaced {
            self.drop_link(replaced, now);
        }
        self.complete(caller, None);
        Ok(renamed)
    }

    /// Whether `upper` is the directory `lower` or one it is in.
    fn is_at_or_above(&self, upper: u64, lower: u64) -> bool {
        let mut at = lower;
        loop {
            if at == upper {
                return true;
            }
            // A removed directory that is still retained has no parent any more.
            match self.inodes.get(&at).and_then(|inode| inode.directory()) {
                Some(entries) if at != ROOT_INODE => at = entries.parent,
                Some(_) | None => return false,
            }
        }
    }

    pub(super) fn read_directory(
        &mut self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
        now: Timestamp,
    ) -> Result<DirectoryPage, VfsError> {
        let inode = self.get(directory)?;
        rules::may_list(inode.subject(), &caller.credentials)?;
        let entries = inode.directory().ok_or(VfsError::NotDirectory)?;
        if cookie > COOKIE_MAX {
            return Err(VfsError::BadCookie);
        }
        let with_attributes =
            with_attributes && rules::may_search(inode.subject(), &caller.credentials).is_ok();
        let dots = [
            (SELF_COOKIE, Bytes::from_static(b"."), directory.inode),
            (PARENT_COOKIE, Bytes::from_static(b".."), entries.parent),
        ];
        let mut all = dots
            .into_iter()
            .filter(|(at, _, _)| *at > cookie)
            .chain(
                entries
                    .after(cookie.max(PARENT_COOKIE))
                    .map(|(cookie, name, inode)| (cookie, name.clone(), inode)),
            )
            .map(|(cookie, name, inode)| DirectoryEntry {
                name,
                handle: self.handle(inode),
                cookie,
                attributes: self
                    .inodes
                    .get(&inode)
                    .filter(|_| with_attributes)
                    .map(|inode| inode.attributes.clone()),
            })
            .peekable();
        let entries = all.by_ref().take(limit as usize).collect();
        let end = all.peek().is_none();
        drop(all);
        Ok(DirectoryPage {
            entries,
            end,
            directory: self.accessed(directory.inode, now),
        })
    }
}
