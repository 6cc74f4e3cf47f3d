//! One random history of a cluster that is as full as it may be: all that can be promised is promised and written, nodes are lost, come
//! back, are replaced by empty ones or joined by late ones, one failure domain at a time, and disks are written to all the while.
//!
//! Two oracles beside the content. *Liveness:* after the last fault every write ends within [`BOUND`], whatever was lost, since what was
//! promised can be delivered. *Redundancy:* after every fault each row has its copies again, since the capacity counts a loss.

use crate::{
    cluster::{Cluster, Host, ROWS, Size, TENANT, placement, whole},
    setting::{KEY, Setting},
};
use bytes::Bytes;
use firn_blockd_client::{AttachedDisk, DiskSettings, Mode, Shape, key_check, tracts_for};
use firn_blockd_disk::FlushPolicy;
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_node::Geometry;
use firn_blockd_placement::{NewDisk, Placement, PlacementError};
use firn_blockd_protocol::{DiskId, Replication, TRACT_BYTES};
use firn_env::{Env, Monotonic, sim::Machine};
use firn_table::MemoryTable;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Within which a write ends once nothing fails any more: a node is declared dead after four seconds, and a row of a few tracts is
/// copied in less than one.
pub const BOUND: Duration = Duration::from_secs(120);
/// Tracts of a node.
const NODE_TRACTS: u64 = 16;
const BLOCK_BYTES: u64 = 4096;

const SIZE: Size = Size {
    geometry: Geometry {
        groups: 1,
        home_frames: NODE_TRACTS as u32,
        scratch_frames: 2,
        journal_bytes: 64 << 10,
    },
    rows: [ROWS, 12, ROWS],
    // As in production: longer than anybody waits.
    drop_after: Duration::from_secs(3600),
    ..Size::SMALL
};

/// What a history came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Why it failed.
    pub failure: Option<String>,
    /// Nodes at the beginning.
    pub nodes: usize,
    /// Nodes that were lost, for a while or for good.
    pub faults: u64,
    /// Tracts there were, those of them that could be promised, and those that were, all copies counted.
    pub tracts: (u64, u64, u64),
    /// Writes that were answered.
    pub writes: u64,
    /// The longest that one took, in the middle of faults or not.
    pub longest: Duration,
}

/// What the writers know.
#[derive(Default)]
struct Known {
    stopped: bool,
    /// The number that was written last to a tract of a disk.
    content: BTreeMap<(usize, u64), u64>,
    under_way: BTreeMap<usize, Monotonic>,
    writes: u64,
    longest: Duration,
    failure: Option<String>,
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().expect("no panic under this lock")
}

fn data(number: u64) -> Bytes {
    (number | 1 << 63)
        .to_le_bytes()
        .repeat(BLOCK_BYTES as usize / 8)
        .into()
}

/// Runs the history of a seed.
pub fn run(seed: u64) -> Report {
    let mut report = Report {
        nodes: 3 + seed as usize % 3,
        ..Report::default()
    };
    if let Err(failure) = play(seed, &mut report) {
        report.failure = Some(format!("a full cluster of {} nodes: {failure}", report.nodes));
    }
    report
}

fn play(seed: u64, report: &mut Report) -> Result<(), String> {
    let cluster = Cluster::new(seed, report.nodes, SIZE)?;
    let known: Arc<Mutex<Known>> = Arc::default();
    let stage = Stage {
        env: cluster.simulation.env(),
        table: cluster.table.clone(),
        hosts: cluster.hosts.clone(),
        late: cluster.late("late"),
        client: cluster.simulation.machine("client"),
        known: known.clone(),
    };
    let nodes = report.nodes as u64;
    let played = cluster
        .simulation
        .run(stage.play(nodes))
        .map_err(|error| error.to_string());
    let known = lock(&known);
    (report.writes, report.longest) = (known.writes, known.longest);
    (report.faults, report.tracts) = played??;
    Ok(())
}

struct Stage {
    env: Env,
    table: MemoryTable,
    hosts: Vec<Host>,
    late: Host,
    client: Machine,
    known: Arc<Mutex<Known>>,
}

type Disks = Vec<(AttachedDisk, u64)>;

