//! Snapshots: making one costs the same whatever the volume holds, and having many slows no writer.
//!
//! The engine is in this process, store and journal are on this machine's disk. A snapshot is compared with a flush (`sync`) of
//! as much dirty data just before: the difference is what the snapshot itself takes. Two volumes, one with 500 snapshots and
//! one with none, take the same writes in turn, so that whatever else the machine does meets both.

use crate::{
    content::content,
    report::Report,
    world::{World, root},
};
use anyhow::{Context, Result};
use bytes::Bytes;
use firn_env::{Env, RealDisk};
use firn_store::{DirectoryStore, Metered};
use firn_vfs::{CreateMode, FileHandle, Name, SetAttributes, Stability, Vfs};
use firn_volume::{Volume, VolumeConfig};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// What a snapshot may take beyond flushing what is dirty.
const BEYOND_FLUSHING_MAX: Duration = Duration::from_secs(1);
/// Writes with 500 snapshots, to those with none.
const RATE_MIN: f64 = 0.95;
/// Calls in flight.
const QUEUE: usize = 64;
/// Files changed before each flush and each snapshot.
const DIRTY_FILES: u64 = 1000;
/// Of which the median is taken.
const ROUNDS: usize = 5;

#[derive(Clone, Copy)]
struct Size {
    few_files: u64,
    many_files: u64,
    snapshots: u64,
    writes: u64,
    write_rounds: usize,
}

const FULL: Size = Size {
    few_files: 10_000,
    many_files: 1_000_000,
    snapshots: 500,
    writes: 8000,
    write_rounds: 11,
};

const SMALL: Size = Size {
    few_files: 2000,
    many_files: 20_000,
    snapshots: 50,
    writes: 500,
    write_rounds: 3,
};

/// The file that is written to, in blocks.
const FILE_BLOCKS: u64 = 4096;
const BLOCK_BYTES: u64 = 4096;

struct Opened {
    world: World,
    volume: Volume,
    directory: FileHandle,
}

impl Opened {
    async fn new(place: &Path) -> Result<Self> {
        if place.exists() {
            fs::remove_dir_all(place)?;
        }
        for part in ["state", "store"] {
            fs::create_dir_all(place.join(part))?;
        }
        let env = firn_env::real(&place.join("state"))?;
        let bucket = env.with_disk(Arc::new(RealDisk::open(&place.join("store"))?));
        let store = Metered::new(Arc::new(DirectoryStore::open(&bucket, "").await?));
        let meter = store.meter();
        let world = World::new(&env, Arc::new(store), meter, VolumeConfig::default());
        Self::format(world, &env).await
    }

    async fn format(world: World, env: &Env) -> Result<Self> {
        world.format(env).await?;
        let volume = world.open(env).await?;
        let name = Name::new("all")?;
        let made = volume
            .make_directory(&root(), volume.root(), &name, SetAttributes::default())
            .await?;
        Ok(Self {
            world,
            volume,
            directory: made.handle,
        })
    }

    async fn create(&self, files: std::ops::Range<u64>) -> Result<()> {
        stream::iter(files)
            .map(anyhow::Ok)
            .try_for_each_concurrent(QUEUE, |number| async move {
                let name = Name::new(format!("file-{number:07}"))?;
                let how = CreateMode::Guarded(SetAttributes::default());
                self.volume.create(&root(), self.directory, &name, how).await?;
                Ok(())
            })
            .await
    }

    /// Changes some of the files, others each time.
    async fn dirty(&self, files: u64, time: u64) -> Result<()> {
        stream::iter(0..DIRTY_FILES.min(files))
            .map(anyhow::Ok)
            .try_for_each_concurrent(QUEUE, |number| async move {
                let number = (number * 7919 + time * 104_729) % files;
                let name = Name::new(format!("file-{number:07}"))?;
                let (file, _) = self.volume.lookup(&root(), self.directory, &name).await?;
                let change = SetAttributes {
                    mode: Some(0o600 + (time % 64) as u32),
                    ..SetAttributes::default()
                };
                self.volume.set_attributes(&root(), file, change, None).await?;
                Ok(())
            })
            .await
    }

    fn requests(&self) -> u64 {
        let asked = self.world.asked();
        asked.store.requests() + asked.table.requests()
    }

    /// Requests of a snapshot of a volume that was just flushed.
    async fn bare_snapshot(&self, name: &str) -> Result<u64> {
        self.volume.sync().await?;
        let before = self.requests();
        self.volume.snapshot_create(name.as_bytes().to_vec(), 0).await?;
        Ok(self.requests() - before)
    }

    /// How long a flush of some dirty files takes, and a snapshot with as many.
    async fn timed(&self, files: u64, round: u64) -> Result<(Duration, Duration)> {
        self.volume.sync().await?;
        self.dirty(files, 2 * round).await?;
        let started = Instant::now();
        self.volume.sync().await?;
        let flushed = started.elapsed();
        self.dirty(files, 2 * round + 1).await?;
        let started = Instant::now();
        let name = format!("timed-{round}").into_bytes();
        self.volume.snapshot_create(name, 0).await?;
        Ok((flushed, started.elapsed()))
    }

