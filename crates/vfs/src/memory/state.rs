//! The whole file system as one value, and every call as one function on it: here those on files, in `names` those on
//! directories, in `extended` those on extended attributes and ACLs.
//!
//! Each function first finds out whether the call may be done, changing nothing, and then does it; so an error means no
//! change. Files are shared between copies of a state, which makes a copy cost one pointer per file.

use super::{
    MemoryOptions,
    directory::Directory,
    inode::{Body, Inode},
};
use crate::{
    AT_END, Attributes, Caller, ChangedAttributes, CompletedRequest, FileHandle, FileKind, ReadReply,
    SetAttributes, Stability, Timestamp, VfsError, WriteReply, rules,
};
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

pub(super) const ROOT_INODE: u64 = 1;

/// How many requests a start remembers from before it.
const COMPLETED_MAX: usize = 4096;

/// Changes one file may have pending before an unstable write is answered as a stable one.
const PENDING_MAX: usize = 65_536;

#[derive(Clone)]
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Arc<Inode>>,
    pub(super) next_inode: u64,
    next_unstable_write: u64,
    retained: BTreeMap<u64, u64>,
    used_bytes: u64,
    completed: VecDeque<CompletedRequest>,
    /// Completed before the last crash.
    pub(super) completed_before: Vec<CompletedRequest>,
    /// Crashes so far.
    pub(super) starts: u64,
    pub(super) options: Arc<MemoryOptions>,
}

pub(super) fn unchanged(attributes: &Attributes) -> ChangedAttributes {
    ChangedAttributes {
        before: Some(attributes.clone()),
        after: attributes.clone(),
    }
}

impl State {
    pub(super) fn new(options: Arc<MemoryOptions>, now: Timestamp) -> Self {
        let attributes = Attributes {
            inode: ROOT_INODE,
            kind: FileKind::Directory,
            mode: options.root_mode,
            links: 2,
            uid: options.root_uid,
            gid: options.root_gid,
            size_bytes: 0,
            used_bytes: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            change: 1,
            file_system: options.file_system,
        };
        let root = Inode::new(attributes, Body::Directory(Directory::new(ROOT_INODE)));
        Self {
            inodes: BTreeMap::from([(ROOT_INODE, Arc::new(root))]),
            next_inode: ROOT_INODE + 1,
            next_unstable_write: 0,
            retained: BTreeMap::new(),
            used_bytes: 0,
            completed: VecDeque::new(),
            completed_before: Vec::new(),
            starts: 0,
            options,
        }
    }

    pub(super) fn get(&self, file: FileHandle) -> Result<&Inode, VfsError> {
        if file.file_system != self.options.file_system {
            return Err(VfsError::Stale);
        }
        self.inodes
            .get(&file.inode)
            .map(|inode| &**inode)
            .ok_or(VfsError::Stale)
    }

    pub(super) fn at(&self, inode: u64) -> &Inode {
        self.inodes
            .get(&inode)
            .expect("an entry names a file that is there")
    }

    pub(super) fn edit(&mut self, inode: u64) -> &mut Inode {
        let inode = self
            .inodes
            .get_mut(&inode)
            .expect("an entry names a file that is there");
        Arc::make_mut(inode)
    }

    pub(super) fn handle(&self, inode: u64) -> FileHandle {
        FileHandle {
            file_system: self.options.file_system,
            inode,
        }
    }

    /// Changes the entries of a directory and marks it changed.
    pub(super) fn change_directory(
        &mut self,
        directory: u64,
        now: Timestamp,
        change: impl FnOnce(&mut Directory, &mut Attributes),
    ) -> ChangedAttributes {
        let inode = self.edit(directory);
        let before = inode.attributes.clone();
        if let Body::Directory(entries) = &mut inode.body {
            change(entries, &mut inode.attributes);
        }
        inode.attributes.modified = now;
        rules::stamp(&mut inode.attributes, now);
        inode.measure();
        ChangedAttributes {
            before: Some(before),
            after: inode.attributes.clone(),
        }
    }

