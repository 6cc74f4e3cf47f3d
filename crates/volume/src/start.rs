//! A start: from a root that was read to a volume that serves, with or without the cloud.
//!
//! ```text
//! root read ─▶ journal opened ─▶ replayed onto the root (I6) ─▶ inode numbers of this start's own ─▶ verifier ─▶ serves
//! ```
//!
//! **Inode numbers.** Handles of files that an earlier start made and lost, or that another edge has in its journal only, are still
//! about; no other file may get their numbers. So each incarnation of a writer gives out numbers of its own, 2^32 of them. A start
//! without the cloud cannot draw an incarnation; it takes the next share of those of the last one:
//!
//! ```text
//! incarnation w    w * 2^32 ─┬─ with the cloud ─┬─ first start without it ─┬─ second … ─┬─ (w + 1) * 2^32
//!                            share 0            share 1, or the first that was not begun
//! ```

use crate::{
    checkpoint,
    checkpointer::{CheckpointTimes, Checkpointer, CheckpointerState},
    cloud_durability::CloudWaits,
    config::VolumeConfig,
    error::{NotDetachable, VolumeError},
    gathering::{self, ManifestGathering},
    journal::{Journal, JournalConfig, Replay, ReserveClass},
    load::LoadedRoot,
    local::{LocalState, journal_directory},
    merge::state::MergeState,
    objects::Objects,
    ownership_statement::RootSigner,
    parts::{Parts, file_system_id},
    paths::name_damages,
    read_ahead::ReadAhead,
    record::{Operation, Record},
    rekey::Rekey,
    replay::{RecoveryReport, Replaying},
    serving::Serving,
    snapshots::Snapshots,
    usage::{UsageChanges, UsageMap},
    volume::{Inner, Volume},
};
use firn_anchor::Ownership;
use firn_format::{OwnershipEpoch, Uid, Version, WriterId};
use firn_vfs::Timestamp;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Inode numbers set aside for each incarnation of a writer. More than any start makes files; few enough for two thousand million
/// incarnations.
const INODES_A_WRITER: u64 = 1 << 32;
/// One share of them: 65,536 starts without the cloud, one every five seconds for four days. A start that makes more files goes on
/// into the next.
const INODES_A_SHARE: u64 = 1 << 16;

/// The root that a start goes out from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartRoot {
    pub version: Version,
    pub uid: Uid,
    /// Milliseconds since 1970, by the committer's clock.
    pub committed_at_ms: i64,
}

/// See the module.
pub(crate) struct Start {
    pub parts: Parts,
    pub config: VolumeConfig,
    pub local: LocalState,
    pub loaded: LoadedRoot,
    pub objects: Objects,
    pub root: StartRoot,
    /// Whose journal is replayed and continued.
    pub tenure: OwnershipEpoch,
    pub writer: WriterId,
    /// With what signs its roots. `None`: without the cloud.
    pub ownership: Option<(Ownership, RootSigner)>,
}

impl Start {
    /// Opens and replays the journal, and begins to serve.
    ///
    /// # Errors
    /// Whatever keeps the journal from being read or replayed. It is closed then: the directory may be opened again at once.
    pub async fn run(self) -> Result<(Volume, RecoveryReport), VolumeError> {
        let env = self.parts.env.clone();
        let covered = self.loaded.payload.covered;
        let journal_config = JournalConfig {
            file_bytes: self.config.journal_file_bytes,
            capacity_bytes: self.config.journal_bytes,
            // Enough for thousands of removals, and always a small part of a file.
            reserve_bytes: (self.config.journal_file_bytes / 4).min(16 << 20),
            reclaimer: self.objects.reclaimer(),
        };
        let (journal, replay) = Journal::open(
            &env,
            &self.parts.keys,
            self.parts.volume,
            self.writer,
            &journal_directory(self.tenure),
            covered,
            journal_config,
        )
        .await?;
        let started = self.serve(journal.clone(), replay).await;
        if started.is_err() {
            journal.close().await;
        }
        started
    }

