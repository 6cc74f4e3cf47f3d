//! Locks in the handover record: their bytes, and what covers what.

use crate::{
    EDGE_CALL_BYTES_MAX, HandoverChange, HandoverRecord, Heartbeat, MAX_LOCKING, MAX_LOCKS, MAX_NAME_BYTES,
    MemberLocks, OwnerId, RecordedLock, TupleError,
};
use firn_format::OwnershipEpoch;

/// The layout without locks has a test of its own.
const VECTOR: &str = include_str!("../../tests/vectors/v1/handover-locks.hex");

fn vector() -> Vec<u8> {
    let lines = VECTOR.lines().filter(|line| !line.starts_with('#'));
    let hex: String = lines
        .map(|line| line.split_once(": ").expect("an offset").1.replace(' ', ""))
        .collect();
    data_encoding::HEXLOWER.decode(hex.as_bytes()).expect("hex")
}

fn lock(inode: u64, first: u64, last: u64, exclusive: bool, waits: bool) -> RecordedLock {
    RecordedLock {
        inode,
        first,
        last,
        exclusive,
        waits,
    }
}

fn entry(member: u8, name: &str, beats: u64, locks: Vec<RecordedLock>) -> MemberLocks {
    MemberLocks {
        member: OwnerId([member; 16]),
        name: name.into(),
        beats,
        locks,
    }
}

fn record(locks: Vec<MemberLocks>) -> HandoverRecord {
    HandoverRecord {
        heartbeat: Some(Heartbeat {
            owner: OwnerId([0x44; 16]),
            epoch: OwnershipEpoch(8),
            beats: 3,
        }),
        wants: Vec::new(),
        locks,
        change_id: [0x77; 16],
    }
}

#[test]
fn a_handover_record_with_locks_is_these_bytes_and_the_one_without_is_of_the_layout_before() {
    let locks = vec![
        entry(0x55, "b", 5, vec![lock(10, 1, u64::MAX, true, false)]),
        entry(
            0x66,
            "büro",
            6,
            vec![lock(11, 0, 99, false, false), lock(10, 2, 2, true, true)],
        ),
    ];
    let record = record(locks);
    let bytes = record.to_bytes();
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    assert_eq!(hex(&bytes), hex(&vector()));
    assert_eq!(HandoverRecord::from_bytes(&bytes).as_ref(), Ok(&record));
    for length in 0..bytes.len() {
        assert!(HandoverRecord::from_bytes(&bytes[..length]).is_err(), "{length}");
    }
    let without = HandoverRecord {
        locks: Vec::new(),
        ..record
    };
    assert_eq!(without.to_bytes()[0], 1, "older members read it");
    assert_eq!(HandoverRecord::from_bytes(&without.to_bytes()), Ok(without));
}

#[test]
fn what_is_no_lock_and_what_is_too_much_is_refused() {
    let good = vector();
    // The first lock begins behind its member's count of them, at 0x51.
    let altered = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        HandoverRecord::from_bytes(&bytes)
    };
    assert_eq!(altered(0x69, 4), Err(TupleError::UnknownFlags { found: 4 }));
    for (at, byte, what) in [
        (0x6a, 1, "something reserved"),
        (0x34, 17, "seventeen members"),
        (0x34, 0, "the layout with locks, and none"),
        (0x4f, 0, "a member without locks"),
        (0x50, 2, "513 locks"),
    ] {
        assert!(altered(at, byte).is_err(), "{what}");
    }
    let backwards = record(vec![entry(1, "a", 1, vec![lock(1, 9, 3, true, false)])]);
    assert!(HandoverRecord::from_bytes(&backwards.to_bytes()).is_err());
    let twice = vec![
        entry(1, "a", 1, vec![lock(1, 0, 0, true, false)]),
        entry(1, "a", 2, vec![lock(2, 0, 0, true, false)]),
    ];
    assert!(HandoverRecord::from_bytes(&record(twice).to_bytes()).is_err());
    let full: Vec<_> = (0..MAX_LOCKING as u8)
        .map(|member| entry(member, "office", 1, vec![lock(1, 0, 0, true, false); MAX_LOCKS]))
        .collect();
    let bytes = record(full).to_bytes();
    println!("a full record takes {} bytes", bytes.len());
    assert!(bytes.len() < 400 << 10, "more than an item of a table takes");
    assert!(HandoverRecord::from_bytes(&bytes).is_ok());
}

#[test]
fn a_lock_is_covered_by_what_covers_each_of_its_bytes_for_what_it_is() {
    let held = [
        lock(1, 10, 19, true, false),
        lock(1, 20, 29, false, false),
        lock(1, 40, u64::MAX, true, false),
        lock(1, 30, 39, true, true),
        lock(2, 0, u64::MAX, true, false),
    ];
    for (first, last, exclusive, is_covered) in [
        (10, 19, true, true),
        (12, 13, false, true),
        (10, 29, false, true),
        (10, 29, true, false),
        (9, 19, true, false),
        (28, 30, false, false),
        (35, 36, true, false),
        (50, u64::MAX, true, true),
        (u64::MAX, u64::MAX, true, true),
        (0, u64::MAX, false, false),
    ] {
        let asked = lock(1, first, last, exclusive, false);
        assert_eq!(asked.is_covered_by(&held), is_covered, "{asked:?}");
    }
}

#[test]
fn the_largest_record_of_locks_fits_into_an_edges_call() {
    let locks = vec![lock(u64::MAX, u64::MAX, u64::MAX, true, true); MAX_LOCKS];
    let name = "\u{1f3d4}".repeat(MAX_NAME_BYTES / 4);
    for change in [
        HandoverChange::RecordLocks {
            owner: OwnerId([255; 16]),
            epoch: OwnershipEpoch(u64::MAX),
            grant: [255; 16],
            name: name.clone(),
            locks: locks.clone(),
        },
        HandoverChange::KeepLocks {
            member: OwnerId([255; 16]),
            name,
            locks,
        },
    ] {
        let text = serde_json::to_string(&change).expect("a change is text");
        // What stands around it: the kind of call and the version it was decided on.
        assert!(text.len() + 1024 < EDGE_CALL_BYTES_MAX, "{} bytes", text.len());
    }
}
