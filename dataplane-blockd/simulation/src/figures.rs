//! Figures in virtual time: production client and nodes, each node's disk as slow as [`MODEL`] says.
//!
//! What passes is only what is waited for: seeks, bytes under the arm, the network. What the programs compute takes no
//! time here. The same run gives the same figures on any machine.

use crate::cluster::{Cluster, Size, TENANT, access, placement, replica_options, whole};
use bytes::Bytes;
use firn_blockd_client::{
    Attachable, AttachedDisk, DiskSettings, Mode, ReplicaOptions, Shape, attach, key_check, tracts_for,
};
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_node::{DiskModel, Geometry};
use firn_blockd_placement::NewDisk;
use firn_blockd_protocol::{DiskId, Replication};
use firn_env::{Env, sim::Machine};
use firn_table::MemoryTable;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Every node's disk: the parameters of the Blizzard paper's disks as far as it gives them.
pub const MODEL: &str = "seek=8ms,bw=128MB/s";
const KEY: [u8; 32] = [6; 32];
const BLOCK_BYTES: u64 = 4096;
/// Writes between two flushes.
const FLUSH_EVERY: u64 = 16;

fn size(model: &str) -> Result<Size, String> {
    Ok(Size {
        rows: 256,
        geometry: Geometry {
            groups: 1,
            home_frames: 40,
            scratch_frames: 5,
            journal_bytes: 4 << 20,
        },
        model: Some(model.parse::<DiskModel>().map_err(|error| error.to_string())?),
        heartbeat: Duration::from_secs(10),
        steps: u64::MAX,
    })
}

/// A disk on a cluster of its own.
#[derive(Clone, Copy, Debug)]
struct Setting {
    nodes: usize,
    copies: u8,
    mode: Mode,
    flush: FlushPolicy,
    segment_tracts: u32,
    blocks: u64,
}

impl Setting {
    fn name(&self) -> String {
        match self.flush {
            FlushPolicy::Durable => format!("{}, durable", self.mode),
            FlushPolicy::Ordered { .. } => format!("{}, ordered", self.mode),
        }
    }

    async fn create(&self, env: &Env, table: &MemoryTable) -> Result<DiskId, String> {
        let placement = placement(env, table);
        let replication = Replication::new(self.copies).ok_or("one to three copies")?;
        if !whole(env, &placement, replication).await {
            return Err("the rows are never built".into());
        }
        let shape = match self.mode {
            Mode::Log => Shape::Log {
                block_bytes: BLOCK_BYTES as u32,
                physical_blocks: Shape::physical_for(self.blocks),
            },
            Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => Shape::InPlace {
                segment_tracts: self.segment_tracts,
            },
        };
        let settings =
            DiskSettings::new(shape, self.mode, Some(key_check(&KEY))).map_err(|error| error.to_string())?;
        let size_bytes = self.blocks * BLOCK_BYTES;
        let new = NewDisk {
            tenant: TENANT,
            name: "disk".into(),
            size_bytes,
            tracts: Some(tracts_for(&settings, size_bytes).map_err(|error| error.to_string())?),
            replication,
            settings: settings.to_text(),
        };
        for _ in 0..600 {
            if let Ok(record) = placement.create_disk(new.clone()).await {
                return Ok(record.disk);
            }
            env.sleep(Duration::from_millis(500)).await;
        }
        Err("there is never room for the disk".into())
    }

    async fn attach(&self, env: &Env, table: &MemoryTable, disk: DiskId) -> Result<AttachedDisk, String> {
        let wanted = Attachable {
            flush: self.flush,
            force: true,
            replicas: ReplicaOptions {
                patience: Duration::from_secs(600),
                ..replica_options()
            },
            ..Attachable::new(disk, KEY, "figures")
        };
        attach(env, &placement(env, table), &access(env), wanted)
            .await
            .map_err(|error| error.to_string())
    }

