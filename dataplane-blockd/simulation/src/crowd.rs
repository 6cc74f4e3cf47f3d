//! Many users on as many disks as they are, or fewer: Figure 10 of the Blizzard paper.
//!
//! Each user has a disk of its own over all nodes, in one copy, write-through, and asks at its rate whether or not what it asked before is
//! answered: half reads, half writes, 4 KiB to 1 MiB ([`MIXED`]).

use crate::{
    cluster::Cluster,
    setting::{BLOCK_BYTES, MIXED, MODEL, Setting},
};
use bytes::Bytes;
use firn_blockd_client::{AttachedDisk, Mode};
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability};
use firn_blockd_protocol::TenantId;
use firn_env::{Env, sim::Seeded};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const NODES: usize = 130;
const DISK_BYTES: u64 = 1 << 30;
/// Requests of the four roles in a second: light, normal, power, heavy (the paper, section 4.5).
const RATES: [u64; 4] = [5, 10, 20, 40];
/// Places of a disk at which its user reads and writes, a mebibyte apart; all are written before.
const PLACES: u64 = 128;
const WARM_UP: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(10);

/// A deployment.
struct Crowd {
    name: &'static str,
    users: usize,
    /// Of a hundred users, how many have each role.
    split: [usize; 4],
}

const CROWDS: [Crowd; 5] = [
    Crowd {
        name: "medium",
        users: 100,
        split: [10, 50, 25, 15],
    },
    Crowd {
        name: "medium",
        users: 130,
        split: [10, 50, 25, 15],
    },
    Crowd {
        name: "high",
        users: 100,
        split: [10, 30, 40, 20],
    },
    Crowd {
        name: "high",
        users: 130,
        split: [10, 30, 40, 20],
    },
    Crowd {
        name: "all heavy",
        users: 175,
        split: [0, 0, 0, 100],
    },
];

#[derive(Default)]
struct Found {
    waits: Mutex<Vec<Duration>>,
    failure: Mutex<Option<String>>,
}

impl Crowd {
    fn setting(&self) -> Setting {
        Setting {
            nodes: NODES,
            model: Some(MODEL),
            node_tracts: u32::try_from(self.users * 128 / NODES * 3 / 2).expect("some hundreds"),
            copies: 1,
            mode: Mode::WriteThrough,
            flush: FlushPolicy::Durable,
            segment_tracts: 128,
            blocks: DISK_BYTES / BLOCK_BYTES,
        }
    }

    /// Requests a second of each user.
    fn rates(&self) -> Vec<u64> {
        let roles = RATES.into_iter().zip(self.split);
        let rates = roles.flat_map(|(rate, part)| vec![rate; self.users * part / 100]);
        let mut rates: Vec<u64> = rates.collect();
        // What rounding left over is normal.
        rates.resize(self.users, RATES[1]);
        rates
    }

    fn run(&self, seed: u64) -> Result<Vec<Duration>, String> {
        let (setting, rates) = (self.setting(), self.rates());
        let cluster = Cluster::new(seed, NODES, setting.size()?)?;
        cluster.simulation.set_network_latency(Duration::from_micros(200));
        cluster.simulation.set_early_timers(false);
        let (env, table) = (cluster.simulation.env(), cluster.table.clone());
        let machines: Vec<_> = (0..rates.len())
            .map(|user| cluster.simulation.machine(&format!("user{user}")).env())
            .collect();
        let measured = cluster.simulation.run(async move {
            let found: Arc<Found> = Arc::default();
            let mut attached: Vec<AttachedDisk> = Vec::new();
            for (user, machine) in machines.iter().enumerate() {
                let owner = (TenantId([1; 16]), &*format!("disk{user}"));
                let disk = setting.create(&env, &table, owner).await?;
                attached.push(setting.attach(machine, &table, disk).await?);
            }
            let disks = attached.iter().map(|attached| attached.disk.clone());
            stream::iter(disks.collect::<Vec<_>>())
                .map(fill)
                .buffer_unordered(16)
                .try_collect::<()>()
                .await?;
            for ((user, rate), (machine, attached)) in
                rates.iter().enumerate().zip(machines.iter().zip(&attached))
            {
                let random = Seeded::new(seed, 1000 + user as u64);
                ask(machine, attached.disk.clone(), *rate, random, &found);
            }
            env.sleep(WARM_UP).await;
            found.waits.lock().expect("no panic under this lock").clear();
            env.sleep(MEASURED).await;
            if let Some(failure) = found.failure.lock().expect("no panic under this lock").take() {
                return Err(format!("a request failed: {failure}"));
            }
            drop(attached);
            Ok(std::mem::take(
                &mut *found.waits.lock().expect("no panic under this lock"),
            ))
        });
        measured.map_err(|error| error.to_string())?
    }
}

/// Bytes of the request at a place, always the same there.
fn request_bytes(place: u64) -> u64 {
    MIXED[place as usize % MIXED.len()] * BLOCK_BYTES
}

fn content(place: u64) -> Bytes {
    Bytes::from(vec![0x5a; request_bytes(place) as usize])
}

async fn fill(disk: VirtualDisk) -> Result<(), String> {
    for place in 0..PLACES {
        disk.write(place << 20, content(place), Durability::Acknowledged)
            .await
            .map_err(|error| error.to_string())?;
    }
    disk.flush().await.map_err(|error| error.to_string())
}

/// Requests at a rate, half of them reads.
fn ask(env: &Env, disk: VirtualDisk, per_second: u64, mut random: Seeded, found: &Arc<Found>) {
    let (working, found) = (env.clone(), found.clone());
    drop(env.spawn("user", async move {
        loop {
            // On average one interval; users do not march in step.
            let interval_us = 1_000_000 / per_second;
            let pause = interval_us / 2 + random.index(interval_us as usize) as u64;
            working.sleep(Duration::from_micros(pause)).await;
            let (place, reads) = (random.index(PLACES as usize) as u64, random.index(2) == 0);
            let (disk, found, env) = (disk.clone(), found.clone(), working.clone());
            drop(working.spawn("request", async move {
                let began = env.now();
                let done = if reads {
                    let length = u32::try_from(request_bytes(place)).expect("a mebibyte at most");
                    disk.read(place << 20, length).await.map(drop)
                } else {
                    disk.write(place << 20, content(place), Durability::Acknowledged)
                        .await
                };
                let waited = env.now().since(began);
                match done {
                    Ok(()) => found.waits.lock().expect("no panic under this lock").push(waited),
                    Err(error) => {
                        let mut failure = found.failure.lock().expect("no panic under this lock");
                        failure.get_or_insert(error.to_string());
                    }
                }
            }));
        }
    }));
}

/// How many of a hundred requests wait no longer than so many milliseconds.
pub(crate) fn print() -> Result<(), String> {
    const BOUNDS_MS: [u64; 5] = [5, 10, 20, 40, 80];
    let columns = BOUNDS_MS.map(|bound| format!(" {bound} ms |"));
    println!(
        "| users of {NODES} disks | | requests | of 100 within{}",
        columns.concat()
    );
    println!("|---|---|---|{}", "---|".repeat(BOUNDS_MS.len()));
    for crowd in CROWDS {
        let waits = crowd.run(3)?;
        let within = BOUNDS_MS.map(|bound| {
            let count = waits
                .iter()
                .filter(|wait| **wait <= Duration::from_millis(bound))
                .count();
            format!(" {:.0} |", 100.0 * count as f64 / waits.len().max(1) as f64)
        });
        println!(
            "| {} | {} | {} |{}",
            crowd.users,
            crowd.name,
            waits.len(),
            within.concat()
        );
    }
    Ok(())
}
