//! Files that clients here have open, over all terms: each owner's term retains them, so that what is removed by a client of this office stays until
//! its last close. A term's volume knows only what was opened in it.

use firn_vfs::FileHandle;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

/// How often each file is open; bounded by the tables of opens.
#[derive(Default)]
pub(crate) struct Opens {
    files: Mutex<BTreeMap<FileHandle, u64>>,
}

impl Opens {
    fn files(&self) -> MutexGuard<'_, BTreeMap<FileHandle, u64>> {
        self.files.lock().expect("no panic under this lock")
    }

    /// One more open.
    pub fn opened(&self, file: FileHandle) {
        *self.files().entry(file).or_default() += 1;
    }

    /// One less.
    pub fn closed(&self, file: FileHandle) {
        let mut files = self.files();
        let Some(opens) = files.get_mut(&file) else { return };
        *opens -= 1;
        if *opens == 0 {
            files.remove(&file);
        }
    }

    /// Inodes of this file system, each as often as it is open.
    pub fn of(&self, file_system: u64) -> Vec<(u64, u64)> {
        let files = self.files();
        let of = files.iter().filter(|(file, _)| file.file_system == file_system);
        of.map(|(file, opens)| (file.inode, *opens)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_open_until_it_was_closed_as_often_as_it_was_opened() {
        let opens = Opens::default();
        let [file, other] = [1, 2].map(|file_system| FileHandle {
            file_system,
            inode: 7,
        });
        for file in [file, file, other] {
            opens.opened(file);
        }
        assert_eq!(opens.of(1), [(7, 2)]);
        opens.closed(file);
        assert_eq!(opens.of(1), [(7, 1)]);
        opens.closed(file);
        opens.closed(file);
        assert_eq!((opens.of(1), opens.of(2)), (vec![], vec![(7, 1)]));
    }
}
