//! A start while store or table are away: what the machine has is served, and all goes on by itself when they are back.

use crate::{
    administration::http,
    machine::{Cloud, Files, Machine, free_port, status},
    noise::noise,
};
use bytes::Bytes;
use firn_nfs::v3::{
    Status,
    types::{StableHow, Verifier},
};
use std::path::PathBuf;

/// Writes into a file that is there without waiting for the journal, then commits it; the write verifier that was answered.
async fn write_and_commit(files: &Files, name: &str, data: &[u8]) -> Verifier {
    let found = files
        .client()
        .lookup(files.root(), name)
        .await
        .expect("an answer");
    let file = found.expect("the file").file;
    let data = Bytes::copy_from_slice(data);
    let written = files.client().write(&file, 0, data, StableHow::Unstable).await;
    let written = written.expect("an answer").expect("a write");
    let committed = files.client().commit(&file, 0, 0).await;
    let committed = committed.expect("an answer").expect("a commit");
    assert_eq!(written.verifier, committed.verifier);
    committed.verifier
}

fn with_metrics(edge: &Machine) -> u16 {
    let port = free_port();
    edge.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
    );
    port
}

/// What the machine has of this segment goes, from the cache or from the pins that wait for being read back; the edge must not run.
fn forget(edge: &Machine, segment: &std::path::Path) {
    let part = |path: &std::path::Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let writer = part(segment.parent().expect("a writer"));
    let name = format!("{writer}-{}", part(segment));
    // It is in one of them: in the cache once it was read back, on a machine that does much else.
    let copies = ["cache", "unconfirmed"].map(|directory| edge.state.join(directory).join(&name));
    let removed = copies.map(|copy| match std::fs::remove_file(&copy) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", copy.display()),
    });
    assert!(removed.contains(&true), "{name} was nowhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_the_cloud_serves_what_is_here_and_commits_it_when_the_cloud_is_back() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let port = with_metrics(&edge);
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("ledger", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    let first = cloud.segments();
    files.write("archive", &noise(2, 300_000)).await;
    edge.succeed(&["sync"]);
    let mut archive = cloud.segments();
    archive.retain(|path| !first.contains(path));
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    files.write("minutes", b"acknowledged, in the journal only").await;
    edge.kill();
    forget(&edge, &archive[0]);
    cloud.take_store_away();
    cloud.take_table_away();

    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(files.read("ledger").await, Some(noise(1, 300_000)));
    assert_eq!(
        files.read("minutes").await.as_deref(),
        Some(&b"acknowledged, in the journal only"[..])
    );
    // It is there, only not now.
    assert_eq!(files.read_fails("archive").await, Some(Status::Jukebox));
    files.write("new", b"written without the cloud").await;
    let verifier = write_and_commit(&files, "letter", b"Dear Madam,").await;

    let seen = status(&edge);
    assert_eq!(seen["volume"]["state"], "serving", "{seen}");
    assert!(seen["detached"]["store_away"].is_string(), "{seen}");
    assert!(seen["detached"]["table_away"].is_string(), "{seen}");
    assert_eq!(seen["uncommitted"]["level"], 1, "{seen}");
    let text = edge.succeed(&["status"]);
    for part in [
        "Detached",
        "the store does not answer",
        "level 1 (journal)",
        "goes on by itself",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let health = http(port, "/healthz");
    assert!(
        health.starts_with("HTTP/1.1 200") && health.contains("degraded: detached for"),
        "{health}"
    );
    let metrics = http(port, "/metrics");
    for line in [
        "\nfirn_detached 1\n",
        "\nfirn_serving 1\n",
        "\nfirn_cloud_away{part=\"store\"} 1\n",
        "\nfirn_cloud_away{part=\"table\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    for command in [
        &["sync"][..],
        &["drain"],
        &["verify"],
        &["clean"],
        &["snapshot", "create", "now"],
        &["clone", "copy"],
        &["restore", "now", "letter"],
    ] {
        let said = edge.fail(1, command);
        assert!(
            said.contains("not done") && said.contains("does not answer") && said.contains("ask again"),
            "{command:?}: {said}"
        );
    }
    edge.succeed(&["snapshot", "list"]);

    // A second power cut changes nothing.
    edge.kill();
    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(
        files.read("new").await.as_deref(),
        Some(&b"written without the cloud"[..])
    );
    let second = write_and_commit(&files, "letter", b"Dear people").await;
    assert_ne!(second, verifier, "a killed edge may have lost unstable writes");

    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.wait_until_attached();
    let files = edge.client().await;
    let third = write_and_commit(&files, "letter", b"Dear others").await;
    assert_eq!(
        third, second,
        "the return loses nothing, so clients need not write again"
    );
    assert_eq!(files.read("archive").await, Some(noise(2, 300_000)));
    edge.succeed(&["sync"]);
    assert!(edge.succeed(&["verify"]).starts_with("whole"));
    assert!(http(port, "/healthz").ends_with("serving\n"));
    assert!(http(port, "/metrics").contains("\nfirn_detached 0\n"));
    let log = edge.log();
    assert!(log.contains("serving without the cloud"), "{log}");
    assert!(log.contains("store and table answer again"), "{log}");
    edge.stop();

    // All of it is in the cloud.
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    for (name, data) in [
        ("letter", &b"Dear others"[..]),
        ("minutes", b"acknowledged, in the journal only"),
        ("new", b"written without the cloud"),
    ] {
        assert_eq!(files.read(name).await.as_deref(), Some(data), "{name}");
    }
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn either_of_store_and_table_may_be_away() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("ledger", &noise(1, 300_000)).await;
    let with_ledger = cloud.segments().len();
    edge.succeed(&["sync"]);
    let ledger = cloud.segments()[with_ledger].clone();
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    edge.stop();
    forget(&edge, &ledger);

    // The store answers: what is not here comes from there.
    cloud.take_table_away();
    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(files.read("ledger").await, Some(noise(1, 300_000)));
    files.write("first", b"without the table").await;
    let seen = status(&edge);
    assert!(seen["detached"]["store_away"].is_null(), "{seen}");
    assert!(seen["detached"]["table_away"].is_string(), "{seen}");
    cloud.bring_table_back();
    edge.wait_until_attached();
    edge.succeed(&["sync"]);
    edge.stop();

    cloud.take_store_away();
    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(files.read("letter").await.as_deref(), Some(&b"Dear reader"[..]));
    files.write("second", b"without the store").await;
    let seen = status(&edge);
    assert!(seen["detached"]["store_away"].is_string(), "{seen}");
    assert!(seen["detached"]["table_away"].is_null(), "{seen}");
    cloud.bring_store_back();
    edge.wait_until_attached();
    edge.succeed(&["sync"]);
    assert!(edge.succeed(&["verify"]).starts_with("whole"));
    edge.stop();
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    assert_eq!(
        files.read("first").await.as_deref(),
        Some(&b"without the table"[..])
    );
    assert_eq!(
        files.read("second").await.as_deref(),
        Some(&b"without the store"[..])
    );
    edge.stop();
}

/// A line to the cloud of one machine's own, which can be cut: links to store and table.
struct Line {
    links: [(PathBuf, PathBuf); 2],
}

impl Line {
    fn of(cloud: &Cloud, machine: &Machine, name: &str) -> Self {
        let link = |what: &str| {
            (
                cloud.path().join(format!("{name}-{what}")),
                cloud.path().join(what),
            )
        };
        let line = Self {
            links: [link("store"), link("table.redb")],
        };
        for (link, target) in &line.links {
            machine.edit(
                &format!("{}\"", target.display()),
                &format!("{}\"", link.display()),
            );
        }
        line.mend();
        line
    }

    fn cut(&self) {
        for (link, _) in &self.links {
            std::fs::remove_file(link).expect("removed");
        }
    }

    fn mend(&self) {
        for (link, target) in &self.links {
            std::os::unix::fs::symlink(target, link).expect("a link");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_meanwhile_leaves_all_that_was_acknowledged_in_a_salvage_clone() {
    let cloud = Cloud::new();
    let mut a = Machine::new(&cloud, "a", "main");
    let line = Line::of(&cloud, &a, "a");
    a.format();
    a.start(&[]);
    let files = a.client().await;
    files.write("common", b"committed").await;
    a.succeed(&["sync"]);
    files.write("before", b"acknowledged before the power cut").await;
    a.kill();
    line.cut();
    a.start(&[]);
    let files = a.client().await;
    files.write("common", b"changed by a").await;
    files.write("after", b"acknowledged without the cloud").await;

    let mut b = Machine::new(&cloud, "b", "main");
    let identity = a.state.join("identity");
    b.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    b.succeed(&["takeover", "--force"]);
    b.start(&[]);
    let theirs = b.client().await;
    assert_eq!(theirs.read("common").await.as_deref(), Some(&b"committed"[..]));
    theirs.write("common", b"changed by b").await;
    b.succeed(&["sync"]);
    b.stop();

    // The first one still serves its own line of history; it finds out when it reaches the table.
    assert_eq!(files.read("common").await.as_deref(), Some(&b"changed by a"[..]));
    line.mend();
    let mut child = a.child.take().expect("it runs");
    let ended = child.wait().expect("an end");
    assert_eq!(ended.code(), Some(4), "{}", a.log());
    let log = a.log();
    let name = log
        .split_whitespace()
        .find(|word| word.starts_with("salvage-"))
        .map(|word| word.trim_end_matches(['.', ';', ',']))
        .unwrap_or_else(|| panic!("no clone is named: {log}"));
    // What knows that it was fenced has nothing left to go out from when the line is cut again.
    let copies = std::fs::read_dir(a.state.join("checkpoint")).expect("a directory");
    assert_eq!(copies.count(), 0);

    b.start(&[]);
    let files = b.client().await;
    assert_eq!(files.read("common").await.as_deref(), Some(&b"changed by b"[..]));
    assert_eq!(files.read("after").await, None);
    b.stop();
    let mut salvage = Machine::new(&cloud, "s", name);
    salvage.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    salvage.succeed(&["takeover", "--force"]);
    salvage.start(&[]);
    let files = salvage.client().await;
    for (name, data) in [
        ("common", &b"changed by a"[..]),
        ("before", b"acknowledged before the power cut"),
        ("after", b"acknowledged without the cloud"),
    ] {
        assert_eq!(files.read(name).await.as_deref(), Some(data), "{name}");
    }
    assert!(salvage.succeed(&["verify"]).starts_with("whole"));
    salvage.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_without_the_cloud_says_why() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();

    // Never served here.
    cloud.take_table_away();
    let said = edge.fail(1, &["run"]);
    assert!(said.contains("table.redb"), "{said}");
    cloud.bring_table_back();

    // A snapshot that the journal has and the cloud has not.
    edge.start(&[]);
    let files = edge.client().await;
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    cloud.take_store_away();
    let mut asking = edge
        .prepared(&["snapshot", "create", "kept"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("firn-edge runs");
    edge.wait_for_status(|seen| seen["commits"]["building"] == true);
    files.write("later", b"makes the journal durable").await;
    edge.kill();
    asking.wait().expect("an end");
    let said = edge.fail(1, &["run"]);
    assert!(
        said.contains("a snapshot was made and had not reached the cloud")
            && said.contains("everything acknowledged is in the journal"),
        "{said}"
    );
    cloud.bring_store_back();
    edge.start(&[]);
    edge.succeed(&["sync"]);
    edge.stop();

    // The copy of the checkpoint is gone, or is not what this edge has seen.
    let copies = edge.state.join("checkpoint");
    let copy = std::fs::read_dir(&copies)
        .expect("copies")
        .next()
        .expect("one")
        .expect("an entry");
    let kept = std::fs::read(copy.path()).expect("the copy");
    for (damage, code, why) in [
        (Some(b"nonsense".to_vec()), 1, "is damaged"),
        (None, 2, "there is no copy"),
    ] {
        match damage {
            Some(bytes) => std::fs::write(copy.path(), bytes).expect("damaged"),
            None => std::fs::remove_file(copy.path()).expect("removed"),
        }
        cloud.take_store_away();
        let said = edge.fail(code, &["run"]);
        assert!(said.contains(why), "{why}: {said}");
        cloud.bring_store_back();
    }
    std::fs::write(copy.path(), kept).expect("brought back");

    // Given up.
    edge.start(&[]);
    edge.succeed(&["drain"]);
    edge.child.take().expect("it ran").wait().expect("an end");
    cloud.take_table_away();
    let said = edge.fail(1, &["run"]);
    assert!(said.contains("table.redb"), "{said}");
    cloud.bring_table_back();
}
