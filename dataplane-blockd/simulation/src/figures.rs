//! Figures in virtual time: production client and nodes, each node's disk as slow as [`MODEL`](crate::setting::MODEL) says.
//!
//! What passes is only what is waited for: seeks, bytes under the arm, the network. What the programs compute takes no
//! time here. The same run gives the same figures on any machine.

use crate::{
    attaches, crowd, exchange,
    setting::{BLOCK_BYTES, MIXED, MODEL, NODE_TRACTS, Setting},
    throughput,
};
use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_env::Env;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Crashes of which a loss is the mean: the paper has 100. Sizes that differ need more for a mean that says something.
const CRASHES: u64 = 10;
const CRASHES_OF_MIXED: u64 = 60;

/// What a user does.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Writes.
    per_second: u64,
    /// Writes between two flushes.
    writes_per_flush: u64,
    /// Blocks of a write, taken in turn.
    write_blocks: &'static [u64],
}

/// One block each.
const SINGLE: &[u64] = &[1];

impl Load {
    /// How many blocks a write has.
    fn blocks(&self, number: u64) -> u64 {
        self.write_blocks[(number % self.write_blocks.len() as u64) as usize]
    }

    /// Where a write begins: scattered, and none on another for as long as there is room.
    fn place(&self, number: u64, blocks: u64) -> u64 {
        let longest = self.write_blocks.iter().copied().max().unwrap_or(1);
        number.wrapping_mul(0x9e37_79b1) % (blocks / longest) * longest * BLOCK_BYTES
    }

    /// What is written.
    fn data(&self, number: u64) -> Bytes {
        let words = (self.blocks(number) * BLOCK_BYTES / 8) as usize;
        number.to_le_bytes().repeat(words).into()
    }
}

/// Writes at a rate, whether or not the ones before are answered, with a flush now and then; `told` learns of each answer. Returns
/// how many bytes of writes are not answered.
fn load(
    env: &Env,
    disk: &VirtualDisk,
    blocks: u64,
    wanted: Load,
    told: impl Fn(u64, bool, Duration) + Send + Sync + 'static,
) -> Arc<AtomicU64> {
    let (env, disk, told) = (env.clone(), disk.clone(), Arc::new(told));
    let (spawning, unanswered) = (env.clone(), Arc::new(AtomicU64::new(0)));
    let counted = unanswered.clone();
    drop(spawning.spawn("load", async move {
        for number in 1.. {
            let (one, told, working) = (disk.clone(), told.clone(), env.clone());
            let (unanswered, bytes) = (counted.clone(), wanted.blocks(number) * BLOCK_BYTES);
            drop(env.spawn("write", async move {
                let began = working.now();
                unanswered.fetch_add(bytes, Relaxed);
                if one
                    .write(
                        wanted.place(number, blocks),
                        wanted.data(number),
                        Durability::Acknowledged,
                    )
                    .await
                    .is_ok()
                {
                    unanswered.fetch_sub(bytes, Relaxed);
                    told(number, false, working.now().since(began));
                }
                if number % wanted.writes_per_flush == 0 {
                    let began = working.now();
                    if one.flush().await.is_ok() {
                        told(number, true, working.now().since(began));
                    }
                }
            }));
            env.sleep(Duration::from_nanos(1_000_000_000 / wanted.per_second))
                .await;
        }
    }));
    unanswered
}

/// Milliseconds of a list of times: mean and 99th percentile.
fn mean_and_p99(times: &mut [Duration]) -> (f64, f64) {
    if times.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mean = times.iter().copied().map(ms).sum::<f64>() / times.len() as f64;
    (mean, ms(times[times.len() * 99 / 100]))
}

#[derive(Default)]
struct Latencies {
    writes: Vec<Duration>,
    flushes: Vec<Duration>,
}

