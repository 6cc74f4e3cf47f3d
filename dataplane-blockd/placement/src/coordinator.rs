//! The coordinator: the one process that changes rows when nodes die, come or are drained.
//!
//! Any process may run one; a lease in the table says which of them acts. The lease is an item that its holder keeps
//! changing; whoever sees it unchanged for the lease's time, on its own monotonic clock, takes it. Every change of a row
//! checks the lease's version in the same transaction, so a holder that slept cannot act on what it knew before.
//!
//! Nodes are judged in the same way: dead is who did not change its item for a while, and a new coordinator begins to watch
//! from nothing, so a change of coordinators kills nobody. Whom it takes for dead stands in the lease, for people.
//!
//! It places rows by what is promised in them ([`Promises`](crate::Promises)); disks are read again when the item of the cluster's capacity has changed, since
//! whoever makes a disk, grows or deletes one changes that in the same transaction.

use crate::{
    Capacity, NodeCondition, NodeState, Placement, PlacementError, Promises,
    capacity::{Deliverable, deliverable},
    record::{self, Outcome, Stored, unchanged},
    rows::{Cluster, StoredPage},
    rules::{self, NodeView, RoundRobin, View},
};
use firn_blockd_protocol::{NodeId, Replication, Row};
use firn_env::Monotonic;
use firn_table::{Condition, ItemVersion, Write};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use tracing::{info, warn};

/// Pages in one transaction: the table allows 100 operations, of which the epoch and the lease take two.
const PAGES_PER_TRANSACTION: usize = 90;

/// Between two lines of the log about rows that wait.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Looks for records that have been kept long enough, in the time that they are kept. Each reads the records of all disks.
const LOOKS_FOR_FORGOTTEN: u32 = 64;

/// How a coordinator acts.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorSettings {
    /// The lease is taken from a holder that did not renew it for so long. Ticks must be much closer together.
    pub lease: Duration,
    /// A node that was not heard of for so long is dead: its rows change. Several heartbeats, so that a slow table or a
    /// short break of the network does not start copying.
    pub dead_after: Duration,
    /// Rows that are moved at one time to balance the load.
    pub moves: usize,
    /// How long the record of a deleted disk is kept for nodes that were away.
    pub forget_disks_after: Duration,
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            dead_after: Duration::from_secs(10),
            moves: 4,
            forget_disks_after: Duration::from_secs(7 * 86_400),
        }
    }
}

/// What a tick saw and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// It holds the lease; if not, it did nothing.
    pub leads: bool,
    /// Rows it changed.
    pub changed: usize,
    /// Nodes it takes for dead.
    pub dead: Vec<NodeId>,
    /// Nodes that have taken no writes for so long that they are done without.
    pub read_only: Vec<NodeId>,
    /// Rows with fewer active replicas than copies, or with one that is joining.
    pub degraded: usize,
    /// Of these, rows in which a replica is joining.
    pub joining: usize,
    /// Rows that are short of a replica, and no node has room for one.
    pub short: usize,
    /// Rows without a living active replica: their data waits for a node to come back.
    pub stranded: usize,
}

/// Whom the coordinator takes for what, as of its last round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Nodes whose heartbeats stay away, by their identifiers' text.
    pub dead: Vec<String>,
    /// Nodes that take no writes and are done without.
    pub read_only: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseRecord {
    holder: u64,
    renewals: u64,
    #[serde(default)]
    verdict: Verdict,
}

/// What a look at all nodes finds.
struct Survey {
    view: View,
    total_tracts: u64,
    deliverable: Deliverable,
}

/// When an item was last seen to change.
#[derive(Clone, Copy, Debug)]
struct Watched {
    version: ItemVersion,
    since: Monotonic,
    /// It changed under our eyes at least once.
    changed: bool,
}