impl Stage {
    async fn play(self, nodes: u64) -> Result<(u64, (u64, u64, u64)), String> {
        let placement = placement(&self.env, &self.table);
        let copies = Replication::ALL[1];
        if !whole(&self.env, &placement, copies).await {
            return Err("the rows are never built".into());
        }
        self.counted(&placement, nodes * NODE_TRACTS).await?;
        let made = self.fill_up(&placement).await?;
        // The coordinator has seen all disks.
        self.env.sleep(Duration::from_secs(2)).await;
        let capacity = placement.capacity().await.map_err(|error| error.to_string())?;
        let mut disks: Disks = Vec::new();
        for (disk, tracts) in made {
            let attached = setting().attach(&self.client.env(), &self.table, disk).await?;
            disks.push((attached, tracts));
        }
        for (at, (disk, tracts)) in disks.iter().enumerate() {
            for tract in 0..*tracts {
                self.write(at, disk, tract, 1).await?;
            }
            self.start_writing(at, disk, *tracts);
        }
        let faults = self.lose_nodes(&placement, &disks).await?;
        self.all_end(&disks).await?;
        for (at, (disk, tracts)) in disks.iter().enumerate() {
            for tract in 0..*tracts {
                let written = self.write(at, disk, tract, 1 << 40);
                self.env
                    .timeout(BOUND, written)
                    .await
                    .map_err(|_| stuck(at, disk))??;
            }
        }
        self.compare(&disks).await?;
        let tracts = (
            capacity.total_tracts,
            capacity.promisable_tracts(),
            capacity.reserved_tracts,
        );
        Ok((faults, tracts))
    }

    /// Waits until the coordinator has counted so many tracts.
    async fn counted(&self, placement: &Placement, tracts: u64) -> Result<(), String> {
        for _ in 0..200 {
            if placement
                .capacity()
                .await
                .is_ok_and(|capacity| capacity.total_tracts == tracts)
            {
                return Ok(());
            }
            self.env.sleep(Duration::from_millis(500)).await;
        }
        Err(format!("{tracts} tracts are never counted"))
    }

    /// Makes disks of a few tracts until nothing more is promised.
    async fn fill_up(&self, placement: &Placement) -> Result<Vec<(DiskId, u64)>, String> {
        let settings = DiskSettings::new(Shape::in_place(1), Mode::WriteThrough, Some(key_check(&KEY)))
            .map_err(|error| error.to_string())?;
        let mut made = Vec::new();
        let mut most = 6;
        while most > 0 {
            let tracts = 1 + self.env.random_below(most);
            let size_bytes = tracts * TRACT_BYTES;
            let new = NewDisk {
                tenant: TENANT,
                name: format!("disk{}", made.len()),
                size_bytes,
                tracts: Some(tracts_for(&settings, size_bytes).map_err(|error| error.to_string())?),
                replication: Replication::ALL[1],
                settings: settings.to_text(),
            };
            match placement.create_disk(new).await {
                Ok(record) => {
                    made.push((record.disk, tracts));
                    // Until the coordinator has seen a disk, its largest row counts as the largest of all.
                    self.env.sleep(Duration::from_secs(2)).await;
                }
                Err(PlacementError::NoCapacity { .. }) => most = tracts - 1,
                Err(_) => self.env.sleep(Duration::from_millis(200)).await,
            }
        }
        Ok(made)
    }

    async fn write(&self, at: usize, disk: &AttachedDisk, tract: u64, number: u64) -> Result<(), String> {
        let written = disk
            .disk
            .write(tract * TRACT_BYTES, data(number), Durability::Durable);
        written.await.map_err(|error| error.to_string())?;
        lock(&self.known).content.insert((at, tract), number);
        Ok(())
    }

    /// One write after the other, to any of a disk's tracts.
    fn start_writing(&self, at: usize, disk: &AttachedDisk, tracts: u64) {
        let (env, known, disk) = (self.client.env(), self.known.clone(), disk.disk.clone());
        let spawning = env.clone();
        drop(spawning.spawn("writer", async move {
            for number in 2_u64.. {
                env.sleep(Duration::from_millis(20 + env.random_below(400))).await;
                let tract = env.random_below(tracts);
                let began = env.now();
                {
                    let mut known = lock(&known);
                    if known.stopped {
                        return;
                    }
                    known.under_way.insert(at, began);
                }
                let done = disk
                    .write(tract * TRACT_BYTES, data(number), Durability::Durable)
                    .await;
                let mut known = lock(&known);
                known.under_way.remove(&at);
                known.writes += 1;
                known.longest = known.longest.max(env.now().since(began));
                match done {
                    Ok(()) => drop(known.content.insert((at, tract), number)),
                    Err(error) => {
                        known.failure.get_or_insert(format!("a write fails: {error}"));
                        return;
                    }
                }
            }
        }));
    }

