//! `firn-edge locks`: an administrator sees who has locked what, and frees a file from a client that will not.

use crate::{
    locks::LockClient,
    machine::{Cloud, Machine, TIMEOUT, status},
};
use firn_nfs::nlm::LockStatus;
use serde_json::Value;
use std::time::{Duration, Instant};

fn listed(edge: &Machine, arguments: &[&str]) -> Value {
    let asked = [&["locks", "--output", "json"], arguments].concat();
    serde_json::from_str(&edge.succeed(&asked)).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_listed_by_path_and_broken_for_a_client_that_never_comes_back() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("plan", b"of one").await;
    files.write("other", b"of nobody").await;
    let holder = LockClient::new(&edge, &files, "hera", "plan").await;
    let next = LockClient::new(&edge, &files, "zeus", "plan").await;
    let began = Instant::now();
    while holder.lock().await != Some(LockStatus::Granted) {
        assert!(began.elapsed() < TIMEOUT, "never granted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(next.lock().await, Some(LockStatus::Denied));

    let seen = listed(&edge, &[]);
    assert_eq!(seen["all"], 1, "{seen}");
    let lock = &seen["locks"][0];
    assert_eq!(
        (
            &lock["path"],
            &lock["protocol"],
            &lock["client"],
            &lock["kind"],
            &lock["process"]
        ),
        (
            &"/plan".into(),
            &"nfs".into(),
            &"127.0.0.1 hera".into(),
            &"write".into(),
            &"hera".into()
        ),
        "{seen}"
    );
    assert!(edge.succeed(&["locks"]).contains("/plan"));
    assert_eq!(edge.succeed(&["locks", "/other"]), "no locks\n");
    assert!(edge.succeed(&["status"]).contains("1 held by 1 clients"));
    assert_eq!(status(&edge)["nfs"]["locks"]["held"], 1);

    // What is not meant is not done.
    let only_shown = edge.succeed(&["locks", "/plan", "--break"]);
    assert!(only_shown.contains("nothing was changed"), "{only_shown}");
    edge.fail(1, &["locks", "/other", "--break", "--yes"]);
    edge.fail(
        1,
        &["locks", "/plan", "--break", "--client", "127.0.0.1 zeus", "--yes"],
    );
    edge.fail(2, &["locks", "--break"]);
    assert_eq!(next.lock().await, Some(LockStatus::Denied));

    let said = edge.succeed(&["locks", "/plan", "--break", "--client", "127.0.0.1 hera", "--yes"]);
    assert!(
        said.contains("127.0.0.1 hera") && said.contains("may write on"),
        "{said}"
    );
    assert_eq!(next.lock().await, Some(LockStatus::Granted));
    // What it no longer has it may give back.
    assert_eq!(holder.unlock().await, Some(LockStatus::Granted));
    assert_eq!(listed(&edge, &["/plan"])["locks"][0]["client"], "127.0.0.1 zeus");
    assert!(edge.log().contains("an administrator broke locks"));

    // A file without a name any more.
    let inode = listed(&edge, &[])["locks"][0]["inode"]
        .as_u64()
        .expect("a number");
    files.remove("plan").await;
    let seen = listed(&edge, &[]);
    assert_eq!(seen["locks"][0]["path"], format!("#{inode}"), "{seen}");
    edge.succeed(&["locks", &format!("#{inode}"), "--break", "--yes"]);
    assert_eq!(listed(&edge, &[])["all"], 0);
    edge.stop();
}
