//! Space comes back to a volume whose roots the service keeps: by the cleaner's own program, with the service's table.

use crate::machine::{Machine, mount, program};
use firn_integration::Tree;
use firn_rig::{EXPORT, Edge, Settings};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Runs the cleaner with one configuration; its exit code, and all that it said.
fn clean(config: &Path, text: &str, command: &str) -> (Option<i32>, String) {
    fs::write(config, text).unwrap();
    let output = Command::new(program("firn-cleaner"))
        .arg("--config")
        .arg(config)
        .arg(command)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn segments(log: &Path) -> impl Iterator<Item = PathBuf> {
    let writers = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    writers
        .flat_map(|writer| fs::read_dir(writer).unwrap())
        .map(|entry| entry.unwrap().path())
}

fn segment_bytes(log: &Path) -> u64 {
    segments(log).map(|path| path.metadata().unwrap().len()).sum()
}

/// What an audit found of the volume's manifest: its exit code, what is lost, what is altered; `None` if it could say nothing of it.
fn audited(config: &Path, text: &str) -> Option<(Option<i32>, u64, u64)> {
    let (code, said) = clean(config, text, "audit");
    // What it tells beside stands behind it.
    let report = serde_json::Deserializer::from_str(&said).into_iter().next();
    let report: serde_json::Value = report.and_then(Result::ok)?;
    let manifest = &report["audit"]["volumes"][0]["manifest"];
    let count = |what: &str| manifest[what].as_u64();
    // That of the root is in none: whoever has the root knows its name.
    (count("segments")? >= 1).then_some((code, count("lost")?, count("altered")?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_roots_the_service_keeps_is_cleaned_and_its_edge_reads_everything() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    let branch = place.path().join("branch");
    let settings = Settings {
        table: "service".into(),
        ..Settings::local(&branch)
    };
    fs::create_dir_all(branch.join("store")).unwrap();
    let mut edge = Edge::configure(program("firn-edge"), &branch, settings).unwrap();

    machine.start();
    crate::story::from_nothing_to_an_edge(&machine, &edge.state.display().to_string());
    edge.command("enrol", &["--manifest"]).await.unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    let mut tree = Tree::default();
    for salt in ["first", "second", "third"] {
        tree.write(&mut client, "rewritten", 40, 200_000, salt)
            .await
            .unwrap();
        edge.sync().await.unwrap();
    }
    let volume = machine.tell(&["volume", "list"], "")[0].clone();
    let family = volume["family"].as_str().unwrap().to_owned();
    let tenant = machine.tell(&["whoami"], "")["tenant"].clone();
    let named = format!("{}/{}", tenant.as_str().unwrap(), volume["id"].as_str().unwrap());
    drop(client);
    edge.stop().await.unwrap();
    // An embedded table lets one process in at a time.
    machine.stop();

    let log = branch.join("store").join(&family).join("log");
    let before = segment_bytes(&log);
    let config = place.path().join("firn-cleaner.toml");
    let configured = |roots: &str| {
        let (store, table) = (branch.join("store"), machine.path("api.redb"));
        let store = store.display();
        format!(
            "family = \"{family}\"\nstore = \"file://{store}\"\ntable = \"redb:{table}\"\n{roots}\n[limits]\ngrace_seconds = 0\n"
        )
    };
    // Neither the whole table nor another volume's part of it has this family.
    let other_digit = if named[35..36] == *"0" { "1" } else { "0" };
    let strangers = format!("roots = \"{}{other_digit}{}\"", &named[..35], &named[36..]);
    for roots in ["", &strangers] {
        let (code, said) = clean(&config, &configured(roots), "run");
        assert_eq!(code, Some(1), "{roots}: {said}");
    }
    assert_eq!(segment_bytes(&log), before);
    let ours = configured(&format!("roots = \"{named}\""));
    // The first runs retire, later ones delete what was seen to be retired.
    for _ in 0..4 {
        let (code, said) = clean(&config, &ours, "run");
        assert_eq!(code, Some(0), "{said}");
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(report["report"]["damaged"], serde_json::json!([]), "{report}");
    }
    let after = segment_bytes(&log);
    assert!(after < before * 2 / 3, "{after} of {before} bytes are left");
    // What was retired is no loss; of what is left the volume itself says that it must be there, and as what.
    let whole = Some((Some(0), 0, 0));
    assert_eq!(audited(&config, &ours), whole);
    // One has the root, without which nobody can audit anything; the others are told to be lost.
    let all: Vec<PathBuf> = segments(&log).collect();
    let told_to_be_lost = all.iter().filter(|segment| {
        let bytes = fs::read(segment).unwrap();
        fs::remove_file(segment).unwrap();
        let found = audited(&config, &ours);
        fs::write(segment, &bytes).unwrap();
        found == Some((Some(6), 1, 0))
    });
    assert_eq!(told_to_be_lost.count() + 1, all.len());
    assert_eq!(audited(&config, &ours), whole);

    machine.start();
    edge.wipe_cache().unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    tree.is_what_is_there(&mut client).await.unwrap();
    // It goes on as before, and takes over where things lie now.
    tree.write(&mut client, "later", 10, 200_000, "").await.unwrap();
    edge.sync().await.unwrap();
    let said = edge.command("verify", &[]).await.unwrap();
    assert!(said.starts_with("whole"), "{said}");
    let said = edge.command("audit", &[]).await.unwrap();
    assert!(said.contains("0 are lost, 0 altered"), "{said}");
    drop(client);
    edge.stop().await.unwrap();
    machine.stop();
}
