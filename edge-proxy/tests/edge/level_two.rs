//! `durability = "cloud"`: what a client was told is in the cloud, whatever becomes of the edge; and what clients see while the cloud is away.

use crate::{
    administration::http,
    machine::{Cloud, Files, Machine, free_port, status},
    noise::noise,
};
use bytes::Bytes;
use firn_nfs::{
    client::entry,
    v3::{
        Procedure, Status,
        types::{CreateHow, MakeDirectoryCall, NewAttributes, StableHow},
    },
    xdr::{Decode, Decoder},
};
use std::time::{Duration, Instant};

/// Within which a call that waits for nothing is answered on a machine that does much else.
const SOON: Duration = Duration::from_secs(5);

/// An edge whose export answers at level 2; nothing is committed but for who waits for it.
fn edge(cloud: &Cloud, name: &str, on_disconnect: &str) -> Machine {
    let machine = Machine::new(cloud, name, "main");
    machine.edit(
        "[limits]",
        &format!("durability = \"cloud\"\non_disconnect = \"{on_disconnect}\"\n[limits]"),
    );
    machine
}

/// Writes a file in parts without waiting, then commits it, as clients do with large ones.
async fn write_and_commit(files: &Files, name: &str, data: &[u8]) {
    let how = CreateHow::Unchecked(NewAttributes::default());
    let made = files.client().create(files.root(), name, how).await;
    let made = made.expect("an answer").expect("a file");
    let file = made.file.expect("its handle");
    for (part, at) in data.chunks(100_000).zip((0..).step_by(100_000)) {
        let part = Bytes::copy_from_slice(part);
        let written = files.client().write(&file, at, part, StableHow::Unstable).await;
        written.expect("an answer").expect("a write");
    }
    let committed = files.client().commit(&file, 0, 0).await;
    committed.expect("an answer").expect("a commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_read_elsewhere_after_the_disk_of_the_edge_is_destroyed() {
    let cloud = Cloud::new();
    let mut a = edge(&cloud, "a", "wait");
    let port = free_port();
    a.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
    );
    a.format();
    a.start(&[]);
    let files = a.client().await;
    let before = status(&a);
    let began = Instant::now();
    for number in 0..20_u32 {
        files
            .write(&format!("through-{number}"), &noise(u64::from(number), 3_000))
            .await;
    }
    let took = began.elapsed();
    let after = status(&a);
    let figure = |part: &str, name: &str| {
        let value = |seen: &serde_json::Value| seen[part][name].as_u64().expect("a figure");
        value(&after) - value(&before)
    };
    println!(
        "20 files, 40 calls at level 2, one after the other: {took:?}, {} commits, {} requests of the store, {} of the table, {} nanodollars",
        figure("commits", "checkpoints"),
        figure("store", "requests"),
        figure("table", "requests"),
        figure("store", "nanodollars") + figure("table", "nanodollars"),
    );
    write_and_commit(&files, "committed", &noise(100, 700_000)).await;
    // Several at once share commits.
    let clients = futures::future::join_all((0..8).map(|_| a.client())).await;
    let at_once = clients.iter().zip(0..8_u64).map(|(files, number)| async move {
        for part in 0..5 {
            files
                .write(&format!("client-{number}-{part}"), &noise(number, 2_000))
                .await;
        }
    });
    futures::future::join_all(at_once).await;
    let seen = status(&a);
    let level_two = &seen["level_two"];
    println!("{level_two}");
    assert_eq!(level_two["waiting"], 0, "{seen}");
    assert!(
        level_two["answered"].as_u64() > level_two["commits"].as_u64(),
        "{seen}"
    );
    assert!(level_two["largest_group"].as_u64() > Some(1), "{seen}");
    let text = a.succeed(&["status"]);
    assert!(text.contains("answers at level 2 (cloud)"), "{text}");
    let metrics = http(port, "/metrics");
    for name in [
        "firn_level_two_answered_total",
        "firn_level_two_commits_total",
        "firn_level_two_waiting 0",
    ] {
        assert!(metrics.contains(&format!("\n{name}")), "{name}: {metrics}");
    }
    a.kill();
    let identity = cloud.path().join("identity");
    std::fs::rename(a.state.join("identity"), &identity).expect("it was kept elsewhere");
    std::fs::remove_dir_all(&a.state).expect("the disk is destroyed");

    let mut b = edge(&cloud, "b", "wait");
    b.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    b.succeed(&["takeover", "--force"]);
    b.start(&[]);
    let files = b.client().await;
    for number in 0..20_u32 {
        let name = format!("through-{number}");
        assert!(
            files.read(&name).await == Some(noise(u64::from(number), 3_000)),
            "{name}"
        );
    }
    assert!(files.read("committed").await == Some(noise(100, 700_000)));
    for number in 0..8_u64 {
        for part in 0..5 {
            let name = format!("client-{number}-{part}");
            assert!(files.read(&name).await == Some(noise(number, 2_000)), "{name}");
        }
    }
    b.stop();
}

