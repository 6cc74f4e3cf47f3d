//! Two offices that write one file system by turns: two edges as processes, each with clients of its own, over one bucket and one `firn-anchor`.

use crate::{edge, offices, place::Place, volume};
use firn_rig::{Client, EXPORT, Edge};
use serde_json::Value;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// What a handover may take on a machine that does much else; after a kill, a minute more.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The edges' programs, bucket and anchor.
struct Offices {
    place: Place,
    one: Edge,
    two: Edge,
}

impl Offices {
    async fn open(here: &Path) -> Self {
        let grants = [(&edge(1), volume(1), "edge"), (&edge(2), volume(1), "edge")];
        let shared = "shared = true\nfreshness = \"0 s\"";
        let (place, _, [one, two]) = offices::open(here, &grants, [shared, shared]).await;
        Self { place, one, two }
    }
}

async fn shared(edge: &Edge) -> Value {
    edge.status().await.unwrap()["shared"].clone()
}

/// What a file holds; `None` if there is none of that name.
async fn read(client: &mut Client, name: &str) -> Option<blake3::Hash> {
    let root = client.root.clone();
    match client.lookup(&root, name.as_bytes()).await {
        Ok(file) => Some(client.checksum(&file).await.unwrap().0),
        Err(error) if error.to_string().contains("NOENT") => None,
        Err(error) => panic!("{error}"),
    }
}