impl Watched {
    fn look(seen: Option<Self>, version: ItemVersion, now: Monotonic) -> Self {
        match seen {
            Some(seen) if seen.version == version => seen,
            Some(_) => Self {
                version,
                since: now,
                changed: true,
            },
            None => Self {
                version,
                since: now,
                changed: false,
            },
        }
    }
}

/// See the module.
pub struct Coordinator {
    placement: Placement,
    settings: CoordinatorSettings,
    holder: u64,
    lease: Option<Watched>,
    nodes: BTreeMap<NodeId, Watched>,
    /// Since when nodes say that they take no writes.
    read_only: BTreeMap<NodeId, Monotonic>,
    /// What is promised, as of this version of the capacity.
    promises: Option<(Option<ItemVersion>, Promises)>,
    verdict: Verdict,
    /// When it last looked for records of disks to forget.
    looked_at_disks: Option<Monotonic>,
}

impl Coordinator {
    /// One that holds nothing yet.
    pub fn new(placement: Placement, settings: CoordinatorSettings) -> Self {
        let holder = placement.env.random_u64();
        Self {
            placement,
            settings,
            holder,
            lease: None,
            nodes: BTreeMap::new(),
            read_only: BTreeMap::new(),
            promises: None,
            verdict: Verdict::default(),
            looked_at_disks: None,
        }
    }

