//! A follower: the read-only member of a volume that another edge owns. It adopts the owner's roots, and writes nothing anywhere but in
//! its own state directory.
//!
//! ```text
//! request ─▶ is the newest root that was read young enough? ──yes──▶ answered from the tree in memory
//!                 │ no
//!            one read of the root, for all that wait ─▶ newer? ─▶ its history has the one adopted last? ─▶ remembered on disk
//!                                                                                                             │
//!            answered ◀── in one instant: the new tree, without the entries that differ (adopt.rs) ◀──────────┘
//! ```
//!
//! **Freshness** is how old the read may be that a request is answered by, counted from when the read *began*. At zero a request is
//! answered by a read that began after it arrived: who arrives while one is under way waits for the next. Nobody asks anything while no
//! client does.
//!
//! **Without the anchor** ([`StaleReads`]) requests are answered by the last root, which `status` says, or wait and are told to try again.
//!
//! **Where the anchor refuses this edge** (a grant that was revoked, an edge that was removed) requests are refused, whatever may be stale: what
//! was read before is not shown to clients any more. It is asked on, so that a refusal that is taken back ends by itself.
//!
//! **Tampering.** A root is adopted only if it is newer ([`firn_anchor::RememberedRoot`]) and its history names the one adopted last, so an
//! anchor that tells two stories is noticed. One that is further behind than the history reaches is held against the bucket, as at a
//! start ([`crate::freshness`]). A contradiction ends the service.
//!
//! **The cleaner** may delete what only roots older than its grace need. A reader that misses such an object reads the root once more;
//! only if that is the newest already, the object is lost.

mod adopt;
mod figures;
mod layer;

pub(crate) use adopt::{changed_inodes, differing_inodes};
pub use figures::FollowStatus;
pub use layer::FollowerVfs;

use crate::{
    checkpoint::PackerContext,
    checkpointer::{CheckpointTimes, Checkpointer},
    cloud_durability::CloudWaits,
    config::VolumeConfig,
    elsewhere::Elsewhere,
    error::VolumeError,
    freshness::{self, Doubt},
    gathering::ManifestGathering,
    journal::{Journal, Sequence},
    load::{LoadedCheckpoint, load_newest},
    local::LocalState,
    objects::Objects,
    parts::{Parts, file_system_id},
    paths::name_damages,
    read_ahead::ReadAhead,
    rekey::Rekey,
    salvage::has_journal,
    serving::{Serving, ServingState},
    snapshots::Snapshots,
    state::State,
    volume::{Inner, Volume},
};
use figures::Figures;
use firn_anchor::{AnchorError, RememberedRoot};
use firn_env::{Backoff, Monotonic};
use firn_format::{Uid, Version, WriterId};
use firn_table::TableError;
use firn_vfs::VfsError;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How long a read of the root may take before the anchor counts as away.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Between two reads of the root while the anchor is away and clients ask.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15)).with_half_jitter();

/// Between two looks of who waits.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a reader is told that waits for the anchor.
const AWAY: VfsError = VfsError::TryAgain {
    reason: "the newest root cannot be read, and reads wait for it",
};

/// What a client is told whose office the anchor refuses.
const DENIED: VfsError = VfsError::AccessDenied;

/// What becomes of reads while the newest root cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StaleReads {
    /// They are answered by the root that was adopted last.
    Allow,
    /// They wait, and are told to try again.
    #[default]
    Wait,
}

/// How a volume is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// How old the read of the root may be that a request is answered by; zero: it began after the request arrived.
    pub freshness: Duration,
    /// What becomes of reads without the anchor.
    pub stale_reads: StaleReads,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            freshness: Duration::from_millis(500),
            stale_reads: StaleReads::default(),
        }
    }
}

/// The root that was adopted last; whoever holds its lock reads the root for all that wait.
pub(crate) struct Adopted {
    pub version: Version,
    pub uid: Uid,
    /// What this machine remembers.
    pub local: LocalState,
}

/// See the module.
pub(crate) struct Follower {
    options: FollowOptions,
    parts: Parts,
    reading: tokio::sync::Mutex<Adopted>,
    elsewhere: Elsewhere,
    figures: Mutex<Figures>,
}

