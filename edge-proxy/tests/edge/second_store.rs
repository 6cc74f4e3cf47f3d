//! A second store: it gets what the first gets, holds nobody up, and answers for what the first has lost.

use crate::{
    administration::http,
    machine::{Cloud, Files, Machine, free_port, status},
    noise::noise,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A second store beside the first.
pub struct Second(pub PathBuf);

impl Second {
    pub fn beside(cloud: &Cloud) -> Self {
        let path = cloud.path().join("second");
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn away(&self) -> PathBuf {
        self.0.with_extension("away")
    }

    /// Nothing can be put or read from here on.
    fn take_away(&self) {
        std::fs::rename(&self.0, self.away()).expect("renamed");
        std::fs::write(&self.0, "no directory").expect("written");
    }

    fn bring_back(&self) {
        std::fs::remove_file(&self.0).expect("removed");
        std::fs::rename(self.away(), &self.0).expect("renamed");
    }

    /// The section, with `more` keys.
    pub fn section(&self, more: &str) -> String {
        format!("[second]\nstore = \"file://{}\"\n{more}\n", self.0.display())
    }
}

/// All members of families below a store's directory, by name.
fn members(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![store.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(store).expect("below").display().to_string();
            if path.is_dir() {
                directories.push(path);
            } else if name.len() > 33 && name.as_bytes()[32] == b'/' {
                found.insert(name, std::fs::read(&path).expect("a member"));
            }
        }
    }
    found
}

fn assert_mirrored(cloud: &Cloud, second: &Second) {
    let (first, second) = (members(&cloud.path().join("store")), members(&second.0));
    let names = |of: &BTreeMap<String, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&first), names(&second));
    assert!(first == second, "other bytes");
    for kind in ["/log/", "/keyring/", "/owner/"] {
        assert!(
            first.keys().any(|name| name.contains(kind)),
            "nothing below {kind}"
        );
    }
}

pub fn wait_until_current(edge: &Machine) -> serde_json::Value {
    edge.wait_for_status(|seen| seen["second"]["state"] == "current")
}

/// Commits a file of 300 KB, and returns the one segment that has it.
pub async fn commit(cloud: &Cloud, edge: &Machine, files: &Files, name: &str) -> PathBuf {
    let before = cloud.segments();
    files.write(name, &content(name)).await;
    edge.succeed(&["sync"]);
    let mut new = cloud.segments();
    new.retain(|path| !before.contains(path));
    let size = |path: &PathBuf| std::fs::metadata(path).expect("a segment").len();
    new.into_iter().max_by_key(size).expect("a new segment")
}

pub fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    noise(seed, 300_000)
}

/// Flips a bit in the middle of a segment that holds one large file.
pub fn damage(segment: &Path) {
    let mut bytes = std::fs::read(segment).expect("the segment");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(segment, bytes).expect("the damage");
}

