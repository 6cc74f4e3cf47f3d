//! Clones: a snapshot, or the present state, as a volume of its own.
//!
//! A clone is a new branch of the same family: it shares every object with its origin and writes only what changes, so making
//! one copies nothing and takes a handful of requests, whatever its size. Its checkpoint names the fork. From then on the two
//! know nothing of each other; each can be deleted without the other noticing.
//!
//! A clone is pinned: its first root is committed while the snapshot it is made of is still kept, and that is not deleted
//! before (a clone of the present state makes a snapshot first, and deletes it last). So at no time is there a tree that no
//! root in the anchor leads to.

use super::info::{SnapshotError, shown};
use crate::{
    branch::{commit_root, first_version},
    checkpoint::{CheckpointPayload, Packer, PackerContext},
    error::VolumeError,
    journal::Sequence,
    manifest::FinishedSegments,
    rekey::RekeyState,
    state::VolumeCounters,
    volume::Volume,
};
use firn_anchor::{AnchorError, WriterTenure};
use firn_format::{Checkpoint, ForkPoint, VolumeId};
use std::sync::{Arc, atomic::AtomicU64};

/// A new branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneReport {
    /// The clone.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Files in it.
    pub files: u64,
    /// Bytes of data in it, all of them shared with the origin.
    pub used_bytes: u64,
}

/// Why there is no clone.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    /// The snapshot.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// The clone exists, and is in use or was changed.
    #[error("a volume named {name} exists already; nothing was changed")]
    Exists {
        /// The name.
        name: String,
    },
    /// Store or anchor.
    #[error("the clone was not finished: {0}. The volume itself is as it was; the same command goes on")]
    Volume(#[from] VolumeError),
}

impl From<AnchorError> for CloneError {
    fn from(error: AnchorError) -> Self {
        Self::Volume(error.into())
    }
}

