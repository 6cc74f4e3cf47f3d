//! Spare files: trimmed, and kept with their blocks until they are used again.
//!
//! ```text
//! <number>.journal ── covered ──▶ <number>.spare ── another header, synced ──▶ <next number>.journal
//! ```
//!
//! Removing a file gives its pages and extents back one by one, and the next file takes them anew; its first sync after each
//! stretch then changes the extent tree as well (`zeroing`). A spare has all its blocks written, so that a sync of what is
//! written into it is that and no more.
//!
//! A spare is nobody's file: what is in it counts for nothing, whenever the power fails. Its old bytes are behind the new records
//! once it is used again, and the salt of the new header tells them apart (`firn_format::Framing`).

use super::{
    JournalConfig, JournalError,
    file::{path_of, spare_path_of},
};
use firn_env::{DiskError, Env};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

/// Files kept: one becomes the next file while the present one fills, the other waits for it. More would come back with each
/// checkpoint and lie there.
pub(super) const SPARES_MAX: usize = 2;

/// Their numbers; none stands in the accounting of files.
#[derive(Default)]
pub(super) struct Spares(Mutex<BTreeSet<u64>>);

impl Spares {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().expect("no panic under the lock of spare files")
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// One to be used again.
    pub(super) fn take(&self) -> Option<u64> {
        self.lock().pop_first()
    }

    /// One that was found.
    pub(super) fn add(&self, number: u64) {
        self.lock().insert(number);
    }

    /// Keeps file `number` as a spare, or removes it. It has `bytes`; `others_bytes` is what all other files have, without spares.
    ///
    /// # Errors
    /// If the disk refuses; the file is as it was.
    pub(super) async fn retire(
        &self,
        env: &Env,
        directory: &str,
        config: &JournalConfig,
        number: u64,
        (bytes, others_bytes): (u64, u64),
    ) -> Result<(), JournalError> {
        let path = path_of(directory, number);
        let kept_bytes = (self.count() as u64 + 1) * config.file_bytes;
        // A spare is never made longer: what was cut off when it was found is gone.
        let is_kept = bytes == config.file_bytes
            && self.count() < SPARES_MAX
            && others_bytes + kept_bytes <= config.capacity_bytes;
        let done = if is_kept {
            env.disk().rename(&path, &spare_path_of(directory, number)).await
        } else {
            env.disk().remove(&path).await
        };
        match done {
            Ok(()) if is_kept => self.add(number),
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
