//! The pool: nodes that the service starts when a disk does not fit, and ends when they are not needed.
//!
//! ```text
//! a disk does not fit ─► nodes are launched, the disk waits (`scale_up`)   ─► it is placed, or undone when none came
//! room for a node more than is needed, for an hour ─► the emptiest is drained and its machine ended (`reconcile`)
//! a node that was lost for ten minutes ─► the same, so that what it had is copied and its machine does not cost for ever
//! ```
//!
//! The pool's nodes belong to one tenant, that of whoever runs the service. What it decides it decides from records, so any
//! instance may decide, and a decision that was made is not made again.

use crate::{
    app::App,
    context::TenantContext,
    handlers::{JOIN_SECONDS, LimitsRecord, NameRecord, NodeRecord, node_name_sort},
    names::DisplayName,
    placement::{DiskPlan, Room},
    problem::{Code, Problem},
    provision::{Boot, NodePlan, NodeProvisioner, ProvisionError},
    saga::{SagaRecord, Work},
    secrets::hex,
    store::{self, Change, Loaded, Record, TenantStore},
    types::{InUse, Node, NodeState},
};
use firn_blockd_placement::deliverable;
use firn_identity::{JoinSecret, NodeId, TenantId, UnixTime};
use firn_table::{Condition, Write};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// How long a machine has from being asked for to having joined: instances boot in a minute or two.
const JOIN_WITHIN_SECONDS: u64 = 15 * 60;
/// And until the cluster counts its room: its coordinator looks every second.
const COUNTED_WITHIN_SECONDS: u64 = 60;
/// A lost node may come back; after this its machine is given up.
const GIVEN_UP_SECONDS: u64 = 10 * 60;
/// Nodes of the pool: more need a second pool.
pub const MAX_POOL_NODES: u32 = 1000;

/// How a pool is.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Whose nodes they are.
    pub tenant: TenantId,
    /// It does not shrink below this.
    pub min_nodes: u32,
    /// It does not grow beyond this.
    pub max_nodes: u32,
    /// Where nodes are put, evenly.
    pub failure_domains: Vec<String>,
    /// So long there must be room for a node more than is needed before one is ended.
    pub idle_seconds: u64,
    /// What machines are told.
    pub boot: Boot,
}

/// A pool and what gives it machines.
#[derive(Clone)]
pub struct Pool {
    /// How it is.
    pub settings: PoolSettings,
    /// What gives it machines.
    pub provisioner: Arc<dyn NodeProvisioner>,
}

/// What the pool remembers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct PoolRecord {
    /// Since when it has had room for a node more than is needed.
    idle_since: Option<UnixTime>,
}

impl Record for PoolRecord {
    const KIND: &'static str = "pool";
}

const POOL: &str = "pool";

/// A disk that waits for nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waits {
    /// Until then.
    until: UnixTime,
    /// The operations that launch them.
    launches: Vec<String>,
}

/// Whether a disk that does not fit is worth waiting with.
pub(crate) enum Prospect {
    /// Nodes are on their way.
    Coming(Waits),
    /// There will be no more room; the reason for people.
    None(String),
}

impl Pool {
    /// The join secret of a node: derived, so that a launch that is repeated says the same and nothing secret is stored.
    fn join_secret(app: &App, node: NodeId) -> JoinSecret {
        let seed = app.master().node_secret(&node.to_string());
        JoinSecret::generate(&mut |bytes| bytes.copy_from_slice(&seed[..bytes.len()]))
    }

    pub(crate) fn plan(
        &self,
        app: &App,
        tenant: TenantId,
        node: NodeId,
        failure_domain: &str,
    ) -> Result<NodePlan, ProvisionError> {
        let secret = Self::join_secret(app, node).expose();
        let boot = &self.settings.boot;
        Ok(NodePlan {
            tenant,
            node,
            failure_domain: failure_domain.to_owned(),
            user_data: boot.user_data(tenant, node, failure_domain, &secret)?,
        })
    }
}

fn pool_store(app: &App, tenant: TenantId) -> TenantStore {
    TenantStore::of(app.table(), &TenantContext::for_service(tenant))
}

/// All nodes of the pool's tenant.
async fn nodes(store: &TenantStore) -> Result<Vec<Loaded<NodeRecord>>, Problem> {
    let (mut nodes, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = store.page::<NodeRecord>("node/", after.as_deref(), 100).await?;
        nodes.extend(page);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(nodes),
        }
    }
}

fn is_launching(node: &NodeRecord) -> bool {
    node.is_provisioned && node.node.state == NodeState::Invited
}

