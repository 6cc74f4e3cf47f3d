//! Figures of the Iris paper (ACSAC 2012) over again, on this engine: each test prints a table for docs/benchmarks-iris.md (`scripts/bench-iris`).
//!
//! Everything is counted or virtual time, so it is the same on every machine: the bucket is the paper's 100 ms away, and its client's round trip of
//! 20 ms is added to what a call takes here.

use crate::{
    files::{create, directory, look, name, read, write},
    world::root,
};
use firn_anchor::Anchor;
use firn_cleaner::{AuditProgress, AuditRequest, audit};
use firn_env::{Env, sim::Simulation};
use firn_format::{FamilyId, KeyEpoch, SegmentId, VolumeId, decode_segment};
use firn_quantity::Money;
use firn_seal::{EpochKey, Keys};
use firn_store::{FaultConfig, Faults, Faulty, MemoryStore, Meter, Metered, ProviderPrices, Route, Store};
use firn_table::MemoryTable;
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const FAMILY: FamilyId = FamilyId([1; 16]);
/// Between portal and cloud, there and back.
const CLOUD_MS: u64 = 100;
/// Between client and portal, there and back.
const CLIENT_MS: f64 = 20.0;

/// A bucket as far off as the paper's, and a table.
struct Cloud {
    simulation: Simulation,
    memory: Arc<MemoryStore>,
    store: Arc<Metered>,
    meter: Meter,
    table: MemoryTable,
    machines: u64,
}

impl Cloud {
    fn new(seed: u64, latency_ms: u64) -> Self {
        let simulation = Simulation::new(seed);
        let controller = simulation.env();
        let memory = Arc::new(MemoryStore::new(&controller));
        let faults = Faults {
            latency_ms,
            ..Faults::default()
        };
        let config = FaultConfig {
            seed,
            faults,
            ..FaultConfig::default()
        };
        let far = Faulty::new(&controller, memory.clone(), config).expect("a configuration");
        let store = Arc::new(Metered::new(Arc::new(far)));
        Self {
            simulation,
            memory,
            meter: store.meter(),
            store,
            table: MemoryTable::new(),
            machines: 0,
        }
    }

    /// Another machine, which has nothing yet.
    fn parts(&mut self) -> Parts {
        self.machines += 1;
        let machine = self.simulation.machine(&format!("edge {}", self.machines));
        let env = machine.env();
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Parts {
            store: self.store.clone(),
            second: None,
            anchor: Anchor::new(self.table.connect(&env), env.clone(), FAMILY),
            keys: Keys::new(FAMILY, keys),
            volume: VolumeId([2; 16]),
            env,
        }
    }
}

/// Sizes as an edge has them, with a cache in memory of so many bytes and, on the disk, of so many.
fn config(memory_cache_bytes: u64, disk_cache_bytes: u64) -> VolumeConfig {
    VolumeConfig {
        memory_cache_bytes,
        disk_cache_bytes,
        ..VolumeConfig::default()
    }
}

async fn formatted(parts: &Parts, options: FormatOptions, config: VolumeConfig) -> Volume {
    parts.anchor.create_family().await.expect("a new family");
    Volume::format(parts, "test", options, &config)
        .await
        .expect("it is formatted");
    Volume::open(parts.clone(), config).await.expect("it opens").0
}

