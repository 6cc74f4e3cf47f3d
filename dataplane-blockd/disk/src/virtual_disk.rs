//! An engine at work: requests of a user in, stores to replicas out, as a [`BlockDevice`].
//!
//! The engine sits behind one lock that is held for computation only. Every store is a task of its own that tries again, with
//! growing pauses, until the replica has it: a node that is away makes writers wait, it never makes them fail. When a replica
//! says that a later attach owns the disk, everything is over: what waits is answered with an error, and nothing is sent any more.
//!
//! *Memory:* what is answered and not durable is bounded by the engine, what is not answered by whoever calls (the NBD server
//! bounds each connection).

use crate::{
    log::{LogEngine, SLACK_BLOCKS_MIN},
    replicas::{Copy, ReplicaError, Replicas, Stored},
    striped::StripedEngine,
    types::{Body, Effect, Incarnation, Lookup, RequestId, Store, Unit, Version},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Geometry, Piece};
use firn_env::Env;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// First and longest pause between tries of a store or load.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Blocks of one read that are fetched at once.
const LOADS_AT_ONCE: usize = 64;
/// Blocks zeroed by one request to the engine, so that a request for a terabyte takes no more memory than one for a megabyte.
const ZERO_BLOCKS_AT_ONCE: u64 = 4096;
/// Times a block is looked up again because it moved while it was being read. Each time, some write has gone through.
const LOOKUPS_MAX: usize = 16;
/// The longest read or write.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Either engine.
#[derive(Debug)]
pub enum Engine {
    /// Writes in place.
    Striped(Box<StripedEngine>),
    /// Writes a log.
    Log(Box<LogEngine>),
}

impl Engine {
    fn blocks(&self) -> u64 {
        match self {
            Self::Striped(engine) => engine.blocks(),
            Self::Log(engine) => engine.blocks(),
        }
    }

    fn lookup(&self, block: u64) -> Lookup {
        match self {
            Self::Striped(engine) => engine.lookup(block),
            Self::Log(engine) => engine.lookup(block),
        }
    }
}

/// Why a disk did not grow; nothing was changed, unless the disk itself failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// Disks only grow.
    #[error("the disk has {has_blocks} blocks already; {blocks} is not more")]
    NotLarger {
        /// Its size.
        has_blocks: u64,
        /// What was asked.
        blocks: u64,
    },
    /// A log needs more physical blocks than virtual ones, and more than it had.
    #[error("{physical_blocks} physical blocks are too few; the least is {least_blocks}")]
    TooFewPhysical {
        /// What was asked.
        physical_blocks: u64,
        /// What would do.
        least_blocks: u64,
    },
    /// One step at a time.
    #[error("the disk is growing already; ask again when it has grown")]
    Growing,
    /// The disk failed. Whether it has grown shows at the next attach.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

struct State {
    engine: Engine,
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
    pub fn new(env: Env, replicas: Arc<dyn Replicas>, engine: Engine, block_bytes: u32) -> Self {
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
        match &self.inner.state().engine {
            Engine::Striped(engine) => engine.dirty_bytes(),
            Engine::Log(engine) => engine.dirty_bytes(),
        }
    }