    /// Ticks until the surrounding task is ended.
    pub async fn run(mut self, interval: Duration) {
        let mut warned: Option<Monotonic> = None;
        loop {
            match self.tick().await {
                Ok(tick) if tick.leads && tick.stranded + tick.short > 0 => {
                    let now = self.placement.env.now();
                    if warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY) {
                        warned = Some(now);
                        warn!(
                            stranded = tick.stranded, short = tick.short, dead = ?tick.dead, read_only = ?tick.read_only,
                            "rows wait for a node to come back, or for one with room"
                        );
                    }
                }
                Ok(_) => {}
                Err(error) => warn!(%error, "the coordinator could not do its round"),
            }
            self.placement.env.sleep(interval).await;
        }
    }

    /// Renews the lease or tries to take it; as its holder, looks at every node and row once and changes what must change.
    ///
    /// # Errors
    /// [`PlacementError`]; what was changed stays changed, the next tick goes on.
    pub async fn tick(&mut self) -> Result<Tick, PlacementError> {
        let Some(lease) = self.hold().await? else {
            return Ok(Tick::default());
        };
        let placement = self.placement.clone();
        let env = placement.env.clone();
        env.fault_point("placement.lease_held").await;
        let cluster = placement.stored_cluster().await?;
        let Survey {
            mut view,
            total_tracts,
            deliverable,
        } = self.look_at_nodes().await?;
        let promises = self.promised(&cluster.value).await?;
        let mut tables = Vec::new();
        for replication in Replication::ALL {
            let pages = placement
                .pages(replication, cluster.value.rows(replication))
                .await?;
            tables.push((replication, pages));
        }
        for row in tables
            .iter()
            .flat_map(|(_, pages)| pages)
            .flat_map(|page| &page.rows)
        {
            for replica in &row.replicas {
                if let Some(node) = view.get_mut(&replica.node) {
                    node.load += 1;
                    node.promised_tracts += promises.tracts(row);
                }
            }
        }
        if firn_env::planted!("placement.any_room") {
            forget_room(&mut view);
        }
        let those = |what: fn(&NodeView) -> bool| -> Vec<NodeId> {
            let found = view.iter().filter(|(_, node)| what(node));
            found.map(|(id, _)| *id).collect()
        };
        let mut tick = Tick {
            leads: true,
            dead: those(|node| !node.alive),
            read_only: those(|node| node.alive && node.read_only),
            ..Tick::default()
        };
        let texts = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect();
        self.verdict = Verdict {
            dead: texts(&tick.dead),
            read_only: texts(&tick.read_only),
        };
        let mut changed: Vec<(Replication, u32)> = Vec::new();
        let mut random = |below: u64| env.random_below(below);
        for (replication, pages) in &mut tables {
            let mut round_robin = RoundRobin::of(pages.iter().flat_map(|page| &page.rows));
            for (number, page) in (0..).zip(pages.iter_mut()) {
                let mut page_changed = false;
                for row in &mut page.rows {
                    let tracts = promises.tracts(row);
                    if let Some(next) = rules::next(row, tracts, &view, &mut round_robin, &mut random) {
                        carry_load(&mut view, tracts, row, &next);
                        *row = next;
                        page_changed = true;
                        tick.changed += 1;
                    }
                    count(row, &view, &mut tick);
                }
                if page_changed {
                    changed.push((*replication, number));
                }
            }
        }
        self.balance(&mut tables, &mut view, &promises, &mut changed, &mut tick);
        self.write_pages(lease, cluster, &tables, &changed).await?;
        self.keep_capacity(lease, total_tracts, deliverable, promises.largest_row())
            .await?;
        self.forget_disks(lease).await?;
        if tick.changed > 0 {
            info!(rows = tick.changed, dead = ?tick.dead, "changed rows of the locator table");
        }
        Ok(tick)
    }

    /// The version of the lease if we hold it now.
    async fn hold(&mut self) -> Result<Option<ItemVersion>, PlacementError> {
        let key = self.placement.lease_key();
        let now = self.placement.env.now();
        let found: Option<Stored<LeaseRecord>> = self.placement.read(&key).await?;
        let renewals = found.as_ref().map_or(0, |found| found.value.renewals);
        if let Some(found) = &found
            && found.value.holder != self.holder
        {
            // Whoever is no holder has stopped watching; it begins again when it becomes one.
            self.nodes.clear();
            self.read_only.clear();
            let watched = Watched::look(self.lease, found.version, now);
            self.lease = Some(watched);
            if now.since(watched.since) < self.settings.lease {
                return Ok(None);
            }
        }
        let outcome = self
            .placement
            .transact(vec![Write::Put {
                key: key.clone(),
                value: record::encode(&LeaseRecord {
                    holder: self.holder,
                    renewals: renewals + 1,
                    verdict: self.verdict.clone(),
                }),
                condition: unchanged(found.map(|found| found.version)),
            }])
            .await?;
        if outcome != Outcome::Done {
            return Ok(None);
        }
        let held: Option<Stored<LeaseRecord>> = self.placement.read(&key).await?;
        Ok(held
            .filter(|held| held.value.holder == self.holder)
            .map(|held| held.version))
    }

    /// All nodes, and how many tracts those have room for that live, take writes and serve.
    async fn look_at_nodes(&mut self) -> Result<Survey, PlacementError> {
        let nodes = self.placement.stored_nodes().await?;
        let now = self.placement.env.now();
        let (mut view, mut counted) = (View::new(), Vec::new());
        for stored in nodes {
            let record = stored.value;
            let watched = Watched::look(self.nodes.get(&record.node).copied(), stored.version, now);
            self.nodes.insert(record.node, watched);
            let alive = now.since(watched.since) < self.settings.dead_after;
            let since = match record.condition {
                NodeCondition::ReadOnly => Some(*self.read_only.entry(record.node).or_insert(now)),
                NodeCondition::Writable | NodeCondition::OutOfTracts => {
                    self.read_only.remove(&record.node);
                    None
                }
            };
            if alive && record.state == NodeState::Serving && since.is_none() {
                counted.push((record.domain.clone(), record.capacity_tracts));
            }
            view.insert(
                record.node,
                NodeView {
                    address: record.address,
                    domain: record.domain,
                    alive,
                    proven: watched.changed,
                    condition: record.condition,
                    // As long as one that is silent is waited for.
                    read_only: since.is_some_and(|since| now.since(since) >= self.settings.dead_after),
                    draining: record.state == NodeState::Draining,
                    capacity_tracts: record.capacity_tracts,
                    promised_tracts: 0,
                    load: 0,
                },
            );
        }
        let of_nodes = || counted.iter().map(|(domain, tracts)| (&**domain, *tracts));
        Ok(Survey {
            view,
            total_tracts: of_nodes().map(|(_, tracts)| tracts).sum(),
            deliverable: deliverable(of_nodes()),
        })
    }

    /// What is promised in each row.
    async fn promised(&mut self, cluster: &Cluster) -> Result<Promises, PlacementError> {
        // Before the disks: one that comes in between shows in the next round.
        let version = self
            .placement
            .stored_capacity()
            .await?
            .map(|stored| stored.version);
        if let Some((of, promises)) = &self.promises
            && *of == version
        {
            return Ok(promises.clone());
        }
        let disks: Vec<Stored<crate::DiskRecord>> = self
            .placement
            .read_all(&self.placement.partition("disks"))
            .await?;
        let promises = Promises::of(cluster, disks.iter().map(|stored| &stored.value));
        self.promises = Some((version, promises.clone()));
        Ok(promises)
    }

    /// Begins moves, a few at a time: off nodes that are overfull, whatever else goes on; to make way for rows that are short of
    /// a replica; and to level what nodes carry, when nothing else is under way.
    fn balance(
        &self,
        tables: &mut [(Replication, Vec<StoredPage>)],
        view: &mut View,
        promises: &Promises,
        changed: &mut Vec<(Replication, u32)>,
        tick: &mut Tick,
    ) {
        let env = &self.placement.env;
        let calm = tick.changed == 0 && tick.joining == 0;
        for _ in 0..self.settings.moves {
            let rows: Vec<&Row> = tables
                .iter()
                .flat_map(|(_, pages)| pages)
                .flat_map(|page| &page.rows)
                .collect();
            let mut random = |below: u64| env.random_below(below);
            let mut next = rules::relieve(&rows, view, promises, &mut random);
            if next.is_none() && calm && tick.short > 0 {
                next = rules::make_way(&rows, view, promises);
            }
            if next.is_none() && calm {
                next = rules::rebalance(&rows, view, promises, &mut random);
            }
            let Some(next) = next else {
                return;
            };
            let page = next.index.0 / crate::ROWS_PER_PAGE;
            let at = (next.index.0 % crate::ROWS_PER_PAGE) as usize;
            let row = &mut tables[next.replication.copies() - 1].1[page as usize].rows[at];
            carry_load(view, promises.tracts(row), row, &next);
            if !changed.contains(&(next.replication, page)) {
                changed.push((next.replication, page));
            }
            *row = next;
            tick.changed += 1;
        }
    }

    async fn write_pages(
        &self,
        lease: ItemVersion,
        mut cluster: Stored<Cluster>,
        tables: &[(Replication, Vec<StoredPage>)],
        changed: &[(Replication, u32)],
    ) -> Result<(), PlacementError> {
        for group in changed.chunks(PAGES_PER_TRANSACTION) {
            let mut writes: Vec<Write> = group
                .iter()
                .map(|(replication, page)| {
                    let pages = &tables[replication.copies() - 1].1;
                    self.placement
                        .put_page(*replication, *page, &pages[*page as usize])
                })
                .collect();
            writes.push(self.placement.put_epoch(&cluster));
            writes.push(self.check_lease(lease));
            self.placement.env.fault_point("placement.before_rows").await;
            match self.placement.transact(writes).await? {
                Outcome::Done => {}
                Outcome::Conflict => return Err(PlacementError::Contention { what: "the rows" }),
                Outcome::Unknown(reason) => return Err(PlacementError::Unavailable(reason)),
            }
            self.placement.env.fault_point("placement.after_rows").await;
            cluster = self.placement.stored_cluster().await?;
        }
        Ok(())
    }

    fn check_lease(&self, lease: ItemVersion) -> Write {
        Write::Check {
            key: self.placement.lease_key(),
            condition: Condition::Version(lease),
        }
    }

    async fn keep_capacity(
        &self,
        lease: ItemVersion,
        total_tracts: u64,
        deliverable: Deliverable,
        largest_row_tracts: u64,
    ) -> Result<(), PlacementError> {
        let old = self.placement.stored_capacity().await?;
        let before = old.as_ref().map(|old| old.value);
        let capacity = Capacity {
            total_tracts,
            reserved_tracts: before.map_or(0, |old| old.reserved_tracts),
            deliverable_tracts: Some(deliverable.tracts),
            slack_nodes: deliverable.slack_nodes,
            largest_row_tracts,
        };
        // Disks that came since they were read are in the next round's.
        let read = self.promises.as_ref().map(|(version, _)| *version);
        if before == Some(capacity) || read != Some(old.as_ref().map(|old| old.version)) {
            return Ok(());
        }
        let writes = vec![
            Write::Put {
                key: self.placement.capacity_key(),
                value: record::encode(&capacity),
                condition: unchanged(old.map(|old| old.version)),
            },
            self.check_lease(lease),
        ];
        // Whoever came between changed the reservation; the next tick adds the total to it.
        self.placement.transact(writes).await?;
        Ok(())
    }

    async fn forget_disks(&mut self, lease: ItemVersion) -> Result<(), PlacementError> {
        let looked = self.placement.env.now();
        let interval = self.settings.forget_disks_after / LOOKS_FOR_FORGOTTEN;
        if self
            .looked_at_disks
            .is_some_and(|before| looked.since(before) < interval)
        {
            return Ok(());
        }
        self.looked_at_disks = Some(looked);
        let now = self.placement.env.wall().as_millis();
        let keep = i64::try_from(self.settings.forget_disks_after.as_millis()).unwrap_or(i64::MAX);
        let all: Vec<Stored<crate::DiskRecord>> = self
            .placement
            .read_all(&self.placement.partition("disks"))
            .await?;
        for disk in all {
            let crate::DiskState::Deleting { since_unix_ms } = disk.value.state else {
                continue;
            };
            if now.saturating_sub(since_unix_ms) < keep {
                continue;
            }
            let writes = vec![
                Write::Delete {
                    key: self.placement.disk_key(disk.value.disk),
                    version: disk.version,
                },
                self.check_lease(lease),
            ];
            self.placement.transact(writes).await?;
        }
        Ok(())
    }
}

