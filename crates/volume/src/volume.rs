//! The volume: the tasks and shared state behind every request.
//!
//! ```text
//! request → plan + apply under one lock → journal (level 1) → reply
//!                      │
//!                      └ later: checkpoint → segments → root (level 2) → journal trimmed
//! ```
//!
//! Who owns what: requests and the checkpointer share [`State`] under a lock held for computation only; the journal's writer
//! task owns its files; the checkpointer owns the [`Ownership`] and the segment counter.

use crate::{
    checkpoint::PackerContext,
    config::{Cadence, VolumeConfig},
    extents::WriteBuffer,
    journal::{Journal, JournalError, Reservation, ReserveClass, Sequence},
    local::LocalState,
    objects::{Objects, ReadError},
    record::{Operation, Record},
    state::{Content, DirectoryPage, Missing, PagePlace, State, Stop},
    tree,
};
use bytes::{Bytes, BytesMut};
use firn_anchor::{Anchor, Ownership};
use firn_env::{Env, Monotonic};
use firn_format::{INODE_MAP, Place, Pointer, Uid, Version, VolumeId};
use firn_vfs::{Caller, Timestamp, VfsError};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{Notify, watch};

/// Loads before a request gives up: every load brings one thing into memory, and no request needs more than a handful; a
/// deep rename check needs one an ancestor.
const LOADS_MAX: usize = 100_000;

/// A mounted volume; cheap to clone.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
}

