//! Requests that are served at all: in a grace period reclaims alone, outside it everything else.

use super::{LockError, table::Table};

impl Table {
    pub(super) fn check_served(&self, reclaim: bool) -> Result<(), LockError> {
        match (self.in_grace, reclaim) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(LockError::Grace),
            (false, true) => Err(LockError::GraceOver),
        }
    }
}