fn noise(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&number.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

const MEBIBYTE: usize = 1 << 20;
const PATH: [&str; 3] = ["one", "two", "three"];

/// Directories three deep; in the first one ten files beside, and a file of 1 MiB.
async fn paper_tree(volume: &Volume) {
    let mut here = volume.root();
    for (depth, part) in PATH.into_iter().enumerate() {
        here = directory(volume, here, part).await;
        if depth == 0 {
            let large = create(volume, here, "large").await;
            write(volume, large, 0, noise(1, MEBIBYTE)).await;
            let ten = directory(volume, here, "ten").await;
            for number in 0..10 {
                let file = create(volume, ten, &format!("file{number}")).await;
                write(volume, file, 0, noise(number, 4096)).await;
            }
        }
    }
}

/// One call of the paper's table, by path. `again` is another name for what is made.
async fn call(volume: &Volume, row: usize, again: bool) {
    let made = &format!("{row} {}", if again { "again" } else { "first" });
    match row {
        0..4 => {
            let parent = look(volume, &PATH[..row]).await.expect("a directory");
            create(volume, parent, made).await;
        }
        4 => {
            let ten = look(volume, &["one", "ten"]).await.expect("a directory");
            let page = volume.read_directory(&root(), ten, 0, 4096, true).await;
            assert_eq!(page.expect("listed").entries.len(), 12, "ten, . and ..");
        }
        5 => {
            let one = look(volume, &["one"]).await.expect("a directory");
            let file = create(volume, one, made).await;
            write(volume, file, 0, noise(2, MEBIBYTE)).await;
        }
        _ => {
            let large = look(volume, &["one", "large"]).await.expect("a file");
            let data = read(volume, large, 0, MEBIBYTE as u64).await.expect("read");
            assert!(data == noise(1, MEBIBYTE));
        }
    }
}

#[test]
fn latency_of_calls_hot_and_cold() {
    const ROWS: [(&str, &str, &str); 7] = [
        ("create a file in a directory of depth 0", "20.0", "20.0"),
        ("create a file in a directory of depth 1", "20.0", "144.0"),
        ("create a file in a directory of depth 2", "20.0", "254.0"),
        ("create a file in a directory of depth 3", "20.0", "363.0"),
        ("list a directory of ten files at depth 1", "27.7", "678.9"),
        ("write 1 MiB at depth 1, completed", "24.8", "138.8"),
        ("read 1 MiB at depth 1", "20.0", "284.2"),
    ];
    let mut cloud = Cloud::new(1, CLOUD_MS);
    let parts = cloud.parts();
    cloud
        .simulation
        .run(async move {
            let volume = formatted(&parts, FormatOptions::default(), VolumeConfig::default()).await;
            paper_tree(&volume).await;
            volume.drain().await.expect("drained");
        })
        .expect("the run ends");
    println!(
        "| call, ms | paper, hot | Firn, hot | paper, cold | Firn, cold | requests, cold |\n|---|---|---|---|---|---|"
    );
    for (row, (what, paper_hot, paper_cold)) in ROWS.into_iter().enumerate() {
        let (parts, meter) = (cloud.parts(), cloud.meter.clone());
        let run = cloud.simulation.run(async move {
            // A machine that has never seen the volume.
            let (volume, _) = Volume::open(parts.clone(), VolumeConfig::default())
                .await
                .expect("it opens");
            volume.drop_caches().await;
            let mut took = Vec::new();
            let before = meter.usage();
            let mut requests = 0;
            for again in [false, true] {
                let began = parts.env.now();
                call(&volume, row, again).await;
                took.push(parts.env.now().since(began).as_secs_f64() * 1e3);
                if !again {
                    requests = meter.usage().since(&before).ranged_gets + meter.usage().since(&before).gets;
                }
            }
            volume.drain().await.expect("drained");
            (took, requests)
        });
        let (took, requests) = run.expect("the run ends");
        let (cold, hot) = (took[0] + CLIENT_MS, took[1] + CLIENT_MS);
        println!("| {what} | {paper_hot} | {hot:.1} | {paper_cold} | {cold:.1} | {requests} |");
        assert!(
            hot < CLIENT_MS + CLOUD_MS as f64,
            "{what}: what is cached asks nobody: {hot}"
        );
        assert!(requests > 0, "{what}: nothing was cold");
    }
}

/// Sizes of the tree that is read twice, a fortieth of the paper's: 37,000 files in 2,300 directories with 420 MB.
const DIRECTORIES: u64 = 58;
const FILES_EACH: u64 = 16;
const FILE_BYTES: usize = 11_350;

async fn tree_twice(volume: &Volume, env: &Env, meter: &Meter) -> [(f64, u64, f64); 2] {
    let mut walks = [(0.0, 0, 0.0); 2];
    for walk in &mut walks {
        let (before, began) = (meter.usage(), env.now());
        for number in 0..DIRECTORIES {
            let parent = look(volume, &[&format!("d{number}")]).await.expect("there");
            volume
                .read_directory(&root(), parent, 0, 4096, true)
                .await
                .expect("listed");
            for file in 0..FILES_EACH {
                let (file, _) = volume
                    .lookup(&root(), parent, &name(&format!("f{file}")))
                    .await
                    .expect("there");
                read(volume, file, 0, FILE_BYTES as u64).await.expect("read");
            }
        }
        let used = meter.usage().since(&before);
        let took = env.now().since(began).as_secs_f64();
        *walk = (took, used.gets + used.ranged_gets, used.bytes_down as f64 / 1e6);
    }
    walks
}

#[test]
fn a_tree_read_by_caches_of_different_sizes() {
    let mut cloud = Cloud::new(2, CLOUD_MS);
    let parts = cloud.parts();
    cloud
        .simulation
        .run(async move {
            let volume = formatted(&parts, FormatOptions::default(), VolumeConfig::default()).await;
            for number in 0..DIRECTORIES {
                let parent = directory(&volume, volume.root(), &format!("d{number}")).await;
                for file in 0..FILES_EACH {
                    let made = create(&volume, parent, &format!("f{file}")).await;
                    write(&volume, made, 0, noise(number * 1000 + file, FILE_BYTES)).await;
                }
            }
            volume.drain().await.expect("drained");
        })
        .expect("the run ends");
    println!(
        "| cache in memory | cache on the disk | first walk | requests | MB | second walk | requests | MB |\n|---|---|---|---|---|---|---|---|"
    );
    let mut second = Vec::new();
    for (memory, disk) in [
        (1 << 18, 4 << 20),
        (1 << 20, 4 << 20),
        (4 << 20, 4 << 20),
        (32 << 20, 4 << 20),
        (1 << 18, 64 << 20),
    ] {
        let (parts, meter) = (cloud.parts(), cloud.meter.clone());
        let run = cloud.simulation.run(async move {
            let (volume, _) = Volume::open(parts.clone(), config(memory, disk))
                .await
                .expect("it opens");
            let walks = tree_twice(&volume, &parts.env, &meter).await;
            volume.drain().await.expect("drained");
            walks
        });
        let walks = run.expect("the run ends");
        let shown = walks
            .map(|(seconds, requests, megabytes)| format!("{seconds:.1} s | {requests} | {megabytes:.1}"));
        println!(
            "| {} KiB | {} MiB | {} | {} |",
            memory >> 10,
            disk >> 20,
            shown[0],
            shown[1]
        );
        second.push(walks[1].1);
    }
    assert_eq!(
        (second[3], second[4]),
        (0, 0),
        "what fits into either cache is not fetched again"
    );
    assert!(second[0] > 0, "the smallest caches do not hold it");
}

/// Objects of the segments that are in the store now and were not before: nodes of file maps, inodes and blocks.
async fn objects_of(
    store: &MemoryStore,
    before: &mut Vec<firn_store::ObjectKey>,
) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    let page = store.list("", None).await.expect("it answers");
    for listed in page.objects {
        if SegmentId::parse_key(listed.key.as_str()).is_none() || before.contains(&listed.key) {
            continue;
        }
        let segment = decode_segment(store.get(&listed.key).await.expect("there")).expect("a segment");
        for entry in segment.entries {
            let kind = match (entry.place.level, entry.place.inode > 15) {
                (0, true) => "blocks",
                (_, true) => "nodes of the file",
                (_, false) => "others",
            };
            *counts.entry(kind).or_default() += 1;
        }
        before.push(listed.key);
    }
    counts
}

