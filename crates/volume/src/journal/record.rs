//! A record's number and place.

use super::layout::RECORD_ADDED_BYTES;
use std::fmt;

/// Number of a record in its volume's life: each is one more than the one before, over restarts too. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

impl fmt::Display for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Where a record is. Stays valid until the record is trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct RecordRef {
    pub(super) sequence: Sequence,
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) slot: u32,
    pub(super) sealed_bytes: u32,
}

impl RecordRef {
    /// Which record.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// What it takes in its file.
    pub(super) fn framed_bytes(&self) -> u64 {
        u64::from(self.sealed_bytes) - firn_seal::SEALED_OVERHEAD_BYTES as u64 + RECORD_ADDED_BYTES
    }
}

/// A record was queued.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Its number; [`Journal::durable`] waits for it.
    pub sequence: Sequence,
    /// Its place, for reading it back.
    pub record: RecordRef,
}
