//! Applying one record: the only way the volume changes.
//!
//! `apply` first makes sure that everything it touches is in memory (else it reports what is [`Missing`] and has changed
//! nothing) and only then changes it, so a record is applied completely or not at all.

use super::{Entry, NamedInode, PagePlace, State, base_key};
use crate::{
    extents::{Extent, WriteBuffer},
    inode::Inode,
    journal::Sequence,
    record::{Operation, Record},
};
use firn_vfs::{Acl, CompletedRequest, FileHandle, Timestamp};
use std::sync::Arc;

/// What a change attribute is advanced by: an office counts as many changes of one inode in no time in which it is not heard.
const AFTER_BREAK: u64 = 1 << 32;

/// What must be loaded before a request can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// An inode.
    Inode(u64),
    /// The page of a directory that covers this key.
    Page {
        /// The directory's inode.
        directory: u64,
        /// A key in the page.
        key: u64,
    },
}

impl State {
    /// Applies a record that was planned against this state or comes from the journal. `data` holds the bytes of a write.
    ///
    /// # Errors
    /// [`Missing`] what must be loaded first; nothing was changed.
    ///
    /// # Panics
    /// If the record does not fit the state, which means that the journal and the root do not belong together.
    pub fn apply(
        &mut self,
        sequence: Sequence,
        record: &Record,
        data: Option<&Arc<WriteBuffer>>,
    ) -> Result<(), Missing> {
        self.require_for(&record.operation)?;
        assert!(sequence > self.applied, "records are applied once and in order");
        self.applied = sequence;
        self.records_since_freeze += 1;
        let now = record.now;
        for inode in &record.after_break {
            self.advance(*inode);
        }
        match &record.operation {
            Operation::Create {
                directory,
                name,
                inode,
            } => self.create(*directory, name, inode, now),
            Operation::Link {
                inode,
                directory,
                name,
            } => self.link(*inode, *directory, name, now),
            Operation::Unlink {
                directory,
                name,
                inode,
                orphan,
            } => {
                self.remove_name(*directory, name, now);
                self.drop_link(*directory, *inode, *orphan, now);
            }
            Operation::Rename {
                from_directory,
                from_name,
                to_directory,
                to_name,
                inode,
                replaced,
                orphan,
            } => {
                if let Some(replaced) = replaced {
                    self.remove_name(*to_directory, to_name, now);
                    self.drop_link(*to_directory, *replaced, *orphan, now);
                }
                self.move_name(
                    (*from_directory, from_name),
                    (*to_directory, to_name),
                    *inode,
                    now,
                );
            }
            Operation::SetAttributes {
                inode,
                mode,
                uid,
                gid,
                size_bytes,
                accessed,
                modified,
                access_acl,
            } => {
                if let Some(size_bytes) = size_bytes {
                    self.set_size(*inode, *size_bytes);
                }
                let changed = self.changed_inode(*inode);
                (changed.mode, changed.uid, changed.gid) = (*mode, *uid, *gid);
                if let Some(accessed) = accessed {
                    changed.accessed = *accessed;
                }
                if let Some(modified) = modified {
                    changed.modified = *modified;
                }
                if let Some(acl) = access_acl {
                    changed.access_acl = acl.clone();
                }
                changed.touch(now);
            }
            Operation::Write { inode, offset, mode } => {
                let data = data.expect("a write record comes with its data");
                self.write(*inode, *offset, data);
                let changed = self.changed_inode(*inode);
                changed.mode = *mode;
                changed.modified = now;
                changed.touch(now);
            }
            Operation::SetXattr { inode, name, value } => {
                let changed = self.changed_inode(*inode);
                match value {
                    Some(value) => {
                        // Copied, so that a small value does not keep a whole request or journal buffer alive.
                        let (name, value) = (copy(name), copy(value));
                        changed.xattrs.insert(name, value);
                    }
                    None => {
                        changed.xattrs.remove(name);
                    }
                }
                changed.touch(now);
            }
            Operation::SetAcl {
                inode,
                mode,
                access,
                default,
            } => {
                let changed = self.changed_inode(*inode);
                changed.mode = *mode;
                let set = |target: &mut Acl, acl: &Option<Acl>| {
                    if let Some(acl) = acl {
                        *target = acl.clone();
                    }
                };
                set(&mut changed.access_acl, access);
                set(&mut changed.default_acl, default);
                changed.touch(now);
            }
            Operation::FreeOrphan { inode } => {
                self.orphans.remove(inode);
                self.forget(*inode);
            }
            Operation::CreateSnapshot {
                id,
                name,
                created_ms,
                protected_until_ms,
            } => self.create_snapshot(*id, name, *created_ms, *protected_until_ms),
            Operation::DeleteSnapshot { id } => self.delete_snapshot(*id),
            Operation::ProtectSnapshot { id, until_ms } => self.protect_snapshot(*id, *until_ms),
        }
        if let Some(request) = record.request {
            let created = match &record.operation {
                Operation::Create { inode, .. } => Some(FileHandle {
                    file_system: self.file_system,
                    inode: inode.number,
                }),
                Operation::Link { .. }
                | Operation::Unlink { .. }
                | Operation::Rename { .. }
                | Operation::SetAttributes { .. }
                | Operation::Write { .. }
                | Operation::SetXattr { .. }
                | Operation::SetAcl { .. }
                | Operation::FreeOrphan { .. }
                | Operation::CreateSnapshot { .. }
                | Operation::DeleteSnapshot { .. }
                | Operation::ProtectSnapshot { .. } => None,
            };
            self.remember(now, CompletedRequest { request, created });
        }
        Ok(())
    }

