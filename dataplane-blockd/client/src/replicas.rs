//! The replicas of a disk on real nodes.
//!
//! *Stores.* Each store gets a generation of its own, in the order of the calls; of two contents of a block the higher
//! generation stands wherever it arrives, so an attempt that was given up can do no harm later: what it carries is the same
//! bytes, or older ones. The version that counts in recovery is inside the seal, but for blocks in place, whose version is
//! the node's generation. A store is done when all replicas of one version of the row acknowledged it as durable, joining
//! ones included. If the row changes meanwhile, all replicas of the new version are asked.
//!
//! *Loads* go to active replicas. Recovery reads all of one version of a row: one that cannot be reached is waited for
//! until it is back or out of the row, since it may be the only one that has what was under way at the crash.
//!
//! *Bounds.* Stores and loads under way hold their bytes of two budgets, so that loads are never behind stores; every call
//! gives up after a while ([`ReplicaOptions::deadline_after`]) and leaves it to the disk to ask again.

use crate::{
    access::Access,
    chunks::{self, Found, Piece},
    layout::{Layout, LayoutError},
    pool::{Pool, Speaker},
    retry::RetryState,
    rows::Rows,
    waits::{Waiting, Waits},
};
use async_trait::async_trait;
use firn_blockd_disk::{
    Body, Copy, Incarnation, LoadedPart, ReplicaError, Replicas, Sealer, Store, Stored, Unit, Version,
};
use firn_blockd_placement::{DiskTable, PlacementError};
use firn_blockd_protocol::{
    CallError, ConnectionOptions, DiskId, Fence, Generation, NodeId, Refusal, Replica, ReplicaState,
    Replication, Reply, Request, Row, TenantId, TractId, limits::MESSAGE_OVERHEAD_BYTES,
};
use firn_env::Env;
use futures::{
    future::{join_all, try_join_all},
    stream::{self, StreamExt, TryStreamExt},
};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Parts of a checkpoint under way at once: 4 MiB.
const PARTS_AT_ONCE: usize = 4;
/// Runs of blocks of one read that are fetched at once: as many as a segment has tracts.
pub(crate) const RUNS_AT_ONCE: usize = 128;

/// Tracts of one range that are zeroed at once: enough to keep a small cluster busy, and few enough to leave it to others too.
const ZEROED_AT_ONCE: usize = 16;

/// How replicas are used.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// How long a store or a load is tried before it is given back.
    pub deadline_after: Duration,
    /// Bytes of stores under way, and as many again of loads.
    pub bytes_in_flight: usize,
    /// Of each connection.
    pub connection: ConnectionOptions,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            deadline_after: Duration::from_secs(30),
            bytes_in_flight: 64 << 20,
            connection: ConnectionOptions {
                call_limit: Duration::from_secs(10),
                open_limit: Duration::from_secs(5),
                bytes_in_flight: 16 << 20,
                ..ConnectionOptions::default()
            },
        }
    }
}

/// Counts since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaUsage {
    /// Stores that are durable on all replicas.
    pub stores: u64,
    /// Requests to write or zero that were sent to nodes, each replica counted.
    pub store_requests: u64,
    /// Loads answered.
    pub loads: u64,
    /// Times that a store or a load had to be asked again.
    pub retries: u64,
    /// Bytes of blocks sent to nodes, each replica counted.
    pub sent_bytes: u64,
    /// Bytes of blocks that nodes sent.
    pub received_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    stores: AtomicU64,
    pub(crate) store_requests: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

/// See the module.
pub struct ClusterReplicas {
    pub(crate) env: Env,
    pub(crate) speaker: Speaker,
    replication: Replication,
    tracts: AtomicU64,
    pub(crate) layout: Layout,
    pub(crate) sealer: Sealer,
    pub(crate) rows: Rows,
    pub(crate) pool: Pool,
    pub(crate) deadline_after: Duration,
    next_sequence: AtomicU64,
    stores: Semaphore,
    pub(crate) loads: Semaphore,
    budget: usize,
    pub(crate) counters: Counters,
    pub(crate) waits: Waits,
}

/// The disk that is attached.
pub(crate) struct Attachment {
    pub(crate) tenant: TenantId,
    pub(crate) disk: DiskId,
    pub(crate) fence: Fence,
    pub(crate) replication: Replication,
    pub(crate) tracts: u32,
}

