//! A node that dies for good under load: how long it takes until everything has two copies again.
//!
//! ```text
//! one disk of many tracts for each node ── the tracts that lie on the node that will die are filled ── a load on all of them
//!        the node and its disk are gone ──▶ its silence is noticed ──▶ others join its rows and copy ──▶ every row has two again
//! ```
//!
//! Only what the dead node had is copied, so only that is filled: what the others hold beside it costs nothing here but memory.
//! The locator table has the square of the number of nodes in rows, as `firn-blockd init` recommends, so that the rows of one
//! node are shared with all others.

use crate::{
    cluster::{Cluster, Host, Size, TENANT, placement},
    setting::{BLOCK_BYTES, Setting},
};
use bytes::Bytes;
use firn_blockd_client::{Layout, Mode, Shape};
use firn_blockd_disk::{FlushPolicy, Unit, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_node::{DiskModel, Geometry};
use firn_blockd_placement::{Placement, row_index};
use firn_blockd_protocol::{NodeId, Replication, TRACT_BLOCKS};
use firn_env::{Env, Monotonic};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// What one request of the filling writes.
const FILL_BYTES: u64 = 1 << 20;
/// Between two looks at the table.
const LOOK: Duration = Duration::from_millis(10);
/// Re-replication that takes ten minutes has failed.
const LOOKS_MAX: usize = 60_000;

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Before one of them dies.
    pub nodes: usize,
    /// Of what each node's disk is made ([`DiskModel`]).
    pub model: &'static str,
    /// Tracts of the disk for each of them: with two copies a node has twice as many.
    pub tracts_per_node: u32,
    /// What the dead node had.
    pub data_bytes: u64,
    /// Between two heartbeats of a node; a silence of eight is a death.
    pub heartbeat: Duration,
    /// Writes of 4 KiB, all over the disk.
    pub writes_per_second: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Rereplicated {
    /// From the death until the first row was changed.
    pub noticed: Duration,
    /// From then until all rows had two active replicas.
    pub copied: Duration,
    /// What was copied meanwhile.
    pub copied_bytes: u64,
    /// Writes and flushes that were asked for under way, none of which failed.
    pub requests: u64,
    /// The longest that one of them took.
    pub longest: Duration,
}

impl Rereplicated {
    /// Of all nodes together, in millions.
    pub fn megabytes_per_second(&self) -> f64 {
        self.copied_bytes as f64 / self.copied.as_secs_f64() / 1e6
    }
}

/// What the load has written, and how it fared.
#[derive(Default)]
struct Load {
    ended: AtomicBool,
    found: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    /// What each place holds, by offset.
    content: BTreeMap<u64, u64>,
    under_way: u64,
    requests: u64,
    longest: Duration,
    failure: Option<String>,
}

impl Load {
    fn found(&self) -> std::sync::MutexGuard<'_, Written> {
        self.found.lock().expect("no panic under this lock")
    }

    fn answered(&self, took: Duration, outcome: Result<(), firn_blockd_nbd::DeviceError>) {
        let mut found = self.found();
        found.requests += 1;
        found.under_way -= 1;
        found.longest = found.longest.max(took);
        if let Err(error) = outcome {
            found.failure.get_or_insert(error.to_string());
        }
    }
}

fn data(number: u64, bytes: u64) -> Bytes {
    (number | 1 << 63)
        .to_le_bytes()
        .repeat((bytes / 8) as usize)
        .into()
}

/// Writes to the second half of tracts, with a flush now and then, at a rate whether or not what went before was answered.
fn load(env: &Env, disk: &VirtualDisk, tracts: u64, per_second: u64) -> Arc<Load> {
    let load: Arc<Load> = Arc::default();
    let (telling, env, disk) = (load.clone(), env.clone(), disk.clone());
    let spawning = env.clone();
    drop(spawning.spawn("load", async move {
        let half = u64::from(TRACT_BLOCKS) / 2;
        for number in 1_u64.. {
            if telling.ended.load(Relaxed) {
                return;
            }
            let tract = number.wrapping_mul(0x9e37_79b1) % tracts;
            let offset = (tract * u64::from(TRACT_BLOCKS) + half + number % half) * BLOCK_BYTES;
            {
                let mut found = telling.found();
                found.content.insert(offset, number);
                found.under_way += 1 + u64::from(number % 16 == 0);
            }
            let (disk, telling, working) = (disk.clone(), telling.clone(), env.clone());
            drop(env.spawn("write", async move {
                let began = working.now();
                let written = disk
                    .write(offset, data(number, BLOCK_BYTES), Durability::Acknowledged)
                    .await;
                telling.answered(working.now().since(began), written);
                if number % 16 == 0 {
                    let began = working.now();
                    let flushed = disk.flush().await;
                    telling.answered(working.now().since(began), flushed);
                }
            }));
            env.sleep(Duration::from_nanos(1_000_000_000 / per_second)).await;
        }
    }));
    load
}

