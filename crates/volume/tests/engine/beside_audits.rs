//! Uploads beside audits, confirmation and the mirror, on one line, in virtual time: as fast as alone, by the request budget.

use crate::{
    files::{create, read, write},
    manifest::{WITH, format_and_open, noise_of},
    world::{World, config},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_cleaner::{AuditProgress, AuditRequest, SecondToAudit, audit};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::SegmentId;
use firn_mirror::{LocalCopies, Mirror, MirrorOptions, Noting, Queue};
use firn_quantity::Money;
use firn_store::{
    BackgroundPolicy, ListPage, MemoryStore, ObjectInfo, ObjectKey, ProviderPrices, PutMode, RequestBudget,
    RetryPolicy, Retrying, Route, Store, StoreError,
};
use firn_vfs::Vfs as _;
use firn_volume::{Parts, Volume, VolumeConfig};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Of the line, each way.
const BYTES_PER_SECOND: u64 = 256 << 10;
/// There and back.
const ROUND_TRIP: Duration = Duration::from_millis(30);
/// Long enough that what was put first is confirmed while the rest is uploaded.
const UPLOADED_MIB: u64 = 24;

/// An office's line: two directions, each of which carries one request's bytes after the other's.
struct Line {
    env: Env,
    up: tokio::sync::Mutex<()>,
    down: tokio::sync::Mutex<()>,
}

impl Line {
    async fn carry(&self, direction: &tokio::sync::Mutex<()>, bytes: usize) {
        self.env.sleep(ROUND_TRIP).await;
        let _one = direction.lock().await;
        let nanos = bytes as u64 * 1_000_000_000 / BYTES_PER_SECOND;
        self.env.sleep(Duration::from_nanos(nanos)).await;
    }
}

/// A store at the other end of it.
struct Far {
    store: Arc<dyn Store>,
    line: Arc<Line>,
    downloaded: AtomicU64,
}

#[async_trait]
impl Store for Far {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let bytes = parts.iter().map(Bytes::len).sum();
        self.line.carry(&self.line.up, bytes).await;
        self.store.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let found = self.store.get(key).await?;
        self.downloaded.fetch_add(found.len() as u64, Relaxed);
        self.line.carry(&self.line.down, found.len()).await;
        Ok(found)
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        let found = self.store.get_range(key, offset, length).await?;
        self.downloaded.fetch_add(found.len() as u64, Relaxed);
        self.line.carry(&self.line.down, found.len()).await;
        Ok(found)
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.line.carry(&self.line.down, 0).await;
        self.store.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.line.carry(&self.line.up, 0).await;
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.line.carry(&self.line.down, 0).await;
        self.store.list(prefix, after).await
    }
}

struct Here(Volume);

#[async_trait]
impl LocalCopies for Here {
    async fn segment(&self, id: SegmentId, bytes: u64) -> Option<Bytes> {
        self.0.segment_here(id, bytes).await
    }
}

/// What one run took and what was done beside it.
#[derive(Clone, Copy, Debug)]
struct Took {
    uploads: Duration,
    /// A client's read of what no cache has.
    read: Duration,
    challenges: u64,
    mirrored_bytes: u64,
}

