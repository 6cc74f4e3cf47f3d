//! Two offices and one file system: an edge owns a volume, another follows it, each a process with clients of its own, over one bucket
//! and one `firn-anchor`.

use crate::{edge, offices, place::Place, service, volume};
use firn_anchor::Anchor;
use firn_cleaner::{Cleaner, Limits};
use firn_format::FamilyId;
use firn_rig::{Client, EXPORT, Edge};
use firn_store::DirectoryStore;
use serde_json::Value;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// What two edges may take to see something, on a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The edges' programs, bucket and anchor.
struct Offices {
    place: Place,
    family: FamilyId,
    owner: Edge,
    follower: Edge,
}

impl Offices {
    /// The follower is let in by a grant that only reads.
    async fn open(here: &Path, lines: &str) -> Self {
        let grants = [
            (&edge(1), volume(1), "edge"),
            (&edge(2), volume(1), "observer"),
            (&service("cleaner"), volume(1), "cleaner"),
        ];
        let (place, family, [owner, follower]) = offices::open(here, &grants, ["", lines]).await;
        Self {
            place,
            family,
            owner,
            follower,
        }
    }

    /// Runs a cleaner; how many segments it retired.
    async fn clean(&self) -> u64 {
        let env = firn_env::real(&self.place.root).unwrap();
        let identity = self.place.issue(&service("cleaner"), "cleaner.pem");
        let backend = Arc::new(self.place.reached(&identity, volume(1)));
        let anchor = Anchor::over(backend, env.clone(), self.family);
        let limits = Limits {
            free_per_mille: 0,
            cold_free_per_mille: 0,
            ..Limits::default()
        };
        let store = DirectoryStore::open(&env, "store").await.unwrap();
        let mut cleaner = Cleaner::new(&env, Arc::new(store), &anchor, limits);
        cleaner.run().await.unwrap().retired_segments
    }
}