/// How many nodes a disk lacks, `most` at most: of room, and of failure domains for its copies. Room is what is left after the loss of
/// the largest domain, so a node in a domain that becomes the largest brings none.
fn lacking(
    plan: &DiskPlan,
    new_bytes: u64,
    room: Room,
    node_bytes: u64,
    domains: &BTreeMap<String, usize>,
    wanted: &[String],
    most: u64,
) -> u64 {
    let wanted_bytes = new_bytes.saturating_mul(u64::from(plan.replicas));
    let missing = wanted_bytes.saturating_sub(room.free_bytes());
    let survives = |domains: &BTreeMap<String, usize>| {
        let nodes = domains
            .iter()
            .flat_map(|(domain, nodes)| std::iter::repeat_n((&**domain, node_bytes.max(1)), *nodes));
        deliverable(nodes).tracts
    };
    let (before, mut grown, mut by_room) = (survives(domains), domains.clone(), 0);
    while survives(&grown).saturating_sub(before) < missing && by_room < most {
        *grown.entry(emptiest(wanted, &grown)).or_default() += 1;
        by_room += 1;
    }
    let by_domain = usize::from(plan.replicas).saturating_sub(domains.len());
    // It was refused, so at least one is: a node that is there may be unable to take what fits by the sum.
    by_room.max(u64::try_from(by_domain).unwrap_or(u64::MAX)).max(1)
}

/// Sees to it that nodes come for a disk that was refused; `waits` is what an earlier call gave.
pub(crate) async fn scale_up(
    app: &App,
    plan: &DiskPlan,
    new_bytes: u64,
    waits: Option<&Waits>,
    why: String,
) -> Result<Prospect, Problem> {
    let Some(pool) = app.pool() else {
        return Ok(Prospect::None(why));
    };
    let settings = &pool.settings;
    let store = pool_store(app, settings.tenant);
    if let Some(waits) = waits {
        return prospect(app, &store, waits, why).await;
    }
    let nodes = nodes(&store).await?;
    let of_pool = nodes.iter().filter(|node| node.record.is_provisioned).count();
    let mut launches: Vec<String> = nodes
        .iter()
        .filter(|node| is_launching(&node.record))
        .filter_map(|node| node.record.node.operation.clone())
        .collect();
    let domains = domains(&nodes);
    let room = app.placement().room().await.map_err(silent)?;
    let node_bytes = settings.boot.node_bytes;
    let allowed = u64::from(settings.max_nodes).saturating_sub(of_pool as u64);
    let wanted = &settings.failure_domains;
    let lacking = lacking(plan, new_bytes, room, node_bytes, &domains, wanted, allowed);
    let more = lacking.saturating_sub(launches.len() as u64).min(allowed);
    let mut in_domains = domains;
    for _ in 0..more {
        let domain = emptiest(&settings.failure_domains, &in_domains);
        match launch(app, settings, &store, &domain).await {
            Ok(operation) => launches.push(operation),
            Err(problem) if problem.code == Code::QuotaExceeded => break,
            Err(problem) => return Err(problem),
        }
        *in_domains.entry(domain).or_default() += 1;
    }
    if launches.is_empty() {
        return Ok(Prospect::None(format!("{why}; the pool has its {of_pool} nodes")));
    }
    app.wake_sagas();
    let until = app.now().plus(JOIN_WITHIN_SECONDS + COUNTED_WITHIN_SECONDS);
    Ok(Prospect::Coming(Waits { until, launches }))
}

fn silent(error: crate::placement::PlacementError) -> Problem {
    Problem::new(Code::StorageUnavailable, error.to_string())
}

/// Nodes by failure domain, of those that serve or are about to.
fn domains(nodes: &[Loaded<NodeRecord>]) -> BTreeMap<String, usize> {
    let mut domains = BTreeMap::new();
    for node in nodes {
        if matches!(node.record.node.state, NodeState::Active | NodeState::Invited) {
            *domains
                .entry(node.record.node.failure_domain.clone())
                .or_default() += 1;
        }
    }
    domains
}

fn emptiest(wanted: &[String], present: &BTreeMap<String, usize>) -> String {
    let load = |domain: &&String| present.get(*domain).copied().unwrap_or(0);
    wanted.iter().min_by_key(load).cloned().unwrap_or_default()
}

