//! One random history of one disk on production nodes: the production client through crashes of nodes and clients, nodes
//! that stay away and are replaced, disks lost for good, and forced attaches, against the model.

use crate::{
    check::{Piece, Promises},
    cluster::{Cluster, Host, Size, TENANT, access, placement, replica_options, whole},
};
use bytes::Bytes;
use firn_blockd_client::{
    AttachFailed, Attachable, AttachedDisk, DiskSettings, Mode, Shape, attach, key_check, tracts_for,
};
use firn_blockd_disk::{AttachError, Copy, FlushPolicy, ReplicaError, Replicas, Unit, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Piece as Part};
use firn_blockd_placement::NewDisk;
use firn_blockd_protocol::{DiskId, Replication};
use firn_env::{Env, Task, sim::Seeded};
use firn_table::MemoryTable;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

const BLOCK_BYTES: usize = 4096;
const KEY: [u8; 32] = [5; 32];
/// Blocks of the disk: over three tracts in place, and a log that goes round many times.
const BLOCKS: u64 = 18;
/// Times a row may turn out not to be whole: each is a node that was declared dead a moment after it came back.
const LOOKS_MAX: usize = 8;
/// Requests under way at once.
const DEPTH: usize = 6;

/// What a history came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The mode's name.
    pub mode: &'static str,
    /// Why it failed.
    pub failure: Option<String>,
    /// Attaches after a crash or by force.
    pub attaches: u64,
    /// Writes of blocks.
    pub writes: u64,
    /// Of them, lost in crashes.
    pub lost: u64,
    /// A hash of all that happened.
    pub trace: u64,
}

/// What the users of a disk know.
#[derive(Default)]
struct Known {
    promises: Promises,
    epoch: u64,
    next_number: u64,
    writes: u64,
    /// Raised at each attach: what an earlier attach is told counts for nothing.
    life: u64,
    /// What must not have happened.
    wrong: Option<String>,
}

#[derive(Clone)]
struct Plan {
    mode: Mode,
    flush: FlushPolicy,
    replication: Replication,
}

impl Plan {
    fn name(&self) -> &'static str {
        match (self.mode, self.flush) {
            (Mode::WriteThrough, _) => "nodes: write-through",
            (Mode::WriteBack, _) => "nodes: write-back",
            (Mode::FlushEpoch, _) => "nodes: flush-epoch",
            (Mode::Log, FlushPolicy::Durable) => "nodes: log durable",
            (Mode::Log, FlushPolicy::Ordered { .. }) => "nodes: log ordered",
        }
    }
}

/// Bugs that histories must notice, planted in clients and nodes. Other guards of nodes have scenarios of their own, in the
/// tests of `firn-blockd-node`.
pub const BUGS: [&str; 2] = ["client.one_replica_suffices", "store.acknowledge_before_sync"];
/// Histories within which each must be noticed.
pub const SEEDS_MAX: u64 = 300;

/// The first seed that notices a planted bug, and what it says.
pub fn caught(bug: &str) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| run(seed, Some(bug)).failure.map(|failure| (seed, failure)))
}

/// Runs the history of a seed, with a bug planted on all machines if one is named.
pub fn run(seed: u64, planted: Option<&str>) -> Report {
    let mut random = Seeded::new(seed, 78);
    let replication = *random.pick(&[
        Replication::ALL[0],
        Replication::ALL[1],
        Replication::ALL[1],
        Replication::ALL[2],
    ]);
    let ordered = FlushPolicy::Ordered { lag_ms_max: 2000 };
    let (mode, flush) = *random.pick(&[
        (Mode::WriteThrough, FlushPolicy::Durable),
        (Mode::WriteBack, FlushPolicy::Durable),
        (Mode::FlushEpoch, ordered),
        (Mode::Log, FlushPolicy::Durable),
        (Mode::Log, ordered),
    ]);
    let plan = Plan {
        mode,
        flush,
        replication,
    };
    let mut report = Report {
        mode: plan.name(),
        ..Report::default()
    };
    let nodes = replication.copies() + 1 + random.index(2);
    if let Err(failure) = play(seed, nodes, &plan, planted, &mut report) {
        let copies = replication.copies();
        report.failure = Some(format!(
            "{}, {copies} copies on {nodes} nodes: {failure}",
            plan.name()
        ));
    }
    report
}

