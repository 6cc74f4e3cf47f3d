//! A member of a shared volume: owner and follower by turns, under one file system.
//!
//! ```text
//!            calls ─▶ layer ─▶ gate ─▶ the term at hand: a follower's or an owner's volume
//!                               │ closed between terms: calls wait, and are told to try again in the end
//!
//!  following ──a client wants to change something──▶ waiting ──first of the queue, and nobody owns it──▶ owning
//!      ▲  ▲                                             └──────the owner's heart stands still──▶ taken over ──┘ │
//!      │  └─given: published, drained ◀─ somebody waits, or nobody has changed anything for long ───────────────┤
//!      └────fenced: another verifier, the journal into a salvage clone ◀─ another took it over ─────────────────┘
//! ```
//!
//! A **term** is the time between two changes of role. Who runs a member opens one after the other ([`Member::open`]) and lets each
//! take its course ([`Member::run`]). Memory and disk cache are kept over all of them.
//!
//! **Heartbeats and wants** lie in an item of the volume's own ([`firn_anchor::HandoverRecord`]). An owner reads it twice a second and beats every
//! ten seconds; a member that neither owns nor waits asks nothing, and a volume that nobody changes is given up (I9).
//!
//! **The lease.** An owner whose last acknowledged beat was sent 40 s ago answers nobody: after 60 s by their own clocks others may have taken the
//! volume over, and what it would answer is old. Both clocks of the machine count, so a suspended one has lapsed when it wakes.
//!
//! **Those who cache** of the volume (the kernels of mounts) are told what differs between two terms, and that anything may after a takeover
//! ([`Member::elsewhere`]). What clients have open is retained by each owner's term ([`opens`]).
//!
//! **Locks** are granted by whoever has the volume, and handed over with it ([`locking`]).
//!
//! **Write verifier.** It stays over terms, since what is given was published; it changes when the volume was taken over.

mod figures;
mod gate;
mod layer;
mod lease;
mod locking;
mod opens;
mod owning;
mod waiting;

pub use figures::{HandoverTimes, MemberRole, MemberStatus, Salvaged};
pub use layer::MemberVfs;
pub use locking::LostLocks;
pub(crate) use locking::{of_office, office, recorded};

use crate::{
    config::VolumeConfig,
    elsewhere::Elsewhere,
    error::VolumeError,
    follower::{FollowOptions, FollowerVfs, changed_inodes},
    freshness::Doubt,
    local::LocalState,
    objects::Objects,
    parts::Parts,
    replay::RecoveryReport,
    salvage::AfterSalvage,
    serving::ServingState,
    volume::Volume,
};
use figures::Figures;
use firn_anchor::{AnchorError, Beating, OwnerId};
use firn_format::TreeRoot;
use firn_session::LockTable;
use firn_vfs::Vfs;
use gate::{Gate, Served};
use lease::Lease;
use locking::Locking;
use opens::Opens;
use std::{
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

/// How often an opening is tried anew that the table's changing kept from its end.
const OPENINGS_MAX: usize = 8;
/// Between them.
const OPEN_AGAIN: Duration = Duration::from_millis(200);
/// How long changes wait until those who cache have dropped what the last term changed; a kernel that hangs is not waited for.
const PASSED_ON_WITHIN: Duration = Duration::from_secs(1);

/// Times of a member's leases and waits. The defaults are what all members of a volume must have in common.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// How it follows.
    pub follow: FollowOptions,
    /// Whether listings of the root show `.snapshots`.
    pub lists_snapshots: bool,
    /// What becomes of calls at an owner whose lease has lapsed: they wait, or are answered at the risk of a salvage and of old reads.
    pub serves_lapsed: bool,
    /// An owner keeps the volume for so long at least.
    pub hold: Duration,
    /// Between two looks of an owner at who waits.
    pub look_every: Duration,
    /// Between two heartbeats.
    pub beat_every: Duration,
    /// From the sending of the last acknowledged beat to the end of the lease.
    pub lapse_after: Duration,
    /// How long a heart must have stood still before the volume is taken over.
    pub break_after: Duration,
    /// Nothing was changed for so long: the volume is given up.
    pub idle_after: Duration,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self {
            follow: FollowOptions::default(),
            lists_snapshots: false,
            serves_lapsed: false,
            hold: Duration::from_secs(1),
            look_every: Duration::from_millis(500),
            beat_every: Duration::from_secs(10),
            lapse_after: Duration::from_secs(40),
            break_after: Duration::from_secs(60),
            idle_after: Duration::from_secs(300),
        }
    }
}