/// The reply to a request of this number that makes a directory.
async fn make_directory(files: &Files, transaction: u32, name: &str) -> Option<Status> {
    let call = MakeDirectoryCall {
        at: entry(files.root(), name),
        attributes: NewAttributes::default(),
    };
    let called = files
        .client()
        .call_as(transaction, Procedure::MakeDirectory, &call)
        .await;
    let reply = called.ok()?;
    Some(Status::decode(&mut Decoder::new(reply)).expect("a status"))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_cloud_changes_wait_and_one_that_a_restart_interrupts_is_made_once() {
    let cloud = Cloud::new();
    let mut a = edge(&cloud, "a", "wait");
    let port = free_port();
    a.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
    );
    a.format();
    a.start(&[]);
    let files = a.client().await;
    files.write("before", b"in the cloud").await;
    cloud.take_store_away();
    let waiting = a.client().await;
    let made = tokio::spawn(async move { make_directory(&waiting, 4711, "minutes").await });
    let seen = a.wait_for_status(|seen| seen["level_two"]["away_ms"].is_u64());
    assert_eq!(seen["level_two"]["waiting"], 1, "{seen}");
    assert!(http(port, "/metrics").contains("\nfirn_level_two_away 1\n"));
    assert!(
        !made.is_finished(),
        "it was answered though it is not in the cloud"
    );
    // Reads go on; what would change something is told to come again, and is not done.
    assert_eq!(files.read("before").await.as_deref(), Some(&b"in the cloud"[..]));
    assert_eq!(make_directory(&files, 4712, "later").await, Some(Status::Jukebox));
    let text = a.succeed(&["status"]);
    assert!(text.contains("the cloud has taken nothing for"), "{text}");
    a.stop();
    assert_eq!(made.await.expect("it ends"), None, "a stop answers nothing");

    cloud.bring_store_back();
    a.start(&[]);
    let files = a.client().await;
    // As a client that got no answer does: the same request once more.
    assert_eq!(make_directory(&files, 4711, "minutes").await, Some(Status::Ok));
    assert_eq!(status(&a)["uncommitted"]["level"], 2);
    assert_eq!(
        make_directory(&files, 4713, "minutes").await,
        Some(Status::Exists)
    );
    assert_eq!(make_directory(&files, 4714, "later").await, Some(Status::Ok));
    a.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_cloud_clients_fail_or_go_on_where_the_configuration_says_so() {
    for (on_disconnect, expected, told) in [
        ("fail", Status::Io, "calls fail with an input/output error"),
        ("accept", Status::Ok, "calls are answered at level 1 (journal)"),
    ] {
        let cloud = Cloud::new();
        let mut a = edge(&cloud, "a", on_disconnect);
        a.format();
        a.start(&[]);
        let files = a.client().await;
        files.write("before", b"in the cloud").await;
        cloud.take_store_away();
        assert_eq!(
            make_directory(&files, 1, "first").await,
            Some(expected),
            "{on_disconnect}"
        );
        let began = Instant::now();
        assert_eq!(
            make_directory(&files, 2, "second").await,
            Some(expected),
            "{on_disconnect}"
        );
        assert!(
            began.elapsed() < SOON,
            "{on_disconnect}: it was known already: {:?}",
            began.elapsed()
        );
        let text = a.succeed(&["status"]);
        assert!(text.contains(told), "{text}");
        cloud.bring_store_back();
        a.wait_for_status(|seen| seen["level_two"]["away_ms"].is_null());
        assert_eq!(
            make_directory(&files, 3, "third").await,
            Some(Status::Ok),
            "{on_disconnect}"
        );
        a.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_may_say_otherwise_than_its_volume() {
    let cloud = Cloud::new();
    let mut a = Machine::new(&cloud, "a", "main");
    let export = "[[export]]\npath = \"/contracts\"\nclients = [\"127.0.0.0/8\"]\nsquash = \"none\"\nrequire_privileged_port = false\n\
                  durability = \"cloud\"\n";
    a.edit("[log]", &format!("{export}[log]"));
    a.format();
    a.start(&[]);
    let (drafts, contracts) = (a.client().await, a.client_of("/contracts").await);
    drafts.write("draft", b"in the journal").await;
    assert_eq!(status(&a)["uncommitted"]["level"], 1);
    contracts.write("contract", b"in the cloud").await;
    assert_eq!(status(&a)["uncommitted"]["level"], 2);
    drafts.write("draft", b"again").await;
    assert_eq!(status(&a)["uncommitted"]["level"], 1);
    a.stop();
    for (line, said) in [
        ("durability = \"disk\"", "unknown variant"),
        (
            "follow = true\ndurability = \"cloud\"",
            "nothing is written to a volume that is followed",
        ),
        ("on_disconnect = \"wait\"", "durability = \"cloud\""),
    ] {
        let b = Machine::new(&cloud, "b", "main");
        b.edit("[limits]", &format!("{line}\n[limits]"));
        let refused = b.fail(2, &["check-config"]);
        assert!(refused.contains(said), "{line}: {refused}");
    }
}
