//! A rekey that the customer orders: obeyed by an edge that is a process of its own, while an NFS client works, and told at the command line.

use crate::{
    branch::Branch,
    machine::{Machine, mount},
};
use firn_rig::{Client, EXPORT};
use serde_json::Value;
use std::time::{Duration, Instant};

/// An edge whose clients work asks every half minute.
const TOLD_WITHIN: Duration = Duration::from_secs(120);

const STATUS: [&str; 4] = ["volume", "rekey", "files", "--status"];

async fn write(client: &mut Client, name: &str, data: &[u8]) {
    let root = client.root.clone();
    let written = client.write_file(&root, name.as_bytes(), 0o644, data).await;
    written.unwrap();
}

/// Writes until the edge's word on the rekey satisfies `condition`.
async fn until(
    machine: &Machine,
    client: &mut Client,
    what: &str,
    condition: impl Fn(&Value) -> bool,
) -> Value {
    let began = Instant::now();
    loop {
        write(client, "probe", b"a client works meanwhile").await;
        let told = machine.tell(&STATUS, "");
        let number = &told["asked"]["number"];
        let rekey = &told["edges"][0]["rekey"];
        if rekey["number"] == *number && condition(rekey) {
            return rekey.clone();
        }
        assert!(began.elapsed() < TOLD_WITHIN, "{what}: {told}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_customer_has_a_volume_rekeyed_and_reads_what_still_needs_older_keys() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        ..
    } = Branch::joined().await;
    let phrase = machine.path("customer/phrase");
    let rotate = |machine: &Machine| {
        machine.tell(&["volume", "rotate", "files", "--phrase-file", &phrase], "");
    };
    let mut client = mount(edge.address, EXPORT).await;
    // Nothing compresses it: a rekey at the slowest rate takes eight minutes.
    let mut seed = 7_u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 56) as u8
    })
    .take(8 << 20)
    .collect();
    write(&mut client, "kept", &content).await;
    let root = client.root.clone();
    let kept = client.lookup(&root, b"kept").await.unwrap();
    let checksum = client.checksum(&kept).await.unwrap();
    assert_eq!(checksum.1, 8 << 20);
    edge.command("snapshot", &["create", "before"]).await.unwrap();
    assert!(machine.shows(&STATUS).contains("no rekey was asked for"));
    machine.refused(2, &["volume", "rekey", "files", "--rate", "soon"]);

    // The first keys are the newest: there is nothing to do, and the edge says so.
    let asked = machine.tell(&["volume", "rekey", "files"], "");
    assert_eq!(asked["asked"]["order"]["to_epoch"], 1, "{asked}");
    let rekey = until(&machine, &mut client, "nothing is older", |rekey| {
        rekey["oldest_epoch_needed"] == 1
    })
    .await;
    assert!(rekey["under_way_to"].is_null(), "{rekey}");

    // After a rotation it goes on at a rate that it would not end with, over a power cut, until it is told to stop.
    rotate(&machine);
    let asked = machine.shows(&["volume", "rekey", "files", "--rate", "16 KiB"]);
    assert!(
        asked.contains("to key epoch 2") && asked.contains("has not said"),
        "{asked}"
    );
    until(&machine, &mut client, "it is under way", |rekey| {
        rekey["under_way_to"] == 2
    })
    .await;
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    until(&machine, &mut client, "it goes on", |rekey| {
        rekey["under_way_to"] == 2
    })
    .await;
    assert!(
        machine
            .shows(&["edge", "show", "office"])
            .contains("rekey to key epoch 2 is under way")
    );
    machine.tell(&["volume", "rekey", "files", "--stop"], "");
    let stopped = until(&machine, &mut client, "it stops", |rekey| {
        rekey["last_end"] == "stopped" && rekey["under_way_to"].is_null()
    })
    .await;
    assert_eq!(stopped["oldest_epoch_needed"], 1, "{stopped}");

    machine.tell(&["volume", "rekey", "files", "--rate", "1 GiB"], "");
    let done = until(&machine, &mut client, "it is done", |rekey| {
        rekey["last_end"] == "done"
    })
    .await;
    assert_eq!(done["oldest_epoch"], 2, "{done}");
    assert_eq!(done["oldest_epoch_needed"], 1, "a snapshot needs it: {done}");
    let mut old: Vec<&str> = done["old_snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert!(old.contains(&"before"), "{done}");
    let said = machine.shows(&STATUS);
    assert!(
        said.contains("older keys until they are deleted") && said.contains("before"),
        "{said}"
    );
    assert!(
        machine
            .shows(&["volume", "show", "files"])
            .contains("the rekey is done")
    );

    // What holds the old key is deleted; then nothing that can be reached needs it, and the content is what it was.
    for name in old.drain(..) {
        edge.command("snapshot", &["delete", name]).await.unwrap();
    }
    until(&machine, &mut client, "nothing needs the old key", |rekey| {
        rekey["oldest_epoch_needed"] == 2
    })
    .await;
    assert!(
        machine
            .shows(&STATUS)
            .contains("nothing that can be reached needs a key older than epoch 2")
    );
    assert_eq!(client.checksum(&kept).await.unwrap(), checksum);
    let verified = edge.command("verify", &[]).await.unwrap();
    assert!(verified.contains("key epoch 2 only"), "{verified}");
    edge.stop().await.unwrap();
    machine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_rekeys_a_volume_that_no_edge_serves() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    machine.start();
    machine.sign_up();
    machine.make_volume("files");
    machine.refused(6, &["volume", "rekey", "files"]);
    machine.stop();
}
