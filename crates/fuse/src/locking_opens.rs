//! Through which opens of a file owners asked for locks, so that a lock that belongs to an open (F_OFD_SETLK) ends with it.
//!
//! The kernel tells of each close by a process (FLUSH, with which that process's locks on the file end), and of flock when an open ends. Of
//! a lock of an open it tells neither: it drops it by itself, and we would keep it for ever. smbd locks so, and may be killed. When an open ends,
//! what its owners still hold is theirs by that open alone: whatever a process locked as such ended with its close before.

use firn_vfs::FileHandle;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard},
};

/// Bounded by the opens there are, and the processes that share one.
#[derive(Default)]
pub(crate) struct LockingOpens {
    files: Mutex<HashMap<FileHandle, Opens>>,
}

/// Owners by the open through which they asked.
type Opens = BTreeMap<u64, BTreeSet<u64>>;

impl LockingOpens {
    fn files(&self) -> MutexGuard<'_, HashMap<FileHandle, Opens>> {
        self.files.lock().expect("no panic under this lock")
    }

    /// An owner asks for a lock through an open.
    pub(crate) fn asked(&self, file: FileHandle, open: u64, owner: u64) {
        let mut files = self.files();
        files
            .entry(file)
            .or_default()
            .entry(open)
            .or_default()
            .insert(owner);
    }

    /// All locks of an owner on the file have ended, through whatever open they were made.
    pub(crate) fn ended(&self, file: FileHandle, owner: u64) {
        let mut files = self.files();
        let Some(opens) = files.get_mut(&file) else {
            return;
        };
        opens.retain(|_, owners| {
            owners.remove(&owner);
            !owners.is_empty()
        });
        if opens.is_empty() {
            files.remove(&file);
        }
    }

    /// An open ends; whose locks end with it.
    pub(crate) fn closed(&self, file: FileHandle, open: u64) -> BTreeSet<u64> {
        let mut files = self.files();
        let Some(opens) = files.get_mut(&file) else {
            return BTreeSet::new();
        };
        let owners = opens.remove(&open).unwrap_or_default();
        if opens.is_empty() {
            files.remove(&file);
        }
        owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_ends_the_locks_of_who_asked_through_it_and_has_not_closed_the_file() {
        let opens = LockingOpens::default();
        let [file, other] = [1, 2].map(|inode| FileHandle {
            file_system: 1,
            inode,
        });
        for (open, owner) in [(10, 7), (10, 8), (11, 7)] {
            opens.asked(file, open, owner);
        }
        opens.asked(other, 12, 7);
        // A process has closed the file: what it locks from now on is not through what it had.
        opens.ended(file, 7);
        opens.asked(file, 11, 7);
        assert_eq!(opens.closed(file, 10), BTreeSet::from([8]));
        assert_eq!(opens.closed(file, 10), BTreeSet::new());
        assert_eq!(opens.closed(file, 11), BTreeSet::from([7]));
        opens.ended(other, 7);
        assert!(opens.files().is_empty(), "nothing is left");
    }
}
