//! Refusals of an edge, each with how to put it right.

use crate::machine::{Cloud, Machine};
use firn_table::{Condition, RedbTable, Table as _, Write};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_shows_a_clones_root_for_the_volume_is_refused() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("letter", b"Monday").await;
    edge.succeed(&["sync"]);
    edge.succeed(&["clone", "sandbox"]);
    edge.client().await.write("letter", b"Tuesday").await;
    edge.succeed(&["drain"]);
    edge.child.take().expect("it ran").wait().expect("an end");

    // Whoever controls the table puts the clone's tuple in the volume's place.
    let env = firn_env::real(cloud.path()).expect("an environment");
    let path = cloud.path().join("table.redb");
    let table = RedbTable::open(&env, &path).await.expect("the table");
    let family: firn_format::FamilyId = std::fs::read_dir(cloud.path().join("store"))
        .expect("the store")
        .find_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .expect("a family");
    let page = table
        .query(&format!("family/{family}"), "volume/", None, 10)
        .await
        .expect("the volumes");
    let [one, other] = &page.items[..] else {
        panic!("two volumes: {page:?}");
    };
    let named =
        |item: &firn_table::Item, name: &[u8]| item.value.windows(name.len()).any(|part| part == name);
    let (main, clone) = if named(one, b"sandbox") {
        (other, one)
    } else {
        (one, other)
    };
    assert!(named(clone, b"sandbox") && !named(main, b"sandbox"));
    let write = Write::Put {
        key: main.key.clone(),
        value: clone.value.clone(),
        condition: Condition::Version(main.version),
    };
    table.transact(vec![write]).await.expect("written");
    drop(table);

    // A machine that has seen no root of it yet, which would tell.
    let identity = edge.state.join("identity");
    let next = Machine::new(&cloud, "b", "main");
    std::fs::create_dir(&next.state).expect("a directory");
    std::fs::copy(identity, next.state.join("identity")).expect("copied");
    let said = next.fail(1, &["run"]);
    assert!(said.contains("the table was rolled back"), "{said}");
    assert!(said.contains("nothing was changed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_restored_from_a_backup_is_refused_and_the_bucket_has_the_newer_state() {
    let cloud = Cloud::new();
    let table = cloud.path().join("table.redb");
    let backup = cloud.path().join("table.backup");
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("letter", b"Monday").await;
    edge.succeed(&["sync"]);
    edge.stop();
    std::fs::copy(&table, &backup).expect("copied");
    edge.start(&[]);
    edge.client().await.write("letter", b"Tuesday").await;
    edge.succeed(&["sync"]);
    edge.stop();
    std::fs::copy(&backup, &table).expect("restored");

    let said = edge.fail(1, &["run"]);
    assert!(
        said.contains("rolled back") && said.contains("recover the volume into a new table"),
        "{said}"
    );

    std::fs::remove_file(&table).expect("a new table");
    let phrase = edge.config.with_file_name("phrase");
    let mut next = Machine::new(&cloud, "b", "main");
    let phrase = phrase.to_str().expect("a path");
    next.succeed(&["recover", "--phrase-file", phrase, "--yes"]);
    next.start(&[]);
    assert_eq!(
        next.client().await.read("letter").await.as_deref(),
        Some(&b"Tuesday"[..])
    );
    next.stop();
}