    /// Changes a file in any other way and marks it changed.
    pub(super) fn change_file(
        &mut self,
        file: u64,
        now: Timestamp,
        change: impl FnOnce(&mut Inode),
    ) -> ChangedAttributes {
        let inode = self.edit(file);
        let before = inode.attributes.clone();
        let used_before = before.used_bytes;
        change(inode);
        rules::stamp(&mut inode.attributes, now);
        let after = inode.attributes.clone();
        self.used_bytes = self.used_bytes - used_before + after.used_bytes;
        ChangedAttributes {
            before: Some(before),
            after,
        }
    }

    pub(super) fn free_if_unused(&mut self, inode: u64) {
        let unused = self.at(inode).attributes.links == 0 && !self.retained.contains_key(&inode);
        if unused && let Some(freed) = self.inodes.remove(&inode) {
            self.used_bytes -= freed.attributes.used_bytes;
        }
    }

    pub(super) fn complete(&mut self, caller: &Caller, created: Option<FileHandle>) {
        if let Some(request) = caller.request {
            if self.completed.len() == COMPLETED_MAX {
                self.completed.pop_front();
            }
            self.completed.push_back(CompletedRequest { request, created });
        }
    }

    pub(super) fn set_attributes(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        change: &SetAttributes,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<ChangedAttributes, VfsError> {
        let changed = self.change_attributes(caller, file, change, guard, now)?;
        self.complete(caller, None);
        Ok(changed)
    }

    pub(super) fn change_attributes(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        change: &SetAttributes,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<ChangedAttributes, VfsError> {
        let inode = self.get(file)?;
        let plan = rules::set_attributes(inode.subject(), &caller.credentials, change, guard, now)?;
        if change
            .size_bytes
            .is_some_and(|size_bytes| size_bytes > self.options.limits.file_bytes)
        {
            return Err(VfsError::FileTooLarge);
        }
        let Some(plan) = plan else {
            return Ok(unchanged(&inode.attributes));
        };
        Ok(self.change_file(file.inode, now, |inode| {
            let mode = plan.attributes.mode;
            let stamps = (inode.attributes.changed, inode.attributes.change);
            inode.attributes = plan.attributes;
            // Stamped again below.
            (inode.attributes.changed, inode.attributes.change) = stamps;
            if let Some(acl) = plan.access_acl {
                inode.access_acl = acl;
            }
            if let Some(size_bytes) = plan.truncate_to {
                inode.resize(size_bytes);
            }
            inode.set_mode(mode);
        }))
    }

    pub(super) fn read_link(
        &mut self,
        file: FileHandle,
        now: Timestamp,
    ) -> Result<(Bytes, Attributes), VfsError> {
        let Body::Symlink(target) = &self.get(file)?.body else {
            return Err(VfsError::InvalidArgument);
        };
        let target = target.clone();
        Ok((target, self.accessed(file.inode, now)))
    }

    pub(super) fn read(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
        now: Timestamp,
    ) -> Result<ReadReply, VfsError> {
        let inode = self.get(file)?;
        rules::may_read(inode.subject(), &caller.credentials)?;
        let content = inode.content().ok_or(VfsError::InvalidArgument)?;
        let length_bytes = length_bytes.min(self.options.limits.maximum_io_bytes);
        let data = content.read(offset, u64::from(length_bytes));
        let end_of_file = offset.saturating_add(data.len() as u64) >= content.size_bytes();
        Ok(ReadReply {
            data: if data.is_empty() { vec![] } else { vec![data] },
            end_of_file,
            attributes: self.accessed(file.inode, now),
        })
    }

    /// Notes a read as `relatime` does: if the file changed since the last, or once a day. No change in the sense of
    /// [`rules::stamp`].
    pub(super) fn accessed(&mut self, inode: u64, now: Timestamp) -> Attributes {
        const DAY_SECONDS: i64 = 24 * 60 * 60;
        let attributes = &self.at(inode).attributes;
        let accessed = attributes.accessed;
        let due = accessed <= attributes.modified
            || accessed <= attributes.changed
            || accessed.seconds.saturating_add(DAY_SECONDS) <= now.seconds;
        if due {
            self.edit(inode).attributes.accessed = now;
        }
        self.at(inode).attributes.clone()
    }

    pub(super) fn write(
        &mut self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: &[Bytes],
        stability: Stability,
        now: Timestamp,
    ) -> Result<WriteReply, VfsError> {
        let inode = self.get(file)?;
        rules::may_write(inode.subject(), &caller.credentials)?;
        let content = inode.content().ok_or(VfsError::InvalidArgument)?;
        let length_bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        if length_bytes == 0 {
            let file = unchanged(&inode.attributes);
            return Ok(WriteReply { stability, file });
        }
        let offset = match offset {
            AT_END => inode.attributes.size_bytes,
            offset => offset,
        };
        let end = offset
            .checked_add(length_bytes)
            .filter(|end| *end <= self.options.limits.file_bytes);
        if end.is_none() {
            return Err(VfsError::FileTooLarge);
        }
        let added = content.used_bytes_added(offset, length_bytes);
        if added > self.free_bytes() {
            return Err(VfsError::NoSpace);
        }
        let stability = if inode.pending_changes() >= PENDING_MAX {
            Stability::FileSync
        } else {
            stability
        };
        let must_sync = inode.pending_changes() >= PENDING_MAX;
        let unstable = (stability == Stability::Unstable).then_some(self.next_unstable_write);
        self.next_unstable_write += u64::from(unstable.is_some());
        let mut joined = BytesMut::with_capacity(length_bytes as usize);
        data.iter().for_each(|part| joined.extend_from_slice(part));
        let file = self.change_file(file.inode, now, |inode| {
            let mode = rules::mode_after_write(inode.attributes.mode, &caller.credentials);
            inode.write(offset, joined.freeze(), mode, unstable);
            inode.attributes.modified = now;
            if must_sync {
                inode.commit();
            }
        });
        if unstable.is_none() {
            self.complete(caller, None);
        }
        Ok(WriteReply { stability, file })
    }

    pub(super) fn commit(
        &mut self,
        caller: &Caller,
        file: FileHandle,
    ) -> Result<ChangedAttributes, VfsError> {
        let inode = self.get(file)?;
        rules::may_write(inode.subject(), &caller.credentials)?;
        let changed = unchanged(&inode.attributes);
        self.edit(file.inode).commit();
        Ok(changed)
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.options.quota_bytes.saturating_sub(self.used_bytes)
    }

    pub(super) fn free_files(&self) -> u64 {
        self.options.files_max.saturating_sub(self.inodes.len() as u64)
    }

    pub(super) fn retain(&mut self, file: FileHandle) -> Result<(), VfsError> {
        self.get(file)?;
        *self.retained.entry(file.inode).or_default() += 1;
        Ok(())
    }

    pub(super) fn release(&mut self, file: FileHandle) -> Result<(), VfsError> {
        self.get(file)?;
        let count = self
            .retained
            .get_mut(&file.inode)
            .ok_or(VfsError::InvalidArgument)?;
        *count -= 1;
        if *count == 0 {
            self.retained.remove(&file.inode);
            self.free_if_unused(file.inode);
        }
        Ok(())
    }

    /// The state after a crash and restart, where `kept` says how many of a file's unstable writes survived.
    pub(super) fn after_crash(&self, mut kept: impl FnMut(FileHandle, usize) -> usize) -> Self {
        let mut after = self.clone();
        after.retained.clear();
        after.inodes.retain(|_, inode| inode.attributes.links > 0);
        let unstable: Vec<_> = after
            .inodes
            .iter()
            .map(|(number, inode)| (*number, inode.unstable_writes().len()))
            .filter(|(_, writes)| *writes > 0)
            .collect();
        for (number, writes) in unstable {
            let kept = kept(after.handle(number), writes);
            let inode = after.at(number).after_crash(kept);
            after.inodes.insert(number, Arc::new(inode));
        }
        after.used_bytes = after
            .inodes
            .values()
            .map(|inode| inode.attributes.used_bytes)
            .sum();
        after.completed_before = self.completed.iter().copied().collect();
        after.starts += 1;
        after
    }
}
