//! The program gets space back while every edge is off, and an edge started afterwards reads everything.

use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The family whose log lies below the store's directory, and the bytes of its segments.
fn log_of(store: &Path) -> (String, u64) {
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

fn run(config: &PathBuf, command: &str) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_firn-cleaner"))
        .arg("--config")
        .arg(config)
        .arg(command)
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn space_shrinks_while_every_edge_is_off_and_everything_is_there_afterwards() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let binary = Edge::binary().expect("the edge's program");
    let mut edge = Edge::format_local(binary, place.path(), |_| {})
        .await
        .expect("a new volume");
    edge.start().await.expect("it serves");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    let mut tree = Tree::default();
    for salt in ["first", "second", "third"] {
        tree.write(&mut client, "rewritten", 60, 300_000, salt)
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
    let (family, before) = log_of(&store);
    let config = place.path().join("firn-cleaner.toml");
    let text = format!(
        "family = \"{family}\"\nstore = \"file://{}\"\ntable = \"redb:{}\"\n[limits]\ngrace_seconds = 0\n",
        store.display(),
        place.path().join("table.redb").display()
    );
    std::fs::write(&config, text).expect("a configuration");

    let plan = run(&config, "plan");
    assert!(plan["plan"]["freed_bytes"].as_u64() > Some(before / 4), "{plan}");
    assert_eq!(log_of(&store).1, before, "a plan changes nothing");
    // The first runs retire, later ones delete what was seen to be retired.
    for _ in 0..4 {
        let report = run(&config, "run");
        assert_eq!(report["report"]["damaged"], serde_json::json!([]), "{report}");
    }
    let after = log_of(&store).1;
    assert!(after < before * 2 / 3, "{after} of {before} bytes are left");

    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts after the cleaner");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client).await.expect("everything");
    // It goes on as before, and takes over where things lie now.
    tree.write(&mut client, "later", 20, 300_000, "")
        .await
        .expect("files");
    edge.sync().await.expect("everything in the store");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client);
    edge.stop().await.expect("a clean end");
}