/// Why a term ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermEnd {
    /// A follower's: the volume may be had now, or is this member's already.
    MayOwn,
    /// An owner's: everything was published, and the volume given up.
    Given,
    /// An owner's: another member took the volume over.
    Fenced,
    /// It serves no more: why.
    Failed(String),
}

/// A term that has begun.
#[derive(Clone)]
pub struct Term {
    served: Arc<Served>,
    /// What the journal had, of an owner's.
    pub recovery: Option<RecoveryReport>,
}

impl Term {
    /// The volume of this term.
    pub fn volume(&self) -> &Volume {
        &self.served.volume
    }

    /// Whether this member owns the volume for now.
    pub fn is_owner(&self) -> bool {
        self.served.owning.is_some()
    }
}

/// See the module; cheap to clone.
#[derive(Clone)]
pub struct Member {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    parts: Parts,
    config: VolumeConfig,
    options: MemberOptions,
    gate: Gate,
    opens: Opens,
    locking: Locking,
    elsewhere: Elsewhere,
    figures: Mutex<Figures>,
    between: tokio::sync::Mutex<Between>,
}

/// What one term leaves the next.
#[derive(Default)]
struct Between {
    objects: Option<Objects>,
    /// The follower's term came to its end because the volume may be had.
    may_own: bool,
    /// What those who cache have seen last.
    last_view: LastView,
}

/// The tree that those who cache know.
#[derive(Default)]
enum LastView {
    /// None: nobody could cache anything yet.
    #[default]
    Nothing,
    /// That of this inode map.
    Map(Option<TreeRoot>),
    /// One that was never committed.
    Unknown,
}

