//! A lock that a client of SMB holds: an administrator breaks it; and it ends with a client that is heard of no more.

use super::{
    ALICE,
    agent::Agent,
    raw_client::{RawClient, has_raw_client},
    shared, smbd,
};
use crate::{
    locks::LockClient,
    machine::{Cloud, TIMEOUT},
};
use firn_nfs::nlm::LockStatus;
use serde_json::json;
use std::{
    fs,
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_a_client_of_smb_holds_is_listed_and_broken() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("plan"), b"content").expect("written");
    edge.run(ALICE, "files", "put plan");
    let mut holder = RawClient::new(&edge, "plan", "lock");
    assert_eq!(holder.says(), "held");
    let nfs = edge.edge.client().await;
    let next = LockClient::new(&edge.edge, &nfs, "zeus", "plan").await;
    let began = Instant::now();
    // Not while the edge waits for NFS clients that were there before.
    loop {
        match next.lock().await {
            Some(LockStatus::Denied) => break,
            other => assert!(
                began.elapsed() < TIMEOUT && other != Some(LockStatus::Granted),
                "{other:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let listed: serde_json::Value =
        serde_json::from_str(&edge.edge.succeed(&["locks", "--output", "json"])).expect("JSON");
    let lock = &listed["locks"][0];
    assert_eq!(
        (&lock["path"], &lock["protocol"], &lock["client"], &lock["kind"]),
        (
            &"/plan".into(),
            &"smb".into(),
            &"SMB clients".into(),
            &"write".into()
        ),
        "{listed}"
    );
    assert_eq!(
        (&lock["first"], &lock["last"]),
        (&0.into(), &99.into()),
        "{listed}"
    );
    let only_shown = edge.edge.succeed(&["locks", "/plan", "--break"]);
    assert!(only_shown.contains("nothing was changed"), "{only_shown}");
    assert_eq!(next.lock().await, Some(LockStatus::Denied));
    let said = edge.edge.succeed(&["locks", "/plan", "--break", "--yes"]);
    assert!(said.contains("SMB clients"), "{said}");
    assert_eq!(next.lock().await, Some(LockStatus::Granted));
    // Who held it ends in peace, and takes nothing from who has it now.
    holder.end();
    assert_eq!(next.unlock().await, Some(LockStatus::Granted));
    edge.run(ALICE, "files", "put plan");
    edge.edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_an_smbd_that_is_killed_end_with_it() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("plan"), b"content").expect("written");
    edge.run(ALICE, "files", "put plan");
    let mut holder = RawClient::new(&edge, "plan", "lock");
    assert_eq!(holder.says(), "held");
    let nfs = edge.edge.client().await;
    let next = LockClient::new(&edge.edge, &nfs, "zeus", "plan").await;
    let until = async |wanted: LockStatus| {
        let began = Instant::now();
        while next.lock().await != Some(wanted) {
            assert!(began.elapsed() < TIMEOUT, "never {wanted:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until(LockStatus::Denied).await;
    rustix::process::kill_process(smbd(&edge.edge), rustix::process::Signal::KILL).expect("killed");
    edge.until(|smb| smb["failures"] == 1);
    until(LockStatus::Granted).await;
    edge.until_served();
    assert_eq!(next.unlock().await, Some(LockStatus::Granted));
    edge.run(ALICE, "files", "put plan");
    edge.edge.stop();
}

/// The bound that docs/semantics.md has, and half of it again for a machine that is slow.
const VANISHED_WITHIN: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn the_locks_and_opens_of_a_client_whose_machine_lost_its_power_end_within_two_minutes() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("plan"), b"content").expect("written");
    edge.run(ALICE, "files", "put plan; put plan alone");
    let mut vanishing = Agent::raw(&edge, ALICE);
    let handle = vanishing.call(json!(["open", "plan"])).expect("open");
    vanishing
        .call(json!(["lock", handle, 0, 1, 100]))
        .expect("locked");
    vanishing
        .call(json!(["open", "alone", 0x0012_019F, 0]))
        .expect("open");
    let nfs = edge.edge.client().await;
    let next = LockClient::new(&edge.edge, &nfs, "zeus", "plan").await;
    // Not while the edge waits for NFS clients that were there before.
    let began = Instant::now();
    while next.lock().await != Some(LockStatus::Denied) {
        assert!(began.elapsed() < TIMEOUT, "never refused");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    edge.refused(ALICE, "files", "put plan alone", "NT_STATUS_SHARING_VIOLATION");
    // Without a word on the wire; who is at its address later knows of no connection.
    vanishing.call(json!(["vanish"])).expect("gone");
    let began = Instant::now();
    while next.lock().await != Some(LockStatus::Granted) {
        assert!(
            began.elapsed() < VANISHED_WITHIN,
            "the dead client keeps its lock"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("free after {:?}", began.elapsed());
    edge.run(ALICE, "files", "put plan alone");
    edge.edge.stop();
}
