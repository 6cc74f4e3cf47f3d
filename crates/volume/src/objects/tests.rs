//! Reading objects from real segments: what readers rely on, one sentence a test.

mod adaptive;
mod damage;
mod pinned;
mod relocated;
mod runs;
mod second;

use super::{FetchPolicy, Object, Objects, ObjectsConfig, ReadError};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use firn_format::{FamilyId, KeyEpoch, Kind, Place, Pointer, SegmentBuilder, SegmentId, Version, WriterId};
use firn_seal::{Compression, EpochKey, Keys, ObjectSealer};
use firn_store::{ListPage, MemoryStore, Metered, ObjectInfo, ObjectKey, PutMode, Store, StoreError, Usage};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

const FAMILY: FamilyId = FamilyId([3; 16]);
const CACHE: &str = "cache";

fn keys() -> Keys {
    let epochs = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([9; 32]))]);
    Keys::new(FAMILY, epochs)
}

fn segment_id(sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(5),
        sequence,
    }
}

/// The content of the block at `index`: nothing compresses it.
fn content(index: u64, length: usize) -> Vec<u8> {
    let mut reader = blake3::Hasher::new().update(&index.to_le_bytes()).finalize_xof();
    let mut bytes = vec![0; length];
    reader.fill(&mut bytes);
    bytes
}

fn place(index: u64) -> Place {
    Place {
        inode: 20,
        level: 0,
        index,
    }
}

/// A segment of blocks of these lengths; the first stands at `first_index`.
fn build(sequence: u64, first_index: u64, lengths: &[usize]) -> (Vec<Bytes>, Vec<Pointer>) {
    let id = segment_id(sequence);
    let sealer = ObjectSealer::new(&keys(), [sequence as u8; 32], &id);
    let mut builder = SegmentBuilder::new(FAMILY, id);
    let mut pointers = Vec::new();
    for (index, length) in (first_index..).zip(lengths) {
        let slot = sealer.reserve_slot();
        let payload = content(index, *length);
        let (birth, plain) = (Version(1), Bytes::new());
        let encoded = sealer
            .seal(
                slot,
                Kind::Block,
                place(index),
                birth,
                plain,
                Vec::new(),
                &payload,
                Compression::Lz4,
            )
            .expect("sealed");
        let location = builder.push(&encoded);
        pointers.push(Pointer {
            uid: encoded.uid,
            location,
        });
    }
    (builder.finish(), pointers)
}

/// A store whose first so many GETs return bytes with one bit wrong.
struct Lying {
    inner: Arc<dyn Store>,
    lies: AtomicU64,
}

impl Lying {
    fn distort(&self, bytes: Bytes) -> Bytes {
        let lie = self
            .lies
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lies| lies.checked_sub(1));
        if lie.is_err() || bytes.is_empty() {
            return bytes;
        }
        let mut wrong = bytes.to_vec();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 4;
        Bytes::from(wrong)
    }
}

#[async_trait]
impl Store for Lying {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.inner.put(key, parts, mode).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        Ok(self.distort(self.inner.get(key).await?))
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        Ok(self.distort(self.inner.get_range(key, offset, length).await?))
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

struct Bench {
    directory: tempfile::TempDir,
    env: Env,
    store: Arc<Metered>,
    lying: Arc<Lying>,
    pointers: Vec<Pointer>,
}

impl Bench {
    /// A store with segments of blocks of these lengths.
    async fn new(segments: u64, lengths: &[usize]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("a disk");
        let lying = Arc::new(Lying {
            inner: Arc::new(MemoryStore::new(&env)),
            lies: AtomicU64::new(0),
        });
        let mut pointers = Vec::new();
        for sequence in 0..segments {
            let (parts, built) = build(sequence, sequence * lengths.len() as u64, lengths);
            lying
                .put(&key(sequence), parts, PutMode::Create)
                .await
                .expect("stored");
            pointers.extend(built);
        }
        Self {
            directory,
            env,
            store: Arc::new(Metered::new(lying.clone())),
            lying,
            pointers,
        }
    }