#[test]
fn a_shared_path_is_hashed_once() {
    const BLOCKS: u64 = 4096;
    const BLOCK: u64 = 32 << 10;
    let mut cloud = Cloud::new(3, 0);
    let (parts, memory) = (cloud.parts(), cloud.memory.clone());
    println!(
        "| blocks of a file of 4096 changed | blocks hashed | nodes of its map hashed | one path for each would be |\n|---|---|---|---|"
    );
    let work = async move {
        let volume = formatted(&parts, FormatOptions::default(), VolumeConfig::default()).await;
        let file: FileHandle = create(&volume, volume.root(), "file").await;
        for block in 0..BLOCKS {
            write(&volume, file, block * BLOCK, noise(block, 64)).await;
        }
        write(&volume, file, BLOCKS * BLOCK - 1, vec![1]).await;
        volume.sync().await.expect("committed");
        let mut known = Vec::new();
        objects_of(&memory, &mut known).await;
        for changed in [1, 16, 128, 1024, BLOCKS] {
            let step = BLOCKS / changed;
            for number in 0..changed {
                write(&volume, file, number * step * BLOCK, noise(number + changed, 64)).await;
            }
            volume.sync().await.expect("committed");
            let counts = objects_of(&memory, &mut known).await;
            let of = |kind| counts.get(kind).copied().unwrap_or(0);
            // 128 slots a node: 32 nodes, and one above.
            println!(
                "| {changed} | {} | {} | {} |",
                of("blocks"),
                of("nodes of the file"),
                2 * changed
            );
            assert_eq!(of("blocks"), changed);
            assert_eq!(of("nodes of the file"), changed.min(32) + 1);
        }
    };
    cloud.simulation.run(work).expect("the run ends");
}