    async fn written_file(&self) -> Result<FileHandle> {
        let how = CreateMode::Guarded(SetAttributes::default());
        let made = self
            .volume
            .create(&root(), self.directory, &Name::new("written")?, how)
            .await?;
        let data = Bytes::from(content(1, 1 << 20));
        for part in 0..FILE_BLOCKS * BLOCK_BYTES / (1 << 20) {
            let offset = part << 20;
            self.volume
                .write(
                    &root(),
                    made.handle,
                    offset,
                    vec![data.clone()],
                    Stability::Unstable,
                )
                .await?;
        }
        self.volume.sync().await?;
        Ok(made.handle)
    }

    /// Stable writes at random places of a file, and their flush: writes a second.
    async fn rate(&self, file: FileHandle, writes: u64, round: u64) -> Result<f64> {
        let started = Instant::now();
        stream::iter(0..writes)
            .map(anyhow::Ok)
            .try_for_each_concurrent(QUEUE, |number| async move {
                let place = (number * 2_654_435_761 + round * 40_503) % FILE_BLOCKS;
                let data = vec![Bytes::from(content(
                    round * writes + number,
                    BLOCK_BYTES as usize,
                ))];
                self.volume
                    .write(&root(), file, place * BLOCK_BYTES, data, Stability::FileSync)
                    .await?;
                Ok(())
            })
            .await?;
        self.volume.sync().await?;
        Ok(writes as f64 / started.elapsed().as_secs_f64())
    }
}

fn median<T: PartialOrd + Copy>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|left, right| left.partial_cmp(right).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    let size = if small { SMALL } else { FULL };
    let place = directory.join("snapshots");
    let large = Opened::new(&place.join("large")).await?;
    large.create(0..size.few_files).await?;
    let few = large.bare_snapshot("few").await?;
    large.create(size.few_files..size.many_files).await?;
    let many = large.bare_snapshot("many").await?;
    let (mut flushes, mut snapshots) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let (flushed, snapshot) = large.timed(size.many_files, round).await?;
        flushes.push(flushed);
        snapshots.push(snapshot);
    }
    large.volume.stop().await?;
    drop(large);

    let (none, with) = (
        Opened::new(&place.join("none")).await?,
        Opened::new(&place.join("with")).await?,
    );
    let (none_file, with_file) = (none.written_file().await?, with.written_file().await?);
    for number in 0..size.snapshots {
        // Both change as much, so that only the snapshots differ.
        for (opened, file) in [(&none, none_file), (&with, with_file)] {
            let data = vec![Bytes::from(content(number, BLOCK_BYTES as usize))];
            let offset = number * 7 % FILE_BLOCKS * BLOCK_BYTES;
            opened
                .volume
                .write(&root(), file, offset, data, Stability::FileSync)
                .await?;
        }
        with.volume
            .snapshot_create(format!("hourly-{number}").into_bytes(), 0)
            .await?;
        none.volume.sync().await?;
    }
    let (mut without_rates, mut with_rates) = (Vec::new(), Vec::new());
    let uploaded = [
        none.world.asked().store.bytes_up,
        with.world.asked().store.bytes_up,
    ];
    for round in 0..size.write_rounds as u64 {
        without_rates.push(none.rate(none_file, size.writes, round).await?);
        with_rates.push(with.rate(with_file, size.writes, round).await?);
    }
    let uploaded = [
        none.world.asked().store.bytes_up - uploaded[0],
        with.world.asked().store.bytes_up - uploaded[1],
    ];
    none.volume.stop().await?;
    with.volume.stop().await?;

    let (flush, snapshot) = (
        median(&flushes).context("rounds")?,
        median(&snapshots).context("rounds")?,
    );
    let (without, with) = (
        median(&without_rates).context("rounds")?,
        median(&with_rates).context("rounds")?,
    );
    let beyond = snapshot.saturating_sub(flush);
    let mut report = Report::new(
        "snapshots",
        "Making a snapshot takes the same few requests whatever the volume holds, and at most a second beyond flushing what is \
         dirty; 500 snapshots slow writers by a twentieth at most.",
        format!(
            "The engine in this process, store and journal on a local disk. {} and {} files; medians of {ROUNDS} rounds with \
             {DIRTY_FILES} files changed before each. Then {} stable writes of 4 KiB at random places of a file of 16 MiB, {} \
             rounds in turn with a volume without snapshots.",
            size.few_files, size.many_files, size.writes, size.write_rounds
        ),
    );
    report.bounded(
        &format!("requests at {} files", size.many_files),
        format!("{many}, and {few} at {}", size.few_files),
        "no more than with few",
        many <= few,
    );
    report.told("flushing changed files", format!("{:.3} s", flush.as_secs_f64()));
    report.bounded(
        "a snapshot beyond that",
        format!("{:.3} s", beyond.as_secs_f64()),
        if small { "" } else { "1 s" },
        small || beyond <= BEYOND_FLUSHING_MAX,
    );
    report.told("writes without snapshots", format!("{without:.0} a second"));
    report.bounded(
        &format!("writes with {} snapshots", size.snapshots),
        format!("{with:.0} a second: {:.2}", with / without),
        if small { "" } else { "at least 0.95" },
        small || with >= RATE_MIN * without,
    );
    // What does not depend on the machine: the same writes upload the same.
    report.bounded(
        "uploaded for them, to that without snapshots",
        format!("{:.3}", uploaded[1] as f64 / uploaded[0].max(1) as f64),
        "at most 1.10",
        uploaded[1] * 10 <= uploaded[0] * 11,
    );
    Ok(report)
}
