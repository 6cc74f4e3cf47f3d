//! Requests that are served at all: in a grace period reclaims alone, outside it everything else, and nothing in a file system whose locks are refused.

use super::{LockError, LockTable, table::Table};
use firn_vfs::FileHandle;

impl LockTable {
    /// From now on nothing is locked or reserved in this file system: who asks gets [`LockError::Unsupported`].
    pub fn refuse(&self, file_system: u64) {
        self.table().refused.insert(file_system);
    }
}

impl Table {
    pub(super) fn check_served(&self, file: FileHandle, reclaim: bool) -> Result<(), LockError> {
        if self.refused.contains(&file.file_system) {
            return Err(LockError::Unsupported);
        }
        match (self.in_grace, reclaim) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(LockError::Grace),
            (false, true) => Err(LockError::GraceOver),
        }
    }
}
