//! The manifest: leaves, the checkpoint's part of it, and what an entry says of a segment.

mod strategies;

use firn_format::*;
use proptest::{collection::vec, prelude::*};
use strategies::*;

fn leaf_of(entries: impl IntoIterator<Item = (usize, ManifestEntry)>) -> ManifestLeaf {
    let mut leaf = ManifestLeaf::default();
    for (slot, entry) in entries {
        leaf.insert(slot, entry);
    }
    leaf
}

fn leaf() -> impl Strategy<Value = ManifestLeaf> {
    vec((0..USAGE_SEGMENTS, manifest_entry()), 0..60).prop_map(leaf_of)
}

proptest! {
    #[test]
    fn a_leaf_is_read_as_it_was_written(leaf in leaf(), extra: u8) {
        let plain = leaf.to_plain();
        prop_assert_eq!(plain.len(), 20 + 76 * leaf.entries().len());
        prop_assert_eq!(ManifestLeaf::from_plain(&plain), Ok(leaf));
        prop_assert!(ManifestLeaf::from_plain(&plain[..plain.len() - 1]).is_err());
        prop_assert!(ManifestLeaf::from_plain(&[&plain[..], &[extra]].concat()).is_err());
    }

    #[test]
    fn a_leaf_is_a_map_of_its_slots(changes in vec((0..USAGE_SEGMENTS, proptest::option::of(manifest_entry())), 0..200)) {
        let (mut leaf, mut model) = (ManifestLeaf::default(), std::collections::BTreeMap::new());
        for (slot, change) in changes {
            match change {
                Some(entry) => {
                    leaf.insert(slot, entry);
                    model.insert(slot as u8, entry);
                }
                None => prop_assert_eq!(leaf.remove(slot), model.remove(&(slot as u8)).is_some()),
            }
        }
        prop_assert_eq!(leaf.entries(), &model.into_iter().collect::<Vec<_>>()[..]);
    }

    #[test]
    fn any_bytes_are_one_leaf_or_none(plain in leaf().prop_flat_map(|leaf| damaged(leaf.to_plain()))) {
        if let Ok(leaf) = ManifestLeaf::from_plain(&plain) {
            // Optional feature flags are the only thing a reader may drop.
            let again = leaf.to_plain();
            prop_assert_eq!((&again[..3], &again[4..]), (&plain[..3], &plain[4..]));
        }
    }

    #[test]
    fn a_listed_segment_is_read_as_it_was_written(segment in segment_id(), entry in manifest_entry()) {
        let listed = ListedSegment { segment, entry };
        let bytes = listed.to_bytes();
        prop_assert_eq!(bytes.len(), 92);
        prop_assert_eq!(ListedSegment::from_bytes(&bytes), Ok(listed));
        prop_assert!(ListedSegment::from_bytes(&bytes[1..]).is_err());
    }

    #[test]
    fn a_leaf_is_recognised_by_its_place(object in object()) {
        let verified = decode_object(object.bytes.clone()).unwrap().verify(&object.uid, None).unwrap();
        let is_leaf = object.header.kind == Kind::Block && object.header.place.inode == MANIFEST;
        prop_assert!(is_leaf || ManifestLeaf::from_verified(&verified).is_err());
    }

    #[test]
    fn without_its_bit_a_checkpoint_has_no_manifest_and_with_an_unknown_one_it_is_refused(
        checkpoint in checkpoint(), bit in 2_u32..8,
    ) {
        let (plain, children) = checkpoint.to_plain_and_children();
        let bits = checkpoint.manifest.as_ref().map_or(0, |part| 1 + 2 * u8::from(part.gathering.is_some()));
        prop_assert_eq!(plain[2], bits);
        let mut turned = plain.to_vec();
        turned[2] ^= 1;
        prop_assert!(Checkpoint::from_plain_and_children(&turned, &children).is_err());
        let mut alone = plain.to_vec();
        alone[2] = 2;
        prop_assert!(Checkpoint::from_plain_and_children(&alone, &children).is_err());
        // What a build of before says of a checkpoint with a manifest, this one says of the next bit.
        let mut unknown = plain.to_vec();
        unknown[2] |= 1 << bit;
        let refused = Checkpoint::from_plain_and_children(&unknown, &children).unwrap_err();
        prop_assert_eq!(refused, FormatError::UnknownFeatures { what: What::Checkpoint, flags: 1 << bit });
    }
}

