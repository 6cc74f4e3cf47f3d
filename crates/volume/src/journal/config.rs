//! Sizes of a journal, and for whom its space is kept.

use super::{
    JournalError, Reclaimer,
    layout::{FIRST_RECORD_OFFSET, largest_framed},
};

/// Sizes of a journal.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Bytes of one file, preallocated. Space comes back in whole files; each costs a few syncs to make.
    pub file_bytes: u64,
    /// Bytes of all files together.
    pub capacity_bytes: u64,
    /// Kept free for removals and the checkpoint, so that a full journal can always be emptied.
    pub reserve_bytes: u64,
    /// Who gives space up when the disk is full.
    pub reclaimer: Reclaimer,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            capacity_bytes: 4 << 30,
            reserve_bytes: 16 << 20,
            reclaimer: Reclaimer::default(),
        }
    }
}

impl JournalConfig {
    pub(super) fn check(&self) -> Result<(), JournalError> {
        let wrong = |detail: String| Err(JournalError::Configuration { detail });
        if !(4096..=1 << 31).contains(&self.file_bytes) {
            return wrong(format!(
                "a file of {} bytes; 4 KiB to 2 GiB are possible",
                self.file_bytes
            ));
        }
        // An empty file must hold the reserve and the largest record, or an empty journal could be full.
        let reserve_most = self.file_bytes - FIRST_RECORD_OFFSET - largest_framed(self.file_bytes);
        if self.reserve_bytes > reserve_most {
            return wrong(format!(
                "a reserve of {} bytes; files of {} bytes allow at most {reserve_most}",
                self.reserve_bytes, self.file_bytes
            ));
        }
        if self.capacity_bytes < 2 * self.file_bytes {
            return wrong(format!(
                "a capacity of {} bytes; two files of {} bytes are the least",
                self.capacity_bytes, self.file_bytes
            ));
        }
        Ok(())
    }
}

/// What a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveClass {
    /// Anything a client asks for that may grow the volume.
    Ordinary = 0,
    /// Removals and the checkpoint's own records: they may use the reserve.
    Reserved = 1,
}
