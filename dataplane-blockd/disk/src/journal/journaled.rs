//! A disk with its journal.
//!
//! | phase      | a change                                 | leaves for                                                          |
//! |------------|------------------------------------------|---------------------------------------------------------------------|
//! | direct     | goes to the disk                         | entering, when the oldest write has waited too long                 |
//! | entering   | is queued                                | journaling, when all that waits for nodes is in the journal         |
//! | journaling | is queued, journaled, answered, destaged | leaving, when the disk has all of it and nodes answer               |
//! | leaving    | is queued, journaled, destaged           | emptying, when all is durable; journaling, when that takes too long |
//! | emptying   | is queued                                | direct, when the files are deleted; journaling, if anything came    |
//!
//! A change takes its place when it is polled first, under the lock, in every phase; so there is one order, and what is read is
//! looked for in the queue and the journal first: what is there and was not destaged is newer than what the disk has. One
//! task writes the queue to the journal, one destages its changes to the disk in their order, one watches how long nodes take.
//!
//! *Bounds.* The journal has at most its bound and one change, or what waited when it began (which the disk bounds); at the bound the
//! queue is not written, so nobody is answered. What is queued and not answered is bounded by whoever calls, as of the disk. A zeroed range
//! counts 16 bytes a block in the journal, since a crash makes the next attach look at each.
//!
//! *A local disk that fails* makes writers wait, as one without a journal does: when nodes have what it holds, it is deleted, and
//! changes go to the disk from the queue, answered when they are durable there.

use super::{
    Journal, JournalOptions,
    entry::{ENTRY_DATA_MAX, ENTRY_HEAD_BYTES, Entry},
    files::{JournalFiles, ZEROED_BLOCK_BYTES},
    spans::{Part, Spans},
};
use crate::{mode::FlushPolicy, types::Change, virtual_disk::VirtualDisk};
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Geometry, Piece, ZEROES_AT_ONCE_BYTES};
use firn_env::{DiskLock, Env, Monotonic, Task};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::Notify;

/// What an entry takes beside its data.
const ENTRY_BYTES: u64 = ENTRY_HEAD_BYTES as u64 + 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Direct,
    Entering,
    Journaling,
    Leaving,
    Emptying,
}

/// How things stand, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalingStatus {
    /// Which journaling this is since the attach, while changes go to the journal; what is answered while it lasts, and all
    /// before, is found again by the next attach on this machine, if nobody has the disk in between.
    pub session: Option<u64>,
    /// Bytes of the journal.
    pub used_bytes: u64,
    /// Its bound.
    pub bytes_max: u64,
    /// Changes in it that the disk does not have yet.
    pub waiting: u64,
    /// All that was answered is durable here or on nodes.
    pub holds_all: bool,
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Counts the times that journaling began.
    pub(super) session: u64,
    /// The number of the next entry.
    pub(super) next: u64,
    /// Entries that are not in the journal yet: those from `synced` on, but for what waited when it began.
    pub(super) queue: VecDeque<Entry>,
    /// The journal could not be written and holds nothing: changes wait in memory, as without one.
    pub(super) broken: bool,
    /// The journal has no room for what is queued, or cannot be written.
    pub(super) blocked: bool,
    /// All entries below are in the journal, durably.
    pub(super) synced: u64,
    /// All entries below were destaged: the disk was handed them.
    pub(super) destaged: u64,
    /// All entries below are durable, or are being made so.
    pub(super) syncing: u64,
    /// All entries below are durable on nodes.
    pub(super) durable: u64,
    pub(super) spans: Spans,
    /// Entries at which somebody waits for nodes.
    pub(super) wanted: BTreeSet<u64>,
    /// Blocks of entries from `destaged` on for which the disk has something newer of the journal already.
    pub(super) skip: BTreeMap<u64, Vec<Range<u64>>>,
    pub(super) syncs: usize,
    pub(super) failed: Option<DeviceError>,
    /// Before this moment the journal is not left.
    pub(super) stay_until: Option<Monotonic>,
}

pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) disk: VirtualDisk,
    pub(super) block_bytes: u64,
    pub(super) flush: FlushPolicy,
    pub(super) journal: Option<(JournalOptions, JournalFiles)>,
    /// Held as long as anybody may write to the journal.
    _lock: Option<Box<dyn DiskLock>>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Journaled {
    inner: Arc<Inner>,
    _tasks: Arc<Vec<AbortOnDrop>>,
}

struct AbortOnDrop(Task<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Journaled {
    /// The disk with a journal, or without one: then it is the disk and nothing else. What the journal has of an earlier attach
    /// is destaged meanwhile, and read from here at once.
    ///
    /// # Errors
    /// If the disk or the journal cannot be read.
    pub async fn new(
        env: &Env,
        disk: VirtualDisk,
        flush: FlushPolicy,
        journal: Option<Journal>,
    ) -> Result<Self, DeviceError> {
        let block_bytes = u64::from(disk.geometry().block_bytes);
        let (journal, lock) = match journal {
            Some(journal) => (Some((journal.options, journal.files)), Some(journal.lock)),
            None => (None, None),
        };
        let inner = Inner {
            env: env.clone(),
            disk,
            block_bytes,
            flush,
            journal,
            _lock: lock,
            state: Mutex::new(State {
                phase: Phase::Direct,
                session: 0,
                next: 1,
                queue: VecDeque::new(),
                broken: false,
                blocked: false,
                synced: 1,
                destaged: 1,
                syncing: 1,
                durable: 1,
                spans: Spans::default(),
                wanted: BTreeSet::new(),
                skip: BTreeMap::new(),
                syncs: 0,
                failed: None,
                stay_until: None,
            }),
            changed: Notify::new(),
        };
        inner.resume().await?;
        let inner = Arc::new(inner);
        let mut tasks = Vec::new();
        if inner.journal.is_some() {
            let (watching, writing, destaging) = (inner.clone(), inner.clone(), inner.clone());
            tasks.push(env.spawn_essential("journal watch", async move { watching.watch().await }));
            tasks.push(env.spawn_essential("journal write", async move { writing.write_entries().await }));
            tasks.push(env.spawn_essential("journal destage", async move { destaging.destage().await }));
        }
        Ok(Self {
            inner,
            _tasks: Arc::new(tasks.into_iter().map(AbortOnDrop).collect()),
        })
    }

    /// The disk itself.
    pub fn disk(&self) -> &VirtualDisk {
        &self.inner.disk
    }

    /// How things stand; nothing without a journal.
    pub fn status(&self) -> Option<JournalingStatus> {
        let (options, files) = self.inner.journal.as_ref()?;
        let state = self.inner.state();
        Some(JournalingStatus {
            session: (state.phase == Phase::Journaling).then_some(state.session),
            used_bytes: files.used_bytes(),
            bytes_max: options.bytes_max,
            waiting: state.next - state.destaged,
            holds_all: matches!(state.phase, Phase::Journaling | Phase::Leaving) && !state.broken,
        })
    }

    /// Waits until the journal is empty and changes go to the disk directly.
    ///
    /// # Errors
    /// If the disk was taken over: what the journal has stays there.
    pub async fn settle(&self) -> Result<(), DeviceError> {
        self.inner.until(|state| state.phase == Phase::Direct).await
    }
}

impl State {
    /// An entry that is not in the journal yet.
    pub(super) fn queued(&self, number: u64) -> Option<Entry> {
        let first = self.next - self.queue.len() as u64;
        let at = number.checked_sub(first)?;
        self.queue.get(usize::try_from(at).ok()?).cloned()
    }

    /// Up to where changes can be destaged.
    pub(super) fn destageable(&self) -> u64 {
        if self.broken { self.next } else { self.synced }
    }

    /// Whether room comes back only if the disk is told to make durable what was destaged last.
    pub(super) fn owes_sync(&self) -> bool {
        self.blocked && self.destaged == self.destageable() && self.syncing < self.destaged
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    pub(super) async fn until(&self, mut reached: impl FnMut(&State) -> bool) -> Result<(), DeviceError> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if reached(&state) {
                    return Ok(());
                }
                if let Some(failed) = &state.failed {
                    return Err(failed.clone());
                }
            }
            changed.await;
        }
    }

    pub(super) fn files(&self) -> &JournalFiles {
        &self
            .journal
            .as_ref()
            .expect("its tasks run only with a journal")
            .1
    }

    pub(super) fn options(&self) -> &JournalOptions {
        &self
            .journal
            .as_ref()
            .expect("its tasks run only with a journal")
            .0
    }

    pub(super) fn blocks_of(&self, change: &Change) -> Range<u64> {
        match change {
            Change::Data { first, data } => *first..first + data.len() as u64 / self.block_bytes,
            Change::Zero { blocks } => blocks.clone(),
            Change::Flush => 0..0,
        }
    }

    /// Makes a change, and waits until it may be answered. Its place is taken when this is polled first.
    async fn change<'a>(
        &'a self,
        changes: Vec<Change>,
        durable: bool,
        mut direct: BoxFuture<'a, Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        if self.journal.is_none() {
            return direct.await;
        }
        let placed = {
            let mut state = self.state();
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            match state.phase {
                Phase::Direct => Ok((&mut direct).now_or_never()),
                Phase::Entering | Phase::Journaling | Phase::Leaving | Phase::Emptying => {
                    if let Some(error) = self.gave_up() {
                        return Err(error);
                    }
                    Err(self.enqueue(&mut state, changes, durable))
                }
            }
        };
        let number = match placed {
            Ok(Some(answer)) => return answer,
            Ok(None) => return direct.await,
            Err(number) => number,
        };
        self.changed.notify_waiters();
        let early = firn_env::planted!("journal.answer_before_sync");
        let mut error = None;
        let answered = self.until(|state| {
            if (state.synced <= number || durable) && state.durable <= number {
                error = self.gave_up();
            }
            let safe = if durable {
                state.durable
            } else {
                state.synced.max(state.durable)
            };
            let held = matches!(state.phase, Phase::Leaving | Phase::Emptying);
            error.is_some() || ((safe > number || (early && !durable)) && !held)
        });
        answered.await?;
        error.map_or(Ok(()), Err)
    }

    /// Why writes fail, once nodes have been away for longer than is waited for.
    pub(super) fn gave_up(&self) -> Option<DeviceError> {
        let most = self.journal.as_ref()?.0.give_up?;
        let away = self.disk.waiting().filter(|away| *away > most)?;
        Some(DeviceError::Io(format!(
            "nodes have been away for {} s; what was answered is in the journal",
            away.as_secs()
        )))
    }

    /// Queues changes; the number of the last.
    fn enqueue(&self, state: &mut State, changes: Vec<Change>, awaited: bool) -> u64 {
        for change in changes {
            let number = state.next;
            state.next += 1;
            state.spans.insert(self.blocks_of(&change), number);
            state.queue.push_back(Entry::Change(change));
        }
        if awaited {
            state.wanted.insert(state.next - 1);
        }
        state.next - 1
    }

    /// Cuts a change into what entries hold.
    pub(super) fn cut(&self, change: Change) -> Vec<Change> {
        match change {
            Change::Data { first, data } => {
                let step = ENTRY_DATA_MAX / self.block_bytes as usize * self.block_bytes as usize;
                let part = |at: usize| Change::Data {
                    first: first + at as u64 / self.block_bytes,
                    data: data.slice(at..data.len().min(at + step)),
                };
                (0..data.len()).step_by(step).map(part).collect()
            }
            Change::Zero { .. } | Change::Flush => vec![change],
        }
    }

    /// A part of a range that is in the journal; nothing if it has gone on its way.
    async fn read_entry(&self, number: u64, blocks: &Range<u64>) -> Result<Option<Piece>, DeviceError> {
        let queued = {
            let state = self.state();
            state.queued(number)
        };
        let entry = match queued {
            Some(entry) => Some(entry),
            None => self
                .files()
                .read(number)
                .await
                .map_err(|error| DeviceError::Io(error.to_string()))?,
        };
        Ok(match entry {
            Some(Entry::Change(Change::Data { first, data })) => {
                let from = ((blocks.start - first) * self.block_bytes) as usize;
                let to = ((blocks.end - first) * self.block_bytes) as usize;
                Some(Piece::Data(data.slice(from..to)))
            }
            Some(Entry::Change(Change::Zero { .. })) => {
                Some(Piece::Zeroes((blocks.end - blocks.start) * self.block_bytes))
            }
            Some(Entry::Change(Change::Flush) | Entry::Ready) | None => None,
        })
    }

    async fn read_range(&self, blocks: Range<u64>) -> Result<Vec<Piece>, DeviceError> {
        let parts = self.state().spans.parts(blocks);
        let mut pieces = Vec::new();
        for Part { blocks, entry } in parts {
            let journaled = match entry {
                Some(number) if !firn_env::planted!("journal.read_past") => {
                    self.read_entry(number, &blocks).await?
                }
                Some(_) | None => None,
            };
            match journaled {
                Some(piece) => pieces.push(piece),
                // What was retired meanwhile the disk has, or something newer that was written since this read began.
                None => pieces.extend(self.read_disk(&blocks).await?),
            }
        }
        Ok(pieces)
    }

    pub(super) async fn read_disk(&self, blocks: &Range<u64>) -> Result<Vec<Piece>, DeviceError> {
        let length = (blocks.end - blocks.start) * self.block_bytes;
        let length = u32::try_from(length).expect("part of a range that fits");
        self.disk.read(blocks.start * self.block_bytes, length).await
    }
}