fn carry_load(view: &mut View, tracts: u64, before: &Row, after: &Row) {
    for replica in &before.replicas {
        if let Some(node) = view.get_mut(&replica.node) {
            node.load = node.load.saturating_sub(1);
            node.promised_tracts = node.promised_tracts.saturating_sub(tracts);
        }
    }
    for replica in &after.replicas {
        if let Some(node) = view.get_mut(&replica.node) {
            node.load += 1;
            node.promised_tracts += tracts;
        }
    }
}

/// A planted bug: any node may take any row, as if it had room for all of them, and none is ever overfull.
fn forget_room(view: &mut View) {
    for node in view.values_mut() {
        node.capacity_tracts = u64::MAX;
        node.condition = NodeCondition::Writable;
    }
}

fn count(row: &Row, view: &View, tick: &mut Tick) {
    let active = row.active().count();
    let living = row
        .active()
        .filter(|replica| view.get(&replica.node).is_some_and(|node| node.alive))
        .count();
    if !row.replicas.is_empty() {
        tick.degraded += usize::from(active < row.replication.copies() || row.replicas.len() > active);
        tick.joining += usize::from(row.replicas.len() > active);
        tick.stranded += usize::from(living == 0);
        tick.short += usize::from(rules::is_short(row, view));
    }
}

impl Placement {
    /// Whom the coordinator takes for what, as of its last round; nobody for anything, if there was none yet.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn verdict(&self) -> Result<Verdict, PlacementError> {
        let lease: Option<Stored<LeaseRecord>> = self.read(&self.lease_key()).await?;
        Ok(lease.map(|lease| lease.value.verdict).unwrap_or_default())
    }
}