/// Why a newer root was not adopted.
enum NotAdopted {
    /// The anchor or the store does not answer.
    Away(String),
    /// The anchor refuses this edge.
    Denied(String),
    /// What the anchor says cannot be gone by, and asking again changes nothing.
    Refused(String),
    /// It contradicts what was seen.
    Tampered(String),
}

impl From<VolumeError> for NotAdopted {
    fn from(error: VolumeError) -> Self {
        let why = error.to_string();
        match error {
            VolumeError::RolledBack(_) | VolumeError::StaleTable(_) | VolumeError::ForeignRoot { .. } => {
                Self::Tampered(why)
            }
            VolumeError::Anchor(AnchorError::Table(TableError::Refused(_))) => Self::Denied(why),
            VolumeError::Anchor(error) if !error.is_transient() || error.is_invalid_answer() => {
                Self::Refused(why)
            }
            _ => Self::Away(why),
        }
    }
}

impl From<AnchorError> for NotAdopted {
    fn from(error: AnchorError) -> Self {
        VolumeError::Anchor(error).into()
    }
}

impl Volume {
    /// Opens the volume to be read only, whoever owns it, and adopts its roots from then on. Nothing is written to store or anchor.
    ///
    /// # Errors
    /// `NotDrained` if this edge owns the volume, `SalvageFirst` if it was fenced with writes in its journal; whatever keeps the root from being read or contradicts
    /// it. Nothing was changed then.
    pub async fn follow(
        parts: Parts,
        config: VolumeConfig,
        options: FollowOptions,
    ) -> Result<Self, VolumeError> {
        Self::follow_with(parts, config, options, None, Elsewhere::default()).await
    }

    /// The same with objects that are open already, and those who are told what is adopted.
    pub(crate) async fn follow_with(
        parts: Parts,
        config: VolumeConfig,
        options: FollowOptions,
        objects: Option<Objects>,
        elsewhere: Elsewhere,
    ) -> Result<Self, VolumeError> {
        let env = parts.env.clone();
        let mut local = LocalState::load(&env).await?;
        if let Some(tenure) = local.tenure {
            let (tuple, _) = parts.anchor.load(parts.volume).await?;
            if tuple.owner.is_some_and(|owner| owner.id == local.owner) {
                return Err(VolumeError::NotDrained);
            }
            if has_journal(&parts, &config, tenure).await? {
                return Err(VolumeError::SalvageFirst { tenure });
            }
        }
        let tuple = freshness::check_with(&parts, &config, Some(&local), Doubt::TrustTable).await?;
        match &mut local.seen {
            Some(seen) => {
                seen.observe(&tuple)?;
            }
            None => local.seen = Some(RememberedRoot::new(parts.volume, &tuple)),
        }
        let root = tuple.root.clone().ok_or(VolumeError::NotFormatted)?;
        let began = env.now();
        let objects = match objects {
            Some(objects) => objects,
            None => parts.objects(&config).await?,
        };
        let loaded = load_newest(&objects, (parts.family(), parts.volume), &root).await?;
        local.save(&**env.disk()).await?;
        let LoadedCheckpoint {
            checkpoint,
            payload,
            snapshots,
            ..
        } = loaded;
        let file_system = file_system_id(parts.volume);
        let mut state = State::new(file_system, payload.counters.clone(), checkpoint.inode_map);
        state.restore_snapshots(snapshots);
        let packer: PackerContext = parts.packer(&config, &objects, WriterId(0));
        let times = CheckpointTimes {
            last_commit_ms: Some(root.committed_at_ms),
            committed_to: Sequence(0),
            ..CheckpointTimes::default()
        };
        let follower = Follower {
            options,
            parts: parts.clone(),
            reading: tokio::sync::Mutex::new(Adopted {
                version: root.version,
                uid: root.uid,
                local: local.clone(),
            }),
            elsewhere,
            figures: Mutex::new(Figures::new(began, &root)),
        };
        let block_bytes = u64::from(payload.block_bytes);
        let read_ahead = ReadAhead::new(&env, block_bytes, objects.memory_capacity_bytes());
        let inner = Arc::new(Inner {
            volume: parts.volume,
            file_system,
            block_bytes,
            state: Mutex::new(state),
            journal: Journal::absent(&env, config.journal_file_bytes),
            objects,
            read_ahead,
            anchor: parts.anchor,
            serving: Serving::new(),
            checkpointer: Checkpointer::new(None, packer, local, times).of_follower(),
            snapshots: Snapshots::new(parts.volume),
            rekey: Rekey::new(payload.rekey),
            gathering: ManifestGathering::default(),
            cloud_waits: CloudWaits::default(),
            verifier: env.random_bytes(),
            replayed: Vec::new(),
            started: env.now(),
            follower: Some(follower),
            by_inode: None,
            config,
            env,
        });
        inner.env.spawn("damage namer", name_damages(inner.clone()));
        Ok(Self::new(inner))
    }