#[test]
fn a_challenge_costs_a_request() {
    let mut cloud = Cloud::new(4, CLOUD_MS);
    let parts = cloud.parts();
    println!(
        "| challenges | requests | of them the walk of the trees | read | virtual time | for | 1 % found with |\n|---|---|---|---|---|---|---|"
    );
    let work = async move {
        let volume = formatted(&parts, FormatOptions::default(), VolumeConfig::default()).await;
        for number in 0..16 {
            let file = create(&volume, volume.root(), &format!("file{number}")).await;
            for piece in 0..4 {
                write(
                    &volume,
                    file,
                    piece * MEBIBYTE as u64,
                    noise(number * 4 + piece, MEBIBYTE),
                )
                .await;
            }
        }
        volume.drain().await.expect("drained");
        let prices = ProviderPrices::named("s3-us-east-1").expect("a book");
        let mut walk = 0;
        for challenges in [1, 135, 688, 6905] {
            let request = AuditRequest {
                volume: None,
                challenges,
                budget: Money::parse("10").expect("an amount"),
                prices: prices.clone(),
                route: Route::Internet,
                seed: Some([7; 32]),
                second: None,
                from: Default::default(),
            };
            let began = parts.env.now();
            let progress = AuditProgress::default();
            let report = audit(
                &parts.env,
                parts.store.clone(),
                &parts.anchor,
                &request,
                &progress,
            )
            .await;
            let report = report.expect("a report");
            let volume = &report.volumes[0];
            let (requests, seconds) = (report.usage.requests(), parts.env.now().since(began));
            if challenges == 1 {
                walk = requests - 1;
            }
            println!(
                "| {challenges} | {requests} | {walk} | {:.1} MB | {:.1} s | ${:.6} | {:.2} % |",
                report.usage.bytes_down as f64 / 1e6,
                seconds.as_secs_f64(),
                report.cost.nanos() as f64 / 1e9,
                (volume.probability(0.01).min(0.9999) * 10_000.0).floor() / 100.0,
            );
            assert!(report.is_intact());
            assert!(
                requests <= walk + u64::from(challenges),
                "at most a request for each"
            );
            assert!(seconds > Duration::ZERO);
        }
    };
    cloud.simulation.run(work).expect("the run ends");
}
