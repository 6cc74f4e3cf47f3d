//! Whoever uses a disk in a history on nodes: random requests, some at once, and snapshots taken meanwhile; and what they
//! know, which is what the model compares.
//!
//! ```text
//! User ─▶ SnapshotGate ─▶ Recorded ─▶ VirtualDisk
//!              ▲             └ notes each request in the instant in which the disk takes it
//!  snapshots ──┘
//! ```

use crate::check::{Piece, Promises};
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_disk::journal::Journaled;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Geometry, MemoryDevice, Piece as Part};
use firn_blockd_snapshot::{Catalogue, Progress, SnapshotError, SnapshotGate, delete, prepare, restore};
use firn_env::{Env, Task};
use firn_store::{FaultConfig, Faults, Faulty, MemoryStore, Store};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Requests under way at once.
const DEPTH: usize = 6;
/// Of the disk that they use.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Blocks of the disk: over three tracts in place, and a log that goes round many times.
pub(crate) const BLOCKS: u64 = 18;
/// Three blocks: a history's disk has six of these.
pub(crate) const SNAPSHOT_TRACT_BYTES: u32 = 3 * BLOCK_BYTES as u32;

/// What the users of a disk know.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) promises: Promises,
    pub(crate) epoch: u64,
    next_number: u64,
    pub(crate) writes: u64,
    /// Raised at each attach: what an earlier attach is told counts for nothing.
    pub(crate) life: u64,
    /// All pieces before this one are in the journal of the machine that has the disk, or on nodes.
    pub(crate) kept: usize,
    /// Answers that came from a journal.
    pub(crate) journaled: u64,
    /// What must not have happened.
    pub(crate) wrong: Option<String>,
    /// Snapshots that were deleted.
    deleted: BTreeSet<String>,
    /// What each snapshot must hold, if it exists.
    frozen: BTreeMap<String, Vec<u64>>,
    /// Those that must exist.
    taken: BTreeSet<String>,
}

impl Known {
    /// Another attach has the disk: what the one before is told from now on counts for nothing. What a journal has kept is there
    /// again on the machine where it lies only.
    pub(crate) fn begin_life(&mut self, same_machine: bool) {
        self.life += 1;
        if !same_machine {
            self.kept = 0;
        }
    }

    fn note(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}

pub(crate) fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().expect("no panic under this lock")
}

/// The whole disk, as numbers.
pub(crate) async fn content<D: BlockDevice>(disk: &D) -> Result<Vec<u64>, DeviceError> {
    let parts = disk.read(0, (BLOCKS as usize * BLOCK_BYTES) as u32).await?;
    let mut numbers = Vec::new();
    for part in parts {
        match part {
            Part::Zeroes(length) => numbers.extend(vec![0; length as usize / BLOCK_BYTES]),
            Part::Data(data) => numbers.extend(data.chunks(BLOCK_BYTES).map(number)),
        }
    }
    Ok(numbers)
}

fn block(number: u64) -> Bytes {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8).into()
}

/// The number that fills a block; one that no write has if it is filled with anything else.
fn number(data: &[u8]) -> u64 {
    let number = data
        .first_chunk::<8>()
        .map_or(u64::MAX, |first| u64::from_le_bytes(*first));
    if data == block(number) { number } else { u64::MAX }
}

/// What an answer promises.
enum Promised {
    Nothing,
    Pieces(Range<usize>),
    Prefix(usize),
}

/// The disk, with a model beside it. The engine takes a request when its future is polled first, and so does this: that is the
/// order of the model.
pub(crate) struct Recorded {
    pub(crate) disk: Journaled,
    pub(crate) known: Arc<Mutex<Known>>,
    pub(crate) life: u64,
    pub(crate) writes_through: bool,
    pub(crate) flushes: bool,
}

impl Recorded {
    fn begin(&self, first: u64, numbers: Vec<u64>, durability: Durability) -> Result<Promised, DeviceError> {
        let mut known = lock(&self.known);
        if known.life != self.life {
            return Err(DeviceError::Fenced);
        }
        let (begin, epoch) = (known.promises.pieces.len(), known.epoch);
        for (block, number) in (first..).zip(numbers) {
            known.writes += 1;
            known.promises.pieces.push(Piece { block, number, epoch });
        }
        let pieces = begin..known.promises.pieces.len();
        Ok(if durability == Durability::Durable || self.writes_through {
            Promised::Pieces(pieces)
        } else {
            Promised::Nothing
        })
    }

