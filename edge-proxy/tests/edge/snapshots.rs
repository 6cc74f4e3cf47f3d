//! Snapshots as clients and administrators meet them: over MOUNT and NFS, and on the command line.

use crate::machine::{Cloud, Machine};
use bytes::Bytes;
use firn_nfs::v3::{
    Status,
    types::{CreateHow, NewAttributes, StableHow},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_mounted_read_over_a_restart_restored_cloned_and_deleted() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("letter", b"Monday").await;
    let said = edge.succeed(&["snapshot", "create", "monday"]);
    assert!(
        said.contains("level 2") && said.contains(".snapshots/monday"),
        "{said}"
    );
    files.write("letter", b"Tuesday").await;
    edge.succeed(&["snapshot", "create", "kept", "--protect", "30 d"]);

    // Mounted by its own path, and looked up from the root.
    let mounted = files.mounted("/export/.snapshots/monday").await.expect("a mount");
    let client = files.client();
    let old = client
        .lookup(&mounted, "letter")
        .await
        .expect("an answer")
        .expect("there")
        .file;
    let content = client.read(&old, 0, 100).await.expect("an answer").expect("data");
    assert_eq!(content.data.0.concat(), b"Monday");
    assert_eq!(files.read("letter").await.as_deref(), Some(&b"Tuesday"[..]));
    let live = client
        .get_attributes(files.root())
        .await
        .expect("an answer")
        .expect("attributes");
    let kept = client
        .get_attributes(&old)
        .await
        .expect("an answer")
        .expect("attributes");
    assert_ne!(
        live.file_system, kept.file_system,
        "a snapshot is a file system of its own"
    );
    let refused = client
        .write(&old, 0, Bytes::from_static(b"no"), StableHow::FileSync)
        .await
        .expect("an answer");
    assert_eq!(refused.expect_err("read-only").status, Status::ReadOnly);
    let how = CreateHow::Unchecked(NewAttributes::default());
    let refused = client.create(&mounted, "new", how).await.expect("an answer");
    assert_eq!(refused.expect_err("read-only").status, Status::ReadOnly);
    let refused = client.remove(&mounted, "letter").await.expect("an answer");
    assert_eq!(refused.expect_err("read-only").status, Status::ReadOnly);

    // A handle outlives the edge's process.
    edge.stop();
    edge.start(&[]);
    let files = edge.client().await;
    let content = files
        .client()
        .read(&old, 0, 100)
        .await
        .expect("an answer")
        .expect("data");
    assert_eq!(content.data.0.concat(), b"Monday");

    let list = edge.succeed(&["snapshot", "list", "--space"]);
    assert!(list.contains("monday") && list.contains("kept"), "{list}");
    let said = edge.fail(1, &["snapshot", "delete", "kept"]);
    assert!(said.contains("protected for another 720 hours"), "{said}");
    let said = edge.fail(1, &["snapshot", "create", "monday"]);
    assert!(said.contains("exists already"), "{said}");
    let said = edge.fail(2, &["snapshot", "protect", "monday", "soon"]);
    assert!(said.contains("30 d"), "{said}");

    let said = edge.succeed(&["restore", "monday", "letter", "--to", "old letter"]);
    assert!(said.contains("restored: 1 files"), "{said}");
    assert_eq!(files.read("old letter").await.as_deref(), Some(&b"Monday"[..]));
    let said = edge.fail(1, &["restore", "monday", "letter"]);
    assert!(said.contains("exists") && said.contains("--replace"), "{said}");
    edge.succeed(&["restore", "monday", "letter", "--replace"]);
    assert_eq!(files.read("letter").await.as_deref(), Some(&b"Monday"[..]));

    let said = edge.succeed(&["clone", "experiment", "--snapshot", "kept"]);
    assert!(
        said.contains("experiment") && said.contains("firn-edge join"),
        "{said}"
    );
    edge.succeed(&["snapshot", "delete", "monday"]);
    let gone = files.client().read(&old, 0, 100).await.expect("an answer");
    assert_eq!(gone.expect_err("deleted").status, Status::Stale);
    edge.stop();

    let mut other = Machine::new(&cloud, "b", "experiment");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    other.start(&[]);
    let clone = other.client().await;
    assert_eq!(clone.read("letter").await.as_deref(), Some(&b"Tuesday"[..]));
    clone.write("letter", b"Wednesday").await;
    other.succeed(&["sync"]);
    other.stop();
    edge.start(&[]);
    assert_eq!(
        edge.client().await.read("letter").await.as_deref(),
        Some(&b"Monday"[..])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_recovered_from_bucket_and_phrase_with_the_table_and_the_edge_gone() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..20 {
        files
            .write(&format!("file{number}"), format!("content {number}").as_bytes())
            .await;
    }
    edge.succeed(&["snapshot", "create", "s"]);
    files.write("late", b"still committed").await;
    edge.succeed(&["sync"]);
    files.write("lost", b"in the journal only").await;
    edge.kill();
    std::fs::remove_file(cloud.path().join("table.redb")).expect("the table");
    let phrase = edge.config.with_file_name("phrase");
    let phrase = phrase.to_str().expect("a path");
    std::fs::remove_dir_all(&edge.state).expect("the state");

    let mut next = Machine::new(&cloud, "c", "main");
    let wrong = next.config.with_file_name("wrong");
    std::fs::write(&wrong, "no such words").expect("written");
    let said = next.fail(2, &["recover", "--phrase-file", wrong.to_str().expect("a path")]);
    assert!(said.contains("nothing was changed"), "{said}");
    let said = next.succeed(&["recover", "--phrase-file", phrase]);
    assert!(
        said.contains("--yes") && said.contains("22 files") && said.contains("never committed"),
        "{said}"
    );
    let said = next.succeed(&["recover", "--phrase-file", phrase, "--yes"]);
    assert!(said.contains("Recovered"), "{said}");
    next.start(&[]);
    let files = next.client().await;
    for number in 0..20 {
        let content = files.read(&format!("file{number}")).await;
        assert_eq!(content, Some(format!("content {number}").into_bytes()));
    }
    assert_eq!(files.read("late").await.as_deref(), Some(&b"still committed"[..]));
    assert_eq!(files.read("lost").await, None);
    assert!(next.succeed(&["snapshot", "list"]).contains("s "));
    // Those of the volume, and its root directory as the snapshot has it.
    let said = next.succeed(&["verify"]);
    assert!(
        said.starts_with("whole: 23 files") && said.contains("1 snapshots"),
        "{said}"
    );
    files.write("new", b"goes on").await;
    next.succeed(&["sync"]);
    next.stop();
}
