//! An edge whose roots the service keeps, started while the service does not answer.

use crate::{
    branch::{Branch, kept_root},
    machine::{TIMEOUT, mount},
};
use firn_rig::{Client, EXPORT, Edge};
use std::time::{Duration, Instant};

/// What `status` says of the outage once it satisfies `condition`; in between the edge may not answer.
async fn wait_for_outage(edge: &Edge, condition: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let began = Instant::now();
    loop {
        if let Ok(seen) = edge.status().await
            && condition(&seen["detached"])
        {
            return seen;
        }
        assert!(began.elapsed() < TIMEOUT, "{:?}", edge.status().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn content(client: &mut Client, name: &str) -> (blake3::Hash, u64) {
    let root = client.root.clone();
    let file = client.lookup(&root, name.as_bytes()).await.unwrap();
    client.checksum(&file).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_joined_starts_without_the_service_and_commits_when_it_is_back() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        kept,
    } = Branch::joined().await;
    let write = async |client: &mut Client, name: &str| {
        let root = client.root.clone();
        let written = client.write_file(&root, name.as_bytes(), 0o644, name.as_bytes());
        written.await.unwrap();
    };
    let mut client = mount(edge.address, EXPORT).await;
    write(&mut client, "committed").await;
    edge.sync().await.unwrap();
    machine.stop();
    let (before, _) = kept_root(&machine, &kept).await;
    write(&mut client, "journaled").await;
    edge.kill().await.unwrap();

    edge.start().await.unwrap();
    let seen = wait_for_outage(&edge, serde_json::Value::is_object).await;
    assert_eq!(seen["volume"]["state"], "serving", "{seen}");
    assert!(seen["detached"]["table_away"].is_string(), "{seen}");
    let mut client = mount(edge.address, EXPORT).await;
    write(&mut client, "detached").await;
    // A second power cut, and still nobody answers.
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    for name in ["committed", "journaled", "detached"] {
        let expected = (blake3::hash(name.as_bytes()), name.len() as u64);
        assert_eq!(content(&mut client, name).await, expected, "{name}");
    }
    assert_eq!(
        kept_root(&machine, &kept).await.0,
        before,
        "nothing was committed"
    );

    machine.start();
    wait_for_outage(&edge, serde_json::Value::is_null).await;
    edge.sync().await.unwrap();
    let verified = edge.command("verify", &[]).await.unwrap();
    assert!(verified.starts_with("whole"), "{verified}");
    edge.stop().await.unwrap();
    machine.stop();
    let (after, owner) = kept_root(&machine, &kept).await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(owner.as_deref(), Some("edge"));

    // All of it is in the cloud.
    machine.start();
    edge.wipe_cache().unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    for name in ["committed", "journaled", "detached"] {
        let expected = (blake3::hash(name.as_bytes()), name.len() as u64);
        assert_eq!(content(&mut client, name).await, expected, "{name}");
    }
    edge.stop().await.unwrap();
    machine.stop();
}
