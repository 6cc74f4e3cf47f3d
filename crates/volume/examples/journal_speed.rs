//! Journal benchmark on a directory: `cargo run --release -p firn-volume --example journal_speed -- [directory]`.
//!
//! Prints the rate of 1 MiB records nobody waits for (level 0, then one sync), and of 256-byte and 4 KiB records each of
//! which is waited for (level 1), with 1 and 16 waiters, and the syncs they shared; then how long a start takes that finds a
//! full gibibyte of records of 32 KiB. Before that, what fixed numbers of records cost: processor time, page faults, and what the
//! directory's device wrote by the kernel's counts. The last is of all who use the device: give it one of its own, such as a file system on
//! a loop device. (What `/proc/self/io` says counts whole folios, which are up to some MiB.)

use bytes::Bytes;
use firn_format::{FamilyId, KeyEpoch, VolumeId, WriterId};
use firn_seal::{EpochKey, Keys};
use firn_volume::journal::{Journal, JournalConfig, ReserveClass, Sequence};
use std::{
    collections::BTreeMap,
    error::Error,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// What one figure takes; enough to average over the disk's moods.
const SECONDS: f64 = 2.0;

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let base = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(base)?;
    let env = firn_env::real(directory.path())?;
    let epochs = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([1; 32]))]);
    let keys = Keys::new(FamilyId([1; 16]), epochs);
    let config = JournalConfig {
        capacity_bytes: 1 << 30,
        ..JournalConfig::default()
    };
    let (volume, writer) = (VolumeId([2; 16]), WriterId(3));
    let (journal, _) = Journal::open(&env, &keys, volume, writer, "journal", Sequence(0), config).await?;

    costs(&journal, &env, directory.path()).await?;
    unstable(&journal, &env).await?;
    for (length, waiters) in [(256, 1), (256, 16), (4096, 1), (4096, 16)] {
        durable(&journal, &env, length, waiters).await?;
    }
    journal.close().await;
    restart(&env, &keys).await
}

/// Seconds of processor time, page faults, and bytes that the device of `directory` wrote so far.
fn spent(directory: &Path) -> Result<(f64, u64, u64), Box<dyn Error>> {
    const TICKS_A_SECOND: f64 = 100.0;
    const SECTOR_BYTES: u64 = 512;
    let field = |line: &str, index: usize| -> u64 {
        line.split_whitespace()
            .nth(index)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0)
    };
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let stat = stat.rsplit(") ").next().unwrap_or("");
    let device = std::fs::metadata(directory)?.dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    // Not every file system has a device.
    let disk = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
    Ok((
        (field(stat, 11) + field(stat, 12)) as f64 / TICKS_A_SECOND,
        field(stat, 7),
        field(&disk, 6) * SECTOR_BYTES,
    ))
}

/// Records that are trimmed as they become durable, in several files; the first files are not counted.
async fn costs(journal: &Journal, env: &firn_env::Env, directory: &Path) -> Result<(), Box<dyn Error>> {
    const FILES: u64 = 64 << 20;
    for (length, count, waits) in [
        (1 << 20, 2048, false),
        (32 << 10, 16_384, false),
        (4 << 10, 50_000, true),
    ] {
        let payload = Bytes::from(vec![0x5a; length as usize]);
        let warm_up = 3 * FILES / length;
        let mut before = spent(directory)?;
        for number in 0..warm_up + count {
            if number == warm_up {
                before = spent(directory)?;
            }
            // Not waited for while warming up: only the files matter.
            let sequence = append(journal, &payload)
                .await
                .map_err(|error| error.to_string())?;
            if waits && number >= warm_up {
                journal.durable(sequence).await?;
            }
            if number % (FILES / length / 2) == 0 {
                journal.durable(sequence).await?;
                journal.trim(sequence).await?;
            }
        }
        journal.durable(journal.last()).await?;
        // Closed files are given back by then.
        env.sleep(Duration::from_millis(500)).await;
        let after = spent(directory)?;
        let gib = (length * count) as f64 / f64::from(1 << 30);
        println!(
            "{count} records of {length} B, {}: {:.2} s of processor a GiB, {:.0} page faults a GiB, {:.2} bytes written by the device for one",
            if waits { "each durable" } else { "not waited for" },
            (after.0 - before.0) / gib,
            (after.1 - before.1) as f64 / gib,
            (after.2 - before.2) as f64 / (length * count) as f64,
        );
    }
    Ok(())
}

