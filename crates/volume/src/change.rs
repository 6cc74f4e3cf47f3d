//! A change: planned, journaled and applied in one step, then answered when it is durable.
//!
//! ```text
//! space in the journal ─▶ room in memory ─▶ plan ─▶ append + apply ─▶ durable (level 1, or 2) ─▶ answer
//!        ▲                └──────── one lock, no I/O ─────────┘
//!        └── what the plan misses is loaded, and it is made again
//! ```

use crate::{
    by_inode::{Held, Unheld},
    cloud_durability::Waiter,
    config::Cadence,
    extents::WriteBuffer,
    journal::{JournalError, Reservation, ReserveClass, Sequence},
    read_view::LOADS_MAX,
    record::{Operation, Record},
    serving::ServingState,
    state::{Missing, State, Stop},
    volume::Inner,
};
use bytes::Bytes;
use firn_env::Wait;
use firn_vfs::{Caller, Durability, Timestamp, VfsError};
use std::time::Duration;

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
    /// Whether something was changed.
    waiter: Waiter,
}

/// Why one try of a change made none.
enum Undone {
    /// It is refused.
    Refused(VfsError),
    /// Something must be loaded; the reservation is as good as before.
    Missing(Missing, Reservation),
    /// More is dirty than memory is meant for.
    Crowded,
    /// A lease is needed, or a newer root.
    Unheld(Unheld),
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

impl Inner {
    /// Runs a request that may change the volume: plans it, journals it and applies it in one step, then waits until it is as
    /// durable as the caller asks; not at all if `stable` is false.
    pub async fn change<T>(
        &self,
        caller: &Caller,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<T, VfsError> {
        let size = RECORD_BYTES_MAX
            + request.extra_bytes
            + request.data.as_ref().map_or(0, |data| data.len() as u64);
        let in_cloud = request.stable && caller.durability == Durability::Cloud;
        if in_cloud {
            self.cloud_at_hand().await?;
        }
        // Before anything is pinned, which others may wait for.
        if request.class == ReserveClass::Ordinary {
            self.wait_for_uplink().await?;
        }
        let mut reservation = None;
        let mut held = Held::default();
        for _ in 0..LOADS_MAX {
            self.check_serving()?;
            let reserved = match reservation.take() {
                Some(reserved) => reserved,
                None => self.reserve(size, request.class).await?,
            };
            match self.attempt(caller, &request, reserved, &held, &mut plan) {
                Ok(done) => {
                    held.changed();
                    // What was changed is unpublished now, which keeps it from being given.
                    drop(held);
                    if done.wake {
                        self.checkpointer.wake();
                    }
                    if request.stable && caller.durability >= Durability::Journal {
                        self.durable(done.rests_on).await?;
                    }
                    if in_cloud {
                        self.in_cloud(done.rests_on, done.waiter).await?;
                    }
                    self.still_valid()?;
                    return Ok(done.answer);
                }
                Err(Undone::Refused(error)) => return Err(error),
                Err(Undone::Missing(missing, unused)) => {
                    match self.load(missing).await {
                        Ok(()) => reservation = Some(unused),
                        // What no root has that was read here may be in a newer one: clients get handles in other offices, too.
                        Err(VfsError::Stale) if self.by_inode.is_some() && !held.is_fresh() => {
                            held = self.hold(held, Unheld::Root).await?;
                        }
                        Err(error) => return Err(error),
                    }
                }
                // Space is not held while waiting: others may need it for what makes room.
                Err(Undone::Crowded) => self.wait_for_room().await?,
                Err(Undone::Unheld(wanted)) => held = self.hold(held, wanted).await?,
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
        held: &Held<'_>,
        plan: &mut impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<Done<T>, Undone> {
        let mut state = self.lock();
        // Looked at once more under the lock: who waited for space may come after the last checkpoint of a drain, which nobody
        // would commit.
        if !firn_env::planted!("volume.change_after_drain") {
            self.check_serving().map_err(Undone::Refused)?;
        }
        if !Cadence::has_room(&state) {
            return Err(Undone::Crowded);
        }
        let now = self.now();
        let planned = plan(&mut state, now);
        if let Some(by_inode) = &self.by_inode {
            by_inode
                .allow(&mut state, &planned, held)
                .map_err(|why| match why {
                    Ok(wanted) => Undone::Unheld(wanted),
                    Err(refused) => Undone::Refused(refused),
                })?;
        }
        match planned {
            // "Nothing to do" rests on changes of others that may not be durable yet: a creation that finds the file there
            // promises it as much as the one that made it.
            Ok(Planned::Unchanged(answer)) => Ok(Done {
                answer,
                rests_on: state.applied,
                wake: false,
                waiter: Waiter::Asks,
            }),
            Ok(Planned::Change {
                operation,
                before,
                answer,
            }) => {
                let record = Record {
                    after_break: held.after_break(&state),
                    ..Record::new(caller.request, now, operation)
                };
                let sequence = self.journal_and_apply(&mut state, &record, reservation, &request.data);
                if held.has_shape() {
                    state.moved_directory();
                }
                let answer = answer(&mut state, before);
                Ok(Done {
                    answer,
                    rests_on: sequence,
                    wake: self.checkpointer.mark_dirty(self.env.now()) || self.config.cadence.is_due(&state),
                    waiter: Waiter::Changed,
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
        let _waiting = self.env.waits_for(Wait::Room);
        let waiting = self.journal.wait_for_space(bytes, class, self.config.wait_limit);
        futures::pin_mut!(waiting);
        loop {
            if self.journal.is_full(bytes, class) {
                self.checkpointer.want();
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
            let committed = self.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.check_serving()?;
            if Cadence::has_room(&self.lock()) {
                return Ok(());
            }
            self.checkpointer.want();
            let _waiting = self.env.waits_for(Wait::Room);
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
        if self.checkpointer.mark_dirty(self.env.now()) || self.config.cadence.is_due(&self.lock()) {
            self.checkpointer.wake();
        }
    }
}
