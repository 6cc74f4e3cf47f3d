//! Metering by the API itself, which is charged: requests that it served, and provisioned capacity by the hour.
//!
//! **Requests** of members and API keys are counted in memory and written to a durable spool once a minute; machines' own
//! (heartbeats, reports, renewals) cost nothing, since no customer decides on them. A process that dies loses the counts of
//! its last minute, in the customer's favour.
//!
//! **Capacity** is observed when an hour is over: each disk's bytes for the part of the hour that it existed, and one hour
//! for each edge that is enrolled. Any number of instances may do it at once, so the observation is first *decided* and then
//! delivered:
//!
//! ```text
//! capacity item:  hour, next sequence, pending batch
//!   idle, hour < now − 1 ──(conditional write)──▶ pending, hour = now − 1     who wins this write is who observed
//!   pending ──(ledger accepts the batch, exactly once by its numbers)──(conditional write)──▶ idle
//! ```
//!
//! Whoever finds a pending batch delivers it. An hour in which no instance ran is not charged.
//!
//! **Root commits** are counted by `firn_anchor_service::CommitMeter`, from the versions of the roots: some seconds after a commit, by
//! the instance that made it, and in a walk over all volumes, for what an instance that died did not come to.

use crate::{
    app::App,
    context::TenantContext,
    handlers::{DiskRecord, EdgeRecord, VolumeRecord, refused},
    problem::{Code, Problem},
    store::{self, Loaded, Record, TenantStore},
    types::{EdgeState, VolumeState},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_anchor_service::{CommitMeter, Ledger, MeterError};
use firn_billing::{Billing, Hour, Reporter};
use firn_identity::{Principal, TenantId, TenantVolume};
use firn_table::{Condition, Write};
use firn_usage::{
    APPEND_MAX, Incarnation, Meter, Observation, ResourceName, SourceId, Spool, TenantName, UsageBatch,
};
use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, pin::pin, sync::Mutex};

/// Disks, and edges, of one tenant with a record of their own; what is beyond is added up under one name.
const NAMED_MAX: usize = 1000;
const HOUR_MS: u32 = 3_600_000;
/// Volumes whose commits are counted at the same time. Each is some ten requests to the table, one after the other, and the fold waits for all of them:
/// a thousand tenants that commit once a minute are thirty volumes in each pass.
const VOLUMES_AT_ONCE: usize = 8;

/// Requests since they were last written down, by tenant. Bounded by the tenants that exist: only verified callers count.
#[derive(Default)]
pub(crate) struct OperationCounts(Mutex<BTreeMap<TenantId, u64>>);

impl OperationCounts {
    /// Counts a request of a member or a key.
    pub(crate) fn count(&self, context: &TenantContext) {
        let Some(caller) = context.caller() else { return };
        match caller.principal {
            Principal::Member(_) | Principal::Key(_) => self.add(context.tenant(), 1),
            Principal::Edge(_) | Principal::Node(_) => {}
        }
    }

    fn add(&self, tenant: TenantId, more: u64) {
        let mut counts = self.0.lock().expect("no panic under this lock");
        let count = counts.entry(tenant).or_default();
        *count = count.saturating_add(more);
    }

    /// How many the bill lacks if the process dies now.
    pub(crate) fn unrecorded(&self) -> u64 {
        let counts = self.0.lock().expect("no panic under this lock");
        counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn take(&self) -> BTreeMap<TenantId, u64> {
        std::mem::take(&mut *self.0.lock().expect("no panic under this lock"))
    }
}

/// Writes the counted requests into `spool`; gives how many. What the spool does not take is counted on.
///
/// # Errors
/// If the spool did not take them all.
pub async fn record_operations(app: &App, spool: &Spool) -> Result<u64, firn_usage::SpoolError> {
    let at_ms = now_ms(app);
    let counts: Vec<_> = app.counts().take().into_iter().collect();
    let mut recorded = 0;
    for (index, part) in counts.chunks(APPEND_MAX).enumerate() {
        let observations = part
            .iter()
            .map(|(tenant, quantity)| Observation {
                tenant: TenantName::from(*tenant),
                resource: resource("api"),
                meter: Meter::API_OPERATIONS,
                quantity: *quantity,
                from_ms: at_ms,
                duration_ms: 0,
            })
            .collect();
        if let Err(error) = spool.append(observations).await {
            for (tenant, quantity) in &counts[index * APPEND_MAX..] {
                app.counts().add(*tenant, *quantity);
            }
            return Err(error);
        }
        recorded += part.iter().map(|(_, quantity)| quantity).sum::<u64>();
    }
    Ok(recorded)
}

/// The service's clock in milliseconds since 1970.
pub(crate) fn now_ms(app: &App) -> u64 {
    u64::try_from(app.env().wall().as_millis()).unwrap_or(0)
}

fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).expect("made of letters, digits, slashes and underscores")
}