/// What became of the nodes that a disk waits for.
async fn prospect(app: &App, store: &TenantStore, waits: &Waits, why: String) -> Result<Prospect, Problem> {
    let (mut undone, mut came) = (Vec::new(), 0);
    for id in &waits.launches {
        let saga = store.require::<SagaRecord>(&SagaRecord::sort(id), id).await?;
        let shown = saga.record.show();
        if shown.state == "undone" {
            undone.push(shown.failure.unwrap_or_default());
        } else if shown.state == "done" {
            came += 1;
        }
    }
    if undone.len() == waits.launches.len() {
        return Ok(Prospect::None(format!(
            "{why}; no node came: {}",
            undone.join(", ")
        )));
    }
    if app.now() < waits.until {
        return Ok(Prospect::Coming(waits.clone()));
    }
    // Its launch may be ended only after this.
    let missing = waits.launches.len() - undone.len() - came;
    Ok(Prospect::None(if missing == 0 {
        format!("{why}, with the nodes that came as well")
    } else {
        format!("{why}; {missing} of its nodes did not join in time")
    }))
}

/// Commits that a node is to be; gives the operation that makes it so.
async fn launch(
    app: &App,
    settings: &PoolSettings,
    store: &TenantStore,
    failure_domain: &str,
) -> Result<String, Problem> {
    let id = NodeId::random(&mut app.entropy());
    let now = app.now();
    let work = Work::LaunchNode {
        node: id,
        deadline: now.plus(JOIN_WITHIN_SECONDS),
    };
    let saga = SagaRecord::new(app.env(), None, work);
    let name = format!("pool-{}", &hex(&id.0)[..8]);
    let node = Node {
        id,
        name: DisplayName::try_from(name).map_err(Problem::internal)?,
        failure_domain: failure_domain.to_owned(),
        state: NodeState::Invited,
        address: None,
        capacity_bytes: 0,
        free_bytes: 0,
        last_seen: None,
        machine: None,
        operation: Some(saga.id.clone()),
        created: now,
    };
    let record = NodeRecord {
        node,
        authenticator_hash: Some(hex(&Pool::join_secret(app, id).authenticator().hash().0)),
        invitation_expires: now.plus(JOIN_SECONDS),
        is_provisioned: true,
    };
    let (name, entry) = (
        node_name_sort(&record.node.name),
        NameRecord {
            owner: id.to_string(),
        },
    );
    // Others change the tenant too; who loses looks again, a few times.
    for _ in 0..8 {
        let limits = LimitsRecord::load(store).await?;
        let taken = limits.record.take(
            "nodes",
            InUse {
                nodes: 1,
                ..InUse::default()
            },
        )?;
        let change = Change::new(store, None, "node.launch", id)
            .detail(format!("a disk does not fit; in {failure_domain}"))
            .create(&NodeRecord::sort(id), &record)
            .create(&name, &entry)
            .update(&limits, &taken);
        match saga.begin(settings.tenant, change).commit(app.env(), None).await {
            Err(problem) if problem.code == Code::ChangedMeanwhile => {}
            result => return result.map(|_| saga.id.clone()),
        }
    }
    Err(Problem::new(
        Code::ChangedMeanwhile,
        "the pool's tenant changes all the time",
    ))
}

/// Ends what the pool does not need: a node that has been lost for long, or the emptiest when there has long been room for one less.
/// Gives whether it began to end one; one at a time.
///
/// # Errors
/// If storage or nodes did not answer; the next look goes on.
pub async fn reconcile(app: &App) -> Result<bool, Problem> {
    let Some(pool) = app.pool() else {
        return Ok(false);
    };
    let settings = &pool.settings;
    let store = pool_store(app, settings.tenant);
    let nodes = nodes(&store).await?;
    let busy = |node: &&Loaded<NodeRecord>| {
        is_launching(&node.record) || node.record.node.state == NodeState::Draining
    };
    if nodes.iter().find(busy).is_some() {
        return remember(app, &store, None).await.map(|()| false);
    }
    let given_up = app.now().minus(GIVEN_UP_SECONDS);
    let lost = nodes.iter().find(|node| {
        node.record.is_provisioned
            && node.record.node.state == NodeState::Lost
            && node.record.node.last_seen.is_none_or(|seen| seen < given_up)
    });
    if let Some(lost) = lost {
        return begin_drain(app, settings, &store, lost, "it has been lost for long").await;
    }
    let serving: Vec<_> = nodes
        .iter()
        .filter(|node| node.record.is_provisioned && node.record.node.state == NodeState::Active)
        .collect();
    let room = app.placement().room().await.map_err(silent)?;
    // One less, and then still room for half a node, so that the next small disk does not bring it back.
    let node_bytes = settings.boot.node_bytes;
    let is_idle =
        serving.len() > settings.min_nodes as usize && room.free_bytes() >= node_bytes + node_bytes / 2;
    if !is_idle {
        return remember(app, &store, None).await.map(|()| false);
    }
    let now = app.now();
    let since = idle_since(&store).await?.unwrap_or(now);
    if now < since.plus(settings.idle_seconds) {
        return remember(app, &store, Some(since)).await.map(|()| false);
    }
    match serving.iter().max_by_key(|node| node.record.node.free_bytes) {
        Some(emptiest) => begin_drain(app, settings, &store, emptiest, "it is not needed").await,
        None => Ok(false),
    }
}