    /// Waits for the answer. What is answered while one journaling lasted from the request to the answer came from the journal.
    async fn answer(
        &self,
        promised: Promised,
        request: BoxFuture<'_, Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        let session = || self.disk.status().and_then(|status| status.session);
        let (before, pieces) = (session(), lock(&self.known).promises.pieces.len());
        let answer = request.await;
        if answer.is_ok() && before.is_some() && before == session() {
            let mut known = lock(&self.known);
            if known.life == self.life {
                known.kept = known.kept.max(pieces);
                known.journaled += 1;
            }
        }
        self.end(answer, promised)
    }

    fn end(&self, answer: Result<(), DeviceError>, promised: Promised) -> Result<(), DeviceError> {
        let mut known = lock(&self.known);
        let gone = known.life != self.life;
        match (&answer, promised) {
            (Ok(()), Promised::Nothing) => {}
            (Ok(()), Promised::Pieces(_) | Promised::Prefix(_)) if gone => {
                known.note("whoever lost the disk was told that something is durable".into());
            }
            (Ok(()), Promised::Pieces(pieces)) => known.promises.durable.extend(pieces),
            (Ok(()), Promised::Prefix(prefix)) => {
                known.promises.prefix = known.promises.prefix.max(prefix);
            }
            (Err(DeviceError::Fenced), _) => {}
            (Err(error), _) => known.note(format!("a request failed: {error}")),
        }
        if gone { Err(DeviceError::Fenced) } else { answer }
    }
}

#[async_trait]
impl BlockDevice for Recorded {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Part>, DeviceError> {
        self.disk.read(offset, length).await
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let numbers = data.chunks(BLOCK_BYTES).map(number).collect();
        let promised = self.begin(offset / BLOCK_BYTES as u64, numbers, durability)?;
        self.answer(promised, self.disk.write(offset, data, durability))
            .await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let promised = {
            let mut known = lock(&self.known);
            if known.life != self.life {
                return Err(DeviceError::Fenced);
            }
            let epoch = known.epoch;
            let last = known.promises.pieces.last();
            if last.is_some_and(|piece| piece.epoch == epoch) {
                known.epoch += 1;
            }
            if self.flushes {
                Promised::Prefix(known.promises.pieces.len())
            } else {
                Promised::Nothing
            }
        };
        self.answer(promised, self.disk.flush()).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let numbers = vec![0; length as usize / BLOCK_BYTES];
        let promised = self.begin(offset / BLOCK_BYTES as u64, numbers, durability)?;
        let request = self.disk.write_zeroes(offset, length, allow_hole, durability);
        self.answer(promised, request).await
    }
}

/// Requests under way; each tells whether the disk is still there.
type Under = FuturesUnordered<Task<bool>>;

/// What a user does more often than others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Writes begin in the first so many blocks: the fewer, the more often one is written again before a flush.
    pub(crate) first_blocks: u64,
    /// One of so many writes waits until it is durable: the fewer do, the longer a user goes on without nodes.
    pub(crate) durable_each: u64,
    /// One of so many flushes is made: the fewer are, the more an epoch has, and the more of it is given to nodes in pieces.
    pub(crate) flush_each: u64,
}

impl Habits {
    /// None.
    pub(crate) const ANY: Self = Self {
        first_blocks: BLOCKS,
        durable_each: 5,
        flush_each: 1,
    };
    /// Of one who writes a few blocks again and again, and hardly ever flushes: a crash then finds blocks of which the journal has
    /// several contents of one epoch, and a later one was answered as durable.
    pub(crate) const AGAIN: Self = Self {
        first_blocks: 4,
        durable_each: 8,
        flush_each: 12,
    };
}

struct User {
    env: Env,
    gate: SnapshotGate<Recorded>,
    habits: Habits,
}

