//! Snapshots of a disk that is being written to, in virtual time.

use crate::world::*;
use firn_blockd_nbd::{BlockDevice, Durability, MemoryDevice};
use firn_blockd_snapshot::{Catalogue, Progress, SnapshotError, SnapshotGate, prepare, restore, take};
use firn_env::sim::{Seeded, Simulation};
use firn_store::{MemoryStore, ObjectKey, PutMode, Store};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

#[test]
fn a_snapshot_is_the_disk_at_its_instant_while_writers_go_on() {
    for seed in 0..60 {
        let simulation = Simulation::new(seed);
        let env = simulation.env();
        simulation
            .run(async move {
                let mut random = Seeded::new(seed, 5);
                let blocks = 1 + random.index(20) as u64;
                let device = Slow::new(&env, blocks);
                let store = Arc::new(MemoryStore::new(&env));
                let catalogue = Catalogue::new(store, DISK, &KEY);
                let mut taken: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                for attach in 0..2 {
                    let gate = SnapshotGate::new(device.clone(), TRACT_BYTES);
                    let writers: Vec<_> = (0..3)
                        .map(|_| env.spawn("writer", write_for_ever(env.clone(), gate.clone())))
                        .collect();
                    for number in 0..4 {
                        let name = format!("{attach}-{number}");
                        let prepared = prepare(&catalogue, &gate, &name).await.unwrap();
                        let frozen = prepared.freeze(&gate).unwrap();
                        assert!(matches!(gate.freeze(None), Err(SnapshotError::Busy)));
                        // The memory itself, in the same instant.
                        let now = content(&*device.memory).await;
                        if random.index(4) == 0 {
                            // Given up: whoever waits goes on, and nothing of it exists.
                            drop(frozen);
                            assert!(matches!(
                                catalogue.root(&name).await,
                                Err(SnapshotError::NotFound(_))
                            ));
                        } else {
                            prepared
                                .copy(&env, frozen, "", &Progress::default())
                                .await
                                .unwrap();
                            taken.insert(name, now);
                        }
                        if random.index(3) == 0 {
                            let more = device.geometry().size_bytes + BLOCK * (1 + random.index(4) as u64);
                            device.memory.grow(more);
                        }
                        env.sleep(Duration::from_millis(random.index(60) as u64)).await;
                    }
                    writers.iter().for_each(|writer| writer.abort());
                }
                for (name, content) in &taken {
                    assert_eq!(
                        &restored(&catalogue, name).await.unwrap(),
                        content,
                        "seed {seed}, {name}"
                    );
                }
                let mut names: Vec<String> = catalogue
                    .list()
                    .await
                    .unwrap()
                    .into_iter()
                    .map(|listed| listed.name)
                    .collect();
                names.sort();
                assert_eq!(names, taken.into_keys().collect::<Vec<_>>());
            })
            .unwrap();
    }
}

#[test]
fn a_writer_waits_for_its_own_tract_and_no_longer() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let device = Slow::new(&env, 3000);
            let gate = SnapshotGate::new(device.clone(), TRACT_BYTES);
            let catalogue = Catalogue::new(Arc::new(MemoryStore::new(&env)), DISK, &KEY);
            let byte = |tract: u64| (1 + tract % 200) as u8;
            for tract in 0..1000 {
                let data = vec![byte(tract); TRACT_BYTES as usize];
                device
                    .memory
                    .write(
                        tract * u64::from(TRACT_BYTES),
                        data.into(),
                        Durability::Acknowledged,
                    )
                    .await
                    .unwrap();
            }
            let prepared = prepare(&catalogue, &gate, "one").await.unwrap();
            let frozen = prepared.freeze(&gate).unwrap();
            let (copying, progress) = (env.clone(), Arc::new(Progress::default()));
            let told = progress.clone();
            let copy = env.spawn(
                "copy",
                async move { prepared.copy(&copying, frozen, "", &told).await },
            );
            // The last tract's turn would come after seconds.
            let began = env.now();
            let last = 2999 * BLOCK;
            gate.write(last, vec![0xee; BLOCK as usize].into(), Durability::Acknowledged)
                .await
                .unwrap();
            let waited = env.now().since(began);
            assert!(waited < Duration::from_millis(200), "{waited:?}");
            assert!(progress.done.load(Relaxed) < 100);
            copy.await.unwrap().unwrap();
            let found = restored(&catalogue, "one").await.unwrap();
            assert_eq!(found[last as usize], byte(999), "as it was at the instant");
        })
        .unwrap();
}

