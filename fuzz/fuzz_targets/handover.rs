//! Any bytes are one handover record of a shared volume, with its members' locks, or one hold or round of cleaners, or none; what is accepted encodes
//! to itself.
#![no_main]

use firn_anchor::{CleanerRound, HandoverRecord, Hold};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hold) = Hold::from_bytes(bytes) {
        assert_eq!(hold.to_bytes(), bytes, "one spelling each");
    }
    if let Ok(round) = CleanerRound::from_bytes(bytes) {
        assert_eq!(round.to_bytes(), bytes, "one spelling each");
    }
    if let Ok(record) = HandoverRecord::from_bytes(bytes) {
        assert_eq!(record.to_bytes(), bytes, "one spelling each");
        for entry in &record.locks {
            for lock in entry.locks.iter().filter(|lock| !lock.waits) {
                assert!(lock.is_covered_by(&entry.locks));
            }
        }
    }
});