impl Member {
    /// Makes one; nothing is served yet. Locks of the volume in the table are granted by turns from now on.
    pub fn new(parts: Parts, config: VolumeConfig, options: MemberOptions, locks: &LockTable) -> Self {
        let gate = Gate::new(&parts.env, &config, &options);
        let locking = Locking::new(locks.between_offices(crate::parts::file_system_id(parts.volume)));
        Self {
            inner: Arc::new(Inner {
                parts,
                config,
                options,
                gate,
                opens: Opens::default(),
                locking,
                elsewhere: Elsewhere::default(),
                figures: Mutex::default(),
                between: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// The volume for protocols, whichever term it is. Calls that come before the first one wait for it.
    pub fn vfs(&self) -> MemberVfs {
        MemberVfs::new(self.inner.clone())
    }

    /// What changes without a client here: what other members changed, over all terms.
    pub fn elsewhere(&self) -> Elsewhere {
        self.inner.elsewhere.clone()
    }

    /// Locks that clients here lost.
    pub fn lost_locks(&self) -> LostLocks {
        self.inner.locking.lost.clone()
    }

    /// Has the lock table know what other offices have at the moment. One read of the table.
    ///
    /// # Errors
    /// What the anchor says.
    pub async fn refresh_locks(&self) -> Result<(), VolumeError> {
        self.inner.refresh_locks().await
    }

    /// Takes away what another office has of a file; it hears that it has lost it.
    ///
    /// # Errors
    /// If this member does not have the volume; what the anchor says.
    pub async fn break_locks(&self, office: [u8; 16], inode: u64) -> Result<(), VolumeError> {
        self.inner.break_locks_of(OwnerId(office), inode).await
    }

    /// The volume of the term at hand; none between two of them.
    pub fn volume(&self) -> Option<Volume> {
        self.inner.gate.at_hand().map(|served| served.volume.clone())
    }

    /// A moment of it; takes no request and no I/O.
    pub fn status(&self) -> MemberStatus {
        self.inner.status()
    }

    /// Begins the next term: the owner's, if the volume is this member's or may be had; else a follower's. What an owner that was fenced left in
    /// its journal is salvaged before.
    ///
    /// # Errors
    /// Whatever keeps the volume from being opened. It may be tried again.
    pub async fn open(&self) -> Result<Term, VolumeError> {
        let inner = &self.inner;
        let mut between = inner.between.lock().await;
        let objects = match between.objects.take() {
            Some(objects) => objects,
            None => inner.parts.objects(&inner.config).await?,
        };
        let mut last = None;
        for _ in 0..OPENINGS_MAX {
            match inner.open(&objects, between.may_own).await {
                Ok(term) => {
                    between.objects = Some(objects);
                    between.may_own = false;
                    inner.retain_opens(&term);
                    inner.began(&term);
                    inner.tell(&mut between, &term).await;
                    inner.gate.open_for_changes();
                    inner.open_locks(&term.served);
                    return Ok(term);
                }
                // It changed hands between two looks.
                Err(
                    error @ (VolumeError::Anchor(
                        AnchorError::Contended { .. }
                        | AnchorError::OwnedByOther { .. }
                        | AnchorError::Fenced(_),
                    )
                    | VolumeError::NotDrained
                    | VolumeError::SalvageFirst { .. }),
                ) => last = Some(error),
                Err(error) => return Err(error),
            }
            inner.parts.env.sleep(OPEN_AGAIN).await;
        }
        Err(last.expect("a try failed"))
    }

    /// Lets a term take its course. No call is in it any more when this returns, and its journal is closed.
    ///
    /// # Errors
    /// If an owner cannot publish what it has, for good. It is safe in the journal then.
    pub async fn run(&self, term: &Term) -> Result<TermEnd, VolumeError> {
        let inner = &self.inner;
        let end = match &term.served.owning {
            Some(lease) => inner.own(&term.served, lease).await,
            None => inner.follow(&term.served).await,
        };
        inner.gate.close(&term.served).await;
        inner.locking.locks.close();
        match &end {
            Ok(TermEnd::MayOwn) => {
                term.volume().stop().await?;
                inner.between.lock().await.may_own = true;
            }
            Ok(TermEnd::Fenced) => {
                // What is being written is in the journal or was never acknowledged, before it is read for the salvage.
                term.volume().inner.close_journal().await?;
                inner.gate.lost_the_volume(&inner.parts.env);
                inner.lose_locks();
            }
            Ok(TermEnd::Given | TermEnd::Failed(_)) | Err(_) => {}
        }
        let last_view = match &end {
            Ok(TermEnd::MayOwn | TermEnd::Given) => LastView::Map(term.volume().inner.lock().inode_map),
            Ok(TermEnd::Fenced | TermEnd::Failed(_)) | Err(_) => LastView::Unknown,
        };
        inner.between.lock().await.last_view = last_view;
        inner.figures().ended();
        end
    }

    /// Ends the service: an owner publishes and gives the volume up if that is done within `limit`, and otherwise keeps it with everything in its
    /// journal (level 1).
    ///
    /// # Errors
    /// If the journal cannot be synced.
    pub async fn stop(&self, term: &Term, limit: Duration) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.gate.end("the edge has stopped".into());
        inner.gate.close(&term.served).await;
        let volume = term.volume();
        if let Some(lease) = &term.served.owning {
            let given = async {
                inner.hand_locks_over(lease).await?;
                volume.drain().await
            };
            match inner.parts.env.timeout(limit, given).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the volume stays this edge's: it could not be published")
                }
                Err(_) => {
                    tracing::warn!("the volume stays this edge's: publishing it takes longer than a stop may")
                }
            }
        }
        volume.stop().await
    }
}

impl Inner {
    fn figures(&self) -> std::sync::MutexGuard<'_, Figures> {
        self.figures.lock().expect("no panic under this lock")
    }

    fn began(&self, term: &Term) {
        let now = self.parts.env.now();
        self.figures().began(now, term.is_owner());
        self.gate.open(term.served.clone());
    }

    /// Has the owner's volume keep what clients here have open, before one of them can remove it.
    fn retain_opens(&self, term: &Term) {
        let volume = &term.served.volume.inner;
        if !term.is_owner() {
            return;
        }
        let mut state = volume.lock();
        for (inode, opens) in self.opens.of(volume.file_system) {
            (0..opens).for_each(|_| state.retain(inode));
        }
    }

