//! `status`, `top`, `drain`: what a cluster and its disks do.

use crate::{
    admin::{self, Command, DiskStatus, Reply},
    cluster::{Outside, environment},
    config::Config,
    failure::Failure,
};
use firn_blockd_placement::{NodeCondition, NodeRecord, NodeState, Placement, Promises};
use firn_blockd_protocol::{NodeId, Replication, Row};
use firn_env::{Env, eprintln, print, println};
use firn_quantity::Size;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::Path,
    time::Duration,
};

/// Between two looks at how rows move.
const REBALANCE_LOOK: Duration = Duration::from_secs(2);
/// Looks without any change after which nothing more is expected: a minute, far longer than a coordinator's round.
const STILL_LOOKS: u32 = 30;

/// Between two looks at how a node empties.
const DRAIN_LOOK: Duration = Duration::from_secs(2);
/// Looks without a row less after which a drain is said to be stuck: ten minutes, since a row of a large disk takes some to copy.
const STILL_DRAINING_LOOKS: u32 = 300;
/// Looks without any change after which whole rows are as level as they can be.
const LEVEL_LOOKS: u32 = 5;

/// How `status` is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Tables for people.
    Text,
    /// One JSON object.
    Json,
}

/// The rows of one table.
#[derive(Debug, Serialize)]
struct RowsStatus {
    copies: usize,
    rows: usize,
    /// With fewer active replicas on nodes that live than copies.
    degraded: usize,
    /// Of these, with a single one, though there should be more.
    one_copy: usize,
    /// Of these, with none: what is in them waits for a node to come back.
    stranded: usize,
    /// With a replica that is still copying.
    copying: usize,
    /// Not built yet: there were never enough nodes.
    empty: usize,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    node: String,
    address: String,
    domain: String,
    state: &'static str,
    used_tracts: u64,
    /// Promised in the rows it is in: never more than it has room for, but for disks that were made or grew since rows last moved.
    promised_tracts: u64,
    capacity_tracts: u64,
    /// Rows it is in, of the tables of one, two and three copies: none, once a drained node is done without.
    rows: [usize; 3],
    /// Since its last heartbeat, by this machine's calendar.
    silent_ms: i64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ClusterStatus {
    nodes: Vec<NodeStatus>,
    rows: Vec<RowsStatus>,
    /// On nodes that live and serve.
    total_tracts: u64,
    /// Of the total, what may be promised: it is still there after the loss of the largest failure domain.
    promisable_tracts: u64,
    /// Of that, what is not promised yet.
    free_tracts: u64,
    /// Promised to disks, all copies counted.
    reserved_tracts: u64,
    /// Attached on this machine.
    disks: Vec<DiskStatus>,
}

pub(crate) async fn cluster_status(
    env: &Env,
    placement: &Placement,
    state_directory: &Path,
) -> Result<ClusterStatus, Failure> {
    let now_ms = env.wall().as_millis();
    let capacity = placement.capacity().await?;
    let verdict = placement.verdict().await?;
    let dead: BTreeSet<NodeId> = verdict.dead.iter().filter_map(|node| node.parse().ok()).collect();
    let disks = placement.disks(None).await?;
    let promises = Promises::of(&placement.cluster().await?, disks.iter());
    let (mut rows, mut of_nodes) = (Vec::new(), BTreeMap::<NodeId, ([usize; 3], u64)>::new());
    for replication in Replication::ALL {
        let table = placement.rows(replication).await?;
        rows.push(rows_status(replication, &table, &dead));
        for row in &table {
            for replica in &row.replicas {
                let (rows, promised) = of_nodes.entry(replica.node).or_default();
                rows[replication.copies() - 1] += 1;
                *promised += promises.tracts(row);
            }
        }
    }
    let node = |record: NodeRecord| NodeStatus {
        node: record.node.hex().to_string(),
        rows: of_nodes.get(&record.node).copied().unwrap_or_default().0,
        promised_tracts: of_nodes.get(&record.node).copied().unwrap_or_default().1,
        address: record.address,
        domain: record.domain,
        // What the coordinator takes it for, and what it says itself, come before what is wanted of it.
        state: match (record.condition, record.state) {
            _ if dead.contains(&record.node) => "dead",
            (NodeCondition::ReadOnly, _) => "read-only",
            (NodeCondition::OutOfTracts, _) => "full",
            (NodeCondition::Writable, NodeState::Serving) => "serving",
            (NodeCondition::Writable, NodeState::Draining) => "draining",
        },
        used_tracts: record.used_tracts,
        capacity_tracts: record.capacity_tracts,
        silent_ms: now_ms - record.beat_unix_ms,
    };
    Ok(ClusterStatus {
        nodes: placement.nodes().await?.into_iter().map(node).collect(),
        rows,
        total_tracts: capacity.total_tracts,
        promisable_tracts: capacity.promisable_tracts(),
        free_tracts: capacity.free_tracts(),
        reserved_tracts: capacity.reserved_tracts,
        disks: attached_here(state_directory).await?,
    })
}

fn rows_status(replication: Replication, rows: &[Row], dead: &BTreeSet<NodeId>) -> RowsStatus {
    let built = || rows.iter().filter(|row| !row.replicas.is_empty());
    let active = |row: &Row| row.active().count();
    let living = |row: &Row| {
        row.active()
            .filter(|replica| !dead.contains(&replica.node))
            .count()
    };
    let copies = replication.copies();
    RowsStatus {
        copies,
        rows: rows.len(),
        degraded: built().filter(|row| living(row) < copies).count(),
        one_copy: built().filter(|row| copies > 1 && living(row) == 1).count(),
        stranded: built().filter(|row| living(row) == 0).count(),
        copying: built().filter(|row| active(row) < row.replicas.len()).count(),
        empty: rows.len() - built().count(),
    }
}

/// Every disk that answers in a state directory.
async fn attached_here(state_directory: &Path) -> Result<Vec<DiskStatus>, Failure> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(state_directory)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", state_directory.display())))?;
    for entry in entries.flatten() {
        let file = entry.file_name();
        let disk = file
            .to_str()
            .and_then(|name| name.strip_prefix("disk-")?.strip_suffix(".sock"));
        if let Some(disk) = disk
            && let Some(Reply::Status { status }) = admin::ask(state_directory, disk, Command::Status).await?
        {
            found.push(*status);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// `firn-blockd status`.
pub async fn status(config: &Config, output: Output) -> Result<(), Failure> {
    let directory = &config.client()?.state_directory;
    let outside = Outside::open(config, directory).await?;
    let status = cluster_status(&outside.env, &outside.placement, directory).await?;
    match output {
        Output::Text => print!("{}", text(&status)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&status).map_err(Failure::new)?),
    }
    Ok(())
}

pub(crate) fn text(status: &ClusterStatus) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    line(format!(
        "{:<34}{:<22}{:<14}{:<10}{:>20}{:>7}{:>10}",
        "node", "address", "domain", "state", "held/promised/room", "rows", "silent"
    ));
    for node in &status.nodes {
        line(format!(
            "{:<34}{:<22}{:<14}{:<10}{:>20}{:>7}{:>8} s",
            node.node,
            node.address,
            node.domain,
            node.state,
            format!(
                "{}/{}/{}",
                node.used_tracts, node.promised_tracts, node.capacity_tracts
            ),
            node.rows.iter().sum::<usize>(),
            node.silent_ms / 1000
        ));
    }
    for rows in status.rows.iter().filter(|rows| rows.rows > rows.empty) {
        line(format!(
            "rows of {} copies: {}, {} with too few ({} with one copy only, {} with none that lives), {} being copied",
            rows.copies,
            rows.rows - rows.empty,
            rows.degraded,
            rows.one_copy,
            rows.stranded,
            rows.copying
        ));
    }
    line(format!(
        "room: {} tracts of 8 MiB on nodes that serve, {} of them are still there after the loss of the largest failure domain; of these {} \
         are promised to disks, {} free",
        status.total_tracts, status.promisable_tracts, status.reserved_tracts, status.free_tracts
    ));
    if status.reserved_tracts > status.promisable_tracts {
        line(format!(
            "warning: {} tracts more are promised than would survive a loss; add nodes, or bring back those that are dead",
            status.reserved_tracts - status.promisable_tracts
        ));
    }
    for disk in &status.disks {
        line(disk_line(disk));
    }
    text
}

pub(crate) fn disk_line(disk: &DiskStatus) -> String {
    let trouble = match (&disk.trouble, disk.fenced) {
        (_, true) => "; FENCED: another attach has the disk, this one is about to end".into(),
        (Some(why), false) => format!("; waits for {} s: {why}", disk.waits_seconds),
        (None, false) => String::new(),
    };
    let capped = if disk.capped {
        "; CAPPED: new writes are refused until the budget is raised"
    } else {
        ""
    };
    let journal = match &disk.journal {
        Some(journal) if journal.journaling => format!(
            "; {} of {} in the local journal, {} changes for nodes",
            Size(journal.used_bytes),
            Size(journal.bytes_max),
            journal.waiting
        ),
        Some(_) | None => String::new(),
    };
    format!(
        "disk {}: {}, {} copies, {}, flush {}, at {} with {} clients; {} of {} not durable{journal}{capped}{trouble}",
        disk.name,
        Size(disk.size_bytes),
        disk.copies,
        disk.mode,
        disk.flush,
        disk.nbd,
        disk.connections,
        Size(disk.dirty_bytes),
        Size(disk.dirty_bytes_max)
    )
}

/// `firn-blockd top`: the disks attached here, until interrupted or `count` times.
pub async fn top(config: &Config, every: Duration, count: Option<u64>) -> Result<(), Failure> {
    let directory = &config.client()?.state_directory;
    let env = environment(directory)?;
    let mut before = attached_here(directory).await?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        env.sleep(every).await;
        let after = attached_here(directory).await?;
        println!(
            "{:<20}{:>12}{:>12}{:>14}{:>14}{:>10}{:>14}",
            "disk", "stores/s", "loads/s", "sent/s", "received/s", "retries", "not durable"
        );
        for disk in &after {
            let old = before
                .iter()
                .find(|old| (&old.name, old.fence) == (&disk.name, disk.fence));
            let rate = |now: u64, then: Option<u64>| {
                (now.saturating_sub(then.unwrap_or(0)) as f64 / every.as_secs_f64()) as u64
            };
            println!(
                "{:<20}{:>12}{:>12}{:>14}{:>14}{:>10}{:>14}",
                disk.name,
                rate(disk.stores, old.map(|old| old.stores)),
                rate(disk.loads, old.map(|old| old.loads)),
                Size(rate(disk.sent_bytes, old.map(|old| old.sent_bytes))),
                Size(rate(disk.received_bytes, old.map(|old| old.received_bytes))),
                disk.retries,
                Size(disk.dirty_bytes)
            );
        }
        before = after;
        shown += 1;
    }
    Ok(())
}