fn play(
    seed: u64,
    nodes: usize,
    plan: &Plan,
    planted: Option<&str>,
    report: &mut Report,
) -> Result<(), String> {
    let cluster = Cluster::new(seed, nodes, Size::SMALL)?;
    let clients = ["client0", "client1"].map(|name| cluster.simulation.machine(name));
    for machine in cluster.hosts.iter().map(|host| &host.machine).chain(&clients) {
        if let Some(bug) = planted {
            machine.faults().plant(bug);
        }
    }
    let (env, table) = (cluster.simulation.env(), cluster.table.clone());
    let (hosts, plan) = (cluster.hosts.clone(), plan.clone());
    let known = Arc::new(Mutex::new(Known::default()));
    let model = known.clone();
    let lives = async move {
        let placement = placement(&env, &table);
        if !whole(&env, &placement, plan.replication).await {
            return Err("the rows are never built".to_owned());
        }
        let disk = create(&env, &table, &plan).await?;
        lock(&model).promises = Promises::new(vec![0; BLOCKS as usize]);
        let (mut user, mut attaches, mut lost) = (0, 0, 0);
        for _ in 0..1 + env.random_below(3) {
            let machine = &clients[user];
            let attached = attach_on(&machine.env(), &table, disk, &plan, true).await?;
            attaches += 1;
            lost += check(&env, &attached, &model, plan.mode).await?;
            let (using, life) = (machine.env(), lock(&model).life);
            let (working, told, mode, flush) = (attached.disk.clone(), model.clone(), plan.mode, plan.flush);
            let spawning = using.clone();
            drop(spawning.spawn("user", async move {
                let user = Arc::new(User {
                    env: using,
                    disk: working,
                    known: told,
                    life,
                    writes_through: mode == Mode::WriteThrough,
                    flushes: flush == FlushPolicy::Durable,
                });
                user.work().await;
            }));
            trouble(&env, &hosts, &placement, &plan).await;
            if env.random_below(2) == 0 {
                // It goes on, and the next attach takes the disk away from it.
                drop(attached);
            } else {
                machine.crash();
                machine.restart();
            }
            user = 1 - user;
        }
        for host in &hosts {
            if !host.machine.is_running() {
                host.revive();
            }
        }
        if !whole(&env, &placement, plan.replication).await {
            return Err("the rows never became whole again".to_owned());
        }
        let attached = attach_on(&clients[user].env(), &table, disk, &plan, true).await?;
        attaches += 1;
        lost += check(&env, &attached, &model, plan.mode).await?;
        let looking = (&env, &placement);
        copies_agree(looking, &attached, plan.replication, plan.mode).await?;
        let wrong = lock(&model).wrong.take();
        wrong.map_or(Ok((attaches, lost)), Err)
    };
    let outcome = cluster.simulation.run(lives).map_err(|error| error.to_string());
    report.trace = cluster.simulation.trace_hash();
    report.writes = lock(&known).writes;
    let (attaches, lost) = outcome??;
    report.attaches = attaches;
    report.lost = lost as u64;
    Ok(())
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().expect("no panic under this lock")
}

/// Nodes crash, stay away and come back; one may lose its disk for good if another copy is whole.
async fn trouble(env: &Env, hosts: &[Host], placement: &firn_blockd_placement::Placement, plan: &Plan) {
    for _ in 0..1 + env.random_below(3) {
        env.sleep(Duration::from_millis(env.random_below(3000))).await;
        let host = &hosts[env.random_below(hosts.len() as u64) as usize];
        match env.random_below(4) {
            0 => host.machine.crash(),
            1 => host.machine.kill(),
            2 if plan.replication.copies() > 1 && whole(env, placement, plan.replication).await => {
                host.replace(env, Duration::from_secs(6)).await;
                whole(env, placement, plan.replication).await;
                continue;
            }
            _ => {
                host.machine.crash_at_any(1 + env.random_below(60));
                env.sleep(Duration::from_secs(2)).await;
                host.machine.faults().disarm();
            }
        }
        // Sometimes short enough to be missed by nobody, sometimes long enough to be taken for dead.
        env.sleep(Duration::from_millis(env.random_below(9000))).await;
        if !host.machine.is_running() {
            host.revive();
        }
    }
}

