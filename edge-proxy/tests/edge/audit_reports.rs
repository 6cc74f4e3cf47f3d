//! Signed reports of audits: what a real edge says of its store, checked by whoever has the bucket or only a file and a key; reports that
//! are altered, replaced or removed are told, wherever that was done.

use crate::{
    machine::{Cloud, Machine},
    noise::noise,
};
use firn_audit_report::SignedReport;
use firn_format::SegmentId;
use firn_seal::RootSigningKey;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// An edge with so many files in the cloud.
async fn edge_with_files(cloud: &Cloud, count: u64) -> Machine {
    let mut edge = Machine::new(cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..count {
        files
            .write(&format!("file{number}"), &noise(number + 1, 200_000))
            .await;
    }
    edge.succeed(&["sync"]);
    edge
}

fn audit(edge: &Machine) {
    edge.succeed(&["audit", "--challenges", "100"]);
}

fn listed(edge: &Machine) -> Value {
    let listed = edge.succeed(&["audit", "list", "--output", "json"]);
    serde_json::from_str(&listed).expect("JSON")
}

/// Where this machine has a report.
fn here(edge: &Machine, sequence: u64) -> PathBuf {
    edge.state.join(format!("audits/{sequence:016}.report"))
}

/// Where the bucket has it.
fn in_bucket(cloud: &Cloud, sequence: u64) -> PathBuf {
    let name = format!("{:016x}", u64::MAX - sequence);
    let mut directories = vec![cloud.path().join("store")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.ends_with(&name) && path.to_string_lossy().contains("/audits/") {
                return path;
            }
        }
    }
    panic!("the bucket has no report {sequence}");
}

