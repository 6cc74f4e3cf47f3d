//! Noisy-neighbour experiment: the effect of one tenant at full blast on others on the same nodes.
//!
//! All tenants have as many disks, all disks lie on all nodes. Seven tenants read and write at a rate that leaves the nodes most of
//! their time, once with the eighth silent and once with all of its disks under as many requests as they take. What is measured is
//! how long each request of the seven waits: reads of 4 KiB, and writes of 4 KiB that are answered when they are durable.

use crate::{
    cluster::Cluster,
    setting::{BLOCK_BYTES, Setting},
};
use bytes::Bytes;
use firn_blockd_client::{AttachedDisk, Mode};
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability};
use firn_blockd_protocol::TenantId;
use firn_env::{Env, sim::Seeded};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Blocks of each disk, all of them written before anything is measured.
const BLOCKS: u64 = 512;
/// Of so many requests of the steady tenants seven are reads.
const OF_REQUESTS: usize = 10;
const READS: usize = 7;
/// Requests that each disk of the loud tenant has under way: half of them random reads of a block, half of them durable writes.
const LOUD_DEPTH: usize = 32;
/// Blocks of a write of the loud tenant.
const LOUD_BLOCKS: u64 = 8;
/// Until arms are where they are and regions are marked.
const WARM_UP: Duration = Duration::from_secs(5);

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Of what each node's disk is made.
    pub model: &'static str,
    /// The last of them is the loud one.
    pub tenants: u8,
    /// Disks of each.
    pub disks_each: u8,
    /// Requests of each disk of a steady tenant.
    pub per_second: u64,
    /// How long is measured.
    pub time: Duration,
}

/// What the steady tenants saw.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Requests that were measured.
    pub requests: u64,
    /// Half of them waited less.
    pub median: Duration,
    /// One of a hundred waited longer.
    pub p99: Duration,
    /// Requests that the loud tenant had done in the same time.
    pub loud: u64,
}

#[derive(Default)]
struct Found {
    waits: Mutex<Vec<Duration>>,
    loud: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Found {
    fn failed(&self, error: &DeviceError) {
        let mut failure = self.failure.lock().expect("no panic under this lock");
        failure.get_or_insert(error.to_string());
    }

    fn clear(&self) {
        self.waits.lock().expect("no panic under this lock").clear();
        self.loud.store(0, Relaxed);
    }
}

fn block(number: u64) -> Bytes {
    (number | 1 << 63)
        .to_le_bytes()
        .repeat((BLOCK_BYTES / 8) as usize)
        .into()
}

impl Neighbours {
    fn setting(&self) -> Setting {
        Setting {
            nodes: self.nodes,
            model: Some(self.model),
            node_tracts: 240,
            copies: 2,
            mode: Mode::WriteBack,
            flush: FlushPolicy::Durable,
            segment_tracts: 8,
            blocks: BLOCKS,
        }
    }