/// A user at work, and snapshots meanwhile, until the disk is taken away or the machine stops.
pub(crate) fn start(env: &Env, gate: &SnapshotGate<Recorded>, catalogue: Catalogue, habits: Habits) {
    let user = User {
        env: env.clone(),
        gate: gate.clone(),
        habits,
    };
    drop(env.spawn("user", async move { user.work().await }));
    let (taking, gate) = (env.clone(), gate.clone());
    drop(env.spawn("snapshots", async move {
        take_snapshots(&taking, &gate, &catalogue).await;
    }));
}

impl User {
    /// Writes, zeroes, flushes and reads at random, some at once.
    async fn work(&self) {
        let mut under_way: Under = FuturesUnordered::new();
        loop {
            if under_way.len() >= DEPTH || (!under_way.is_empty() && self.env.random_below(3) == 0) {
                if let Some(Ok(false) | Err(_)) = under_way.next().await {
                    return;
                }
                continue;
            }
            match self.env.random_below(12) {
                0..8 => self.start_write(&under_way),
                8 | 9 if self.env.random_below(self.habits.flush_each) > 0 => {}
                8 | 9 => {
                    let gate = self.gate.clone();
                    self.start(&under_way, Box::pin(async move { gate.flush().await }));
                }
                10 => {
                    let pause = self.env.random_below(200);
                    self.env.sleep(Duration::from_millis(pause)).await;
                }
                _ => {
                    // Everything that was asked is answered, so what is read is known.
                    while let Some(answer) = under_way.next().await {
                        if !matches!(answer, Ok(true)) {
                            return;
                        }
                    }
                    if !self.read().await {
                        return;
                    }
                }
            }
        }
    }

    fn start(&self, under_way: &Under, request: BoxFuture<'static, Result<(), DeviceError>>) {
        under_way.push(self.env.spawn("request", async move { request.await.is_ok() }));
    }

    fn start_write(&self, under_way: &Under) {
        let zeroes = self.env.random_below(6) == 0;
        let first = self.env.random_below(self.habits.first_blocks);
        // What is zeroed may be long: over all tracts of the disk, at once.
        let longest = if zeroes && self.env.random_below(2) == 0 {
            BLOCKS
        } else {
            3
        };
        let count = (1 + self.env.random_below(longest)).min(BLOCKS - first);
        let durability = if self.env.random_below(self.habits.durable_each) == 0 {
            Durability::Durable
        } else {
            Durability::Acknowledged
        };
        let known = &self.gate.inner().known;
        let data: Vec<u8> = (0..count)
            .flat_map(|_| {
                let mut known = lock(known);
                known.next_number += 1;
                block(known.next_number)
            })
            .collect();
        let (gate, offset) = (self.gate.clone(), first * BLOCK_BYTES as u64);
        self.start(
            under_way,
            Box::pin(async move {
                if zeroes {
                    gate.write_zeroes(offset, data.len() as u64, true, durability)
                        .await
                } else {
                    gate.write(offset, data.into(), durability).await
                }
            }),
        );
    }

    async fn read(&self) -> bool {
        let Recorded { known, life, .. } = self.gate.inner();
        let expected = {
            let known = lock(known);
            if known.life != *life {
                return false;
            }
            known.promises.newest(BLOCKS)
        };
        match content(&self.gate).await {
            Ok(found) => {
                let mut known = lock(known);
                if known.life == *life && found != expected {
                    known.note(format!("a reader found {found:?} instead of {expected:?}"));
                }
                true
            }
            Err(DeviceError::Fenced) => false,
            Err(error) => {
                lock(known).note(format!("a read failed: {error}"));
                false
            }
        }
    }
}

/// A store for all machines that fails now and then.
pub(crate) fn snapshot_store(env: &Env) -> Arc<dyn Store> {
    let faults = Faults {
        latency_ms: 5,
        jitter_ms: 30,
        unavailable: 0.01,
        lost_reply: 0.01,
        timeout_ms: 200,
        ..Faults::default()
    };
    let config = FaultConfig {
        seed: env.random_u64(),
        faults,
        phases: Vec::new(),
    };
    Arc::new(Faulty::new(env, Arc::new(MemoryStore::new(env)), config).expect("these figures make sense"))
}

