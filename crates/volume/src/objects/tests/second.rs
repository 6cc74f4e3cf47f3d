//! Reads that find damage, with a second store: answered from there, verified, and bounded in time.

use super::{CACHE, FAMILY, build, content, key, keys, place};
use crate::objects::{FetchPolicy, Objects, ObjectsConfig, ReadError};
use bytes::Bytes;
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{ForwardingEntry, ForwardingRecord, Pointer, WriterId};
use firn_store::{FaultConfig, Faults, Faulty, MemoryStore, ObjectKey, Outage, PutMode, Store};
use std::{future::Future, sync::Arc, time::Duration};

const LENGTHS: [usize; 4] = [30_000; 4];

/// Two stores with the same segment.
struct Stores {
    first: Arc<MemoryStore>,
    second: Arc<MemoryStore>,
    pointers: Vec<Pointer>,
}

impl Stores {
    async fn new(env: &Env) -> Self {
        let (parts, pointers) = build(0, 0, &LENGTHS);
        let stores = Self {
            first: Arc::new(MemoryStore::new(env)),
            second: Arc::new(MemoryStore::new(env)),
            pointers,
        };
        for store in [&stores.first, &stores.second] {
            store.put(&key(0), parts.clone(), PutMode::Create).await.unwrap();
        }
        stores
    }

    async fn objects(&self, env: &Env, second: Option<Arc<dyn Store>>) -> Objects {
        let config = ObjectsConfig {
            memory_cache_bytes: 0,
            disk_cache_bytes: 0,
            fetch: FetchPolicy::Exact,
            second,
            ..ObjectsConfig::default()
        };
        let opened = Objects::open(env, self.first.clone(), FAMILY, keys(), CACHE, config);
        opened.await.expect("opens")
    }

    /// With the second store as it is.
    async fn mirrored(&self, env: &Env) -> Objects {
        self.objects(env, Some(self.second.clone())).await
    }

    async fn change(store: &MemoryStore, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = store.get(&key(0)).await.unwrap().to_vec();
        change(&mut bytes);
        let bytes = vec![Bytes::from(bytes)];
        store.put(&key(0), bytes, PutMode::Overwrite).await.unwrap();
    }
}

async fn read(objects: &Objects, stores: &Stores, index: usize) -> Result<Bytes, ReadError> {
    let object = objects.get(&stores.pointers[index], place(index as u64)).await?;
    Ok(object.payload.clone())
}

fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(scenario: impl FnOnce(Env) -> F) -> T {
    let simulation = Simulation::new(5);
    let env = simulation.machine("edge").env();
    simulation.run(scenario(env)).expect("it ends")
}

fn a_lost_segment_is_read() -> bool {
    simulate(|env| async move {
        let stores = Stores::new(&env).await;
        stores.first.delete(&key(0)).await.unwrap();
        let objects = stores.mirrored(&env).await;
        for index in 0..LENGTHS.len() {
            match read(&objects, &stores, index).await {
                Ok(bytes) => assert!(bytes == content(index as u64, 30_000)),
                Err(_) => return false,
            }
        }
        let reads = objects.second_reads().expect("there is one");
        assert_eq!((reads.objects, reads.segments, reads.failures), (4, 1, 0));
        assert_eq!(objects.lost_segments(), [stores.pointers[0].location.segment]);
        // Proof of the first store: the second does not count.
        let proof = objects.uncached().get(&stores.pointers[0], place(0)).await;
        assert!(matches!(proof, Err(ReadError::Missing { .. })), "{proof:?}");
        true
    })
}

#[test]
fn what_the_first_store_lost_is_read_from_the_second() {
    assert!(a_lost_segment_is_read());
    assert!(!planting(
        Some("volume.second_store_not_read"),
        a_lost_segment_is_read
    ));
}

/// Reads block 2, which the first store has lost and in whose place the second has another, whole and sealed with the same keys.
fn another_in_its_place() -> Result<Bytes, ReadError> {
    simulate(|env| async move {
        let stores = Stores::new(&env).await;
        stores.first.delete(&key(0)).await.unwrap();
        let [wanted, other] = [2, 3].map(|index| stores.pointers[index].location);
        let from = other.offset as usize;
        Stores::change(&stores.second, |bytes| {
            bytes.copy_within(from..from + other.length as usize, wanted.offset as usize);
        })
        .await;
        let objects = stores.mirrored(&env).await;
        read(&objects, &stores, 2).await
    })
}

#[test]
fn what_the_second_store_says_is_verified_like_anything_else() {
    let read = another_in_its_place();
    assert!(matches!(read, Err(ReadError::Missing { .. })), "{read:?}");
    let trusted = planting(Some("volume.second_store_trusted"), another_in_its_place);
    assert!(
        matches!(trusted, Err(ReadError::Corrupt { .. })),
        "who trusts it takes it for the block: {trusted:?}"
    );
}

#[test]
fn records_are_followed_from_a_segment_that_is_there_and_damaged() {
    simulate(|env| async move {
        let stores = Stores::new(&env).await;
        let location = stores.pointers[1].location;
        Stores::change(&stores.first, |bytes| bytes[location.offset as usize + 200] ^= 1).await;
        // A repair has written the object elsewhere.
        let (start, end) = (
            location.offset as usize,
            (location.offset + location.length) as usize,
        );
        let object = stores.second.get(&key(0)).await.unwrap().slice(start..end);
        stores
            .first
            .put(&key(7), vec![object], PutMode::Create)
            .await
            .unwrap();
        let mut new = location;
        new.segment = super::segment_id(7);
        new.offset = 0;
        let record = ForwardingRecord {
            family: FAMILY,
            old: location.segment,
            mover: WriterId(9),
            retired_at_ms: 0,
            entries: vec![ForwardingEntry {
                offset: location.offset,
                new,
            }],
        };
        let name = ObjectKey::new(&ForwardingRecord::key(&FAMILY, record.old, record.mover));
        stores
            .first
            .put(&name, vec![record.encode()], PutMode::Create)
            .await
            .unwrap();
        let objects = stores.objects(&env, None).await;
        assert!(read(&objects, &stores, 1).await.unwrap() == content(1, 30_000));
        assert!(read(&objects, &stores, 0).await.unwrap() == content(0, 30_000));
        assert_eq!(objects.absent_segments(), 0, "it is there");
    });
}

#[test]
fn a_second_store_that_hangs_holds_a_reader_up_once_and_not_for_long() {
    simulate(|env| async move {
        let stores = Stores::new(&env).await;
        stores.first.delete(&key(0)).await.unwrap();
        let hangs = FaultConfig {
            faults: Faults {
                outage: Outage::Hang,
                timeout_ms: 3_600_000,
                ..Faults::default()
            },
            ..FaultConfig::default()
        };
        let second = Faulty::new(&env, stores.second.clone(), hangs).unwrap();
        let objects = stores.objects(&env, Some(Arc::new(second))).await;
        let began = env.now();
        read(&objects, &stores, 0).await.unwrap_err();
        let first = env.now().since(began);
        assert!(first < Duration::from_secs(20), "{first:?}");
        let began = env.now();
        read(&objects, &stores, 1).await.unwrap_err();
        assert!(env.now().since(began) < Duration::from_secs(1));
    });
}
