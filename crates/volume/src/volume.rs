//! The volume: the tasks and shared state behind every request.
//!
//! ```text
//! request → plan + apply under one lock → journal (level 1) → reply
//!                      │
//!                      └ later: checkpoint → segments → root (level 2) → journal trimmed
//! ```
//!
//! Who owns what: requests and the checkpointer share [`State`] under a lock held for computation only; the journal's writer
//! task owns its files; the checkpointer owns the [`Ownership`] and the segment counter. A volume that was opened while the cloud
//! is away ([`crate::detached`]) has no checkpointer.

use crate::{
    checkpoint::{HISTORY_MAX, PackerContext},
    config::{Cadence, VolumeConfig},
    detached::DETACHED,
    extents::WriteBuffer,
    journal::{Journal, JournalError, Reservation, ReserveClass, Sequence},
    local::LocalState,
    merge::{MergeState, MergeStatus},
    objects::Objects,
    read_view::{LOADS_MAX, ReadView},
    record::{Operation, Record},
    snapshots::{SnapshotViews, Waiting},
    state::{Missing, State, Stop},
    usage::UsageMap,
};
use bytes::{Bytes, BytesMut};
use firn_anchor::{Anchor, Ownership};
use firn_env::{Env, Monotonic};
use firn_format::{Pointer, Uid, Version, VolumeId};
use firn_vfs::{Caller, Timestamp, VfsError};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// A mounted volume; cheap to clone.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
}

/// How the volume stands towards the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// It serves.
    Serving,
    /// It is being stopped; new requests are told to try again.
    Stopping,
    /// Another edge owns it (I8): nothing is served any more.
    Fenced,
    /// The journal failed: nothing is acknowledged any more; the process must restart and recover.
    Failed(String),
}

/// What the checkpointer alone changes.
pub(crate) struct CheckpointerState {
    pub ownership: Ownership,
    pub version: Version,
    pub root: Uid,
    /// Inodes that the newest checkpoint counts.
    pub files: u64,
    /// Where the committed orphans are.
    pub orphan_pointers: BTreeMap<u64, Pointer>,
    /// The newest commits, oldest first; at most [`HISTORY_MAX`].
    pub history: VecDeque<(Version, Uid)>,
    /// Where taking over from the cleaner stands.
    pub merge: MergeState,
    /// Live bytes of segments.
    pub usage: UsageMap,
}

impl CheckpointerState {
    /// Remembers a commit of this branch.
    pub fn remember(&mut self, version: Version, uid: Uid) {
        if self.history.len() >= HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((version, uid));
    }
}

/// Times and counts of checkpoints, for `status` and for the cadence.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointTimes {
    /// When the oldest change that no commit covers was made.
    pub dirty_since: Option<Monotonic>,
    /// The same for what the checkpoint under way has frozen.
    pub frozen_since: Option<Monotonic>,
    pub committed: u64,
    /// The newest record under a committed root.
    pub committed_to: Sequence,
    pub last_commit_ms: Option<i64>,
    pub last_error: Option<String>,
    pub building: bool,
}

