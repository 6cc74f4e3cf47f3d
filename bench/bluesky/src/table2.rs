//! Table 2: what a million NFS operations cost, by how the edge is configured.
//!
//! The mix of operations is that of SPECsfs2008 for NFSv3, as its user's guide prints it; file sizes, transfer sizes and the
//! offered rate are our own and stated on the page, because the guide's are bound to its load generator. Files are chosen
//! evenly from a third of the set, the edge's disk cache holds half of what these take, and a first part of the operations
//! only brings the cache to its usual state.

use crate::{
    cells::Cells,
    fileset::{FileSet, MadeFile, Noise},
    mount::Mount,
    office::{Cost, Image, Line, Office},
    table1,
};
use anyhow::{Context, Result, anyhow};
use firn_env::{Env, sim::Seeded};
use firn_nfs::v3::types::{ACCESS_READ, CreateHow, NewAttributes, StableHow};
use firn_store::{ProviderPrices, Route};
use firn_volume::{FetchPolicy, FetchPrices, FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, sync::Mutex, time::Duration};
use tokio::sync::Semaphore;

/// Per cent of each operation (SPECsfs2008 user's guide, NFSv3).
pub const MIX: [(Operation, u64); 12] = [
    (Operation::GetAttributes, 26),
    (Operation::Lookup, 24),
    (Operation::Read, 18),
    (Operation::Access, 11),
    (Operation::Write, 10),
    (Operation::SetAttributes, 4),
    (Operation::ReadDirectoryPlus, 2),
    (Operation::ReadDirectory, 1),
    (Operation::ReadLink, 1),
    (Operation::Create, 1),
    (Operation::Remove, 1),
    (Operation::Status, 1),
];

/// Sizes of files, and how many in a hundred have them: 109 KB on average.
pub const FILE_SIZES: [(u64, u64); 6] = [
    (1 << 10, 18),
    (4 << 10, 22),
    (16 << 10, 22),
    (64 << 10, 20),
    (256 << 10, 12),
    (1 << 20, 6),
];

/// Lengths of reads and writes, and how many in a hundred have them.
pub const TRANSFERS: [(u64, u64); 6] = [
    (4 << 10, 35),
    (8 << 10, 20),
    (16 << 10, 15),
    (32 << 10, 20),
    (64 << 10, 6),
    (128 << 10, 4),
];

/// Of all files, this part is used.
const USED_OF_FILES: usize = 3;
/// Offered load.
pub const OPERATIONS_PER_SECOND: u64 = 200;
/// Four client processes with two operations each, the paper's low parallelism.
const AT_ONCE: usize = 8;
/// The paper's usual region.
const LATENCY_MS: u64 = 12;

/// A call of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    GetAttributes,
    Lookup,
    Read,
    Access,
    Write,
    SetAttributes,
    ReadDirectoryPlus,
    ReadDirectory,
    ReadLink,
    Create,
    Remove,
    Status,
}

/// A row of the table.
pub struct Configuration {
    pub name: &'static str,
    pub title: &'static str,
    block_bytes: u32,
    segment_bytes: u64,
    policy: FetchPolicy,
    /// By which book an adaptive edge decides.
    book: &'static str,
}

/// The paper's rows, and ours by the prices of either time.
pub const CONFIGURATIONS: [Configuration; 6] = [
    Configuration::new(
        "baseline",
        "Baseline: 32 KiB blocks, exact ranges",
        FetchPolicy::Exact,
        NOW,
    ),
    Configuration {
        block_bytes: 4 << 10,
        ..Configuration::new("4k", "4 KiB blocks, exact ranges", FetchPolicy::Exact, NOW)
    },
    Configuration::new("full", "Full segments", FetchPolicy::FullSegment, NOW),
    Configuration {
        segment_bytes: 1,
        ..Configuration::new("noseg", "No segments: one object each", FetchPolicy::Exact, NOW)
    },
    Configuration::new(
        "adaptive-2011",
        "Adaptive, deciding by 2011 prices",
        FetchPolicy::Adaptive,
        BOOK_2011,
    ),
    Configuration::new(
        "adaptive",
        "Adaptive, deciding by current prices",
        FetchPolicy::Adaptive,
        NOW,
    ),
];

/// The paper's prices: September 2011.
pub const BOOK_2011: &str = "s3-2011-09";
/// Today's.
pub const NOW: &str = "s3-us-east-1";

impl Configuration {
    const fn new(name: &'static str, title: &'static str, policy: FetchPolicy, book: &'static str) -> Self {
        Self {
            name,
            title,
            block_bytes: 32 << 10,
            segment_bytes: 4 << 20,
            policy,
            book,
        }
    }
}