    /// Makes everything durable, whatever the flush policy, and leaves nothing for the next attach to reconcile. Requests that
    /// come meanwhile are refused.
    ///
    /// # Errors
    /// If the disk was taken over; what was answered before as durable is safe.
    pub async fn detach(&self) -> Result<(), DeviceError> {
        self.submit(|engine, now_ms, id| match engine {
            Engine::Striped(engine) => engine.sync(now_ms, id),
            Engine::Log(engine) => engine.sync(now_ms, id),
        })
        .await?;
        self.inner.state().closing = true;
        loop {
            let progress = self.inner.progress.notified();
            {
                let mut state = self.inner.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced);
                }
                let Engine::Striped(engine) = &mut state.engine else {
                    return Ok(());
                };
                if engine.is_clean() {
                    return Ok(());
                }
                let effects = engine.rest();
                self.inner.perform(&mut state, effects);
            }
            progress.await;
        }
    }

    /// Makes the disk larger, in blocks; a log needs physical blocks for the new ones, and `seed` for their permutation. The
    /// new size is durable in a log when this returns; of a striped disk, whoever attaches it keeps the size.
    ///
    /// # Errors
    /// If it would shrink, or is growing already; or as for any request.
    pub async fn grow(&self, blocks: u64, physical_blocks: u64, seed: u64) -> Result<(), GrowError> {
        {
            let now_ms = self.inner.now_ms();
            let mut state = self.inner.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced.into());
            }
            if state.closing {
                return Err(DeviceError::Closing.into());
            }
            let has_blocks = state.engine.blocks();
            if blocks <= has_blocks {
                return Err(GrowError::NotLarger { has_blocks, blocks });
            }
            let effects = match &mut state.engine {
                Engine::Striped(engine) => {
                    engine.grow(blocks);
                    Vec::new()
                }
                Engine::Log(engine) => {
                    let least_blocks = (engine.physical_blocks() + 1).max(blocks + SLACK_BLOCKS_MIN);
                    if physical_blocks < least_blocks {
                        return Err(GrowError::TooFewPhysical {
                            physical_blocks,
                            least_blocks,
                        });
                    }
                    if engine.is_growing() {
                        return Err(GrowError::Growing);
                    }
                    engine.grow(now_ms, blocks, physical_blocks, seed)
                }
            };
            self.inner.perform(&mut state, effects);
        }
        loop {
            let progress = self.inner.progress.notified();
            {
                let state = self.inner.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced.into());
                }
                if !matches!(&state.engine, Engine::Log(engine) if engine.is_growing()) {
                    return Ok(());
                }
            }
            progress.await;
        }
    }

    async fn submit(
        &self,
        work: impl FnOnce(&mut Engine, u64, RequestId) -> Vec<Effect>,
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
            let effects = work(&mut state.engine, now_ms, id);
            self.inner.perform(&mut state, effects);
            answer
        };
        // The sender is dropped unanswered when the disk is fenced.
        answer.await.map_err(|_| DeviceError::Fenced)
    }

    async fn zero(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        let block_bytes = u64::from(self.inner.block_bytes);
        let (mut at, end) = (offset / block_bytes, (offset + length) / block_bytes);
        while at < end {
            let (first, count) = (at, (end - at).min(ZERO_BLOCKS_AT_ONCE));
            let durable = durability == Durability::Durable;
            self.submit(|engine, now_ms, id| match engine {
                Engine::Striped(engine) => {
                    engine.write(now_ms, id, first, vec![Body::Zero; count as usize], durable)
                }
                Engine::Log(engine) => engine.zero(now_ms, id, first, count, durable),
            })
            .await?;
            at += count;
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
        for effect in effects {
            match effect {
                Effect::Answer(id) => {
                    if let Some(waiting) = state.waiting.remove(&id) {
                        // Whoever asked may have gone; the write is done all the same.
                        let _ = waiting.send(());
                    }
                }
                Effect::Store(store) => {
                    let inner = self.clone();
                    drop(
                        self.env
                            .spawn("disk store", async move { inner.store(store).await }),
                    );
                }
            }
        }
    }

    async fn store(self: Arc<Self>, store: Store) {
        let mut pause = RETRY.0;
        loop {
            if self.state().fenced.is_some() {
                return;
            }
            let body = store.body.clone();
            let stored = self
                .replicas
                .store(store.replica, store.unit, store.version, body)
                .await;
            match stored {
                Ok(()) => break,
                Err(ReplicaError::Fenced { by }) => return self.fence(by),
                Err(error @ (ReplicaError::Unreachable { .. } | ReplicaError::Damaged { .. })) => {
                    tracing::debug!(%error, "a store is tried again");
                    self.env.sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
        let now_ms = self.now_ms();
        let mut state = self.state();
        let effects = match &mut state.engine {
            Engine::Striped(engine) => engine.stored(now_ms, store.ticket, store.replica),
            Engine::Log(engine) => engine.stored(now_ms, store.ticket, store.replica),
        };
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

    /// Loads the blocks that lie in place and are at rest, as many at once as the replicas can; nothing in the place of others
    /// and of those that need another look.
    async fn load_in_place(&self, blocks: Range<u64>) -> Result<Vec<Option<Piece>>, DeviceError> {
        let block_bytes = self.block_bytes as usize;
        let units: Vec<Option<Unit>> = {
            let state = self.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced);
            }
            let at_rest = |block| match state.engine.lookup(block) {
                Lookup::Stored { unit, version: None } => Some(unit),
                Lookup::Stored { .. } | Lookup::Memory(_) => None,
            };
            blocks.clone().map(at_rest).collect()
        };
        let wanted: Vec<Unit> = units.iter().flatten().copied().collect();
        if wanted.len() < 2 {
            return Ok(vec![None; units.len()]);
        }
        // Neighbouring requests begin with different replicas, which shares the work.
        let copy = (blocks.start / LOADS_AT_ONCE as u64) as usize % self.replicas.copies();
        let mut found = self.replicas.load_many(copy, &wanted).await.into_iter();
        let piece = |copy: Copy| match copy {
            Copy::Empty => Some(Piece::Zeroes(block_bytes as u64)),
            Copy::Holds(Stored { body: Body::Zero, .. }) => Some(Piece::Zeroes(block_bytes as u64)),
            Copy::Holds(Stored {
                body: Body::Data(data),
                ..
            }) if data.len() == block_bytes => Some(Piece::Data(data)),
            Copy::Holds(_) | Copy::Damaged => None,
        };
        Ok(units
            .into_iter()
            .map(|unit| unit.and_then(|_| found.next().flatten()).and_then(piece))
            .collect())
    }

    async fn read_block(self: Arc<Self>, block: u64) -> Result<Piece, DeviceError> {
        let block_bytes = self.block_bytes as usize;
        let whole = |body: Body| match body {
            Body::Zero => Some(Piece::Zeroes(block_bytes as u64)),
            Body::Data(data) => (data.len() == block_bytes).then_some(Piece::Data(data)),
        };
        for _ in 0..LOOKUPS_MAX {
            let lookup = {
                let state = self.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced);
                }
                state.engine.lookup(block)
            };
            let (unit, version) = match lookup {
                Lookup::Memory(body) => {
                    return whole(body)
                        .ok_or_else(|| DeviceError::Io(format!("block {block} has a foreign size")));
                }
                Lookup::Stored { unit, version } => (unit, version),
            };
            let body = match (self.load(block, unit, version).await?, version) {
                (Some(stored), None) => Some(stored.body),
                (Some(stored), Some(_)) => match crate::log::Record::decode(&stored.body) {
                    Some(crate::log::Record::Data { data, .. }) => Some(Body::Data(data)),
                    _ => None,
                },
                // Never written.
                (None, None) => Some(Body::Zero),
                // It may have moved while it was read.
                (None, Some(_)) => None,
            };
            if let Some(piece) = body.and_then(whole) {
                return Ok(piece);
            }
        }
        Err(DeviceError::Io(format!(
            "no replica has a valid copy of block {block}"
        )))
    }

    /// One valid copy from any replica; nothing if it was never written, or nobody has that version.
    async fn load(
        &self,
        block: u64,
        unit: Unit,
        version: Option<Version>,
    ) -> Result<Option<Stored>, DeviceError> {
        let count = self.replicas.copies();
        let mut pause = RETRY.0;
        loop {
            let (mut empty, mut away) = (false, None);
            for turn in 0..count {
                // Neighbours begin with different replicas, which shares the work.
                let replica = (block as usize + turn) % count;
                match self.replicas.load(replica, unit).await {
                    Ok(Some(stored)) if version.is_none_or(|version| version == stored.version) => {
                        return Ok(Some(stored));
                    }
                    Ok(_) => empty = true,
                    Err(ReplicaError::Damaged { .. }) => {}
                    Err(error @ ReplicaError::Unreachable { .. }) => away = Some(error),
                    Err(ReplicaError::Fenced { by }) => {
                        self.fence(by);
                        return Err(DeviceError::Fenced);
                    }
                }
            }
            match (empty, away) {
                (true, None) => return Ok(None),
                (false, None) if version.is_some() => return Ok(None),
                (false, None) => {
                    return Err(DeviceError::Io(format!(
                        "block {block} is damaged on all replicas"
                    )));
                }
                (_, Some(error)) => {
                    tracing::debug!(%error, "a read is tried again");
                    self.env.sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
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
        let together = self.inner.load_in_place(blocks.clone()).await?;
        let pieces: Vec<Piece> = stream::iter(blocks.zip(together))
            .map(|(block, found)| {
                let inner = self.inner.clone();
                async move {
                    match found {
                        Some(piece) => Ok(piece),
                        None => inner.read_block(block).await,
                    }
                }
            })
            .buffered(LOADS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(merge_zeroes(pieces))
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let block_bytes = self.inner.block_bytes as usize;
        let first = offset / block_bytes as u64;
        let blocks: Vec<Bytes> = (0..data.len())
            .step_by(block_bytes)
            .map(|at| data.slice(at..at + block_bytes))
            .collect();
        let durable = durability == Durability::Durable;
        self.submit(|engine, now_ms, id| match engine {
            Engine::Striped(engine) => {
                let bodies = blocks.into_iter().map(Body::Data).collect();
                engine.write(now_ms, id, first, bodies, durable)
            }
            Engine::Log(engine) => engine.write(now_ms, id, first, blocks, durable),
        })
        .await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.submit(|engine, now_ms, id| match engine {
            Engine::Striped(engine) => engine.flush(now_ms, id),
            Engine::Log(engine) => engine.flush(now_ms, id),
        })
        .await
    }

    async fn trim(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        self.zero(offset, length, durability).await
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

fn merge_zeroes(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Zeroes(before)), Piece::Zeroes(more)) => *before += more,
            (_, piece) => merged.push(piece),
        }
    }
    merged
}
