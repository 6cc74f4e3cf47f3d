//! The registry of snapshots that something is going on with: made, cloned, or read.
//!
//! | part | who adds | who takes |
//! |---|---|---|
//! | waiting | a creation | the checkpointer, with its next freeze |
//! | pinned | a clone | the same, when it is done |
//! | views | a reader | the next reader of another one |

use super::{
    info::{SnapshotError, SnapshotInfo, shown},
    view::{SnapshotViews, directory_file_system_id},
};
use crate::{
    journal::Reservation,
    state::{SNAPSHOTS_MAX, State},
};
use bytes::Bytes;
use firn_format::VolumeId;
use firn_vfs::VfsError;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Creations that may wait for one freeze.
const WAITING_MAX: usize = 64;

/// A snapshot somebody waits for.
pub(crate) struct Waiting {
    pub name: Bytes,
    pub protected_until_ms: i64,
    pub reservation: Reservation,
    pub answer: oneshot::Sender<Result<SnapshotInfo, SnapshotError>>,
}

/// One that is frozen, with who waits for its commit.
pub(crate) struct Frozen {
    pub id: u64,
    pub answer: oneshot::Sender<Result<SnapshotInfo, SnapshotError>>,
}

/// See the module.
pub(crate) struct Snapshots {
    /// Names `.snapshots` to protocols.
    pub directory_file_system: u64,
    waiting: Mutex<Vec<Waiting>>,
    /// They may not be deleted now.
    pinned: Mutex<Vec<u64>>,
    pub views: SnapshotViews,
}

/// A snapshot that may not be deleted while this lives.
pub(crate) struct Pinned<'a> {
    registry: &'a Snapshots,
    id: u64,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut pinned = self.registry.pinned();
        if let Some(at) = pinned.iter().position(|id| *id == self.id) {
            pinned.swap_remove(at);
        }
    }
}

impl Snapshots {
    /// Nothing going on with the snapshots of this volume.
    pub fn new(volume: VolumeId) -> Self {
        Self {
            directory_file_system: directory_file_system_id(volume),
            waiting: Mutex::default(),
            pinned: Mutex::default(),
            views: SnapshotViews::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting
            .lock()
            .expect("no panic under the lock of waiting snapshots")
    }

    fn pinned(&self) -> MutexGuard<'_, Vec<u64>> {
        self.pinned
            .lock()
            .expect("no panic under the lock of pinned snapshots")
    }

    /// Has one made with the next freeze.
    pub fn wait(&self, one: Waiting) -> Result<(), SnapshotError> {
        let mut waiting = self.waiting();
        if waiting.len() >= WAITING_MAX {
            return Err(SnapshotError::Volume(VfsError::TryAgain {
                reason: "many snapshots are being made",
            }));
        }
        waiting.push(one);
        Ok(())
    }

    /// Whether somebody waits for one, so that a checkpoint is wanted even if nothing is dirty.
    pub fn are_waited_for(&self) -> bool {
        !self.waiting().is_empty()
    }

    /// Those to make with this freeze.
    pub fn take_waiting(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.waiting())
    }

    /// Keeps one from being deleted; under the lock of the state, under which a deletion would be planned.
    pub fn pin(&self, id: u64) -> Pinned<'_> {
        self.pinned().push(id);
        Pinned { registry: self, id }
    }

    pub fn is_pinned(&self, id: u64) -> bool {
        self.pinned().contains(&id)
    }
}

/// Whether one of that name can be made.
pub(super) fn check_new(state: &State, name: &[u8]) -> Result<(), SnapshotError> {
    if state.snapshot_named(name).is_some() {
        return Err(SnapshotError::Exists { name: shown(name) });
    }
    if state.snapshots().len() >= SNAPSHOTS_MAX {
        return Err(SnapshotError::TooMany);
    }
    Ok(())
}