    /// Loses one node after the other, each when what the one before had is on two nodes again.
    async fn lose_nodes(&self, placement: &Placement, disks: &Disks) -> Result<u64, String> {
        let (env, mut late) = (&self.env, Some(&self.late));
        let mut gone: Option<&Host> = None;
        let faults = 1 + env.random_below(4);
        for fault in 0..faults {
            let living: Vec<&Host> = self
                .hosts
                .iter()
                .filter(|host| gone.is_none_or(|gone| gone.machine.name() != host.machine.name()))
                .collect();
            let host = living[env.random_below(living.len() as u64) as usize];
            host.machine.crash();
            env.sleep(Duration::from_millis(500 + env.random_below(30_000)))
                .await;
            // Half of the time the others have to do without it, for as long as it takes them.
            let without = env.random_below(2) == 0;
            if without && !self.is_whole_without(placement).await {
                return Err(format!(
                    "rows are never whole without the node of fault {fault}: {}",
                    rows_text(placement).await
                ));
            }
            match env.random_below(4) {
                // Its place is taken by one that comes late, for good.
                0 if late.is_some() => {
                    if let Some(late) = late.take() {
                        late.replace(env, Duration::from_secs(1)).await;
                    }
                    gone = Some(host);
                }
                1 if without => host.replace(env, Duration::from_secs(1)).await,
                // It never comes back, and nobody in its place: what is promised fits the others.
                2 if gone.is_none() && fault + 1 == faults => gone = Some(host),
                _ => host.revive(),
            }
            let trouble = || disks.iter().find_map(|(disk, _)| disk.replicas.trouble());
            if !whole(env, placement, Replication::ALL[1]).await {
                return Err(format!(
                    "rows are never whole again after fault {fault}: {}; {:?}",
                    rows_text(placement).await,
                    trouble().map(|waiting| waiting.why)
                ));
            }
            if let Some(failure) = lock(&self.known).failure.take() {
                return Err(failure);
            }
        }
        Ok(faults)
    }

    /// Whether every row has what it needs without the node that is away: then its disk may be lost for good.
    async fn is_whole_without(&self, placement: &Placement) -> bool {
        // Long enough for it to be declared dead.
        self.env.sleep(Duration::from_secs(8)).await;
        whole(&self.env, placement, Replication::ALL[1]).await
    }

    /// Every write that is under way ends.
    async fn all_end(&self, disks: &Disks) -> Result<(), String> {
        lock(&self.known).stopped = true;
        let began = self.env.now();
        loop {
            let waiting = lock(&self.known).under_way.keys().next().copied();
            let Some(at) = waiting else {
                return lock(&self.known).failure.take().map_or(Ok(()), Err);
            };
            if self.env.now().since(began) >= BOUND {
                return Err(stuck(at, &disks[at].0));
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
    }

    async fn compare(&self, disks: &Disks) -> Result<(), String> {
        let content = lock(&self.known).content.clone();
        for ((at, tract), number) in content {
            let read = disks[at].0.disk.read(tract * TRACT_BYTES, BLOCK_BYTES as u32);
            let found = read.await.map_err(|error| error.to_string())?;
            if found != [Piece::Data(data(number))] {
                return Err(format!(
                    "tract {tract} of disk {at} does not hold what was written last"
                ));
            }
        }
        Ok(())
    }
}

fn setting() -> Setting {
    Setting {
        nodes: 0,
        model: None,
        node_tracts: 0,
        copies: 2,
        mode: Mode::WriteThrough,
        flush: FlushPolicy::Durable,
        segment_tracts: 1,
        blocks: 0,
    }
}

fn stuck(at: usize, disk: &AttachedDisk) -> String {
    format!(
        "a write to disk {at} has not ended {} s after the last fault; it waits: {:?}",
        BOUND.as_secs(),
        disk.replicas.trouble().map(|waiting| waiting.why)
    )
}

/// Rows of two copies that are not whole, for people.
async fn rows_text(placement: &Placement) -> String {
    let rows = placement.rows(Replication::ALL[1]).await.unwrap_or_default();
    let nodes = placement.nodes().await.unwrap_or_default();
    let used: Vec<String> = nodes
        .iter()
        .map(|node| {
            format!(
                "{} {}/{} {:?}",
                node.address, node.used_tracts, node.capacity_tracts, node.condition
            )
        })
        .collect();
    let broken = rows
        .iter()
        .filter(|row| row.active().count() != 2 || row.replicas.len() != 2);
    let broken: Vec<String> = broken
        .map(|row| {
            let replicas = row.replicas.iter();
            let replicas: Vec<String> = replicas
                .map(|replica| format!("{} {:?}", replica.address, replica.state))
                .collect();
            format!("{}: {}", row.index.0, replicas.join(", "))
        })
        .collect();
    format!(
        "{} of {} rows ({}); nodes {}",
        broken.len(),
        rows.len(),
        broken.join("; "),
        used.join(", ")
    )
}