#[test]
fn only_what_changed_is_read_and_stored() {
    let simulation = Simulation::new(2);
    let env = simulation.env();
    simulation
        .run(async move {
            let device = Slow::new(&env, 30);
            let gate = SnapshotGate::new(device.clone(), TRACT_BYTES);
            let store = Arc::new(MemoryStore::new(&env));
            let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
            let write = async |block: u64, byte: u8| {
                let data = vec![byte; BLOCK as usize];
                gate.write(block * BLOCK, data.into(), Durability::Acknowledged)
                    .await
                    .unwrap();
            };
            let snapshot = async |gate: &SnapshotGate<Slow>, name: &str| {
                let before = device.read.load(Relaxed);
                let taken = take(&env, &catalogue, gate, name, "", &Progress::default())
                    .await
                    .unwrap();
                (
                    taken.read_tracts,
                    device.read.load(Relaxed) - before,
                    taken.stored_bytes,
                )
            };
            for block in 0..9 {
                write(block, 1 + block as u8).await;
            }
            let (tracts, read, stored) = snapshot(&gate, "first").await;
            assert_eq!((tracts, read), (10, 30 * BLOCK), "all is read");
            assert!(
                stored > 9 * BLOCK && stored < 11 * BLOCK,
                "{stored}: zeroes are not stored"
            );
            assert_eq!(snapshot(&gate, "same").await, (0, 0, 0));
            write(4, 77).await;
            let (tracts, read, stored) = snapshot(&gate, "second").await;
            assert_eq!((tracts, read), (1, 3 * BLOCK));
            assert!(
                stored > 3 * BLOCK && stored < 4 * BLOCK,
                "one tract and an index page: {stored}"
            );
            // Back to what it was: that is in the store already.
            write(4, 5).await;
            assert_eq!(snapshot(&gate, "third").await, (1, 3 * BLOCK, 0));
            // Another attach reads all and stores nothing.
            let fresh = SnapshotGate::new(device.clone(), TRACT_BYTES);
            assert_eq!(snapshot(&fresh, "fourth").await, (10, 30 * BLOCK, 0));
            assert_eq!(
                restored(&catalogue, "third").await.unwrap(),
                restored(&catalogue, "first").await.unwrap()
            );
            assert!(matches!(
                take(&env, &catalogue, &gate, "first", "", &Progress::default()).await,
                Err(SnapshotError::Exists(_))
            ));
            for name in ["", ".", "..", "a/b", &"x".repeat(65), "ü"] {
                assert!(
                    matches!(catalogue.root(name).await, Err(SnapshotError::Name(_))),
                    "{name}"
                );
            }
        })
        .unwrap();
}

#[test]
fn damage_in_the_store_is_an_error_and_never_wrong_data() {
    let simulation = Simulation::new(3);
    let env = simulation.env();
    simulation
        .run(async move {
            let device = Slow::new(&env, 7);
            let gate = SnapshotGate::new(device.clone(), TRACT_BYTES);
            let store = Arc::new(MemoryStore::new(&env));
            let catalogue = Catalogue::new(store.clone(), DISK, &KEY);
            let data = vec![9; 5 * BLOCK as usize];
            gate.write(BLOCK, data.into(), Durability::Acknowledged)
                .await
                .unwrap();
            take(&env, &catalogue, &gate, "one", "settings", &Progress::default())
                .await
                .unwrap();
            assert_eq!(catalogue.root("one").await.unwrap().settings, "settings");
            let objects = store.contents();
            assert_eq!(objects.len(), 5, "a generation, a root, a page, two tracts");
            let put = async |key: &ObjectKey, content: Vec<u8>| {
                store
                    .put(key, vec![content.into()], PutMode::Overwrite)
                    .await
                    .unwrap();
            };
            for (key, content) in &objects {
                for damage in 0..3 {
                    let mut damaged = content.to_vec();
                    match damage {
                        0 => damaged[content.len() / 2] ^= 4,
                        1 => damaged.truncate(content.len() / 2),
                        _ => damaged.clear(),
                    }
                    put(key, damaged).await;
                    let failed = restored(&catalogue, "one").await;
                    assert!(
                        matches!(failed, Err(SnapshotError::Damaged { .. })),
                        "{key}: {failed:?}"
                    );
                }
                store.delete(key).await.unwrap();
                assert!(restored(&catalogue, "one").await.is_err(), "{key} is gone");
                put(key, content.to_vec()).await;
            }
            // Two tracts in each other's place.
            let tracts: Vec<_> = objects
                .iter()
                .filter(|(key, _)| key.as_str().contains("/tracts/"))
                .collect();
            put(tracts[0].0, tracts[1].1.to_vec()).await;
            assert!(matches!(
                restored(&catalogue, "one").await,
                Err(SnapshotError::Damaged { .. })
            ));
            put(tracts[0].0, tracts[0].1.to_vec()).await;
            assert!(restored(&catalogue, "one").await.is_ok());
            let stranger = Catalogue::new(store.clone(), DISK, &[7; 32]);
            assert!(matches!(
                stranger.root("one").await,
                Err(SnapshotError::Damaged { .. })
            ));
            let small = MemoryDevice::with_block(6 * BLOCK, BLOCK as u32);
            let failed = restore(&catalogue, "one", &small, &Progress::default()).await;
            assert!(matches!(failed, Err(SnapshotError::TooSmall { .. })));
        })
        .unwrap();
}
