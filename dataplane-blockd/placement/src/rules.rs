//! The rules by which a row changes: pure functions, so that they can be tested over every case.
//!
//! ```text
//! event                                what becomes of the row                                    when
//! nobody in it yet                     the next node by round robin, others by room up to `copies` enough nodes have room
//!                                      nodes of different domains, all active
//! a replica is dead                    it leaves                                                  a living active one stays
//! a replica is read-only               it leaves                                                  an active one that takes writes stays
//! no active replica lives              nothing: only the return of one can help                   always
//! too few replicas                     a living node joins                                        one that is not in it has room
//! a joining one's node is overfull     it leaves: who writes would wait for it for ever           always
//! a replica drains                     another joins; then the draining one leaves                `copies` active ones stay
//! more active than copies              the one whose node is overfull or carries most leaves      always
//! a node is moved in ([`relieve`],     it joins; the rule above ends the move                     its node has room
//! [`make_way`], [`rebalance`])
//! ```
//!
//! *Room* is counted in what is promised ([`Promises`](crate::Promises)), not in what is written: a node joins a row only if all that is promised in its
//! rows fits it, so that no write ever finds it full. A node is *overfull* if that came to be otherwise, because disks were made or
//! grew, or if it says that it has no frame left; then rows move off it.
//!
//! Why a dead replica stays while no active one lives: each of several dead replicas may be the only one that comes back.
//! While a row has no living active replica nobody can write to it, so all active ones hold the same acknowledged writes,
//! and the first that returns has them all.
//!
//! *Why round robin.* A disk's tracts lie in neighbouring rows. If the first replicas of as many neighbouring rows as there are
//! nodes lie on as many nodes, wherever one begins to count, a segment as wide as the cluster keeps every arm busy; nodes drawn by
//! chance would give some arms three of its tracts and others none, and it is as fast as the slowest. The other replicas are drawn by
//! chance, so that those who share rows with a node that dies are as many as can be, and copy its rows to as many.

use crate::{NodeCondition, Promises};
use firn_blockd_protocol::{
    NodeId, Replica, ReplicaState, Replication, Row, RowVersion, limits::MAX_REPLICAS,
};
use std::collections::{BTreeMap, BTreeSet};

/// A node as the rules see it.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Where it listens.
    pub address: String,
    /// What fails together.
    pub domain: String,
    /// Its heartbeats come.
    pub alive: bool,
    /// Its heartbeats were seen to come: it is not merely remembered.
    pub proven: bool,
    /// It takes writes, as it says.
    pub condition: NodeCondition,
    /// It has refused writes for so long, for want of room on its file system, that it is done without.
    pub read_only: bool,
    /// It is being emptied.
    pub draining: bool,
    /// Tracts it has room for.
    pub capacity_tracts: u64,
    /// Tracts promised in the rows that it is in.
    pub promised_tracts: u64,
    /// Replicas it carries.
    pub load: u64,
}

impl NodeView {
    /// Whether it may be given a new replica of a row in which so many tracts are promised.
    fn may_take(&self, tracts: u64) -> bool {
        self.alive
            && self.proven
            && !self.draining
            && self.condition == NodeCondition::Writable
            && tracts <= self.room_tracts()
    }

    /// What can still be promised on it.
    fn room_tracts(&self) -> u64 {
        self.capacity_tracts.saturating_sub(self.promised_tracts)
    }

    /// More is promised on it than it can hold.
    fn is_overfull(&self) -> bool {
        self.promised_tracts > self.capacity_tracts || self.condition == NodeCondition::OutOfTracts
    }

    /// How much it carries for its size, with some tracts more in one more row. A row counts for one tract more than is promised
    /// in it, for those that will be.
    fn share_with(&self, tracts: Option<u64>) -> u128 {
        let carried = u128::from(self.promised_tracts)
            + u128::from(self.load)
            + tracts.map_or(0, |tracts| u128::from(tracts) + 1);
        (carried << 40) / u128::from(self.capacity_tracts.max(1))
    }

    fn share(&self) -> u128 {
        self.share_with(None)
    }
}

/// All nodes.
pub type View = BTreeMap<NodeId, NodeView>;

/// How often each node stands first in the rows of a table, and in which row last: who is next by round robin.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin(BTreeMap<NodeId, (u64, u32)>);

