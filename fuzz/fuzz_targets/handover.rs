//! Any bytes are one handover record of a shared volume, with its members' locks, or none; what is accepted encodes to itself.
#![no_main]

use firn_anchor::HandoverRecord;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = HandoverRecord::from_bytes(bytes) {
        assert_eq!(record.to_bytes(), bytes, "one spelling each");
        for entry in &record.locks {
            for lock in entry.locks.iter().filter(|lock| !lock.waits) {
                assert!(lock.is_covered_by(&entry.locks));
            }
        }
    }
});
