//! Audits by a running edge, asked for and by the calendar: a segment that the store lost or altered is found and named, what is told is the
//! edge's own, and what was found is kept.

use crate::{
    administration::http,
    machine::{Cloud, Machine, free_port},
    noise::noise,
};
use std::path::PathBuf;

const FILES: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_is_told_what_the_store_lost_and_what_would_have_been_found() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..FILES {
        files
            .write(&format!("file{number}"), &noise(number + 1, 200_000))
            .await;
    }
    edge.succeed(&["sync"]);
    edge.succeed(&["snapshot", "create", "first"]);
    for number in 0..FILES / 3 {
        files
            .write(&format!("file{number}"), &noise(number + 100, 200_000))
            .await;
    }
    edge.succeed(&["sync"]);

    let told = edge.succeed(&["audit"]);
    println!("{told}");
    assert!(told.contains("688 of 688 challenges"), "{told}");
    assert!(told.contains("688 intact, 0 lost or damaged"), "{told}");
    assert!(told.contains("1 % with 99.90 %"), "{told}");
    assert!(told.contains("and of 1 of 1 snapshots"), "{told}");
    let json = edge.succeed(&["audit", "--challenges", "50", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let volume = &json["volumes"][0];
    assert_eq!(
        (&volume["intact"], &volume["is_complete"]),
        (&50.into(), &true.into()),
        "{json}"
    );
    // All of the files and, of those that were written anew, what the snapshot has of them.
    let data_bytes = volume["data_bytes"].as_u64().expect("a number");
    let written = (FILES + FILES / 3) * 200_000;
    assert!((written..written * 11 / 10).contains(&data_bytes), "{json}");

    // Each in turn: it is the store that is read, whatever caches and pins have.
    let size = |path: &std::path::PathBuf| path.metadata().expect("a segment").len();
    let victim = cloud.segments().into_iter().max_by_key(size).expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    let told = edge.fail(6, &["audit"]);
    let sequence = victim.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(
        told.contains("  lost: segment ") && told.contains(sequence),
        "{sequence}: {told}"
    );
    assert!(told.contains("bring the store's objects back"), "{told}");
    let mut altered = whole.clone();
    altered
        .iter_mut()
        .skip(52)
        .step_by(20_000)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&victim, &altered).expect("altered");
    let told = edge.fail(6, &["audit"]);
    assert!(
        !told.contains("  lost:") && told.contains("  damaged: inode "),
        "{told}"
    );
    std::fs::write(&victim, &whole).expect("brought back");
    edge.succeed(&["audit"]);

    let told = edge.fail(1, &["audit", "--budget", "0"]);
    assert!(told.contains("not everything was asked"), "{told}");
    assert!(
        edge.fail(2, &["audit", "--budget", "much"])
            .contains("no amount of dollars")
    );
    // The next one goes on, also after a restart, and ends the round.
    edge.stop();
    edge.start(&[]);
    let status = edge.succeed(&["status"]);
    assert!(status.contains("a round over several audits since"), "{status}");
    let told = edge.succeed(&["audit", "--continue"]);
    assert!(
        told.contains("with those before it everything was gone through"),
        "{told}"
    );
    let status = edge.succeed(&["status"]);
    assert!(
        status.contains("everything was gone through over 2 audits"),
        "{status}"
    );
    // With none under way it is an audit like any other.
    let told = edge.succeed(&["audit", "--continue"]);
    assert!(!told.contains("cut off"), "{told}");
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_today_gains_its_manifest_beside_clients_and_a_cleaner_and_audits_say_the_coverage() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..40 {
        files
            .write(&format!("file{number}"), &noise(number, 300_000))
            .await;
    }
    edge.succeed(&["snapshot", "create", "before"]);
    files.write("file0", &noise(100, 300_000)).await;
    edge.succeed(&["sync"]);
    let told = edge.succeed(&["audit"]);
    assert!(told.contains("manifest: none"), "{told}");
    assert!(edge.succeed(&["manifest", "status"]).contains("none"));
    assert!(
        edge.fail(2, &["manifest", "begin", "--rate", "1"])
            .contains("rate")
    );

    // Slowly, so that it is under way over a kill, and is looked at.
    edge.succeed(&["manifest", "begin", "--rate", "16 KiB"]);
    let told = edge.succeed(&["audit"]);
    println!("{told}");
    assert!(told.contains("  coverage: the manifest is not whole"), "{told}");
    assert!(edge.succeed(&["status"]).contains("Manifest"));
    edge.kill();
    edge.start(&[]);
    let told = edge.succeed(&["manifest", "status"]);
    assert!(told.contains("is gathered"), "{told}");
    let files = edge.client().await;
    files.write("file1", &noise(101, 300_000)).await;
    edge.succeed(&["clean"]);
    let told = edge.succeed(&["manifest", "begin", "--rate", "1 GiB", "--wait"]);
    assert!(told.contains("manifest: whole"), "{told}");
    let told = edge.succeed(&["audit"]);
    println!("{told}");
    assert!(told.contains("0 are lost, 0 altered"), "{told}");
    assert!(
        told.contains("the manifest is whole") && told.contains("100.00 % of the data"),
        "{told}"
    );

    // What nobody but a snapshot needs is lost: named as a segment that must exist.
    let size = |path: &PathBuf| path.metadata().expect("a segment").len();
    let victim = cloud.segments().into_iter().max_by_key(size).expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    let told = edge.fail(6, &["audit"]);
    assert!(told.contains("1 are lost, 0 altered"), "{told}");
    std::fs::write(&victim, &whole).expect("brought back");
    edge.succeed(&["audit"]);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_has_an_audit_name_what_was_lost_or_altered_although_no_file_needs_it() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format_with(&["--manifest"]);
    edge.start(&[]);
    let files = edge.client().await;
    files.write("replaced", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    let first = cloud.segments();
    files.write("replaced", &noise(2, 300_000)).await;
    edge.succeed(&["sync"]);
    let mut replaced = cloud.segments();
    replaced.retain(|segment| !first.contains(segment));
    for number in 0..20 {
        files.write("replaced", &noise(100 + number, 300_000)).await;
        edge.succeed(&["sync"]);
    }
    let told = edge.succeed(&["audit"]);
    println!("{told}");
    assert!(
        told.contains("  manifest: ") && told.contains("0 are lost, 0 altered"),
        "{told}"
    );

    // What was written to the file then was written anew since: a walk over the trees does not miss it.
    let size = |path: &PathBuf| path.metadata().expect("a segment").len();
    let victim = replaced.into_iter().max_by_key(size).expect("a segment");
    // As people are told of it: without the zeros before it.
    let name = victim.file_name().and_then(|name| name.to_str()).expect("a name");
    let name = format!("/{}", name.trim_start_matches('0'));
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    edge.succeed(&["verify"]);
    let told = edge.fail(6, &["audit"]);
    assert!(
        told.contains("  lost: segment ") && told.contains(&name),
        "{name}: {told}"
    );
    assert!(told.contains("1 are lost, 0 altered"), "{told}");
    assert!(!told.contains("  damaged: inode"), "{told}");

    // As long as it was, and another.
    let mut altered = whole.clone();
    altered
        .iter_mut()
        .skip(52)
        .step_by(1000)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&victim, &altered).expect("altered");
    edge.succeed(&["verify"]);
    let told = edge.fail(6, &["audit", "--challenges", "5000"]);
    assert!(
        told.contains("  altered: segment ") && told.contains(&name),
        "{name}: {told}"
    );
    std::fs::write(&victim, &whole[..whole.len() - 1]).expect("cut");
    let told = edge.fail(6, &["audit"]);
    assert!(
        told.contains("  altered: segment ") && told.contains(&name),
        "{name}: {told}"
    );
    std::fs::write(&victim, &whole).expect("brought back");
    edge.succeed(&["audit"]);

    // What is lost while the edge is off is found after a start, too.
    edge.stop();
    std::fs::remove_file(&victim).expect("removed");
    edge.start(&[]);
    let told = edge.fail(6, &["audit"]);
    assert!(
        told.contains("  lost: segment ") && told.contains(&name),
        "{name}: {told}"
    );
    edge.stop();
}