/// How the volume stands towards the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
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
    /// Where the committed orphans are.
    pub orphan_pointers: BTreeMap<u64, Pointer>,
    pub local: LocalState,
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
    pub checkpointer: tokio::sync::Mutex<CheckpointerState>,
    pub times: Mutex<CheckpointTimes>,
    pub standing: watch::Sender<Standing>,
    /// Wakes the checkpointer: something became dirty, or somebody wants a checkpoint now.
    pub wake: Notify,
    pub wanted: AtomicBool,
    /// Tells waiters that a checkpoint was committed.
    pub committed: Notify,
    pub started: Monotonic,
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
    pub fn check_standing(&self) -> Result<(), VfsError> {
        match &*self.standing.borrow() {
            Standing::Serving => Ok(()),
            Standing::Stopping => Err(VfsError::TryAgain {
                reason: "the edge is stopping",
            }),
            Standing::Fenced => Err(VfsError::Fenced),
            Standing::Failed(reason) => Err(VfsError::Io(reason.clone())),
        }
    }

    /// Changes how the volume stands; fenced and failed are final.
    pub fn set_standing(&self, standing: Standing) {
        self.standing.send_if_modified(|current| match current {
            Standing::Fenced | Standing::Failed(_) => false,
            Standing::Serving | Standing::Stopping => {
                *current = standing;
                true
            }
        });
        self.wake.notify_one();
        self.committed.notify_waiters();
    }

    /// Asks for a checkpoint now.
    pub fn want_checkpoint(&self) {
        self.wanted.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Runs a question against the state, loading what it misses.
    pub async fn ask<T>(
        &self,
        mut question: impl FnMut(&mut State) -> Result<T, Stop>,
    ) -> Result<T, VfsError> {
        for _ in 0..LOADS_MAX {
            self.check_standing()?;
            let missing = match question(&mut self.lock()) {
                Ok(answer) => return Ok(answer),
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Missing(missing)) => missing,
            };
            self.load(missing).await?;
        }
        Err(VfsError::TryAgain {
            reason: "the memory cache is too small for this request",
        })
    }

    /// Runs a request that may change the volume: plans it, journals it and applies it in one step, then waits until it is
    /// durable (level 1) unless `stable` is false.
    pub async fn change<T>(
        &self,
        caller: &Caller,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<T, VfsError> {
        self.wait_for_room().await?;
        let size = RECORD_BYTES_MAX
            + request.extra_bytes
            + request.data.as_ref().map_or(0, |data| data.len() as u64);
        let mut reservation = Some(self.reserve(size, request.class).await?);
        for _ in 0..LOADS_MAX {
            self.check_standing()?;
            match self.attempt(caller, &request, &mut reservation, &mut plan) {
                Ok((answer, None)) => {
                    // "Nothing to do" rests on changes of others that may not be durable yet: a creation that finds the file
                    // there promises it as much as the one that made it.
                    let applied = self.lock().applied;
                    if request.stable {
                        self.durable(applied).await?;
                    }
                    return Ok(answer);
                }
                Ok((answer, Some(sequence))) => {
                    self.note_dirty();
                    if request.stable {
                        self.durable(sequence).await?;
                    }
                    return Ok(answer);
                }
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Missing(missing)) => self.load(missing).await?,
            }
        }
        Err(VfsError::TryAgain {
            reason: "the memory cache is too small for this request",
        })
    }

    /// One try of a change, under the lock from plan to answer.
    fn attempt<T>(
        &self,
        caller: &Caller,
        request: &ChangeRequest,
        reservation: &mut Option<Reservation>,
        plan: &mut impl FnMut(&mut State, Timestamp) -> Result<Planned<T>, Stop>,
    ) -> Result<(T, Option<Sequence>), Stop> {
        let mut state = self.lock();
        let now = self.now();
        match plan(&mut state, now)? {
            Planned::Unchanged(answer) => Ok((answer, None)),
            Planned::Change {
                operation,
                before,
                answer,
            } => {
                let record = Record {
                    request: caller.request,
                    now,
                    operation,
                };
                let reservation = reservation.take().expect("a request changes once");
                let sequence = self.journal_and_apply(&mut state, &record, reservation, &request.data);
                Ok((answer(&mut state, before), Some(sequence)))
            }
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
            state.keep_in_memory(buffer, limit, |buffer| self.journal.is_written(&buffer.record));
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
        self.set_standing(Standing::Failed(reason.clone()));
        VfsError::Io(reason)
    }

    /// Journal space for one record; a full journal slows clients down and wakes the checkpointer (I7).
    pub async fn reserve(&self, bytes: u64, class: ReserveClass) -> Result<Reservation, VfsError> {
        if let Some(reservation) = self.journal.reserve(bytes, class) {
            return Ok(reservation);
        }
        self.want_checkpoint();
        self.journal
            .wait_for_space(bytes, class, self.config.patience)
            .await
            .map_err(|_| VfsError::TryAgain {
                reason: "the journal is full until the cloud takes its data",
            })
    }

    /// Holds writers back while more is dirty than memory is meant for.
    async fn wait_for_room(&self) -> Result<(), VfsError> {
        let deadline = self.env.now().after(self.config.patience);
        loop {
            let committed = self.committed.notified();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.check_standing()?;
            {
                let state = self.lock();
                if state.records_since_freeze() < Cadence::RECORDS_HARD
                    && state.dirty_inodes() < Cadence::INODES_HARD
                {
                    return Ok(());
                }
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
        let first = {
            let mut times = self.times.lock().expect("no panic under this lock");
            let first = times.dirty_since.is_none();
            if first {
                times.dirty_since = Some(self.env.now());
            }
            first
        };
        if first || self.config.cadence.is_due(&self.lock()) {
            self.wake.notify_one();
        }
    }

    /// Loads what a request misses.
    pub async fn load(&self, missing: Missing) -> Result<(), VfsError> {
        match missing {
            Missing::Inode(number) => self.load_inode(number).await,
            Missing::Page { directory, key } => self.load_page(directory, key).await,
        }
    }

    async fn load_inode(&self, number: u64) -> Result<(), VfsError> {
        let root = self.lock().inode_map;
        let found = match &root {
            None => None,
            Some(root) => match tree::lookup(&self.objects, INODE_MAP, root, number).await {
                Err(error) => return Err(read_failed(error)),
                Ok(None) => None,
                Ok(Some(pointer)) => {
                    let place = Place {
                        inode: INODE_MAP,
                        level: 0,
                        index: number,
                    };
                    Some(read_inode(&self.objects, &pointer, place).await?)
                }
            },
        };
        let mut state = self.lock();
        // A commit meanwhile may have changed the inode; what was read is then of no use, and the request asks again.
        if state.inode_map != root {
            return Ok(());
        }
        match found {
            Some((inode, content)) => {
                state.install_inode(number, inode, content);
                Ok(())
            }
            None => match state.inode(number) {
                Err(Missing::Inode(_)) => Err(VfsError::Stale),
                // Created or tombstoned while we looked.
                Ok(_) | Err(Missing::Page { .. }) => Ok(()),
            },
        }
    }

    async fn load_page(&self, directory: u64, key: u64) -> Result<(), VfsError> {
        let (content, shape) = {
            let mut state = self.lock();
            match state.entry(directory) {
                Err(_) => return Ok(()), // Dropped meanwhile: the request will miss the inode next.
                Ok(None) => return Err(VfsError::Stale),
                Ok(Some(entry)) => {
                    let inode = entry.inode.as_ref().expect("an entry that is no tombstone");
                    (entry.content.clone(), inode.directory)
                }
            }
        };
        match find_page(&self.objects, directory, &content, shape, key).await {
            Err(error) => Err(read_failed(error)),
            Ok(Some((place, page))) => {
                self.lock().install_page(directory, &content, place, page);
                Ok(())
            }
            Ok(None) => {
                let mut state = self.lock();
                let unchanged = matches!(state.entry(directory), Ok(Some(entry)) if entry.content == content);
                if unchanged && state.page(directory, key).is_err() {
                    let detail = format!("no page of the directory covers key {key:016x}");
                    return Err(VfsError::Corrupt {
                        inode: directory,
                        detail,
                    });
                }
                Ok(())
            }
        }
    }
}

/// Finds and reads the committed page that covers `key`; `None` if there is none, which a whole directory never has.
pub(crate) async fn find_page(
    objects: &Objects,
    directory: u64,
    content: &Content,
    shape: crate::inode::DirectoryShape,
    key: u64,
) -> Result<Option<(PagePlace, DirectoryPage)>, ReadError> {
    let Content::Map(root) = content else {
        return Ok(None);
    };
    let deepest = shape.max_depth.min(crate::state::MAX_DEPTH);
    for depth in (0..=deepest).rev() {
        let place = PagePlace::covering(key, depth);
        let Some(pointer) = tree::lookup(objects, directory, root, place.index()).await? else {
            continue;
        };
        let at = Place {
            inode: directory,
            level: 0,
            index: place.index(),
        };
        let object = objects.get(&pointer, at).await?;
        return match DirectoryPage::decode(object.payload.clone(), place) {
            Ok(page) => Ok(Some((place, page))),
            Err(error) => {
                let (location, detail) = (pointer.location, error.to_string());
                Err(ReadError::Corrupt {
                    place: at,
                    location,
                    detail,
                })
            }
        };
    }
    Ok(None)
}

/// Reads and decodes an inode object.
pub(crate) async fn read_inode(
    objects: &Objects,
    pointer: &Pointer,
    place: Place,
) -> Result<(crate::inode::Inode, Content), VfsError> {
    let object = objects.get(pointer, place).await.map_err(read_failed)?;
    decode_inode(&object).map_err(|detail| VfsError::Corrupt {
        inode: place.index,
        detail,
    })
}

pub(crate) fn decode_inode(
    object: &crate::objects::Object,
) -> Result<(crate::inode::Inode, Content), String> {
    let (inode, inline) =
        crate::inode::Inode::decode(object.payload.clone()).map_err(|error| error.to_string())?;
    if inode.number != object.header.place.index {
        return Err(format!(
            "the object of inode {} says it is {}",
            object.header.place.index, inode.number
        ));
    }
    let content = match (
        inline,
        object.header.children.first(),
        object.header.plain.first(),
    ) {
        (Some(bytes), None, _) => Content::Inline(bytes),
        (None, Some(child), Some(level)) if *level > 0 => Content::Map(firn_format::TreeRoot {
            pointer: child.pointer,
            level: *level,
        }),
        (None, None, _) => Content::Empty,
        (Some(_), Some(_), _) | (None, Some(_), _) => {
            return Err("its content is neither inline nor a map".into());
        }
    };
    Ok((inode, content))
}

/// What the client is told when something committed cannot be read.
pub(crate) fn read_failed(error: ReadError) -> VfsError {
    match error {
        ReadError::Unavailable { .. } => VfsError::TryAgain {
            reason: "the object store is out of reach",
        },
        ReadError::Corrupt { place, .. } => {
            let inode = if place.inode == INODE_MAP && place.level == 0 {
                place.index
            } else {
                place.inode
            };
            VfsError::Corrupt {
                inode,
                detail: error.to_string(),
            }
        }
        ReadError::Missing { .. } => VfsError::Io(error.to_string()),
    }
}

/// An upper bound of a record without data, symbolic link target or attribute value: two names, an inode, two ACLs.
const RECORD_BYTES_MAX: u64 = 16 << 10;

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
