//! The rules by which a row changes: pure functions, so that they can be tested over every case.
//!
//! ```text
//! event                             what becomes of the row                                    when
//! nobody in it yet                  the next node by round robin, others by chance up to `copies` enough nodes live
//!                                   nodes of different domains, all active
//! a replica is dead                 it leaves                                                  a living active one stays
//! no active replica lives           nothing: only the return of one can help                   always
//! too few replicas                  a living node joins                                        one is left that is not in it
//! a replica drains                  another joins; then the draining one leaves                `copies` active ones stay
//! more active than copies           the one whose node carries most leaves                     always
//! a node is moved in to balance     it joins; the rule above ends the move                     nothing else is to be done
//! ```
//!
//! Why a dead replica stays while no active one lives: each of several dead replicas may be the only one that comes back.
//! While a row has no living active replica nobody can write to it, so all active ones hold the same acknowledged writes,
//! and the first that returns has them all.
//!
//! *Why round robin.* A disk's tracts lie in neighbouring rows. If the first replicas of as many neighbouring rows as there are
//! nodes lie on as many nodes, wherever one begins to count, a segment as wide as the cluster keeps every arm busy; nodes drawn by
//! chance would give some arms three of its tracts and others none, and it is as fast as the slowest. The other replicas are drawn by
//! chance, so that those who share rows with a node that dies are as many as can be, and copy its rows to as many.

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
    /// It has room for more tracts.
    pub has_room: bool,
    /// It is being emptied.
    pub draining: bool,
    /// Replicas it carries.
    pub load: u64,
}

impl NodeView {
    /// Whether it may be given new replicas.
    fn may_join(&self) -> bool {
        self.alive && self.proven && self.has_room && !self.draining
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
    fn next(&self, view: &View, random: &mut dyn FnMut(u64) -> u64) -> Option<NodeId> {
        let turn = |id: &NodeId| self.0.get(id).copied().unwrap_or_default();
        let candidates = || view.iter().filter(|(_, node)| node.may_join()).map(|(id, _)| *id);
        let best = candidates().map(|id| turn(&id)).min()?;
        let equal: Vec<NodeId> = candidates().filter(|id| turn(id) == best).collect();
        let at = usize::try_from(random(equal.len() as u64)).ok()?;
        equal.get(at).copied()
    }
}

/// What the row becomes; `None`: it stays as it is. `round_robin` are those of its table, `random` gives a number below its argument.
pub fn next(
    row: &Row,
    view: &View,
    round_robin: &mut RoundRobin,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<Row> {
    let copies = row.replication.copies();
    if row.replicas.is_empty() {
        return build(row, view, round_robin, random);
    }
    let alive = |replica: &Replica| view.get(&replica.node).is_some_and(|node| node.alive);
    let draining = |replica: &Replica| view.get(&replica.node).is_some_and(|node| node.draining);
    let active = |replica: &Replica| replica.state == ReplicaState::Active;
    let mut replicas = row.replicas.clone();
    if !replicas.iter().any(|replica| active(replica) && alive(replica)) {
        return None;
    }
    replicas.retain(|replica| alive(replica));
    let settled = |replicas: &[Replica]| {
        replicas
            .iter()
            .filter(|replica| active(replica) && !draining(replica))
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
                let load = view.get(&replica.node).map_or(0, |node| node.load);
                (shares_domain(replica, &replicas, view), load, replica.node)
            })
            .map(|replica| replica.node)?;
        replicas.retain(|replica| replica.node != most);
    }
    let version = RowVersion(row.version.0 + 1);
    while replicas.iter().filter(|replica| !draining(replica)).count() < copies
        && replicas.len() < MAX_REPLICAS
    {
        let Some(node) = choose(&replicas, view, random) else {
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
            round_robin.next(view, random)?
        } else {
            choose(&replicas, view, random)?
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

/// A node to join these replicas: in a domain none of them is in if there is one, of those the least loaded, by chance.
fn choose(replicas: &[Replica], view: &View, random: &mut dyn FnMut(u64) -> u64) -> Option<NodeId> {
    let used: BTreeSet<&str> = replicas
        .iter()
        .filter_map(|replica| view.get(&replica.node))
        .filter(|node| !node.draining)
        .map(|node| &*node.domain)
        .collect();
    let candidates: Vec<(&NodeId, &NodeView)> = view
        .iter()
        .filter(|(id, node)| node.may_join() && !replicas.iter().any(|replica| replica.node == **id))
        .collect();
    let apart: Vec<_> = candidates
        .iter()
        .copied()
        .filter(|(_, node)| !used.contains(&*node.domain))
        .collect();
    let candidates = if apart.is_empty() { candidates } else { apart };
    let least = candidates.iter().map(|(_, node)| node.load).min()?;
    let lightest: Vec<_> = candidates
        .into_iter()
        .filter(|(_, node)| node.load == least)
        .collect();
    let at = usize::try_from(random(lightest.len() as u64)).ok()?;
    lightest.get(at).map(|(id, _)| **id)
}

/// One more step towards replicas that lie apart and equal loads: a row that is complete, into which a node joins in place of
/// another.
pub fn rebalance(rows: &[&Row], view: &View, random: &mut dyn FnMut(u64) -> u64) -> Option<Row> {
    spread(rows, view, random).or_else(|| level(rows, view, random))
}

/// A row with two replicas in one domain, and a node in a domain it is not in.
fn spread(rows: &[&Row], view: &View, random: &mut dyn FnMut(u64) -> u64) -> Option<Row> {
    let crowded = rows.iter().filter(|row| {
        is_complete(row)
            && row
                .replicas
                .iter()
                .any(|replica| shares_domain(replica, &row.replicas, view))
    });
    for row in crowded {
        let Some(node) = choose(&row.replicas, view, random) else {
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

/// A row of the heaviest node into which the lightest can come.
fn level(rows: &[&Row], view: &View, random: &mut dyn FnMut(u64) -> u64) -> Option<Row> {
    let (light, lightest) = view
        .iter()
        .filter(|(_, node)| node.may_join())
        .min_by_key(|(_, node)| node.load)?;
    let (heavy, heaviest) = view
        .iter()
        .filter(|(_, node)| node.alive)
        .max_by_key(|(_, node)| node.load)?;
    // Below a difference of a fifth, moving costs more than it brings.
    if heaviest.load < lightest.load + 2 || heaviest.load * 4 < lightest.load * 5 {
        return None;
    }
    let fits = |row: &&&Row| {
        is_complete(row)
            && row.replica(*heavy).is_some()
            && row.replica(*light).is_none()
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
