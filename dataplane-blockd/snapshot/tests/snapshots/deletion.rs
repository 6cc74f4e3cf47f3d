//! Snapshots that are deleted: at once with others that are taken and restored, by who dies at any request, by who sleeps.

use crate::world::*;
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, Durability, MemoryDevice};
use firn_blockd_snapshot::{
    Catalogue, Progress, SnapshotError, SnapshotGate, delete, prepare, restore, take,
};
use firn_env::{
    Env,
    mutants::planting,
    sim::{Seeded, Simulation},
};
use firn_store::{ListPage, MemoryStore, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use futures::future::pending;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A way to a store on which its user dies at a request, before it is done or after, and is slow.
struct Mortal {
    env: Env,
    store: Arc<MemoryStore>,
    requests: AtomicU64,
    /// The request that is never answered, and whether it is done.
    last: Option<(u64, bool)>,
    /// Before and after each request, at most. Now and then ten times as long.
    pause_ms: u64,
}

impl Mortal {
    fn new(env: &Env, store: &Arc<MemoryStore>) -> Self {
        Self {
            env: env.clone(),
            store: store.clone(),
            requests: AtomicU64::new(0),
            last: None,
            pause_ms: 0,
        }
    }

    async fn pause(&self) {
        if self.pause_ms > 0 {
            let longest = if self.env.random_below(20) == 0 {
                10 * self.pause_ms
            } else {
                self.pause_ms
            };
            let pause = self.env.random_below(longest + 1);
            self.env.sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn ask<T>(&self, request: impl Future<Output = T>) -> T {
        let number = self.requests.fetch_add(1, Relaxed);
        self.pause().await;
        let Some((last, done)) = self.last.filter(|(last, _)| number >= *last) else {
            let answer = request.await;
            self.pause().await;
            return answer;
        };
        if done && number == last {
            request.await;
        }
        pending().await
    }
}

#[async_trait]
impl Store for Mortal {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.ask(self.store.put(key, parts, mode)).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.ask(self.store.get(key)).await
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.ask(self.store.get_range(key, offset, length)).await
    }
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.ask(self.store.head(key)).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.ask(self.store.delete(key)).await
    }
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.ask(self.store.list(prefix, after)).await
    }
}

async fn write(gate: &SnapshotGate<Slow>, block: u64, byte: u8) {
    gate.write(
        block * BLOCK,
        vec![byte; BLOCK as usize].into(),
        Durability::Acknowledged,
    )
    .await
    .unwrap();
}

async fn snapshot(env: &Env, catalogue: &Catalogue, gate: &SnapshotGate<Slow>, name: &str) -> Vec<u8> {
    take(env, catalogue, gate, name, "", &Progress::default())
        .await
        .unwrap();
    content(&*gate.inner().memory).await
}

/// Three snapshots that share some tracts and have others alone.
async fn three(env: &Env, catalogue: &Catalogue) -> (SnapshotGate<Slow>, BTreeMap<String, Vec<u8>>) {
    let gate = SnapshotGate::new(Slow::new(env, 5 * TRACT_BLOCKS), TRACT_BYTES);
    let mut taken = BTreeMap::new();
    for number in 0..3_u8 {
        if number == 0 {
            for tract in 0..5 {
                write(&gate, tract * TRACT_BLOCKS, 10 + tract as u8).await;
            }
        }
        write(&gate, u64::from(number) * TRACT_BLOCKS, 100 + number).await;
        let name = format!("snapshot-{number}");
        taken.insert(name.clone(), snapshot(env, catalogue, &gate, &name).await);
    }
    (gate, taken)
}

async fn names(catalogue: &Catalogue) -> BTreeSet<String> {
    let listed = catalogue.list().await.unwrap();
    listed.into_iter().map(|listed| listed.name).collect()
}

/// What a store holds: objects of each folder.
fn folders(store: &MemoryStore) -> BTreeMap<String, usize> {
    let mut folders = BTreeMap::new();
    for key in store.contents().keys() {
        let folder = key.as_str().split('/').nth(2).unwrap().to_owned();
        *folders.entry(folder).or_default() += 1;
    }
    folders
}