async fn create(env: &Env, table: &MemoryTable, plan: &Plan) -> Result<DiskId, String> {
    let shape = match plan.mode {
        Mode::Log => Shape::Log {
            block_bytes: BLOCK_BYTES as u32,
            physical_blocks: BLOCKS + 10,
        },
        Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => Shape::InPlace { segment_tracts: 3 },
    };
    let settings =
        DiskSettings::new(shape, plan.mode, Some(key_check(&KEY))).map_err(|error| error.to_string())?;
    let size_bytes = BLOCKS * BLOCK_BYTES as u64;
    let new = NewDisk {
        tenant: TENANT,
        name: "disk".into(),
        size_bytes,
        tracts: Some(tracts_for(&settings, size_bytes).map_err(|error| error.to_string())?),
        replication: plan.replication,
        settings: settings.to_text(),
    };
    let placement = placement(env, table);
    for _ in 0..100 {
        match placement.create_disk(new.clone()).await {
            Ok(record) => return Ok(record.disk),
            Err(_) => env.sleep(Duration::from_millis(200)).await,
        }
    }
    Err("the disk cannot be created".into())
}

/// Attaches, as often as it takes while nodes are away.
async fn attach_on(
    env: &Env,
    table: &MemoryTable,
    disk: DiskId,
    plan: &Plan,
    force: bool,
) -> Result<AttachedDisk, String> {
    let wanted = Attachable {
        flush: plan.flush,
        dirty_bytes_max: 12 * BLOCK_BYTES as u64,
        region_blocks: 4,
        force,
        replicas: replica_options(),
        ..Attachable::new(disk, KEY, "simulation")
    };
    let placement = placement(env, table);
    for _ in 0..20 {
        match attach(env, &placement, &access(env), wanted.clone()).await {
            Ok(attached) => return Ok(attached),
            Err(AttachFailed::Recovery(AttachError::Replica(ReplicaError::Unreachable { .. }))) => {}
            Err(AttachFailed::Placement(_)) => {}
            Err(error) => return Err(format!("the disk cannot be attached: {error}")),
        }
        env.sleep(Duration::from_secs(1)).await;
    }
    Err("the disk cannot be attached: nodes are away all the time".into())
}

/// The whole disk, as numbers.
async fn content(disk: &VirtualDisk) -> Result<Vec<u64>, DeviceError> {
    let parts = disk.read(0, (BLOCKS as usize * BLOCK_BYTES) as u32).await?;
    let mut numbers = Vec::new();
    for part in parts {
        match part {
            Part::Zeroes(length) => numbers.extend(vec![0; length as usize / BLOCK_BYTES]),
            Part::Data(data) => numbers.extend(data.chunks(BLOCK_BYTES).map(number)),
        }
    }
    Ok(numbers)
}

fn block(number: u64) -> Bytes {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8).into()
}

/// The number that fills a block; one that no write has if it is filled with anything else.
fn number(data: &[u8]) -> u64 {
    let number = data
        .first_chunk::<8>()
        .map_or(u64::MAX, |first| u64::from_le_bytes(*first));
    if data == block(number) { number } else { u64::MAX }
}

