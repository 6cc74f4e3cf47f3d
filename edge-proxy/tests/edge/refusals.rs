//! What an edge refuses to do, and says how to put right.

use crate::machine::{Cloud, Machine};

#[test]
fn an_unknown_key_is_named_and_nothing_is_started() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.configure(&cloud, "a", "main", "[metrics]\nlisten_on = \"127.0.0.1:1\"");
    for command in ["check-config", "run", "format"] {
        let said = edge.fail(2, &[command]);
        assert!(said.contains("listen_on"), "{said}");
    }
    assert!(!edge.state.exists());
}

#[test]
fn an_identity_is_never_replaced() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let identity = edge.state.join("identity");
    let before = std::fs::read(&identity).expect("an identity");
    let said = edge.fail(2, &["format", "--phrase-file", "/nonexistent/phrase"]);
    assert!(said.contains("has an identity already"), "{said}");
    assert_eq!(std::fs::read(&identity).expect("an identity"), before);
}

#[test]
fn a_wrong_key_opens_nothing() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let identity = edge.state.join("identity");
    let mut bytes = std::fs::read(&identity).expect("an identity");
    // The recipient's secret: after magic, version, family, volume and tenant.
    bytes[8 + 1 + 16 + 16 + 32 + 5] ^= 0x10;
    std::fs::write(&identity, bytes).expect("a changed identity");
    let said = edge.fail(1, &["run"]);
    assert!(said.contains("key does not open the key ring"), "{said}");
}

#[test]
fn another_stores_volume_is_not_served() {
    let (ours, theirs) = (Cloud::new(), Cloud::new());
    let edge = Machine::new(&ours, "a", "main");
    edge.format();
    let other = Machine::new(&theirs, "b", "main");
    other.format();
    edge.configure(&theirs, "a", "main", "");
    let said = edge.fail(1, &["run"]);
    assert!(said.contains("not the store of this volume"), "{said}");
}

#[test]
fn a_state_directory_is_used_by_one_edge_at_a_time() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let said = edge.fail(1, &["run"]);
    assert!(!said.contains("panicked"), "{said}");
    edge.stop();
}