impl RoundRobin {
    /// In these rows of one table, in order.
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut round_robin = Self::default();
        rows.for_each(|row| round_robin.take(row));
        round_robin
    }

    fn take(&mut self, row: &Row) {
        if let Some(first) = row.replicas.first() {
            let (times, last) = self.0.entry(first.node).or_default();
            (*times, *last) = (*times + 1, row.index.0);
        }
    }

    /// The node that stood first least often, of those the one that did so longest ago; by chance among those that never did.
    fn next(&self, view: &View, tracts: u64, random: &mut dyn FnMut(u64) -> u64) -> Option<NodeId> {
        let chosen = |id: &NodeId| self.0.get(id).copied().unwrap_or_default();
        let candidates = || {
            view.iter()
                .filter(|(_, node)| node.may_take(tracts))
                .map(|(id, _)| *id)
        };
        let best = candidates().map(|id| chosen(&id)).min()?;
        let equal: Vec<NodeId> = candidates().filter(|id| chosen(id) == best).collect();
        let at = usize::try_from(random(equal.len() as u64)).ok()?;
        equal.get(at).copied()
    }
}

/// What the row becomes; `None`: it stays as it is. `tracts` are promised in it, `round_robin` is that of its table, `random` gives a
/// number below its argument.
pub fn next(
    row: &Row,
    tracts: u64,
    view: &View,
    round_robin: &mut RoundRobin,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    let copies = row.replication.copies();
    if row.replicas.is_empty() {
        return build(row, tracts, view, round_robin, random);
    }
    let is = |replica: &Replica, what: fn(&NodeView) -> bool| view.get(&replica.node).is_some_and(what);
    let alive = |replica: &Replica| is(replica, |node| node.alive);
    let writable = |replica: &Replica| is(replica, |node| node.alive && !node.read_only);
    let draining = |replica: &Replica| is(replica, |node| node.draining);
    let active = |replica: &Replica| replica.state == ReplicaState::Active;
    let mut replicas = row.replicas.clone();
    if !replicas.iter().any(|replica| active(replica) && alive(replica)) {
        return None;
    }
    replicas.retain(|replica| alive(replica));
    // A read-only one has all that was acknowledged: it stays until another that takes writes has it too.
    let done_without = replicas
        .iter()
        .any(|replica| active(replica) && writable(replica));
    replicas.retain(|replica| writable(replica) || (active(replica) && !done_without));
    replicas.retain(|replica| active(replica) || !is(replica, NodeView::is_overfull));
    let settled = |replicas: &[Replica]| {
        replicas
            .iter()
            .filter(|replica| active(replica) && !draining(replica) && writable(replica))
            .count()
    };
    if settled(&replicas) >= copies {
        replicas.retain(|replica| !(draining(replica) && active(replica)));
    }
    replicas.retain(|replica| !draining(replica) || active(replica));
    while settled(&replicas) > copies {
        let most = replicas
            .iter()
            .filter(|replica| active(replica))
            .max_by_key(|replica| {
                let node = view.get(&replica.node);
                (
                    node.is_some_and(NodeView::is_overfull),
                    shares_domain(replica, &replicas, view),
                    node.map_or(0, NodeView::share),
                    replica.node,
                )
            })
            .map(|replica| replica.node)?;
        replicas.retain(|replica| replica.node != most);
    }
    let version = RowVersion(row.version.0 + 1);
    while wanted(&replicas, view) < copies && replicas.len() < MAX_REPLICAS {
        let Some(node) = choose(&replicas, tracts, view, random) else {
            break;
        };
        replicas.push(Replica {
            node,
            state: ReplicaState::Joining,
            since: version,
            address: view[&node].address.clone(),
        });
    }
    for replica in &mut replicas {
        if let Some(node) = view.get(&replica.node)
            && node.address != replica.address
        {
            replica.address.clone_from(&node.address);
        }
    }
    assert!(
        replicas.iter().any(|replica| active(replica) && alive(replica)),
        "a row never loses its last living active replica"
    );
    (replicas != row.replicas).then(|| Row {
        version,
        replicas,
        ..row.clone()
    })
}

/// Replicas that count: those of nodes that are being emptied, or that take no writes, do not.
fn wanted(replicas: &[Replica], view: &View) -> usize {
    let counts = |replica: &&Replica| {
        view.get(&replica.node)
            .is_some_and(|node| !node.draining && !node.read_only)
    };
    replicas.iter().filter(counts).count()
}

/// Whether a row has fewer replicas than it should, joining ones counted, though it has one that lives.
pub fn is_short(row: &Row, view: &View) -> bool {
    let alive = |replica: &Replica| view.get(&replica.node).is_some_and(|node| node.alive);
    row.active().any(alive) && wanted(&row.replicas, view) < row.replication.copies()
}

