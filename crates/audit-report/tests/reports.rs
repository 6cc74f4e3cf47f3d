//! Reports as files: the golden vector, what is refused, and chains.
//!
//! After a deliberate change of the form (a new version, hence a new folder) write the vector anew with
//! `cargo test -p firn-audit-report --test reports -- --ignored`.

use firn_audit_report::*;
use firn_format::VolumeId;
use firn_seal::RootSigningKey;
use proptest::prelude::*;
use std::{fs, path::Path};

/// Of one store: written and read since the first build that signed.
const VECTOR: &str = "tests/vectors/v1/report.jsonl";
/// Of two stores.
const VECTOR_OF_TWO: &str = "tests/vectors/v2/report.jsonl";

fn key(seed: u8) -> RootSigningKey {
    RootSigningKey::from_seed([seed; 32])
}

fn new(outcome: Outcome) -> NewReport {
    NewReport {
        volume: AuditedVolume {
            family: [0xf0; 16],
            id: VolumeId([0x70; 16]),
        },
        signer: Signer {
            owner: [5; 16],
            epoch: 3,
            grant: [4; 16],
            key: key(7).public().to_bytes(),
            program: "firn-edge 0.1.0".into(),
        },
        asked_by: AskedBy::Calendar,
        began_at_ms: 1_764_000_000_000,
        ended_at_ms: 1_764_000_060_000,
        outcome,
        detail: None,
        audited: Some(Audited {
            root: AuditedRoot {
                version: 8,
                hash: [9; 32],
                committed_at_ms: 1_763_999_000_000,
            },
            retained_roots: 2,
            walked_roots: 2,
            read_objects: 101,
            read_bytes: 37_000,
            data_objects: 281,
            data_bytes: 8_032_000,
            seed: [0x5e; 32],
            drawn: [0xd7; 32],
            asked: 688,
            intact: 687,
            damaged: 1,
            released: 0,
            damaged_nodes: 0,
            moved: 0,
            is_complete: true,
            lost_segments: vec!["0000000000000002/0000000000000003".into()],
            damages: vec![DamageNamed {
                inode: 17,
                detail: "lost".into(),
            }],
            detections: vec![DetectionTold {
                damaged_ppm: 10_000,
                found_ppm: 999_007,
            }],
            second: None,
        }),
        cost: Cost {
            prices: "s3-us-east-1".into(),
            nanodollars: 2_176_439,
            requests: 747,
            bytes_down: 21_400_000,
        },
    }
}

/// The same, of two stores.
fn of_two(outcome: Outcome) -> NewReport {
    let mut new = new(outcome);
    let audited = new.audited.as_mut().expect("what was audited");
    audited.second = Some(AuditedSecond {
        has_manifest: true,
        segments: 40,
        copies: 30,
        in_groups: 9,
        waiting: 0,
        groups: 1,
        bytes: 7_000_000,
        asked: 688,
        intact: 686,
        damaged: 2,
        released: 0,
        missing: 1,
        altered: 1,
        unreadable_groups: 0,
        is_complete: true,
        error: None,
        named: vec![SecondDamageNamed {
            key: "f0/log/2/3".into(),
            detail: "it is not as it was put".into(),
        }],
        detections: vec![DetectionTold {
            damaged_ppm: 10_000,
            found_ppm: 999_007,
        }],
    });
    new
}

fn signed(new: NewReport, before: Option<&SignedReport>) -> SignedReport {
    let report = new.following(before.map_or((0, None), SignedReport::link));
    SignedReport::sign(&report, |message| key(7).sign(message)).expect("the key that it names")
}

fn chain(length: usize) -> Vec<SignedReport> {
    let mut chain: Vec<SignedReport> = Vec::new();
    for number in 0..length {
        let mut next = new(Outcome::Intact);
        next.ended_at_ms += number as i64;
        chain.push(signed(next, chain.last()));
    }
    chain
}

fn broken(chain: &[SignedReport]) -> Vec<Break> {
    breaks(
        chain
            .iter()
            .map(|report| (report.report().sequence, Some(report))),
    )
}