impl ClusterReplicas {
    pub(crate) async fn new(
        env: &Env,
        table: &Arc<dyn DiskTable>,
        access: Access,
        attachment: Attachment,
        layout: Layout,
        key: [u8; 32],
        options: ReplicaOptions,
    ) -> Result<Self, PlacementError> {
        let Attachment {
            tenant,
            disk,
            fence,
            replication,
            tracts,
        } = attachment;
        let speaker = Speaker { tenant, disk, fence };
        Ok(Self {
            env: env.clone(),
            speaker,
            replication,
            tracts: AtomicU64::new(tracts.into()),
            layout,
            sealer: Sealer::new(key),
            rows: Rows::read(env, table, replication, disk).await?,
            pool: Pool::new(env, access, speaker, options.connection),
            deadline_after: options.deadline_after,
            next_sequence: AtomicU64::new(1),
            stores: Semaphore::new(options.bytes_in_flight),
            loads: Semaphore::new(options.bytes_in_flight),
            budget: options.bytes_in_flight,
            counters: Counters::default(),
            waits: Waits::default(),
        })
    }

    /// The disk has grown.
    pub(crate) fn set_tracts(&self, tracts: u32) {
        self.tracts.store(tracts.into(), Relaxed);
    }

    /// What was done since the attach.
    pub fn usage(&self) -> ReplicaUsage {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        ReplicaUsage {
            stores: read(&self.counters.stores),
            store_requests: read(&self.counters.store_requests),
            loads: read(&self.counters.loads),
            retries: read(&self.counters.retries),
            sent_bytes: read(&self.counters.sent_bytes),
            received_bytes: read(&self.counters.received_bytes),
        }
    }

    /// What has waited longest of the stores and loads that wait for nodes at this moment; nothing if none does.
    pub fn trouble(&self) -> Option<Waiting> {
        self.waits.oldest(&self.env)
    }

    pub(crate) fn tract(&self, index: u32) -> TractId {
        TractId {
            disk: self.speaker.disk,
            index,
        }
    }