    async fn objects(&self, fetch: FetchPolicy) -> Objects {
        let config = ObjectsConfig {
            fetch,
            ..ObjectsConfig::default()
        };
        self.objects_with(config).await
    }

    async fn objects_with(&self, config: ObjectsConfig) -> Objects {
        Objects::open(&self.env, self.store.clone(), FAMILY, keys(), CACHE, config)
            .await
            .expect("opens")
    }

    async fn read(&self, objects: &Objects, index: usize) -> Result<Arc<Object>, ReadError> {
        objects.get(&self.pointers[index], place(index as u64)).await
    }

    fn usage(&self) -> Usage {
        self.store.usage()
    }

    fn gets(&self) -> u64 {
        self.usage().gets + self.usage().ranged_gets
    }

    /// Cache writes go on after the reader was served.
    async fn settle(&self, objects: &Objects) {
        for _ in 0..50 {
            let before = objects.statistics();
            self.env.sleep(std::time::Duration::from_millis(10)).await;
            if objects.statistics() == before && objects.inner.fetcher.is_idle() {
                return;
            }
        }
    }
}

fn key(sequence: u64) -> ObjectKey {
    ObjectKey::new(&segment_id(sequence).key(&FAMILY))
}

#[tokio::test]
async fn an_object_is_what_was_stored_under_every_policy() {
    for policy in [
        FetchPolicy::Exact,
        FetchPolicy::FullSegment,
        FetchPolicy::Adaptive,
    ] {
        let lengths = [10, 40_000, 1, 300_000, 1 << 20];
        let bench = Bench::new(2, &lengths).await;
        let objects = bench.objects(policy).await;
        for index in [7, 0, 3, 4, 9, 1, 2, 5, 6, 8] {
            let object = bench.read(&objects, index).await.expect("readable");
            assert_eq!(
                object.payload,
                content(index as u64, lengths[index % 5]),
                "{policy:?}, object {index}"
            );
        }
    }
}

#[tokio::test]
async fn exact_fetching_asks_for_the_object_and_nothing_else() {
    let bench = Bench::new(1, &[30_000; 20]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    for index in 0..20 {
        bench.read(&objects, index).await.expect("readable");
    }
    assert_eq!(bench.gets(), 20);
    let asked: u64 = bench
        .pointers
        .iter()
        .map(|pointer| u64::from(pointer.location.length))
        .sum();
    assert_eq!(bench.usage().bytes_down, asked);
}

#[tokio::test]
async fn a_whole_segment_is_fetched_once() {
    let bench = Bench::new(1, &[30_000; 20]).await;
    let objects = bench.objects(FetchPolicy::FullSegment).await;
    for index in (0..20).rev() {
        bench.read(&objects, index).await.expect("readable");
    }
    assert_eq!((bench.usage().gets, bench.usage().ranged_gets), (1, 0));
}

#[tokio::test]
async fn readers_of_one_object_share_one_get() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    let readers = (0..50).map(|_| bench.read(&objects, 2));
    for object in futures::future::join_all(readers).await {
        assert_eq!(object.expect("readable").payload, content(2, 30_000));
    }
    assert_eq!(bench.gets(), 1);
    assert_eq!(objects.statistics().shared_loads, 49);
}

#[tokio::test]
async fn readers_of_neighbours_at_one_moment_share_one_get() {
    let bench = Bench::new(1, &[30_000; 32]).await;
    let objects = bench.objects(FetchPolicy::Adaptive).await;
    let readers = (0..32).map(|index| bench.read(&objects, index));
    for object in futures::future::join_all(readers).await {
        object.expect("readable");
    }
    assert!(
        bench.gets() <= 2,
        "{} GETs for neighbours asked for at once",
        bench.gets()
    );
    let asked: u64 = bench
        .pointers
        .iter()
        .map(|pointer| u64::from(pointer.location.length))
        .sum();
    assert!(
        bench.usage().bytes_down <= asked + 10_000,
        "{} bytes",
        bench.usage().bytes_down
    );
}

#[tokio::test]
async fn what_is_in_memory_is_not_asked_for_again() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    for _ in 0..5 {
        bench.read(&objects, 1).await.expect("readable");
    }
    assert_eq!(bench.gets(), 1);
    assert!(objects.cached(&bench.pointers[1]).is_some());
    assert!(objects.cached(&bench.pointers[0]).is_none());
}

