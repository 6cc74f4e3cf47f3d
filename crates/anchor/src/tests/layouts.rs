//! The bytes of tuples: what was written once is read for ever, and what nobody wrote is refused.

use super::support::Dice;
use crate::{
    AnchorAnswer, AnchorCall, CleanerRound, Cover, FamilyTuple, HandoverRecord, Heartbeat, Owner, OwnerId,
    Proposal, RememberedRoot, RetainedRoot, RetiredSegment, RetirementRound, Root, TupleError, UsageChange,
    VolumeChange, VolumeTuple, Want, WriterTenure, WriterTuple,
};
use firn_env::Random;
use firn_format::{
    FamilyId, ListedSegment, Location, ManifestEntry, OwnershipEpoch, SegmentId, Uid, Version, VolumeId,
    WriterId,
};

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
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
        signature: None,
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
            member: None,
        }],
        change_id: [0x66; 16],
        commits: 12,
        by_inode: false,
    }
}

/// A volume's tuple as version 1 had it, without the first byte.
const VOLUME: &str = concat!(
    "5603",
    "0800000000000000",
    "0700000000000000",
    "44444444444444444444444444444444",
    "55555555555555555555555555555555",
    "0900000000000000",
    "66666666666666666666666666666666",
    "0562c3bc726f",
    "44444444444444444444444444444444",
    "0165",
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
    "ffffffffffffffff",
    "0100",
    "0700000000000000",
    "0600000000000000",
    "0a00000000000000",
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
    "ffffffffffffffff",
);

#[test]
fn the_layouts_are_these_bytes_and_those_of_version_one_are_read() {
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
    let version_one = ["01", VOLUME].concat();
    let read = VolumeTuple::from_bytes(&data_encoding::HEXLOWER.decode(version_one.as_bytes()).unwrap());
    assert_eq!(
        read,
        Ok(VolumeTuple {
            commits: 0,
            ..volume()
        })
    );
    let expected = ["02", VOLUME, "0c00000000000000"].concat();
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
fn a_signed_root_makes_version_three_and_stands_behind_a_mark() {
    let signed = Root {
        signature: Some([0x88; 64]),
        ..root()
    };
    let tuple = VolumeTuple {
        root: Some(signed.clone()),
        ..volume()
    };
    // The bytes of version 2 with a mark behind each of the two roots.
    let root_digits = 2 * root().to_bytes().len();
    let first = VOLUME.find("1111").expect("the first root") + root_digits;
    let (mark, signature) = ("01", "88".repeat(64));
    let expected = [
        "03",
        &VOLUME[..first],
        mark,
        &signature,
        &VOLUME[first..],
        "00",
        "0c00000000000000",
    ]
    .concat();
    assert_eq!(hex(&tuple.to_bytes()), expected);
    assert_eq!(VolumeTuple::from_bytes(&tuple.to_bytes()), Ok(tuple));
    assert_eq!(Root::from_bytes(&signed.to_bytes()), Ok(signed.clone()));
    assert_eq!(
        signed.to_bytes().len(),
        root().to_bytes().len() + 64,
        "a lone root has its signature behind it"
    );
    let message = signed.signed_message(&FamilyId([0x99; 16]), &VolumeId([0x77; 16]), &[0x55; 16]);
    let expected = [
        hex(b"firn 1 root signature"),
        "99".repeat(16),
        "77".repeat(16),
        "55".repeat(16),
        hex(&root().to_bytes()),
    ]
    .concat();
    assert_eq!(hex(&message), expected);

    let without = ["03", VOLUME, "00", "0c00000000000000"].concat();
    let without = without.replacen("ffffffffffffffff", "ffffffffffffffff00", 1);
    let refused = VolumeTuple::from_bytes(&data_encoding::HEXLOWER.decode(without.as_bytes()).unwrap());
    assert!(refused.is_err(), "version 3 is that of signed roots: {refused:?}");
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
        for root in tuple
            .root
            .iter_mut()
            .chain(tuple.retained.iter_mut().map(|retained| &mut retained.root))
        {
            root.signature = Some([7; 64]);
        }
        assert_eq!(VolumeTuple::from_bytes(&tuple.to_bytes()), Ok(tuple.clone()));
    }
}

