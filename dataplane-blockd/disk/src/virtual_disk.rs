//! An engine at work: requests of a user in, stores to replicas out, as a [`BlockDevice`].
//!
//! The engine sits behind one lock that is held for computation only. Every store is a task of its own that tries again, with
//! growing pauses, until the replica has it: a node that is away makes writers wait, it never makes them fail. When a replica
//! says that a later attach owns the disk, everything is over: what waits is answered with an error, and nothing is sent any more.
//!
//! *Memory:* what is answered and not durable is bounded by the engine, what is not answered by whoever calls (the NBD server
//! bounds each connection).

use crate::{
    engine::{DiskEngine, GrowError},
    replicas::{ReplicaError, Replicas},
    types::{Body, Change, Effect, Incarnation, RequestId, Store, Unit},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Geometry, Piece, ZEROES_AT_ONCE_BYTES};
use firn_env::{Backoff, Env};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Between tries of a store or load, for as long as replicas are away: what was accepted is kept until it is stored.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1)).without_jitter();
/// Blocks of one read that are fetched at once.
const LOADS_AT_ONCE: usize = 64;
/// The longest read or write.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

mod reads;

struct State {
    engine: Box<dyn DiskEngine>,
    next_request: u64,
    waiting: BTreeMap<RequestId, oneshot::Sender<()>>,
    fenced: Option<Incarnation>,
    closing: bool,
}

struct Inner {
    env: Env,
    replicas: Arc<dyn Replicas>,
    block_bytes: u32,
    state: Mutex<State>,
    progress: Notify,
}

/// A disk that is attached; cheap to clone.
#[derive(Clone)]
pub struct VirtualDisk {
    inner: Arc<Inner>,
}

impl VirtualDisk {
    /// Runs an attached engine over the replicas it was attached to.
    pub fn new(env: Env, replicas: Arc<dyn Replicas>, engine: Box<dyn DiskEngine>, block_bytes: u32) -> Self {
        assert!(block_bytes.is_power_of_two() && (512..=1 << 16).contains(&block_bytes));
        Self {
            inner: Arc::new(Inner {
                env,
                replicas,
                block_bytes,
                state: Mutex::new(State {
                    engine,
                    next_request: 0,
                    waiting: BTreeMap::new(),
                    fenced: None,
                    closing: false,
                }),
                progress: Notify::new(),
            }),
        }
    }