/// `firn-blockd drain`: empties a node, or lets it take part again.
pub async fn drain(config: &Config, node: &str, undo: bool) -> Result<(), Failure> {
    let directory = &config.client()?.state_directory;
    let outside = Outside::open(config, directory).await?;
    let node: NodeId = node
        .parse()
        .or_else(|_| NodeId::from_hex(node))
        .map_err(|error| Failure::usage(format!("{node}: {error}; firn-blockd status lists the nodes")))?;
    let state = if undo {
        NodeState::Serving
    } else {
        NodeState::Draining
    };
    if !undo {
        outside.placement.check_drain(node).await?;
    }
    outside.placement.set_node_state(node, state).await?;
    if undo {
        println!("node {node} takes part again");
        return Ok(());
    }
    let mut still = (usize::MAX, 0);
    loop {
        let mut left = 0;
        for replication in Replication::ALL {
            let rows = outside.placement.rows(replication).await?;
            left += rows.iter().filter(|row| row.replica(node).is_some()).count();
        }
        if left == 0 {
            println!("node {node} is in no row any more; it can be taken away");
            return Ok(());
        }
        still = if still.0 == left {
            (left, still.1 + 1)
        } else {
            (left, 0)
        };
        if still.1 >= STILL_DRAINING_LOOKS {
            return Err(Failure::new(format!(
                "node {node} is still in {left} rows, and none has moved for {} minutes: others are away or have no room for them \
                 (firn-blockd status). It keeps what it has and goes on draining when they can; --undo lets it take part again",
                DRAIN_LOOK.as_secs() * u64::from(STILL_DRAINING_LOOKS) / 60
            )));
        }
        eprintln!("draining: still in {left} rows (interrupt this as you like, it goes on)");
        outside.env.sleep(DRAIN_LOOK).await;
    }
}