/// The ledger of this installation.
struct Own<'a>(&'a Billing);

#[async_trait::async_trait]
impl Ledger for Own<'_> {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), String> {
        let reporter = Reporter::service(batch.source().clone());
        let receipt = self.0.accept(&reporter, batch).await;
        receipt.map(drop).map_err(|error| error.to_string())
    }
}

async fn settle(app: &App, volume: TenantVolume) -> Result<u64, Problem> {
    let meter = CommitMeter::new(app.env().clone(), app.table().clone());
    match meter.settle(volume, &Own(app.billing())).await {
        Ok(commits) => Ok(commits),
        Err(MeterError::Table { error, .. }) => Err(error.into()),
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "commits wait for the next pass");
            Err(Problem::new(
                Code::StorageUnavailable,
                "commits wait for the next pass",
            ))
        }
        Err(error) => Err(Problem::internal(error)),
    }
}

/// Brings the root commits that this instance made since the last call into the ledger; gives how many.
///
/// # Errors
/// The last of the failures; what was not counted is counted by the next call or the next walk.
pub async fn settle_commits(app: &App) -> Result<u64, Problem> {
    let (mut commits, mut failure) = (0, None);
    let settling = async |volume| (volume, settle(app, volume).await);
    let volumes = stream::iter(app.anchor().take_committed());
    let mut settled = pin!(volumes.map(settling).buffer_unordered(VOLUMES_AT_ONCE));
    while let Some((volume, outcome)) = settled.next().await {
        match outcome {
            Ok(more) => commits += more,
            Err(problem) => {
                app.anchor().put_back(volume);
                failure = Some(problem);
            }
        }
    }
    failure.map_or(Ok(commits), Err)
}

/// Brings all root commits of a tenant's volumes into the ledger, whoever made them; gives how many.
///
/// # Errors
/// If storage or the ledger did not answer; the next walk goes on.
pub async fn settle_commits_of(app: &App, tenant: TenantId) -> Result<u64, Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let mut volumes = Vec::new();
    each::<VolumeRecord>(&store, "volume/", |record| {
        // What is being erased was counted before.
        if matches!(record.volume.state, VolumeState::Active | VolumeState::Deleted) {
            volumes.push(record.volume.id);
        }
    })
    .await?;
    let mut commits = 0;
    for volume in volumes {
        commits += settle(app, TenantVolume { tenant, volume }).await?;
    }
    Ok(commits)
}

/// Counts what was committed to a volume before its roots go.
///
/// # Errors
/// If storage or the ledger did not answer; then the roots have to stay.
pub(crate) async fn settle_last_commits(app: &App, volume: TenantVolume) -> Result<(), Problem> {
    settle(app, volume).await.map(drop)
}

/// How far a tenant's capacity was observed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CapacityRecord {
    /// The last hour that was observed.
    hour: u32,
    next_sequence: u64,
    /// What was decided and may not be in the ledger yet: a batch, base64.
    pending: Option<String>,
}

impl Record for CapacityRecord {
    const KIND: &'static str = "capacity";
}

const CAPACITY: &str = "capacity";

/// Observes a tenant's capacity in the hour that ended last, if nobody did, and delivers what is pending. Gives how many
/// records were delivered.
///
/// # Errors
/// If storage did not answer, or others were faster too often; calling again goes on.
pub async fn observe_capacity(app: &App, tenant: TenantId) -> Result<usize, Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let mut delivered = 0;
    // Deliver what is there, decide, deliver: three rounds, each lost to another instance now and then.
    for _ in 0..12 {
        let loaded = store.get::<CapacityRecord>(CAPACITY).await?;
        let over = Hour(Hour::of_ms(now_ms(app)).0.saturating_sub(1));
        let next = match &loaded {
            Some(Loaded { record, .. }) if record.pending.is_some() => {
                delivered += deliver(app, tenant, record).await?;
                CapacityRecord {
                    pending: None,
                    ..record.clone()
                }
            }
            Some(Loaded { record, .. }) if record.hour >= over.0 => return Ok(delivered),
            Some(Loaded { record, .. }) => decide(app, &store, tenant, over, record.next_sequence).await?,
            None => decide(app, &store, tenant, over, 1).await?,
        };
        let write = Write::Put {
            key: store.key(CAPACITY),
            value: store::encode(&next),
            condition: loaded.map_or(Condition::Absent, |loaded| Condition::Version(loaded.version)),
        };
        match app.table().transact(vec![write]).await.map_err(Problem::from) {
            Err(problem) if problem.code != Code::ChangedMeanwhile => return Err(problem),
            Ok(_) | Err(_) => app.env().fault_point("metering.capacity_written").await,
        }
    }
    Err(Problem::new(
        Code::ChangedMeanwhile,
        "other instances observe the same tenant",
    ))
}

