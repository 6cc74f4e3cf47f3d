//! Checkpoints: the plain section and the children are read together, and must fit each other.

mod strategies;

use firn_format::*;
use proptest::{prelude::*, strategy::ValueTree};
use strategies::*;

proptest! {
    #[test]
    fn a_checkpoint_is_read_as_it_was_written(checkpoint in checkpoint()) {
        let object = checkpoint_object(&checkpoint);
        let verified = decode_object(object.bytes.clone()).unwrap().verify(&object.uid, Some(checkpoint.place())).unwrap();
        prop_assert_eq!(Checkpoint::from_verified(&verified).unwrap(), checkpoint);
    }

    #[test]
    fn moving_the_trees_keeps_the_uid(checkpoint in checkpoint(), to in location()) {
        let object = checkpoint_object(&checkpoint);
        let moved = relocate_children(&object, |_| to);
        prop_assert_eq!(moved.uid, object.uid);
        let verified = decode_object(moved.bytes).unwrap().verify(&object.uid, None).unwrap();
        let read = Checkpoint::from_verified(&verified).unwrap();
        prop_assert_eq!(read.inode_map.map(|root| root.pointer.location), checkpoint.inode_map.map(|_| to));
        prop_assert_eq!(read.snapshots.len(), checkpoint.snapshots.len());
    }

    #[test]
    fn any_plain_section_is_decoded_or_refused(
        (plain, children) in checkpoint().prop_flat_map(|checkpoint| {
            let (plain, children) = checkpoint.to_plain_and_children();
            (damaged(plain), Just(children))
        }),
    ) {
        if let Ok(checkpoint) = Checkpoint::from_plain_and_children(&plain, &children) {
            let (again, children_again) = checkpoint.to_plain_and_children();
            prop_assert_eq!(children_again, children);
            // Optional feature flags are the only thing a reader may drop.
            prop_assert_eq!((&again[..3], &again[4..]), (&plain[..3], &plain[4..]));
        }
    }

    #[test]
    fn a_root_without_its_level_or_a_level_without_its_root_is_refused(
        checkpoint in checkpoint(), which: prop::sample::Index, stray in pointer(),
    ) {
        let (plain, mut children) = checkpoint.to_plain_and_children();
        let unused = (0..).find(|slot| children.iter().all(|child| child.slot != *slot)).unwrap();
        let mut more = children.clone();
        more.insert(usize::from(unused), Child { slot: unused, pointer: stray });
        prop_assert!(Checkpoint::from_plain_and_children(&plain, &more).is_err());
        if !children.is_empty() {
            children.remove(which.index(children.len()));
            prop_assert!(Checkpoint::from_plain_and_children(&plain, &children).is_err());
        }
    }
}

#[test]
fn an_object_of_another_kind_or_version_is_no_checkpoint() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let checkpoint = checkpoint().new_tree(&mut runner).unwrap().current();
    let object = checkpoint_object(&checkpoint);
    let read = |header: ObjectHeader| {
        let object = encode_object(header, &[0; 16]);
        let verified = decode_object(object.bytes)
            .unwrap()
            .verify(&object.uid, None)
            .unwrap();
        Checkpoint::from_verified(&verified)
    };
    assert!(read(object.header.clone()).is_ok());

    let mut block = object.header.clone();
    block.kind = Kind::Block;
    assert!(matches!(
        read(block),
        Err(FormatError::Invalid { field: "kind", .. })
    ));

    let mut elsewhere = object.header.clone();
    elsewhere.place.index ^= 1;
    assert!(matches!(read(elsewhere), Err(FormatError::WrongPlace { .. })));
}

#[test]
fn as_many_snapshots_as_promised_fit() {
    let root = TreeRoot {
        pointer: Pointer {
            uid: Uid([1; 32]),
            location: Location::UNKNOWN,
        },
        level: 3,
    };
    let snapshot = |id| SnapshotRoot {
        id,
        version: Version(id),
        created_ms: 0,
        protected_until_ms: 0,
        inode_map: root,
        orphans: Some(root),
    };
    let checkpoint = Checkpoint {
        family: FamilyId([1; 16]),
        volume: VolumeId([2; 16]),
        version: Version(9),
        epoch: OwnershipEpoch(1),
        writer: WriterId(1),
        previous: None,
        fork: None,
        inode_map: Some(root),
        orphans: Some(root),
        usage: Some(root),
        snapshots: (0..MAX_SNAPSHOTS as u64).map(snapshot).collect(),
        cleaner_sequence: 0,
        committed_at_ms: 0,
        manifest: Some(ManifestPart {
            root: Some(root),
            ..ManifestPart::default()
        }),
    };
    let object = checkpoint_object(&checkpoint);
    let verified = decode_object(object.bytes)
        .unwrap()
        .verify(&object.uid, None)
        .unwrap();
    assert_eq!(Checkpoint::from_verified(&verified).unwrap(), checkpoint);
}
