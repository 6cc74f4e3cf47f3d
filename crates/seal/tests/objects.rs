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
        let opened = ObjectOpener::new(keys()).open(verified(&object)).unwrap();
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
    let RecordScan::Record { payload, total_bytes } = sealer.framing().next(&group, 0) else {
        panic!("the record is there");
    };
    assert_eq!(total_bytes, group.len());
    let opener = RecordOpener::of_journal(&keys(), &sealer.journal_header()).unwrap();
    assert_eq!(&opener.open(0, group.slice(payload)).unwrap()[..], b"hello world");

    let sealed = sealer.seal(1, &[b"again"]).unwrap();
    assert_eq!(&opener.open(1, sealed).unwrap()[..], b"again");
}

/// Parts are sealed from where they are; where they are cut must not be seen in the bytes.
#[test]
fn a_record_has_the_same_bytes_however_it_is_cut() {
    let content: Vec<u8> = (0..5000_u32).map(|number| (number * 7 % 251) as u8).collect();
    let context = RecordContext::journal(VolumeId([1; 16]), WriterId(2), 3);
    let sealed = |parts: &[&[u8]]| {
        // What stands in the room before is nothing to the record.
        let mut room = vec![0xaa; framed_bytes(parts)];
        let sealer = RecordSealer::new(&keys(), [5; 32], context);
        sealer.seal_framed(9, parts, &mut room).unwrap();
        room
    };
    let copied = {
        let mut whole = BytesMut::from(&content[..]);
        let sealer = RecordSealer::new(&keys(), [5; 32], context);
        sealer.seal_in_place(9, &mut whole).unwrap();
        whole
    };
    let whole = sealed(&[&content]);
    assert_eq!(whole[RECORD_HEAD_BYTES..][..copied.len()], copied);
    for cut in [0, 1, 15, 16, 17, 64, 255, 256, 257, 4096, 4999, 5000] {
        let (head, tail) = content.split_at(cut);
        assert_eq!(sealed(&[head, tail]), whole, "cut at {cut}");
        let middle = tail.len() / 2;
        assert_eq!(
            sealed(&[head, &tail[..middle], &tail[middle..]]),
            whole,
            "cut at {cut} and behind"
        );
    }
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
            ObjectOpener::new(other).open(object.clone()).unwrap_err(),
            SealError::ObjectNotAuthentic { place: block(5) }
        );
    }
}

#[test]
fn an_object_opens_only_as_what_it_was_sealed_as() {
    let object = seal(
        &ObjectSealer::new(&keys(), [1; 32], &SEGMENT),
        &[7; 100],
        Compression::None,
    );
    let sealed = verified(&object).sealed_payload;
    let opener = ObjectOpener::new(keys());
    let reopened = |change: &dyn Fn(&mut ObjectHeader)| {
        // An attacker who can also change the uid that the parent names: only the seal is left to notice.
        let mut header = object.header.clone();
        change(&mut header);
        opener.open(verified(&encode_object(header, &sealed)))
    };
    assert!(reopened(&|_| ()).is_ok());
    let child = Child {
        slot: 0,
        pointer: Pointer {
            uid: Uid([1; 32]),
            location: Location::UNKNOWN,
        },
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut ObjectHeader));
    let changes: [Change<'_>; 10] = [
        ("kind", &|header| header.kind = Kind::Inode),
        ("features", &|header| header.features = Features(0x100)),
        ("inode", &|header| header.place.inode += 1),
        ("index", &|header| header.place.index += 1),
        ("birth", &|header| header.birth = header.birth.next()),
        ("salt", &|header| header.seal.salt[31] ^= 1),
        ("slot", &|header| header.seal.slot += 1),
        ("codec", &|header| header.seal.codec = Codec::Lz4),
        ("plain", &|header| header.plain = Bytes::from_static(b"more")),
        ("children", &|header| header.children.push(child)),
    ];
    for (name, change) in changes {
        let error = reopened(change).expect_err(name);
        assert!(
            matches!(error, SealError::ObjectNotAuthentic { .. }),
            "{name}: {error}"
        );
    }
    let error = reopened(&|header| header.seal.key_epoch = KeyEpoch(2)).unwrap_err();
    assert_eq!(
        error,
        SealError::UnknownKeyEpoch {
            epoch: KeyEpoch(2),
            newest: KeyEpoch(1)
        }
    );
}