    /// Advances an inode's change attribute by more than any office can have counted while nobody heard it, so that no client takes a later change for one that it
    /// saw there. Of an inode that is gone there is nothing to advance.
    ///
    /// # Panics
    /// If it is not loaded.
    pub fn advance(&mut self, number: u64) {
        let entry = self.entries.get(&number).expect("required before the change");
        if entry.inode.is_some() && !firn_env::planted!("volume.change_goes_on_after_break") {
            let inode = self.changed_inode(number);
            inode.change = inode.change.saturating_add(AFTER_BREAK);
        }
    }

    /// Makes the root directory of a new volume, which no journal records: the first checkpoint has it.
    pub fn create_root(&mut self, inode: &Inode, now: Timestamp) {
        assert!(
            self.entries.is_empty() && self.inode_map.is_none(),
            "only an empty volume gets a root directory"
        );
        self.create(inode.number, &[], inode, now);
    }

    fn require_for(&mut self, operation: &Operation) -> Result<(), Missing> {
        match operation {
            Operation::Create { directory, name, .. } => self.require_name(*directory, name),
            Operation::Link {
                inode,
                directory,
                name,
            }
            | Operation::Unlink {
                directory,
                name,
                inode,
                ..
            } => {
                self.require_inode(*inode)?;
                self.require_name(*directory, name)
            }
            Operation::Rename {
                from_directory,
                from_name,
                to_directory,
                to_name,
                inode,
                replaced,
                ..
            } => {
                self.require_inode(*inode)?;
                if let Some(replaced) = replaced {
                    self.require_inode(*replaced)?;
                }
                self.require_name(*from_directory, from_name)?;
                self.require_name(*to_directory, to_name)
            }
            Operation::SetAttributes { inode, .. }
            | Operation::Write { inode, .. }
            | Operation::SetXattr { inode, .. }
            | Operation::SetAcl { inode, .. }
            | Operation::FreeOrphan { inode } => self.require_inode(*inode),
            Operation::CreateSnapshot { .. }
            | Operation::DeleteSnapshot { .. }
            | Operation::ProtectSnapshot { .. } => Ok(()),
        }
    }

    fn require_inode(&mut self, number: u64) -> Result<(), Missing> {
        if self.entries.contains_key(&number) {
            Ok(())
        } else {
            Err(Missing::Inode(number))
        }
    }

    fn require_name(&mut self, directory: u64, name: &[u8]) -> Result<(), Missing> {
        self.find(directory, name).map(|_| ())
    }

    /// The entry, marked as changed.
    pub(super) fn changed(&mut self, number: u64) -> &mut Entry {
        let entry = self.entries.get_mut(&number).expect("required before the change");
        entry.dirty = true;
        entry.changed_by = self.applied;
        entry.referenced = true;
        if self.dirty.insert(number)
            && let Some(beside) = &mut self.beside
        {
            beside.note(number, self.inode_map);
        }
        entry
    }

    fn changed_inode(&mut self, number: u64) -> &mut Inode {
        let inode = self.changed(number).inode.as_mut();
        inode.unwrap_or_else(|| panic!("a record changes inode {number}, which was removed"))
    }

    fn create(&mut self, directory: u64, name: &[u8], inode: &Inode, now: Timestamp) {
        self.counters.next_inode = self.counters.next_inode.max(inode.number + 1);
        self.counters.files += 1;
        let previous = self.entries.insert(
            inode.number,
            Box::new(Entry::created(inode.clone(), self.applied)),
        );
        assert!(previous.is_none(), "inode numbers are never reused");
        self.dirty.insert(inode.number);
        if let Some(beside) = &mut self.beside {
            beside.note(inode.number, self.inode_map);
        }
        if directory == inode.number {
            return; // The root directory is its own parent and has no name.
        }
        self.insert_name(directory, name, inode.number, now);
        if inode.is_directory() {
            self.changed_inode(directory).links += 1;
        }
    }

    fn link(&mut self, number: u64, directory: u64, name: &[u8], now: Timestamp) {
        self.insert_name(directory, name, number, now);
        let inode = self.changed_inode(number);
        inode.links += 1;
        inode.parent = directory;
        inode.touch(now);
        // A retained orphan that gets a name again is none any more.
        if let Some(users) = self.orphans.remove(&number)
            && users > 0
        {
            self.retained.insert(number, users);
        }
    }

