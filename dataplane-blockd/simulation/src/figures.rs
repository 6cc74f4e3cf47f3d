//! Figures in virtual time: production client and nodes, each node's disk as slow as [`MODEL`] says.
//!
//! What passes is only what is waited for: seeks, bytes under the arm, the network. What the programs compute takes no
//! time here. The same run gives the same figures on any machine.

use crate::setting::{BLOCK_BYTES, Setting};
use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_env::{Env, sim::Machine};
use futures::{StreamExt, stream};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Every node's disk: the parameters of the Blizzard paper's disks as far as it gives them.
pub const MODEL: &str = "seek=8ms,bw=128MB/s";
/// Tracts that a node has room for.
const NODE_TRACTS: u32 = 40;

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
/// 4 KiB to 1 MiB, most of them small: 55 KiB on average. The paper takes its sizes from studies of virtual desktops, which it
/// does not print; this is our guess at them.
const MIXED: &[u64] = &[
    1, 1, 2, 1, 4, 1, 8, 1, 2, 16, 1, 1, 4, 32, 1, 2, 1, 1, 64, 1, 2, 4, 1, 8, 1, 1, 16, 1, 2, 1, 1, 256,
];

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

/// Writes at a rate, whether or not the ones before are answered, with a flush now and then; `told` learns of each answer.
fn load(
    env: &Env,
    disk: &VirtualDisk,
    blocks: u64,
    wanted: Load,
    told: impl Fn(u64, bool, Duration) + Send + Sync + 'static,
) {
    let (env, disk, told) = (env.clone(), disk.clone(), Arc::new(told));
    let spawning = env.clone();
    drop(spawning.spawn("load", async move {
        for number in 1.. {
            let (one, told, working) = (disk.clone(), told.clone(), env.clone());
            drop(env.spawn("write", async move {
                let began = working.now();
                if one
                    .write(
                        wanted.place(number, blocks),
                        wanted.data(number),
                        Durability::Acknowledged,
                    )
                    .await
                    .is_ok()
                {
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

/// How long writes and flushes wait, and how long it takes until a write is durable.
fn latencies(setting: Setting, per_second: u64) -> Result<String, String> {
    let line = setting.run(1, move |client| async move {
        let (env, disk) = (client.machine.env(), client.attached.disk.clone());
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
        // The first regions are marked, and arms are away from their places.
        env.sleep(Duration::from_secs(5)).await;
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

/// Megabytes a second of one reader that reads on, eight requests of a mebibyte ahead, on as many nodes as the widest segment has
/// tracts.
fn sequential_read(segment_tracts: u32) -> Result<f64, String> {
    let setting = Setting {
        nodes: 128,
        model: Some(MODEL),
        node_tracts: NODE_TRACTS,
        copies: 1,
        mode: Mode::WriteBack,
        flush: FlushPolicy::Durable,
        segment_tracts,
        blocks: 1 << 18,
    };
    let mebibytes: u64 = 64;
    setting.run(2, move |client| async move {
        let (env, disk) = (client.machine.env(), client.attached.disk.clone());
        let data = Bytes::from(vec![0x5a; 1 << 20]);
        for at in 0..mebibytes {
            disk.write(at << 20, data.clone(), Durability::Acknowledged)
                .await
                .map_err(|error| error.to_string())?;
        }
        disk.flush().await.map_err(|error| error.to_string())?;
        env.sleep(Duration::from_secs(60)).await;
        let began = env.now();
        let mut reads = stream::iter(0..mebibytes)
            .map(|at| {
                let disk = disk.clone();
                async move { disk.read(at << 20, 1 << 20).await }
            })
            .buffered(8);
        while let Some(read) = reads.next().await {
            let read = read.map_err(|error| error.to_string())?;
            if !read.iter().all(|piece| matches!(piece, Piece::Data(_))) {
                return Err("what was written reads as zeroes".into());
            }
        }
        Ok((mebibytes << 20) as f64 / env.now().since(began).as_secs_f64() / 1e6)
    })
}

/// Acknowledged writes that a crash of the client loses, and their bytes, on average.
fn lost_in_crashes(setting: Setting, wanted: Load, crashes: u64) -> Result<(f64, f64), String> {
    let (mut lost, mut lost_bytes) = (0, 0);
    for seed in 0..crashes {
        let (writes, bytes) = setting.run(100 + seed, move |client| async move {
            let env = client.machine.env();
            let answered: Arc<Mutex<Vec<u64>>> = Arc::default();
            let told = answered.clone();
            load(
                &env,
                &client.attached.disk,
                setting.blocks,
                wanted,
                move |number, flush, _| {
                    if !flush {
                        told.lock().expect("no panic under this lock").push(number);
                    }
                },
            );
            drop(client.attached);
            let controller = env.clone();
            let crash_at = Duration::from_millis(4000 + controller.random_below(2000));
            // On the controller's side of the crash nothing of the client's environment may be used.
            let machine = client.machine.clone();
            crash_after(&machine, crash_at).await;
            let env = machine.restart();
            let again = setting.attach(&env, &client.table, client.disk).await?;
            let answered = std::mem::take(&mut *answered.lock().expect("no panic under this lock"));
            let (mut lost, mut bytes) = (0_u64, 0_u64);
            for number in answered {
                let data = wanted.data(number);
                let read = again
                    .disk
                    .read(wanted.place(number, setting.blocks), data.len() as u32)
                    .await
                    .map_err(|error| error.to_string())?;
                let missing = missing_bytes(&read, &data);
                lost += u64::from(missing > 0);
                bytes += missing;
            }
            Ok((lost, bytes))
        })?;
        lost += writes;
        lost_bytes += bytes;
    }
    let mean = |sum: u64| sum as f64 / crashes as f64;
    Ok((mean(lost), mean(lost_bytes)))
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

/// Lets a machine run for a while, then takes its power away.
async fn crash_after(machine: &Machine, time: Duration) {
    machine.env().sleep(time).await;
    machine.crash();
}

/// Measures everything and prints it as Markdown.
///
/// # Errors
/// If a disk does not do what it must.
pub fn print() -> Result<(), String> {
    let ordered = FlushPolicy::Ordered { lag_ms_max: 60_000 };
    let modes = [
        (Mode::WriteThrough, FlushPolicy::Durable),
        (Mode::WriteBack, FlushPolicy::Durable),
        (Mode::FlushEpoch, ordered),
        (Mode::Log, FlushPolicy::Durable),
        (Mode::Log, ordered),
    ];
    let setting = |copies, mode, flush| Setting {
        nodes: 24,
        model: Some(MODEL),
        node_tracts: NODE_TRACTS,
        copies,
        mode,
        flush,
        segment_tracts: 16,
        blocks: 16_384,
    };
    println!(
        "| mode | copies | writes/s | write acknowledged, ms (p99) | flush answered, ms (p99) | until durable, ms |"
    );
    println!("|---|---|---|---|---|---|");
    for copies in 1..=3 {
        for (mode, flush) in modes {
            println!("{}", latencies(setting(copies, mode, flush), 300)?);
        }
    }
    println!("\n| segment, tracts | sequential read on 128 nodes, MB/s |\n|---|---|");
    for segment_tracts in [1, 8, 32, 128] {
        println!("| {segment_tracts} | {:.0} |", sequential_read(segment_tracts)?);
    }
    losses("4 KiB", SINGLE, &[1, 4, 16], &[50, 100, 300], 16_384)?;
    losses("4 KiB to 1 MiB", MIXED, &[16], &[50], 1 << 18)
}

/// Figures 13 and 14.
fn losses(
    what: &str,
    write_blocks: &'static [u64],
    writes_per_flush: &[u64],
    rates: &[u64],
    blocks: u64,
) -> Result<(), String> {
    println!(
        "\n| writes of {what}; a flush behind each | writes/s | flush-epoch loses, writes (KiB) | log loses, writes (KiB) |\n|---|---|---|---|"
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
                    nodes: 24,
                    model: Some(MODEL),
                    node_tracts: NODE_TRACTS,
                    copies: 1,
                    mode,
                    flush: FlushPolicy::Ordered { lag_ms_max: 60_000 },
                    segment_tracts: 16,
                    blocks,
                };
                let (writes, bytes) = lost_in_crashes(setting, wanted, 10)?;
                Ok::<String, String>(format!("{writes:.1} ({:.0})", bytes / 1024.0))
            };
            println!(
                "| {writes_per_flush} | {per_second} | {} | {} |",
                lost(Mode::FlushEpoch)?,
                lost(Mode::Log)?
            );
        }
    }
    Ok(())
}
