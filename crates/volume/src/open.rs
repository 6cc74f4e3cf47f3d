//! Making, opening and stopping a volume: format, recovery, drain.
//!
//! Recovery = newest root + journal replay (I6). The journal is bound to the ownership epoch under which it was written: on
//! any other owner's root it is never replayed but salvaged (I8).

use crate::{
    branch::{NewBranch, commit_branch},
    checkpoint::{self, ConfirmError, Packer, PackerContext, UploadProgress},
    config::VolumeConfig,
    error::VolumeError,
    kept_checkpoint,
    load::load_root,
    local::LocalState,
    objects::{Objects, ObjectsConfig},
    start::{Start, StartRoot},
    state::{State, VolumeCounters, root_inode},
    volume::{Inner, ServingState, Volume},
};
use firn_anchor::{Anchor, AnchorError, Ownership, RememberedRoot, WriterTenure};
use firn_env::Env;
use firn_format::{FamilyId, ROOT_DIRECTORY, Version, VolumeId, WriterId, checkpoint_place};
use firn_seal::Keys;
use firn_store::{Store, StoreError};
use firn_vfs::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

/// What a volume is made of, outside this crate.
#[derive(Clone)]
pub struct Parts {
    /// Clock, randomness, tasks, and the state directory as disk.
    pub env: Env,
    /// The bucket.
    pub store: Arc<dyn Store>,
    /// The anchor of the family.
    pub anchor: Anchor,
    /// The opened key ring.
    pub keys: Keys,
    /// Which volume of the family.
    pub volume: VolumeId,
}

impl Parts {
    pub(crate) fn family(&self) -> FamilyId {
        self.anchor.family()
    }

    pub(crate) async fn objects(&self, config: &VolumeConfig) -> Result<Objects, VolumeError> {
        self.objects_of(config, false).await
    }

    /// The same for a volume that is served while the cloud is away.
    pub(crate) async fn detached_objects(&self, config: &VolumeConfig) -> Result<Objects, VolumeError> {
        self.objects_of(config, true).await
    }

    async fn objects_of(&self, config: &VolumeConfig, absent_is_away: bool) -> Result<Objects, VolumeError> {
        let objects = ObjectsConfig {
            absent_is_away,
            memory_cache_bytes: config.memory_cache_bytes,
            disk_cache_bytes: config.disk_cache_bytes,
            // The file that the journal makes next, and the one after it.
            disk_headroom_bytes: 2 * config.journal_file_bytes,
            fetch: config.fetch,
            prices: config.fetch_prices,
        };
        let (env, store) = (&self.env, self.store.clone());
        Ok(Objects::open(env, store, self.family(), self.keys.clone(), "cache", objects).await?)
    }

    pub(crate) fn packer(&self, config: &VolumeConfig, objects: &Objects, writer: WriterId) -> PackerContext {
        PackerContext {
            env: self.env.clone(),
            store: self.store.clone(),
            objects: objects.clone(),
            keys: self.keys.clone(),
            family: self.family(),
            writer,
            next_segment: Arc::new(AtomicU64::new(0)),
            segment_bytes: config.segment_bytes,
            uploads_max: config.uploads_max,
            compression: config.compression,
            compressibility: Arc::default(),
            progress: Arc::new(UploadProgress::default()),
        }
    }
}

/// How a new volume is laid out; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a data block: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// Mode of the root directory.
    pub root_mode: u32,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            block_bytes: 32 << 10,
            root_mode: 0o755,
        }
    }
}

/// Between two times that a store is asked which does not answer.
const CONFIRM_RETRY: Duration = Duration::from_secs(2);

/// What recovery did, for the log and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The committed version that recovery began with.
    pub version: u64,
    /// Records replayed from the journal on top of it.
    pub records: u64,
    /// Bytes of file data among them.
    pub data_bytes: u64,
    /// Unlinked files that were open at the stop and are now freed.
    pub orphans_freed: u64,
    /// What was found torn at the end of the journal, and dropped: it was never acknowledged.
    pub torn_tail: Option<String>,
}

