//! The return of the cloud to an edge that started without it: what clients hold through it, and a cloud that goes away again.

use crate::{
    locks::LockClient,
    machine::{Cloud, Machine, TIMEOUT, status},
    noise::noise,
};
use firn_nfs::nlm::LockStatus;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Asks for the lock until the edge is through its grace period; every answer is a refusal.
async fn refused_until_grace_is_over(client: &LockClient) {
    let began = Instant::now();
    loop {
        match client.lock_unmonitored().await {
            Some(LockStatus::Denied) => return,
            Some(LockStatus::GracePeriod) => assert!(began.elapsed() < TIMEOUT, "the grace does not end"),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_reclaimed_from_an_edge_without_the_cloud_and_stands_after_the_return() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    // The grace ends when the one who held a lock has it back; this is only for those who never come.
    edge.edit("grace_seconds = 1", "grace_seconds = 60");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("ledger", b"one writer at a time").await;
    let holder = LockClient::new(&edge, &files, "holder", "ledger").await;
    let other = LockClient::new(&edge, &files, "other", "ledger").await;
    assert_eq!(holder.lock().await, Some(LockStatus::Granted));
    assert_eq!(other.lock_unmonitored().await, Some(LockStatus::Denied));
    edge.kill();
    cloud.take_store_away();
    cloud.take_table_away();

    edge.start(&[]);
    assert!(status(&edge)["detached"]["table_away"].is_string());
    // From here on the other one asks without a pause, whether the edge answers or is just being opened anew.
    let asking = other.clone();
    let watch = tokio::spawn(async move {
        let mut answers = 0_u64;
        loop {
            if let Some(answer) = asking.lock_unmonitored().await {
                assert_ne!(answer, LockStatus::Granted, "after {answers} refusals");
                answers += 1;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(other.lock_unmonitored().await, Some(LockStatus::GracePeriod));
    assert_eq!(holder.reclaim().await, Some(LockStatus::Granted));
    refused_until_grace_is_over(&other).await;

    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.wait_until_attached();
    // The volume was opened anew under the same server: nobody has to reclaim what was never let go.
    assert_eq!(other.lock_unmonitored().await, Some(LockStatus::Denied));
    assert!(!watch.is_finished(), "{:?}", watch.await);
    watch.abort();

    assert_eq!(holder.unlock().await, Some(LockStatus::Granted));
    assert_eq!(other.lock_unmonitored().await, Some(LockStatus::Granted));
    edge.stop();
}

/// What the edge logs, at the level of debugging, when it asks the store again for something.
const RETRIED: &str = "the store is asked again";

/// Makes the folder that has the segments one that leads nowhere, in a store that nobody can reach now: they are not missed,
/// reading them fails.
fn hide_segments(folder: &Path) {
    std::fs::rename(folder, folder.with_extension("hidden")).expect("renamed");
    // To itself, wherever the store is put.
    std::os::unix::fs::symlink(folder.file_name().expect("a name"), folder).expect("linked");
}

fn show_segments(folder: &Path) {
    std::fs::remove_file(folder).expect("removed");
    std::fs::rename(folder.with_extension("hidden"), folder).expect("renamed");
}

/// Puts a folder back in its place, where the edge may make an empty one at any moment, and may not have yet.
fn put_back(aside: &Path, place: &Path) {
    for _ in 0..100 {
        match std::fs::remove_dir_all(place) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
        }
        // It replaces no folder with something in it.
        if std::fs::rename(aside, place).is_ok() {
            return;
        }
    }
    panic!("{} is made anew again and again", place.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_goes_away_in_the_middle_of_the_return_is_waited_for_again() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.log_at("warn,firn_store::retry=debug");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("ledger", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    files.write("minutes", b"acknowledged, in the journal only").await;
    edge.kill();
    let segment = cloud.segments().pop().expect("a segment");
    let folder = segment
        .ancestors()
        .find(|above| above.ends_with("log"))
        .and_then(|folder| folder.strip_prefix(cloud.path().join("store")).ok())
        .expect("segments lie in log");
    let folder = cloud.path().join("away").join(folder);
    cloud.take_store_away();
    cloud.take_table_away();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("first", b"written without the cloud").await;

    // Store and table answer, so it returns, and does not get through: what it needs next is neither there nor in its cache.
    hide_segments(&folder);
    let (cache, aside) = (edge.state.join("cache"), edge.state.join("cache.aside"));
    std::fs::rename(&cache, &aside).expect("renamed");
    let retried = edge.log().matches(RETRIED).count();
    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.wait_for_log("store and table answer again", 1);
    edge.wait_for_log(RETRIED, retried + 1);
    cloud.take_store_away();
    cloud.take_table_away();
    // What it asks for now does not come before it gives up and looks at both, which takes it seconds.
    put_back(&aside, &cache);
    show_segments(&folder);
    let again = edge.wait_through(|seen| seen["detached"].is_object());
    assert_eq!(again["volume"]["state"], "serving", "{again}");
    edge.wait_for_log("serving without the cloud", 2);
    let files = edge.client().await;
    for (name, data) in [
        ("minutes", &b"acknowledged, in the journal only"[..]),
        ("first", b"written without the cloud"),
    ] {
        assert_eq!(files.read(name).await.as_deref(), Some(data), "{name}");
    }
    files.write("second", b"written without the cloud, again").await;

    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.wait_until_attached();
    edge.succeed(&["sync"]);
    assert!(edge.succeed(&["verify"]).starts_with("whole"));
    edge.stop();
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    for (name, data) in [
        ("ledger", &noise(1, 300_000)[..]),
        ("minutes", b"acknowledged, in the journal only"),
        ("first", b"written without the cloud"),
        ("second", b"written without the cloud, again"),
    ] {
        assert_eq!(files.read(name).await.as_deref(), Some(data), "{name}");
    }
    edge.stop();
}