/// How long writes and flushes wait, and how long it takes until a write is durable, on a disk that was filled before: a log
/// finds its free blocks among those in use.
fn latencies(setting: Setting, per_second: u64) -> Result<String, String> {
    let line = setting.run(1, move |client| async move {
        let (env, disk) = (client.machine.env(), client.attached.disk.clone());
        exchange::fill(&disk).await.map_err(|error| error.to_string())?;
        let found: Arc<Mutex<Latencies>> = Arc::default();
        let told = found.clone();
        let wanted = Load {
            per_second,
            writes_per_flush: 16,
            write_blocks: SINGLE,
        };
        load(&env, &disk, setting.blocks, wanted, move |_, flush, time| {
            let mut found = told.lock().expect("no panic under this lock");
            if flush { found.flushes.push(time) } else { found.writes.push(time) };
        });
        // The first regions are marked, arms are away from their places, and what was free of a log is used up.
        env.sleep(Duration::from_secs(20)).await;
        *found.lock().expect("no panic under this lock") = Latencies::default();
        let (mut dirty, samples) = (0, 4000);
        for _ in 0..samples {
            env.sleep(Duration::from_millis(5)).await;
            dirty += disk.dirty_bytes();
        }
        let mut found = std::mem::take(&mut *found.lock().expect("no panic under this lock"));
        let (write, write_p99) = mean_and_p99(&mut found.writes);
        let (flush, flush_p99) = mean_and_p99(&mut found.flushes);
        // Little's law: what is under way on average, by what comes in a second.
        let durable_ms = dirty as f64 / f64::from(samples) / (per_second * BLOCK_BYTES) as f64 * 1e3;
        Ok(format!(
            "| {} | {} | {per_second} | {write:.2} ({write_p99:.1}) | {flush:.1} ({flush_p99:.1}) | {durable_ms:.1} |",
            setting.name(),
            setting.copies
        ))
    })?;
    Ok(line)
}

/// What crashes of a client lose on average.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    /// Acknowledged writes that are not there afterwards, and the bytes that they lack.
    writes: f64,
    bytes: f64,
    /// Acknowledged bytes that were not durable at the moment of the crash: what the paper counts.
    not_durable_bytes: f64,
}

impl Losses {
    fn text(&self) -> String {
        format!("{:.1} ({:.0})", self.writes, self.bytes / 1024.0)
    }
}

fn lost_in_crashes(setting: Setting, wanted: Load, crashes: u64) -> Result<Losses, String> {
    let mut sum = Losses::default();
    for seed in 0..crashes {
        let one = setting.run(100 + seed, move |client| async move {
            let env = client.machine.env();
            let answered: Arc<Mutex<Vec<u64>>> = Arc::default();
            let told = answered.clone();
            let disk = client.attached.disk.clone();
            let unanswered = load(&env, &disk, setting.blocks, wanted, move |number, flush, _| {
                if !flush {
                    told.lock().expect("no panic under this lock").push(number);
                }
            });
            drop(client.attached);
            let controller = env.clone();
            let crash_at = Duration::from_millis(4000 + controller.random_below(2000));
            // On the controller's side of the crash nothing of the client's environment may be used.
            let machine = client.machine.clone();
            machine.env().sleep(crash_at).await;
            let waiting_bytes = disk.dirty_bytes().saturating_sub(unanswered.load(Relaxed));
            machine.crash();
            drop(disk);
            let env = machine.restart();
            let again = setting.attach(&env, &client.table, client.disk).await?;
            let answered = std::mem::take(&mut *answered.lock().expect("no panic under this lock"));
            let mut lost = Losses {
                not_durable_bytes: waiting_bytes as f64,
                ..Losses::default()
            };
            for number in answered {
                let data = wanted.data(number);
                let read = again
                    .disk
                    .read(wanted.place(number, setting.blocks), data.len() as u32)
                    .await
                    .map_err(|error| error.to_string())?;
                let missing = missing_bytes(&read, &data);
                lost.writes += f64::from(missing > 0);
                lost.bytes += missing as f64;
            }
            Ok(lost)
        })?;
        sum.writes += one.writes / crashes as f64;
        sum.bytes += one.bytes / crashes as f64;
        sum.not_durable_bytes += one.not_durable_bytes / crashes as f64;
    }
    Ok(sum)
}

/// Bytes of blocks that are not what was written.
fn missing_bytes(found: &[Piece], written: &Bytes) -> u64 {
    let (mut at, mut missing) = (0, 0);
    for piece in found {
        let length = piece.length_bytes() as usize;
        let is_there = |from: usize| match piece {
            Piece::Data(data) => {
                data[from..from + BLOCK_BYTES as usize]
                    == written[at + from..at + from + BLOCK_BYTES as usize]
            }
            Piece::Zeroes(_) => false,
        };
        let lost = (0..length)
            .step_by(BLOCK_BYTES as usize)
            .filter(|from| !is_there(*from));
        missing += lost.count() as u64 * BLOCK_BYTES;
        at += length;
    }
    missing
}

/// Measures something and prints it.
type Measure = fn() -> Result<(), String>;