    /// Whether any block of the disk's log was ever written, as far as any active replica knows.
    pub(crate) async fn is_blank(&self) -> Result<bool, ReplicaError> {
        let first = self.layout.chunk(Unit::Log(0), 0).map_err(foreign)?;
        let mut retry = RetryState::new(&self.env);
        for row in self.rows.of_disk(self.tracts()) {
            for replica in row.active() {
                loop {
                    let request = Request::List {
                        disk: Some(self.speaker.disk),
                        row: None,
                        after: None,
                        limit: 512,
                    };
                    match self.pool.call(replica, request).await {
                        // Checkpoints are all that can be there before the first entry.
                        Ok(Reply::List { tracts, more }) => {
                            let log = |index: u32| index >= first.tract;
                            if more || tracts.iter().any(|tract| log(tract.index)) {
                                return Ok(false);
                            }
                            break;
                        }
                        Ok(_) => return Err(confused(replica)),
                        Err(error) => {
                            self.wait(&mut retry, &row, error.to_string()).await?;
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    pub(crate) fn tracts(&self) -> u32 {
        u32::try_from(self.tracts.load(Relaxed)).unwrap_or(u32::MAX)
    }

    pub(crate) fn budgeted(&self, bytes: usize) -> u32 {
        u32::try_from((bytes + MESSAGE_OVERHEAD_BYTES).min(self.budget)).unwrap_or(u32::MAX)
    }

    /// Of the next store. The order of the calls is the order of generations, so it is taken before anything is waited for.
    fn next_generation(&self) -> Generation {
        let sequence = self.next_sequence.fetch_add(1, Relaxed);
        Generation::new(self.speaker.fence, sequence)
    }

    async fn permit_stores(&self, bytes: usize) -> SemaphorePermit<'_> {
        self.stores
            .acquire_many(self.budgeted(bytes))
            .await
            .expect("the semaphore is never closed")
    }

    /// Makes pieces durable, some at once.
    pub(crate) async fn put_all(
        &self,
        mut pieces: impl ExactSizeIterator<Item = Piece> + Send,
        at_once: usize,
        generation: Generation,
    ) -> Result<(), ReplicaError> {
        if pieces.len() == 1
            && let Some(piece) = pieces.next()
        {
            self.put(&piece, generation).await?;
        } else {
            stream::iter(pieces)
                .map(|piece| async move { self.put(&piece, generation).await })
                .buffer_unordered(at_once)
                .try_collect::<()>()
                .await?;
        }
        self.counters.stores.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn body_bytes(body: &Body) -> usize {
    match body {
        Body::Data(data) => data.len(),
        Body::Zero => 0,
    }
}

fn foreign(error: LayoutError) -> ReplicaError {
    ReplicaError::Unreachable {
        replica: 0,
        why: error.to_string(),
    }
}

fn confused(replica: &Replica) -> ReplicaError {
    ReplicaError::Unreachable {
        replica: 0,
        why: format!("{} does not keep to the protocol", replica.address),
    }
}

#[async_trait]
impl Replicas for ClusterReplicas {
    fn copies(&self) -> usize {
        self.replication.copies()
    }

    fn paths(&self) -> usize {
        1
    }

    async fn fence(&self, _path: usize, incarnation: Incarnation) -> Result<(), ReplicaError> {
        let Speaker { disk, fence, .. } = self.speaker;
        assert_eq!(incarnation.fence(), fence.0, "an attach has one fence");
        let mut retry = RetryState::new(&self.env);
        let mut fenced: BTreeSet<NodeId> = BTreeSet::new();
        loop {
            // All at once: a row that changes while others are asked shows in the next round. Joining replicas too: one that
            // its predecessor wrote to would go on believing it, and be active a moment later.
            let unavailable = |error: PlacementError| ReplicaError::Unreachable {
                replica: 0,
                why: error.to_string(),
            };
            self.rows.read_again().await.map_err(unavailable)?;
            let rows = self.rows.of_disk(self.tracts());
            let missing: Vec<(&Row, &Replica)> = rows
                .iter()
                .flat_map(|row| row.replicas.iter().map(move |replica| (row, replica)))
                .filter(|(_, replica)| {
                    replica.state == ReplicaState::Active || !firn_env::planted!("client.fences_active_only")
                })
                .filter(|(_, replica)| !fenced.contains(&replica.node))
                .collect();
            let Some((row, _)) = missing.first().copied() else {
                if let Some(stranded) = rows.iter().find(|row| row.active().next().is_none()) {
                    let why = "a row has no active replica".into();
                    self.wait(&mut retry, stranded, why).await?;
                    continue;
                }
                return Ok(());
            };
            let mut nodes: Vec<&Replica> = missing.iter().map(|(_, replica)| *replica).collect();
            nodes.sort_by_key(|replica| replica.node);
            nodes.dedup_by_key(|replica| replica.node);
            let calls = nodes
                .iter()
                .map(|replica| self.pool.call(replica, Request::SetFence { disk, fence }));
            let mut later = None;
            for (replica, answer) in nodes.iter().zip(join_all(calls).await) {
                match answer {
                    Ok(_) => {
                        fenced.insert(replica.node);
                    }
                    Err(CallError::Refused(Refusal::Fenced { current })) => {
                        let by = Incarnation(current.0.into());
                        return Err(ReplicaError::Fenced { by });
                    }
                    Err(error) => later = Some(format!("{}: {error}", replica.address)),
                }
            }
            if let Some(why) = later {
                self.wait(&mut retry, row, why).await?;
            }
        }
    }

    async fn store(
        &self,
        _path: usize,
        unit: Unit,
        version: Version,
        body: Body,
    ) -> Result<(), ReplicaError> {
        let generation = self.next_generation();
        let _permit = self.permit_stores(body_bytes(&body)).await;
        let sealed = self.sealer.seal(unit, version, &body);
        let parts = chunks::cut(&self.layout, unit, &sealed).map_err(foreign)?;
        self.put_parts(parts, PARTS_AT_ONCE, generation).await
    }

    async fn zero(&self, _path: usize, blocks: Range<u64>, _version: Version) -> Result<(), ReplicaError> {
        let generation = self.next_generation();
        let mut runs = self.layout.runs(blocks).map_err(foreign)?;
        if firn_env::planted!("client.zeroes_one_tract_only") {
            runs.truncate(1);
        }
        let at_once = runs.len().min(ZEROED_AT_ONCE);
        let _permit = self.permit_stores(at_once * MESSAGE_OVERHEAD_BYTES).await;
        let pieces = runs.into_iter().map(|chunk| Piece { chunk, blocks: None });
        self.put_all(pieces, ZEROED_AT_ONCE, generation).await
    }

    fn groups(&self, stores: &[&Store]) -> Vec<Vec<usize>> {
        self.neighbours(stores)
    }

    async fn store_group(&self, _path: usize, group: &[Store]) -> Result<(), ReplicaError> {
        let generation = self.next_generation();
        let bytes: usize = group.iter().map(|store| body_bytes(&store.body)).sum();
        let _permit = self.permit_stores(bytes).await;
        let mut parts = Vec::with_capacity(group.len());
        for store in group {
            parts.extend(self.parts(store).map_err(foreign)?);
        }
        self.put_parts(parts, RUNS_AT_ONCE, generation).await
    }

    async fn load(&self, copy: usize, unit: Unit) -> Result<Option<Stored>, ReplicaError> {
        let chunk = self.layout.chunk(unit, 0).map_err(foreign)?;
        let _permit = self
            .loads
            .acquire_many(self.budgeted(chunk.range.bytes()))
            .await
            .expect("the semaphore is never closed");
        let found = self.fetch_from(copy, chunk).await?;
        let opened = match (found, unit) {
            (None, _) => Copy::Damaged,
            (Some(found), Unit::Block(_)) => self.open_block(unit, &found),
            (Some(found), Unit::Intent(_) | Unit::Log(_) | Unit::Checkpoint(_)) => {
                self.open_rest(unit, copy, Found::new(&found)).await?
            }
        };
        self.counters.loads.fetch_add(1, Relaxed);
        match opened {
            Copy::Empty => Ok(None),
            Copy::Holds(stored) => Ok(Some(stored)),
            Copy::Damaged | Copy::Joining => Err(ReplicaError::Damaged { replica: copy, unit }),
        }
    }

    async fn load_run(&self, copy: usize, blocks: Range<u64>) -> Vec<LoadedPart> {
        self.fetch_run(copy, blocks).await
    }

    async fn load_all(&self, unit: Unit) -> Result<Vec<Copy>, ReplicaError> {
        let chunk = self.layout.chunk(unit, 0).map_err(foreign)?;
        let mut copies = Vec::new();
        let (all, joining) = self.fetch_all(chunk).await?;
        for (copy, found) in all.into_iter().enumerate() {
            copies.push(match (found, unit) {
                (None, _) => Copy::Damaged,
                (Some(found), Unit::Block(_)) => self.open_block(unit, &found),
                (Some(found), Unit::Intent(_) | Unit::Log(_) | Unit::Checkpoint(_)) => {
                    self.open_rest(unit, copy, Found::new(&found)).await?
                }
            });
        }
        copies.extend((0..joining).map(|_| Copy::Joining));
        Ok(copies)
    }

    async fn load_all_many(&self, units: &[Unit]) -> Result<Vec<Vec<Copy>>, ReplicaError> {
        let mut found = vec![Vec::new(); units.len()];
        let (mut places, mut alone) = (Vec::new(), Vec::new());
        for (at, unit) in units.iter().enumerate() {
            match self.layout.chunk(*unit, 0) {
                Ok(chunk) if matches!(unit, Unit::Block(_)) => places.push((chunk, at)),
                Ok(_) | Err(_) => alone.push(vec![at]),
            }
        }
        places.sort_by_key(|(chunk, _)| (chunk.tract, chunk.range.first()));
        let loads = chunks::runs(&places)
            .into_iter()
            .map(|(run, members)| async move {
                let bytes = self.budgeted(run.range.bytes() * self.copies());
                let _permit = self.loads.acquire_many(bytes).await;
                self.fetch_all(run).await.map(|fetched| (fetched, members))
            });
        for ((all, joining), members) in try_join_all(loads).await? {
            self.counters.loads.fetch_add(1, Relaxed);
            if all.iter().any(Option::is_none) {
                // Which block of the run is damaged only single ones tell.
                alone.push(members);
                continue;
            }
            for copy in all.into_iter().flatten() {
                for ((_, version, data), at) in copy.contents().zip(&members) {
                    found[*at].push(self.open_content(units[*at], version, data));
                }
            }
            for at in members {
                found[at].extend((0..joining).map(|_| Copy::Joining));
            }
        }
        for at in alone.into_iter().flatten() {
            found[at] = self.load_all(units[at]).await?;
        }
        Ok(found)
    }
}