    /// Bytes that were answered, or wait to be, and are not durable.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.state().engine.dirty_bytes()
    }

    /// Resolves when a replica, or whoever calls [`VirtualDisk::give_up`], has said that another attach has the disk.
    pub async fn fenced(&self) -> Incarnation {
        loop {
            let progress = self.inner.progress.notified();
            if let Some(by) = self.inner.state().fenced {
                return by;
            }
            progress.await;
        }
    }

    /// Whether another attach has the disk.
    pub fn is_fenced(&self) -> bool {
        self.inner.state().fenced.is_some()
    }

    /// Another attach has the disk: what waits is answered with an error, and nothing is sent any more.
    pub fn give_up(&self, by: Incarnation) {
        self.inner.fence(by);
    }

    /// How long the oldest write that is not durable has waited.
    pub fn waiting(&self) -> Option<Duration> {
        let now_ms = self.inner.now_ms();
        let state = self.inner.state();
        let oldest_ms = state.engine.oldest_ms();
        oldest_ms.map(|oldest_ms| Duration::from_millis(now_ms.saturating_sub(oldest_ms)))
    }

    /// What was written and is not durable, in order.
    pub fn pending(&self) -> Vec<Change> {
        self.inner.state().engine.pending()
    }

    /// Whether a crash may leave any part of an epoch (in place), or exactly a first part of the writes (a log).
    pub fn is_log(&self) -> bool {
        self.inner.state().engine.is_log()
    }

    /// Answers what is held back by the bounds of memory: the caller has made what it wrote safe in another way.
    pub fn answer_deferred(&self) {
        let mut state = self.inner.state();
        let effects = state.engine.answer_deferred();
        self.inner.perform(&mut state, effects);
    }

    /// Ends the epoch and makes everything so far durable, whatever the flush policy. Takes its place among other requests when
    /// it is polled first.
    ///
    /// # Errors
    /// If the disk was taken over.
    pub async fn sync(&self) -> Result<(), DeviceError> {
        self.submit(|engine, now_ms, id| engine.sync(now_ms, id)).await
    }

    /// Makes everything durable, whatever the flush policy, and leaves nothing for the next attach to reconcile. Requests that
    /// come meanwhile are refused.
    ///
    /// # Errors
    /// If the disk was taken over; what was answered before as durable is safe.
    pub async fn detach(&self) -> Result<(), DeviceError> {
        self.sync().await?;
        self.inner.state().closing = true;
        loop {
            let progress = self.inner.progress.notified();
            {
                let mut state = self.inner.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced);
                }
                let Some(effects) = state.engine.leave_clean() else {
                    return Ok(());
                };
                self.inner.perform(&mut state, effects);
            }
            progress.await;
        }
    }

    /// Makes the disk larger, in blocks; a log needs physical blocks for the new ones. The new size is durable in
    /// a log when this returns; of a striped disk, whoever attaches it keeps the size.
    ///
    /// # Errors
    /// If it would shrink, or is growing already; or as for any request.
    pub async fn grow(&self, blocks: u64, physical_blocks: u64) -> Result<(), GrowError> {
        {
            let now_ms = self.inner.now_ms();
            let mut state = self.inner.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced.into());
            }
            if state.closing {
                return Err(DeviceError::Closing.into());
            }
            let effects = state.engine.begin_growth(now_ms, blocks, physical_blocks)?;
            self.inner.perform(&mut state, effects);
        }
        loop {
            let progress = self.inner.progress.notified();
            {
                let state = self.inner.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced.into());
                }
                if !state.engine.is_growing() {
                    return Ok(());
                }
            }
            progress.await;
        }
    }

    async fn submit(
        &self,
        work: impl FnOnce(&mut dyn DiskEngine, u64, RequestId) -> Vec<Effect>,
    ) -> Result<(), DeviceError> {
        let answer = {
            let now_ms = self.inner.now_ms();
            let mut state = self.inner.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced);
            }
            if state.closing {
                return Err(DeviceError::Closing);
            }
            state.next_request += 1;
            let id = RequestId(state.next_request);
            let (sender, answer) = oneshot::channel();
            state.waiting.insert(id, sender);
            let effects = work(&mut *state.engine, now_ms, id);
            self.inner.perform(&mut state, effects);
            answer
        };
        // The sender is dropped unanswered when the disk is fenced.
        answer.await.map_err(|_| DeviceError::Fenced)
    }

    async fn zero(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        let (block_bytes, end) = (u64::from(self.inner.block_bytes), offset + length);
        let durable = durability == Durability::Durable;
        let mut at = offset;
        while at < end {
            // Whole segments: each of their tracts is zeroed by one request.
            let part_end = end.min((at / ZEROES_AT_ONCE_BYTES + 1) * ZEROES_AT_ONCE_BYTES);
            let blocks = at / block_bytes..part_end / block_bytes;
            self.submit(|engine, now_ms, id| engine.zero(now_ms, id, blocks, durable))
                .await?;
            at = part_end;
        }
        Ok(())
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn now_ms(&self) -> u64 {
        self.env.now().0 / 1_000_000
    }

    fn perform(self: &Arc<Self>, state: &mut State, effects: Vec<Effect>) {
        let mut stores = Vec::new();
        for effect in effects {
            match effect {
                Effect::Answer(id) => {
                    if let Some(waiting) = state.waiting.remove(&id) {
                        // Whoever asked may have gone; the write is done all the same.
                        let _ = waiting.send(());
                    }
                }
                Effect::Store(store) => stores.push(store),
            }
        }
        for group in self.groups(stores) {
            let inner = self.clone();
            // Essential: whoever wrote would wait for ever for a store whose task is gone.
            drop(
                self.env
                    .spawn_essential("disk store", async move { inner.store(group).await }),
            );
        }
    }

    /// What is stored at one moment by what travels together: neighbours in one request, a zeroed range by itself.
    fn groups(&self, stores: Vec<Store>) -> Vec<Vec<Store>> {
        let mut groups = Vec::new();
        if stores.len() < 2 {
            groups.extend((!stores.is_empty()).then_some(stores));
            return groups;
        }
        let mut by_path: BTreeMap<usize, Vec<Store>> = BTreeMap::new();
        for store in stores {
            if store.count > 1 && store.body == Body::Zero {
                groups.push(vec![store]);
            } else {
                by_path.entry(store.replica).or_default().push(store);
            }
        }
        for mut stores in by_path.into_values() {
            if stores.len() == 1 {
                groups.push(stores);
                continue;
            }
            let together = self.replicas.groups(&stores.iter().collect::<Vec<_>>());
            let mut left: Vec<Option<Store>> = stores.drain(..).map(Some).collect();
            let group =
                |positions: Vec<usize>| positions.into_iter().filter_map(|at| left[at].take()).collect();
            groups.extend(together.into_iter().map(group));
            debug_assert!(left.iter().all(Option::is_none), "each travels once");
        }
        groups
    }

    async fn try_to_store(&self, group: &[Store]) -> Result<(), ReplicaError> {
        match group {
            [store] if store.count > 1 && store.body == Body::Zero => {
                let Unit::Block(first) = store.unit else {
                    unreachable!("only blocks in place are zeroed by ranges");
                };
                let blocks = first..first + store.count;
                self.replicas.zero(store.replica, blocks, store.version).await
            }
            [store] if store.count == 1 => {
                let body = store.body.clone();
                self.replicas
                    .store(store.replica, store.unit, store.version, body)
                    .await
            }
            stores => self.replicas.store_group(stores[0].replica, stores).await,
        }
    }

    async fn store(self: Arc<Self>, group: Vec<Store>) {
        let mut failures = 0;
        loop {
            if self.state().fenced.is_some() {
                return;
            }
            match self.try_to_store(&group).await {
                Ok(()) => break,
                Err(ReplicaError::Fenced { by }) => return self.fence(by),
                Err(error @ (ReplicaError::Unreachable { .. } | ReplicaError::Damaged { .. })) => {
                    tracing::debug!(%error, "a store is tried again");
                    failures += 1;
                    BACKOFF.wait(&self.env, failures).await;
                }
            }
        }
        let now_ms = self.now_ms();
        let mut state = self.state();
        let mut effects = Vec::new();
        for store in group {
            effects.extend(state.engine.stored(now_ms, store.ticket, store.replica));
        }
        self.perform(&mut state, effects);
        drop(state);
        self.progress.notify_waiters();
    }

    fn fence(&self, by: Incarnation) {
        let mut state = self.state();
        if state.fenced.is_none() {
            tracing::error!(by = by.0, "the disk was attached elsewhere");
        }
        state.fenced = Some(by);
        state.waiting.clear();
        drop(state);
        self.progress.notify_waiters();
    }
}

#[async_trait]
impl BlockDevice for VirtualDisk {
    fn geometry(&self) -> Geometry {
        let block_bytes = self.inner.block_bytes;
        Geometry {
            size_bytes: self.inner.state().engine.blocks() * u64::from(block_bytes),
            block_bytes,
            preferred_bytes: block_bytes.max(4096),
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        let block_bytes = u64::from(self.inner.block_bytes);
        let first = offset / block_bytes;
        let blocks = first..first + u64::from(length) / block_bytes;
        self.inner.read_run(blocks).await
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let block_bytes = u64::from(self.inner.block_bytes);
        let first = offset / block_bytes;
        let blocks = first..first + data.len() as u64 / block_bytes;
        let durable = durability == Durability::Durable;
        self.submit(|engine, now_ms, id| engine.write(now_ms, id, blocks, data, durable))
            .await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.submit(|engine, now_ms, id| engine.flush(now_ms, id)).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        _allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        // A tombstone keeps its unit, so later writes need no new room either way.
        self.zero(offset, length, durability).await
    }

    fn zeroes_fast(&self, _allow_hole: bool) -> bool {
        true
    }
}