impl Death {
    fn setting(&self) -> Setting {
        let nodes = u32::try_from(self.nodes.max(2)).unwrap_or(u32::MAX);
        let tracts = u64::from(self.tracts_per_node) * u64::from(nodes);
        Setting {
            nodes: self.nodes,
            model: Some(self.model),
            // What it has, its part of what the dead one had, and a quarter more.
            node_tracts: self.tracts_per_node * 2 * nodes / (nodes - 1) * 5 / 4,
            copies: 2,
            mode: Mode::WriteBack,
            flush: FlushPolicy::Durable,
            segment_tracts: 1,
            // One tract is for the dirty-region log.
            blocks: (tracts - 1) * u64::from(TRACT_BLOCKS),
        }
    }

    fn size(&self) -> Result<Size, String> {
        let square = u32::try_from(self.nodes * self.nodes).map_err(|error| error.to_string())?;
        let model: DiskModel = self.model.parse().map_err(|error| format!("{error}"))?;
        Ok(Size {
            rows: [1, square, 1],
            geometry: Geometry {
                groups: 1,
                home_frames: self.setting().node_tracts,
                scratch_frames: 16,
                journal_bytes: 4 << 20,
            },
            model: Some(model),
            heartbeat: self.heartbeat,
            drop_after: Size::SMALL.drop_after,
            steps: u64::MAX,
        })
    }

    /// Runs it.
    ///
    /// # Errors
    /// If a request of the load failed, anything reads differently afterwards, copies differ, or rows never become whole.
    pub fn run(&self, seed: u64) -> Result<Rereplicated, String> {
        let cluster = Cluster::new(seed, self.nodes, self.size()?)?;
        cluster.simulation.set_network_latency(Duration::from_micros(200));
        for host in &cluster.hosts {
            // What a crash of the survivors might bring back takes memory, and none comes.
            host.machine
                .disk()
                .configure(|options| options.writes_through = true);
        }
        let (this, hosts) = (*self, cluster.hosts.clone());
        let machine = cluster.simulation.machine("client");
        let (env, table) = (cluster.simulation.env(), cluster.table.clone());
        let measured = cluster.simulation.run(async move {
            let setting = this.setting();
            let disk = setting.create(&env, &table, (TENANT, "disk")).await?;
            let attached = setting.attach(&machine.env(), &table, disk).await?;
            let placement = placement(&env, &table);
            let victim = hosts.first().and_then(Host::node).ok_or("there is no node")?;
            let carried = carried(&placement, disk, setting.blocks, victim).await?;
            let filled = this.fill(&attached.disk, &carried).await?;
            let load = load(
                &machine.env(),
                &attached.disk,
                setting.blocks / u64::from(TRACT_BLOCKS),
                this.writes_per_second,
            );
            env.sleep(this.heartbeat * 10).await;
            let before: u64 = hosts.iter().skip(1).map(Host::copied_blocks).sum();
            hosts.iter().take(1).for_each(Host::destroy);
            let died = env.now();
            let changed = wait(&env, &placement, |replicas| {
                !replicas.iter().any(|(node, _)| *node == victim)
            })
            .await?;
            let whole = wait(&env, &placement, |replicas| {
                replicas.len() == 2 && replicas.iter().all(|(_, active)| *active)
            })
            .await?;
            let after: u64 = hosts.iter().skip(1).map(Host::copied_blocks).sum();
            load.ended.store(true, Relaxed);
            attached.disk.sync().await.map_err(|error| error.to_string())?;
            this.check(&env, &attached.disk, &filled, &load).await?;
            copies_agree(&attached.replicas, &filled, &load).await?;
            let found = load.found();
            Ok(Rereplicated {
                noticed: changed.since(died),
                copied: whole.since(changed),
                copied_bytes: (after - before) * BLOCK_BYTES,
                requests: found.requests,
                longest: found.longest,
            })
        });
        measured.map_err(|error| error.to_string())?
    }

    /// Fills the first blocks of the tracts that begin at these offsets; returns the places and what they hold.
    async fn fill(&self, disk: &VirtualDisk, tracts: &[u64]) -> Result<Vec<(u64, u64)>, String> {
        let each = self.data_bytes / tracts.len() as u64 / FILL_BYTES * FILL_BYTES;
        let half = u64::from(TRACT_BLOCKS) / 2 * BLOCK_BYTES;
        if each == 0 || each > half {
            return Err(format!(
                "{each} bytes in each of {} tracts cannot be",
                tracts.len()
            ));
        }
        let places: Vec<(u64, u64)> = tracts
            .iter()
            .flat_map(|tract| (0..each / FILL_BYTES).map(move |part| tract + part * FILL_BYTES))
            .zip(1 << 40..)
            .collect();
        stream::iter(places.clone())
            .map(|(offset, number)| {
                let disk = disk.clone();
                async move {
                    disk.write(offset, data(number, FILL_BYTES), Durability::Acknowledged)
                        .await
                }
            })
            .buffer_unordered(16)
            .try_collect::<()>()
            .await
            .map_err(|error| error.to_string())?;
        disk.sync().await.map_err(|error| error.to_string())?;
        Ok(places)
    }

