//! The bytes of tuples: what was written once is read for ever, and what nobody wrote is refused.

use super::support::Dice;
use crate::{FamilyTuple, Owner, OwnerId, RememberedRoot, RetainedRoot, Root, TupleError, VolumeTuple};
use firn_env::Random;
use firn_format::{Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn root() -> Root {
    Root {
        uid: Uid([0x11; 32]),
        location: Location {
            segment: SegmentId {
                writer: WriterId(2),
                sequence: 3,
            },
            offset: 4,
            length: 5,
        },
        version: Version(6),
        epoch: OwnershipEpoch(7),
        owner: OwnerId([0x22; 16]),
        owner_name: "edge".into(),
        commit_id: [0x33; 16],
        committed_at_ms: -1,
    }
}

fn volume() -> VolumeTuple {
    VolumeTuple {
        name: "büro".into(),
        root: Some(root()),
        epoch: OwnershipEpoch(8),
        tenure: OwnershipEpoch(7),
        tenure_owner: OwnerId([0x44; 16]),
        grant: [0x55; 16],
        owner: Some(Owner {
            id: OwnerId([0x44; 16]),
            name: "e".into(),
        }),
        taken_at_ms: 9,
        drained: false,
        retained: vec![RetainedRoot {
            fenced_epoch: OwnershipEpoch(7),
            tenure: OwnershipEpoch(6),
            retained_at_ms: 10,
            root: root(),
        }],
        change_id: [0x66; 16],
    }
}

const ROOT: &str = concat!(
    "1111111111111111111111111111111111111111111111111111111111111111",
    "0200000000000000",
    "0300000000000000",
    "04000000",
    "05000000",
    "0600000000000000",
    "0700000000000000",
    "22222222222222222222222222222222",
    "0465646765",
    "33333333333333333333333333333333",
    "ffffffffffffffff"
);

#[test]
fn the_layouts_of_version_one_are_these_bytes() {
    let family = FamilyTuple {
        next_writer: WriterId(1),
        created_at_ms: 2,
        change_id: [3; 16],
    };
    let expected = [
        "014600",
        "0100000000000000",
        "0200000000000000",
        "03030303030303030303030303030303",
    ]
    .concat();
    assert_eq!(hex(&family.to_bytes()), expected);
    let expected = [
        "015603",
        "0800000000000000",
        "0700000000000000",
        "44444444444444444444444444444444",
        "55555555555555555555555555555555",
        "0900000000000000",
        "66666666666666666666666666666666",
        "0562c3bc726f",
        "44444444444444444444444444444444",
        "0165",
        ROOT,
        "0100",
        "0700000000000000",
        "0600000000000000",
        "0a00000000000000",
        ROOT,
    ]
    .concat();
    assert_eq!(hex(&volume().to_bytes()), expected);
    let remembered = RememberedRoot::new(VolumeId([0x77; 16]), &volume());
    let expected = [
        "0101",
        "77777777777777777777777777777777",
        "0800000000000000",
        "0600000000000000",
        "0700000000000000",
        "1111111111111111111111111111111111111111111111111111111111111111",
        "ffffffffffffffff",
    ]
    .concat();
    assert_eq!(hex(&remembered.to_bytes()), expected);
}

#[test]
fn what_was_encoded_is_decoded_with_and_without_its_optional_parts() {
    let mut tuple = volume();
    for (with_owner, with_root, drained, with_retained) in [
        (true, true, false, true),
        (false, true, true, false),
        (true, false, false, false),
        (false, false, false, false),
    ] {
        tuple.owner = volume().owner.filter(|_| with_owner);
        tuple.root = Some(root()).filter(|_| with_root);
        tuple.drained = drained;
        tuple.retained.truncate(usize::from(with_retained));
        assert_eq!(VolumeTuple::from_bytes(&tuple.to_bytes()), Ok(tuple.clone()));
    }
}

#[test]
fn a_tuple_of_a_newer_build_and_unknown_flags_are_refused_by_name() {
    let mut bytes = volume().to_bytes().to_vec();
    bytes[0] = 2;
    assert_eq!(
        VolumeTuple::from_bytes(&bytes),
        Err(TupleError::UnknownVersion { found: 2 })
    );
    bytes[0] = 1;
    bytes[2] |= 0x80;
    assert_eq!(
        VolumeTuple::from_bytes(&bytes),
        Err(TupleError::UnknownFlags { found: 0x83 })
    );
    assert!(
        FamilyTuple::from_bytes(&volume().to_bytes()).is_err(),
        "a volume is no family"
    );
}

#[test]
fn a_tuple_cut_anywhere_or_with_bytes_behind_it_is_refused() {
    let whole = volume().to_bytes();
    for length in 0..whole.len() {
        assert!(
            VolumeTuple::from_bytes(&whole[..length]).is_err(),
            "{length} bytes were accepted"
        );
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(VolumeTuple::from_bytes(&longer).is_err());
}

#[test]
fn arbitrary_bytes_never_panic_a_decoder() {
    let dice = Dice::new(5);
    let whole = volume().to_bytes();
    for _ in 0..20_000 {
        let mut bytes = whole.to_vec();
        for _ in 0..=dice.roll(4) {
            let at = dice.roll(bytes.len() as u64) as usize;
            bytes[at] = dice.roll(256) as u8;
        }
        bytes.truncate(dice.roll(2 * bytes.len() as u64) as usize);
        if let Ok(tuple) = VolumeTuple::from_bytes(&bytes) {
            assert_eq!(tuple.to_bytes(), bytes, "one tuple has one spelling");
        }
        let mut noise = vec![0; dice.roll(80) as usize];
        dice.fill(&mut noise);
        let _ = FamilyTuple::from_bytes(&noise);
        let _ = RememberedRoot::from_bytes(&noise);
    }
}