#[test]
fn the_vector_is_what_is_written_and_is_read() {
    let first = signed(new(Outcome::Intact), None);
    let second = signed(new(Outcome::Damaged), Some(&first));
    let file = fs::read_to_string(VECTOR).expect("the vector");
    assert_eq!(second.text(), file, "what is written is another report");
    let read = SignedReport::open(file.as_bytes()).expect("a report");
    assert_eq!(read, second);
    assert_eq!(
        (read.report().sequence, read.report().previous),
        (2, Some(first.hash()))
    );
    assert_eq!(
        (read.report().answered(), read.report().found(10_000)),
        (688, 0.999_007)
    );
}

#[test]
fn a_report_of_two_stores_has_a_version_of_its_own_and_is_read() {
    let first = signed(new(Outcome::Intact), None);
    let second = signed(of_two(Outcome::Damaged), Some(&first));
    let file = fs::read_to_string(VECTOR_OF_TWO).expect("the vector");
    assert_eq!(second.text(), file, "what is written is another report");
    let read = SignedReport::open(file.as_bytes()).expect("a report");
    let of_second = read.report().second().expect("the second store");
    assert!(of_second.is_damaged());
    assert_eq!((of_second.answered(), of_second.found(10_000)), (688, 0.999_007));
    // One chain has both, and who reads version 1 alone says that it is too old: the first thing that is looked at.
    assert_eq!(broken(&[first.clone(), second]), []);
    assert!(
        first
            .text()
            .starts_with("{\"kind\":\"firn audit report\",\"version\":1,")
    );
    assert!(file.starts_with("{\"kind\":\"firn audit report\",\"version\":2,"));
    // Neither version under the other's number, whoever signs.
    for other in [
        file.replacen("\"version\":2", "\"version\":1", 1),
        first.text().replacen("\"version\":1", "\"version\":2", 1),
    ] {
        let opened = SignedReport::open(other.as_bytes());
        assert!(matches!(opened, Err(ReportError::Malformed(_))), "{opened:?}");
    }
}

#[test]
#[ignore = "writes the vectors"]
fn write_the_vectors() {
    let first = signed(new(Outcome::Intact), None);
    for (path, new) in [
        (VECTOR, new(Outcome::Damaged)),
        (VECTOR_OF_TWO, of_two(Outcome::Damaged)),
    ] {
        fs::create_dir_all(Path::new(path).parent().expect("a folder")).expect("made");
        fs::write(path, signed(new, Some(&first)).text()).expect("written");
    }
}

#[test]
fn whatever_is_altered_or_cut_is_no_report() {
    let report = signed(new(Outcome::Damaged), None);
    let text = report.text().as_bytes();
    for at in 0..text.len() {
        for bit in [0x01, 0x20] {
            let mut altered = text.to_vec();
            altered[at] ^= bit;
            assert!(SignedReport::open(&altered).is_err(), "byte {at} was altered");
        }
        assert!(SignedReport::open(&text[..at]).is_err(), "cut to {at} bytes");
    }
}

#[test]
fn a_report_has_one_spelling() {
    let report = signed(new(Outcome::Intact), None);
    let text = report.text();
    for other in [
        text.replacen("{\"kind\"", "{ \"kind\"", 1),
        text.replace("s3-us", "s3-\\u0075s"),
        text.replacen("\"version\":1,", "", 1),
        text.replacen("\"version\":1,", "\"version\":1,\"version\":1,", 1),
        text.replacen("\"sequence\":1", "\"sequence\":1.0", 1),
        text.replacen("\"asked_by\"", "\"more\":1,\"asked_by\"", 1),
        format!("{text}\n"),
    ] {
        assert!(
            matches!(
                SignedReport::open(other.as_bytes()),
                Err(ReportError::Malformed(_))
            ),
            "{other}"
        );
    }
    let newer = text.replacen("\"version\":1,", "\"version\":3,\"news\":[],", 1);
    assert_eq!(
        SignedReport::open(newer.as_bytes()),
        Err(ReportError::NewerVersion(3))
    );
    assert!(SignedReport::open(&vec![b' '; MAX_REPORT_BYTES + 1]).is_err());
}