/// An edge that serves, with an empty second store and these lines in its section.
pub async fn mirrored(settings: &str) -> (Cloud, Second, Machine, Files) {
    let cloud = Cloud::new();
    let second = Second::beside(&cloud);
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.configure(&cloud, "a", "main", &second.section(settings));
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    (cloud, second, edge, files)
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_mirrored_and_a_second_store_that_refuses_holds_nobody_up() {
    let cloud = Cloud::new();
    let second = Second::beside(&cloud);
    let mut edge = Machine::new(&cloud, "a", "main");
    let port = free_port();
    let metrics = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    edge.configure(&cloud, "a", "main", &metrics);
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    commit(&cloud, &edge, &files, "from before there was a second store").await;
    edge.stop();

    edge.configure(&cloud, "a", "main", &(metrics + &second.section("")));
    let said = edge.command(&["check"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("another store than the first"), "{said}");
    edge.start(&[]);
    let files = edge.client().await;
    commit(&cloud, &edge, &files, "ledger").await;
    wait_until_current(&edge);
    assert_mirrored(&cloud, &second);
    let text = edge.succeed(&["status"]);
    assert!(
        text.contains("Second store") && text.contains("current"),
        "{text}"
    );

    second.take_away();
    commit(&cloud, &edge, &files, "minutes").await;
    let seen = edge.wait_for_status(|seen| seen["second"]["state"] == "refusing");
    assert_eq!(seen["uncommitted"]["level"], 2, "uploads go on: {seen}");
    assert!(seen["second"]["backlog_objects"].as_u64() > Some(0), "{seen}");
    assert!(seen["second"]["behind_ms"].as_u64() > Some(0), "{seen}");
    let told = http(port, "/metrics");
    assert!(told.contains("firn_second_store_refusing 1"), "{told}");
    second.bring_back();
    let seen = wait_until_current(&edge);
    assert_eq!(seen["second"]["backlog_objects"], 0, "{seen}");
    assert_mirrored(&cloud, &second);

    // What a kill takes from the queue is found again by the next start.
    second.take_away();
    commit(&cloud, &edge, &files, "letters").await;
    edge.kill();
    second.bring_back();
    edge.start(&[]);
    wait_until_current(&edge);
    assert_mirrored(&cloud, &second);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_store_under_another_name_is_no_second_one() {
    let cloud = Cloud::new();
    let other_name = cloud.path().join("second");
    std::os::unix::fs::symlink(cloud.path().join("store"), &other_name).expect("a link");
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.configure(&cloud, "a", "main", &Second(other_name).section(""));
    edge.format();
    let said = edge.fail(1, &["check"]);
    assert!(said.contains("the first under another name"), "{said}");
    edge.start(&[]);
    let files = edge.client().await;
    commit(&cloud, &edge, &files, "ledger").await;
    let seen = edge.wait_for_status(|seen| seen["second"]["state"] == "alias");
    assert_eq!(seen["second"]["copied_objects"], 0, "{seen}");
    assert!(edge.log().contains("under another name"), "{}", edge.log());
    edge.stop();
    let named = format!("[second]\nstore = \"file://{}/store\"\n", cloud.path().display());
    edge.configure(&cloud, "a", "main", &named);
    let said = edge.fail(2, &["check-config"]);
    assert!(said.contains("the volume's own store"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_first_store_lost_or_altered_is_read_from_the_second() {
    let (cloud, second, mut edge, files) = mirrored("repair = false").await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    let minutes = commit(&cloud, &edge, &files, "minutes").await;
    let letters = commit(&cloud, &edge, &files, "letters").await;
    commit(&cloud, &edge, &files, "notes").await;
    wait_until_current(&edge);
    edge.stop();
    edge.wipe_cache();
    damage(&ledger);
    std::fs::remove_file(&minutes).expect("removed");
    // In neither: it stays an error, and is named.
    std::fs::remove_file(&letters).expect("removed");
    let copy = second
        .0
        .join(letters.strip_prefix(cloud.path().join("store")).expect("below"));
    std::fs::remove_file(copy).expect("removed");

    edge.start(&[]);
    let files = edge.client().await;
    for name in ["ledger", "minutes", "notes"] {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    assert!(files.read_fails("letters").await.is_some());
    let seen = status(&edge);
    assert!(seen["second"]["reads_answered"].as_u64() > Some(0), "{seen}");
    assert_eq!(seen["second"]["segments_read"], 2, "{seen}");
    let damages = edge.wait_for_status(|seen| seen["damages"][0]["path"] == "/letters");
    assert_eq!(damages["damages"].as_array().map(Vec::len), Some(1), "{damages}");
    let log = edge.log();
    let told = log.matches("it is read from the second").count();
    assert_eq!(told, 2, "once for each segment: {log}");
    // Proof of the first store: the second does not count.
    let said = edge.fail(6, &["verify"]);
    for name in ["/ledger", "/minutes", "/letters"] {
        assert!(said.contains(name), "{said}");
    }
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_written_anew_from_the_second_store_and_the_rest_is_named() {
    let (cloud, second, mut edge, files) = mirrored("repair = false").await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    let minutes = commit(&cloud, &edge, &files, "minutes").await;
    let letters = commit(&cloud, &edge, &files, "letters").await;
    let old = commit(&cloud, &edge, &files, "only in a snapshot").await;
    edge.succeed(&["snapshot", "create", "before"]);
    files.remove("only in a snapshot").await;
    commit(&cloud, &edge, &files, "notes").await;
    wait_until_current(&edge);
    let said = edge.succeed(&["repair"]);
    assert!(said.contains("nothing is known to be lost"), "{said}");
    edge.stop();
    edge.wipe_cache();
    damage(&ledger);
    for lost in [&minutes, &letters, &old] {
        std::fs::remove_file(lost).expect("removed");
    }
    let copy = second
        .0
        .join(letters.strip_prefix(cloud.path().join("store")).expect("below"));
    let only_copy = std::fs::read(&copy).expect("a copy");
    std::fs::remove_file(&copy).expect("removed");

    edge.start(&[]);
    let files = edge.client().await;
    // Bytes that are altered and as long as before are met by a reader only.
    assert!(files.read("ledger").await == Some(content("ledger")));
    assert!(files.read_fails("letters").await.is_some());
    let before = members(&cloud.path().join("store"));
    let said = edge.fail(6, &["repair", "--all", "--plan"]);
    assert!(
        said.contains("3 would be written anew") && said.contains("Nothing was changed"),
        "{said}"
    );
    assert_eq!(before, members(&cloud.path().join("store")));
    let said = edge.fail(6, &["repair", "--all"]);
    assert!(
        said.contains("3 were written anew") && said.contains("beyond repair: segment"),
        "{said}"
    );
    assert!(said.contains("lost: /letters"), "{said}");
    for name in ["/ledger", "/minutes", "/notes", "/only"] {
        assert!(!said.contains(name), "{name}: {said}");
    }
    let said = edge.fail(6, &["verify"]);
    assert!(
        said.contains("/letters") && !said.contains("/ledger") && !said.contains("/minutes"),
        "{said}"
    );
    // Never under an old name.
    assert!(!minutes.exists() && !old.exists());

    // Its copy comes back, from wherever: then that is repaired as well.
    std::fs::write(&copy, only_copy).expect("written");
    edge.succeed(&["repair", "--all"]);
    edge.succeed(&["verify"]);
    // From the first store alone.
    edge.stop();
    edge.wipe_cache();
    second.take_away();
    edge.start(&[]);
    let files = edge.client().await;
    for name in ["ledger", "minutes", "letters", "notes"] {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    edge.succeed(&[
        "restore",
        "before",
        "/only in a snapshot",
        "--to",
        "/brought back",
    ]);
    assert!(files.read("brought back").await == Some(content("only in a snapshot")));
    edge.succeed(&["verify"]);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_finds_lost_is_repaired_without_being_asked() {
    let (cloud, _second, mut edge, files) = mirrored("").await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    commit(&cloud, &edge, &files, "notes").await;
    wait_until_current(&edge);
    edge.stop();
    edge.wipe_cache();
    std::fs::remove_file(&ledger).expect("removed");
    edge.start(&[]);
    let files = edge.client().await;
    assert!(files.read("ledger").await == Some(content("ledger")));
    edge.wait_for_status(|seen| {
        let second = &seen["second"];
        second["segments_read"] == 0 && second["lost_segments"] == 0 && second["compared_at_ms"].is_number()
    });
    edge.wait_for_log("was repaired as far as it could be", 1);
    edge.succeed(&["verify"]);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_first_store_and_table_are_gone_is_recovered_from_the_second() {
    let (cloud, second, mut edge, files) = mirrored("").await;
    for name in ["ledger", "minutes"] {
        commit(&cloud, &edge, &files, name).await;
    }
    wait_until_current(&edge);
    edge.kill();
    std::fs::remove_dir_all(cloud.path().join("store")).expect("lost");
    std::fs::remove_file(cloud.path().join("table.redb")).expect("lost");

    // What was the second store is the volume's from now on.
    let next = Machine::new(&cloud, "b", "main");
    let first = format!("file://{}/store", cloud.path().display());
    next.edit(&first, &format!("file://{}", second.0.display()));
    let phrase = edge.config.with_file_name("phrase");
    let phrase = phrase.to_str().expect("a path");
    next.succeed(&["recover", "--phrase-file", phrase, "--yes"]);
    let mut next = next;
    next.start(&[]);
    let files = next.client().await;
    for name in ["ledger", "minutes"] {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    next.succeed(&["verify"]);
    next.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_audit_finds_altered_is_repaired() {
    let (cloud, _second, mut edge, files) = mirrored("repair = false").await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    commit(&cloud, &edge, &files, "notes").await;
    wait_until_current(&edge);
    // As long as before, so no listing shows it, and nobody reads it.
    damage(&ledger);
    edge.fail(6, &["audit", "--challenges", "5000"]);
    let said = edge.succeed(&["repair"]);
    assert!(said.contains("1 were written anew"), "{said}");
    edge.succeed(&["audit", "--challenges", "5000"]);
    edge.succeed(&["verify"]);
    assert!(files.read("ledger").await == Some(content("ledger")));
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_altered_and_nobody_needs_any_more_is_no_damage() {
    let cleaner = "\n[cleaner]\nevery = \"1 s\"\ngrace = \"0 s\"\ncold_after = \"0 s\"";
    let (cloud, second, mut edge, files) = mirrored(&format!("repair = false{cleaner}")).await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    wait_until_current(&edge);
    edge.stop();
    edge.wipe_cache();
    damage(&ledger);
    edge.start(&[]);
    let files = edge.client().await;
    assert!(files.read("ledger").await == Some(content("ledger")));
    edge.wait_for_status(|seen| seen["second"]["segments_read"] == 1);
    // Its users delete the file, a cleaner the segment, and the copy goes when its time is over. The edge still knows the name.
    files.remove("ledger").await;
    let began = std::time::Instant::now();
    while ledger.exists() {
        assert!(began.elapsed() < crate::machine::TIMEOUT, "it is never deleted");
        commit(&cloud, &edge, &files, "notes").await;
    }
    // And forgets that it ever did so.
    for _ in 0..2 {
        edge.succeed(&["clean"]);
    }
    let copy = second
        .0
        .join(ledger.strip_prefix(cloud.path().join("store")).expect("below"));
    std::fs::remove_file(copy).expect("removed");
    let said = edge.succeed(&["repair"]);
    assert!(said.contains("1 are needed by nobody"), "{said}");
    let said = edge.succeed(&["repair"]);
    assert!(said.contains("nothing is known to be lost"), "{said}");
    edge.succeed(&["verify"]);
    edge.stop();
}