    /// That nothing failed, and all that was written is read.
    async fn check(
        &self,
        env: &Env,
        disk: &VirtualDisk,
        filled: &[(u64, u64)],
        load: &Load,
    ) -> Result<(), String> {
        while load.found().under_way > 0 {
            env.sleep(LOOK).await;
        }
        let written = {
            let found = load.found();
            if let Some(failure) = &found.failure {
                return Err(format!("a request failed: {failure}"));
            }
            found.content.clone()
        };
        let wanted: Vec<(u64, u64, u64)> = filled
            .iter()
            .map(|(offset, number)| (*offset, *number, FILL_BYTES))
            .chain(
                written
                    .iter()
                    .map(|(offset, number)| (*offset, *number, BLOCK_BYTES)),
            )
            .collect();
        stream::iter(wanted)
            .map(|(offset, number, bytes)| (disk.clone(), offset, number, bytes))
            .map(|(disk, offset, number, bytes)| async move {
                let read = disk
                    .read(offset, bytes as u32)
                    .await
                    .map_err(|error| error.to_string())?;
                let mut whole = Vec::new();
                for piece in read {
                    match piece {
                        Piece::Data(part) => whole.extend_from_slice(&part),
                        Piece::Zeroes(length) => whole.resize(whole.len() + length as usize, 0),
                    }
                }
                if whole == data(number, bytes) {
                    Ok(())
                } else {
                    Err(format!("what was written at {offset} is lost"))
                }
            })
            .buffer_unordered(16)
            .try_collect()
            .await
    }
}

/// Where the tracts begin that lie on a node.
async fn carried(
    placement: &Placement,
    disk: firn_blockd_protocol::DiskId,
    blocks: u64,
    node: NodeId,
) -> Result<Vec<u64>, String> {
    let copies = Replication::new(2).ok_or("two copies can be")?;
    let rows = placement.rows(copies).await.map_err(|error| error.to_string())?;
    let on_it: BTreeSet<u32> = rows
        .iter()
        .filter(|row| row.replica(node).is_some())
        .map(|row| row.index.0)
        .collect();
    let layout = Layout::new(Shape::in_place(1)).map_err(|error| error.to_string())?;
    let mut begins = Vec::new();
    for block in (0..blocks).step_by(TRACT_BLOCKS.into()) {
        let chunk = layout
            .chunk(Unit::Block(block), 0)
            .map_err(|error| error.to_string())?;
        let rows = u32::try_from(rows.len()).map_err(|error| error.to_string())?;
        if on_it.contains(&row_index(disk, chunk.tract, rows).0) {
            begins.push(block * BLOCK_BYTES);
        }
    }
    Ok(begins)
}

/// Waits until something holds of every row of two copies: of its nodes, and whether each is active.
async fn wait(
    env: &Env,
    placement: &Placement,
    holds: impl Fn(&[(NodeId, bool)]) -> bool,
) -> Result<Monotonic, String> {
    let copies = Replication::new(2).ok_or("two copies can be")?;
    let mut epoch = None;
    for _ in 0..LOOKS_MAX {
        let now = placement
            .cluster()
            .await
            .map_err(|error| error.to_string())?
            .epoch;
        if epoch.replace(now) != Some(now) {
            let rows = placement.rows(copies).await.map_err(|error| error.to_string())?;
            let all = rows.iter().all(|row| {
                let active: BTreeSet<NodeId> = row.active().map(|replica| replica.node).collect();
                let replicas: Vec<(NodeId, bool)> = row
                    .replicas
                    .iter()
                    .map(|replica| (replica.node, active.contains(&replica.node)))
                    .collect();
                holds(&replicas)
            });
            if all {
                return Ok(env.now());
            }
        }
        env.sleep(LOOK).await;
    }
    Err("the rows never become whole".into())
}

/// That there are two copies of one block of all that was written, and that they are equal.
async fn copies_agree(
    replicas: &firn_blockd_client::ClusterReplicas,
    filled: &[(u64, u64)],
    load: &Load,
) -> Result<(), String> {
    use firn_blockd_disk::{Copy, Replicas};
    let written: Vec<u64> = load.found().content.keys().copied().collect();
    let places = filled.iter().map(|(offset, _)| *offset).chain(written);
    for block in places.map(|offset| offset / BLOCK_BYTES) {
        let copies = replicas
            .load_all(Unit::Block(block))
            .await
            .map_err(|error| error.to_string())?;
        let bodies: Vec<_> = copies
            .iter()
            .map(|copy| match copy {
                Copy::Holds(stored) => Some(&stored.body),
                Copy::Empty | Copy::Damaged | Copy::Joining => None,
            })
            .collect();
        match bodies[..] {
            [Some(one), Some(other)] if one == other => {}
            _ => return Err(format!("block {block} has not two equal copies: {bodies:?}")),
        }
    }
    Ok(())
}