pub(crate) struct Inner {
    pub env: Env,
    pub config: VolumeConfig,
    pub volume: VolumeId,
    pub block_bytes: u64,
    pub state: Mutex<State>,
    pub journal: Journal,
    pub objects: Objects,
    pub anchor: Anchor,
    pub packer: PackerContext,
    pub verifier: [u8; 8],
    pub replayed: Vec<firn_vfs::CompletedRequest>,
    /// `None` while detached: nobody knows whose the volume is, and nothing is committed.
    pub checkpointer: Option<tokio::sync::Mutex<CheckpointerState>>,
    /// Locked after the checkpointer.
    pub local: tokio::sync::Mutex<LocalState>,
    pub times: Mutex<CheckpointTimes>,
    pub serving_state: watch::Sender<ServingState>,
    /// Wakes the checkpointer: something became dirty, or somebody wants a checkpoint now.
    pub wake: Notify,
    pub wanted: AtomicBool,
    /// Tells waiters that a checkpoint was committed.
    pub committed: Notify,
    pub started: Monotonic,
    /// Snapshots to be made with the next freeze.
    pub waiting_snapshots: Mutex<Vec<Waiting>>,
    /// Snapshots that may not be deleted now.
    pub pinned_snapshots: Mutex<Vec<u64>>,
    /// What was taken over from the cleaner.
    pub merging: Mutex<MergeStatus>,
    /// Snapshots that are being read.
    pub views: SnapshotViews,
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a panic under the state lock ends the process")
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.env.wall().0)
    }

    /// Refuses if the volume does not serve.
    pub fn check_serving(&self) -> Result<(), VfsError> {
        self.shown().check_serving()
    }

    /// Changes how the volume stands; fenced and failed are final.
    pub fn set_serving_state(&self, serving_state: ServingState) {
        self.serving_state.send_if_modified(|current| match current {
            ServingState::Fenced | ServingState::Failed(_) => false,
            ServingState::Serving | ServingState::Stopping => {
                *current = serving_state;
                true
            }
        });
        self.wake.notify_one();
        self.committed.notify_waiters();
    }

    /// What may commit; refused while detached.
    pub fn checkpointer(&self) -> Result<&tokio::sync::Mutex<CheckpointerState>, VfsError> {
        self.checkpointer
            .as_ref()
            .ok_or(VfsError::TryAgain { reason: DETACHED })
    }

    /// Asks for a checkpoint now.
    pub fn want_checkpoint(&self) {
        self.wanted.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The live tree, for looking at.
    pub fn shown(&self) -> ReadView<'_> {
        ReadView {
            state: &self.state,
            objects: &self.objects,
            block_bytes: self.block_bytes,
            serving_state: &self.serving_state,
        }
    }

    /// Runs a question against the state, loading what it misses.
    pub async fn ask<T>(&self, question: impl FnMut(&mut State) -> Result<T, Stop>) -> Result<T, VfsError> {
        self.shown().ask(question).await
    }

    /// Runs a request that may change the volume: plans it, journals it and applies it in one step, then waits until it is
    /// durable (level 1) unless `stable` is false.
    pub async fn change<T>(
        &self,
        caller: &Caller,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<T, VfsError> {
        let size = RECORD_BYTES_MAX
            + request.extra_bytes
            + request.data.as_ref().map_or(0, |data| data.len() as u64);
        let mut reservation = None;
        for _ in 0..LOADS_MAX {
            self.check_serving()?;
            let reserved = match reservation.take() {
                Some(reserved) => reserved,
                None => self.reserve(size, request.class).await?,
            };
            match self.attempt(caller, &request, reserved, &mut plan) {
                Ok(done) => {
                    if done.wake {
                        self.wake.notify_one();
                    }
                    if request.stable {
                        self.durable(done.rests_on).await?;
                    }
                    return Ok(done.answer);
                }
                Err(Undone::Refused(error)) => return Err(error),
                Err(Undone::Missing(missing, unused)) => {
                    reservation = Some(unused);
                    self.load(missing).await?;
                }
                // Space is not held while waiting: others may need it for what makes room.
                Err(Undone::Crowded) => self.wait_for_room().await?,
            }
        }
        Err(VfsError::TryAgain {
            reason: "the memory cache is too small for this request",
        })
    }

    /// One try of a change, under one lock from the look whether there is room for it to the answer.
    fn attempt<T>(
        &self,
        caller: &Caller,
        request: &ChangeRequest,
        reservation: Reservation,
        plan: &mut impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<Done<T>, Undone> {
        let mut state = self.lock();
        if !Cadence::has_room(&state) {
            return Err(Undone::Crowded);
        }
        let now = self.now();
        match plan(&mut state, now) {
            // "Nothing to do" rests on changes of others that may not be durable yet: a creation that finds the file there
            // promises it as much as the one that made it.
            Ok(Planned::Unchanged(answer)) => Ok(Done {
                answer,
                rests_on: state.applied,
                wake: false,
            }),
            Ok(Planned::Change {
                operation,
                before,
                answer,
            }) => {
                let record = Record {
                    request: caller.request,
                    now,
                    operation,
                };
                let sequence = self.journal_and_apply(&mut state, &record, reservation, &request.data);
                let answer = answer(&mut state, before);
                Ok(Done {
                    answer,
                    rests_on: sequence,
                    wake: self.mark_dirty() || self.config.cadence.is_due(&state),
                })
            }
            Err(Stop::Refused(error)) => Err(Undone::Refused(error)),
            Err(Stop::Missing(missing)) => Err(Undone::Missing(missing, reservation)),
        }
    }

    /// Journals and applies a planned record under the state lock, so that both have one order.
    pub fn journal_and_apply(
        &self,
        state: &mut State,
        record: &Record,
        reservation: Reservation,
        data: &Option<Bytes>,
    ) -> Sequence {
        let head = record.encode();
        let payload_offset = head.len();
        let mut parts = vec![head];
        parts.extend(data.clone());
        let appended = self.journal.append(reservation, parts);
        let buffer = data
            .as_ref()
            .map(|data| WriteBuffer::new(data.clone(), payload_offset, appended.record.clone()));
        if let Err(missing) = state.apply(appended.sequence, record, buffer.as_ref()) {
            unreachable!("planned with everything in memory under the same lock, yet {missing:?}");
        }
        // Tests follow the order of changes by this.
        self.env.observe("volume.applied", appended.sequence.0);
        if let Some(buffer) = buffer {
            let limit = self.config.dirty_memory_bytes;
            state
                .resident_mut()
                .keep(buffer, limit, |buffer| self.journal.is_written(&buffer.record));
        }
        appended.sequence
    }

    /// Waits until the journal holds everything up to `sequence`.
    pub async fn durable(&self, sequence: Sequence) -> Result<(), VfsError> {
        self.journal
            .durable(sequence)
            .await
            .map_err(|error| self.journal_failed(&error))
    }

    fn journal_failed(&self, error: &JournalError) -> VfsError {
        let reason = format!("the journal failed and nothing more is acknowledged: {error}");
        tracing::error!(%error, "the journal failed; restart the edge to recover what was acknowledged");
        self.set_serving_state(ServingState::Failed(reason.clone()));
        VfsError::Io(reason)
    }

    /// Journal space for one record; a full journal slows clients down and wakes the checkpointer (I7). A full queue does not:
    /// it empties by itself.
    pub async fn reserve(&self, bytes: u64, class: ReserveClass) -> Result<Reservation, VfsError> {
        if let Some(reservation) = self.journal.reserve(bytes, class) {
            return Ok(reservation);
        }
        let waiting = self.journal.wait_for_space(bytes, class, self.config.wait_limit);
        futures::pin_mut!(waiting);
        loop {
            if self.journal.is_full(bytes, class) {
                self.want_checkpoint();
            }
            // It may become full, or its disk, while this waits.
            if let Ok(granted) = self.env.timeout(LOOK_AGAIN, &mut waiting).await {
                return granted.map_err(|_| VfsError::TryAgain {
                    reason: "the journal is full until the cloud takes its data",
                });
            }
        }
    }

    /// Holds writers back while more is dirty than memory is meant for.
    async fn wait_for_room(&self) -> Result<(), VfsError> {
        let deadline = self.env.now().after(self.config.wait_limit);
        loop {
            let committed = self.committed.notified();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.check_serving()?;
            if Cadence::has_room(&self.lock()) {
                return Ok(());
            }
            self.want_checkpoint();
            let left = deadline.since(self.env.now());
            if left.is_zero() || self.env.timeout(left, committed).await.is_err() {
                return Err(VfsError::TryAgain {
                    reason: "too many changes wait for the cloud",
                });
            }
        }
    }

    /// After a change: remembers since when something is dirty, and wakes the checkpointer if it sleeps for lack of work or
    /// should not sleep any longer.
    pub fn note_dirty(&self) {
        if self.mark_dirty() || self.config.cadence.is_due(&self.lock()) {
            self.wake.notify_one();
        }
    }

    /// Remembers since when something is dirty; whether nothing was before.
    fn mark_dirty(&self) -> bool {
        let mut times = self.times.lock().expect("no panic under this lock");
        let first = times.dirty_since.is_none();
        if first {
            times.dirty_since = Some(self.env.now());
        }
        first
    }

    /// Loads what a request misses.
    pub async fn load(&self, missing: Missing) -> Result<(), VfsError> {
        self.shown().load(missing).await
    }
}

/// An upper bound of a record without data, symbolic link target or attribute value: two names, an inode, two ACLs.
pub(crate) const RECORD_BYTES_MAX: u64 = 16 << 10;

/// How often who waits for journal space looks whether the journal is full.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A change that was made, or that was none.
struct Done<T> {
    answer: T,
    /// The record that must be durable before anybody is told.
    rests_on: Sequence,
    /// Whether the checkpointer has reason to look.
    wake: bool,
}

/// Why one try of a change made none.
enum Undone {
    /// It is refused.
    Refused(VfsError),
    /// Something must be loaded; the reservation is as good as before.
    Missing(Missing, Reservation),
    /// More is dirty than memory is meant for.
    Crowded,
}

/// How a change is journaled.
pub struct ChangeRequest {
    /// The data of a write.
    pub data: Option<Bytes>,
    /// Bytes of a link target or attribute value in the record.
    pub extra_bytes: u64,
    /// Whether to wait until it is durable (level 1).
    pub stable: bool,
    /// Removals may use the journal's reserve.
    pub class: ReserveClass,
}

impl ChangeRequest {
    /// A change of metadata: stable before the reply.
    pub fn metadata() -> Self {
        Self {
            data: None,
            extra_bytes: 0,
            stable: true,
            class: ReserveClass::Ordinary,
        }
    }

    /// A change that frees something.
    pub fn removal() -> Self {
        Self {
            data: None,
            extra_bytes: 0,
            stable: true,
            class: ReserveClass::Reserved,
        }
    }
}

/// Finds the answer to a request in the state after its change, given what was seen before it.
pub type Answer<T> = Box<dyn FnOnce(&mut State, Before) -> T + Send>;

/// Attributes seen while planning, for weak cache consistency.
#[derive(Default)]
pub struct Before(pub Vec<firn_vfs::Attributes>);

/// What a plan comes to.
pub enum Planned<T> {
    /// Nothing changes; this is the answer.
    Unchanged(T),
    /// This changes.
    Change {
        /// The change.
        operation: Operation,
        /// What was seen before it.
        before: Before,
        /// Makes the answer.
        answer: Answer<T>,
    },
}

/// One contiguous buffer for the data of a write. Small writes are copied, so that they do not keep a whole network buffer
/// alive in memory that is accounted by their own length.
pub(crate) fn contiguous(mut parts: Vec<Bytes>) -> Bytes {
    const COPY_BELOW: usize = 64 << 10;
    if parts.len() == 1 && parts[0].len() >= COPY_BELOW {
        return parts.swap_remove(0);
    }
    let total = parts.iter().map(Bytes::len).sum();
    let mut buffer = BytesMut::with_capacity(total);
    for part in &parts {
        buffer.extend_from_slice(part);
    }
    buffer.freeze()
}