fn alter(path: &Path) -> Vec<u8> {
    let whole = std::fs::read(path).expect("a report");
    let text = String::from_utf8(whole.clone()).expect("text");
    let altered = text.replacen("\"outcome\":\"intact\"", "\"outcome\":\"Intact\"", 1);
    assert_ne!(altered, text);
    std::fs::write(path, altered).expect("altered");
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_signed_by_the_owner_and_follow_each_other_over_restarts_and_takeovers() {
    let cloud = Cloud::new();
    let mut edge = edge_with_files(&cloud, 6).await;
    audit(&edge);
    audit(&edge);
    // Another start has another key.
    edge.stop();
    edge.start(&[]);
    audit(&edge);
    let told = edge.succeed(&["audit", "list"]);
    println!("{told}");
    assert!(told.contains("chain: whole, from report 1 to report 3"), "{told}");
    assert_eq!(told.matches("owner's    here,bucket").count(), 3, "{told}");
    let audits = listed(&edge);
    let audits = audits["audits"].as_array().expect("a list");
    let of = |number: usize| &audits[number]["report"];
    for (number, audit) in audits.iter().enumerate() {
        assert_eq!(
            (&audit["sequence"], &audit["signature"]),
            (&(number + 1).into(), &"owner's".into())
        );
        assert_eq!(of(number)["audited"]["intact"], 100, "{audit}");
        let previous = number
            .checked_sub(1)
            .map_or(&Value::Null, |before| &audits[before]["hash"]);
        assert_eq!(&of(number)["previous"], previous, "{audit}");
    }
    // The bucket's readers learn no names.
    let copy = std::fs::read_to_string(in_bucket(&cloud, 1)).expect("a report");
    for name in ["\"main\"", "\"a\""] {
        assert!(!copy.contains(name), "{name}: {copy}");
    }
    assert_eq!(audits[0]["edge"], "a");
    let key = |number: usize| of(number)["signer"]["key"].as_str().expect("a key").to_owned();
    assert_eq!(key(0), key(1));
    assert_ne!(key(1), key(2));

    // Whoever has files and keys needs neither edge nor bucket, nor a configuration.
    let auditor = tempfile::tempdir().expect("a directory");
    let file = |sequence: u64| auditor.path().join(format!("{sequence}.report"));
    for sequence in 1..=3 {
        let number = sequence.to_string();
        let text = edge.succeed(&["audit", "show", &number, "--output", "json"]);
        std::fs::write(file(sequence), text).expect("written");
    }
    let stranger = Machine::new(&cloud, "stranger", "main");
    std::fs::remove_file(&stranger.config).expect("removed");
    let (first, second, third) = (file(1), file(2), file(3));
    let [one, two, three] = [&first, &second, &third].map(|path| path.to_str().expect("a path"));
    let (old, new) = (key(0), key(2));
    let told = stranger.succeed(&["audit", "verify", one, two, three, "--key", &old, "--key", &new]);
    assert!(told.contains("report 3 of vol_"), "{told}");
    let told = stranger.fail(6, &["audit", "verify", one, three, "--key", &old, "--key", &new]);
    assert!(told.contains("CHAIN BROKEN: report 2 is missing"), "{told}");
    let told = stranger.fail(6, &["audit", "verify", three, "--key", &old]);
    assert!(told.contains("signed by another key"), "{told}");
    alter(&second);
    let told = stranger.fail(6, &["audit", "verify", two, "--key", &old]);
    assert!(told.contains("2.report: WRONG: "), "{told}");
    assert!(
        stranger
            .fail(2, &["audit", "verify", "nowhere", "--key", &old])
            .contains("cannot read")
    );

    // A third party draws the same again, as long as the roots are the same.
    let seed = of(2)["audited"]["seed"].as_str().expect("a seed");
    edge.succeed(&["audit", "--challenges", "100", "--seed", seed]);
    let again = listed(&edge);
    let again = &again["audits"][3]["report"]["audited"];
    assert_eq!(again["drawn"], of(2)["audited"]["drawn"]);
    assert_ne!(again["drawn"], of(1)["audited"]["drawn"]);

    // The next owner's reports follow the last one's.
    edge.stop();
    let mut next = Machine::new(&cloud, "b", "main");
    let identity = edge.state.join("identity");
    next.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    next.succeed(&["takeover", "--force"]);
    next.start(&[]);
    audit(&next);
    let told = next.succeed(&["audit", "list"]);
    assert!(told.contains("chain: whole, from report 1 to report 5"), "{told}");
    assert_eq!(told.matches("owner's    bucket").count(), 4, "{told}");
    let told = next.succeed(&["audit", "show", "5"]);
    assert!(told.contains("signature: right, by edge b"), "{told}");
    assert!(
        told.contains("an ownership statement of the volume names the key"),
        "{told}"
    );
    next.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_altered_replaced_or_removed_is_told_wherever_that_was() {
    let cloud = Cloud::new();
    let mut edge = edge_with_files(&cloud, 6).await;
    for _ in 0..3 {
        audit(&edge);
    }
    let list = ["audit", "list"];
    assert!(edge.succeed(&list).contains("chain: whole"));

    // One byte, here.
    let whole = alter(&here(&edge, 2));
    let told = edge.fail(6, &list);
    assert!(told.contains("WRONG: report 2 on this machine"), "{told}");
    assert!(
        told.contains("intact") && !told.contains("CHAIN BROKEN"),
        "the bucket's is whole: {told}"
    );
    let told = edge.fail(6, &["audit", "list", "--here"]);
    assert!(told.contains("WRONG: report 2 on this machine"), "{told}");
    std::fs::write(here(&edge, 2), &whole).expect("brought back");

    // One byte, in the bucket.
    alter(&in_bucket(&cloud, 2));
    let told = edge.fail(6, &list);
    assert!(told.contains("WRONG: report 2 in the bucket"), "{told}");
    std::fs::write(in_bucket(&cloud, 2), &whole).expect("brought back");

    // Another report under its number; it is a right one.
    std::fs::copy(here(&edge, 1), here(&edge, 2)).expect("copied");
    let told = edge.fail(6, &list);
    assert!(told.contains("it is report 1 under another's name"), "{told}");

    // Gone here, then everywhere.
    std::fs::remove_file(here(&edge, 2)).expect("removed");
    let told = edge.succeed(&list);
    assert!(told.contains("chain: whole, from report 1 to report 3"), "{told}");
    let told = edge.fail(6, &["audit", "list", "--here"]);
    assert!(told.contains("CHAIN BROKEN: report 2 is missing"), "{told}");
    std::fs::remove_file(in_bucket(&cloud, 2)).expect("removed");
    let told = edge.fail(6, &list);
    assert!(told.contains("CHAIN BROKEN: report 2 is missing"), "{told}");
    assert!(
        edge.fail(2, &["audit", "show", "2"])
            .contains("there is no report 2")
    );
    std::fs::write(here(&edge, 2), &whole).expect("brought back");
    let told = edge.fail(6, &list);
    assert!(told.contains("report 2 is not in the bucket any more"), "{told}");
    std::fs::write(
        in_bucket(&cloud, 3).with_file_name(format!("{:016x}", u64::MAX - 2)),
        &whole,
    )
    .expect("brought back");
    edge.succeed(&list);

    // The first ones of all.
    std::fs::remove_file(here(&edge, 1)).expect("removed");
    let first = in_bucket(&cloud, 1);
    let kept = std::fs::read(&first).expect("a report");
    std::fs::remove_file(&first).expect("removed");
    let told = edge.fail(6, &list);
    assert!(told.contains("CHAIN BROKEN: report 1 is missing"), "{told}");
    std::fs::write(&first, kept).expect("brought back");

    // Somebody who can write into the bucket and has no key of the volume's.
    let genuine = SignedReport::open(&whole).expect("a report");
    let stranger = RootSigningKey::from_seed([7; 32]);
    let mut forged = genuine.report().clone();
    forged.sequence = 4;
    forged.signer.key = stranger.public().to_bytes();
    let forged = SignedReport::sign(&forged, |message| stranger.sign(message)).expect("signed");
    let place = in_bucket(&cloud, 3).with_file_name(format!("{:016x}", u64::MAX - 4));
    std::fs::write(here(&edge, 4), forged.text()).expect("written");
    let told = edge.fail(6, &list);
    assert!(told.contains("STRANGER'S here  "), "{told}");
    std::fs::remove_file(here(&edge, 4)).expect("removed");
    std::fs::write(&place, forged.text()).expect("written");
    let told = edge.fail(6, &list);
    assert!(
        told.contains("report 4: no ownership statement of the volume names the key")
            && told.contains("STRANGER'S"),
        "{told}"
    );
    // It keeps no report from being made.
    audit(&edge);
    let audits: Value = {
        let output = edge.command(&["audit", "list", "--output", "json"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let newest = audits["audits"]
        .as_array()
        .expect("a list")
        .last()
        .expect("a report");
    assert_eq!(
        (&newest["sequence"], &newest["signature"]),
        (&5.into(), &"owner's".into())
    );

    // Without the bucket the list is of this machine, and says so.
    cloud.take_store_away();
    let output = edge.command(&list);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the bucket was not asked"), "{said}");
    cloud.bring_store_back();
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_segment_stands_in_a_signed_report_and_one_that_could_not_be_put_is_put_later() {
    let cloud = Cloud::new();
    // More than a segment: the largest is not that of the root.
    let mut edge = edge_with_files(&cloud, 30).await;
    audit(&edge);
    let size = |path: &PathBuf| path.metadata().expect("a segment").len();
    let victim = cloud.segments().into_iter().max_by_key(size).expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    edge.fail(6, &["audit"]);
    let store = cloud.path().join("store");
    let key = victim.strip_prefix(store).expect("in the store");
    let (_, segment) = SegmentId::parse_key(key.to_str().expect("a key")).expect("a segment");
    let told = edge.succeed(&["audit", "show", "2"]);
    println!("{told}");
    assert!(told.starts_with("report 2 of vol_"), "{told}");
    assert!(told.contains(&format!("  lost: segment {segment}\n")), "{told}");
    assert!(edge.succeed(&["audit", "list"]).contains("damaged"));
    std::fs::write(&victim, whole).expect("brought back");

    // A store that takes no reports: a directory stands where the next one would.
    let place = in_bucket(&cloud, 1).with_file_name(format!("{:016x}", u64::MAX - 3));
    std::fs::create_dir(&place).expect("a directory");
    std::fs::write(place.join("0"), "in the way").expect("written");
    audit(&edge);
    std::fs::remove_dir_all(&place).expect("removed");
    let told = edge.succeed(&["audit", "list"]);
    // It was signed all the same, and is here alone.
    assert_eq!(told.matches("here,bucket").count(), 2, "{told}");
    assert!(told.contains("owner's    here  "), "{told}");
    audit(&edge);
    let told = edge.succeed(&["audit", "list"]);
    println!("{told}");
    assert!(told.contains("chain: whole, from report 1 to report 4"), "{told}");
    assert_eq!(told.matches("here,bucket").count(), 4, "{told}");

    // An audit that could not ask anything says nothing of the store, and is no report.
    cloud.take_store_away();
    edge.fail(1, &["audit"]);
    cloud.bring_store_back();
    let audits = listed(&edge);
    let newest = &audits["audits"][4];
    assert_eq!(
        (&newest["outcome"], &newest["sequence"]),
        (&"failed".into(), &Value::Null)
    );
    edge.stop();
}
