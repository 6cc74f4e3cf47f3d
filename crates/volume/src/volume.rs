//! The volume: the tasks and shared state behind every request.
//!
//! ```text
//! request → plan + apply under one lock → journal (level 1) → reply
//!                      │
//!                      └ later: checkpoint → segments → root (level 2) → journal trimmed
//! ```
//!
//! Who owns what: requests and the checkpointer share [`State`] under a lock held for computation only; the journal's writer
//! task owns its files; the [`Checkpointer`] owns the branch, the segment counter and what this machine remembers; [`Snapshots`]
//! has those that are being made, cloned and read. How a request changes the volume stands in [`crate::change`].

use crate::{
    by_inode::ByInode,
    checkpointer::Checkpointer,
    cloud_durability::CloudWaits,
    config::VolumeConfig,
    follower::Follower,
    gathering::ManifestGathering,
    journal::Journal,
    objects::Objects,
    owner_signer::OwnerSigner,
    read_ahead::ReadAhead,
    read_view::ReadView,
    rekey::Rekey,
    serving::{Serving, ServingState},
    snapshots::{SnapshotNames, Snapshots},
    state::{Missing, State, Stop},
};
use firn_anchor::Anchor;
use firn_env::{Env, Monotonic};
use firn_format::VolumeId;
use firn_vfs::{CompletedRequest, FileHandle, Timestamp, VfsError};
use std::sync::{Arc, Mutex, MutexGuard};

/// A mounted volume; cheap to clone.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
    /// What protocols take for its root: that of the live tree, or of a snapshot.
    pub(crate) root: FileHandle,
    /// Whether a listing of the root has `.snapshots`.
    pub(crate) lists_snapshots: bool,
    /// How `.snapshots` names them.
    pub(crate) snapshot_names: SnapshotNames,
}

impl Volume {
    /// The volume from the root of its live tree on, `.snapshots` hidden.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            root: inner.root(),
            lists_snapshots: false,
            snapshot_names: SnapshotNames::Own,
            inner,
        }
    }

    /// What signs in the name of the volume's owner; `None` of a volume that is another's, or while nobody can know whose it is.
    pub fn owner_signer(&self) -> Option<OwnerSigner> {
        self.inner.checkpointer.signer().cloned()
    }
}

/// What a request needs, and the parts that have owners of their own.
pub(crate) struct Inner {
    pub env: Env,
    pub config: VolumeConfig,
    pub volume: VolumeId,
    /// Names the live tree to protocols.
    pub file_system: u64,
    pub block_bytes: u64,
    pub state: Mutex<State>,
    pub journal: Journal,
    pub objects: Objects,
    pub read_ahead: ReadAhead,
    pub anchor: Anchor,
    pub serving: Serving,
    pub checkpointer: Checkpointer,
    pub snapshots: Snapshots,
    pub rekey: Rekey,
    pub gathering: ManifestGathering,
    pub cloud_waits: CloudWaits,
    pub verifier: [u8; 8],
    pub replayed: Vec<CompletedRequest>,
    pub started: Monotonic,
    /// Of a volume that another edge owns and this one only reads.
    pub follower: Option<Follower>,
    /// Of a volume that others write at the same moment.
    pub by_inode: Option<ByInode>,
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
        self.serving.check()
    }

    /// Changes how the volume stands; fenced and failed are final.
    pub fn set_serving_state(&self, state: ServingState) {
        self.serving.set(state);
        self.checkpointer.wake();
        self.checkpointer.tell_committed();
    }

    /// The live tree, for looking at.
    pub fn read_view(&self) -> ReadView<'_> {
        ReadView {
            file_system: self.file_system,
            state: &self.state,
            journal: &self.journal,
            objects: &self.objects,
            read_ahead: &self.read_ahead,
            block_bytes: self.block_bytes,
            serving: &self.serving,
        }
    }

    /// Runs a question against the state, loading what it misses.
    pub async fn ask<T>(&self, question: impl FnMut(&mut State) -> Result<T, Stop>) -> Result<T, VfsError> {
        self.read_view().ask(question).await
    }

    /// Loads what a request misses.
    pub async fn load(&self, missing: Missing) -> Result<(), VfsError> {
        self.read_view().load(missing).await
    }
}