#[tokio::test]
async fn an_inserted_object_and_segment_need_no_get() {
    let bench = Bench::new(0, &[]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    let (parts, pointers) = build(9, 0, &[1000, 2000]);
    objects.insert_segment(segment_id(9), &parts).await;
    let object = objects
        .get(&pointers[1], place(1))
        .await
        .expect("from the disk cache");
    objects.drop_caches().await;
    objects.insert(&pointers[1], object);
    objects.get(&pointers[1], place(1)).await.expect("from memory");
    assert_eq!(bench.gets(), 0);
    assert!(
        objects.get(&pointers[0], place(0)).await.is_err(),
        "the dropped segment was never stored"
    );
}

#[tokio::test]
async fn after_a_restart_the_disk_cache_is_found_by_probing() {
    let bench = Bench::new(2, &[30_000; 10]).await;
    {
        let objects = bench.objects(FetchPolicy::Exact).await;
        for index in 0..10 {
            bench.read(&objects, index).await.expect("readable");
        }
        bench.settle(&objects).await;
    }
    assert_eq!(bench.gets(), 10);
    let objects = bench.objects(FetchPolicy::Exact).await;
    for index in 0..20 {
        bench.read(&objects, index).await.expect("readable");
    }
    assert_eq!(bench.gets(), 20, "the second segment only");
    assert_eq!(objects.statistics().disk_hits, 10);
    assert_eq!(
        objects.statistics().cache_damages,
        0,
        "what is not there is no damage"
    );
}

#[tokio::test]
async fn dropping_the_caches_makes_everything_cold() {
    let bench = Bench::new(1, &[30_000; 10]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    for round in 1..3 {
        for index in 0..10 {
            bench.read(&objects, index).await.expect("readable");
        }
        assert_eq!(bench.gets(), round * 10);
        bench.settle(&objects).await;
        objects.drop_caches().await;
    }
    assert_eq!(objects.statistics().disk_bytes, 0);
    assert_eq!(objects.statistics().memory_objects, 0);
}

#[tokio::test]
async fn a_reader_that_gives_up_leaves_the_load_to_the_next() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    {
        let reader = bench.read(&objects, 0);
        futures::pin_mut!(reader);
        assert!(futures::poll!(&mut reader).is_pending());
    }
    bench.settle(&objects).await;
    assert!(objects.cached(&bench.pointers[0]).is_some());
    bench.read(&objects, 0).await.expect("readable");
    assert_eq!(bench.gets(), 1);
}

#[tokio::test]
async fn memory_and_disk_stay_within_their_bounds_and_keep_what_was_used_last() {
    let bench = Bench::new(12, &[100_000; 8]).await;
    let config = ObjectsConfig {
        memory_cache_bytes: 1 << 20,
        disk_cache_bytes: 3 << 20,
        fetch: FetchPolicy::Exact,
        ..ObjectsConfig::default()
    };
    let objects = bench.objects_with(config.clone()).await;
    for index in 0..96 {
        bench.read(&objects, index).await.expect("readable");
        let statistics = objects.statistics();
        assert!(
            statistics.memory_bytes <= config.memory_cache_bytes,
            "{statistics:?}"
        );
    }
    bench.settle(&objects).await;
    let statistics = objects.statistics();
    assert!(statistics.disk_bytes <= config.disk_cache_bytes, "{statistics:?}");
    let on_disk: u64 = std::fs::read_dir(bench.directory.path().join(CACHE))
        .expect("the cache's directory")
        .map(|entry| entry.expect("an entry").metadata().expect("its length").len())
        .sum();
    assert!(on_disk <= config.disk_cache_bytes, "{on_disk} bytes on the disk");
    let before = bench.gets();
    for index in 80..96 {
        bench.read(&objects, index).await.expect("readable");
    }
    assert_eq!(bench.gets(), before, "the last two segments are still there");
    bench.read(&objects, 0).await.expect("readable");
    assert_eq!(bench.gets(), before + 1, "the first one is not");
}

#[tokio::test]
async fn the_disk_cache_gives_way_to_a_journal_that_finds_the_disk_full() {
    let bench = Bench::new(4, &[100_000; 8]).await;
    let objects = bench.objects(FetchPolicy::FullSegment).await;
    for index in 0..32 {
        bench.read(&objects, index).await.expect("readable");
    }
    bench.settle(&objects).await;
    let before = objects.statistics().disk_bytes;
    assert!(before > 0);
    let reclaimer = objects.reclaimer().0.expect("a cache");
    reclaimer.reclaim(1).await;
    assert_eq!(objects.statistics().disk_bytes, before, "there is room");
    reclaimer.reclaim(u64::MAX).await;
    assert_eq!(objects.statistics().disk_given_up_bytes, before);
    assert_eq!(objects.statistics().disk_bytes, 0);
    bench.read(&objects, 0).await.expect("readable");
}

#[tokio::test]
async fn a_scan_of_blocks_does_not_push_out_the_trees() {
    let mut memory = super::memory::MemoryCache::new(1 << 20);
    let object = |kind, bytes: usize| {
        let (_, pointers) = build(0, 0, &[1]);
        let encoded = ObjectSealer::new(&keys(), [1; 32], &segment_id(0));
        let sealed = encoded
            .seal(
                encoded.reserve_slot(),
                Kind::Block,
                place(0),
                Version(1),
                Bytes::new(),
                vec![],
                b"",
                Compression::None,
            )
            .expect("sealed");
        let header = firn_format::ObjectHeader {
            kind,
            ..sealed.header
        };
        assert_eq!(pointers.len(), 1);
        Arc::new(Object {
            header,
            payload: Bytes::from(vec![0; bytes]),
        })
    };
    let pointer = |number: u64| firn_format::Pointer {
        uid: firn_format::Uid(*blake3::hash(&number.to_le_bytes()).as_bytes()),
        location: firn_format::Location::UNKNOWN,
    };
    for number in 0..20 {
        memory.insert(&pointer(number), object(Kind::Node, 10_000));
    }
    for number in 100..1100 {
        memory.insert(&pointer(number), object(Kind::Block, 32_000));
    }
    assert!(
        (0..20).all(|number| memory.get(&pointer(number)).is_some()),
        "200 KB of nodes stay"
    );
    for number in 2000..2100 {
        memory.insert(&pointer(number), object(Kind::Inode, 10_000));
    }
    assert!(
        memory.get(&pointer(0)).is_none(),
        "but trees do not take everything"
    );
    assert!(memory.bytes() <= 1 << 20);
}

#[tokio::test]
async fn an_object_with_children_is_found_only_where_it_was_read() {
    let mut memory = super::memory::MemoryCache::new(1 << 20);
    let (_, pointers) = build(0, 0, &[1]);
    let sealer = ObjectSealer::new(&keys(), [1; 32], &segment_id(0));
    let children = vec![firn_format::Child {
        slot: 0,
        pointer: pointers[0],
    }];
    let above = firn_format::Place { level: 1, ..place(0) };
    let sealed = sealer
        .seal(
            sealer.reserve_slot(),
            Kind::Node,
            above,
            Version(1),
            Bytes::new(),
            children,
            b"",
            Compression::None,
        )
        .expect("sealed");
    let here = pointers[0];
    let there = firn_format::Pointer {
        location: firn_format::Location::UNKNOWN,
        ..here
    };
    let node = Arc::new(Object {
        header: sealed.header,
        payload: Bytes::new(),
    });
    memory.insert(&here, node.clone());
    assert!(memory.get(&here).is_some());
    assert!(memory.get(&there).is_none(), "another copy may name other places");
    let leaf = Arc::new(Object {
        header: firn_format::ObjectHeader {
            children: Vec::new(),
            ..node.header.clone()
        },
        payload: Bytes::new(),
    });
    memory.insert(&here, leaf);
    assert!(
        memory.get(&there).is_some(),
        "a leaf is the same wherever it lies"
    );
}