    /// Runs it, with the last tenant loud or silent.
    ///
    /// # Errors
    /// If a request fails.
    pub fn run(&self, seed: u64, is_loud: bool) -> Result<Waits, String> {
        let setting = self.setting();
        let cluster = Cluster::new(seed, self.nodes, setting.size()?)?;
        cluster.simulation.set_network_latency(Duration::from_micros(200));
        cluster.simulation.set_early_timers(false);
        let (this, env, table) = (*self, cluster.simulation.env(), cluster.table.clone());
        let machines: Vec<_> = (0..self.tenants)
            .map(|tenant| cluster.simulation.machine(&format!("tenant{tenant}")).env())
            .collect();
        let measured = cluster.simulation.run(async move {
            let found: Arc<Found> = Arc::default();
            // An attach that ends lets go of its connections.
            let mut attached: Vec<AttachedDisk> = Vec::new();
            for (tenant, machine) in (1_u8..).zip(&machines) {
                for disk in 0..this.disks_each {
                    let owner = TenantId([tenant; 16]);
                    let disk = setting
                        .create(&env, &table, (owner, &format!("disk{disk}")))
                        .await?;
                    attached.push(setting.attach(machine, &table, disk).await?);
                }
            }
            let disks: Vec<VirtualDisk> = attached.iter().map(|attached| attached.disk.clone()).collect();
            stream::iter(disks)
                .map(fill)
                .buffer_unordered(8)
                .try_collect::<()>()
                .await
                .map_err(|error| error.to_string())?;
            for (number, attached) in (0..).zip(&attached) {
                let (tenant, disk) = (number / usize::from(this.disks_each), attached.disk.clone());
                let machine = machines.get(tenant).ok_or("a disk of nobody")?.clone();
                let random = Seeded::new(seed, 1000 + number as u64);
                if tenant + 1 < usize::from(this.tenants) {
                    steady(&machine, disk, this.per_second, random, &found);
                } else if is_loud {
                    loud(&machine, &disk, random, &found);
                }
            }
            env.sleep(WARM_UP).await;
            found.clear();
            env.sleep(this.time).await;
            if let Some(failure) = found.failure.lock().expect("no panic under this lock").take() {
                return Err(format!("a request failed: {failure}"));
            }
            let mut waits = std::mem::take(&mut *found.waits.lock().expect("no panic under this lock"));
            waits.sort_unstable();
            let at = |part: usize| waits.get(waits.len() * part / 100).copied().unwrap_or_default();
            drop(attached);
            Ok(Waits {
                requests: waits.len() as u64,
                median: at(50),
                p99: at(99),
                loud: found.loud.load(Relaxed),
            })
        });
        measured.map_err(|error| error.to_string())?
    }
}

async fn fill(disk: VirtualDisk) -> Result<(), DeviceError> {
    let step = 32;
    for first in (0..BLOCKS).step_by(step) {
        let data: Vec<u8> = (first..first + step as u64)
            .flat_map(|at| block(at).to_vec())
            .collect();
        disk.write(first * BLOCK_BYTES, data.into(), Durability::Acknowledged)
            .await?;
    }
    disk.sync().await
}

/// Requests at a rate, whether or not those before are answered.
fn steady(env: &Env, disk: VirtualDisk, per_second: u64, mut random: Seeded, found: &Arc<Found>) {
    let (env, found) = (env.clone(), found.clone());
    let spawning = env.clone();
    drop(spawning.spawn("steady", async move {
        loop {
            // On average one interval; tenants do not march in step.
            let interval_us = 1_000_000 / per_second;
            let pause = interval_us / 2 + random.index(interval_us as usize) as u64;
            env.sleep(Duration::from_micros(pause)).await;
            let offset = random.index(BLOCKS as usize) as u64 * BLOCK_BYTES;
            let is_read = random.index(OF_REQUESTS) < READS;
            let (disk, found, working) = (disk.clone(), found.clone(), env.clone());
            drop(env.spawn("request", async move {
                let began = working.now();
                let done = if is_read {
                    disk.read(offset, BLOCK_BYTES as u32).await.map(drop)
                } else {
                    disk.write(offset, block(offset), Durability::Durable).await
                };
                let waited = working.now().since(began);
                match done {
                    Ok(()) => found.waits.lock().expect("no panic under this lock").push(waited),
                    Err(error) => found.failed(&error),
                }
            }));
        }
    }));
}

/// As much as the disk takes.
fn loud(env: &Env, disk: &VirtualDisk, mut random: Seeded, found: &Arc<Found>) {
    for worker in 0..LOUD_DEPTH {
        let (disk, found) = (disk.clone(), found.clone());
        let mut random = Seeded::new(random.draw(), worker as u64);
        drop(env.spawn("loud", async move {
            loop {
                let done = if worker % 2 == 0 {
                    let offset = random.index(BLOCKS as usize) as u64 * BLOCK_BYTES;
                    disk.read(offset, BLOCK_BYTES as u32).await.map(drop)
                } else {
                    let offset =
                        random.index((BLOCKS / LOUD_BLOCKS) as usize) as u64 * LOUD_BLOCKS * BLOCK_BYTES;
                    let data = block(offset).repeat(LOUD_BLOCKS as usize);
                    disk.write(offset, data.into(), Durability::Durable).await
                };
                match done {
                    Ok(()) => drop(found.loud.fetch_add(1, Relaxed)),
                    Err(error) => return found.failed(&error),
                }
            }
        }));
    }
}