#[test]
fn a_child_that_was_moved_does_not_disturb_its_parents_seal() {
    let sealer = ObjectSealer::new(&keys(), [1; 32], &SEGMENT);
    let child = Child {
        slot: 3,
        pointer: Pointer {
            uid: Uid([9; 32]),
            location: Location::UNKNOWN,
        },
    };
    let place = Place {
        inode: 20,
        level: 1,
        index: 0,
    };
    let object = sealer
        .seal(
            sealer.reserve_slot(),
            Kind::Node,
            place,
            Version(4),
            Bytes::new(),
            vec![child],
            b"",
            Compression::Lz4,
        )
        .unwrap();
    let moved = relocate_children(&object, |_| Location {
        segment: SEGMENT,
        offset: 77,
        length: 88,
    });
    let opened = ObjectOpener::new(keys()).open(verified(&moved)).unwrap();
    assert_eq!(opened.header.children[0].pointer.location.offset, 77);
}

proptest! {
    #[test]
    fn a_flipped_bit_that_keeps_its_uid_is_still_noticed(payload in prop::collection::vec(any::<u8>(), 1..200), bit: prop::sample::Index) {
        let object = seal(&ObjectSealer::new(&keys(), [1; 32], &SEGMENT), &payload, Compression::Lz4);
        let mut sealed = verified(&object).sealed_payload.to_vec();
        let bit = bit.index(sealed.len() * 8);
        sealed[bit / 8] ^= 1 << (bit % 8);
        let forged = encode_object(object.header, &sealed);
        prop_assert!(ObjectOpener::new(keys()).open(verified(&forged)).is_err());
    }

    #[test]
    fn a_sealed_payload_that_is_too_short_is_refused(length in 0..SEAL_TAG_BYTES) {
        let object = seal(&ObjectSealer::new(&keys(), [1; 32], &SEGMENT), b"x", Compression::None);
        let cut = encode_object(object.header, &vec![0; length]);
        prop_assert!(ObjectOpener::new(keys()).open(verified(&cut)).is_err());
    }
}

#[test]
fn a_block_is_compressed_only_where_it_saves_a_sixteenth() {
    let sealer = ObjectSealer::new(&keys(), [1; 32], &SEGMENT);
    // Bytes that do not compress, with a run of zeros that does.
    let mixed = |zeros: usize| {
        let mut noise = blake3::Hasher::new().finalize_xof();
        let mut payload = vec![0; 32 << 10];
        noise.fill(&mut payload[zeros..]);
        payload
    };
    for (zeros, codec) in [
        (0, Codec::Raw),
        (1 << 10, Codec::Raw),
        (3 << 10, Codec::Lz4),
        (32 << 10, Codec::Lz4),
    ] {
        let object = seal(&sealer, &mixed(zeros), Compression::Lz4);
        assert_eq!(object.header.seal.codec, codec, "{zeros} zeros");
        let limit = match codec {
            Codec::Raw => 32 << 10,
            Codec::Lz4 | Codec::Zstd => (32 << 10) * 15 / 16,
        };
        assert!(verified(&object).sealed_payload.len() - SEAL_TAG_BYTES <= limit);
        let opened = ObjectOpener::new(keys()).open(verified(&object)).unwrap();
        assert_eq!(opened.payload, mixed(zeros));
    }
    let plain = seal(&sealer, &[0; 32 << 10], Compression::None);
    assert_eq!(plain.header.seal.codec, Codec::Raw, "unless it is off");
    assert_eq!(
        seal(&sealer, b"", Compression::Lz4).header.seal.codec,
        Codec::Raw,
        "nothing saves nothing"
    );
}

#[test]
fn the_largest_block_is_sealed_and_a_larger_one_refused() {
    let sealer = ObjectSealer::new(&keys(), [1; 32], &SEGMENT);
    let object = seal(&sealer, &vec![1; MAX_PAYLOAD_BYTES], Compression::None);
    let opened = ObjectOpener::new(keys()).open(verified(&object)).unwrap();
    assert_eq!(opened.payload.len(), MAX_PAYLOAD_BYTES);
    let error = sealer
        .seal(
            sealer.reserve_slot(),
            Kind::Block,
            block(0),
            Version(1),
            Bytes::new(),
            Vec::new(),
            &vec![1; MAX_PAYLOAD_BYTES + 1],
            Compression::Lz4,
        )
        .unwrap_err();
    assert_eq!(
        error,
        SealError::PayloadTooLarge {
            found_bytes: MAX_PAYLOAD_BYTES + 1,
            limit_bytes: MAX_PAYLOAD_BYTES
        }
    );
}

