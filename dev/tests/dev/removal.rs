//! The end of an edge whose roots the service keeps: a process of its own, on a machine of its own, that is removed while it serves.

use crate::machine::{Machine, TIMEOUT, mount, program};
use firn_rig::{EXPORT, Edge, Settings};
use std::sync::Arc;

/// The newest root that the service keeps for the tenant's one volume. Nobody else may have the table open.
async fn kept_root(machine: &Machine, tenant: &str, volume: &str) -> (u64, Option<String>) {
    let env = firn_env::real(&machine.root).unwrap();
    let table = firn_table::RedbTable::open(&env, &machine.root.join("api.redb"))
        .await
        .unwrap();
    let kept = firn_api::roots_partition(tenant.parse().unwrap(), volume.parse().unwrap());
    // The family is the edge's matter; here it stands for the one partition.
    let family = firn_format::FamilyId([0; 16]);
    let role = firn_anchor::AnchorRole::Observer;
    let anchor = firn_anchor::Anchor::within(Arc::new(table), env, family, kept, role);
    let volumes = anchor.volumes().await.unwrap();
    assert_eq!(volumes.len(), 1);
    let tuple = &volumes[0].tuple;
    (
        tuple.root.as_ref().unwrap().version.0,
        tuple.owner.as_ref().map(|owner| owner.name.clone()),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_edge_commits_nothing_more_and_does_not_start_again() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    let branch = place.path().join("branch");
    let settings = Settings {
        table: "service".into(),
        limits: "checkpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"".into(),
        ..Settings::local(&branch)
    };
    std::fs::create_dir_all(branch.join("store")).unwrap();
    let mut edge = Edge::configure(program("firn-edge"), &branch, settings).unwrap();

    machine.start();
    crate::story::from_nothing_to_an_edge(&machine, &edge.state.display().to_string());
    let tenant = machine.tell(&["whoami"], "")["tenant"]
        .as_str()
        .unwrap()
        .to_owned();
    let volumes = machine.tell(&["volume", "list"], "");
    let volume = volumes[0]["id"].as_str().unwrap().to_owned();
    edge.command("enrol", &[]).await.unwrap();
    edge.start().await.unwrap();
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
    let (before, owner) = kept_root(&machine, &tenant, &volume).await;
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
    let (last, _) = kept_root(&machine, &tenant, &volume).await;
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
        kept_root(&machine, &tenant, &volume).await.0,
        last,
        "no root after the removal"
    );
}