impl Volume {
    /// Makes a new volume in a family that exists: its tuple, and a first checkpoint with an empty root directory.
    ///
    /// # Errors
    /// If the volume exists, or store or anchor fail. A volume that was made only in part can be formatted again.
    pub async fn format(
        parts: &Parts,
        name: &str,
        options: FormatOptions,
        config: &VolumeConfig,
    ) -> Result<(), VolumeError> {
        let local = LocalState::load(&parts.env).await?;
        match parts.anchor.create_volume(parts.volume, name).await {
            Ok(()) => {}
            Err(AnchorError::VolumeExists { .. }) => {
                let (tuple, _) = parts.anchor.load(parts.volume).await?;
                if tuple.root.is_some() {
                    return Err(AnchorError::VolumeExists { volume: parts.volume }.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        let ownership = parts
            .anchor
            .acquire(parts.volume, local.owner, &config.owner_name)
            .await?;
        let now = Timestamp::from_nanos(parts.env.wall().0);
        let mut state = State::new(
            file_system_id(parts.volume),
            VolumeCounters::new(parts.env.random_bytes()),
            None,
        );
        state.create_root(&root_inode(ROOT_DIRECTORY, options.root_mode, now), now);
        let block_bytes = options.block_bytes;
        let base = NewBranch {
            version: Version(1),
            previous: None,
            fork: None,
            block_bytes,
        };
        let objects = parts.objects(config).await?;
        let tenure = WriterTenure::Owner {
            volume: parts.volume,
            epoch: ownership.epoch(),
        };
        let writer = parts.anchor.next_writer_for(tenure).await?;
        let packer = Packer::new(parts.packer(config, &objects, writer), base.version);
        commit_branch(parts, ownership, packer, &mut state, BTreeMap::new(), base).await?;
        Ok(())
    }

    /// Opens the volume: takes ownership, reads the newest root, replays the journal, and starts to serve.
    ///
    /// # Errors
    /// `OwnedByOther` if another edge has it; `SalvageFirst` if this edge was fenced with writes in its journal; whatever
    /// keeps root or journal from being read. Nothing was changed then.
    pub async fn open(parts: Parts, config: VolumeConfig) -> Result<(Self, RecoveryReport), VolumeError> {
        let env = parts.env.clone();
        let mut local = LocalState::load(&env).await?;
        let acquired = if skips_acquire(&local) {
            let taken = parts
                .anchor
                .takeover(parts.volume, local.owner, &config.owner_name)
                .await;
            taken.map(|taken| taken.ownership)
        } else {
            parts
                .anchor
                .acquire(parts.volume, local.owner, &config.owner_name)
                .await
        };
        let ownership = match acquired {
            Ok(ownership) => ownership,
            Err(error @ AnchorError::OwnedByOther { .. }) => {
                // Who knows that the volume is another's does not serve it when the cloud is away.
                kept_checkpoint::forget(&**env.disk()).await?;
                return Err(match local.tenure {
                    Some(tenure) if crate::salvage::has_journal(&parts, &config, tenure).await? => {
                        VolumeError::SalvageFirst { tenure }
                    }
                    Some(_) | None => error.into(),
                });
            }
            Err(error) => return Err(error.into()),
        };
        Self::open_owned(parts, config, &mut local, ownership).await
    }

    pub(crate) async fn open_owned(
        parts: Parts,
        config: VolumeConfig,
        local: &mut LocalState,
        ownership: Ownership,
    ) -> Result<(Self, RecoveryReport), VolumeError> {
        let env = parts.env.clone();
        let tenure = match local.tenure {
            Some(remembered) if skips_acquire(local) => remembered,
            _ => ownership.tenure(),
        };
        if let Some(old) = local.tenure.filter(|old| *old != tenure) {
            kept_checkpoint::forget(&**env.disk()).await?;
            if crate::salvage::has_journal(&parts, &config, old).await? {
                return Err(VolumeError::SalvageFirst { tenure: old });
            }
            local.tenure = None;
        }
        match &mut local.seen {
            Some(seen) => {
                seen.observe(ownership.tuple())?;
            }
            None => local.seen = Some(RememberedRoot::new(parts.volume, ownership.tuple())),
        }
        let root = ownership.root().cloned().ok_or(VolumeError::NotFormatted)?;
        let objects = parts.objects(&config).await?;
        let loaded = load_root(&objects, (parts.family(), parts.volume), &root).await?;
        let registered = WriterTenure::Owner {
            volume: parts.volume,
            epoch: ownership.epoch(),
        };
        let writer = match parts.anchor.next_writer_for(registered).await? {
            _ if firn_env::planted!("volume.reuse_writer_incarnation") => WriterId(1),
            writer => writer,
        };
        let copy = match kept_checkpoint::load(&**env.disk(), root.version).await {
            Ok(Some(kept))
                if objects
                    .open_kept(kept.clone(), &root.uid, checkpoint_place(root.version))
                    .is_ok() =>
            {
                None
            }
            Ok(_) | Err(_) => objects.sealed(&root.location).await,
        };
        // The tenure is remembered before the first record of its journal can exist, and the root before what it covers is removed.
        local.tenure = Some(tenure);
        (local.writer, local.shares_taken) = (Some(writer), 0);
        if !local.remember(&**env.disk(), copy.as_ref()).await? {
            local.save(&**env.disk()).await?;
        }
        Start {
            root: StartRoot {
                version: root.version,
                uid: root.uid,
                committed_at_ms: root.committed_at_ms,
            },
            writer,
            tenure,
            ownership: Some(ownership),
            local: local.clone(),
            loaded,
            objects,
            parts,
            config,
        }
        .run()
        .await
    }

    /// Waits until everything changed before this call is committed and the store was seen to have it (level 2), however long
    /// the cloud takes.
    ///
    /// # Errors
    /// If the volume is fenced, detached or has failed, or the store lost what it had acknowledged.
    pub async fn sync(&self) -> Result<(), firn_vfs::VfsError> {
        self.inner.checkpointer()?;
        self.committed().await?;
        let lost = |error: VolumeError| firn_vfs::VfsError::Io(error.to_string());
        self.confirmed().await.map_err(lost)
    }

    /// Waits until the store was seen to have everything that it acknowledged.
    async fn confirmed(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        loop {
            match checkpoint::confirm(&inner.packer).await {
                Ok(()) => return Ok(()),
                Err(ConfirmError::Lost(lost)) => return Err(VolumeError::LevelTwoLost(lost)),
                Err(ConfirmError::Unasked(StoreError::Unavailable { .. })) => {
                    inner.check_not_ended()?;
                    inner.env.sleep(CONFIRM_RETRY).await;
                }
                Err(ConfirmError::Unasked(error)) => {
                    // An edge may lack the right to list; what was acknowledged then counts as there.
                    tracing::warn!(%error, "the store does not say whether it has what it acknowledged");
                    return Ok(());
                }
            }
        }
    }

    /// Waits until everything changed before this call is under a committed root.
    async fn committed(&self) -> Result<(), firn_vfs::VfsError> {
        let inner = &self.inner;
        let target = inner.lock().applied;
        loop {
            let committed = inner.committed.notified();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            match &*inner.serving_state.borrow() {
                ServingState::Serving | ServingState::Stopping => {}
                ServingState::Fenced => return Err(firn_vfs::VfsError::Fenced),
                ServingState::Failed(reason) => return Err(firn_vfs::VfsError::Io(reason.clone())),
            }
            let clean = {
                let state = inner.lock();
                !state.is_dirty() && !inner.times.lock().expect("no panic under this lock").building
            };
            let committed_to = inner.times.lock().expect("no panic under this lock").committed_to;
            if clean || committed_to >= target {
                return Ok(());
            }
            inner.want_checkpoint();
            committed.await;
        }
    }

    /// Stops serving with the journal synced (level 1): the next start on this disk replays it and keeps the write verifier.
    ///
    /// # Errors
    /// If the journal cannot be synced.
    pub async fn stop(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.set_serving_state(ServingState::Stopping);
        inner.close_journal().await?;
        let _checkpointer = match &inner.checkpointer {
            Some(checkpointer) => Some(checkpointer.lock().await),
            None => None,
        };
        let mut local = inner.local.lock().await;
        local.clean_verifier = Some(inner.verifier);
        local.save(&**inner.env.disk()).await?;
        // Ends the checkpointer; a checkpoint under way is simply not finished.
        inner.set_serving_state(ServingState::Failed("the edge has stopped".into()));
        Ok(())
    }

    /// Commits everything (level 2) and gives the ownership up, so that any other edge can open the volume.
    ///
    /// # Errors
    /// If the volume is fenced, detached or has failed, or the anchor refuses.
    pub async fn drain(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        let checkpointer = inner.checkpointer.as_ref().ok_or(VolumeError::Detached)?;
        inner.set_serving_state(ServingState::Stopping);
        self.committed()
            .await
            .map_err(|error| VolumeError::Stopped(error.to_string()))?;
        self.confirmed().await?;
        let mut checkpointer = checkpointer.lock().await;
        inner.close_journal().await?;
        // Once the volume is given up, nothing may go on in its journal; what it has is committed.
        kept_checkpoint::forget(&**inner.env.disk()).await?;
        inner.env.fault_point("drain.before_release").await;
        inner.anchor.drain(&mut checkpointer.ownership).await?;
        inner.env.fault_point("drain.after_release").await;
        let tenure = checkpointer.ownership.tenure();
        let mut local = inner.local.lock().await;
        local.tenure = None;
        local.save(&**inner.env.disk()).await?;
        crate::salvage::remove_journal(&**inner.env.disk(), tenure).await?;
        inner.set_serving_state(ServingState::Failed("the volume was drained".into()));
        Ok(())
    }
}

/// A planted bug: after a start without the cloud, the volume is taken for ours whoever has it.
fn skips_acquire(local: &LocalState) -> bool {
    firn_env::planted!("volume.return_without_acquire") && local.shares_taken > 0
}

impl Inner {
    /// Refuses once the volume does not serve any more for good.
    fn check_not_ended(&self) -> Result<(), VolumeError> {
        match &*self.serving_state.borrow() {
            ServingState::Serving | ServingState::Stopping => Ok(()),
            ServingState::Fenced => Err(VolumeError::Stopped("another edge took the volume over".into())),
            ServingState::Failed(reason) => Err(VolumeError::Stopped(reason.clone())),
        }
    }

    async fn close_journal(&self) -> Result<(), VolumeError> {
        self.journal.close().await;
        match self.journal.failed() {
            None => Ok(()),
            Some(reason) => Err(VolumeError::Stopped(reason)),
        }
    }
}

/// The number by which protocols know a volume: stable, and different for different volumes.
pub fn file_system_id(volume: VolumeId) -> u64 {
    u64::from_le_bytes(volume.0[..8].try_into().expect("sixteen bytes"))
}