async fn take_snapshots(env: &Env, gate: &SnapshotGate<Recorded>, catalogue: &Catalogue) {
    let Recorded { known, life, .. } = gate.inner();
    for number in 0.. {
        let pause = env.random_below(1500);
        env.sleep(Duration::from_millis(pause)).await;
        let name = format!("{life}-{number}");
        let taken = async {
            let prepared = prepare(catalogue, gate, &name).await?;
            let frozen = prepared.freeze(gate)?;
            {
                // In the instant of the freeze.
                let mut known = lock(known);
                if known.life != *life {
                    return Err(DeviceError::Fenced.into());
                }
                let newest = known.promises.newest(BLOCKS);
                known.frozen.insert(name.clone(), newest);
            }
            prepared.copy(env, frozen, "", &Progress::default()).await
        };
        match taken.await {
            Ok(_) => {
                lock(known).taken.insert(name);
            }
            // One that the machine before this one had under way, or ours, was deleted in between.
            Err(SnapshotError::Store(_) | SnapshotError::Overtaken) => {}
            Err(SnapshotError::Device(DeviceError::Fenced)) => return,
            Err(error) => return lock(known).note(format!("snapshot {name}: {error}")),
        }
        if env.random_below(3) > 0 {
            continue;
        }
        let victim = {
            let mut known = lock(known);
            let taken: Vec<String> = known.taken.iter().cloned().collect();
            let Some(victim) = taken.get(env.random_below(taken.len().max(1) as u64) as usize) else {
                continue;
            };
            known.taken.remove(victim);
            victim.clone()
        };
        match delete(env, catalogue, &victim, &Progress::default()).await {
            Ok(_) => {
                lock(known).deleted.insert(victim);
            }
            Err(SnapshotError::Store(_) | SnapshotError::Overtaken) => {}
            Err(SnapshotError::NotSwept(why)) if matches!(*why, SnapshotError::Store(_)) => {}
            Err(error) => return lock(known).note(format!("deletion of {victim}: {error}")),
        }
    }
}

/// Every snapshot that exists holds what a reader would have seen at its instant, and those that were taken exist.
pub(crate) async fn snapshots_hold(
    env: &Env,
    catalogue: &Catalogue,
    known: &Mutex<Known>,
) -> Result<u64, String> {
    // Whoever lost the disk may still complete one that it has read already: those before the list must be in it.
    // They may still delete some as well: which, they say before.
    let (taken, deleted) = {
        let known = lock(known);
        (known.taken.clone(), known.deleted.clone())
    };
    let listed = again(env, || catalogue.list()).await?;
    let names: Vec<String> = listed.into_iter().map(|listed| listed.name).collect();
    let frozen = lock(known).frozen.clone();
    let must_be = |name: &String| lock(known).taken.contains(name);
    if let Some(lost) = taken.iter().find(|name| !names.contains(name) && must_be(name)) {
        return Err(format!("snapshot {lost} was taken and is not there"));
    }
    if let Some(back) = names.iter().find(|name| deleted.contains(*name)) {
        return Err(format!("snapshot {back} was deleted and is there"));
    }
    for name in &names {
        let target = MemoryDevice::with_block(BLOCKS * BLOCK_BYTES as u64, BLOCK_BYTES as u32);
        let exists = again(env, || async {
            match restore(catalogue, name, &target, &Progress::default()).await {
                Ok(_) => Ok(true),
                Err(SnapshotError::NotFound(_) | SnapshotError::Deleted(_)) if !must_be(name) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await?;
        if !exists {
            continue;
        }
        let found = content(&target).await.map_err(|error| error.to_string())?;
        match frozen.get(name) {
            Some(expected) if *expected == found => {}
            expected => return Err(format!("snapshot {name} holds {found:?} instead of {expected:?}")),
        }
    }
    Ok(names.len() as u64)
}

/// As often as it takes while the store fails now and then.
async fn again<T, F>(env: &Env, mut work: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, SnapshotError>>,
{
    for _ in 0..50 {
        match work().await {
            Err(SnapshotError::Store(error)) if error.is_transient() => {
                env.sleep(Duration::from_millis(50)).await;
            }
            other => return other.map_err(|error| error.to_string()),
        }
    }
    Err("the store fails all the time".into())
}