    /// Whether it is another's, and only read here.
    pub fn is_follower(&self) -> bool {
        self.inner.follower.is_some()
    }

    /// What the owner changes, as it is adopted; `None` if this edge owns the volume.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        let follower = self.inner.follower.as_ref()?;
        Some(follower.elsewhere.clone())
    }
}

impl Follower {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures
            .lock()
            .expect("no panic under the lock of a follower's figures")
    }

    /// This moment.
    pub fn status(&self, now: Monotonic) -> FollowStatus {
        self.figures().status(now, &self.options)
    }

    /// How many reads of the root had begun: who arrives now is answered by a later one at the strictest.
    fn arrive(&self) -> u64 {
        self.figures().begun
    }

    fn allows_stale(&self) -> bool {
        self.options.stale_reads == StaleReads::Allow || firn_env::planted!("volume.follower_serves_stale")
    }

    fn is_fresh(&self, arrived: u64, now: Monotonic, freshness: Duration) -> bool {
        let figures = self.figures();
        let joins = match firn_env::planted!("volume.follower_joins_read_under_way") {
            true => figures.begun > 0 && figures.ended >= arrived,
            false => figures.ended > arrived,
        };
        joins || (!freshness.is_zero() && now.since(figures.read_at) <= freshness)
    }

    /// Waits until the tree in memory is fresh enough for a request that arrives now.
    ///
    /// # Errors
    /// If it cannot be had and stale reads are not allowed, or the volume does not serve.
    pub async fn fresh(&self, inner: &Inner) -> Result<(), VfsError> {
        inner.serving.check()?;
        let arrived = self.arrive();
        let freshness = self.options.freshness;
        if self.is_fresh(arrived, inner.env.now(), freshness) && !freshness.is_zero() {
            return Ok(());
        }
        match self.read(inner, arrived, freshness, Duration::ZERO).await {
            Err(AWAY) if self.allows_stale() => {
                inner.serving.check()?;
                let mut figures = self.figures();
                if figures.refused.is_some() {
                    return Err(AWAY);
                }
                figures.stale_answers += 1;
                Ok(())
            }
            Err(AWAY) => {
                self.read(inner, arrived, freshness, inner.config.wait_limit)
                    .await
            }
            read => read,
        }
    }

    /// Reads the root now. Whether another one than `version` is adopted then.
    ///
    /// # Errors
    /// As [`Follower::fresh`]; stale is nothing here.
    pub async fn refresh(&self, inner: &Inner, version: Version) -> Result<bool, VfsError> {
        if firn_env::planted!("volume.follower_keeps_old_root") {
            return Ok(false);
        }
        let arrived = self.arrive();
        self.figures().refreshes += 1;
        // However young the last read is: it has what is missed.
        self.read(inner, arrived, Duration::ZERO, Duration::ZERO).await?;
        Ok(self.figures().version != version)
    }

    /// The version of the tree in memory.
    pub fn version(&self) -> Version {
        self.figures().version
    }

    /// Waits for a read of the root that is fresh for who arrived then, or makes it; tries for so long.
    async fn read(
        &self,
        inner: &Inner,
        arrived: u64,
        freshness: Duration,
        limit: Duration,
    ) -> Result<(), VfsError> {
        let end = inner.env.now().after(limit);
        loop {
            let wait = {
                // While the anchor is known to be away, nobody waits for who finds out that it still is.
                let adopted = if self.figures().away.is_some() && limit.is_zero() {
                    self.reading.try_lock().ok()
                } else {
                    Some(self.reading.lock().await)
                };
                inner.serving.check()?;
                let now = inner.env.now();
                if self.is_fresh(arrived, now, freshness) {
                    return Ok(());
                }
                let may_ask = now >= self.figures().ask_after;
                if let Some(mut adopted) = adopted.filter(|_| may_ask) {
                    match self.read_and_adopt(inner, &mut adopted).await {
                        Ok(()) => return Ok(()),
                        Err(not_adopted) => self.note(inner, not_adopted)?,
                    }
                }
                let figures = self.figures();
                if figures.denied.is_some() {
                    return Err(DENIED);
                }
                figures.ask_after.since(inner.env.now())
            };
            let now = inner.env.now();
            if now >= end {
                return Err(AWAY);
            }
            let wait = wait.max(LOOK_AGAIN).min(end.since(now));
            inner.env.sleep(wait).await;
        }
    }

    fn note(&self, inner: &Inner, why: NotAdopted) -> Result<(), VfsError> {
        let now = inner.env.now();
        let mut figures = self.figures();
        let (why, refused, denied) = match why {
            NotAdopted::Away(why) => (why, None, None),
            NotAdopted::Refused(why) => (why.clone(), Some(why), None),
            NotAdopted::Denied(why) => (why.clone(), None, Some(why)),
            NotAdopted::Tampered(why) => {
                figures.alarms += 1;
                drop(figures);
                tracing::error!(
                    why,
                    "the newest root contradicts what this follower has seen; nothing is served any more"
                );
                inner.set_serving_state(ServingState::Failed(why));
                return inner.serving.check();
            }
        };
        if denied.is_some() && figures.denied.is_none() {
            tracing::error!(
                why,
                "the anchor refuses this edge: nothing of the volume is shown to its clients any more, who get \"permission denied\". What was \
                 committed is the owner's and safe. Where that is a mistake have the grant given again; this edge asks on"
            );
        } else if figures.away.is_none() {
            tracing::warn!(why, "the newest root cannot be read");
        }
        figures.failures = figures.failures.saturating_add(1);
        figures.ask_after = now.after(BACKOFF.pause(&inner.env, figures.failures));
        (figures.away, figures.refused, figures.denied) = (Some(why), refused, denied);
        Ok(())
    }

    /// One strong read of the root, and adoption of a newer one.
    async fn read_and_adopt(&self, inner: &Inner, adopted: &mut Adopted) -> Result<(), NotAdopted> {
        let began = inner.env.now();
        let number = {
            let mut figures = self.figures();
            figures.begun += 1;
            figures.begun
        };
        let loaded = inner.env.timeout(READ_LIMIT, inner.anchor.load(inner.volume));
        let (tuple, _) = match loaded.await {
            Ok(loaded) => loaded?,
            Err(elapsed) => return Err(NotAdopted::Away(format!("the anchor: {elapsed}"))),
        };
        inner.env.fault_point("follow.after_read").await;
        self.adopt(inner, adopted, &tuple).await?;
        let mut figures = self.figures();
        figures.ended = number;
        figures.read_at = began;
        figures.failures = 0;
        if figures.away.take().is_some() {
            tracing::info!("the newest root is read again");
        }
        (figures.refused, figures.denied) = (None, None);
        Ok(())
    }
}

/// Whether the history of a newer root names the one adopted last; `None`: it does not reach so far back.
pub(crate) fn follows(history: &VecDeque<(Version, Uid)>, adopted: (Version, Uid)) -> Option<bool> {
    match history.front() {
        Some((oldest, _)) if *oldest <= adopted.0 => Some(history.contains(&adopted)),
        _ => None,
    }
}
