//! Two edges and one volume: what is acknowledged is never lost, and never mixed.

use crate::machine::{Cloud, Machine};

/// The embedded table is open to one process at a time, so that the two edges run one after the other here; that an edge
/// which is alive is fenced is shown by the engine's own tests and by the simulation.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_cut_off_edge_acknowledged_is_in_a_salvage_clone_and_the_new_owners_data_stand() {
    let cloud = Cloud::new();
    let mut a = Machine::new(&cloud, "a", "main");
    a.format();
    a.start(&[]);
    let files = a.client().await;
    files.write("common", b"committed").await;
    a.succeed(&["sync"]);
    a.stop();

    // Cut off from the store: everything is acknowledged, nothing is committed.
    let outage = cloud.path().join("outage.toml");
    // The start needs the key ring; the line is cut a little later.
    std::fs::write(
        &outage,
        "seed = 1\n[faults]\n[[phases]]\nfrom_ms = 1500\n[phases.faults]\noutage = \"refuse\"\n",
    )
    .expect("the faults");
    a.start(&["--fault", outage.to_str().expect("a path")]);
    tokio::time::sleep(std::time::Duration::from_millis(1600)).await;
    let files = a.client().await;
    for number in 0..20 {
        files
            .write(&format!("only-a-{number}"), b"acknowledged by a")
            .await;
    }
    files.write("common", b"changed by a").await;
    a.kill();

    // Another machine takes the volume by force and writes.
    let mut b = Machine::new(&cloud, "b", "main");
    let identity = a.state.join("identity");
    b.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    let said = b.fail(3, &["run"]);
    assert!(said.contains('a'), "{said}");
    let said = b.succeed(&["takeover", "--force"]);
    assert!(said.contains("Taken over from a"), "{said}");
    b.start(&[]);
    let files = b.client().await;
    assert_eq!(files.read("common").await.as_deref(), Some(&b"committed"[..]));
    assert_eq!(files.read("only-a-0").await, None);
    files.write("common", b"changed by b").await;
    files.write("only-b", b"acknowledged by b").await;
    b.stop();

    // The first comes back: it serves nothing and brings what it has to safety.
    let said = a.fail(4, &["run"]);
    let name = said
        .split_whitespace()
        .find(|word| word.starts_with("salvage-"))
        .map(|word| word.trim_end_matches(['.', ';', ',']))
        .unwrap_or_else(|| panic!("no clone is named: {said}"));
    let said = a.fail(3, &["run"]);
    assert!(said.contains('b'), "{said}");

    b.start(&[]);
    let files = b.client().await;
    assert_eq!(files.read("common").await.as_deref(), Some(&b"changed by b"[..]));
    assert_eq!(
        files.read("only-b").await.as_deref(),
        Some(&b"acknowledged by b"[..])
    );
    assert_eq!(files.read("only-a-0").await, None);
    assert!(b.succeed(&["verify"]).starts_with("whole"));
    b.stop();

    // The clone is a volume like any other.
    let mut salvage = Machine::new(&cloud, "s", name);
    salvage.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    salvage.succeed(&["takeover", "--force"]);
    salvage.start(&[]);
    let files = salvage.client().await;
    assert_eq!(files.read("common").await.as_deref(), Some(&b"changed by a"[..]));
    for number in 0..20 {
        let read = files.read(&format!("only-a-{number}")).await;
        assert_eq!(
            read.as_deref(),
            Some(&b"acknowledged by a"[..]),
            "only-a-{number}"
        );
    }
    assert_eq!(files.read("only-b").await, None);
    salvage.stop();
}