impl Volume {
    /// Makes a writable volume `name` of the same family out of a snapshot; any edge that has the family's keys can serve it.
    ///
    /// # Errors
    /// If there is no such snapshot, the name is taken, or store or anchor fail.
    pub async fn clone_snapshot(&self, snapshot: &[u8], name: &str) -> Result<CloneReport, CloneError> {
        let inner = &self.inner;
        inner.check_serving().map_err(SnapshotError::from)?;
        let checkpointer = inner.checkpointer.attached().map_err(SnapshotError::from)?;
        let (retained, id, counters, used, _pinned) = {
            let state = inner.lock();
            let found = state
                .snapshot_named(snapshot)
                .ok_or_else(|| SnapshotError::NoSuchSnapshot {
                    name: shown(snapshot),
                })?;
            let retained = found.retained.ok_or_else(|| SnapshotError::NotYet {
                name: shown(snapshot),
            })?;
            let counters = VolumeCounters {
                files: found.files,
                used_bytes: found.used_bytes,
                ..state.counters.clone()
            };
            // Under the lock under which a deletion would be planned.
            let pinned = inner.snapshots.pin(found.id);
            (retained, found.id, counters, found.used_bytes, pinned)
        };
        let volume = clone_id(inner.volume, id, name);
        match inner.anchor.create_volume(volume, name).await {
            Ok(()) => {}
            Err(AnchorError::VolumeExists { .. }) if inner.anchor.load(volume).await?.0.root.is_none() => {}
            Err(AnchorError::VolumeExists { .. } | AnchorError::NameTaken { .. }) => {
                return Err(CloneError::Exists {
                    name: name.to_owned(),
                });
            }
            Err(error) => return Err(error.into()),
        }
        let checkpointer = checkpointer.lock().await;
        let (owner, fork, mut manifest) = {
            // Still ours: whoever took the volume over may have deleted the snapshot.
            inner.anchor.check(&checkpointer.ownership).await?;
            let root = checkpointer.ownership.root().ok_or(VolumeError::NotFormatted)?;
            if retained.version > root.version {
                // Replayed from the journal, and committed with the next checkpoint.
                return Err(SnapshotError::NotYet {
                    name: shown(snapshot),
                }
                .into());
            }
            let fork = ForkPoint {
                volume: inner.volume,
                version: root.version,
                uid: root.uid,
            };
            let owner = inner.checkpointer.local.lock().await.owner;
            (owner, fork, checkpointer.manifest.clone())
        };
        // Until the clone is committed, the head stays this one: the manifest that the clone begins with is in no snapshot, and a cleaner may take
        // away what no head has any more.
        let head_stays = manifest.is_kept().then_some(checkpointer);
        let ownership = inner
            .anchor
            .acquire(volume, owner, &inner.config.owner_name)
            .await?;
        let version = first_version(fork.version.max(retained.version));
        let context = PackerContext {
            writer: inner
                .anchor
                .next_writer_for(WriterTenure::FirstRoot { volume })
                .await?,
            next_segment: Arc::new(AtomicU64::new(0)),
            finished: FinishedSegments::default(),
            ..inner.checkpointer.packer.clone()
        };
        if manifest.is_kept() {
            // What its origin's trees have and its own have not is no harm; its own are gone through from the beginning.
            manifest.of_clone(inner.env.wall().as_millis());
            context.finished.want();
        }
        let mut packer = Packer::new(context, version);
        let manifest = manifest
            .write(&mut packer, &[], None)
            .await
            .map_err(VolumeError::from)?;
        let checkpoint = Checkpoint {
            family: inner.checkpointer.packer.family,
            volume,
            version,
            epoch: ownership.epoch(),
            writer: packer.writer(),
            previous: Some(fork.uid),
            fork: Some(fork),
            inode_map: Some(retained.inode_map),
            orphans: retained.orphans,
            usage: None,
            snapshots: Vec::new(),
            cleaner_sequence: 0,
            committed_at_ms: inner.env.wall().as_millis(),
            manifest,
        };
        let files = counters.files;
        let payload = CheckpointPayload {
            counters,
            block_bytes: u32::try_from(inner.block_bytes).expect("a block has at most 1 MiB"),
            covered: Sequence(0),
            completed: Vec::new(),
            snapshots: Vec::new(),
            history: Vec::new(),
            rekey: match inner.rekey.state().oldest_at(retained.version) {
                Some(oldest) => RekeyState::clean_from(oldest, version),
                None => RekeyState::default(),
            },
            members: Vec::new(),
        };
        inner.env.fault_point("clone.before_commit").await;
        commit_root(
            &inner.env,
            &inner.anchor,
            ownership,
            packer,
            &checkpoint,
            &payload,
        )
        .await?;
        drop(head_stays);
        inner.env.fault_point("clone.after_commit").await;
        Ok(CloneReport {
            volume,
            name: name.to_owned(),
            files,
            used_bytes: used,
        })
    }

    /// The same of the present state: of everything acknowledged before the call.
    ///
    /// # Errors
    /// As [`Volume::clone_snapshot`].
    pub async fn clone_head(&self, name: &str) -> Result<CloneReport, CloneError> {
        let id: [u8; 8] = self.inner.env.random_bytes();
        let temporary = format!("clone-{:016x}", u64::from_le_bytes(id));
        self.snapshot_create(temporary.clone(), 0).await?;
        let cloned = self.clone_snapshot(temporary.as_bytes(), name).await;
        if let Err(error) = self.snapshot_delete(temporary.as_bytes()).await {
            tracing::warn!(%error, temporary, "the snapshot that a clone was made of is still there; delete it by hand");
        }
        cloned
    }
}

/// The clone's id follows from what it is made of, so that a clone that was interrupted finds what it began.
fn clone_id(origin: VolumeId, snapshot: u64, name: &str) -> VolumeId {
    let mut hasher = blake3::Hasher::new_derive_key("firn clone volume id v1");
    hasher
        .update(&origin.0)
        .update(&snapshot.to_le_bytes())
        .update(name.as_bytes());
    VolumeId(
        hasher.finalize().as_bytes()[..16]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}