async fn hold(catalogue: &Catalogue, wanted: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    for (name, content) in wanted {
        match restored(catalogue, name).await {
            Ok(found) if found == *content => {}
            Ok(_) => return Err(format!("{name} holds something else")),
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
    Ok(())
}

#[test]
fn what_only_a_deleted_snapshot_had_is_given_back_and_what_others_share_stays() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let store = Arc::new(MemoryStore::new(&env));
            let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
            let (gate, mut taken) = three(&env, &catalogue).await;
            // Five tracts, and one more for each later snapshot; a page and a root each. Generations that are past are gone.
            let before = BTreeMap::from(
                [("index", 3), ("roots", 3), ("tracts", 7), ("turns", 1)]
                    .map(|(folder, count)| (folder.to_owned(), count)),
            );
            assert_eq!(folders(&store), before);
            let progress = Progress::default();
            let deleted = delete(&env, &catalogue, "snapshot-1", &progress).await.unwrap();
            // Its page, its root, and the tract that the third snapshot shares with it stays: nothing else was its own.
            assert!(deleted.existed && deleted.objects == 2, "{deleted:?}");
            assert_eq!(progress.done.load(Relaxed), 2);
            taken.remove("snapshot-1");
            hold(&catalogue, &taken).await.unwrap();
            assert_eq!(names(&catalogue).await, taken.keys().cloned().collect());
            assert!(matches!(
                restored(&catalogue, "snapshot-1").await,
                Err(SnapshotError::NotFound(_))
            ));
            let deleted = delete(&env, &catalogue, "snapshot-0", &progress).await.unwrap();
            // The tracts that the two later snapshots had written anew.
            assert_eq!((deleted.existed, deleted.objects), (true, 4));
            taken.remove("snapshot-0");
            hold(&catalogue, &taken).await.unwrap();
            let again = delete(&env, &catalogue, "snapshot-0", &progress).await.unwrap();
            assert_eq!((again.existed, again.objects), (false, 0));
            // A name can be used again, by a snapshot that is compared to what is left.
            write(&gate, 0, 7).await;
            let content = snapshot(&env, &catalogue, &gate, "snapshot-0").await;
            taken.insert("snapshot-0".into(), content);
            hold(&catalogue, &taken).await.unwrap();
            for name in ["snapshot-0", "snapshot-2"] {
                delete(&env, &catalogue, name, &progress).await.unwrap();
            }
            assert_eq!(
                folders(&store),
                BTreeMap::from([("turns".to_owned(), 1)]),
                "all is given back but the knowledge that there is nothing"
            );
            assert!(matches!(
                delete(&env, &catalogue, "a/b", &progress).await,
                Err(SnapshotError::Name(_))
            ));
            let stranger = Catalogue::new(store.clone(), DISK, &[7; 32]);
            assert!(matches!(
                delete(&env, &stranger, "snapshot-2", &progress).await,
                Err(SnapshotError::Damaged { .. })
            ));
        })
        .unwrap();
}