/// Whether another replica lies in the same domain.
fn shares_domain(replica: &Replica, replicas: &[Replica], view: &View) -> bool {
    let domain = |node: NodeId| view.get(&node).map(|node| &*node.domain);
    replicas
        .iter()
        .any(|other| other.node != replica.node && domain(other.node) == domain(replica.node))
}

/// Whether a row has all its replicas and nothing is under way in it.
fn is_complete(row: &Row) -> bool {
    row.replicas.len() == row.replication.copies()
        && row
            .replicas
            .iter()
            .all(|replica| replica.state == ReplicaState::Active)
}

/// A row of living nodes, all active, since there is nothing to copy yet.
fn build(
    row: &Row,
    tracts: u64,
    view: &View,
    round_robin: &mut RoundRobin,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    // Just after a start some nodes may not have been heard of yet: a row built without them would be lopsided for ever.
    if view.values().any(|node| node.alive && !node.proven) {
        return None;
    }
    let version = RowVersion(row.version.0 + 1);
    let mut replicas: Vec<Replica> = Vec::new();
    while replicas.len() < row.replication.copies() {
        let node = if replicas.is_empty() {
            round_robin.next(view, tracts, random)?
        } else {
            choose(&replicas, tracts, view, random)?
        };
        replicas.push(Replica {
            node,
            state: ReplicaState::Active,
            since: version,
            address: view[&node].address.clone(),
        });
    }
    let built = Row {
        version,
        replicas,
        ..row.clone()
    };
    round_robin.take(&built);
    Some(built)
}

