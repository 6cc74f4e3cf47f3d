//! A nonce is never used twice under one key: slots are spent once, and no two sealers share a key.

use bytes::{Bytes, BytesMut};
use firn_format::*;
use firn_seal::*;
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
};

const FAMILY: FamilyId = FamilyId([0xfa; 16]);
const VOLUME: VolumeId = VolumeId([0x70; 16]);

fn keys_of(family: FamilyId) -> Keys {
    Keys::new(
        family,
        BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([7; 32]))]),
    )
}

fn keys() -> Keys {
    keys_of(FAMILY)
}

fn segment(writer: u64, sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(writer),
        sequence,
    }
}

fn journal(writer: u64, number: u64) -> RecordContext {
    RecordContext::journal(VOLUME, WriterId(writer), number)
}

/// What a sealer's key turns zeros into in a slot: its keystream. Equal streams would mean one nonce used twice.
fn object_keystream(sealer: &ObjectSealer) -> Bytes {
    let slot = sealer.reserve_slot();
    let place = Place {
        inode: 20,
        level: 0,
        index: 0,
    };
    let object = sealer
        .seal(
            slot,
            Kind::Block,
            place,
            Version(1),
            Bytes::new(),
            Vec::new(),
            &[0; 64],
            Compression::None,
        )
        .unwrap();
    let verified = decode_object(object.bytes)
        .unwrap()
        .verify(&object.uid, None)
        .unwrap();
    verified.sealed_payload.slice(..64)
}

fn record_keystream(sealer: &RecordSealer, slot: u32) -> Bytes {
    sealer.seal(slot, &[&[0; 64]]).unwrap().slice(..64)
}

#[test]
fn the_same_entropy_for_another_segment_gives_another_key() {
    // A cloned or broken machine: entropy repeats at every start, names do not.
    let entropy = [0; 32];
    let mut streams = BTreeSet::new();
    for writer in 1..20 {
        for sequence in 0..20 {
            let sealer = ObjectSealer::new(&keys(), entropy, &segment(writer, sequence));
            assert!(
                streams.insert(object_keystream(&sealer)),
                "writer {writer}, segment {sequence}"
            );
        }
    }
}

#[test]
fn the_same_entropy_for_another_file_gives_another_key() {
    let entropy = [0; 32];
    let mut streams = BTreeSet::new();
    for writer in 1..20 {
        for number in 0..20 {
            let sealer = RecordSealer::new(&keys(), entropy, journal(writer, number));
            assert!(
                streams.insert(record_keystream(&sealer, 0)),
                "writer {writer}, file {number}"
            );
        }
    }
    let other_purpose = RecordContext::local("test", VOLUME, WriterId(1), 1);
    let other_volume = RecordContext::journal(VolumeId([1; 16]), WriterId(1), 1);
    for context in [other_purpose, other_volume] {
        assert!(streams.insert(record_keystream(&RecordSealer::new(&keys(), entropy, context), 0)));
    }
    let other_family = keys_of(FamilyId([1; 16]));
    assert!(streams.insert(record_keystream(
        &RecordSealer::new(&other_family, entropy, journal(1, 1)),
        0
    )));
}

#[test]
fn other_entropy_for_the_same_name_gives_another_key() {
    // A start that crashed before its segment was stored may try the name again.
    let mut streams = BTreeSet::new();
    for entropy in 0..=255 {
        let sealer = ObjectSealer::new(&keys(), [entropy; 32], &segment(1, 1));
        assert!(streams.insert(object_keystream(&sealer)));
        let sealer = RecordSealer::new(&keys(), [entropy; 32], journal(1, 1));
        assert!(streams.insert(record_keystream(&sealer, 0)));
    }
}

#[test]
fn each_slot_has_a_keystream_of_its_own() {
    let objects = ObjectSealer::new(&keys(), [1; 32], &segment(1, 1));
    let records = RecordSealer::new(&keys(), [1; 32], journal(1, 1));
    let mut streams = BTreeSet::new();
    for slot in 0..500 {
        assert!(streams.insert(object_keystream(&objects)));
        assert!(streams.insert(record_keystream(&records, slot)));
    }
}

#[test]
fn threads_never_get_the_same_slot() {
    let sealer = ObjectSealer::new(&keys(), [1; 32], &segment(1, 1));
    let slots = thread::scope(|scope| {
        let reserve = || (0..1000).map(|_| sealer.reserve_slot()).collect::<Vec<_>>();
        let threads = [scope.spawn(reserve), scope.spawn(reserve), scope.spawn(reserve)];
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    assert_eq!(slots.into_iter().collect::<BTreeSet<_>>(), (0..3000).collect());
}

#[test]
fn threads_cannot_spend_one_slot_twice() {
    let sealer = RecordSealer::new(&keys(), [1; 32], journal(1, 1));
    let spent = thread::scope(|scope| {
        let spend = || {
            (0..1000)
                .filter(|slot| sealer.seal(*slot, &[b"x"]).is_ok())
                .collect::<Vec<_>>()
        };
        let threads = [scope.spawn(spend), scope.spawn(spend), scope.spawn(spend)];
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    assert_eq!(spent.iter().collect::<BTreeSet<_>>().len(), spent.len());
}

proptest! {
    #[test]
    fn record_slots_only_rise(slots in prop::collection::vec(0u32..40, 1..60)) {
        let sealer = RecordSealer::new(&keys(), [1; 32], journal(1, 1));
        let mut highest = None;
        for slot in slots {
            let mut buffer = BytesMut::from(&b"record"[..]);
            let sealed = sealer.seal_in_place(slot, &mut buffer);
            if highest.is_none_or(|highest| slot > highest) {
                prop_assert_eq!(sealed, Ok(()));
                highest = Some(slot);
            } else {
                prop_assert_eq!(sealed, Err(SealError::SlotSpent { slot }));
                prop_assert_eq!(&buffer[..], b"record", "nothing was sealed");
            }
        }
    }
}

#[test]
fn the_last_slot_can_be_spent_but_none_after_it() {
    let sealer = RecordSealer::new(&keys(), [1; 32], journal(1, 1));
    assert!(sealer.seal(u32::MAX, &[b"last"]).is_ok());
    for slot in [0, 1, u32::MAX] {
        assert_eq!(sealer.seal(slot, &[b"more"]), Err(SealError::SlotSpent { slot }));
    }
}

#[test]
fn a_replayed_journal_file_is_never_resumed() {
    let first_start = RecordSealer::new(&keys(), [3; 32], journal(5, 8));
    let header = JournalFileHeader::decode(&first_start.journal_header().encode()).unwrap();
    let before_the_crash = record_keystream(&first_start, 0);

    // Even a caller that hands the header's salt back, for the same file, gets a sealer with another key.
    let second_start = RecordSealer::new(&keys(), header.salt, RecordContext::of_journal(&header));
    assert_ne!(second_start.salt(), header.salt);
    assert_ne!(record_keystream(&second_start, 0), before_the_crash);
    // What found files are for: reading.
    let sealed = first_start.seal(1, &[b"kept"]).unwrap();
    assert_eq!(
        &RecordOpener::of_journal(&keys(), &header)
            .unwrap()
            .open(1, sealed)
            .unwrap()[..],
        b"kept"
    );
}
