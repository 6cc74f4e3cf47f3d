//! Compressibility estimate of files. Photographs, films, archives, whatever is encrypted already do not compress; trying LZ4 on
//! each of their blocks takes longer than sealing them, and it is the same for all blocks of nearly every file.
//!
//! | what the file's last blocks did | the next ones |
//! |---|---|
//! | one of them shrank, or few were tried | each is tried |
//! | the last [`TRIED_BEFORE`] tried did not shrink | [`TRIED_BEFORE`] are not tried, then one is |
//! | that one did not shrink either | twice as many are not tried, up to [`UNTRIED_MAX`], then one is |
//!
//! So a file that changes its nature is found out after a few megabytes. It is a matter of size only: every block says itself
//! how it is to be opened.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

/// Blocks in a row that did not shrink before the first is left untried: a mebibyte at the default block size is 32.
const TRIED_BEFORE: u32 = 8;

/// Blocks left untried at a time: 8 MiB at the default block size.
const UNTRIED_MAX: u32 = 256;

/// Files remembered; about 64 bytes each. One that is forgotten costs [`TRIED_BEFORE`] tries.
const FILES_MAX: usize = 4096;

/// What is known of the files written lately.
#[derive(Default)]
pub struct Compressibility {
    files: Mutex<BTreeMap<u64, Seen>>,
}

/// A file whose last blocks did not shrink.
#[derive(Default)]
struct Seen {
    /// In a row.
    failures: u32,
    /// Blocks still to be left untried.
    untried_left: u32,
    /// How many are left untried after the next failure.
    untried_next: u32,
}

impl Compressibility {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Seen>> {
        self.files.lock().expect("no panic under this lock")
    }

    /// Whether the file's next block is to be tried; what comes of it is told to [`Compressibility::tried`].
    pub fn is_worth_trying(&self, inode: u64) -> bool {
        let mut files = self.lock();
        match files.get_mut(&inode) {
            Some(seen) if seen.untried_left > 0 => {
                seen.untried_left -= 1;
                false
            }
            Some(_) | None => true,
        }
    }

    /// A block of the file was tried.
    pub fn tried(&self, inode: u64, shrank: bool) {
        let mut files = self.lock();
        if shrank {
            files.remove(&inode);
            return;
        }
        if files.len() >= FILES_MAX && !files.contains_key(&inode) {
            // The lowest numbers are mostly those of the oldest files.
            files.pop_first();
        }
        let seen = files.entry(inode).or_default();
        seen.failures = seen.failures.saturating_add(1);
        if seen.failures >= TRIED_BEFORE {
            seen.untried_next = (seen.untried_next * 2).clamp(TRIED_BEFORE, UNTRIED_MAX);
            seen.untried_left = seen.untried_next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Compressibility, FILES_MAX, UNTRIED_MAX};

    /// Packs blocks that do or do not shrink; returns how many were tried.
    fn pack(files: &Compressibility, inode: u64, blocks: u32, shrinks: bool) -> u32 {
        let mut tries = 0;
        for _ in 0..blocks {
            if files.is_worth_trying(inode) {
                files.tried(inode, shrinks);
                tries += 1;
            }
        }
        tries
    }

    #[test]
    fn a_file_that_does_not_compress_is_hardly_tried_and_one_that_does_always_is() {
        let files = Compressibility::default();
        let tries = pack(&files, 1, 32_768, false);
        assert!((8..200).contains(&tries), "{tries} of 32768 tried");
        assert_eq!(pack(&files, 2, 1000, true), 1000);
    }

    #[test]
    fn a_file_that_begins_to_compress_is_found_out() {
        let files = Compressibility::default();
        pack(&files, 1, 32_768, false);
        let untried = 2000 - pack(&files, 1, 2000, true);
        assert!(untried <= UNTRIED_MAX, "{untried} blocks more were not tried");
        assert_eq!(pack(&files, 1, 100, true), 100);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let files = Compressibility::default();
        for inode in 0..3 * FILES_MAX as u64 {
            files.tried(inode, false);
        }
        assert_eq!(files.lock().len(), FILES_MAX);
    }
}
