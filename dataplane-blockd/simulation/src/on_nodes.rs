//! One random history of one disk on production nodes: the production client through crashes of nodes and clients, nodes
//! that stay away and are replaced, disks lost for good, and forced attaches, against the model.

use crate::{
    check::Promises,
    cluster::{Cluster, Host, Size, TENANT, access, placement, replica_options, whole},
    user::{
        self, BLOCK_BYTES, BLOCKS, Habits, Known, Recorded, SNAPSHOT_TRACT_BYTES, content, lock,
        snapshot_store, snapshots_hold,
    },
};
use bytes::Bytes;
use firn_blockd_client::{
    AttachFailed, Attachable, AttachedDisk, DiskSettings, Mode, Shape, attach, key_check, tracts_for,
};
use firn_blockd_disk::journal::JournalOptions;
use firn_blockd_disk::{AttachError, Copy, FlushPolicy, Regions, ReplicaError, Replicas, Unit};
use firn_blockd_node::DiskModel;
use firn_blockd_placement::NewDisk;
use firn_blockd_protocol::{DiskId, Replication};
use firn_blockd_snapshot::{Catalogue, SnapshotGate};
use firn_env::{
    Env,
    sim::{Machine, Seeded},
};
use firn_table::MemoryTable;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const KEY: [u8; 32] = [5; 32];
/// Of a journal, and of its files: small enough to be full now and then, and given back piece by piece; or enough for a longer while,
/// of which nothing is given back, and little is made durable by itself, until all of it was given to nodes.
const JOURNAL_BLOCKS: [(u64, u64); 2] = [(40, 8), (160, 80)];
/// What slow nodes' disks are.
const SLOW: DiskModel = DiskModel {
    seek: Duration::from_millis(8),
    bytes_per_second: 128_000_000,
    sync: Duration::ZERO,
    journal_apart: false,
};
/// Looks at a journal whose nodes are back, one each 2 ms: they need some seconds at most.
const LOOKS_AT_JOURNAL_MAX: usize = 5000;
/// So much longer catches up who has a user, who is told meanwhile that something is durable and writes it again; and half of
/// those who have none, who then come to what they give again.
const LONGER: u64 = 6;
/// Times a row may turn out not to be whole: each is a node that was declared dead a moment after it came back.
const LOOKS_MAX: usize = 8;

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
    /// Snapshots that were taken meanwhile, restored and compared.
    pub snapshots: u64,
    /// Requests that a local journal answered while nodes were away.
    pub journaled: u64,
    /// Attaches that went on with a journal, and those that put one aside.
    pub journals: (u64, u64),
    /// Attaches that died before all of a journal was on nodes.
    pub interrupted: u64,
    /// A hash of all that happened.
    pub trace: u64,
}

