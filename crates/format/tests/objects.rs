//! Objects: what is written is read, what was altered is refused, and moving children changes nothing that is hashed.

mod strategies;

use bytes::Bytes;
use firn_format::*;
use proptest::prelude::*;
use strategies::*;

fn decode(object: &EncodedObject) -> FetchedObject {
    decode_object(object.bytes.clone()).expect("what was encoded decodes")
}

proptest! {
    #[test]
    fn an_object_is_read_as_it_was_written(header in header(), sealed in prop::collection::vec(any::<u8>(), 0..300)) {
        let object = encode_object(header.clone(), &sealed);
        prop_assert_eq!(object.bytes.len(), header.encoded_bytes(sealed.len()));
        let verified = decode(&object).verify(&object.uid, Some(header.place)).unwrap();
        prop_assert_eq!(&verified.header, &header);
        prop_assert_eq!(&verified.sealed_payload[..], &sealed[..]);
        prop_assert_eq!(verified.uid(), object.uid);
        prop_assert_eq!(verified.into_encoded(), object);
    }

    #[test]
    fn the_seal_authenticates_the_same_bytes_on_both_sides(header in header()) {
        let object = encode_object(header.clone(), &[1; 40]);
        let verified = decode(&object).verify(&object.uid, None).unwrap();
        // All but the length of the payload, which the seal itself knows.
        prop_assert_eq!(verified.authenticated(), &authenticated_bytes(&header)[..]);
        let mut draft = ObjectDraft::new(header, 3);
        prop_assert_eq!(draft.parts().0, verified.authenticated());
    }

    #[test]
    fn every_flipped_bit_is_noticed(object in object(), bit: prop::sample::Index) {
        let damaged = flipped(&object.bytes, bit.index(object.bytes.len() * 8));
        let outcome = decode_object(damaged).and_then(|fetched| fetched.verify(&object.uid, None));
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn every_cut_is_noticed(object in object()) {
        for length in 0..object.bytes.len() {
            prop_assert!(decode_object(object.bytes.slice(..length)).is_err());
        }
        let longer = [&object.bytes[..], &[0]].concat();
        let lengthened = matches!(decode_object(longer.into()), Err(FormatError::Trailing { .. }));
        prop_assert!(lengthened);
    }

    #[test]
    fn any_bytes_at_all_are_decoded_or_refused(bytes in object().prop_flat_map(|object| damaged(object.bytes))) {
        if let Ok(fetched) = decode_object(bytes.clone()) {
            // What is accepted means one thing only: it encodes to the same bytes.
            let uid = fetched.uid();
            let header = fetched.unverified_header().clone();
            let verified = fetched.verify(&uid, None).unwrap();
            prop_assert_eq!(encode_object(header, &verified.sealed_payload).bytes, bytes);
        }
    }

    #[test]
    fn moving_children_changes_their_locations_and_nothing_else(object in object(), to in location()) {
        let moved = relocate_children(&object, |child| Location { offset: u32::from(child.slot), ..to });
        prop_assert_eq!(moved.uid, object.uid);
        let verified = decode(&moved).verify(&object.uid, Some(object.header.place)).unwrap();
        let before = decode(&object).verify(&object.uid, None).unwrap();
        prop_assert_eq!(&verified.sealed_payload, &before.sealed_payload);
        prop_assert_eq!(verified.authenticated(), before.authenticated());
        prop_assert_eq!(&verified.header, &moved.header);
        for (child, old) in verified.header.children.iter().zip(&object.header.children) {
            prop_assert_eq!(child.slot, old.slot);
            prop_assert_eq!(child.pointer.uid, old.pointer.uid);
            prop_assert_eq!(child.pointer.location, Location { offset: u32::from(child.slot), ..to });
        }
    }

    #[test]
    fn the_uid_depends_on_everything_but_the_locations(object in object(), other in object()) {
        let hashed = |object: &EncodedObject| {
            let mut header = object.header.clone();
            for child in &mut header.children {
                child.pointer.location = Location::UNKNOWN;
            }
            let sealed = decode(object).verify(&object.uid, None).unwrap().sealed_payload;
            (header, sealed)
        };
        prop_assert_eq!(object.uid == other.uid, hashed(&object) == hashed(&other));
    }
}

fn example() -> EncodedObject {
    encode_object(
        ObjectHeader {
            kind: Kind::Block,
            features: Features::NONE,
            place: Place {
                inode: 42,
                level: 0,
                index: 7,
            },
            birth: Version(3),
            seal: SealHeader {
                key_epoch: KeyEpoch(1),
                salt: [9; 32],
                slot: 2,
                codec: Codec::Raw,
                opened_bytes: 4,
            },
            plain: Bytes::new(),
            children: Vec::new(),
        },
        &[0xcc; 20],
    )
}

#[test]
fn a_corrupt_object_names_the_file_it_belongs_to() {
    let object = example();
    let damaged = flipped(&object.bytes, 8 * (object.bytes.len() - 10));
    let place = object.header.place;
    let error = decode_object(damaged)
        .unwrap()
        .verify(&object.uid, Some(place))
        .unwrap_err();
    assert!(matches!(error, FormatError::WrongUid { place: at, .. } if at == place));
    assert!(error.to_string().contains("inode 42, block 7"), "{error}");
}

#[test]
fn the_right_object_at_a_wrong_place_is_refused() {
    let object = example();
    let elsewhere = Place {
        index: 8,
        ..object.header.place
    };
    assert_eq!(
        decode(&object).verify(&object.uid, Some(elsewhere)).unwrap_err(),
        FormatError::WrongPlace {
            uid: object.uid,
            expected: elsewhere,
            found: object.header.place
        }
    );
}

/// The example with the byte at `offset` set to `value`.
fn with_byte(offset: usize, value: u8) -> FormatError {
    let mut bytes = example().bytes.to_vec();
    bytes[offset] = value;
    decode_object(bytes.into()).unwrap_err()
}

#[test]
fn a_newer_version_is_refused_with_what_to_do() {
    let error = with_byte(8, 2);
    assert_eq!(
        error,
        FormatError::UnknownVersion {
            what: What::Object,
            found: 2,
            oldest: 1,
            newest: 1
        }
    );
    assert_eq!(
        error.to_string(),
        "object has format version 2; this build reads 1 to 1: use a build of firn that reads version 2"
    );
}

#[test]
fn an_unknown_required_feature_is_refused_and_an_optional_one_is_kept() {
    assert_eq!(
        with_byte(10, 0b100),
        FormatError::UnknownFeatures {
            what: What::Object,
            flags: 0b100
        }
    );
    let mut bytes = example().bytes.to_vec();
    bytes[11] = 0b1;
    let fetched = decode_object(bytes.into()).unwrap();
    assert_eq!(fetched.unverified_header().features, Features(0x100));
}

#[test]
fn each_field_that_can_be_wrong_is_checked() {
    let field_of = |error| match error {
        FormatError::Invalid { field, offset, .. } => (field, offset),
        other => panic!("{other} is not about a field"),
    };
    assert_eq!(field_of(with_byte(7, 1)), ("sealed_bytes", 4));
    assert_eq!(field_of(with_byte(9, 0)), ("kind", 9));
    assert_eq!(field_of(with_byte(9, 5)), ("kind", 9));
    assert_eq!(
        field_of(with_byte(9, Kind::Node as u8)),
        ("level", 12),
        "a node at level 0"
    );
    assert_eq!(
        field_of(with_byte(12, 1)),
        ("level", 12),
        "a block above the leaves"
    );
    assert_eq!(field_of(with_byte(13, 3)), ("codec", 13));
    assert_eq!(field_of(with_byte(15, 0xff)), ("child_count", 14));
    assert_eq!(field_of(with_byte(51, 1)), ("opened_bytes", 48));
    assert_eq!(field_of(with_byte(55, 1)), ("plain_bytes", 52));
    assert!(matches!(with_byte(0, b'G'), FormatError::BadMagic { .. }));
    assert!(matches!(with_byte(14, 1), FormatError::Truncated { .. }));
}

#[test]
fn children_stand_in_order_and_within_a_node() {
    let child = |slot| Child {
        slot,
        pointer: Pointer {
            uid: Uid([1; 32]),
            location: Location::UNKNOWN,
        },
    };
    let mut header = example().header;
    header.kind = Kind::Node;
    header.place.level = 1;
    header.children = vec![child(3), child(127)];
    let object = encode_object(header, &[0; 16]);
    // The slots of the first and second child.
    for (offset, slot, accepted) in [
        (88, 2, true),
        (88, 127, false),
        (122, 3, false),
        (122, 128, false),
    ] {
        let mut bytes = object.bytes.to_vec();
        bytes[offset] = slot;
        assert_eq!(
            decode_object(bytes.into()).is_ok(),
            accepted,
            "slot {slot} at {offset}"
        );
    }
}

#[test]
#[should_panic(expected = "children out of order")]
fn the_engine_cannot_write_children_out_of_order() {
    let mut header = example().header;
    let child = Child {
        slot: 1,
        pointer: Pointer {
            uid: Uid([1; 32]),
            location: Location::UNKNOWN,
        },
    };
    header.children = vec![child, child];
    encode_object(header, &[]);
}

#[test]
fn a_type_says_that_an_object_was_verified() {
    let object = example();
    let verified = decode(&object).verify(&object.uid, None).unwrap();
    // Sealed payload and whole object are views of the fetched bytes, not copies.
    let whole = verified.encoded.as_ptr_range();
    assert!(whole.contains(&verified.sealed_payload.as_ptr()));
    assert_eq!(whole.start, object.bytes.as_ptr());
}