    /// Runs `work` with the disk on a client's machine.
    fn run<T, F>(&self, seed: u64, work: impl FnOnce(Client) -> F + Send + 'static) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let cluster = Cluster::new(seed, self.nodes, size(MODEL)?)?;
        // A data centre's round trip.
        cluster.simulation.set_network_latency(Duration::from_micros(200));
        let (setting, machine) = (*self, cluster.simulation.machine("client"));
        let (env, table) = (cluster.simulation.env(), cluster.table.clone());
        let measured = cluster.simulation.run(async move {
            let disk = setting.create(&env, &table).await?;
            let attached = setting.attach(&machine.env(), &table, disk).await?;
            work(Client {
                machine,
                table,
                disk,
                attached,
            })
            .await
        });
        measured.map_err(|error| error.to_string())?
    }
}

struct Client {
    machine: Machine,
    table: MemoryTable,
    disk: DiskId,
    attached: AttachedDisk,
}

/// The block of a write: scattered, and each only once for as long as there are blocks.
fn scattered(number: u64, blocks: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b1) % blocks
}

fn block(number: u64) -> Bytes {
    number.to_le_bytes().repeat(BLOCK_BYTES as usize / 8).into()
}

/// Writes at a rate, whether or not the ones before are answered, with a flush now and then; `told` learns of each answer.
fn load(
    env: &Env,
    disk: &VirtualDisk,
    blocks: u64,
    per_second: u64,
    told: impl Fn(u64, bool, Duration) + Send + Sync + 'static,
) {
    let (env, disk, told) = (env.clone(), disk.clone(), Arc::new(told));
    let spawning = env.clone();
    drop(spawning.spawn("load", async move {
        for number in 1.. {
            let (one, told, working) = (disk.clone(), told.clone(), env.clone());
            drop(env.spawn("write", async move {
                let began = working.now();
                let offset = scattered(number, blocks) * BLOCK_BYTES;
                if one
                    .write(offset, block(number), Durability::Acknowledged)
                    .await
                    .is_ok()
                {
                    told(number, false, working.now().since(began));
                }
                if number % FLUSH_EVERY == 0 {
                    let began = working.now();
                    if one.flush().await.is_ok() {
                        told(number, true, working.now().since(began));
                    }
                }
            }));
            env.sleep(Duration::from_nanos(1_000_000_000 / per_second)).await;
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
        load(&env, &disk, setting.blocks, per_second, move |_, flush, time| {
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

/// Acknowledged writes that a crash of the client loses, on average.
fn lost_in_crashes(setting: Setting, per_second: u64, crashes: u64) -> Result<f64, String> {
    let mut lost = 0;
    for seed in 0..crashes {
        lost += setting.run(100 + seed, move |client| async move {
            let env = client.machine.env();
            let answered: Arc<Mutex<Vec<u64>>> = Arc::default();
            let told = answered.clone();
            load(
                &env,
                &client.attached.disk,
                setting.blocks,
                per_second,
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
            let mut lost = 0_u64;
            for number in answered {
                let offset = scattered(number, setting.blocks) * BLOCK_BYTES;
                let read = again.disk.read(offset, BLOCK_BYTES as u32).await;
                let found = read.map_err(|error| error.to_string())?;
                lost += u64::from(!matches!(&found[..], [Piece::Data(data)] if *data == block(number)));
            }
            Ok(lost)
        })?;
    }
    Ok(lost as f64 / crashes as f64)
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
    println!(
        "\n| mode | writes/s | acknowledged writes lost in a crash of the client, mean of 10 |\n|---|---|---|"
    );
    for per_second in [150, 300] {
        for mode in [Mode::FlushEpoch, Mode::Log] {
            let lost = lost_in_crashes(setting(1, mode, ordered), per_second, 10)?;
            println!("| {mode}, ordered | {per_second} | {lost:.1} |");
        }
    }
    Ok(())
}