/// How uneven nodes are: the least and the most that a node which takes part carries for its size, in a thousand, as the coordinator
/// counts: a row counts for one tract more than is promised in it.
fn spread(status: &ClusterStatus) -> (u64, u64) {
    let shares = || {
        let serving = status.nodes.iter().filter(|node| node.state == "serving");
        serving.map(|node| {
            let carried = node.promised_tracts + node.rows.iter().sum::<usize>() as u64;
            carried.saturating_mul(1000) / node.capacity_tracts.max(1)
        })
    };
    (shares().min().unwrap_or(0), shares().max().unwrap_or(0))
}

/// `firn-blockd rebalance`: the coordinator levels rows by itself, a few at a time; this watches until it has nothing more to
/// do.
pub async fn rebalance(config: &Config, dry_run: bool) -> Result<(), Failure> {
    let directory = &config.client()?.state_directory;
    let outside = Outside::open(config, directory).await?;
    let mut still = (None, 0);
    loop {
        let status = cluster_status(&outside.env, &outside.placement, directory).await?;
        let (least, most) = spread(&status);
        let count = |part: fn(&RowsStatus) -> usize| status.rows.iter().map(part).sum::<usize>();
        let (degraded, copying) = (count(|rows| rows.degraded), count(|rows| rows.copying));
        let line = format!(
            "nodes carry {}.{} to {}.{} % of their room; {degraded} rows with too few replicas, {copying} being copied",
            least / 10,
            least % 10,
            most / 10,
            most % 10
        );
        // The coordinator's own rule: below a difference of a fifth, moving costs more than it brings. A row is not cut in pieces:
        // where the difference is one of a few rows, nothing moves any more, which is seen by waiting.
        let level = most * 4 <= least * 5 || still.1 >= LEVEL_LOOKS;
        if dry_run || (level && degraded + copying == 0) {
            println!("{line}");
            return Ok(());
        }
        let seen = Some((least, most, degraded, copying));
        still = if still.0 == seen {
            (seen, still.1 + 1)
        } else {
            (seen, 0)
        };
        if still.1 >= STILL_LOOKS {
            return Err(Failure::new(format!(
                "{line}; nothing has moved for a while: too few nodes, or too few failure domains (firn-blockd status)"
            )));
        }
        eprintln!("rebalancing: {line} (interrupt this as you like, it goes on)");
        outside.env.sleep(REBALANCE_LOOK).await;
    }
}