#[test]
fn another_key_than_the_one_it_names_signs_no_report() {
    let report = new(Outcome::Intact).following((0, None));
    let forged = SignedReport::sign(&report, |message| key(8).sign(message));
    assert_eq!(forged, Err(ReportError::BadSignature));
    // The key signs without the label, as another kind of message.
    let forged = SignedReport::sign(&report, |message| {
        key(7).sign(message.strip_prefix(b"firn 1 audit report\n").expect("a label"))
    });
    assert_eq!(forged, Err(ReportError::BadSignature));
}

#[test]
fn a_report_that_is_missing_or_replaced_breaks_the_chain_where_it_was() {
    let whole = chain(6);
    assert_eq!(broken(&whole), []);
    assert_eq!(broken(&whole[2..]), [], "older ones were forgotten");
    let mut gap = whole.clone();
    gap.remove(3);
    assert_eq!(broken(&gap), [Break::Missing { first: 4, last: 4 }]);
    gap.remove(2);
    assert_eq!(broken(&gap), [Break::Missing { first: 3, last: 4 }]);
    // Signed again by somebody who has the key, with another outcome.
    let mut replaced = whole.clone();
    replaced[2] = signed(new(Outcome::Incomplete), Some(&whole[1]));
    assert_eq!(broken(&replaced), [Break::Replaced { sequence: 3 }]);
    // Of one that cannot be read nothing is known but that it is there.
    let unread = whole.iter().map(|report| {
        (
            report.report().sequence,
            Some(report).filter(|_| report != &whole[2]),
        )
    });
    assert_eq!(breaks(unread), []);
}

#[test]
fn a_report_of_an_ownership_that_had_ended_is_told() {
    let of_epoch = |epoch, before: Option<&SignedReport>| {
        let mut next = new(Outcome::Intact);
        next.signer.epoch = epoch;
        signed(next, before)
    };
    let first = of_epoch(4, None);
    let second = of_epoch(5, Some(&first));
    let late = of_epoch(4, Some(&second));
    let third = of_epoch(5, Some(&late));
    assert_eq!(broken(&[first.clone(), second.clone()]), []);
    assert_eq!(
        broken(&[first, second, late, third]),
        [Break::Overtaken { sequence: 3 }]
    );
}

#[test]
fn what_is_too_long_is_cut_so_that_a_report_has_a_bound() {
    let mut long = of_two(Outcome::Damaged);
    let text = "\u{1}".repeat(10_000);
    (long.signer.program, long.cost.prices) = (text.clone(), text.clone());
    long.detail = Some(text.clone());
    let audited = long.audited.as_mut().expect("what was audited");
    audited.lost_segments = vec![text.clone(); 1000];
    audited.damages = vec![
        DamageNamed {
            inode: u64::MAX,
            detail: text.clone(),
        };
        1000
    ];
    let second = audited.second.as_mut().expect("the second store");
    second.error = Some(text.clone());
    let named = SecondDamageNamed {
        key: text.clone(),
        detail: text,
    };
    second.named = vec![named; 1000];
    let report = signed(long, None);
    assert!(report.text().len() <= MAX_REPORT_BYTES);
    let audited = report.report().audited.as_ref().expect("what was audited");
    assert_eq!((audited.lost_segments.len(), audited.damages.len()), (32, 32));
    assert!(audited.damages[0].detail.ends_with('…'));
}

proptest! {
    #[test]
    fn whatever_is_signed_is_read_back(
        name in ".{0,300}", detail in proptest::option::of(".{0,700}"),
        (epoch, began) in (any::<u64>(), any::<i64>()), segments in proptest::collection::vec(".{0,40}", 0..40),
    ) {
        let mut report = new(Outcome::Damaged);
        report.signer.program = name;
        report.detail = detail;
        (report.signer.epoch, report.began_at_ms) = (epoch, began);
        report.audited.as_mut().expect("what was audited").lost_segments = segments;
        let report = report.following((u64::MAX, Some([1; 32])));
        let signed = SignedReport::sign(&report, |message| key(7).sign(message)).expect("signed");
        prop_assert_eq!(signed.report(), &report);
        prop_assert_eq!(SignedReport::open(signed.text().as_bytes()), Ok(signed.clone()));
    }

    #[test]
    fn any_bytes_are_a_report_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(SignedReport::open(&bytes).is_err());
    }
}
