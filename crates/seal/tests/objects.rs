//! Objects and records: what was sealed opens, and nothing else does.

use bytes::{Bytes, BytesMut};
use firn_format::*;
use firn_seal::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FAMILY: FamilyId = FamilyId([0xfa; 16]);
const SEGMENT: SegmentId = SegmentId {
    writer: WriterId(3),
    sequence: 9,
};

fn keys_of(family: FamilyId, bytes: u8) -> Keys {
    Keys::new(
        family,
        BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([bytes; 32]))]),
    )
}

fn keys() -> Keys {
    keys_of(FAMILY, 7)
}

fn block(index: u64) -> Place {
    Place {
        inode: 20,
        level: 0,
        index,
    }
}

fn seal(sealer: &ObjectSealer, payload: &[u8], compression: Compression) -> EncodedObject {
    let slot = sealer.reserve_slot();
    sealer
        .seal(
            slot,
            Kind::Block,
            block(5),
            Version(4),
            Bytes::new(),
            Vec::new(),
            payload,
            compression,
        )
        .unwrap()
}

fn verified(object: &EncodedObject) -> VerifiedObject {
    decode_object(object.bytes.clone())
        .unwrap()
        .verify(&object.uid, Some(object.header.place))
        .unwrap()
}

proptest! {
    #[test]
    fn any_payload_opens_to_what_it_was(
        payload in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..5000),
            prop::collection::vec(0u8..4, 0..5000),
        ],
        compress: bool,
        plain in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let sealer = ObjectSealer::new(&keys(), [1; 32], &SEGMENT);
        let compression = if compress { Compression::Lz4 } else { Compression::None };
        let child = Child {
            slot: 3,
            pointer: Pointer { uid: Uid([9; 32]), location: Location::UNKNOWN },
        };
        let object = sealer
            .seal(sealer.reserve_slot(), Kind::Inode, Place::of_inode(20), Version(4), plain.clone().into(), vec![child], &payload, compression)
            .unwrap();
        let opened = ObjectOpener::new(keys()).open(&verified(&object)).unwrap();
        prop_assert_eq!(&opened.payload[..], &payload[..]);
        prop_assert_eq!(&opened.header, &object.header);
        prop_assert_eq!(&opened.header.plain[..], &plain[..]);
        prop_assert!(object.bytes.len() <= object.header.encoded_bytes(payload.len() + SEAL_TAG_BYTES));
    }
}

#[test]
fn a_record_opens_in_place_and_from_a_copy() {
    let context = RecordContext::journal(VolumeId([1; 16]), WriterId(2), 3);
    let sealer = RecordSealer::new(&keys(), [5; 32], context);
    let mut group = BytesMut::new();
    sealer
        .append_framed(0, &[b"hello ", b"world"], &mut group)
        .unwrap();
    let group = group.freeze();
    let RecordScan::Record { payload, total_bytes } = next_record(&group, 0) else {
        panic!("the record is there");
    };
    assert_eq!(total_bytes, group.len());
    let opener = RecordOpener::of_journal(&keys(), &sealer.journal_header()).unwrap();
    assert_eq!(&opener.open(0, group.slice(payload)).unwrap()[..], b"hello world");

    let sealed = sealer.seal(1, &[b"again"]).unwrap();
    assert_eq!(&opener.open(1, sealed).unwrap()[..], b"again");
}

#[test]
fn a_slot_seals_once_and_only_if_it_was_reserved() {
    let sealer = ObjectSealer::new(&keys(), [1; 32], &SEGMENT);
    let seal_in = |slot| {
        sealer
            .seal(
                slot,
                Kind::Block,
                block(0),
                Version(1),
                Bytes::new(),
                Vec::new(),
                b"data",
                Compression::None,
            )
            .map(drop)
    };
    assert_eq!(
        seal_in(0),
        Err(SealError::SlotSpent { slot: 0 }),
        "not reserved yet"
    );
    assert_eq!(sealer.reserve_slot(), 0);
    assert_eq!(sealer.reserve_slot(), 1);
    assert_eq!(seal_in(1), Ok(()), "in any order");
    assert_eq!(seal_in(0), Ok(()));
    assert_eq!(seal_in(0), Err(SealError::SlotSpent { slot: 0 }), "once");
    assert_eq!(seal_in(1), Err(SealError::SlotSpent { slot: 1 }));
}

#[test]
fn an_object_of_another_family_does_not_open() {
    let object = seal(
        &ObjectSealer::new(&keys(), [1; 32], &SEGMENT),
        b"secret",
        Compression::Lz4,
    );
    let object = verified(&object);
    for other in [keys_of(FAMILY, 8), keys_of(FamilyId([0xfb; 16]), 7)] {
        assert_eq!(
            ObjectOpener::new(other).open(&object).unwrap_err(),
            SealError::ObjectNotAuthentic { place: block(5) }
        );
    }
}