/// What is measured, by name.
const PARTS: [(&str, Measure); 7] = [
    ("latencies", print_latencies),
    ("mail", print_mail),
    ("throughput", throughput::print_segments),
    ("network", throughput::print_network),
    ("crowds", crowd::print),
    ("losses", print_losses),
    ("attaches", attaches::print),
];

/// Measures everything, or one part of it, and prints it as Markdown.
///
/// # Errors
/// If a disk does not do what it must, or there is no such part.
pub fn print(only: Option<&str>) -> Result<(), String> {
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let parts: Vec<_> = PARTS.into_iter().filter(|(name, _)| wanted(name)).collect();
    if parts.is_empty() {
        let names = PARTS.map(|(name, _)| name).join(", ");
        return Err(format!("there are these figures: {names}"));
    }
    for (number, (_, measure)) in parts.into_iter().enumerate() {
        if number > 0 {
            println!();
        }
        measure()?;
    }
    Ok(())
}

const ORDERED: FlushPolicy = FlushPolicy::Ordered { lag_ms_max: 60_000 };

/// A disk of 64 MiB on 24 nodes.
fn small_disk(copies: u8, mode: Mode, flush: FlushPolicy) -> Setting {
    Setting {
        nodes: 24,
        model: Some(MODEL),
        node_tracts: NODE_TRACTS,
        copies,
        mode,
        flush,
        segment_tracts: 16,
        blocks: 16_384,
    }
}

fn print_latencies() -> Result<(), String> {
    let modes = [
        (Mode::WriteThrough, FlushPolicy::Durable),
        (Mode::WriteBack, FlushPolicy::Durable),
        (Mode::FlushEpoch, ORDERED),
        (Mode::Log, FlushPolicy::Durable),
        (Mode::Log, ORDERED),
    ];
    println!(
        "| mode | copies | writes/s | write acknowledged, ms (p99) | flush answered, ms (p99) | until durable, ms |"
    );
    println!("|---|---|---|---|---|---|");
    for copies in 1..=3 {
        for (mode, flush) in modes {
            println!("{}", latencies(small_disk(copies, mode, flush), 300)?);
        }
    }
    Ok(())
}

fn print_mail() -> Result<(), String> {
    println!("| mode | copies | operations a second of a mail server |\n|---|---|---|");
    let modes = [
        (Mode::WriteThrough, FlushPolicy::Durable),
        (Mode::FlushEpoch, ORDERED),
        (Mode::Log, ORDERED),
    ];
    for copies in [1, 3] {
        for (mode, flush) in modes {
            let setting = Setting {
                // As many tracts as nodes, in place and as a log.
                segment_tracts: 24,
                blocks: 36_864,
                ..small_disk(copies, mode, flush)
            };
            let operations = exchange::operations_per_second(setting)?;
            println!("| {} | {copies} | {operations:.0} |", setting.name());
        }
    }
    Ok(())
}

fn print_losses() -> Result<(), String> {
    losses("4 KiB", SINGLE, &[1, 4, 16], &[50, 100, 300], 16_384, CRASHES)?;
    println!();
    losses("4 KiB to 1 MiB", MIXED, &[16], &[50], 1 << 18, CRASHES_OF_MIXED)
}

/// Figures 13 and 14.
fn losses(
    what: &str,
    write_blocks: &'static [u64],
    writes_per_flush: &[u64],
    rates: &[u64],
    blocks: u64,
    crashes: u64,
) -> Result<(), String> {
    println!(
        "| writes of {what}; a flush behind each | writes/s | flush-epoch loses, writes (KiB) | log loses, writes (KiB) | \
         not durable at the crash, flush-epoch, KiB | log, KiB | log less |\n|---|---|---|---|---|---|---|"
    );
    for writes_per_flush in writes_per_flush.iter().copied() {
        for per_second in rates.iter().copied() {
            let wanted = Load {
                per_second,
                writes_per_flush,
                write_blocks,
            };
            let lost = |mode| {
                let setting = Setting {
                    blocks,
                    ..small_disk(1, mode, ORDERED)
                };
                lost_in_crashes(setting, wanted, crashes)
            };
            let (epochs, log) = (lost(Mode::FlushEpoch)?, lost(Mode::Log)?);
            println!(
                "| {writes_per_flush} | {per_second} | {} | {} | {:.1} | {:.1} | {:.0} % |",
                epochs.text(),
                log.text(),
                epochs.not_durable_bytes / 1024.0,
                log.not_durable_bytes / 1024.0,
                100.0 * (1.0 - log.not_durable_bytes / epochs.not_durable_bytes)
            );
        }
    }
    Ok(())
}