#[derive(Clone)]
struct Plan {
    mode: Mode,
    flush: FlushPolicy,
    replication: Replication,
    /// Clients have a journal, each on its machine, of so many blocks, and of so many in each of its files.
    journal: Option<(u64, u64)>,
    habits: Habits,
    /// Blocks that may be answered and not durable. With few, a journal gives a block again only when nodes have what it gave
    /// before, and nothing takes its place in memory.
    dirty_blocks: u64,
    /// Nodes take their time, so that much is under way while a client catches up.
    slow: bool,
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

/// Runs the history of a seed.
pub fn run(seed: u64) -> Report {
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
    let journaled = mode != Mode::WriteThrough && random.chance(2, 3);
    let (habits, dirty_blocks) = if !journaled {
        (Habits::ANY, 12)
    } else if random.chance(1, 3) {
        (Habits::AGAIN, 1)
    } else {
        let habits = Habits {
            first_blocks: *random.pick(&[4, BLOCKS]),
            durable_each: *random.pick(&[3, 40]),
            flush_each: *random.pick(&[1, 12]),
        };
        (habits, *random.pick(&[12, 1]))
    };
    let plan = Plan {
        mode,
        flush,
        replication,
        journal: journaled.then(|| *random.pick(&JOURNAL_BLOCKS)),
        habits,
        dirty_blocks,
        slow: journaled && random.chance(2, 3),
    };
    let mut report = Report {
        mode: plan.name(),
        ..Report::default()
    };
    let nodes = replication.copies() + 1 + random.index(2);
    if let Err(failure) = play(seed, nodes, &plan, &mut report) {
        let copies = replication.copies();
        report.failure = Some(format!(
            "{}, {copies} copies on {nodes} nodes: {failure}",
            plan.name()
        ));
    }
    report
}

fn play(seed: u64, nodes: usize, plan: &Plan, report: &mut Report) -> Result<(), String> {
    let size = Size {
        model: plan.slow.then_some(SLOW),
        ..Size::SMALL
    };
    let cluster = Cluster::new(seed, nodes, size)?;
    let clients = ["client0", "client1"].map(|name| cluster.simulation.machine(name));
    let (env, table) = (cluster.simulation.env(), cluster.table.clone());
    let (hosts, plan) = (cluster.hosts.clone(), plan.clone());
    let known = Arc::new(Mutex::new(Known::default()));
    let model = known.clone();
    let snapshots = snapshot_store(&env);
    let lives = async move {
        let placement = placement(&env, &table);
        if !whole(&env, &placement, plan.replication).await {
            return Err("the rows are never built".to_owned());
        }
        let disk = create(&env, &table, &plan).await?;
        lock(&model).promises = Promises::new(vec![0; BLOCKS as usize]);
        let (mut current, mut attaches, mut lost) = (0, 0, 0);
        let (mut journals, mut interrupted) = ((0, 0), 0);
        // Who had the disk last.
        let mut before = None;
        let journaled = plan.journal.is_some();
        for _ in 0..1 + 5 * u64::from(journaled) + env.random_below(3) {
            let machine = &clients[current];
            if journaled {
                // One process uses a journal: whoever was left behind here is gone.
                machine.crash();
                machine.restart();
            }
            let attached = attach_on(&machine.env(), &table, disk, &plan, true).await?;
            attaches += 1;
            let goes_on = is_journaling(&attached);
            journals.0 += u64::from(goes_on);
            journals.1 += u64::from(attached.salvaged.is_some());
            let same_machine = before == Some(current);
            before = Some(current);
            if journaled && env.random_below(4) < if goes_on { 3 } else { 1 } {
                // It dies before nodes have all that its journal has, and another goes on from there.
                lock(&model).begin_life(same_machine);
                let longer = [1, LONGER][env.random_below(2) as usize];
                env.sleep(catching_up(&env, &plan, longer)).await;
                interrupted += u64::from(is_journaling(&attached));
                stop(machine, &env);
                current = env.random_below(2) as usize;
                continue;
            }
            lost += check(&env, &attached, &model, &plan, same_machine).await?;
            let recorded = Recorded {
                disk: attached.device.clone(),
                known: model.clone(),
                life: lock(&model).life,
                writes_through: plan.mode == Mode::WriteThrough,
                flushes: plan.flush == FlushPolicy::Durable,
            };
            let gate = SnapshotGate::new(recorded, SNAPSHOT_TRACT_BYTES);
            let catalogue = Catalogue::new(snapshots.clone(), disk, &KEY);
            user::start(&machine.env(), &gate, catalogue, plan.habits);
            if journaled && env.random_below(3) > 0 {
                env.sleep(Duration::from_millis(env.random_below(300))).await;
            } else {
                trouble(&env, &hosts, &placement, &plan).await;
            }
            if journaled && env.random_below(4) > 0 {
                // No node is there, and the client does not live to see them again, or not for long.
                hosts.iter().for_each(|host| host.machine.crash());
                if env.random_below(3) == 0 {
                    machine.crash_at_any(1 + env.random_below(30));
                }
                env.sleep(Duration::from_millis(300 + env.random_below(2000)))
                    .await;
                if env.random_below(3) > 0 {
                    hosts.iter().for_each(Host::revive);
                    catches_up(&env, &attached).await;
                    env.sleep(catching_up(&env, &plan, LONGER)).await;
                }
                machine.faults().disarm();
                stop(machine, &env);
                let gone = hosts.iter().filter(|host| !host.machine.is_running());
                gone.for_each(Host::revive);
            } else if env.random_below(2) == 0 {
                // It goes on, and the next attach takes the disk away from it.
                drop(attached);
            } else {
                stop(machine, &env);
            }
            // With a journal, the same machine comes back half of the time, and goes on with it.
            if !journaled || env.random_below(2) == 0 {
                current = 1 - current;
            }
        }
        for host in &hosts {
            if !host.machine.is_running() {
                host.revive();
            }
        }
        if !whole(&env, &placement, plan.replication).await {
            return Err("the rows never became whole again".to_owned());
        }
        if journaled {
            clients[current].crash();
            clients[current].restart();
        }
        let attached = attach_on(&clients[current].env(), &table, disk, &plan, true).await?;
        attaches += 1;
        lost += check(&env, &attached, &model, &plan, before == Some(current)).await?;
        let looking = (&env, &placement);
        let catalogue = Catalogue::new(snapshots, disk, &KEY);
        let held = snapshots_hold(&env, &catalogue, &model).await?;
        copies_agree(looking, &attached, plan.replication, plan.mode).await?;
        let wrong = lock(&model).wrong.take();
        wrong.map_or(Ok((attaches, lost, held, journals, interrupted)), Err)
    };
    let outcome = cluster.simulation.run(lives).map_err(|error| error.to_string());
    report.trace = cluster.simulation.trace_hash();
    report.writes = lock(&known).writes;
    report.journaled = lock(&known).journaled;
    let (attaches, lost, held, journals, interrupted) = outcome??;
    (report.journals, report.interrupted) = (journals, interrupted);
    report.snapshots = held;
    report.attaches = attaches;
    report.lost = lost as u64;
    Ok(())
}

/// How long a client catches up before it dies: less than it may need.
fn catching_up(env: &Env, plan: &Plan, longer: u64) -> Duration {
    let most = if plan.slow { [10, 40, 160] } else { [2, 8, 30] };
    Duration::from_millis(env.random_below(longer * most[env.random_below(3) as usize]))
}

fn is_journaling(attached: &AttachedDisk) -> bool {
    let status = attached.device.status();
    status.is_some_and(|status| status.session.is_some())
}

/// Waits until nodes are given what a journal has; not for ever, since its client may be gone.
async fn catches_up(env: &Env, attached: &AttachedDisk) {
    let waiting = || attached.device.status().map_or(0, |status| status.waiting);
    let mut before = waiting();
    for _ in 0..LOOKS_AT_JOURNAL_MAX {
        env.sleep(Duration::from_millis(2)).await;
        let now = waiting();
        if now < before {
            return;
        }
        before = now;
    }
}

/// A client's machine loses its power, or its processes only, and is there again.
fn stop(machine: &Machine, env: &Env) {
    if env.random_below(3) == 0 {
        machine.kill();
    } else {
        machine.crash();
    }
    machine.restart();
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
        Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => Shape::InPlace {
            segment_tracts: 3,
            unit_blocks: 2,
        },
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
        dirty_bytes_max: plan.dirty_blocks * BLOCK_BYTES as u64,
        regions: Regions {
            blocks: 4,
            idle_kept: 1,
        },
        force,
        replicas: replica_options(),
        journal: plan.journal.map(|(blocks, file_blocks)| JournalOptions {
            bytes_max: blocks * BLOCK_BYTES as u64,
            file_bytes: file_blocks * BLOCK_BYTES as u64,
            after: Duration::from_millis(300),
            ..JournalOptions::new(env.clone(), "journal", 0)
        }),
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

/// The disk after an attach against the model; from here on it is known again, and what the attach before is told is wrong.
async fn check(
    env: &Env,
    attached: &AttachedDisk,
    known: &Mutex<Known>,
    plan: &Plan,
    same_machine: bool,
) -> Result<usize, String> {
    // All that the loser was told before this moment counts.
    let promises = {
        let mut known = lock(known);
        known.begin_life(same_machine);
        known.epoch = 0;
        let kept = std::mem::take(&mut known.kept);
        let mut promises = known.promises.clone();
        // What a journal answered is there again where it lies, and all that was asked before.
        promises.durable.extend(0..kept);
        promises
    };
    let found = env
        .timeout(Duration::from_secs(300), content(&attached.device))
        .await
        .map_err(|_| "the disk cannot be read for minutes".to_owned())?
        .map_err(|error| format!("the disk cannot be read: {error}"))?;
    // What the journal has is known when the disk has it.
    env.timeout(Duration::from_secs(300), attached.device.settle())
        .await
        .map_err(|_| "the journal is never given to the disk".to_owned())?
        .map_err(|error| format!("the journal cannot be given to the disk: {error}"))?;
    let given = content(&attached.disk).await.map_err(|error| error.to_string())?;
    if given != found {
        return Err(format!(
            "the disk holds {given:?} when its journal is empty, and was read as {found:?} before"
        ));
    }
    let lost = match plan.mode {
        Mode::Log => promises.check_prefix(&found)?,
        Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => promises.check_epochs(&found)?,
    };
    lock(known).promises = Promises::new(found);
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
    // What a journal gave to the disk may still be on its way to the slower replica.
    env.timeout(Duration::from_secs(300), attached.disk.sync())
        .await
        .map_err(|_| "the disk is never durable".to_owned())?
        .map_err(|error| format!("the disk cannot be made durable: {error}"))?;
    let wanted = replication.copies();
    for number in 0..BLOCKS {
        let mut looks = 0;
        loop {
            let copies = attached
                .replicas
                .load_all(Unit::Block(number))
                .await
                .map_err(|error| error.to_string())?;
            let active = |copy: &Copy| *copy != Copy::Joining;
            let copies: Vec<Copy> = copies.into_iter().filter(active).collect();
            let body = |copy: &Copy| match copy {
                Copy::Holds(stored) => Some(stored.body.clone()),
                Copy::Empty | Copy::Joining => None,
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
