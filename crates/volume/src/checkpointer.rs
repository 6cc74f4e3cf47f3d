//! The checkpointer's own: what only it changes, and what others may ask of it or tell it.
//!
//! | who | what |
//! |---|---|
//! | the task ([`crate::checkpoint::run`]) | holds [`CheckpointerState`] from one checkpoint to the next |
//! | a request | [`Checkpointer::mark_dirty`], [`Checkpointer::want`], [`Checkpointer::wake`]; waits for [`Checkpointer::committed`] |
//! | `status` | [`Checkpointer::times`], [`Checkpointer::merge_status`] |
//!
//! A volume that was opened while the cloud is away ([`crate::detached`]) has these, too, but nobody runs them and there is no state
//! of a branch.

use crate::{
    checkpoint::{HISTORY_MAX, PackerContext},
    error::{DETACHED, FOLLOWS, VolumeError},
    journal::Sequence,
    local::LocalState,
    manifest::Manifest,
    merge::state::{MergeState, MergeStatus},
    owner_signer::OwnerSigner,
    ownership_statement::RootSigner,
    usage::UsageMap,
};
use firn_anchor::Ownership;
use firn_env::{Monotonic, Watched};
use firn_format::{Pointer, Uid, Version};
use firn_vfs::VfsError;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{Notify, futures::Notified};

/// What the checkpointer alone changes.
pub(crate) struct CheckpointerState {
    pub ownership: Ownership,
    /// Signs what is committed under it.
    pub signer: RootSigner,
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
    /// Segments that must exist.
    pub manifest: Manifest,
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

/// As whom the volume is open here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its owner, or who was that when the cloud was at hand last.
    Owner,
    /// It is another's.
    Follower,
    /// One of many that write.
    Member,
}

/// See the module.
pub(crate) struct Checkpointer {
    /// `None` while detached: nobody knows whose the volume is, and nothing is committed. And of a follower.
    own: Option<tokio::sync::Mutex<CheckpointerState>>,
    /// What signs in the owner's name, without waiting for a checkpoint under way.
    signer: Option<OwnerSigner>,
    role: Role,
    pub packer: PackerContext,
    /// Locked after the state of the branch.
    pub local: tokio::sync::Mutex<LocalState>,
    times: Mutex<CheckpointTimes>,
    /// What was taken over from the cleaner.
    merging: Mutex<MergeStatus>,
    /// Something became dirty, or somebody wants a checkpoint now.
    woken: Notify,
    wanted: AtomicBool,
    /// A checkpoint was committed.
    committed: Notify,
    /// No checkpoint is begun any more, and one under way is not finished.
    is_over: Watched<bool>,
}

impl Checkpointer {
    pub fn new(
        own: Option<CheckpointerState>,
        packer: PackerContext,
        local: LocalState,
        times: CheckpointTimes,
    ) -> Self {
        Self {
            signer: own.as_ref().map(OwnerSigner::of),
            own: own.map(tokio::sync::Mutex::new),
            role: Role::Owner,
            packer,
            local: tokio::sync::Mutex::new(local),
            times: Mutex::new(times),
            merging: Mutex::default(),
            woken: Notify::new(),
            wanted: AtomicBool::new(false),
            committed: Notify::new(),
            is_over: Watched::new(false),
        }
    }

    /// The same of a volume that is another's.
    pub fn of_follower(self) -> Self {
        Self {
            role: Role::Follower,
            ..self
        }
    }

    /// The same of a volume that many write, each what it holds.
    pub fn of_member(self) -> Self {
        Self {
            role: Role::Member,
            ..self
        }
    }

    /// What may commit; `None` while detached.
    pub fn own(&self) -> Option<&tokio::sync::Mutex<CheckpointerState>> {
        self.own.as_ref()
    }

    /// What signs in the owner's name; `None` as above.
    pub fn signer(&self) -> Option<&OwnerSigner> {
        self.signer.as_ref()
    }

    /// The same for a request, which is refused while detached.
    pub fn attached(&self) -> Result<&tokio::sync::Mutex<CheckpointerState>, VfsError> {
        match self.role {
            Role::Follower => Err(VfsError::TryAgain { reason: FOLLOWS }),
            Role::Member => Err(VfsError::NotSupported),
            Role::Owner => self.own().ok_or(VfsError::TryAgain { reason: DETACHED }),
        }
    }

    /// The same for an administrator.
    pub fn owned(&self) -> Result<&tokio::sync::Mutex<CheckpointerState>, VolumeError> {
        match self.role {
            Role::Follower => Err(VolumeError::Follows),
            Role::Member => Err(VolumeError::SharedByInode),
            Role::Owner => self.own().ok_or(VolumeError::Detached),
        }
    }

    pub fn times(&self) -> MutexGuard<'_, CheckpointTimes> {
        self.times
            .lock()
            .expect("no panic under the lock of the checkpointer's times")
    }

    pub fn merge_status(&self) -> MutexGuard<'_, MergeStatus> {
        self.merging
            .lock()
            .expect("no panic under the lock of the merge's counts")
    }

    /// Has the task look whether a checkpoint is due.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Asks for a checkpoint now.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
        self.wake();
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// A checkpoint begins, or none is needed.
    pub fn begin(&self) {
        self.wanted.store(false, Ordering::Release);
    }

    /// Waits until no checkpoint is wanted or under way.
    pub async fn settled(&self) {
        loop {
            let committed = self.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            if !self.is_wanted() && !self.times().building {
                break;
            }
            committed.await;
        }
        // It was begun and does not build yet, or has still to trim the journal.
        if let Some(own) = self.own() {
            drop(own.lock().await);
        }
    }

    /// Ends the task, also where it waits for a cloud that does not answer: as a kill would, so that the next start sees to what is in doubt.
    pub fn end(&self) {
        self.is_over.set(true);
        self.wake();
    }

    /// Waits for [`Self::end`].
    pub async fn over(&self) {
        self.is_over.wait_for(|is_over| *is_over).await;
    }

    pub fn woken(&self) -> Notified<'_> {
        self.woken.notified()
    }

    /// The next commit, or that there was nothing to commit, or the end of the volume.
    pub fn committed(&self) -> Notified<'_> {
        self.committed.notified()
    }

    /// Has all who wait for a commit look again.
    pub fn tell_committed(&self) {
        self.committed.notify_waiters();
    }

    /// Remembers since when something is dirty; whether nothing was before.
    pub fn mark_dirty(&self, now: Monotonic) -> bool {
        let mut times = self.times();
        let first = times.dirty_since.is_none();
        if first {
            times.dirty_since = Some(now);
        }
        first
    }
}

impl CheckpointTimes {
    /// What was dirty is frozen, and built from now on.
    pub fn freeze(&mut self) {
        self.frozen_since = self.dirty_since.take();
        self.building = true;
    }

    /// What was frozen is committed.
    pub fn commit(&mut self, covered: Sequence, committed_at_ms: i64) {
        self.frozen_since = None;
        self.building = false;
        self.committed += 1;
        self.committed_to = covered;
        self.last_commit_ms = Some(committed_at_ms);
        self.last_error = None;
    }
}
