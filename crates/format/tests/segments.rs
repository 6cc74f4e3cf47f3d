//! Segments: every object is found where the index says, alone or whole, and damage anywhere is noticed.

mod strategies;

use bytes::Bytes;
use firn_format::*;
use proptest::prelude::*;
use strategies::*;

const FAMILY: FamilyId = FamilyId([0xf0; 16]);
const ID: SegmentId = SegmentId {
    writer: WriterId(11),
    sequence: 12,
};

fn pack(objects: &[EncodedObject]) -> (Bytes, Vec<Location>) {
    let mut builder = SegmentBuilder::new(FAMILY, ID);
    let locations = objects.iter().map(|object| builder.push(object)).collect();
    assert_eq!(builder.objects().len(), objects.len());
    let promised_bytes = builder.bytes_used();
    let bytes: Bytes = builder.finish().concat().into();
    assert_eq!(bytes.len(), promised_bytes);
    (bytes, locations)
}

proptest! {
    #[test]
    fn each_object_is_found_at_its_location(objects in prop::collection::vec(object(), 0..8)) {
        let (bytes, locations) = pack(&objects);
        let segment = decode_segment(bytes.clone()).unwrap();
        prop_assert_eq!((segment.family, segment.id), (FAMILY, ID));
        prop_assert_eq!(segment.entries.len(), objects.len());
        for ((entry, object), location) in segment.entries.iter().zip(&objects).zip(locations) {
            prop_assert_eq!(entry.location(ID), location);
            prop_assert_eq!(location.segment, ID);
            let ranged = bytes.slice(location.offset as usize..location.end() as usize);
            prop_assert_eq!(&ranged, &object.bytes);
            prop_assert_eq!(segment.object(entry), ranged);
            prop_assert_eq!(entry.uid, object.uid);
            prop_assert_eq!((entry.kind, entry.place, entry.birth), (object.header.kind, object.header.place, object.header.birth));
        }
    }

    #[test]
    fn a_reader_of_the_trailer_alone_learns_the_same(objects in prop::collection::vec(object(), 0..8)) {
        let (bytes, _) = pack(&objects);
        let footer = decode_footer(&bytes[bytes.len() - FOOTER_BYTES..]).unwrap();
        prop_assert_eq!((footer.family, footer.id), (FAMILY, ID));
        prop_assert_eq!(footer.segment_bytes(), bytes.len());
        let index_offset = footer.index_offset as usize;
        let entries = footer.decode_index(&bytes[index_offset..index_offset + footer.index_bytes()]).unwrap();
        prop_assert_eq!(entries, decode_segment(bytes.clone()).unwrap().entries);
    }

    #[test]
    fn every_flipped_bit_is_noticed(objects in prop::collection::vec(object(), 0..4), bit: prop::sample::Index) {
        let (bytes, _) = pack(&objects);
        prop_assert!(decode_segment(flipped(&bytes, bit.index(bytes.len() * 8))).is_err());
    }

    #[test]
    fn a_flipped_bit_of_the_trailer_is_noticed_without_the_objects(objects in prop::collection::vec(object(), 1..4), bit: prop::sample::Index) {
        let (bytes, _) = pack(&objects);
        let trailer_bytes = objects.len() * INDEX_ENTRY_BYTES + FOOTER_BYTES;
        let trailer = flipped(&bytes[bytes.len() - trailer_bytes..], bit.index(trailer_bytes * 8));
        let (index, footer) = trailer.split_at(trailer.len() - FOOTER_BYTES);
        let outcome = decode_footer(footer).and_then(|footer| footer.decode_index(index));
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn any_bytes_at_all_are_decoded_or_refused(
        bytes in prop::collection::vec(object(), 0..4).prop_flat_map(|objects| damaged(pack(&objects).0)),
    ) {
        if let Ok(segment) = decode_segment(bytes.clone()) {
            for entry in &segment.entries {
                prop_assert_eq!(segment.object(entry).len(), entry.length as usize);
            }
        }
        let tail = bytes.len().saturating_sub(FOOTER_BYTES);
        if let Ok(footer) = decode_footer(&bytes[tail..]) {
            let _ = footer.decode_index(&bytes);
        }
    }
}

fn two_objects() -> Vec<EncodedObject> {
    let checkpoint = |version| {
        checkpoint_object(&Checkpoint {
            family: FAMILY,
            volume: VolumeId([1; 16]),
            version: Version(version),
            epoch: OwnershipEpoch(1),
            writer: WriterId(11),
            previous: None,
            fork: None,
            inode_map: None,
            orphans: None,
            usage: None,
            snapshots: Vec::new(),
            cleaner_sequence: 0,
            committed_at_ms: 0,
            manifest: None,
        })
    };
    vec![checkpoint(1), checkpoint(2)]
}

#[test]
fn every_cut_is_noticed() {
    let (bytes, _) = pack(&two_objects());
    for length in 0..bytes.len() {
        assert!(decode_segment(bytes.slice(..length)).is_err(), "cut to {length}");
    }
}

#[test]
fn objects_are_not_copied_on_their_way_into_a_segment() {
    let objects = two_objects();
    let mut builder = SegmentBuilder::new(FAMILY, ID);
    for object in &objects {
        builder.push(object);
    }
    let parts = builder.finish();
    assert_eq!(parts[1].as_ptr(), objects[0].bytes.as_ptr());
    assert_eq!(parts[2].as_ptr(), objects[1].bytes.as_ptr());
}

#[test]
fn a_trailer_of_another_segment_is_noticed() {
    let (one, _) = pack(&two_objects());
    let mut builder = SegmentBuilder::new(FAMILY, SegmentId { sequence: 13, ..ID });
    for object in two_objects() {
        builder.push(&object);
    }
    let other = builder.finish().concat();
    let trailer_bytes = 2 * INDEX_ENTRY_BYTES + FOOTER_BYTES;
    let mixed = [
        &one[..one.len() - trailer_bytes],
        &other[other.len() - trailer_bytes..],
    ]
    .concat();
    assert!(matches!(
        decode_segment(mixed.into()),
        Err(FormatError::Invalid { .. } | FormatError::Checksum { .. })
    ));
}

#[test]
fn a_footer_whose_numbers_are_absurd_is_refused_before_they_are_used() {
    let (bytes, _) = pack(&two_objects());
    for offset in [4, 8] {
        let mut footer = bytes[bytes.len() - FOOTER_BYTES..].to_vec();
        footer[offset..offset + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let checksum = crc32c::crc32c(&footer[..52]);
        footer[52..56].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(decode_footer(&footer), Err(FormatError::Invalid { .. })));
    }
}

#[test]
fn an_index_whose_objects_do_not_follow_each_other_is_refused_though_its_checksums_are_right() {
    let (whole, _) = pack(&two_objects());
    let footer = whole.len() - FOOTER_BYTES;
    let second_entry = footer - INDEX_ENTRY_BYTES;
    let with_field = |at: usize, change: fn(u32) -> u32| {
        let mut bytes = whole.to_vec();
        let field = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        bytes[at..at + 4].copy_from_slice(&change(field).to_le_bytes());
        let index = footer - 2 * INDEX_ENTRY_BYTES..footer;
        let checksum = crc32c::crc32c(&bytes[index]);
        bytes[footer + 16..footer + 20].copy_from_slice(&checksum.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[footer..footer + 52]);
        bytes[footer + 52..footer + 56].copy_from_slice(&checksum.to_le_bytes());
        match decode_segment(bytes.into()) {
            Ok(_) => "accepted",
            Err(FormatError::Invalid { field, .. }) => field,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(with_field(second_entry, |uid| uid ^ 1), "accepted");
    assert_eq!(with_field(second_entry + 56, |offset| offset + 1), "offset");
    assert_eq!(with_field(second_entry + 56, |offset| offset - 1), "offset");
    assert_eq!(with_field(second_entry + 60, |_| 0), "length");
    assert_eq!(with_field(second_entry + 60, |_| u32::MAX), "length");
    assert_eq!(
        with_field(second_entry + 60, |length| length - 1),
        "end of the last object"
    );
    assert_eq!(
        with_field(second_entry + 60, |length| length + 1),
        "end of the last object"
    );
}

#[test]
#[should_panic(expected = "is full")]
fn a_segment_cannot_outgrow_its_bound() {
    let mut header = two_objects().remove(0).header;
    header.kind = Kind::Block;
    let object = encode_object(header, &vec![0; MAX_SEALED_BYTES]);
    let mut builder = SegmentBuilder::new(FAMILY, ID);
    for _ in 0..17 {
        builder.push(&object);
    }
}