    /// Tells those who cache what differs from what the last term showed.
    async fn tell(&self, between: &mut Between, term: &Term) {
        let last_view = std::mem::take(&mut between.last_view);
        if !self.elsewhere.is_heard() {
            return;
        }
        let volume = &term.served.volume.inner;
        match last_view {
            LastView::Nothing => {}
            LastView::Map(before) => {
                let after = volume.lock().inode_map;
                let changed = changed_inodes(&volume.objects, None, before, after);
                // While the store hangs nobody waits to find out.
                let changed = self.parts.env.timeout(PASSED_ON_WITHIN, changed).await;
                self.elsewhere.tell(changed.ok().flatten());
            }
            LastView::Unknown => self.elsewhere.tell(None),
        }
        // A kernel that is told to drop a file takes no answer for true that was under way meanwhile, as the length after a change of its own. Reads go
        // on, which it may have to wait for.
        let passed_on = self.elsewhere.passed_on();
        let _ = self.parts.env.timeout(PASSED_ON_WITHIN, passed_on).await;
    }

    async fn open(&self, objects: &Objects, may_own: bool) -> Result<Term, VolumeError> {
        let (parts, config) = (&self.parts, &self.config);
        let local = LocalState::load(&parts.env).await?;
        let (tuple, _) = parts.anchor.load(parts.volume).await?;
        let is_mine = tuple.owner.as_ref().is_some_and(|owner| owner.id == local.owner);
        let continues = is_mine && local.tenure == Some(tuple.tenure);
        if local.tenure.is_some() && !continues {
            let salvaged = Volume::salvage_with(parts, config, objects, AfterSalvage::Forget).await?;
            if let Some(report) = salvaged {
                tracing::error!(
                    clone = report.name,
                    records = report.recovery.records,
                    paths = ?report.paths,
                    "another office took the volume over; what was acknowledged here and not published is in the clone"
                );
                self.figures().salvaged(&report, parts.env.wall());
            }
        }
        if is_mine || may_own {
            match self.open_owned(objects, local.owner, continues).await {
                Err(VolumeError::Anchor(AnchorError::OwnedByOther { .. })) => {}
                opened => return opened,
            }
        }
        let follow = self.options.follow;
        let (objects, elsewhere) = (Some(objects.clone()), self.elsewhere.clone());
        let volume = Volume::follow_with(parts.clone(), config.clone(), follow, objects, elsewhere).await?;
        Ok(self.term(volume, None, None))
    }

    async fn open_owned(&self, objects: &Objects, me: OwnerId, continues: bool) -> Result<Term, VolumeError> {
        let (parts, config) = (&self.parts, &self.config);
        let objects = Some(objects.clone());
        let opened = Volume::open_with(parts.clone(), config.clone(), objects, Doubt::TrustTable);
        let (volume, recovery) = opened.await?;
        let begun = async {
            parts.env.fault_point("member.before_first_beat").await;
            let (tuple, _) = parts.anchor.load(parts.volume).await?;
            let beating = Beating {
                owner: me,
                epoch: tuple.epoch,
                grant: tuple.grant,
            };
            // The first beat: from here on others see that it lives, and it waits no more.
            let sent = Lease::begin(&parts.env, &self.options, beating);
            let record = parts.anchor.beat(parts.volume, &beating).await?;
            self.figures().waiting = record.wants.len();
            self.restore_locks(&beating, record, continues).await;
            Ok::<_, AnchorError>(sent)
        };
        match begun.await {
            Ok(lease) => Ok(self.term(volume, Some(lease), Some(recovery))),
            Err(error) => {
                // Whoever opens it again finds the journal closed.
                volume.stop().await?;
                Err(error.into())
            }
        }
    }

    fn term(&self, volume: Volume, owning: Option<Lease>, recovery: Option<RecoveryReport>) -> Term {
        let shown = match self.options.lists_snapshots {
            true => volume.listing_snapshots(),
            false => volume.clone(),
        };
        let view = |shown: Volume| -> Arc<dyn Vfs> {
            match owning.is_some() {
                true => Arc::new(shown),
                false => Arc::new(FollowerVfs::new(shown)),
            }
        };
        let (vfs, vfs_by_time) = (view(shown), view(volume.naming_snapshots_by_time()));
        Term {
            served: Arc::new(Served {
                volume,
                vfs,
                vfs_by_time,
                owning: owning.map(Arc::new),
                calls: AtomicUsize::new(0),
            }),
            recovery,
        }
    }
}

/// What a volume that serves no more says.
fn end_of(state: ServingState) -> TermEnd {
    match state {
        ServingState::Fenced => TermEnd::Fenced,
        ServingState::Broken(why) | ServingState::Failed(why) => TermEnd::Failed(why),
        ServingState::Serving | ServingState::Stopping => TermEnd::Failed("it stopped serving".into()),
    }
}