async fn restart(env: &firn_env::Env, keys: &Keys) -> Result<(), Box<dyn Error>> {
    let config = JournalConfig {
        capacity_bytes: 2 << 30,
        ..JournalConfig::default()
    };
    let open = |writer| {
        let config = config.clone();
        let volume = VolumeId([4; 16]);
        async move {
            Journal::open(
                env,
                keys,
                volume,
                WriterId(writer),
                "restart",
                Sequence(0),
                config,
            )
            .await
        }
    };
    let (journal, _) = open(1).await?;
    let payload = Bytes::from(vec![0x5a; 32 << 10]);
    for _ in 0..32 << 10 {
        append(&journal, &payload)
            .await
            .map_err(|error| error.to_string())?;
    }
    journal.close().await;
    let started = env.now();
    let (_journal, mut replay) = open(2).await?;
    let opened = env.now().since(started);
    let mut records = 0;
    while replay.next().await?.is_some() {
        records += 1;
    }
    println!(
        "restart with 1 GiB in {records} records: {:.1} s to open, {:.1} s with all replayed",
        opened.as_secs_f64(),
        env.now().since(started).as_secs_f64()
    );
    Ok(())
}

async fn append(journal: &Journal, payload: &Bytes) -> Result<Sequence, Box<dyn Error + Send + Sync>> {
    let reservation = journal
        .wait_for_space(
            payload.len() as u64,
            ReserveClass::Ordinary,
            Duration::from_secs(30),
        )
        .await?;
    Ok(journal.append(reservation, vec![payload.clone()]).sequence)
}

async fn unstable(journal: &Journal, env: &firn_env::Env) -> Result<(), Box<dyn Error>> {
    let payload = Bytes::from(vec![0x5a; 1 << 20]);
    let started = env.now();
    let mut count = 0;
    let mut last = Sequence(0);
    while env.now().since(started).as_secs_f64() < SECONDS {
        last = append(journal, &payload)
            .await
            .map_err(|error| error.to_string())?;
        count += 1;
        if count % 128 == 0 {
            journal.trim(journal.durable_to()).await?;
        }
    }
    journal.durable(last).await?;
    let seconds = env.now().since(started).as_secs_f64();
    println!(
        "1 MiB records, not waited for: {:.0} MiB/s",
        f64::from(count) / seconds
    );
    Ok(())
}

async fn durable(
    journal: &Journal,
    env: &firn_env::Env,
    length: usize,
    waiters: usize,
) -> Result<(), Box<dyn Error>> {
    let before = journal.statistics();
    let started = env.now();
    let tasks: Vec<_> = (0..waiters)
        .map(|_| {
            let (journal, env) = (journal.clone(), env.clone());
            env.clone().spawn("waiter", async move {
                let payload = Bytes::from(vec![0x5a; length]);
                while env.now().since(started).as_secs_f64() < SECONDS {
                    let sequence = append(&journal, &payload)
                        .await
                        .map_err(|error| error.to_string())?;
                    journal
                        .durable(sequence)
                        .await
                        .map_err(|error| error.to_string())?;
                }
                Ok::<_, String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let seconds = env.now().since(started).as_secs_f64();
    let after = journal.statistics();
    let (records, syncs) = (after.records - before.records, after.syncs - before.syncs);
    println!(
        "{length} B records, {waiters} waiters: {:.0} records/s, {:.1} records a sync, {:.0} µs a sync",
        records as f64 / seconds,
        records as f64 / syncs as f64,
        seconds * 1e6 / syncs as f64,
    );
    journal.trim(journal.durable_to()).await?;
    Ok(())
}
