//! The coordinator: the one process that changes rows when nodes die, come or are drained.
//!
//! Any process may run one; a lease in the table says which of them acts. The lease is an item that its holder keeps
//! changing; whoever sees it unchanged for the lease's time, on its own monotonic clock, takes it. Every change of a row
//! checks the lease's version in the same transaction, so a holder that slept cannot act on what it knew before.
//!
//! Nodes are judged in the same way: dead is who did not change its item for a while, and a new coordinator begins to watch
//! from nothing, so a change of coordinators kills nobody.

use crate::{
    Capacity, NodeState, Placement, PlacementError,
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
    /// Rows with fewer active replicas than copies.
    pub degraded: usize,
    /// Rows without a living active replica: their data waits for a node to come back.
    pub stranded: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseRecord {
    holder: u64,
    renewals: u64,
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
            looked_at_disks: None,
        }
    }

    /// Ticks until the surrounding task is ended.
    pub async fn run(mut self, interval: Duration) {
        loop {
            match self.tick().await {
                Ok(tick) if tick.leads && tick.stranded > 0 => {
                    warn!(stranded = tick.stranded, dead = ?tick.dead, "rows wait for a node to come back");
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
        let (mut view, total_tracts) = self.look_at_nodes().await?;
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
                }
            }
        }
        let mut tick = Tick {
            leads: true,
            dead: view
                .iter()
                .filter(|(_, node)| !node.alive)
                .map(|(id, _)| *id)
                .collect(),
            ..Tick::default()
        };
        let mut changed: Vec<(Replication, u32)> = Vec::new();
        let mut random = |below: u64| env.random_below(below);
        for (replication, pages) in &mut tables {
            let mut round_robin = RoundRobin::of(pages.iter().flat_map(|page| &page.rows));
            for (number, page) in (0..).zip(pages.iter_mut()) {
                let mut page_changed = false;
                for row in &mut page.rows {
                    if let Some(next) = rules::next(row, &view, &mut round_robin, &mut random) {
                        carry_load(&mut view, row, &next);
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
        if tick.changed == 0 && tick.degraded == 0 {
            self.balance(&mut tables, &mut view, &mut changed, &mut tick);
        }
        self.write_pages(lease, cluster, &tables, &changed).await?;
        self.keep_capacity(lease, total_tracts).await?;
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

    /// All nodes, and how many tracts those have room for that live and serve.
    async fn look_at_nodes(&mut self) -> Result<(View, u64), PlacementError> {
        let nodes = self.placement.stored_nodes().await?;
        let now = self.placement.env.now();
        let (mut view, mut total_tracts) = (View::new(), 0);
        for stored in nodes {
            let record = stored.value;
            let watched = Watched::look(self.nodes.get(&record.node).copied(), stored.version, now);
            self.nodes.insert(record.node, watched);
            let alive = now.since(watched.since) < self.settings.dead_after;
            if alive && record.state == NodeState::Serving {
                total_tracts += record.capacity_tracts;
            }
            view.insert(
                record.node,
                NodeView {
                    address: record.address,
                    domain: record.domain,
                    alive,
                    proven: watched.changed,
                    has_room: record.used_tracts < record.capacity_tracts,
                    draining: record.state == NodeState::Draining,
                    load: 0,
                },
            );
        }
        Ok((view, total_tracts))
    }

    fn balance(
        &self,
        tables: &mut [(Replication, Vec<StoredPage>)],
        view: &mut View,
        changed: &mut Vec<(Replication, u32)>,
        tick: &mut Tick,
    ) {
        let env = &self.placement.env;
        for _ in 0..self.settings.moves {
            let rows: Vec<&Row> = tables
                .iter()
                .flat_map(|(_, pages)| pages)
                .flat_map(|page| &page.rows)
                .collect();
            let Some(next) = rules::rebalance(&rows, view, &mut |below| env.random_below(below)) else {
                return;
            };
            let page = next.index.0 / crate::ROWS_PER_PAGE;
            let at = (next.index.0 % crate::ROWS_PER_PAGE) as usize;
            let row = &mut tables[next.replication.copies() - 1].1[page as usize].rows[at];
            carry_load(view, row, &next);
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

    async fn keep_capacity(&self, lease: ItemVersion, total_tracts: u64) -> Result<(), PlacementError> {
        let old = self.placement.stored_capacity().await?;
        if old
            .as_ref()
            .is_some_and(|old| old.value.total_tracts == total_tracts)
        {
            return Ok(());
        }
        let capacity = Capacity {
            total_tracts,
            reserved_tracts: old.as_ref().map_or(0, |old| old.value.reserved_tracts),
        };
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

fn carry_load(view: &mut View, before: &Row, after: &Row) {
    for replica in &before.replicas {
        if let Some(node) = view.get_mut(&replica.node) {
            node.load = node.load.saturating_sub(1);
        }
    }
    for replica in &after.replicas {
        if let Some(node) = view.get_mut(&replica.node) {
            node.load += 1;
        }
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
        tick.stranded += usize::from(living == 0);
    }
}
