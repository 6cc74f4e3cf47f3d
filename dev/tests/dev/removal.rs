//! The end of an edge whose roots the service keeps: a process of its own, on a machine of its own, that is removed while it serves.

use crate::{
    branch::{Branch, kept_root},
    machine::{TIMEOUT, mount},
};
use firn_rig::EXPORT;

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_edge_commits_nothing_more_and_does_not_start_again() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        kept,
    } = Branch::joined().await;
    let mut client = mount(edge.address, EXPORT).await;
    let root = client.root.clone();
    for name in ["one", "two"] {
        client
            .write_file(&root, name.as_bytes(), 0o644, b"what is in the cloud")
            .await
            .unwrap();
        edge.sync().await.unwrap();
    }
    // The roots are with the service and nowhere else; it can stop and go on without the edge noticing more than a pause.
    machine.stop();
    let (before, owner) = kept_root(&machine, &kept).await;
    assert!(before >= 2, "a root for each sync: {before}");
    assert_eq!(owner.as_deref(), Some("edge"));
    machine.start();
    client
        .write_file(&root, b"three", 0o644, b"and this")
        .await
        .unwrap();
    edge.sync().await.unwrap();

    let phrase = machine.path("customer/phrase");
    machine.tell(
        &["edge", "remove", "office", "--yes", "--phrase-file", &phrase],
        "",
    );
    machine.stop();
    let (last, _) = kept_root(&machine, &kept).await;
    assert!(last > before, "{last} after {before}");
    machine.start();
    // Acknowledged from the journal (level 1), and it stays there.
    client
        .write_file(&root, b"four", 0o644, b"too late")
        .await
        .unwrap();
    let (code, log) = edge.ended(TIMEOUT).await.unwrap();
    assert_eq!(code, Some(5), "{log}");
    assert!(log.contains("its holder was removed"), "{log}");
    let said = edge.refused(2, "run", &[]).await.unwrap();
    assert!(said.contains("the service refuses this edge"), "{said}");
    machine.stop();
    assert_eq!(
        kept_root(&machine, &kept).await.0,
        last,
        "no root after the removal"
    );
}
