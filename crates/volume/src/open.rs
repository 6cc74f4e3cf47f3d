//! Making, opening and stopping a volume: format, recovery, drain.
//!
//! Recovery = newest root + journal replay (I6). The journal is bound to the ownership epoch under which it was written: on
//! any other owner's root it is never replayed but salvaged (I8).

use crate::{
    branch::{NewBranch, commit_branch},
    checkpoint::{self, ConfirmError, Packer, PackerContext, UploadProgress},
    config::VolumeConfig,
    error::VolumeError,
    journal::{Journal, JournalConfig, ReserveClass},
    load::load_root,
    local::{LocalState, journal_directory},
    merge::MergeState,
    objects::{Objects, ObjectsConfig},
    record::{Operation, Record},
    replay::Replaying,
    snapshots::SnapshotViews,
    state::{State, VolumeCounters, root_inode},
    usage::{UsageChanges, UsageMap},
    volume::{CheckpointTimes, CheckpointerState, Inner, ServingState, Volume},
};
use firn_anchor::{Anchor, AnchorError, Ownership, RememberedRoot, WriterTenure};
use firn_env::Env;
use firn_format::{FamilyId, ROOT_DIRECTORY, Version, VolumeId, WriterId};
use firn_seal::Keys;
use firn_store::{Store, StoreError};
use firn_vfs::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicBool, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::{Notify, watch};

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
        let objects = ObjectsConfig {
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

/// Inode numbers set aside for each start. More than any start makes files; few enough for two thousand million starts.
const INODES_A_START: u64 = 1 << 32;

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
        let ownership = match parts
            .anchor
            .acquire(parts.volume, local.owner, &config.owner_name)
            .await
        {
            Ok(ownership) => ownership,
            Err(error @ AnchorError::OwnedByOther { .. }) => {
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
        let tenure = ownership.tenure();
        if let Some(old) = local.tenure.filter(|old| *old != tenure) {
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
        let mut loaded = load_root(&objects, (parts.family(), parts.volume), &root).await?;
        let verifier = match local.clean_verifier.take() {
            _ if firn_env::planted!("volume.keep_write_verifier") => [7; 8],
            clean => clean.unwrap_or_else(|| env.random_bytes()),
        };
        // The tenure is remembered before the first record of its journal can exist.
        local.tenure = Some(tenure);
        local.save(&**env.disk()).await?;
        let registered = WriterTenure::Owner {
            volume: parts.volume,
            epoch: ownership.epoch(),
        };
        let writer = match parts.anchor.next_writer_for(registered).await? {
            _ if firn_env::planted!("volume.reuse_writer_incarnation") => WriterId(1),
            writer => writer,
        };
        let journal_config = JournalConfig {
            file_bytes: config.journal_file_bytes,
            capacity_bytes: config.journal_bytes,
            // Enough for thousands of removals, and always a small part of a file.
            reserve_bytes: (config.journal_file_bytes / 4).min(16 << 20),
            reclaimer: objects.reclaimer(),
        };
        let directory = journal_directory(tenure);
        let covered = loaded.payload.covered;
        let (journal, mut replay) = Journal::open(
            &env,
            &parts.keys,
            parts.volume,
            writer,
            &directory,
            covered,
            journal_config,
        )
        .await?;
        let mut report = RecoveryReport {
            version: root.version.0,
            ..RecoveryReport::default()
        };
        loaded.state.forgets_truncation = firn_env::planted!("volume.forget_truncation");
        env.fault_point("recover.before_replay").await;
        let packer = parts.packer(&config, &objects, writer);
        let mut replaying = Replaying {
            state: &mut loaded.state,
            objects: &objects,
            orphan_pointers: &mut loaded.orphan_pointers,
            journal: &journal,
            packer: &packer,
            block_bytes: loaded.payload.block_bytes,
            version: root.version,
            usage: UsageChanges::default(),
        };
        replaying.run(&mut replay, &mut report).await?;
        let (version, replayed_usage) = (replaying.version, replaying.usage);
        env.fault_point("recover.after_replay").await;
        // Handles of files that an earlier start made and lost, or that another edge has in its journal only, are still about;
        // no other file may get their numbers. So each incarnation of a writer gives out numbers of its own.
        let counters = &mut loaded.state.counters;
        counters.next_inode = counters.next_inode.max(writer.0.saturating_mul(INODES_A_START));
        let replayed = loaded.state.completed();
        let dirty_since = loaded.state.is_dirty().then(|| env.now());
        let (serving_state, _) = watch::channel(ServingState::Serving);
        let inner = Arc::new(Inner {
            volume: parts.volume,
            block_bytes: u64::from(loaded.payload.block_bytes),
            state: Mutex::new(loaded.state),
            journal,
            objects,
            anchor: parts.anchor,
            packer,
            verifier,
            replayed,
            checkpointer: tokio::sync::Mutex::new(CheckpointerState {
                ownership,
                version,
                root: root.uid,
                files: loaded.payload.counters.files,
                orphan_pointers: loaded.orphan_pointers,
                local: local.clone(),
                history: loaded.history,
                merge: MergeState::new(loaded.cleaner_sequence),
                usage: UsageMap::found(loaded.usage, replayed_usage),
            }),
            times: Mutex::new(CheckpointTimes {
                dirty_since,
                last_commit_ms: Some(root.committed_at_ms),
                committed_to: covered,
                ..CheckpointTimes::default()
            }),
            serving_state,
            wake: Notify::new(),
            wanted: AtomicBool::new(false),
            committed: Notify::new(),
            started: env.now(),
            waiting_snapshots: Mutex::default(),
            pinned_snapshots: Mutex::default(),
            merging: Mutex::default(),
            views: SnapshotViews::default(),
            config,
            env,
        });
        report.orphans_freed = free_orphans(&inner).await?;
        inner.env.spawn("checkpointer", checkpoint::run(inner.clone()));
        inner
            .env
            .spawn("damage namer", crate::paths::name_damages(inner.clone()));
        Ok((Self { inner }, report))
    }

    /// Waits until everything changed before this call is committed and the store was seen to have it (level 2), however long
    /// the cloud takes.
    ///
    /// # Errors
    /// If the volume is fenced or has failed, or the store lost what it had acknowledged.
    pub async fn sync(&self) -> Result<(), firn_vfs::VfsError> {
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
        let mut checkpointer = inner.checkpointer.lock().await;
        checkpointer.local.clean_verifier = Some(inner.verifier);
        checkpointer.local.save(&**inner.env.disk()).await?;
        // Ends the checkpointer; a checkpoint under way is simply not finished.
        inner.set_serving_state(ServingState::Failed("the edge has stopped".into()));
        Ok(())
    }

    /// Commits everything (level 2) and gives the ownership up, so that any other edge can open the volume.
    ///
    /// # Errors
    /// If the volume is fenced or has failed, or the anchor refuses.
    pub async fn drain(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.set_serving_state(ServingState::Stopping);
        self.committed()
            .await
            .map_err(|error| VolumeError::Stopped(error.to_string()))?;
        self.confirmed().await?;
        let mut checkpointer = inner.checkpointer.lock().await;
        inner.close_journal().await?;
        inner.env.fault_point("drain.before_release").await;
        inner.anchor.drain(&mut checkpointer.ownership).await?;
        inner.env.fault_point("drain.after_release").await;
        let tenure = checkpointer.ownership.tenure();
        checkpointer.local.tenure = None;
        checkpointer.local.save(&**inner.env.disk()).await?;
        crate::salvage::remove_journal(&**inner.env.disk(), tenure).await?;
        inner.set_serving_state(ServingState::Failed("the volume was drained".into()));
        Ok(())
    }
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

/// Frees what was unlinked and open when the edge stopped; nobody can have it open now.
async fn free_orphans(inner: &Inner) -> Result<u64, VolumeError> {
    let orphans = inner.lock().orphans();
    let freed = orphans.len() as u64;
    for inode in orphans {
        let reservation = inner
            .journal
            .wait_for_space(4096, ReserveClass::Reserved, Duration::from_secs(60))
            .await
            .map_err(|error| VolumeError::Stopped(error.to_string()))?;
        let now = inner.now();
        let record = Record {
            request: None,
            now,
            operation: Operation::FreeOrphan { inode },
        };
        inner.journal_and_apply(&mut inner.lock(), &record, reservation, &None);
    }
    if freed > 0 {
        inner.note_dirty();
    }
    Ok(freed)
}