/// Somebody dies at each of the requests that a deletion makes; whoever comes next finds all others whole, and can finish.
fn die_at_every_request() -> Result<u64, String> {
    for last in 0.. {
        let mut died = 0;
        for done in [false, true] {
            let simulation = Simulation::new(last);
            let machine = simulation.machine("client");
            let env = machine.env();
            died += simulation
                .run(async move {
                    let store = Arc::new(MemoryStore::new(&env));
                    let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
                    let (gate, mut taken) = three(&env, &catalogue).await;
                    let mortal = Mortal {
                        last: Some((last, done)),
                        ..Mortal::new(&env, &store)
                    };
                    let dying = Catalogue::new(Arc::new(mortal), DISK, &KEY);
                    let progress = Progress::default();
                    let deletion = delete(&env, &dying, "snapshot-0", &progress);
                    let died = env.timeout(Duration::from_secs(60), deletion).await.is_err();
                    let mut sure = taken.clone();
                    sure.remove("snapshot-0");
                    hold(&catalogue, &sure).await?;
                    if names(&catalogue).await.contains("snapshot-0") {
                        hold(&catalogue, &taken).await?;
                    }
                    // The next snapshot relies on nothing that the dead one may have meant to remove.
                    write(&gate, 1, 55).await;
                    let content = snapshot(&env, &catalogue, &gate, "next").await;
                    taken.insert("next".into(), content);
                    delete(&env, &catalogue, "snapshot-0", &progress)
                        .await
                        .map_err(|error| format!("the deletion cannot be finished: {error}"))?;
                    taken.remove("snapshot-0");
                    hold(&catalogue, &taken).await?;
                    for name in taken.keys() {
                        delete(&env, &catalogue, name, &progress)
                            .await
                            .map_err(|error| error.to_string())?;
                    }
                    match folders(&store) {
                        left if left == BTreeMap::from([("turns".to_owned(), 1)]) => Ok(u64::from(died)),
                        left => Err(format!("{left:?} are left")),
                    }
                })
                .map_err(|error| error.to_string())??;
        }
        if died == 0 {
            return Ok(last);
        }
    }
    unreachable!("a deletion has an end")
}

#[test]
fn a_deletion_that_dies_at_any_request_costs_no_other_snapshot_and_is_finished_by_the_next() {
    let requests = die_at_every_request().unwrap();
    assert!(
        requests > 15,
        "{requests}: a generation, lists, and what is removed"
    );
}

/// Two who take snapshots of the same disk, two who delete and one who restores, all on stores that now and then sleep for long.
/// Each snapshot that is listed at the end holds what was frozen.
fn all_at_once(seed: u64) -> Result<(), String> {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("client");
    let env = machine.env();
    let outcome = simulation.run(async move {
        let store = Arc::new(MemoryStore::new(&env));
        let frozen: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
        let way = || {
            let mortal = Mortal {
                pause_ms: 8,
                ..Mortal::new(&env, &store)
            };
            Catalogue::new(Arc::new(mortal), DISK, &KEY)
        };
        let mut tasks = Vec::new();
        for who in 0..2 {
            // They do not know of each other, as after a forced attach.
            let device = Slow::new(&env, 6 * TRACT_BLOCKS);
            let gate = SnapshotGate::new(device.clone(), TRACT_BYTES);
            let (catalogue, env, frozen) = (way(), env.clone(), frozen.clone());
            let spawning = env.clone();
            tasks.push(spawning.spawn("take", async move {
                for number in 0..8 {
                    // Few contents, so that what was deleted comes back.
                    for _ in 0..3 {
                        let block = env.random_below(6 * TRACT_BLOCKS);
                        write(&gate, block, env.random_below(3) as u8).await;
                    }
                    let name = format!("{who}-{number}");
                    let Ok(prepared) = prepare(&catalogue, &gate, &name).await else {
                        continue;
                    };
                    let instant = prepared.freeze(&gate).map_err(|error| error.to_string())?;
                    let now = content(&*device.memory).await;
                    frozen.lock().unwrap().insert(name.clone(), now);
                    match prepared.copy(&env, instant, "", &Progress::default()).await {
                        Ok(_) | Err(SnapshotError::Overtaken) => {}
                        Err(error) => return Err(format!("{name}: {error}")),
                    }
                }
                Ok(())
            }));
        }
        for _ in 0..2 {
            let (catalogue, env) = (way(), env.clone());
            let spawning = env.clone();
            tasks.push(spawning.spawn("delete", async move {
                for _ in 0..8 {
                    env.sleep(Duration::from_millis(env.random_below(400))).await;
                    let listed = catalogue.list().await.map_err(|error| error.to_string())?;
                    if listed.is_empty() {
                        continue;
                    }
                    let victim = &listed[env.random_below(listed.len() as u64) as usize].name;
                    match delete(&env, &catalogue, victim, &Progress::default()).await {
                        Ok(_) => {}
                        Err(error) => return Err(format!("deletion of {victim}: {error}")),
                    }
                }
                Ok(())
            }));
        }
        let (catalogue, reading) = (way(), env.clone());
        let wanted = frozen.clone();
        tasks.push(env.spawn("restore", async move {
            for _ in 0..10 {
                reading
                    .sleep(Duration::from_millis(reading.random_below(300)))
                    .await;
                let listed = catalogue.list().await.map_err(|error| error.to_string())?;
                let Some(one) = listed.first() else { continue };
                match restored(&catalogue, &one.name).await {
                    Ok(found) => {
                        if wanted.lock().unwrap().get(&one.name) != Some(&found) {
                            return Err(format!("{} is restored as something else", one.name));
                        }
                    }
                    Err(SnapshotError::Deleted(_) | SnapshotError::NotFound(_)) => {}
                    Err(error) => return Err(format!("restore of {}: {error}", one.name)),
                }
            }
            Ok(())
        }));
        for task in tasks {
            task.await.map_err(|error| error.to_string())??;
        }
        let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
        let frozen = frozen.lock().unwrap().clone();
        for listed in catalogue.list().await.map_err(|error| error.to_string())? {
            let found = restored(&catalogue, &listed.name)
                .await
                .map_err(|error| format!("{} exists and cannot be restored: {error}", listed.name))?;
            if frozen.get(&listed.name) != Some(&found) {
                return Err(format!("{} holds something else", listed.name));
            }
        }
        Ok(())
    });
    outcome.map_err(|error| error.to_string())?
}

