//! The opened records read back last, so that reading a record's data in pieces opens it once.

use super::record::Sequence;
use bytes::Bytes;
use std::collections::VecDeque;

/// Four of the largest records.
const RECENT_BYTES: usize = 8 << 20;
/// Bounds the walk through the list.
const RECENT_RECORDS: usize = 32;

/// A few opened records, the most recently used first.
#[derive(Default)]
pub(super) struct RecentRecords {
    records: VecDeque<(Sequence, Bytes)>,
    bytes: usize,
}

impl RecentRecords {
    /// The record, if it was read lately.
    pub(super) fn get(&mut self, sequence: Sequence) -> Option<Bytes> {
        let index = self.records.iter().position(|(held, _)| *held == sequence)?;
        let entry = self.records.remove(index)?;
        let payload = entry.1.clone();
        self.records.push_front(entry);
        Some(payload)
    }

    /// Keeps a record, and lets go of the longest unused.
    pub(super) fn insert(&mut self, sequence: Sequence, payload: Bytes) {
        if self.records.iter().any(|(held, _)| *held == sequence) {
            return;
        }
        self.bytes += payload.len();
        self.records.push_front((sequence, payload));
        while self.records.len() > RECENT_RECORDS || (self.bytes > RECENT_BYTES && self.records.len() > 1) {
            if let Some((_, payload)) = self.records.pop_back() {
                self.bytes -= payload.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RECENT_BYTES, RECENT_RECORDS, RecentRecords};
    use crate::journal::Sequence;
    use bytes::Bytes;

    #[test]
    fn the_longest_unused_goes_first_and_the_bytes_stay_bounded() {
        let mut recent = RecentRecords::default();
        for sequence in 0..RECENT_RECORDS as u64 {
            recent.insert(Sequence(sequence), Bytes::from_static(b"small"));
        }
        assert!(recent.get(Sequence(0)).is_some(), "used again");
        recent.insert(Sequence(1000), Bytes::from_static(b"one more"));
        assert!(recent.get(Sequence(0)).is_some());
        assert!(recent.get(Sequence(1)).is_none());
        recent.insert(Sequence(2000), Bytes::from(vec![0; RECENT_BYTES]));
        assert!(recent.get(Sequence(2000)).is_some());
        assert!(recent.get(Sequence(0)).is_none());
        assert_eq!(recent.bytes, RECENT_BYTES);
    }
}