    /// An inode lost a name in `directory`; without names it goes, or becomes an orphan.
    fn drop_link(&mut self, directory: u64, number: u64, orphan: bool, now: Timestamp) {
        let inode = self.changed_inode(number);
        let is_directory = inode.is_directory();
        inode.links = if is_directory { 0 } else { inode.links - 1 };
        inode.touch(now);
        let gone = inode.links == 0;
        if is_directory {
            self.changed_inode(directory).links -= 1;
        }
        if gone && orphan {
            let users = self.retained.remove(&number).unwrap_or(0);
            self.orphans.insert(number, users);
        } else if gone {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        let entry = self.changed(number);
        if let Some(inode) = entry.inode.take() {
            entry.active = super::FileLayer {
                base_below: 0,
                ..super::FileLayer::default()
            };
            entry.pages = super::directory::LoadedPages::default();
            self.counters.files -= 1;
            self.counters.used_bytes = self.counters.used_bytes.saturating_sub(inode.used_bytes);
        }
    }

    fn insert_name(&mut self, directory: u64, name: &[u8], inode: u64, now: Timestamp) {
        let base = base_key(&self.counters.directory_key, name);
        let entry = self.changed(directory);
        let (place, page) = entry.pages.covering(base).expect("required before the change");
        let key = page.free_key(base).expect("planned with room for the name");
        entry.pages.page_mut(place).insert(
            key,
            NamedInode {
                name: name[..].into(),
                inode,
            },
        );
        self.after_directory_change(directory, place, 1, now);
    }

    fn remove_name(&mut self, directory: u64, name: &[u8], now: Timestamp) {
        let base = base_key(&self.counters.directory_key, name);
        let entry = self.changed(directory);
        let (place, page) = entry.pages.covering(base).expect("required before the change");
        let (key, _) = page
            .find(base, name)
            .expect("a record removes a name that exists");
        entry.pages.page_mut(place).remove(key);
        self.after_directory_change(directory, place, -1, now);
    }

    fn after_directory_change(&mut self, directory: u64, place: PagePlace, entries: i64, now: Timestamp) {
        let entry = self.changed(directory);
        let depth = entry.pages.rebalance(place);
        let inode = entry
            .inode
            .as_mut()
            .expect("a record changes a directory that exists");
        let shape = &mut inode.directory;
        shape.entries = shape
            .entries
            .checked_add_signed(entries)
            .expect("entries are counted");
        shape.min_depth = shape.min_depth.min(depth);
        shape.max_depth = shape.max_depth.max(depth);
        inode.size_bytes = directory_size_bytes(shape.entries);
        inode.modified = now;
        inode.touch(now);
    }

    fn move_name(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), number: u64, now: Timestamp) {
        self.remove_name(from.0, from.1, now);
        self.insert_name(to.0, to.1, number, now);
        let inode = self.changed_inode(number);
        inode.parent = to.0;
        inode.touch(now);
        if inode.is_directory() && from.0 != to.0 {
            self.changed_inode(from.0).links -= 1;
            self.changed_inode(to.0).links += 1;
        }
    }

    fn set_size(&mut self, number: u64, size_bytes: u64) {
        let forgets_truncation = self.forgets_truncation;
        let entry = self.changed(number);
        let inode = entry
            .inode
            .as_mut()
            .expect("a record changes an inode that exists");
        if size_bytes < inode.size_bytes {
            entry.active.extents.remove(size_bytes, u64::MAX);
            if !forgets_truncation {
                entry.active.base_below = entry.active.base_below.min(size_bytes);
            }
            let used = inode
                .used_bytes
                .min(size_bytes.next_multiple_of(crate::BLOCK_BYTES_MIN));
            let freed = inode.used_bytes - used;
            inode.used_bytes = used;
            inode.size_bytes = size_bytes;
            self.counters.used_bytes = self.counters.used_bytes.saturating_sub(freed);
        } else {
            inode.size_bytes = size_bytes;
        }
    }

    fn write(&mut self, number: u64, offset: u64, data: &Arc<WriteBuffer>) {
        let entry = self.changed(number);
        let inode = entry
            .inode
            .as_mut()
            .expect("a record changes an inode that exists");
        let length = data.length as u64;
        if length == 0 {
            return;
        }
        let covered_before = entry.active.extents.bytes();
        entry.active.extents.insert(
            offset,
            Extent {
                length,
                skip: 0,
                buffer: data.clone(),
            },
        );
        let added = entry.active.extents.bytes() - covered_before;
        inode.size_bytes = inode.size_bytes.max(offset + length);
        // An upper bound until the checkpoint knows which blocks were holes.
        let limit = inode.size_bytes.next_multiple_of(crate::BLOCK_BYTES_MIN);
        let used = (inode.used_bytes + added).min(limit).max(inode.used_bytes);
        let grown = used - inode.used_bytes;
        inode.used_bytes = used;
        self.counters.used_bytes += grown;
        self.dirty_bytes += length;
        self.written_bytes += length;
    }
}

/// What `stat` shows as the length of a directory: grows with its entries, so that scripts which look at it see change.
pub fn directory_size_bytes(entries: u64) -> u64 {
    4096 + entries.saturating_mul(32).next_multiple_of(4096)
}

/// A copy that keeps nothing else alive.
fn copy(bytes: &[u8]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}