/// The disk after an attach against the model; from here on it is known again, and what the attach before is told is wrong.
async fn check(
    env: &Env,
    attached: &AttachedDisk,
    known: &Mutex<Known>,
    mode: Mode,
) -> Result<usize, String> {
    // All that the loser was told before this moment counts.
    let promises = {
        let mut known = lock(known);
        known.life += 1;
        known.epoch = 0;
        known.promises.clone()
    };
    let content = env
        .timeout(Duration::from_secs(300), content(&attached.disk))
        .await
        .map_err(|_| "the disk cannot be read for minutes".to_owned())?
        .map_err(|error| format!("the disk cannot be read: {error}"))?;
    let lost = match mode {
        Mode::Log => promises.check_prefix(&content)?,
        Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => promises.check_epochs(&content)?,
    };
    lock(known).promises = Promises::new(content);
    Ok(lost)
}

/// All replicas of every block in place hold the same, and there are as many as there should be.
///
/// That the rows were whole before says nothing of now: a node that was away for almost as long as it takes to be declared dead
/// may be declared so after it came back and before its first heartbeat. So a row that lacks a replica is looked at again when
/// it has one; replicas that differ are wrong at any time.
async fn copies_agree(
    (env, placement): (&Env, &firn_blockd_placement::Placement),
    attached: &AttachedDisk,
    replication: Replication,
    mode: Mode,
) -> Result<(), String> {
    if mode == Mode::Log {
        return Ok(());
    }
    let wanted = replication.copies();
    for number in 0..BLOCKS {
        let mut looks = 0;
        loop {
            let copies = attached
                .replicas
                .load_all(Unit::Block(number))
                .await
                .map_err(|error| error.to_string())?;
            let body = |copy: &Copy| match copy {
                Copy::Holds(stored) => Some(stored.body.clone()),
                Copy::Empty => None,
                Copy::Damaged => Some(firn_blockd_disk::Body::Data(Bytes::from_static(b"damaged"))),
            };
            if copies.iter().any(|copy| body(copy) != body(&copies[0])) {
                return Err(format!("the copies of block {number} differ"));
            }
            if copies.len() == wanted {
                break;
            }
            looks += 1;
            if looks > LOOKS_MAX || !whole(env, placement, replication).await {
                let found = copies.len();
                return Err(format!("block {number} has {found} copies instead of {wanted}"));
            }
            // The row may have been whole because nobody is declared dead yet.
            env.sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

/// Requests under way; each tells whether the disk is still there.
type Under = FuturesUnordered<Task<bool>>;

/// What an answer promises.
enum Promised {
    Nothing,
    Pieces(std::ops::Range<usize>),
    Prefix(usize),
}

struct User {
    env: Env,
    disk: VirtualDisk,
    known: Arc<Mutex<Known>>,
    life: u64,
    writes_through: bool,
    flushes: bool,
}

impl User {
    /// Writes, zeroes, flushes and reads at random, some at once, until the disk is taken away.
    async fn work(self: Arc<Self>) {
        let mut under_way: Under = FuturesUnordered::new();
        loop {
            if under_way.len() >= DEPTH || (!under_way.is_empty() && self.env.random_below(3) == 0) {
                if let Some(Ok(false) | Err(_)) = under_way.next().await {
                    return;
                }
                continue;
            }
            match self.env.random_below(12) {
                0..8 => self.start_write(&under_way),
                8 | 9 => self.start_flush(&under_way),
                10 => {
                    let pause = self.env.random_below(200);
                    self.env.sleep(Duration::from_millis(pause)).await;
                }
                _ => {
                    // Everything that was asked is answered, so what is read is known.
                    while let Some(answer) = under_way.next().await {
                        if !matches!(answer, Ok(true)) {
                            return;
                        }
                    }
                    if !self.read().await {
                        return;
                    }
                }
            }
        }
    }

    /// The engine takes a request when its future is polled first, so that is the order of the model. Its answer counts from
    /// the moment it comes: the task looks at nothing else.
    fn start(
        self: &Arc<Self>,
        under_way: &Under,
        mut request: BoxFuture<'static, Result<(), DeviceError>>,
        promised: Promised,
    ) {
        let answered = (&mut request).now_or_never();
        let user = self.clone();
        under_way.push(self.env.spawn("request", async move {
            let answer = match answered {
                Some(answer) => answer,
                None => request.await,
            };
            user.answered(answer, promised)
        }));
    }

    fn start_write(self: &Arc<Self>, under_way: &Under) {
        let first = self.env.random_below(BLOCKS);
        let count = (1 + self.env.random_below(3)).min(BLOCKS - first);
        let zeroes = self.env.random_below(6) == 0;
        let durable = self.env.random_below(5) == 0;
        let (pieces, numbers) = {
            let mut known = lock(&self.known);
            if known.life != self.life {
                return;
            }
            let begin = known.promises.pieces.len();
            let mut numbers = Vec::new();
            for block in first..first + count {
                known.next_number += 1;
                known.writes += 1;
                let number = if zeroes { 0 } else { known.next_number };
                let epoch = known.epoch;
                known.promises.pieces.push(Piece { block, number, epoch });
                numbers.push(number);
            }
            (begin..begin + count as usize, numbers)
        };
        let promised = if durable || self.writes_through {
            Promised::Pieces(pieces)
        } else {
            Promised::Nothing
        };
        let (disk, offset) = (self.disk.clone(), first * BLOCK_BYTES as u64);
        let durability = if durable {
            Durability::Durable
        } else {
            Durability::Acknowledged
        };
        let data: Bytes = numbers
            .iter()
            .flat_map(|number| block(*number))
            .collect::<Vec<u8>>()
            .into();
        let request = async move {
            if zeroes {
                disk.write_zeroes(offset, data.len() as u64, true, durability)
                    .await
            } else {
                disk.write(offset, data, durability).await
            }
        };
        self.start(under_way, request.boxed(), promised);
    }

    fn start_flush(self: &Arc<Self>, under_way: &Under) {
        let prefix = {
            let mut known = lock(&self.known);
            if known.life != self.life {
                return;
            }
            let epoch = known.epoch;
            if known
                .promises
                .pieces
                .last()
                .is_some_and(|piece| piece.epoch == epoch)
            {
                known.epoch += 1;
            }
            known.promises.pieces.len()
        };
        let promised = if self.flushes {
            Promised::Prefix(prefix)
        } else {
            Promised::Nothing
        };
        let disk = self.disk.clone();
        self.start(under_way, async move { disk.flush().await }.boxed(), promised);
    }

    /// False: the disk is gone.
    fn answered(&self, answer: Result<(), DeviceError>, promised: Promised) -> bool {
        let mut known = lock(&self.known);
        let gone = known.life != self.life;
        match (answer, promised) {
            (Ok(()), Promised::Nothing) => !gone,
            (Ok(()), Promised::Pieces(_) | Promised::Prefix(_)) if gone => {
                let wrong = "whoever lost the disk was told that something is durable";
                known.wrong.get_or_insert_with(|| wrong.to_owned());
                false
            }
            (Ok(()), Promised::Pieces(pieces)) => {
                known.promises.durable.extend(pieces);
                true
            }
            (Ok(()), Promised::Prefix(prefix)) => {
                known.promises.prefix = known.promises.prefix.max(prefix);
                true
            }
            (Err(DeviceError::Fenced), _) => false,
            (Err(error), _) => {
                known
                    .wrong
                    .get_or_insert_with(|| format!("a request failed: {error}"));
                false
            }
        }
    }

    async fn read(&self) -> bool {
        let expected = {
            let known = lock(&self.known);
            if known.life != self.life {
                return false;
            }
            known.promises.newest(BLOCKS)
        };
        match content(&self.disk).await {
            Ok(found) => {
                let mut known = lock(&self.known);
                if known.life == self.life && found != expected {
                    let wrong = format!("a reader found {found:?} instead of {expected:?}");
                    known.wrong.get_or_insert(wrong);
                }
                true
            }
            Err(DeviceError::Fenced) => false,
            Err(error) => {
                let mut known = lock(&self.known);
                known
                    .wrong
                    .get_or_insert_with(|| format!("a read failed: {error}"));
                false
            }
        }
    }
}