/// Writes until all is in the store, with audits that follow each other, confirmation and the mirror beside it, or alone.
fn run(is_beside: bool, mutant: Option<&'static str>) -> Took {
    let simulation = Simulation::new(95);
    let world = World::new(&simulation);
    let mut parts = world.own_parts();
    let work = async move {
        let env = parts.env.clone();
        let line = Arc::new(Line {
            env: env.clone(),
            up: tokio::sync::Mutex::default(),
            down: tokio::sync::Mutex::default(),
        });
        let far = |store: Arc<dyn Store>| {
            Arc::new(Far {
                store,
                line: line.clone(),
                downloaded: AtomicU64::new(0),
            })
        };
        let budget = RequestBudget::new(&env, BackgroundPolicy::default());
        let retrying =
            |store: Arc<Far>| Retrying::new(&env, store, RetryPolicy::default()).with_budget(budget.clone());
        let (first, second) = (
            retrying(far(parts.store.clone())),
            retrying(far(Arc::new(MemoryStore::new(&env)))),
        );
        let queue = Arc::<Queue>::default();
        let behind: (Arc<dyn Store>, Arc<dyn Store>) =
            (Arc::new(first.background()), Arc::new(second.background()));
        parts.store = Arc::new(Noting::new(&env, Arc::new(first), queue.clone()));
        // The journal has room for all: nobody writes slower than the line for want of it.
        let config = VolumeConfig {
            journal_bytes: 128 << 20,
            ..config()
        };
        let volume = format_and_open(parts.clone(), WITH, config).await;
        let old = create(&volume, volume.root(), "old").await;
        fill(&volume, old, 3, 4).await;

        let progress = Arc::new(AuditProgress::default());
        let mut beside = Vec::new();
        let options = MirrorOptions {
            keep_deleted: Duration::from_secs(3600),
            compare_every: Duration::from_secs(3600),
        };
        let mirror = Mirror::new(&env, behind.clone(), parts.anchor.clone(), queue, options);
        if is_beside {
            let (mirror, here) = (mirror.clone(), Arc::new(Here(volume.clone())));
            beside.push(env.spawn("mirror", async move { mirror.run(here).await }));
            let auditing = audits(parts.clone(), behind, progress.clone());
            beside.push(env.spawn("audits", auditing));
        }
        let began = env.now();
        let new = create(&volume, volume.root(), "new").await;
        fill(&volume, new, 5, UPLOADED_MIB).await;
        let uploads = env.now().since(began);
        volume.drop_caches().await;
        let began = env.now();
        read(&volume, old, 1 << 20, 1000).await.expect("it is read");
        let took = Took {
            uploads,
            read: env.now().since(began),
            challenges: progress.answered.load(Relaxed),
            mirrored_bytes: mirror.status().copied_bytes,
        };
        beside.iter().for_each(firn_env::Task::abort);
        took
    };
    planting(mutant, || simulation.run(work)).expect("the run ends")
}

/// Writes so many MiB that nothing compresses, and waits until they are committed.
async fn fill(volume: &Volume, file: firn_vfs::FileHandle, seed: u64, mib: u64) {
    for at in 0..mib {
        write(volume, file, at << 20, noise_of(seed, at as usize, 1 << 20)).await;
    }
    volume.sync().await.expect("it is in the store");
}

async fn audits(parts: Parts, stores: (Arc<dyn Store>, Arc<dyn Store>), progress: Arc<AuditProgress>) {
    let prices = ProviderPrices::named("s3-us-east-1").expect("a book").clone();
    loop {
        let request = AuditRequest {
            volume: None,
            challenges: 688,
            budget: Money::parse("100").expect("an amount"),
            prices: prices.clone(),
            route: Route::Internet,
            seed: None,
            from: Default::default(),
            second: Some(SecondToAudit {
                store: stores.1.clone(),
                prices: prices.clone(),
                route: Route::Internet,
                is_behind: true,
            }),
        };
        let (env, first) = (&parts.env, stores.0.clone());
        let audited = audit(env, first, &parts.anchor, &request, &progress).await;
        audited.expect("a report");
    }
}

#[test]
fn uploads_are_as_fast_beside_audits_confirmation_and_the_mirror_as_alone() {
    // Without confirmation, too: nothing is read back.
    let alone = run(false, Some("volume.upload_not_read_back"));
    let beside = run(true, None);
    let without = run(true, Some("store.background_as_foreground"));
    let share = |took: &Took| took.uploads.as_secs_f64() / alone.uploads.as_secs_f64();
    for (name, took) in [
        ("alone", &alone),
        ("beside", &beside),
        ("without the budget", &without),
    ] {
        println!(
            "uploads {name}: {:.2} s, {:.3} of alone; a client's read {} ms; {} challenges, {} KiB mirrored meanwhile",
            took.uploads.as_secs_f64(),
            share(took),
            took.read.as_millis(),
            took.challenges,
            took.mirrored_bytes >> 10
        );
    }
    assert!(beside.challenges > 100, "audits went on: {beside:?}");
    assert!(share(&beside) < 1.10, "{beside:?} beside {alone:?}");
    assert!(share(&without) > 1.3, "the mechanism does nothing: {without:?}");
}
