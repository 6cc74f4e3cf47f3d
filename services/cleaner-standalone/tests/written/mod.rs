//! A volume whose edge has stopped, and the program that is run over it.
#![allow(dead_code, reason = "each test file uses a part")]

use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

/// The family whose log lies below the store's directory, and the bytes of its segments.
pub fn log_of(store: &Path) -> (String, u64) {
    let mut families = std::fs::read_dir(store)
        .expect("a store")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("log").is_dir());
    let family = families.next().expect("a family");
    assert_eq!(families.next(), None, "one family");
    let mut bytes = 0;
    for writer in std::fs::read_dir(family.join("log")).expect("a log") {
        for segment in std::fs::read_dir(writer.expect("an entry").path()).expect("a writer's log") {
            bytes += segment.expect("an entry").metadata().expect("a segment").len();
        }
    }
    let name = family.file_name().expect("a name").to_str().expect("hexadecimal");
    (name.to_owned(), bytes)
}

/// The cleaner's program: what `FIRN_CLEANER` names, or what was built with this test.
pub fn cleaner() -> PathBuf {
    let other = std::env::var_os("FIRN_CLEANER");
    other
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_firn-cleaner").into())
        .into()
}

pub fn run(config: &PathBuf, command: &str) -> serde_json::Value {
    let output = Command::new(cleaner())
        .arg("--config")
        .arg(config)
        .arg(command)
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

/// A volume whose edge has stopped, the tree in it, and a configuration of the cleaner with `more` in it.
pub struct Written {
    pub place: tempfile::TempDir,
    pub edge: Edge,
    pub tree: Tree,
    pub config: PathBuf,
    pub family: String,
    /// Of all segments.
    pub bytes: u64,
}

impl Written {
    /// `rewritten` times sixty files are written over, then forty written once.
    pub async fn new(rewritten: usize, more: &str) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let binary = Edge::binary().expect("the edge's program");
        let mut edge = Edge::format_local(binary, place.path(), |_| {})
            .await
            .expect("a new volume");
        edge.start().await.expect("it serves");
        let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
        let mut tree = Tree::default();
        for time in 0..rewritten {
            tree.write(&mut client, "rewritten", 60, 300_000, &time.to_string())
                .await
                .expect("files");
            edge.sync().await.expect("everything in the store");
        }
        tree.write(&mut client, "kept", 40, 300_000, "")
            .await
            .expect("files");
        drop(client);
        edge.sync().await.expect("everything in the store");
        edge.stop().await.expect("a clean end");
        let store = place.path().join("store");
        let (family, bytes) = log_of(&store);
        let config = place.path().join("firn-cleaner.toml");
        let text = format!(
            "family = \"{family}\"\nstore = \"file://{}\"\ntable = \"redb:{}\"\n{more}",
            store.display(),
            place.path().join("table.redb").display()
        );
        std::fs::write(&config, text).expect("a configuration");
        Self {
            place,
            edge,
            tree,
            config,
            family,
            bytes,
        }
    }

    pub fn store(&self) -> PathBuf {
        self.place.path().join("store")
    }
}

/// Runs a command, and answers its exit code, its report if it made one, and what it said beside.
pub fn answer(config: &PathBuf, command: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let output = Command::new(cleaner())
        .arg("--config")
        .arg(config)
        .args(command)
        .output()
        .expect("the program starts");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), report, said)
}

/// The segments below the store's directory, the largest last.
pub fn segments(store: &Path, family: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for writer in std::fs::read_dir(store.join(family).join("log")).expect("a log") {
        for segment in std::fs::read_dir(writer.expect("an entry").path()).expect("a writer's log") {
            found.push(segment.expect("an entry").path());
        }
    }
    found.sort_by_key(|path| path.metadata().expect("a segment").len());
    found
}

/// The names of all segments below a store's directory, with their lengths.
pub fn names(store: &Path, family: &str) -> BTreeMap<PathBuf, u64> {
    let name = |path: PathBuf| {
        let length = path.metadata().expect("a segment").len();
        (path.strip_prefix(store).expect("below it").to_owned(), length)
    };
    segments(store, family).into_iter().map(name).collect()
}