async fn followed(edge: &Edge) -> Value {
    edge.status().await.unwrap()["following"].clone()
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

#[tokio::test(flavor = "multi_thread")]
async fn what_one_office_commits_the_other_reads_and_nothing_is_changed_from_there() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path(), "follow = true\nfreshness = \"0 s\"").await;
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.follower.address, EXPORT).await.unwrap();
    // Clients see one file system: handles are signed with one key and name the same files.
    assert_eq!(one.root.data.0, two.root.data.0);
    let root = one.root.clone();
    let hash = |text: &[u8]| Some(blake3::hash(text));

    // A file, one that changes, one that shrinks, one that goes, one that gets another name.
    for round in 0..5_u32 {
        let text = format!("round {round}").repeat(2000);
        one.write_file(&root, b"plan", 0o644, text.as_bytes())
            .await
            .unwrap();
        one.write_file(&root, b"short lived", 0o644, b"x").await.unwrap();
        offices.owner.sync().await.unwrap();
        let committed = Instant::now();
        assert_eq!(read(&mut two, "plan").await, hash(text.as_bytes()));
        println!(
            "round {round}: read in the other office {:?} after the commit",
            committed.elapsed()
        );
        assert_eq!(read(&mut two, "short lived").await, hash(b"x"));
        let file = one.lookup(&root, b"plan").await.unwrap();
        one.resize(&file, 7).await.unwrap();
        one.remove(&root, b"short lived").await.unwrap();
        one.rename(&root, b"plan", b"renamed").await.unwrap();
        // Not committed, so not seen.
        assert_eq!(read(&mut two, "plan").await, hash(text.as_bytes()));
        offices.owner.sync().await.unwrap();
        assert_eq!(read(&mut two, "plan").await, None);
        assert_eq!(read(&mut two, "short lived").await, None);
        assert_eq!(read(&mut two, "renamed").await, hash(&text.as_bytes()[..7]));
        // The handle that the owner's client has leads there at the follower, too.
        assert_eq!(
            two.checksum(&file).await.unwrap().0,
            hash(&text.as_bytes()[..7]).unwrap()
        );
    }
    offices
        .owner
        .command("snapshot", &["create", "monday"])
        .await
        .unwrap();
    one.write_file(&root, b"renamed", 0o644, b"on tuesday")
        .await
        .unwrap();
    offices.owner.sync().await.unwrap();
    let snapshots = two.lookup(&root, b".snapshots").await.unwrap();
    let monday = two.lookup(&snapshots, b"monday").await.unwrap();
    let kept = two.lookup(&monday, b"renamed").await.unwrap();
    assert_eq!(two.checksum(&kept).await.unwrap().1, 7);
    assert_eq!(read(&mut two, "renamed").await, hash(b"on tuesday"));

    // Changes are refused, over NFS and by commands.
    let refused = two.write_file(&root, b"mine", 0o644, b"no").await.unwrap_err();
    assert!(refused.to_string().contains("ROFS"), "{refused}");
    for command in [
        &["drain"][..],
        &["sync"],
        &["clean"],
        &["snapshot", "create", "x"],
    ] {
        let said = offices
            .follower
            .refused(1, command[0], &command[1..])
            .await
            .unwrap();
        assert!(said.contains("another edge owns"), "{said}");
    }
    let status = followed(&offices.follower).await;
    assert!(status["adoptions"].as_u64().unwrap() >= 11, "{status}");
    assert_eq!(
        (status["alarms"].as_u64(), status["away"].as_str()),
        (Some(0), None)
    );
    let shown = offices.follower.command("status", &[]).await.unwrap();
    assert!(
        shown.contains("one; this edge follows, and only reads"),
        "{shown}"
    );
    let put = offices.follower.status().await.unwrap()["store"]["usage"]["puts"].as_u64();
    assert_eq!(put, Some(0), "a follower puts nothing");

    // While nobody asks, it asks nothing.
    let before = offices.follower.counters().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = offices.follower.counters().await.unwrap().since(before);
    assert_eq!((asked.store_requests, asked.table_requests), (0, 0));

    // A cleaner at work, without keys, moves what is needed.
    for number in 0..40_u32 {
        let text = number.to_le_bytes().repeat(10_000);
        one.write_file(&root, b"garbage", 0o644, &text).await.unwrap();
        offices.owner.sync().await.unwrap();
    }
    assert!(read(&mut two, "garbage").await.is_some());
    assert!(offices.clean().await > 0, "there is garbage");
    assert_eq!(read(&mut two, "renamed").await, hash(b"on tuesday"));
    assert_eq!(
        read(&mut two, "garbage").await,
        hash(&39_u32.to_le_bytes().repeat(10_000))
    );

    // It starts again without a cache, reads what was moved, and follows on.
    offices.follower.stop().await.unwrap();
    offices.follower.wipe_cache().unwrap();
    one.write_file(&root, b"renamed", 0o644, b"on wednesday")
        .await
        .unwrap();
    offices.owner.sync().await.unwrap();
    offices.follower.start().await.unwrap();
    let mut two = Client::mount(offices.follower.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut two, "renamed").await, hash(b"on wednesday"));
    assert_eq!(
        read(&mut two, "garbage").await,
        hash(&39_u32.to_le_bytes().repeat(10_000))
    );
    offices.owner.stop().await.unwrap();
    offices.follower.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_anchor_is_away_a_follower_reads_what_it_has_and_says_so() {
    let here = tempfile::tempdir().unwrap();
    let lines = "follow = true\nfreshness = \"100 ms\"\nstale_reads = \"allow\"";
    let mut offices = Offices::open(here.path(), lines).await;
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.follower.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    one.write_file(&root, b"plan", 0o644, b"before").await.unwrap();
    offices.owner.sync().await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(read(&mut two, "plan").await, Some(blake3::hash(b"before")));

    offices.place.kill();
    one.write_file(&root, b"plan", 0o644, b"meanwhile").await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(read(&mut two, "plan").await, Some(blake3::hash(b"before")));
    let status = followed(&offices.follower).await;
    assert!(
        status["away"].is_string() && status["stale_answers"].as_u64() > Some(0),
        "{status}"
    );
    let shown = offices.follower.command("status", &[]).await.unwrap();
    assert!(shown.contains("the newest root cannot be read"), "{shown}");

    offices.place.start();
    offices.owner.sync().await.unwrap();
    let end = Instant::now() + TIMEOUT;
    while read(&mut two, "plan").await != Some(blake3::hash(b"meanwhile")) {
        assert!(Instant::now() < end, "{}", followed(&offices.follower).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(followed(&offices.follower).await["away"].is_null());
    offices.owner.stop().await.unwrap();
    offices.follower.stop().await.unwrap();
}
