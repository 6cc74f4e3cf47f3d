//! A volume that several offices write at the same moment: what a customer types from its making on, over a real service, with real edges and NFS clients.
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

use crate::sharing::{TIMEOUT, add_lines, signed_up};
use firn_rig::{Client, EXPORT, Settings};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};

const BY_INODE: &str = "shared = true\nleases = \"inode\"\nfreshness = \"0 s\"\n";

/// How many files each office makes while the other does.
const FILES: usize = 20;

async fn fill(client: &mut Client, directory: &firn_rig::FileHandle, who: &str) {
    for number in 0..FILES {
        let name = format!("{who}-{number}");
        client
            .write_file(directory, name.as_bytes(), 0o644, name.as_bytes())
            .await
            .unwrap();
    }
}

/// The last file in the other office's directory, once it is committed. Each edge has handles of its own.
async fn sees(client: &mut Client, who: &str) {
    let name = format!("{who}-{}", FILES - 1);
    let (root, end) = (client.root.clone(), Instant::now() + TIMEOUT);
    loop {
        if let Ok(directory) = client.lookup(&root, who.as_bytes()).await
            && let Ok(file) = client.lookup(&directory, name.as_bytes()).await
        {
            assert_eq!(
                client.checksum(&file).await.unwrap().0,
                blake3::hash(name.as_bytes())
            );
            return;
        }
        assert!(Instant::now() < end, "{name} does not appear");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Name and state of each member, as people are shown them.
fn stand(members: &Value) -> Vec<(&str, &str)> {
    let members = members.as_array().unwrap().iter();
    members
        .map(|member| {
            (
                member["name"].as_str().unwrap(),
                member["state"].as_str().unwrap(),
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_asked_for_with_leases_by_inode_is_written_by_two_offices_at_the_same_moment() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (service, (ada, bob)) = signed_up(place);
    let made = ada.signs(&["volume", "create", "files", "--region", "eu", "--leases", "inode"]);
    assert_eq!(made["leases"], "inode", "{made}");
    fs::create_dir(place.join("store")).unwrap();
    let settings = |name: &str| Settings {
        name: name.into(),
        table: "service".into(),
        limits: "checkpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"".into(),
        ..Settings::local(place)
    };
    let office = |name: &str| ada.joined(&service, name, &["files"], settings(name), &place.join(name));

    // The first edge makes it as it was asked for, or not at all.
    let mut head = office("head");
    let refused = head.refused(2, "enrol", &[]).await.unwrap();
    assert!(refused.contains("does not say so; nothing was made"), "{refused}");
    add_lines(&head, BY_INODE);
    head.command("enrol", &[]).await.unwrap();
    head.start().await.unwrap();
    // What is printed for the next machine says it already.
    let install = [
        "edge",
        "install",
        "annex",
        "--volume",
        "files",
        "--clients",
        "10.1.0.0/16",
    ];
    let store = ["--store", "s3://b/p?region=eu-west-1"];
    let script = ada.person.firn(&[&install[..], &store].concat()).good().out();
    assert!(script.contains("shared = true\nleases = \"inode\"\n"), "{script}");
    let mut branch = office("branch");
    add_lines(&branch, BY_INODE);
    branch.command("enrol", &[]).await.unwrap();
    branch.start().await.unwrap();

    let mut one = Client::mount(head.address, EXPORT).await.unwrap();
    let mut two = Client::mount(branch.address, EXPORT).await.unwrap();
    let (root_of_one, root_of_two) = (one.root.clone(), two.root.clone());
    let of_one = one.make_directory(&root_of_one, b"one").await.unwrap();
    let of_two = two.make_directory(&root_of_two, b"two").await.unwrap();
    tokio::join!(fill(&mut one, &of_one, "one"), fill(&mut two, &of_two, "two"));
    tokio::join!(sees(&mut one, "two"), sees(&mut two, "one"));

    // Who they are and how they stand, from any machine of an administrator.
    let members = ada.person.json(&["volume", "members", "files"]);
    assert_eq!(stand(&members), [("head", "present"), ("branch", "present")]);
    let edges = ada.person.json(&["edge", "list"]);
    for member in members.as_array().unwrap() {
        let mut edges = edges.as_array().unwrap().iter();
        assert!(edges.any(|edge| edge["id"] == member["edge"] && edge["name"] == member["name"]));
        assert!(member["last_commit"].as_u64().is_some(), "{member}");
    }
    let shown = ada.person.firn(&["volume", "members", "files"]).good().out();
    assert!(shown.contains("branch") && shown.contains("present"), "{shown}");

    // An office of another tenant may read it, and not write it.
    let share = ["share", "files", "--with", &bob.tenant, "--key", &bob.key];
    let refused = ada.person.firn(&[&share[..], &["--write"]].concat());
    assert!(
        refused.err().contains("cannot be checked yet"),
        "{}",
        refused.err()
    );
    let granted = Settings {
        volume: made["id"].as_str().unwrap().to_owned(),
        ..settings("reader")
    };
    let mut reader = ada.joined(&service, "reader", &[], granted, &place.join("reader"));
    let printed = ada.signs(&["share", "files", "--with", "reader", "--read"]);
    let printed = printed["configuration"].as_str().unwrap();
    assert!(printed.contains("follow = true"), "{printed}");
    add_lines(&reader, "follow = true\nfreshness = \"0 s\"\n");
    reader.command("enrol", &[]).await.unwrap();
    reader.start().await.unwrap();
    let mut three = Client::mount(reader.address, EXPORT).await.unwrap();
    sees(&mut three, "one").await;

    // A mount of a machine would not be told what the offices change.
    let directory = place.join("mnt");
    fs::create_dir(&directory).unwrap();
    let mount = ada.tries(&["mount", "files", directory.to_str().unwrap()]);
    assert_eq!(mount.code(), 2, "{}", mount.err());
    assert!(mount.err().contains("at the same moment"), "{}", mount.err());

    // Who stops has published everything; the others go on, and read it.
    two.write_file(&of_two, b"last", 0o644, b"before it closes")
        .await
        .unwrap();
    branch.stop().await.unwrap();
    let members = ada.person.json(&["volume", "members", "files"]);
    assert_eq!(stand(&members), [("head", "present"), ("branch", "away")]);
    let there = one.lookup(&root_of_one, b"two").await.unwrap();
    let last = one.lookup(&there, b"last").await.unwrap();
    assert_eq!(
        one.checksum(&last).await.unwrap().0,
        blake3::hash(b"before it closes")
    );
    one.write_file(&there, b"last", 0o644, b"and after")
        .await
        .unwrap();
    assert_eq!(one.checksum(&last).await.unwrap().0, blake3::hash(b"and after"));

    // Of a volume that is written by one edge at a time nobody is a member.
    ada.signs(&["volume", "create", "plain", "--region", "eu"]);
    let none = ada.person.firn(&["volume", "members", "plain"]);
    assert_eq!(none.code(), 2);
    assert!(none.err().contains("has no members"), "{}", none.err());
    reader.stop().await.unwrap();
    head.stop().await.unwrap();
}