const SEEDS: u64 = 40;
/// Within which each planted bug must be noticed.
const SEEDS_MAX: u64 = 200;

#[test]
fn snapshots_taken_deleted_and_restored_at_once_stay_whole() {
    for seed in 0..SEEDS {
        if let Err(wrong) = all_at_once(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn planted_bugs_of_deletions_are_caught() {
    let caught = |bug: &str| {
        planting(Some(bug), || {
            die_at_every_request().is_err() || (0..SEEDS_MAX).any(|seed| all_at_once(seed).is_err())
        })
    };
    for bug in [
        "snapshot.deletes_what_is_shared",
        "snapshot.sweeps_its_own_epoch",
        "snapshot.ignores_deletions",
    ] {
        assert!(caught(bug), "{bug}");
    }
}

#[test]
fn a_restore_whose_snapshot_is_deleted_says_so() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let store = Arc::new(MemoryStore::new(&env));
            let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
            let (_, taken) = three(&env, &catalogue).await;
            let slow = Mortal {
                pause_ms: 200,
                ..Mortal::new(&env, &store)
            };
            let reading = Catalogue::new(Arc::new(slow), DISK, &KEY);
            let mut told = 0;
            for pause_ms in [0, 50, 150, 300, 450] {
                let mut random = Seeded::new(pause_ms, 3);
                let name = format!("again-{pause_ms}");
                let gate = SnapshotGate::new(Slow::new(&env, 4 * TRACT_BLOCKS), TRACT_BYTES);
                write(&gate, random.below(8), 200 + pause_ms as u8 % 40).await;
                snapshot(&env, &catalogue, &gate, &name).await;
                let target = MemoryDevice::with_block(4 * TRACT_BLOCKS * BLOCK, BLOCK as u32);
                let (deleting, working, victim) = (catalogue.clone(), env.clone(), name.clone());
                let deletion = env.spawn("delete", async move {
                    working.sleep(Duration::from_millis(pause_ms)).await;
                    delete(&working, &deleting, &victim, &Progress::default()).await
                });
                match restore(&reading, &name, &target, &Progress::default()).await {
                    Ok(_) => {}
                    Err(SnapshotError::Deleted(_) | SnapshotError::NotFound(_)) => told += 1,
                    Err(error) => panic!("{error}"),
                }
                deletion.await.unwrap().unwrap();
            }
            assert!(told > 0, "one of them was deleted under its restore");
            hold(&catalogue, &taken).await.unwrap();
        })
        .unwrap();
}