/// A node with room to join these replicas: in a domain none of them is in if there is one, of those the one that carries least for
/// its size, by chance.
fn choose(
    replicas: &[Replica],
    tracts: u64,
    view: &View,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<NodeId> {
    let used: BTreeSet<&str> = replicas
        .iter()
        .filter_map(|replica| view.get(&replica.node))
        .filter(|node| !node.draining)
        .map(|node| &*node.domain)
        .collect();
    let candidates: Vec<(&NodeId, &NodeView)> = view
        .iter()
        .filter(|(id, node)| node.may_take(tracts) && !replicas.iter().any(|replica| replica.node == **id))
        .collect();
    let apart: Vec<_> = candidates
        .iter()
        .copied()
        .filter(|(_, node)| !used.contains(&*node.domain))
        .collect();
    let candidates = if apart.is_empty() { candidates } else { apart };
    let least = candidates.iter().map(|(_, node)| node.share()).min()?;
    let lightest: Vec<_> = candidates
        .into_iter()
        .filter(|(_, node)| node.share() == least)
        .collect();
    let at = usize::try_from(random(lightest.len() as u64)).ok()?;
    lightest.get(at).map(|(id, _)| **id)
}

/// A row that moves off an overfull node: into a node with room for it, unless moves that are under way suffice.
pub fn relieve(
    rows: &[&Row],
    view: &View,
    promises: &Promises,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    for (id, node) in view.iter().filter(|(_, node)| node.alive && node.is_overfull()) {
        let on_it = || rows.iter().filter(|row| row.replica(*id).is_some());
        let moving = on_it().filter(|row| row.replicas.len() > row.replication.copies());
        let leaving: u64 = moving.clone().map(|row| promises.tracts(row)).sum();
        let suffices = match node.condition {
            NodeCondition::OutOfTracts => moving.count() > 0,
            NodeCondition::Writable | NodeCondition::ReadOnly => {
                node.promised_tracts.saturating_sub(leaving) <= node.capacity_tracts
            }
        };
        if suffices {
            continue;
        }
        let movable = on_it().filter(|row| is_complete(row) && promises.tracts(row) > 0);
        for row in movable {
            if let Some(to) = choose(&row.replicas, promises.tracts(row), view, random) {
                return Some(with_joining(row, to, view));
            }
        }
    }
    None
}

/// Rows that are looked at, and nodes, to find one that makes way for another.
const MAKING_WAY_MAX: usize = 8;

/// A row that moves from a node to one with more room, so that a row that is short of a replica fits the first.
pub fn make_way(rows: &[&Row], view: &View, promises: &Promises) -> Option<Row> {
    let serving = |node: &NodeView| {
        node.alive && node.proven && !node.draining && node.condition == NodeCondition::Writable
    };
    let mut by_room: Vec<(&NodeId, &NodeView)> = view.iter().filter(|(_, node)| serving(node)).collect();
    by_room.sort_by_key(|(id, node)| (std::cmp::Reverse(node.room_tracts()), **id));
    let short = rows.iter().filter(|row| is_short(row, view));
    for wanting in short.take(MAKING_WAY_MAX) {
        let outside = by_room.iter().filter(|(id, _)| wanting.replica(**id).is_none());
        for (full_id, full) in outside.take(MAKING_WAY_MAX) {
            let missing = promises.tracts(wanting).saturating_sub(full.room_tracts());
            for (roomy_id, roomy) in by_room.iter().take(MAKING_WAY_MAX) {
                let fits = rows.iter().find(|row| {
                    let tracts = promises.tracts(row);
                    is_complete(row)
                        && row.replica(**full_id).is_some()
                        && row.replica(**roomy_id).is_none()
                        && tracts >= missing
                        && roomy.may_take(tracts)
                });
                if let Some(row) = fits
                    && roomy_id != full_id
                    && missing > 0
                {
                    return Some(with_joining(row, **roomy_id, view));
                }
            }
        }
    }
    None
}

/// One more step towards replicas that lie apart and equal shares: a row that is complete, into which a node joins in place of
/// another.
pub fn rebalance(
    rows: &[&Row],
    view: &View,
    promises: &Promises,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    spread(rows, view, promises, random).or_else(|| level(rows, view, promises, random))
}

/// A row with two replicas in one domain, and a node in a domain it is not in.
fn spread(
    rows: &[&Row],
    view: &View,
    promises: &Promises,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    let crowded = rows.iter().filter(|row| {
        is_complete(row)
            && row
                .replicas
                .iter()
                .any(|replica| shares_domain(replica, &row.replicas, view))
    });
    for row in crowded {
        let Some(node) = choose(&row.replicas, promises.tracts(row), view, random) else {
            continue;
        };
        let is_fresh = |replica: &Replica| {
            view.get(&replica.node)
                .is_none_or(|other| other.domain != view[&node].domain)
        };
        if row.replicas.iter().all(is_fresh) {
            return Some(with_joining(row, node, view));
        }
    }
    None
}

fn with_joining(row: &Row, node: NodeId, view: &View) -> Row {
    let version = RowVersion(row.version.0 + 1);
    let mut replicas = row.replicas.clone();
    replicas.push(Replica {
        node,
        state: ReplicaState::Joining,
        since: version,
        address: view[&node].address.clone(),
    });
    Row {
        version,
        replicas,
        ..row.clone()
    }
}

/// A row of the node that carries most for its size, into which the one that carries least can come.
fn level(rows: &[&Row], view: &View, promises: &Promises, random: &mut dyn FnMut(u64) -> u64) -> Option<Row> {
    let (light, lightest) = view
        .iter()
        .filter(|(_, node)| node.may_take(0))
        .min_by_key(|(_, node)| node.share())?;
    let (heavy, heaviest) = view
        .iter()
        .filter(|(_, node)| node.alive)
        .max_by_key(|(_, node)| node.share())?;
    // Below a difference of a fifth, moving costs more than it brings.
    if heaviest.share() * 4 < lightest.share() * 5 {
        return None;
    }
    let fits = |row: &&&Row| {
        let tracts = promises.tracts(row);
        is_complete(row)
            && row.replica(*heavy).is_some()
            && row.replica(*light).is_none()
            && lightest.may_take(tracts)
            // With it the light one must still be the lighter one, or the row would move for ever.
            && lightest.share_with(Some(tracts)) < heaviest.share()
            && row.replicas.iter().all(|replica| {
                replica.node == *heavy
                    || view
                        .get(&replica.node)
                        .is_some_and(|node| node.domain != lightest.domain)
            })
    };
    // Far from the rows that it has already: neighbouring rows are one disk's.
    let mut has: BTreeMap<Replication, BTreeSet<u32>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.replica(*light).is_some()) {
        has.entry(row.replication).or_default().insert(row.index.0);
    }
    let room = |row: &Row| {
        let at = row.index.0;
        has.get(&row.replication).map_or(u32::MAX, |has| {
            let below = has.range(..at).next_back().map_or(u32::MAX, |below| at - below);
            below.min(has.range(at..).next().map_or(u32::MAX, |above| above - at))
        })
    };
    let fitting: Vec<&&Row> = rows.iter().filter(fits).collect();
    let most = fitting.iter().map(|row| room(row)).max()?;
    let fitting: Vec<&&Row> = fitting.into_iter().filter(|row| room(row) == most).collect();
    let at = usize::try_from(random(fitting.len() as u64)).ok()?;
    Some(with_joining(fitting.get(at)?, *light, view))
}
