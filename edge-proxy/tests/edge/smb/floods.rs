//! A client of SMB that takes all it can get, of opens, locks and watches: it is refused at a bound, in SMB's words; all others are served, and what it took
//! ends with it.

use super::{ALICE, BOB, Shared, agent::Agent, raw_client::has_raw_client, shared};
use crate::{
    locks::LockClient,
    machine::{Cloud, Files, TIMEOUT, status},
};
use firn_nfs::nlm::LockStatus;
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

/// NT_STATUS_INSUFFICIENT_RESOURCES.
const TOO_MANY: &str = "0xc000009a";

/// Locks of one client, and ranges of one request.
const LOCKS: u64 = 4_000;
const LOCKS_PER_REQUEST: u64 = 200;

/// What SMB has in its mount.
fn of_smb(edge: &Shared, key: &str) -> u64 {
    let seen = status(&edge.edge);
    let parts = seen["protocols"].as_array().expect("protocols");
    let part = parts.iter().find(|part| part["protocol"] == "smb").expect("SMB");
    part[key].as_u64().unwrap_or_else(|| panic!("{key}: {part}"))
}

/// Others read and write, over SMB and NFS.
async fn others_are_served(edge: &Shared, nfs: &Files) {
    edge.run(BOB, "files", "put local of-bob; get of-bob got; ls");
    assert_eq!(nfs.read("of-bob").await.as_deref(), Some(&b"content"[..]));
    nfs.write("of-nfs", b"content").await;
}

/// That nothing is left of who was killed.
fn is_gone(edge: &Shared, key: &str) {
    let began = Instant::now();
    loop {
        let left = of_smb(edge, key);
        if left < 10 {
            break;
        }
        assert!(began.elapsed() < 2 * TIMEOUT, "{left} {key}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_all_it_can_get_is_refused_at_a_bound_and_others_are_served() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.add_user(BOB, &["--uid", "1002"]);
    edge.start();
    fs::write(cloud.path().join("local"), b"content").expect("written");
    edge.run(ALICE, "files", "mkdir watched; put local plan");
    let nfs = edge.edge.client().await;

    let mut greedy = Agent::raw(&edge, ALICE);
    let began = Instant::now();
    let taken = greedy.call(json!(["watch", "watched", 3000])).expect("an answer");
    println!("watches: {taken} in {:?}", began.elapsed());
    let is_all = taken == json!([3000, null]);
    assert!(is_all || taken[1] == TOO_MANY, "{taken}");
    others_are_served(&edge, &nfs).await;

    let began = Instant::now();
    let taken = greedy.call(json!(["opens", "plan", 20_000])).expect("an answer");
    println!("opens: {taken} in {:?}", began.elapsed());
    let opens = taken[0].as_u64().expect("a number");
    assert!(
        (1_000..17_000).contains(&opens) && taken[1] == TOO_MANY,
        "{taken}"
    );
    assert!(of_smb(&edge, "open_files") >= opens);
    others_are_served(&edge, &nfs).await;
    greedy.kill();
    is_gone(&edge, "open_files");

    let mut greedy = Agent::raw(&edge, ALICE);
    let handle = greedy.call(json!(["open", "plan"])).expect("open");
    // One request has 255 ranges at most; each costs smbd more than the one before, and nobody but this client waits for that.
    let began = Instant::now();
    for batch in 0..LOCKS / LOCKS_PER_REQUEST {
        let first = 1_000 + 1_000 * batch;
        let taken = greedy.call(json!(["lock", handle, first, LOCKS_PER_REQUEST]));
        taken.unwrap_or_else(|why| panic!("lock {batch}: {why}"));
    }
    println!("locks: {LOCKS} in {:?}", began.elapsed());
    assert_eq!(
        greedy.call(json!(["read", handle, 7])),
        Ok(Value::from("content"))
    );
    assert_eq!(of_smb(&edge, "locks"), LOCKS);
    others_are_served(&edge, &nfs).await;
    let other = LockClient::new(&edge.edge, &nfs, "zeus", "of-bob").await;
    assert_eq!(other.lock().await, Some(LockStatus::Granted));
    assert_eq!(other.unlock().await, Some(LockStatus::Granted));
    let mut bob = Agent::raw(&edge, BOB);
    let handle = bob.call(json!(["open", "of-bob"])).expect("open");
    bob.call(json!(["lock", handle, 5_000])).expect("another's lock");
    greedy.kill();
    is_gone(&edge, "locks");
    edge.edge.stop();
}