async fn decide(
    app: &App,
    store: &TenantStore,
    tenant: TenantId,
    hour: Hour,
    first: u64,
) -> Result<CapacityRecord, Problem> {
    let observations = observed(store, tenant, hour).await?;
    let next_sequence = first + observations.len() as u64;
    let pending = if observations.is_empty() {
        None
    } else {
        let batch = UsageBatch::new(source(tenant), Incarnation(1), first, observations)
            .and_then(|batch| batch.encode())
            .map_err(Problem::internal)?;
        Some(STANDARD_NO_PAD.encode(batch))
    };
    app.env().fault_point("metering.capacity_observed").await;
    Ok(CapacityRecord {
        hour: hour.0,
        next_sequence,
        pending,
    })
}

async fn deliver(app: &App, tenant: TenantId, record: &CapacityRecord) -> Result<usize, Problem> {
    let bytes = STANDARD_NO_PAD
        .decode(record.pending.as_deref().unwrap_or_default())
        .map_err(Problem::internal)?;
    let batch = UsageBatch::decode(&bytes).map_err(Problem::internal)?;
    let reporter = Reporter::service(source(tenant));
    app.billing().accept(&reporter, &batch).await.map_err(refused)?;
    app.env().fault_point("metering.capacity_delivered").await;
    Ok(batch.observations().len())
}

/// One stream a tenant, so that instances that observe different tenants never meet.
fn source(tenant: TenantId) -> SourceId {
    SourceId::new(&format!("capacity/{tenant}")).expect("made of letters, digits, slashes and underscores")
}

/// What a tenant had in an hour.
async fn observed(store: &TenantStore, tenant: TenantId, hour: Hour) -> Result<Vec<Observation>, Problem> {
    let ends_ms = hour.start_ms() + u64::from(HOUR_MS);
    let mut disks = Vec::new();
    each::<DiskRecord>(store, "disk/", |record| {
        let existed_ms = ends_ms
            .saturating_sub(record.disk.created.0.saturating_mul(1000))
            .min(u64::from(HOUR_MS));
        let byte_hours = u128::from(record.disk.size_bytes) * u128::from(existed_ms) / u128::from(HOUR_MS);
        disks.push((
            format!("disk/{}", record.disk.id),
            u64::try_from(byte_hours).unwrap_or(u64::MAX),
        ));
    })
    .await?;
    let mut edges = Vec::new();
    each::<EdgeRecord>(store, "edge/", |record| {
        // Who joined after the hour had nothing in it, and may be seen before it is observed.
        let since_ms = record
            .joined
            .unwrap_or(record.edge.created)
            .0
            .saturating_mul(1000);
        if record.edge.state == EdgeState::Active && since_ms < ends_ms {
            edges.push((format!("edge/{}", record.edge.id), 1));
        }
    })
    .await?;
    let mut observations = Vec::new();
    for (meter, others, counted) in [
        (Meter::DISK_BYTE_HOURS, "disk/others", disks),
        (Meter::EDGE_HOURS, "edge/others", edges),
    ] {
        let mut named: Vec<(String, u64)> = counted
            .into_iter()
            .filter(|(_, quantity)| *quantity > 0)
            .collect();
        let rest = named.split_off(named.len().min(NAMED_MAX));
        let sum = rest
            .iter()
            .fold(0_u64, |sum, (_, quantity)| sum.saturating_add(*quantity));
        named.extend((sum > 0).then(|| (others.to_owned(), sum)));
        observations.extend(named.into_iter().map(|(name, quantity)| Observation {
            tenant: TenantName::from(tenant),
            resource: resource(&name),
            meter,
            quantity,
            from_ms: hour.start_ms(),
            // The last millisecond still belongs to the hour, and with it the record.
            duration_ms: HOUR_MS - 1,
        }));
    }
    Ok(observations)
}

/// Passes over all records of a kind.
pub(crate) async fn each<T: Record>(
    store: &TenantStore,
    prefix: &str,
    mut see: impl FnMut(T),
) -> Result<(), Problem> {
    let mut after = None;
    loop {
        let (records, next) = store.page::<T>(prefix, after.as_deref(), 100).await?;
        records.into_iter().for_each(|loaded| see(loaded.record));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}
