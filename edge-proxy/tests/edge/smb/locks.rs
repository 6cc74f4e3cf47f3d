//! An administrator breaks a lock that a client of SMB holds.

use super::{
    ALICE,
    raw_client::{RawClient, has_raw_client},
    shared,
};
use crate::{
    locks::LockClient,
    machine::{Cloud, TIMEOUT},
};
use firn_nfs::nlm::LockStatus;
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