/// What is kept of audits on this machine.
fn kept(edge: &Machine) -> Vec<serde_json::Value> {
    let listed = edge.succeed(&["audit", "list", "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    listed["audits"].as_array().expect("a list").clone()
}

/// Leaves an audit of 1970 alone, so that the next one is due.
fn make_due(edge: &Machine) -> Vec<PathBuf> {
    let directory = edge.state.join("audits");
    let newer: Vec<PathBuf> = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.map(|entry| entry.expect("an entry").path()).collect(),
        Err(_) => Vec::new(),
    };
    for path in &newer {
        std::fs::remove_file(path).expect("removed");
    }
    std::fs::create_dir_all(&directory).expect("a directory");
    let old =
        r#"{"ended_at_ms": 1, "asked_by": "calendar", "outcome": "intact", "detail": null, "report": null}"#;
    std::fs::write(directory.join("0000000000000001.json"), old).expect("written");
    newer
}

#[tokio::test(flavor = "multi_thread")]
async fn audits_are_made_by_the_calendar_over_restarts_and_what_they_found_is_kept_and_told() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let port = free_port();
    let sections = format!(
        "[metrics]\nlisten = \"127.0.0.1:{port}\"\n[audit]\nevery = \"1 h\"\nchallenges = 200\nmonthly_budget = \"5\""
    );
    edge.configure(&cloud, "a", "main", &sections);
    edge.format();
    assert!(edge.succeed(&["audit", "list"]).contains("no audits are kept"));
    edge.start(&[]);
    assert!(
        edge.succeed(&["status"])
            .contains("every 1 h 0 min; none was made yet")
    );
    let files = edge.client().await;
    for number in 0..5 {
        files
            .write(&format!("file{number}"), &noise(number + 1, 300_000))
            .await;
    }
    edge.succeed(&["sync"]);
    edge.stop();

    // Off for decades: one audit, at once.
    make_due(&edge);
    edge.start(&[]);
    let now = edge.wait_for_status(|status| status["audit"]["last"]["challenges"] == 200);
    assert_eq!(now["audit"]["last"]["outcome"], "intact", "{now}");
    assert_eq!(now["audit"]["is_overdue"], false, "{now}");
    let listed = kept(&edge);
    assert_eq!((listed.len(), &listed[1]["asked_by"]), (2, &"calendar".into()));
    let told = edge.succeed(&["audit", "list"]);
    assert!(told.contains("intact") && told.contains("86.60 %"), "{told}");

    // Neither a crash nor a restart makes one more: the next is due an hour after the last.
    edge.kill();
    edge.start(&[]);
    let ended_at_ms = listed[1]["ended_at_ms"].as_i64().expect("a time");
    let now = edge.wait_for_status(|status| !status["audit"]["next_at_ms"].is_null());
    assert_eq!(now["audit"]["next_at_ms"], ended_at_ms + 3_600_000, "{now}");
    assert_eq!(now["audit"]["last"]["ended_at_ms"], ended_at_ms, "{now}");

    // One that an administrator asks for counts as well, whatever comes of it.
    cloud.take_store_away();
    edge.fail(1, &["audit"]);
    cloud.bring_store_back();
    let listed = kept(&edge);
    assert_eq!(
        (listed.len(), &listed[2]["asked_by"], &listed[2]["outcome"]),
        (3, &"administrator".into(), &"failed".into())
    );

    // The store loses a segment, and nobody asks.
    edge.stop();
    let size = |path: &PathBuf| path.metadata().expect("a segment").len();
    let victim = cloud.segments().into_iter().max_by_key(size).expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    make_due(&edge);
    edge.start(&[]);
    let now = edge.wait_for_status(|status| status["audit"]["last"]["outcome"] == "damaged");
    assert_eq!(now["audit"]["is_overdue"], true, "{now}");
    let metrics = http(port, "/metrics");
    for line in [
        "firn_audit_damaged 1",
        "firn_audit_overdue 1",
        "firn_audit_every_seconds 3600.0",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    let told = edge.succeed(&["status"]);
    assert!(
        told.contains("lost or damaged") && told.contains("OVERDUE"),
        "{told}"
    );
    edge.wait_for_log("an audit found that the store lost or altered something", 1);
    assert!(edge.succeed(&["audit", "list"]).contains("damaged"));

    std::fs::write(&victim, &whole).expect("brought back");
    edge.succeed(&["audit"]);
    let metrics = http(port, "/metrics");
    for line in ["firn_audit_damaged 0", "firn_audit_overdue 0"] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    edge.stop();
}