/// What a change counts in the journal.
pub(super) fn cost_bytes(change: &Change) -> u64 {
    ENTRY_BYTES
        + match change {
            Change::Data { data, .. } => data.len() as u64,
            Change::Zero { blocks } => (blocks.end - blocks.start) * ZEROED_BLOCK_BYTES,
            Change::Flush => 0,
        }
}

#[async_trait]
impl BlockDevice for Journaled {
    fn geometry(&self) -> Geometry {
        self.inner.disk.geometry()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        if self.inner.journal.is_none() {
            return self.inner.disk.read(offset, length).await;
        }
        let block_bytes = self.inner.block_bytes;
        let blocks = offset / block_bytes..(offset + u64::from(length)) / block_bytes;
        self.inner.read_range(blocks).await
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let first = offset / self.inner.block_bytes;
        let changes = match self.inner.journal {
            Some(_) => self.inner.cut(Change::Data {
                first,
                data: data.clone(),
            }),
            None => Vec::new(),
        };
        let direct = self.inner.disk.write(offset, data, durability);
        self.inner
            .change(changes, durability == Durability::Durable, direct)
            .await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let durable =
            self.inner.flush == FlushPolicy::Durable && !firn_env::planted!("journal.flush_answers_early");
        self.inner
            .change(vec![Change::Flush], durable, self.inner.disk.flush())
            .await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let part = (end - at).min(ZEROES_AT_ONCE_BYTES - at % ZEROES_AT_ONCE_BYTES);
            let blocks = at / self.inner.block_bytes..(at + part) / self.inner.block_bytes;
            let direct = self.inner.disk.write_zeroes(at, part, allow_hole, durability);
            self.inner
                .change(
                    vec![Change::Zero { blocks }],
                    durability == Durability::Durable,
                    direct,
                )
                .await?;
            at += part;
        }
        Ok(())
    }

    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        self.inner.disk.zeroes_fast(allow_hole)
    }
}