#[test]
fn a_tuple_of_a_newer_build_and_unknown_flags_are_refused_by_name() {
    let mut bytes = volume().to_bytes().to_vec();
    bytes[0] = 5;
    assert_eq!(
        VolumeTuple::from_bytes(&bytes),
        Err(TupleError::UnknownVersion { found: 5 })
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
    let mut signed = volume();
    signed.root = signed.root.map(|root| Root {
        signature: Some([0x88; 64]),
        ..root
    });
    let wholes = [volume().to_bytes(), signed.to_bytes()];
    for round in 0..40_000 {
        let whole = &wholes[round % 2];
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

#[test]
fn the_layouts_of_what_cleaners_and_engines_share_are_these_bytes() {
    let writer = WriterTuple {
        tenure: WriterTenure::Owner {
            volume: VolumeId([1; 16]),
            epoch: OwnershipEpoch(2),
        },
        ended: true,
        drawn_at_ms: 3,
        change_id: [4; 16],
    };
    let expected = [
        "015701",
        "01",
        "01010101010101010101010101010101",
        "0200000000000000",
        "0300000000000000",
        "04040404040404040404040404040404",
    ]
    .concat();
    assert_eq!(hex(&writer.to_bytes()), expected);
    assert_eq!(WriterTuple::from_bytes(&writer.to_bytes()), Ok(writer));

    let proposal = proposal();
    let expected = [
        "025000",
        "0500000000000000",
        "0400000000000000",
        "0600000000000000",
        "1111111111111111111111111111111111111111111111111111111111111111",
        "0200000000000000",
        "0300000000000000",
        "04000000",
        "05000000",
        "0700000000000000",
        "0800000000000000",
        "09090909090909090909090909090909",
        "0200",
        "0a00000000000000",
        "0b00000000000000",
        "0c00000000000000",
        "00",
        "0d00000000000000",
        "0e00000000000000",
        "f1ffffffffffffff",
        "01",
    ]
    .concat();
    assert_eq!(hex(&proposal.to_bytes()), expected);
    assert_eq!(Proposal::from_bytes(&proposal.to_bytes()), Ok(proposal.clone()));
    // The layout before it had no figures.
    let before = Proposal {
        usage: Vec::new(),
        ..proposal.clone()
    };
    let mut old = proposal.to_bytes()[..before.to_bytes().len() - 2].to_vec();
    old[0] = 1;
    assert_eq!(Proposal::from_bytes(&old), Ok(before));

    let round = CleanerRound {
        round: 1,
        change_id: [2; 16],
        is_held: false,
    };
    let expected = ["014300", "0100000000000000", "02020202020202020202020202020202"].concat();
    assert_eq!(hex(&round.to_bytes()), expected);
    assert_eq!(CleanerRound::from_bytes(&round.to_bytes()), Ok(round));

    let retired = retired();
    let expected = [
        "015201",
        "0100000000000000",
        "0200000000000000",
        "0300000000000000",
        "04000000",
        "0200",
        "05050505050505050505050505050505",
        "0600000000000000",
        "01",
        "0700000000000000",
        "08080808080808080808080808080808",
        "0900000000000000",
        "00",
        "0000000000000000",
    ]
    .concat();
    assert_eq!(hex(&retired.to_bytes()), expected);
    assert_eq!(RetiredSegment::from_bytes(&retired.to_bytes()), Ok(retired));
}

fn proposal() -> Proposal {
    Proposal {
        sequence: 5,
        chained_from: 4,
        base_version: Version(6),
        base_uid: Uid([0x11; 32]),
        location: root().location,
        mover: WriterId(7),
        proposed_at_ms: 8,
        change_id: [9; 16],
        usage: vec![
            UsageChange {
                segment: SegmentId {
                    writer: WriterId(10),
                    sequence: 11,
                },
                bytes: 12,
                is_retired: false,
            },
            UsageChange {
                segment: SegmentId {
                    writer: WriterId(13),
                    sequence: 14,
                },
                bytes: -15,
                is_retired: true,
            },
        ],
    }
}

fn retired() -> RetiredSegment {
    RetiredSegment {
        mover: WriterId(1),
        retired_at_ms: 2,
        segment_bytes: 3,
        moved_objects: 4,
        keep_for_ever: true,
        covers: vec![
            Cover {
                volume: VolumeId([5; 16]),
                proposal: 6,
                clean_from: Some(Version(7)),
            },
            Cover {
                volume: VolumeId([8; 16]),
                proposal: 9,
                clean_from: None,
            },
        ],
    }
}

fn round() -> RetirementRound {
    let segment = |sequence| SegmentId {
        writer: WriterId(7),
        sequence,
    };
    RetirementRound {
        retired_at_ms: 2,
        retired: vec![segment(3), segment(1)],
        written: vec![ListedSegment {
            segment: segment(9),
            entry: ManifestEntry {
                length: 0x0001_0203,
                segment_hash: [0xaa; 32],
                index_hash: [0xbb; 32],
                birth: Version(0),
            },
        }],
    }
}

#[test]
fn a_round_of_retirement_is_these_bytes() {
    let expected = [
        "014e00",
        "0200000000000000",
        "0200",
        "07000000000000000300000000000000",
        "07000000000000000100000000000000",
        "0100",
        "07000000000000000900000000000000",
        "03020100",
        &"aa".repeat(32),
        &"bb".repeat(32),
        "0000000000000000",
    ]
    .concat();
    assert_eq!(hex(&round().to_bytes()), expected);
    assert_eq!(RetirementRound::from_bytes(&round().to_bytes()), Ok(round()));
    let mut talkative = round().to_bytes().to_vec();
    talkative[11..13].copy_from_slice(&2000u16.to_le_bytes());
    talkative.resize(13 + 2000 * 16 + 2, 0);
    assert!(
        RetirementRound::from_bytes(&talkative).is_err(),
        "more segments than a round tells of"
    );
}

/// Every cut and every flag byte of a tuple is refused with an error, never a panic.
#[test]
fn shared_tuples_that_are_cut_or_flagged_are_refused() {
    fn check<T: std::fmt::Debug>(bytes: &[u8], read: impl Fn(&[u8]) -> Result<T, TupleError>) {
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut flagged = bytes.to_vec();
        flagged[2] = 0x80;
        assert_eq!(
            read(&flagged).unwrap_err(),
            TupleError::UnknownFlags { found: 0x80 }
        );
        let longer = [bytes, &[0]].concat();
        assert!(read(&longer).is_err());
    }
    check(&proposal().to_bytes(), Proposal::from_bytes);
    check(&retired().to_bytes(), RetiredSegment::from_bytes);
    check(&round().to_bytes(), RetirementRound::from_bytes);
    check(&CleanerRound::default().to_bytes(), CleanerRound::from_bytes);
    let mut backwards = proposal();
    backwards.chained_from = 6;
    assert!(Proposal::from_bytes(&backwards.to_bytes()).is_err());
    let mut talkative = proposal().to_bytes().to_vec();
    let count = talkative.len() - 2 * 25 - 2;
    talkative[count..count + 2].copy_from_slice(&2000u16.to_le_bytes());
    talkative.resize(count + 2 + 2000 * 25, 0);
    assert!(
        Proposal::from_bytes(&talkative).is_err(),
        "more segments than a proposal tells of"
    );
}

#[test]
fn a_handover_record_is_these_bytes() {
    let want = |member, name: &str| Want {
        member: OwnerId([member; 16]),
        name: name.into(),
        wanted_at_ms: 9,
    };
    let record = HandoverRecord {
        heartbeat: Some(Heartbeat {
            owner: OwnerId([0x44; 16]),
            epoch: OwnershipEpoch(8),
            beats: 3,
        }),
        wants: vec![want(0x55, "b"), want(0x66, "büro")],
        locks: Vec::new(),
        change_id: [0x77; 16],
    };
    let bytes = record.to_bytes();
    let expected = concat!(
        "014801",
        "77777777777777777777777777777777",
        "44444444444444444444444444444444",
        "08000000000000000300000000000000",
        "02",
        "55555555555555555555555555555555",
        "09000000000000000162",
        "66666666666666666666666666666666",
        "09000000000000000562c3bc726f",
    );
    assert_eq!(hex(&bytes), expected);
    assert_eq!(HandoverRecord::from_bytes(&bytes).unwrap(), record);
    let nothing = HandoverRecord::default();
    assert_eq!(HandoverRecord::from_bytes(&nothing.to_bytes()).unwrap(), nothing);
    let twice = HandoverRecord {
        wants: vec![want(1, "a"), want(1, "a")],
        ..HandoverRecord::default()
    };
    assert!(HandoverRecord::from_bytes(&twice.to_bytes()).is_err());
    let mut crowded = nothing.to_bytes().to_vec();
    *crowded.last_mut().unwrap() = 17;
    assert!(HandoverRecord::from_bytes(&crowded).is_err());
    for length in 0..bytes.len() {
        assert!(HandoverRecord::from_bytes(&bytes[..length]).is_err());
    }
}

#[test]
fn a_commit_is_this_text_and_nothing_else_is_read_as_one() {
    let call = AnchorCall::ChangeVolume {
        volume: VolumeId([0x77; 16]),
        seen: firn_table::ItemVersion(u64::MAX),
        change: VolumeChange::Commit {
            grant: [0x55; 16],
            root: root(),
        },
    };
    let text = serde_json::to_string(&call).unwrap();
    let expected = concat!(
        r#"{"change_volume":{"volume":"vol_77777777777777777777777777777777","seen":"18446744073709551615","#,
        r#""change":{"commit":{"grant":"55555555555555555555555555555555","root":"EREREREREREREREREREREREREREREREREREREREREREC"#,
        "AAAAAAAAAAMAAAAAAAAABAAAAAUAAAAGAAAAAAAAAAcAAAAAAAAAIiIiIiIiIiIiIiIiIiIiIgRlZGdlMzMzMzMzMzMzMzMzMzMzM///////////",
        r#""}}}}"#
    );
    assert_eq!(text, expected);
    println!("a commit of an edge named \"edge\": {} bytes", text.len());
    assert_eq!(serde_json::from_str::<AnchorCall>(&text).unwrap(), call);
    for (whole, changed) in [
        ("\"seen\"", "\"more\":1,\"seen\""),
        ("\"18446744073709551615\"", "\"18446744073709551616\""),
        ("\"18446744073709551615\"", "\"+1\""),
        ("\"18446744073709551615\"", "1"),
        ("vol_7777", "vol_777"),
        ("vol_", "dsk_"),
        ("EREREREREREREREREREREREREREREREREREREREREREC", "EREC"),
        ("//////////\"", "//////////AA\""),
        ("//////////\"", "//////////==\""),
        ("commit", "push"),
    ] {
        let text = text.replacen(whole, changed, 1);
        assert!(serde_json::from_str::<AnchorCall>(&text).is_err(), "{text}");
    }
    let answer = serde_json::to_string(&AnchorAnswer::Changed {
        version: Some(firn_table::ItemVersion(u64::MAX)),
    });
    assert_eq!(
        answer.unwrap(),
        r#"{"changed":{"version":"18446744073709551615"}}"#
    );
}
