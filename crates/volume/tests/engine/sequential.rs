//! Sequential readers of what no cache has: requests, bytes and (virtual) time against those of the raw store.

use crate::world::root;
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::{
    Env,
    mutants::planting,
    sim::{Seeded, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{
    FaultConfig, Faults, Faulty, ListPage, MemoryStore, Meter, Metered, ObjectInfo, ObjectKey, PutMode,
    Store, StoreError, Usage,
};
use firn_table::MemoryTable;
use firn_vfs::{CreateMode, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

const FAMILY: FamilyId = FamilyId([1; 16]);
const MIB: u64 = 1 << 20;
/// What a Linux client reads with one call, and its calls in flight.
const CALL_BYTES: u64 = MIB;
/// A block of a file.
const BLOCK_BYTES: u64 = 32 << 10;
const QUEUE: usize = 8;
/// The line: 500 MB/s, 12 ms away.
const BITS_PER_SECOND: u64 = 4_000_000_000;
const LATENCY_MS: u64 = 12;

/// A volume on a store that is some way off.
struct Far {
    env: Env,
    parts: Parts,
    meter: Meter,
}

/// A store in which nothing is found the first time that it is asked for.
struct SeenLate {
    inner: Arc<dyn Store>,
    asked: Mutex<BTreeSet<ObjectKey>>,
}

impl SeenLate {
    fn look(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let is_new = self
            .asked
            .lock()
            .expect("no panic under this lock")
            .insert(key.clone());
        if is_new {
            Err(StoreError::not_found(key))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Store for SeenLate {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.inner.put(key, parts, mode).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.look(key)?;
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.look(key)?;
        self.inner.get_range(key, offset, length).await
    }
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.inner.head(key).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete(key).await
    }
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.inner.list(prefix, after).await
    }
}

impl Far {
    fn new(simulation: &Simulation) -> Self {
        Self::behind(simulation, |store| store)
    }

    fn behind(simulation: &Simulation, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        let env = simulation.machine("edge").env();
        let faults = Faults {
            latency_ms: LATENCY_MS,
            down_bits_per_second: Some(BITS_PER_SECOND),
            ..Faults::default()
        };
        let config = FaultConfig {
            seed: 1,
            faults,
            ..FaultConfig::default()
        };
        let controller = simulation.env();
        let memory = wrap(Arc::new(MemoryStore::new(&controller)));
        let far = Faulty::new(&controller, memory, config).expect("a configuration");
        let store = Arc::new(Metered::new(Arc::new(far)));
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Self {
            parts: Parts {
                env: env.clone(),
                store: store.clone(),
                second: None,
                anchor: Anchor::new(MemoryTable::new().connect(&env), env.clone(), FAMILY),
                keys: Keys::new(FAMILY, keys),
                volume: VolumeId([2; 16]),
            },
            meter: store.meter(),
            env,
        }
    }

    async fn open(&self) -> Volume {
        let config = VolumeConfig::default();
        self.parts.anchor.create_family().await.expect("a new family");
        Volume::format(&self.parts, "test", FormatOptions::default(), &config)
            .await
            .expect("it is formatted");
        Volume::open(self.parts.clone(), config)
            .await
            .expect("it opens")
            .0
    }

    /// Forgets all that is cached; what is measured begins.
    async fn cold(&self, volume: &Volume) -> Cold {
        volume.sync().await.expect("a sync");
        // What was uploaded last goes into the cache afterwards.
        self.env.sleep(Duration::from_secs(5)).await;
        volume.drop_caches().await;
        Cold {
            usage: self.meter.usage(),
            since: self.env.now(),
        }
    }

    fn done(&self, cold: &Cold) -> Fetched {
        let Usage {
            gets,
            ranged_gets,
            bytes_down,
            ..
        } = self.meter.usage();
        Fetched {
            gets: gets + ranged_gets - cold.usage.gets - cold.usage.ranged_gets,
            bytes: bytes_down - cold.usage.bytes_down,
            took: self.env.now().since(cold.since),
        }
    }
}

struct Cold {
    usage: Usage,
    since: firn_env::Monotonic,
}

#[derive(Debug)]
struct Fetched {
    gets: u64,
    bytes: u64,
    took: Duration,
}

/// How long the line takes for so many bytes.
fn line(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / BITS_PER_SECOND as f64)
}

/// Bytes that nothing compresses; another version each time a block is written.
fn content(number: u64, version: u64, length: usize) -> Bytes {
    let mut reader = blake3::Hasher::new()
        .update(&number.to_le_bytes())
        .update(&version.to_le_bytes())
        .finalize_xof();
    let mut bytes = vec![0; length];
    reader.fill(&mut bytes);
    Bytes::from(bytes)
}

async fn create(volume: &Volume, name: &'static str) -> FileHandle {
    let name = Name::new(name.as_bytes()).expect("a name");
    let mode = CreateMode::Guarded(SetAttributes::default());
    let made = volume.create(&root(), volume.root(), &name, mode).await;
    made.expect("it is made").handle
}

async fn write(env: &Env, volume: &Volume, file: FileHandle, offset: u64, data: Bytes) {
    loop {
        let parts = vec![data.clone()];
        match volume
            .write(&root(), file, offset, parts, Stability::Unstable)
            .await
        {
            Ok(_) => return,
            Err(VfsError::TryAgain { .. }) => env.sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A file of so many MiB, as a client copies it there.
async fn filled(env: &Env, volume: &Volume, name: &'static str, mib: u64) -> FileHandle {
    let file = create(volume, name).await;
    for number in 0..mib {
        let data = content(number, 0, MIB as usize);
        write(env, volume, file, number * MIB, data).await;
    }
    file
}

/// Reads a part of a file as a client does that copies it: in calls of a mebibyte, some in flight.
async fn copy(volume: &Volume, file: FileHandle, calls: Range<u64>, queue: usize) -> Vec<Bytes> {
    stream::iter(calls)
        .map(|number| async move {
            let read = volume
                .read(&root(), file, number * CALL_BYTES, CALL_BYTES as u32)
                .await?;
            Ok::<_, VfsError>(Bytes::from(read.data.concat()))
        })
        .buffered(queue)
        .try_collect()
        .await
        .expect("readable")
}

fn is_as_written(read: &[Bytes], first: u64) {
    for (number, bytes) in (first..).zip(read) {
        assert!(*bytes == content(number, 0, MIB as usize), "mebibyte {number}");
    }
}

#[test]
fn a_cold_sequential_read_takes_one_get_a_segment_at_the_rate_of_the_line() {
    const MIBS: u64 = 128;
    let simulation = Simulation::new(1);
    let far = Far::new(&simulation);
    let fetched = simulation
        .run(async move {
            let volume = far.open().await;
            let file = filled(&far.env, &volume, "large", MIBS).await;
            let cold = far.cold(&volume).await;
            let read = copy(&volume, file, 0..MIBS, QUEUE).await;
            let fetched = far.done(&cold);
            is_as_written(&read, 0);
            fetched
        })
        .expect("the run ends");
    // 32 segments and a part of one; the inode, the map's nodes and the calls that came before anything was known of the reader: 8 to 16,
    // as the order of tasks has it (of seeds 1 to 8).
    assert!(fetched.gets <= 33 + 16, "{fetched:?}");
    assert!(fetched.bytes <= MIBS * MIB * 51 / 50, "{fetched:?}");
    // The round trips to the first block.
    let beginning = Duration::from_millis(5 * LATENCY_MS);
    assert!(fetched.took <= line(MIBS * MIB) + beginning, "{fetched:?}");
}

#[test]
fn a_scan_of_a_large_file_leaves_what_others_read_in_memory() {
    // Beyond the memory cache of 48 MiB, by its half from which a reader counts as a scan.
    const MIBS: u64 = 96;
    let simulation = Simulation::new(1);
    let far = Far::new(&simulation);
    let again = simulation
        .run(async move {
            let volume = far.open().await;
            let small = filled(&far.env, &volume, "small", 1).await;
            let large = filled(&far.env, &volume, "large", MIBS).await;
            far.cold(&volume).await;
            for _ in 0..2 {
                is_as_written(&copy(&volume, small, 0..1, 1).await, 0);
                is_as_written(&copy(&volume, large, 0..MIBS, QUEUE).await, 0);
            }
            let before = volume.status().objects;
            is_as_written(&copy(&volume, small, 0..1, 1).await, 0);
            let after = volume.status().objects;
            (
                after.memory_hits - before.memory_hits,
                after.disk_hits - before.disk_hits,
            )
        })
        .expect("the run ends");
    // Its blocks, and the nodes that lead to them.
    assert!(again.0 >= MIB / BLOCK_BYTES && again.1 == 0, "{again:?}");
}

#[test]
fn a_file_that_was_overwritten_at_random_is_fetched_without_what_it_no_longer_holds() {
    const MIBS: u64 = 128;
    let simulation = Simulation::new(2);
    let far = Far::new(&simulation);
    let fetched = simulation
        .run(async move {
            let volume = far.open().await;
            let file = filled(&far.env, &volume, "large", MIBS).await;
            volume.sync().await.expect("a sync");
            let mut random = Seeded::new(7, 0);
            let mut written = BTreeMap::new();
            // As many of each mebibyte as 10,000 are of 512.
            for version in 1..=2500 {
                let block = random.index((MIBS * MIB / 4096) as usize) as u64;
                write(
                    &far.env,
                    &volume,
                    file,
                    block * 4096,
                    content(block, version, 4096),
                )
                .await;
                written.insert(block, version);
                if version % 800 == 0 {
                    volume.sync().await.expect("a sync");
                }
            }
            let cold = far.cold(&volume).await;
            let read = copy(&volume, file, 0..MIBS, QUEUE).await;
            let fetched = far.done(&cold);
            for (number, bytes) in (0..).zip(&read) {
                let mut expected = content(number, 0, MIB as usize).to_vec();
                let blocks = number * MIB / 4096..(number + 1) * MIB / 4096;
                for (block, version) in written.range(blocks.clone()) {
                    let at = ((block - blocks.start) * 4096) as usize;
                    expected[at..at + 4096].copy_from_slice(&content(*block, *version, 4096));
                }
                assert!(*bytes == expected, "mebibyte {number}");
            }
            fetched
        })
        .expect("the run ends");
    // Whole segments would be half as much again.
    assert!(fetched.bytes <= MIBS * MIB * 11 / 10, "{fetched:?}");
}

#[test]
fn readers_at_several_places_of_one_file_share_what_is_under_way() {
    const MIBS: u64 = 64;
    let simulation = Simulation::new(3);
    let far = Far::new(&simulation);
    let fetched = simulation
        .run(async move {
            let volume = far.open().await;
            let file = filled(&far.env, &volume, "large", MIBS).await;
            let cold = far.cold(&volume).await;
            let halves = [0..MIBS / 2, MIBS / 2..MIBS, 0..MIBS / 2];
            let readers = halves.clone().map(|calls| copy(&volume, file, calls, 2));
            for (read, calls) in futures::future::join_all(readers).await.iter().zip(halves) {
                is_as_written(read, calls.start);
            }
            far.done(&cold)
        })
        .expect("the run ends");
    // 16 segments and a part of one, and two beginnings.
    assert!(fetched.gets <= 17 + 2 * 8, "{fetched:?}");
    assert!(fetched.bytes <= MIBS * MIB * 26 / 25, "{fetched:?}");
}

#[test]
fn random_reads_are_not_read_ahead_of() {
    const MIBS: u64 = 64;
    const READS: u64 = 200;
    let simulation = Simulation::new(4);
    let far = Far::new(&simulation);
    let fetched = simulation
        .run(async move {
            let volume = far.open().await;
            let file = filled(&far.env, &volume, "large", MIBS).await;
            let cold = far.cold(&volume).await;
            let mut random = Seeded::new(9, 0);
            for _ in 0..READS {
                let block = random.index((MIBS * MIB / 4096) as usize) as u64;
                let read = volume
                    .read(&root(), file, block * 4096, 4096)
                    .await
                    .expect("readable");
                let at = (block * 4096 % MIB) as usize;
                let whole = content(block * 4096 / MIB, 0, MIB as usize);
                assert!(read.data.concat() == whole[at..at + 4096], "block {block}");
            }
            far.done(&cold)
        })
        .expect("the run ends");
    // A block of 32 KiB each, the nodes, and what was tried at first.
    assert!(fetched.bytes <= READS * (40 << 10) + 2 * MIB, "{fetched:?}");
}

/// Reads a file ahead of whose reader nothing is found at first; returns what the reader was told.
fn read_what_is_seen_late(seed: u64) -> Result<(), VfsError> {
    const MIBS: u64 = 32;
    let simulation = Simulation::new(seed);
    let late = |inner| -> Arc<dyn Store> {
        Arc::new(SeenLate {
            inner,
            asked: Mutex::default(),
        })
    };
    let far = Far::behind(&simulation, late);
    simulation
        .run(async move {
            let volume = far.open().await;
            let file = filled(&far.env, &volume, "large", MIBS).await;
            far.cold(&volume).await;
            for number in 0..MIBS {
                let read = volume.read(&root(), file, number * MIB, MIB as u32).await?;
                assert!(
                    read.data.concat() == content(number, 0, MIB as usize),
                    "mebibyte {number}"
                );
            }
            Ok(())
        })
        .expect("the run ends")
}

#[test]
fn what_could_not_be_fetched_ahead_is_waited_for_like_anything_else() {
    // Whether a reader waits just for what is not found yet is a matter of who runs first.
    let seeds = 0..8;
    for seed in seeds.clone() {
        read_what_is_seen_late(seed).expect("all is there, and seen the second time");
    }
    let planted = || seeds.into_iter().try_for_each(read_what_is_seen_late);
    let planted = planting(Some("volume.ahead_fails_for_its_reader"), planted);
    assert!(planted.is_err(), "the planted bug is not noticed");
}