/// A cell: a row measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mixed {
    pub operations: u64,
    pub cost: Cost,
    /// Mean of all reads, and of all operations.
    pub read_ms: f64,
    pub all_ms: f64,
    pub files: u64,
    pub file_bytes: u64,
    pub used_bytes: u64,
    pub cache_bytes: u64,
    pub stored_objects: u64,
    /// Objects that were not in the cache, and their bytes as far as asked.
    pub misses: u64,
}

/// How much of it.
pub struct Table2 {
    pub files: usize,
    pub warm_up: u64,
    pub operations: u64,
}

fn drawn(random: &mut Seeded, of: &[(u64, u64)]) -> u64 {
    let mut at = random.below(of.iter().map(|(_, share)| share).sum());
    for (value, share) in of {
        if at < *share {
            return *value;
        }
        at -= share;
    }
    unreachable!("the shares are summed");
}

impl Table2 {
    /// Measures what was not measured yet.
    pub fn measure(&self, cells: &Cells) -> Result<()> {
        let mut made: BTreeMap<(u32, u64), Arc<(Image, FileSet)>> = BTreeMap::new();
        for row in &CONFIGURATIONS {
            cells.measured(&format!("table2-{}", row.name), || {
                let key = (row.block_bytes, row.segment_bytes);
                let volume = match made.get(&key) {
                    Some(volume) => volume.clone(),
                    None => {
                        let volume = Arc::new(self.make(row)?);
                        made.insert(key, volume.clone());
                        volume
                    }
                };
                self.row(row, &volume.0, &volume.1)
            })?;
        }
        Ok(())
    }

    fn make(&self, row: &Configuration) -> Result<(Image, FileSet)> {
        let office = Office::new(FormatOptions {
            block_bytes: row.block_bytes,
            root_mode: 0o755,
            ..FormatOptions::default()
        })?;
        let mut random = Seeded::new(11, 0);
        let sizes: Vec<u64> = (0..self.files)
            .map(|_| {
                let size = drawn(&mut random, &FILE_SIZES);
                // Not all of one length: from three quarters to five quarters.
                size * 3 / 4 + random.below(size / 2)
            })
            .collect();
        let set = FileSet::make(&office, &sizes, row.segment_bytes)?;
        Ok((office.image(), set))
    }

    fn row(&self, row: &Configuration, image: &Image, set: &FileSet) -> Result<Mixed> {
        let office = Office::of_image(image)?;
        let mut used: Vec<MadeFile> = set.files.clone();
        shuffle(&mut used, &mut Seeded::new(13, 0));
        used.truncate(set.files.len().div_ceil(USED_OF_FILES));
        let used_bytes: u64 = used.iter().map(|file| file.size_bytes).sum();
        let cache_bytes = used_bytes / 2;
        let book = ProviderPrices::named(row.book)?;
        let config = VolumeConfig {
            segment_bytes: row.segment_bytes,
            uploads_max: 32,
            fetch: row.policy,
            fetch_prices: FetchPrices::of_book(book, Route::Internet),
            disk_cache_bytes: cache_bytes,
            // A small part of the disk cache, as memory is of disk; the paper's proxy had a quarter of 8 GB.
            memory_cache_bytes: (cache_bytes / 16).max(4 << 20),
            ..VolumeConfig::default()
        };
        let edge = office.edge(config, Line::of_latency(LATENCY_MS))?;
        let load = Arc::new(Load {
            env: edge.env.clone(),
            mount: table1::mount(&office, &edge)?,
            files: used,
            noise: Noise::new(2),
            took: Mutex::default(),
        });
        let (warm_up, operations) = (self.warm_up, self.operations);
        let warming = load.clone();
        office.run(async move { warming.run(0, warm_up).await })?;
        load.took().clear();
        let misses = edge.volume.status().objects.misses;
        let (measuring, volume) = (load.clone(), edge.volume.clone());
        let ((), cost) = office.measure(&edge, async move {
            measuring.run(warm_up, operations).await?;
            volume.sync().await.map_err(|error| anyhow!("{error}"))
        })?;
        let misses = edge.volume.status().objects.misses - misses;
        let took = load.took().clone();
        let mean = |operation: Option<Operation>| {
            let chosen = took
                .iter()
                .filter(|(of, _)| operation.is_none_or(|only| *of == only));
            let times: Vec<f64> = chosen.map(|(_, took)| took.as_secs_f64() * 1000.0).collect();
            times.iter().sum::<f64>() / times.len().max(1) as f64
        };
        let mixed = Mixed {
            operations,
            cost,
            read_ms: mean(Some(Operation::Read)),
            all_ms: mean(None),
            files: set.files.len() as u64,
            file_bytes: set.bytes,
            used_bytes,
            cache_bytes,
            stored_objects: image.objects(),
            misses,
        };
        office.close(edge)?;
        Ok(mixed)
    }
}

