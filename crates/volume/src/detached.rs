//! A detached volume: opened while store or table are away, and served from the journal, the caches and what this machine
//! remembers.
//!
//! ```text
//! local state (tenure, newest root) ─▶ copy of its checkpoint, verified by the root's uid ─▶ replay ─▶ serves, commits nothing
//!                                                                                             │ store and table answer
//!                                              Volume::open, the one door (acquire, …) ◀── stop ◀┘
//! ```
//!
//! Nobody can say whether the volume is still ours (I8). So there is no ownership, no checkpointer and nothing that needs them;
//! writes go to the journal of the remembered tenure (level 1) and continue its sequence, and a full journal holds writers (I7).
//! When the cloud is back, the volume is stopped cleanly and opened anew, so that whether it is still ours is decided where every
//! start decides it. What is neither in memory, journal nor cache is there, only not now: [`firn_vfs::VfsError::TryAgain`].
//! (Decision 0098.)

use crate::{
    config::VolumeConfig,
    error::{NotDetachable, VolumeError},
    kept_checkpoint,
    load::load_checkpoint,
    local::LocalState,
    objects::ReadError,
    parts::Parts,
    replay::RecoveryReport,
    start::{Start, StartRoot},
    volume::Volume,
};
use firn_anchor::SeenRoot;
use firn_env::Env;
use firn_format::{OwnershipEpoch, WriterId, checkpoint_place};

/// What a detached volume goes out from.
#[derive(Clone, Debug)]
pub struct DetachedReport {
    /// What the replay did.
    pub recovery: RecoveryReport,
    /// The epoch under which this edge was last seen to own the volume.
    pub epoch: OwnershipEpoch,
    /// When the root was committed that it goes out from, milliseconds since 1970.
    pub committed_at_ms: i64,
}

/// What this machine remembers of a volume that it may serve detached.
struct Remembered {
    tenure: OwnershipEpoch,
    epoch: OwnershipEpoch,
    root: SeenRoot,
    writer: WriterId,
    copy: bytes::Bytes,
}

async fn remembered(env: &Env, local: &LocalState) -> Result<Remembered, VolumeError> {
    let tenure = local.tenure.ok_or(NotDetachable::NotOwned)?;
    let seen = local.seen.as_ref().ok_or(NotDetachable::NotOwned)?;
    let root = *seen.root().ok_or(NotDetachable::NotOwned)?;
    let writer = local.writer.ok_or(NotDetachable::NoCopy)?;
    let copy = kept_checkpoint::load(&**env.disk(), root.version).await?;
    Ok(Remembered {
        tenure,
        epoch: seen.epoch(),
        root,
        writer,
        copy: copy.ok_or(NotDetachable::NoCopy)?,
    })
}

impl Volume {
    /// Whether this machine remembers enough of the volume to try [`Volume::open_detached`]; takes no request to the cloud.
    ///
    /// # Errors
    /// [`VolumeError::NotDetachable`] if not; otherwise if the state directory cannot be read.
    pub async fn check_detachable(env: &Env) -> Result<(), VolumeError> {
        let local = LocalState::find(env).await?.ok_or(NotDetachable::NotOwned)?;
        remembered(env, &local).await.map(|_| ())
    }

    /// Opens the volume without asking store or table whose it is; see the module. The store is still asked for what readers want
    /// and the cache does not have. Stop it with [`Volume::stop`], and open it anew.
    ///
    /// # Errors
    /// [`VolumeError::NotDetachable`], or whatever keeps the journal from being read. Nothing was changed then.
    pub async fn open_detached(
        parts: Parts,
        config: VolumeConfig,
    ) -> Result<(Self, DetachedReport), VolumeError> {
        let local = LocalState::find(&parts.env)
            .await?
            .ok_or(NotDetachable::NotOwned)?;
        let from = remembered(&parts.env, &local).await?;
        let objects = parts.detached_objects(&config).await?;
        let place = checkpoint_place(from.root.version);
        let object = objects
            .open_kept(from.copy, &from.root.uid, place)
            .map_err(|detail| NotDetachable::Damaged { detail })?;
        let known_as = (from.root.version, from.root.uid);
        let loaded = load_checkpoint(&objects, parts.volume, known_as, &object)
            .await
            .map_err(not_cached)?;
        let start = Start {
            root: StartRoot {
                version: from.root.version,
                uid: from.root.uid,
                committed_at_ms: from.root.committed_at_ms,
            },
            writer: from.writer,
            tenure: from.tenure,
            ownership: None,
            local,
            loaded,
            objects,
            parts,
            config,
        };
        let (volume, recovery) = start.run().await.map_err(not_cached)?;
        let report = DetachedReport {
            recovery,
            epoch: from.epoch,
            committed_at_ms: from.root.committed_at_ms,
        };
        Ok((volume, report))
    }
}

fn not_cached(error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Read(ReadError::Unavailable { segment, detail }) => {
            let detail = format!("segment {segment}: {detail}");
            NotDetachable::NotCached { detail }.into()
        }
        other => other,
    }
}