    async fn serve(
        mut self,
        journal: Journal,
        mut replay: Replay,
    ) -> Result<(Volume, RecoveryReport), VolumeError> {
        let env = self.parts.env.clone();
        let (covered, block_bytes) = (self.loaded.payload.covered, self.loaded.payload.block_bytes);
        let mut report = RecoveryReport {
            version: self.root.version.0,
            ..RecoveryReport::default()
        };
        self.loaded.state.forgets_truncation = firn_env::planted!("volume.forget_truncation");
        env.fault_point("recover.before_replay").await;
        let packer = self.parts.packer(&self.config, &self.objects, self.writer);
        if self.loaded.manifest.is_kept() && self.ownership.is_some() {
            packer.finished.want();
        }
        let mut replaying = Replaying {
            state: &mut self.loaded.state,
            objects: &self.objects,
            orphan_pointers: &mut self.loaded.orphan_pointers,
            journal: &journal,
            packer: &packer,
            block_bytes,
            version: self.root.version,
            usage: UsageChanges::default(),
            packs: self.ownership.is_some(),
        };
        replaying.run(&mut replay, &mut report, |_| true).await?;
        let (version, replayed_usage) = (replaying.version, replaying.usage);
        env.fault_point("recover.after_replay").await;
        self.take_inode_numbers()?;
        let verifier = self.take_verifier().await?;
        self.loaded
            .state
            .renew_completed(Timestamp::from_nanos(env.wall().0));
        let replayed = self.loaded.state.completed();
        let dirty_since = self.loaded.state.is_dirty().then(|| env.now());
        let loaded = self.loaded;
        let gathering = ManifestGathering::new(&loaded.manifest);
        let checkpointer = self.ownership.map(|(ownership, signer)| CheckpointerState {
            ownership,
            signer,
            version,
            root: self.root.uid,
            files: loaded.payload.counters.files,
            orphan_pointers: loaded.orphan_pointers,
            history: loaded.history,
            merge: MergeState::new(loaded.cleaner_sequence),
            usage: UsageMap::found(loaded.usage, replayed_usage),
            manifest: loaded.manifest,
        });
        let times = CheckpointTimes {
            dirty_since,
            last_commit_ms: Some(self.root.committed_at_ms),
            committed_to: covered,
            ..CheckpointTimes::default()
        };
        let read_ahead = ReadAhead::new(&env, u64::from(block_bytes), self.objects.memory_capacity_bytes());
        let inner = Arc::new(Inner {
            volume: self.parts.volume,
            file_system: file_system_id(self.parts.volume),
            block_bytes: u64::from(block_bytes),
            state: Mutex::new(loaded.state),
            journal,
            objects: self.objects,
            read_ahead,
            anchor: self.parts.anchor,
            serving: Serving::new(),
            checkpointer: Checkpointer::new(checkpointer, packer, self.local, times),
            snapshots: Snapshots::new(self.parts.volume),
            rekey: Rekey::new(loaded.payload.rekey),
            gathering,
            cloud_waits: CloudWaits::default(),
            verifier,
            replayed,
            started: env.now(),
            follower: None,
            by_inode: None,
            config: self.config,
            env,
        });
        report.orphans_freed = free_orphans(&inner).await?;
        if inner.checkpointer.own().is_some() {
            inner.env.spawn("checkpointer", checkpoint::run(inner.clone()));
            inner
                .env
                .spawn("read-back", checkpoint::read_back::run(inner.clone()));
            inner
                .env
                .spawn("manifest gathering", gathering::run(inner.clone()));
        }
        inner.env.spawn("damage namer", name_damages(inner.clone()));
        Ok((Volume::new(inner), report))
    }

    /// From here on this start gives out numbers that no other gave or gives.
    fn take_inode_numbers(&mut self) -> Result<(), VolumeError> {
        let first = self.writer.0.saturating_mul(INODES_A_WRITER);
        let counters = &mut self.loaded.state.counters;
        if self.ownership.is_none() && !firn_env::planted!("volume.detached_reuses_inode_numbers") {
            let begun = (counters.next_inode.saturating_sub(first)).div_ceil(INODES_A_SHARE);
            let share = (self.local.shares_taken + 1).max(begun);
            if share >= INODES_A_WRITER / INODES_A_SHARE {
                return Err(NotDetachable::TooManyStarts.into());
            }
            self.local.shares_taken = share;
            counters.next_inode = counters.next_inode.max(first + share * INODES_A_SHARE);
        }
        counters.next_inode = counters.next_inode.max(first);
        Ok(())
    }

    /// The write verifier of this start, which clients compare with the one before: the same after a clean stop, for nothing was
    /// lost then. It is used up, and the share of inode numbers taken, before anything is served.
    async fn take_verifier(&mut self) -> Result<[u8; 8], VolumeError> {
        let env = &self.parts.env;
        let is_detached = self.ownership.is_none();
        let clean = self.local.clean_verifier.take();
        if clean.is_some() || is_detached {
            self.local.save(&**env.disk()).await?;
        }
        if is_detached && firn_env::planted!("volume.detached_verifier_by_time") {
            return Ok(env.wall().0.to_le_bytes());
        }
        Ok(match clean {
            _ if firn_env::planted!("volume.keep_write_verifier") => [7; 8],
            Some(clean) => clean,
            None => env.random_bytes(),
        })
    }
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
        let record = Record::new(None, now, Operation::FreeOrphan { inode });
        inner.journal_and_apply(&mut inner.lock(), &record, reservation, &None);
    }
    if freed > 0 {
        inner.note_dirty();
    }
    Ok(freed)
}