fn hash(text: &str) -> Option<blake3::Hash> {
    Some(blake3::hash(text.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_offices_write_one_file_system_by_turns() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path()).await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.two.address, EXPORT).await.unwrap();
    assert_eq!(one.root.data.0, two.root.data.0, "one file system, one handle");
    let root = one.root.clone();
    one.write_file(&root, b"minutes", 0o644, b"begun in office one")
        .await
        .unwrap();
    let minutes = one.lookup(&root, b"minutes").await.unwrap();

    let before = offices
        .one
        .counters()
        .await
        .unwrap()
        .plus(offices.two.counters().await.unwrap());
    let began = Instant::now();
    let mut waits = Vec::new();
    for round in 0..4_u32 {
        for (name, client) in [("two", &mut two), ("one", &mut one)] {
            let text = format!("round {round}, office {name}");
            let asked = Instant::now();
            // A file of its own, and the one that both write, through a handle that is older than all handovers.
            let own = format!("{name}-{round}");
            client
                .write_file(&root, own.as_bytes(), 0o644, text.as_bytes())
                .await
                .unwrap();
            client.write(&minutes, 0, text.as_bytes()).await.unwrap();
            waits.push(asked.elapsed());
            // Who has it sees what the other acknowledged last, published or not before.
            let other = match name {
                "two" if round == 0 => None,
                "two" => Some((
                    format!("one-{}", round - 1),
                    format!("round {}, office one", round - 1),
                )),
                _ => Some((format!("two-{round}"), format!("round {round}, office two"))),
            };
            if let Some((file, text)) = other {
                assert_eq!(read(client, &file).await, hash(&text), "{file} in office {name}");
            }
        }
    }
    println!(
        "changes that waited for a handover took {waits:?}, 8 of them {:?}",
        began.elapsed()
    );
    // What one wrote last two reads once it is published.
    offices.one.sync().await.unwrap();
    let longest = "begun in office one".len();
    let (found, bytes) = two.checksum(&minutes).await.unwrap();
    let expected = format!("{:<longest$}", "round 3, office one");
    assert_eq!((Some(found), bytes), (hash(&expected), longest as u64));
    let after = offices
        .one
        .counters()
        .await
        .unwrap()
        .plus(offices.two.counters().await.unwrap());
    println!(
        "8 handovers and what the offices asked meanwhile: {:?}",
        after.since(before)
    );

    let (of_one, of_two) = (shared(&offices.one).await, shared(&offices.two).await);
    assert_eq!(
        (of_one["role"].as_str(), of_two["role"].as_str()),
        (Some("owning"), Some("following"))
    );
    assert_eq!(
        (of_one["given"].as_u64(), of_two["given"].as_u64()),
        (Some(4), Some(4)),
        "{of_one} {of_two}"
    );
    assert_eq!(
        (of_one["broken"].as_u64(), of_two["broken"].as_u64()),
        (Some(0), Some(0))
    );
    assert!(
        of_two["last_wait_ms"].as_u64().is_some_and(|wait| wait > 0),
        "{of_two}"
    );
    let shown = offices.one.command("status", &[]).await.unwrap();
    assert!(
        shown.contains("this edge owns the volume for now; nobody waits for it"),
        "{shown}"
    );
    let shown = offices.two.command("status", &[]).await.unwrap();
    assert!(shown.contains("one; this edge follows"), "{shown}");
    assert!(
        shown.contains("the volume is asked for when a client changes something"),
        "{shown}"
    );

    // An edge that is stopped publishes and gives, so that the other need not wait for its heart to stand still.
    one.write_file(&root, b"last", 0o644, b"before the weekend")
        .await
        .unwrap();
    offices.one.stop().await.unwrap();
    let asked = Instant::now();
    two.write_file(&root, b"next", 0o644, b"on the weekend")
        .await
        .unwrap();
    println!("after a stop: {:?}", asked.elapsed());
    assert_eq!(shared(&offices.two).await["breaks"].as_u64(), Some(0));
    assert_eq!(read(&mut two, "last").await, hash("before the weekend"));
    offices.two.sync().await.unwrap();
    offices.one.start().await.unwrap();
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut one, "next").await, hash("on the weekend"));
    offices.one.stop().await.unwrap();
    offices.two.stop().await.unwrap();
    drop(offices.place);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_killed_is_taken_over_and_what_it_had_is_in_a_clone_with_its_paths() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path()).await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.two.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    let folder = one.make_directory(&root, b"contracts").await.unwrap();
    one.write_file(&folder, b"signed", 0o644, b"in the cloud")
        .await
        .unwrap();
    offices.one.sync().await.unwrap();
    one.write_file(&folder, b"draft", 0o644, b"on the disk of office one")
        .await
        .unwrap();
    offices.one.kill().await.unwrap();

    let asked = Instant::now();
    two.write_file(&root, b"meanwhile", 0o644, b"in office two")
        .await
        .unwrap();
    let waited = asked.elapsed();
    println!("taken over {waited:?} after a client asked");
    assert!(
        waited > Duration::from_secs(55),
        "no sooner than a minute: {waited:?}"
    );
    let of_two = shared(&offices.two).await;
    assert_eq!(
        (of_two["role"].as_str(), of_two["breaks"].as_u64()),
        (Some("owning"), Some(1)),
        "{of_two}"
    );
    let there = two.lookup(&root, b"contracts").await.unwrap();
    assert_eq!(
        two.list(&there).await.unwrap().len(),
        1,
        "what was never published is not there"
    );
    offices.two.sync().await.unwrap();

    // It comes back, salvages, and goes on as one of two.
    offices.one.start().await.unwrap();
    let of_one = shared(&offices.one).await;
    assert_eq!(of_one["role"].as_str(), Some("following"), "{of_one}");
    let salvaged = &of_one["salvaged"][0];
    assert!(
        salvaged["clone"].as_str().unwrap().starts_with("salvage-"),
        "{of_one}"
    );
    assert_eq!(
        salvaged["paths"],
        serde_json::json!(["/contracts/draft"]),
        "{of_one}"
    );
    let shown = offices.one.command("status", &[]).await.unwrap();
    assert!(shown.contains("/contracts/draft"), "{shown}");
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut one, "meanwhile").await, hash("in office two"));
    let end = Instant::now() + TIMEOUT;
    one.write_file(&root, b"back", 0o644, b"in office one")
        .await
        .unwrap();
    assert!(Instant::now() < end, "a handover, no takeover");
    assert_eq!(shared(&offices.two).await["broken"].as_u64(), Some(0));
    offices.one.stop().await.unwrap();
    offices.two.stop().await.unwrap();
}