#[test]
fn more_segments_than_cached_keys_open_again_and_again() {
    let opener = ObjectOpener::new(keys());
    let objects: Vec<_> = (0..1500)
        .map(|sequence| {
            let sealer = ObjectSealer::new(&keys(), [1; 32], &SegmentId { sequence, ..SEGMENT });
            verified(&seal(&sealer, &sequence.to_le_bytes(), Compression::None))
        })
        .collect();
    for _ in 0..2 {
        for (object, sequence) in objects.iter().zip(0u64..) {
            assert_eq!(
                &opener.open(object.clone()).unwrap().payload[..],
                sequence.to_le_bytes()
            );
        }
    }
}

#[test]
fn data_of_an_earlier_epoch_opens_with_the_keys_of_a_later_one() {
    let old = seal(
        &ObjectSealer::new(&keys(), [1; 32], &SEGMENT),
        b"old",
        Compression::None,
    );
    let rotated = Keys::new(
        FAMILY,
        BTreeMap::from([
            (KeyEpoch(1), EpochKey::from_bytes([7; 32])),
            (KeyEpoch(2), EpochKey::from_bytes([8; 32])),
        ]),
    );
    let new = seal(
        &ObjectSealer::new(&rotated, [1; 32], &SEGMENT),
        b"new",
        Compression::None,
    );
    assert_eq!(new.header.seal.key_epoch, KeyEpoch(2));
    let opener = ObjectOpener::new(rotated);
    assert_eq!(&opener.open(verified(&old)).unwrap().payload[..], b"old");
    assert_eq!(&opener.open(verified(&new)).unwrap().payload[..], b"new");
    assert!(ObjectOpener::new(keys()).open(verified(&new)).is_err());
}

proptest! {
    #[test]
    fn a_record_opens_only_in_its_slot_of_its_file(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..4),
        slot in 0u32..1000,
        bit: prop::sample::Index,
    ) {
        let context = |writer, number| RecordContext::journal(VolumeId([1; 16]), WriterId(writer), number);
        let sealer = RecordSealer::new(&keys(), [5; 32], context(2, 3));
        let parts: Vec<_> = parts.iter().map(|part| &part[..]).collect();
        let sealed = sealer.seal(slot, &parts).unwrap();
        prop_assert_eq!(sealed.len(), parts.concat().len() + SEALED_OVERHEAD_BYTES);

        // Kept alive, so that opening cannot work in place; and dropped, so that it can.
        let opened = sealer.open(slot, sealed.clone()).unwrap();
        prop_assert_eq!(&opened[..], parts.concat());
        prop_assert_eq!(&sealer.open(slot, Bytes::from(sealed.to_vec())).unwrap()[..], parts.concat());

        prop_assert_eq!(sealer.open(slot + 1, sealed.clone()), Err(SealError::RecordNotAuthentic { slot: slot + 1 }));
        for other in [context(9, 3), context(2, 9), RecordContext::local("other", VolumeId([1; 16]), WriterId(2), 3)] {
            let opener = RecordOpener::new(&keys(), KeyEpoch(1), sealer.salt(), other).unwrap();
            prop_assert!(opener.open(slot, sealed.clone()).is_err());
        }
        let mut flipped = sealed.to_vec();
        let bit = bit.index(flipped.len() * 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(sealer.open(slot, flipped.into()).is_err());
        for length in 0..sealed.len() {
            prop_assert!(sealer.open(slot, sealed.slice(..length)).is_err());
        }
    }
}

#[test]
fn a_record_that_nobody_else_holds_is_opened_where_it_lies() {
    let context = RecordContext::journal(VolumeId([1; 16]), WriterId(2), 3);
    let sealer = RecordSealer::new(&keys(), [5; 32], context);
    let sealed = sealer.seal(0, &[&[1; 1000]]).unwrap();
    let address = sealed.as_ptr();
    assert_eq!(sealer.open(0, sealed).unwrap().as_ptr(), address);
}

#[test]
fn a_record_too_large_to_be_read_back_is_not_sealed() {
    let context = RecordContext::journal(VolumeId([1; 16]), WriterId(2), 3);
    let sealer = RecordSealer::new(&keys(), [5; 32], context);
    let large = vec![0; MAX_RECORD_BYTES];
    assert!(matches!(
        sealer.seal(0, &[&large]),
        Err(SealError::PayloadTooLarge { .. })
    ));
    let mut group = BytesMut::new();
    assert!(sealer.append_framed(0, &[&large], &mut group).is_err());
    assert!(group.is_empty());
    // The slot was not spent on it.
    sealer
        .append_framed(0, &[&large[SEALED_OVERHEAD_BYTES..]], &mut group)
        .unwrap();
    assert!(matches!(
        sealer.framing().next(&group, 0),
        RecordScan::Record { .. }
    ));
}
