//! A store that loses or alters what it acknowledged: it is counted, named by path, and never taken for level 2.

use crate::{
    administration::http,
    machine::{Cloud, Files, Machine, free_port, status},
    noise::noise,
};
use firn_nfs::v3::Status;
use std::path::{Path, PathBuf};

/// Flips a bit in the middle of a segment that holds one large file.
fn damage(segment: &Path) {
    let mut bytes = std::fs::read(segment).expect("the segment");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(segment, bytes).expect("the damage");
}

/// Commits a file of 300 KB, and returns the one segment that has it.
async fn commit(cloud: &Cloud, edge: &Machine, files: &Files, name: &str) -> PathBuf {
    let before = cloud.segments();
    files.write(name, &noise(name.len() as u64, 300_000)).await;
    edge.succeed(&["sync"]);
    let mut new = cloud.segments();
    new.retain(|path| !before.contains(path));
    let size = |path: &PathBuf| std::fs::metadata(path).expect("a segment").len();
    new.into_iter().max_by_key(size).expect("a new segment")
}

/// Commits by time, so that nobody asks whether it is there.
const SOON: (&str, &str) = ("checkpoint_trickle = \"1 h\"", "checkpoint_trickle = \"200 ms\"");

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_stays_is_counted_by_kind_and_named_by_path() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let port = free_port();
    edge.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
    );
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    let minutes = commit(&cloud, &edge, &files, "minutes").await;
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    assert!(http(port, "/healthz").ends_with("serving\n"));
    edge.stop();
    edge.wipe_cache();
    damage(&ledger);
    let brought_back = std::fs::read(&minutes).expect("a segment");
    std::fs::remove_file(&minutes).expect("removed");

    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(files.read_fails("ledger").await, Some(Status::Io));
    assert_eq!(files.read_fails("minutes").await, Some(Status::Io));
    assert_eq!(files.read("letter").await.as_deref(), Some(&b"Dear reader"[..]));

    edge.wait_for_status(|seen| {
        let damages = seen["damages"].as_array().map_or(&[][..], Vec::as_slice);
        let found = |path: &str, kind: &str| {
            damages
                .iter()
                .any(|one| one["path"] == path && one["kind"] == kind)
        };
        found("/ledger", "damaged") && found("/minutes", "missing")
    });
    let text = edge.succeed(&["status"]);
    assert!(
        text.contains("/ledger: ") && text.contains("/minutes: "),
        "{text}"
    );
    let metrics = http(port, "/metrics");
    for kind in ["damaged", "missing"] {
        let counter = format!("firn_store_damages_total{{kind=\"{kind}\"}} ");
        let (_, value) = metrics.split_once(&counter).expect(&counter);
        assert!(!value.starts_with('0'), "{kind} is not counted");
    }
    let health = http(port, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(
        health.contains("degraded") && health.contains("/ledger") && health.contains("/minutes"),
        "{health}"
    );
    let log = edge.log();
    assert!(log.contains("/ledger is damaged in the store"), "{log}");
    assert!(log.contains("/minutes is missing in the store"), "{log}");

    // A damaged file that is removed is no damage any more, nor is one that was brought back, once it is read.
    files.remove("ledger").await;
    edge.succeed(&["sync"]);
    std::fs::write(&minutes, brought_back).expect("brought back");
    // What is not there is not asked for again for half a minute.
    for _ in 0..60 {
        if files.read_fails("minutes").await.is_none() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    assert_eq!(files.read("minutes").await, Some(noise(7, 300_000)));
    edge.wait_for_status(|seen| seen["damages"].as_array().is_some_and(Vec::is_empty));
    assert!(http(port, "/healthz").ends_with("serving\n"));
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_was_acknowledged_and_dropped_is_noticed_and_put_again() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.edit(SOON.0, SOON.1);
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    let before = cloud.segments();
    files.write("ledger", &noise(1, 300_000)).await;
    edge.wait_for_status(|seen| seen["uncommitted"]["level"] == 2);
    let mut dropped = cloud.segments();
    dropped.retain(|path| !before.contains(path));
    assert!(!dropped.is_empty());
    let contents: Vec<_> = dropped
        .iter()
        .map(|path| std::fs::read(path).expect("a segment"))
        .collect();
    for path in &dropped {
        std::fs::remove_file(path).expect("dropped");
    }
    let said = edge.succeed(&["sync"]);
    assert!(said.contains("level 2"), "{said}");
    for (path, content) in dropped.iter().zip(contents) {
        assert_eq!(std::fs::read(path).expect("put again"), content);
    }
    assert!(
        edge.log().contains("put again from the local disk"),
        "{}",
        edge.log()
    );
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_lost_is_not_called_level_2() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.edit(SOON.0, SOON.1);
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    let before = cloud.segments();
    files.write("ledger", &noise(1, 300_000)).await;
    edge.wait_for_status(|seen| seen["uncommitted"]["level"] == 2);
    let mut dropped = cloud.segments();
    dropped.retain(|path| !before.contains(path));
    let content = std::fs::read(&dropped[0]).expect("a segment");
    std::fs::remove_file(&dropped[0]).expect("dropped");
    for copies in ["cache", "unconfirmed"] {
        for entry in std::fs::read_dir(edge.state.join(copies)).expect("copies of segments") {
            std::fs::write(entry.expect("an entry").path(), b"").expect("emptied");
        }
    }
    for command in ["sync", "drain"] {
        let said = edge.fail(1, &[command]);
        let key = dropped[0].file_name().expect("a name").to_string_lossy();
        assert!(
            said.contains("acknowledged") && said.contains(&*key) && said.contains("versions"),
            "{said}"
        );
        if command == "sync" {
            let seen = edge.wait_for_status(|seen| seen["commits"]["lost_segments"] == 1);
            assert_eq!(seen["volume"]["state"], "serving");
            let text = edge.succeed(&["status"]);
            assert!(
                text.contains("that the store acknowledged and does not have"),
                "{text}"
            );
        }
    }
    // The volume was not given up, and is whole again once the object is back.
    let ended = edge.child.take().expect("it ran").wait().expect("an end");
    assert_eq!(ended.code(), Some(6));
    std::fs::write(&dropped[0], content).expect("brought back");
    edge.start(&[]);
    assert_eq!(edge.client().await.read("ledger").await, Some(noise(1, 300_000)));
    edge.succeed(&["drain"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_checkpoint_stops_the_start_with_what_to_type() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("letter", b"Monday").await;
    edge.succeed(&["sync"]);
    files.write("letter", b"Tuesday").await;
    edge.succeed(&["sync"]);
    edge.stop();
    edge.wipe_cache();
    let newest = cloud.segments().pop().expect("a segment");
    let content = std::fs::read(&newest).expect("the segment");
    std::fs::remove_file(&newest).expect("removed");
    let key = newest.file_name().expect("a name").to_string_lossy().into_owned();
    for state in ["missing", "altered"] {
        let said = edge.fail(6, &["run"]);
        assert!(
            said.contains("the newest checkpoint")
                && said.contains("firn-edge recover")
                && said.contains("Nothing was changed")
                && said.contains(&key),
            "{state}: {said}"
        );
        let mut altered = content.clone();
        altered.iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(&newest, altered).expect("altered");
    }
    // Whoever would take the volume over is told before anything is taken.
    let other = Machine::new(&cloud, "b", "main");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    let said = other.fail(6, &["takeover", "--force"]);
    assert!(said.contains("firn-edge recover"), "{said}");

    // What is advised works: with the object brought back.
    std::fs::write(&newest, &content).expect("brought back");
    edge.start(&[]);
    assert_eq!(
        edge.client().await.read("letter").await.as_deref(),
        Some(&b"Tuesday"[..])
    );
    edge.stop();
    other.succeed(&["takeover", "--force"]);

    // And so does the other advice, from the newest whole checkpoint, with a new table and an empty state directory.
    std::fs::remove_file(&newest).expect("removed");
    let mut next = Machine::new(&cloud, "c", "main");
    next.edit("table.redb", "table-2.redb");
    let phrase = edge.config.with_file_name("phrase");
    next.succeed(&[
        "recover",
        "--phrase-file",
        phrase.to_str().expect("a path"),
        "--yes",
    ]);
    next.start(&[]);
    assert_eq!(
        next.client().await.read("letter").await.as_deref(),
        Some(&b"Monday"[..])
    );
    next.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_says_what_the_last_owner_took_for_level_2_and_is_not_there() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    edge.kill();
    std::fs::remove_file(&ledger).expect("removed");
    let mut other = Machine::new(&cloud, "b", "main");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    let said = other.succeed(&["takeover", "--force"]);
    let key = ledger.file_name().expect("a name").to_string_lossy();
    assert!(
        said.contains("does not have them") && said.contains(&*key),
        "{said}"
    );
    other.start(&[]);
    assert_eq!(
        other.client().await.read("letter").await.as_deref(),
        Some(&b"Dear reader"[..])
    );
    other.stop();
}

/// Removes a segment and what is cached of it.
fn lose(edge: &Machine, segment: &Path) {
    std::fs::remove_file(segment).expect("removed");
    edge.wipe_cache();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verification_says_what_a_lost_inode_map_took_with_it() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    // Commits of their own, so that the nodes of the inode map lie in other segments than the newest checkpoint.
    let before = cloud.segments();
    for number in 0..200 {
        files.write(&format!("file{number}"), b"some content").await;
    }
    edge.succeed(&["sync"]);
    let mut many = cloud.segments();
    many.retain(|path| !before.contains(path));
    edge.succeed(&["snapshot", "create", "then"]);
    edge.stop();
    for segment in &many {
        lose(&edge, segment);
        std::fs::create_dir_all(edge.state.join("cache")).expect("a directory");
    }
    edge.start(&[]);
    let began = std::time::Instant::now();
    let said = edge.fail(6, &["verify"]);
    // Some hundred objects are in the one segment; at three seconds each it would be ten minutes.
    assert!(began.elapsed().as_secs() < 60, "{said}");
    assert!(said.contains("files cannot be reached"), "{said}");
    assert!(said.contains("segments are not in the store"), "{said}");
    assert!(!said.contains("the rest of the volume is whole"), "{said}");
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verification_reads_what_only_a_snapshot_has() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("letter", b"Dear reader").await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    edge.succeed(&["snapshot", "create", "then"]);
    files.remove("ledger").await;
    edge.succeed(&["sync"]);
    let said = edge.succeed(&["verify"]);
    assert!(said.contains("and 1 snapshots"), "{said}");
    damage(&ledger);
    let said = edge.fail(6, &["verify"]);
    assert!(said.contains("damaged: /.snapshots/then/ledger: "), "{said}");
    assert!(!said.contains("letter"), "{said}");
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_segment_is_probed_once_however_many_objects_are_in_it() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    // Large enough for ten blocks each, in one segment; their inodes are written anew with another commit.
    let before = cloud.segments();
    for number in 0..10 {
        files
            .write(&format!("file{number}"), &noise(number, 300_000))
            .await;
    }
    edge.succeed(&["sync"]);
    let mut blocks = cloud.segments();
    blocks.retain(|path| !before.contains(path));
    for number in 0..10 {
        files.write_at(&format!("file{number}"), 0, b"changed").await;
    }
    // Rewrites what leads to the root directory, so that only blocks are left in the segments of before.
    files.write("another", b"new").await;
    edge.succeed(&["sync"]);
    edge.stop();
    lose(&edge, &blocks[0]);
    edge.start(&[]);
    let requests = status(&edge)["store"]["requests"].as_u64().expect("a number");
    let began = std::time::Instant::now();
    let said = edge.fail(6, &["verify"]);
    assert!(began.elapsed().as_secs() < 30, "{said}");
    assert!(said.contains("damaged: /file3: "), "{said}");
    assert!(said.contains("1 segments are not in the store"), "{said}");
    let requests = status(&edge)["store"]["requests"].as_u64().expect("a number") - requests;
    assert!(
        requests < 60,
        "{requests} requests for a hundred objects in one segment"
    );
    edge.stop();
}

/// A store that takes seconds for each answer: whoever verifies sees that it goes on, and how far it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_verification_of_a_slow_store_says_every_second_how_far_it_is() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..6 {
        files
            .write(&format!("file{number}"), &noise(number, 300_000))
            .await;
        edge.succeed(&["sync"]);
    }
    edge.stop();
    edge.wipe_cache();
    let slow = cloud.path().join("slow.toml");
    std::fs::write(
        &slow,
        "seed = 1\n[faults]\n[[phases]]\nfrom_ms = 3000\n[phases.faults]\nlatency_ms = 2500\n",
    )
    .expect("the faults");
    edge.start(&["--fault", slow.to_str().expect("a path")]);
    // It is slow once it has been open for as long as the phase says.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let output = edge.command(&["verify"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr.clone()).expect("text");
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("verifying: "))
        .collect();
    assert!(lines.len() >= 2, "{said}");
    for line in &lines {
        assert!(
            line.contains(" files, ") && line.ends_with(" damages, 0 segments missing"),
            "{line}"
        );
    }
    let read = |line: &str| line.split(", ").nth(2).expect("a part").to_owned();
    let mut seen: Vec<String> = lines.iter().map(|line| read(line)).collect();
    seen.dedup();
    assert!(seen.len() >= 2, "it does not say how far it is: {said}");
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("whole: "),
        "{output:?}"
    );
    edge.stop();
}