async fn idle_since(store: &TenantStore) -> Result<Option<UnixTime>, Problem> {
    let record = store.get::<PoolRecord>(POOL).await?;
    Ok(record.and_then(|record| record.record.idle_since))
}

async fn remember(app: &App, store: &TenantStore, since: Option<UnixTime>) -> Result<(), Problem> {
    let loaded = store.get::<PoolRecord>(POOL).await?;
    let before = loaded.as_ref().and_then(|loaded| loaded.record.idle_since);
    if before == since {
        return Ok(());
    }
    let write = Write::Put {
        key: store.key(POOL),
        value: store::encode(&PoolRecord { idle_since: since }),
        condition: loaded.map_or(Condition::Absent, |loaded| Condition::Version(loaded.version)),
    };
    app.table().transact(vec![write]).await?;
    Ok(())
}

async fn begin_drain(
    app: &App,
    settings: &PoolSettings,
    store: &TenantStore,
    node: &Loaded<NodeRecord>,
    why: &str,
) -> Result<bool, Problem> {
    let id = node.record.node.id;
    match app.placement().may_drain(id).await {
        Ok(()) => {}
        // It stays until more nodes serve; the next look asks again.
        Err(crate::placement::PlacementError::TooFewNodes(why)) => {
            tracing::info!(node = %id, why, "a node of the pool cannot be emptied");
            return Ok(false);
        }
        Err(error) => return Err(silent(error)),
    }
    let saga = SagaRecord::new(app.env(), None, Work::DrainNode { node: id });
    let change = Change::new(store, None, "node.drain", id)
        .detail(why)
        .update(node, &node.record.draining(&saga));
    saga.begin(settings.tenant, change)
        .commit(app.env(), None)
        .await?;
    app.wake_sagas();
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_identity::DiskId;

    #[test]
    fn a_disk_lacks_room_or_failure_domains_whichever_is_more() {
        let plan = |replicas| DiskPlan {
            tenant: TenantId([1; 16]),
            disk: DiskId([1; 16]),
            size_bytes: 1000,
            replicas,
        };
        let room = |total_bytes, promised_bytes| Room {
            total_bytes,
            promised_bytes,
        };
        let wanted: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        let lacking = |plan: &DiskPlan, new_bytes, room, node_bytes, domains: usize| {
            let names = ["a", "b", "c", "d", "e"].into_iter().take(domains);
            let domains = names.map(|name| (name.to_owned(), 1)).collect();
            super::lacking(plan, new_bytes, room, node_bytes, &domains, &wanted, 20)
        };
        // 3 copies of 1000 in 500 free: 2500 missing. Of five more nodes of 1000 three survive the loss of a domain.
        assert_eq!(lacking(&plan(3), 1000, room(1500, 1000), 1000, 3), 5);
        assert_eq!(
            lacking(&plan(3), 1000, room(0, 0), 1_000_000, 0),
            3,
            "a domain each"
        );
        assert_eq!(lacking(&plan(3), 1000, room(9000, 0), 1000, 2), 1);
        assert_eq!(
            lacking(&plan(1), 1000, room(9000, 0), 1000, 5),
            1,
            "refused all the same"
        );
        assert_eq!(
            lacking(&plan(1), u64::MAX, room(0, 0), 1, 0),
            20,
            "no more than may be"
        );
        assert_eq!(
            lacking(&plan(1), 1, room(5, 9), 0, 1),
            1,
            "promised more than there is"
        );
    }

    #[test]
    fn nodes_are_spread_over_the_failure_domains() {
        let wanted = ["a".to_owned(), "b".to_owned()];
        let mut present = BTreeMap::from([("a".to_owned(), 1)]);
        assert_eq!(emptiest(&wanted, &present), "b");
        present.insert("b".into(), 2);
        assert_eq!(emptiest(&wanted, &present), "a");
    }
}
