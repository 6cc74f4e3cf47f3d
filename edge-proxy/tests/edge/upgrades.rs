//! An upgrade is judged before it is made, and a build that cannot read what is here says so in one line and touches nothing.

use crate::{
    machine::{Cloud, Machine},
    noise::noise,
};
use serde_json::{Value, json};
use std::path::PathBuf;

fn record(edge: &Machine) -> PathBuf {
    edge.state.join("served-by")
}

fn read(edge: &Machine) -> Value {
    serde_json::from_slice(&std::fs::read(record(edge)).expect("a record")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_served_here_last_is_recorded_and_judged() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let said = edge.succeed(&["upgrade", "--check"]);
    assert!(
        said.contains("the release before this one") && said.contains("no volume was set up here"),
        "{said}"
    );
    edge.format();
    edge.start(&[]);
    edge.client().await.write("plan", &noise(1, 300_000)).await;
    edge.kill();

    let ours: Value = serde_json::from_str(&edge.succeed(&["upgrade", "--formats"])).expect("JSON");
    assert_eq!(read(&edge), json!({ "served": ours, "before": null }));
    let said = edge.succeed(&["upgrade", "--check"]);
    for part in [
        "journal files are read by this build",
        "this build reads the root, at version",
        "it may be installed again at any time",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    // A build before this one, which read less: going on is fine, going back is not.
    let mut before = ours.clone();
    before["version"] = "0.0.9".into();
    let known = before["formats"].as_object_mut().expect("formats");
    known.remove("ownership statement").expect("it is there");
    let held = json!({ "served": before });
    std::fs::write(record(&edge), held.to_string()).expect("written");
    let said = edge.fail(7, &["upgrade", "--check", "--offline"]);
    for part in [
        "reads all 21 formats of 0.0.9, which served here last",
        "going back",
        "0.0.9 does not read ownership statement 1 (unknown)",
        "is not asked",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // One whose journal alone is older: draining makes the way back.
    let mut older = ours.clone();
    older["formats"]["journal file"] = json!({ "oldest": 1, "newest": 1 });
    std::fs::write(record(&edge), json!({ "served": older }).to_string()).expect("written");
    let said = edge.fail(7, &["upgrade", "--check", "--offline"]);
    assert!(said.contains("to go back: firn-edge drain first"), "{said}");

    edge.start(&[]);
    assert_eq!(edge.client().await.read("plan").await, Some(noise(1, 300_000)));
    edge.stop();
    assert_eq!(read(&edge), json!({ "served": ours, "before": older }));
    let said = edge.fail(7, &["upgrade", "--check"]);
    assert!(said.contains("which served here before this build"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_build_on_newer_data_is_refused_in_one_line_and_touches_nothing() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("plan", &noise(1, 300_000)).await;
    edge.kill();
    let ours = std::fs::read(record(&edge)).expect("a record");
    let mut newer = read(&edge)["served"].clone();
    newer["version"] = "9.0.0".into();
    newer["formats"]["journal file"] = json!({ "oldest": 2, "newest": 7 });
    std::fs::write(record(&edge), json!({ "served": newer }).to_string()).expect("written");
    let said = edge.fail(2, &["run"]);
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    for part in [
        "served by firn-edge 9.0.0",
        "journal file 7 (read: 1 to 2)",
        "Nothing was changed: install that version",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = edge.fail(1, &["upgrade", "--check", "--offline"]);
    assert!(said.contains("cannot work  formats"), "{said}");
    // A journal of a version that nobody reads here, whatever the record says.
    std::fs::write(record(&edge), &ours).expect("written");
    let tenures = std::fs::read_dir(edge.state.join("journal")).expect("a journal");
    let file = tenures
        .flat_map(|tenure| std::fs::read_dir(tenure.expect("a tenure").path()).expect("its files"))
        .map(|entry| entry.expect("an entry").path())
        .find(|path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"FIRN")))
        .expect("a file of the journal");
    let whole = std::fs::read(&file).expect("its bytes");
    let mut changed = whole.clone();
    changed[8] = 7;
    std::fs::write(&file, &changed).expect("written");
    let said = edge.fail(1, &["upgrade", "--check", "--offline"]);
    assert!(
        said.contains("cannot work  state") && said.contains("serve with the version that wrote it"),
        "{said}"
    );
    std::fs::write(&file, &whole).expect("written");
    edge.start(&[]);
    assert_eq!(edge.client().await.read("plan").await, Some(noise(1, 300_000)));
    edge.stop();
}
