//! Files that are open for writing on a mount, and which of them changed at level 0.
//!
//! A file that is being made changes many times before it is closed: its name, its owner, its attributes and ACLs, its times. Each of
//! these would wait for a sync of the journal, though its maker has been promised nothing before the close. So they wait for none, and
//! the close, an fsync, or the end of the open waits once for all (decision 0118).
//!
//! **Lost.** What was written and not synced is remembered with the file system's write verifier of that moment. Another one later means that
//! it may be gone: a shared volume was taken over by another office. A process cannot write again what it wrote, as an NFS client does, so its next fsync
//! or close fails.

use firn_vfs::FileHandle;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// Bounded by the opens there are.
#[derive(Default)]
pub(crate) struct WrittenFiles {
    files: Mutex<HashMap<FileHandle, Written>>,
}

#[derive(Default)]
struct Written {
    opens: usize,
    unsettled: bool,
    /// Under which verifier the oldest change was made that nobody synced.
    verifier: Option<[u8; 8]>,
}

impl WrittenFiles {
    fn files(&self) -> MutexGuard<'_, HashMap<FileHandle, Written>> {
        self.files.lock().expect("no panic under this lock")
    }

    /// One more open for writing.
    pub(crate) fn opened(&self, file: FileHandle) {
        self.files().entry(file).or_default().opens += 1;
    }

    /// One less; whether it was the last and left a change behind that has to be settled.
    pub(crate) fn closed(&self, file: FileHandle) -> bool {
        let mut files = self.files();
        let Some(written) = files.get_mut(&file) else {
            return false;
        };
        written.opens = written.opens.saturating_sub(1);
        if written.opens > 0 {
            return false;
        }
        let unsettled = written.unsettled;
        files.remove(&file);
        unsettled
    }

    /// Whether a close is still to come.
    pub(crate) fn is_open(&self, file: FileHandle) -> bool {
        self.files().contains_key(&file)
    }

    /// Something of the file was changed that is not synced, under this write verifier.
    pub(crate) fn wrote(&self, file: FileHandle, verifier: [u8; 8]) {
        if let Some(written) = self.files().get_mut(&file) {
            written.verifier.get_or_insert(verifier);
        }
    }

    /// Whether what was changed and not synced may be gone, now that this is the verifier. Said once.
    pub(crate) fn take_lost(&self, file: FileHandle, verifier: [u8; 8]) -> bool {
        let mut files = self.files();
        let written = files.get_mut(&file);
        written.is_some_and(|written| written.verifier.take_if(|of| *of != verifier).is_some())
    }

    /// Everything of the file was synced.
    pub(crate) fn synced(&self, file: FileHandle) {
        if let Some(written) = self.files().get_mut(&file) {
            written.verifier = None;
        }
    }

    /// A change of the file was made at level 0. False if no close will come: then it has to be settled now.
    #[must_use]
    pub(crate) fn changed(&self, file: FileHandle) -> bool {
        match self.files().get_mut(&file) {
            Some(written) => {
                written.unsettled = true;
                true
            }
            None => false,
        }
    }

    /// Whether something has to be settled; whoever asks does it, or says that it [`changed`](Self::changed) after all.
    pub(crate) fn take_unsettled(&self, file: FileHandle) -> bool {
        let mut files = self.files();
        files
            .get_mut(&file)
            .is_some_and(|written| std::mem::take(&mut written.unsettled))
    }
}

#[cfg(test)]
mod tests {
    use super::WrittenFiles;
    use firn_vfs::FileHandle;

    fn file(number: u64) -> FileHandle {
        FileHandle {
            file_system: 1,
            inode: number,
        }
    }

    #[test]
    fn what_was_not_synced_before_another_verifier_is_lost_and_that_is_said_once() {
        let files = WrittenFiles::default();
        let (old, new) = ([1; 8], [2; 8]);
        files.wrote(file(1), old);
        assert!(!files.take_lost(file(1), new), "nobody has it open");
        files.opened(file(1));
        assert!(!files.take_lost(file(1), new), "nothing was written");
        files.wrote(file(1), old);
        assert!(!files.take_lost(file(1), old));
        files.wrote(file(1), new);
        assert!(files.take_lost(file(1), new) && !files.take_lost(file(1), new));
        files.wrote(file(1), old);
        files.synced(file(1));
        assert!(!files.take_lost(file(1), new));
    }

    #[test]
    fn a_change_is_settled_once_by_whoever_closes() {
        let files = WrittenFiles::default();
        assert!(!files.changed(file(1)), "nobody has it open");
        files.opened(file(1));
        files.opened(file(1));
        assert!(files.is_open(file(1)) && !files.is_open(file(2)));
        assert!(!files.take_unsettled(file(1)));
        assert!(files.changed(file(1)));
        assert!(files.take_unsettled(file(1)));
        assert!(!files.take_unsettled(file(1)));
        assert!(!files.closed(file(1)));
        assert!(files.changed(file(1)));
        assert!(files.closed(file(1)), "made after the last flush");
        assert!(!files.is_open(file(1)) && !files.changed(file(1)) && !files.closed(file(1)));
    }
}