#[test]
fn an_entry_is_of_all_bytes_of_a_segment_and_of_those_that_a_reader_of_its_index_asks_for() {
    let id = SegmentId {
        writer: WriterId(7),
        sequence: 3,
    };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut builder = SegmentBuilder::new(FamilyId([1; 16]), id);
    for _ in 0..5 {
        let object = proptest::strategy::ValueTree::current(&object().new_tree(&mut runner).unwrap());
        builder.push(&object);
    }
    let parts = builder.finish();
    let entry = ManifestEntry::of_parts(&parts, Version(9));
    let whole = parts.concat();
    let footer = decode_footer(&whole[whole.len() - FOOTER_BYTES..]).unwrap();
    assert_eq!(entry.length as usize, whole.len());
    assert_eq!(entry.segment_hash, *blake3::hash(&whole).as_bytes());
    let index = &whole[footer.index_offset as usize..];
    assert_eq!(entry.index_hash, *blake3::hash(index).as_bytes());
    assert_eq!(
        ManifestEntry::of_bytes(&whole.clone().into(), Version(9)),
        Some(entry)
    );
    assert_eq!(
        ManifestEntry::of_bytes(&whole[..50].to_vec().into(), Version(9)),
        None
    );
    assert!(entry.is_read() && !ManifestEntry::unread(Version(9)).is_read());
}

#[test]
fn entries_that_contradict_themselves_are_refused() {
    let read = ManifestEntry {
        length: 9,
        segment_hash: [1; 32],
        index_hash: [2; 32],
        birth: Version(1),
    };
    let refused = |entry: ManifestEntry| ManifestLeaf::from_plain(&leaf_of([(5, entry)]).to_plain()).is_err();
    assert!(!refused(read));
    assert!(refused(ManifestEntry { length: 0, ..read }));
    assert!(refused(ManifestEntry {
        length: MAX_SEGMENT_BYTES as u32 + 1,
        ..read
    }));
}

#[test]
fn what_is_listed_stands_in_order_and_is_bounded() {
    let listed = |sequence| ListedSegment {
        segment: SegmentId {
            writer: WriterId(1),
            sequence,
        },
        entry: ManifestEntry::unread(Version(sequence)),
    };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut checkpoint = proptest::strategy::ValueTree::current(&checkpoint().new_tree(&mut runner).unwrap());
    checkpoint.manifest = Some(ManifestPart {
        root: None,
        newest_round: 3,
        listed: vec![listed(4), listed(5)],
        gathering: None,
    });
    let (plain, children) = checkpoint.to_plain_and_children();
    let read = |plain: &[u8]| Checkpoint::from_plain_and_children(plain, &children);
    assert_eq!(read(&plain), Ok(checkpoint));
    let (before, behind) = plain.split_at(plain.len() - 2 * 92);
    let (first, second) = behind.split_at(92);
    assert!(read(&[before, second, first].concat()).is_err(), "out of order");
    assert!(read(&[before, first, first].concat()).is_err(), "twice");
    let mut boasting = plain.to_vec();
    boasting[before.len() - 15] = 17;
    assert!(matches!(
        read(&boasting),
        Err(FormatError::Invalid {
            field: "listed_count",
            ..
        })
    ));
}

#[test]
fn a_manifest_that_does_not_have_all_is_refused_by_who_does_not_know_that_there_are_such() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut checkpoint = proptest::strategy::ValueTree::current(&checkpoint().new_tree(&mut runner).unwrap());
    checkpoint.manifest = Some(ManifestPart {
        gathering: Some(Gathering::default()),
        ..ManifestPart::default()
    });
    let (plain, children) = checkpoint.to_plain_and_children();
    assert_eq!(plain[2..4], [3, 0], "both are required");
    let read = |plain: &[u8]| Checkpoint::from_plain_and_children(plain, &children);
    assert_eq!(read(&plain), Ok(checkpoint));
    let at = plain.len() - 96;
    let mut unknown = plain.to_vec();
    unknown[at] = 5;
    assert!(read(&unknown).is_err(), "no such stage");
    let mut unknown = plain.to_vec();
    unknown[at + 2] = 2;
    assert!(read(&unknown).is_err(), "neither told nor not");
    let mut unknown = plain.to_vec();
    unknown[at + 3] = 1;
    assert!(read(&unknown).is_err(), "reserved");
    let mut whole = plain.to_vec();
    whole[2] = 1;
    assert!(read(&whole).is_err(), "bytes behind a manifest that is whole");
}