fn shuffle<T>(items: &mut [T], random: &mut Seeded) {
    for index in (1..items.len()).rev() {
        items.swap(index, random.index(index + 1));
    }
}

/// The clients.
struct Load {
    env: Env,
    mount: Mount,
    files: Vec<MadeFile>,
    noise: Noise,
    took: Mutex<Vec<(Operation, Duration)>>,
}

impl Load {
    fn took(&self) -> std::sync::MutexGuard<'_, Vec<(Operation, Duration)>> {
        self.took.lock().expect("no panic under this lock")
    }

    /// Operations `first..first + count`, each at its time unless too many are under way.
    async fn run(self: Arc<Self>, first: u64, count: u64) -> Result<()> {
        let started = self.env.now();
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = Vec::new();
        for number in 0..count {
            let due = Duration::from_nanos(number * 1_000_000_000 / OPERATIONS_PER_SECOND);
            let passed = self.env.now().since(started);
            if passed < due {
                self.env.sleep(due - passed).await;
            }
            let permit = permits.clone().acquire_owned().await.context("the permits end")?;
            let this = self.clone();
            running.push(self.env.spawn("operation", async move {
                let result = this.one(first + number).await;
                drop(permit);
                result.with_context(|| format!("operation {number}"))
            }));
        }
        for operation in running {
            operation.await.context("an operation was dropped")??;
        }
        Ok(())
    }

    async fn one(&self, number: u64) -> Result<()> {
        let mut random = Seeded::new(17, number);
        let shares: Vec<(u64, u64)> = MIX
            .iter()
            .enumerate()
            .map(|(index, (_, share))| (index as u64, *share))
            .collect();
        let operation = MIX[drawn(&mut random, &shares) as usize].0;
        let file = random.pick(&self.files).clone();
        let began = self.env.now();
        self.call(operation, &file, &mut random, number)
            .await
            .with_context(|| format!("{operation:?} of {}", file.name))?;
        self.took().push((operation, self.env.now().since(began)));
        Ok(())
    }

    async fn call(
        &self,
        operation: Operation,
        file: &MadeFile,
        random: &mut Seeded,
        number: u64,
    ) -> Result<()> {
        let nfs = self.mount.nfs();
        let length = drawn(random, &TRANSFERS).min(file.size_bytes);
        let offset = random.below((file.size_bytes - length) / 4096 + 1) * 4096;
        // Few names, so that what one operation removes another has made.
        let extra = format!("x{}", random.below(4));
        match operation {
            Operation::GetAttributes => fine(nfs.get_attributes(&file.handle).await?),
            Operation::Lookup => fine(nfs.lookup(&file.directory, &file.name).await?),
            Operation::Read => self
                .mount
                .read(&file.handle, offset, length as u32)
                .await
                .map(drop),
            Operation::Access => fine(nfs.access(&file.handle, ACCESS_READ).await?),
            Operation::Write => {
                let data = self.noise.bytes(number, length as usize);
                self.mount
                    .write(&file.handle, offset, data, StableHow::Unstable)
                    .await
            }
            Operation::SetAttributes => {
                let mode = NewAttributes {
                    mode: Some(0o600 | (number as u32 & 0o77)),
                    ..NewAttributes::default()
                };
                fine(nfs.set_attributes(&file.handle, mode, None).await?)
            }
            Operation::ReadDirectoryPlus => fine(
                nfs.read_directory_plus(&file.directory, 0, [0; 8], 8192, 8192)
                    .await?,
            ),
            Operation::ReadDirectory => fine(nfs.read_directory(&file.directory, 0, [0; 8], 8192).await?),
            // A regular file is no link: the server looks at the inode all the same.
            Operation::ReadLink => nfs.read_link(&file.handle).await.map(drop).map_err(Into::into),
            Operation::Create => {
                let how = CreateHow::Unchecked(NewAttributes::default());
                fine(nfs.create(&file.directory, &extra, how).await?)
            }
            // What was created a while ago in the same place, if it was.
            Operation::Remove => nfs
                .remove(&file.directory, &extra)
                .await
                .map(drop)
                .map_err(Into::into),
            Operation::Status => fine(nfs.file_system_status(self.mount.root()).await?),
        }
    }
}

fn fine<S, F: std::fmt::Debug>(answer: Result<S, F>) -> Result<()> {
    answer.map(drop).map_err(|failed| anyhow!("{failed:?}"))
}
