//! `firn-edge id` about shares: who is refused over SMB, and by what.

use super::{ALICE, BOB, shared};
use crate::machine::{Cloud, Machine};
use firn_nfs::v3::types::NewAttributes;
use serde_json::Value;
use std::fs;

const CAROL: &str = "carol%third secret";

/// All verdicts.
fn explained(edge: &Machine, user: &str, more: &[&str]) -> Vec<Value> {
    let asked = ["id", user, "--from", "127.0.0.1", "--output", "json"];
    let said = edge.succeed(&[&asked[..], more].concat());
    let mut answer: Value = serde_json::from_str(&said).expect("JSON");
    match answer["explanations"].take() {
        Value::Array(all) => all,
        other => panic!("{other}"),
    }
}

/// It is refused over SMB with this error, and the cause has all of these words.
fn refused(edge: &Machine, user: &str, more: &[&str], error: &str, words: &[&str]) {
    let all = explained(edge, user, more);
    let why = all.last().expect("a verdict");
    assert_eq!(why["protocol"], "smb", "{why:#}");
    assert_eq!(why["is_allowed"], false, "{why:#}");
    assert_eq!(why["error"], error, "{why:#}");
    let cause = why["cause"].as_str().expect("a cause");
    for word in words {
        assert!(cause.contains(word), "{word}: {why:#}");
    }
}

fn allowed(edge: &Machine, user: &str, more: &[&str]) {
    let all = explained(edge, user, more);
    assert!(all.iter().all(|why| why["is_allowed"] == true), "{all:#?}");
}

#[tokio::test]
async fn what_refuses_a_user_of_a_share_is_named() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.edge.edit(
        "share = \"files\"\n",
        "share = \"files\"\nusers = [\"alice\", \"@staff\"]\n[[export]]\npath = \"/archive\"\nclients = []\n\
         read_only_clients = [\"127.0.0.0/8\"]\n[export.smb]\nshare = \"archive\"\n",
    );
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.add_user(BOB, &["--uid", "1002", "--group", "staff:3000"]);
    edge.add_user(CAROL, &["--uid", "1003"]);
    edge.start();
    fs::write(cloud.path().join("local"), b"content").expect("written");
    edge.run(ALICE, "files", "put local plan");

    // By the share's users, one of them by a group.
    edge.refused(CAROL, "files", "ls", "NT_STATUS_ACCESS_DENIED");
    let of_files = ["--share", "files"];
    let denied = "NT_STATUS_ACCESS_DENIED";
    refused(
        &edge.edge,
        "carol",
        &of_files,
        denied,
        &["carol is none of the share's users: alice, @staff"],
    );
    edge.run(BOB, "files", "get plan got");
    allowed(&edge.edge, "bob", &["--share", "FILES", "--path", "plan"]);

    // By the file's mode.
    let nfs = edge.edge.client_as(1001).await;
    let plan = nfs
        .client()
        .lookup(nfs.root(), "plan")
        .await
        .expect("an answer")
        .expect("there")
        .file;
    let mode = NewAttributes {
        mode: Some(0o600),
        ..NewAttributes::default()
    };
    let set = nfs.client().set_attributes(&plan, mode, None).await;
    set.expect("an answer").expect("set");
    edge.refused(BOB, "files", "get plan got", "NT_STATUS_ACCESS_DENIED");
    let of_plan = ["--share", "files", "--path", "/plan"];
    refused(
        &edge.edge,
        "bob",
        &of_plan,
        denied,
        &["/plan: the ACL entry other::---", "needs r--"],
    );
    edge.run(ALICE, "files", "get plan got");
    allowed(&edge.edge, "alice", &of_plan);

    // By the share, which only reads; NFS says the same of the same path in its own words.
    edge.refused(ALICE, "archive", "put local new", "NT_STATUS_ACCESS_DENIED");
    let of_archive = ["--path", "/archive/plan", "--access", "write"];
    refused(
        &edge.edge,
        "alice",
        &of_archive,
        denied,
        &["its share is read-only"],
    );
    let both = explained(&edge.edge, "alice", &of_archive);
    assert_eq!(both.len(), 2, "{both:#?}");
    assert_eq!(
        (&both[0]["protocol"], &both[0]["error"]),
        (&"nfs".into(), &"EROFS".into())
    );
    edge.run(ALICE, "archive", "get plan got");
    allowed(&edge.edge, "alice", &["--share", "archive", "--path", "plan"]);

    // By no table.
    edge.refused("dave%x", "files", "ls", "NT_STATUS_LOGON_FAILURE");
    refused(
        &edge.edge,
        "1999",
        &of_files,
        "NT_STATUS_LOGON_FAILURE",
        &["user", "can log in"],
    );
    let listed = edge.edge.succeed(&["id", "bob"]);
    assert!(
        listed.contains("bob: uid 1002, gid 1002, groups 3000 (staff); of SMB's table of users"),
        "{listed}"
    );
    edge.edge.stop();
}
