//! Locks of a member's clients: granted while it holds the lease of locks, recorded before it gives that, kept while another decides (decision 0234).
//!
//! ```text
//!           wanted: the lease is held            others' locks, the newest root           others want the lease
//!  beside ───────────────────────────▶ has it ──────────────────────────────▶ decides ─────────────────────────▶ closed
//!    ▲  look, look … while there is anything:      look, look …: others' locks that are gone,                       │ published, recorded
//!    │  what was unlocked is recorded once          *then* the newest root, *then* grants                           │
//!    └─ what was changed before is published ◀──────────────────────────────────────────────────────────────────────┘ unpinned, given
//! ```
//!
//! The table is open while the member decides, and closed otherwise ([`OfficeLocks`]). **Who grants has read the root after it saw that the lock is free**, and what frees a lock is
//! published before the record says so: whoever has a lock sees what was written under it before, in whichever office.
//!
//! **Locks fall with their office**: a decider breaks the member whose locks are in somebody's way once that one's record has stood still for a minute, and a start after a break drops all that clients here hold.

mod administration;

use super::hold::{Held, Unheld};
use crate::{
    member::{LostLocks, of_office, office, recorded},
    serving::ServingState,
    volume::Inner,
};
use firn_anchor::{HandoverRecord, LOCK_LEASE, MemberLocks, MemberLocksChange, OwnerId, RecordedLock};
use firn_env::Monotonic;
use firn_leases::{LastingPin, Member, MemberError};
use firn_session::{BrokenLock, LockTable, OfficeLocks, Reclaims};
use futures::future::{Either, select};
use std::{
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long one look may take before it is made again, and a wait for the lease, beside which nothing else is done.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at the record, as long as there is any lock.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the records of offices that are in somebody's way.
const JUDGE_EVERY: Duration = Duration::from_secs(5);
/// Who got the lease has it for so long at least: a client's next locks come within that.
const HOLD: Duration = Duration::from_millis(500);
/// Without a lock of a client here for so long the lease is free for whoever wants it.
const FREE_AFTER: Duration = Duration::from_secs(30);
/// Between two looks at nothing.
const IDLE: Duration = Duration::from_secs(60);

/// What a member has of locks.
pub(super) struct Locking {
    locks: OfficeLocks,
    lost: LostLocks,
    /// By which the record names this member.
    edge: OwnerId,
    /// Who has it looks, gets the lease or gives it.
    step: tokio::sync::Mutex<Step>,
    /// Clients here have nothing, the record neither, and the lease is not kept.
    is_idle: AtomicBool,
    figures: Figures,
}

#[derive(Default)]
struct Figures {
    decides: AtomicBool,
    taken: AtomicU64,
    given: AtomicU64,
    breaks: AtomicU64,
    lost: AtomicU64,
}

/// Locks of a volume that is shared by inode, as status pages show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByInodeLocks {
    /// Whether this office decides at the moment.
    pub decides: bool,
    /// How often it got the lease of locks, and gave it.
    pub taken: u64,
    /// See `taken`.
    pub given: u64,
    /// Offices that were gone, whose locks it broke.
    pub breaks: u64,
    /// Locks of clients here that others did not wait for any longer.
    pub lost: u64,
}

/// How the member stands to the lease.
#[derive(Default)]
enum Term {
    /// Another decides, or nobody.
    #[default]
    Beside,
    /// The lease is held, and others' locks are not known yet; `is_recorded`: what clients here have the record has, too.
    Has { pin: LastingPin, is_recorded: bool },
    /// It decides since then.
    Decides { pin: LastingPin, since: Monotonic },
    /// It does not any more, and the record does not say yet what clients here have.
    Closed { _pin: LastingPin },
}

struct Step {
    term: Term,
    /// The record may have an entry of this member.
    may_be_recorded: bool,
    /// What others have, as the table knows it.
    others: Vec<MemberLocks>,
    /// The member was broken before this start: nothing is left of what the record says.
    was_broken: bool,
    looked_at: Option<Monotonic>,
    judged_at: Option<Monotonic>,
    /// When a client here had, or wanted, anything last.
    used_at: Monotonic,
    /// The volume stops: nothing is begun any more.
    is_over: bool,
}

impl Locking {
    fn own(&self) -> Vec<RecordedLock> {
        self.locks.own().iter().map(recorded).collect()
    }

    /// Whether the member may go away as far as locks are concerned.
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Acquire)
    }

    pub fn figures(&self) -> ByInodeLocks {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ByInodeLocks {
            decides: self.figures.decides.load(Ordering::Relaxed),
            taken: of(&self.figures.taken),
            given: of(&self.figures.given),
            breaks: of(&self.figures.breaks),
            lost: of(&self.figures.lost),
        }
    }

    fn tell_lost(&self, broken: Vec<BrokenLock>) {
        if broken.is_empty() {
            return;
        }
        tracing::error!(
            locks = broken.len(),
            "locks of clients here were broken: other offices could not wait for this one any longer"
        );
        self.figures
            .lost
            .fetch_add(broken.len() as u64, Ordering::Relaxed);
        self.lost.tell(broken);
    }

    /// Breaks what clients here hold and the record does not cover, while another decides.
    fn drop_broken(&self, record: &HandoverRecord) {
        if firn_env::planted!("volume.locks_outlive_a_break") {
            return;
        }
        let kept = entry_of(record, self.edge);
        let broken = self.locks.keep_only(|lock| recorded(lock).is_covered_by(kept));
        self.tell_lost(broken);
    }

    fn others(&self, record: &HandoverRecord) -> Vec<MemberLocks> {
        let others = record.locks.iter().filter(|entry| entry.member != self.edge);
        others.cloned().collect()
    }

    fn place(&self, step: &mut Step, others: Vec<MemberLocks>) {
        self.locks.set_others(others.iter().map(office).collect());
        step.others = others;
    }

    /// Offices that are in somebody's way, and whether it is time to look whether they live.
    fn in_the_way<'a>(
        &self,
        step: &mut Step,
        now: Monotonic,
        record: &'a HandoverRecord,
    ) -> Vec<&'a MemberLocks> {
        let is_due = step.judged_at.is_none_or(|at| now.since(at) >= JUDGE_EVERY);
        if !is_due {
            return Vec::new();
        }
        let in_the_way = self.locks.take_in_the_way();
        if !in_the_way.is_empty() {
            step.judged_at = Some(now);
        }
        let entries = record.locks.iter().filter(|entry| entry.member != self.edge);
        entries
            .filter(|entry| in_the_way.contains(&entry.member.0))
            .collect()
    }
}

fn entry_of(record: &HandoverRecord, edge: OwnerId) -> &[RecordedLock] {
    record.locks_of(edge).map_or(&[][..], |entry| &entry.locks)
}

impl Inner {
    fn locking(&self) -> &Locking {
        let locking = self.by_inode().locking.get();
        locking.expect("asked by who locks only")
    }

    /// Begins, before anything is served or given: what clients here may reclaim, and whether this member still decides. `was_broken`: others went on without it since its last start.
    pub(super) async fn begin_locking(&self, table: &LockTable, was_broken: bool) {
        let member = self.by_inode().member();
        let locks = table.between_offices(self.file_system);
        locks.close();
        let now = self.env.now();
        let was_broken = was_broken && !firn_env::planted!("volume.locks_outlive_a_break");
        let locking = Locking {
            edge: member.edge().await,
            lost: LostLocks::default(),
            is_idle: AtomicBool::new(false),
            figures: Figures::default(),
            step: tokio::sync::Mutex::new(Step {
                term: Term::Beside,
                may_be_recorded: true,
                others: Vec::new(),
                was_broken,
                looked_at: None,
                judged_at: None,
                used_at: now,
                is_over: false,
            }),
            locks,
        };
        // Who had the lease when it stopped has decided alone since.
        let kept = (!was_broken).then(|| member.keep(LOCK_LEASE)).flatten();
        if was_broken {
            locking.locks.set_reclaims(Reclaims::Covered(Vec::new()));
            locking.tell_lost(locking.locks.keep_only(|_| false));
        } else if let Some(pin) = kept {
            locking.locks.set_reclaims(Reclaims::All);
            let is_recorded = false;
            locking.step.lock().await.term = Term::Has { pin, is_recorded };
        } else {
            locking.locks.set_reclaims(Reclaims::Unknown);
        }
        if self.by_inode().locking.set(locking).is_err() {
            unreachable!("a volume begins once");
        }
    }

    /// One round of what there is to do; for how long there is nothing else unless something changes.
    async fn lock_step(self: &Arc<Self>) -> Result<Duration, MemberError> {
        let locking = self.locking();
        let mut step = locking.step.lock().await;
        let step = &mut *step;
        if step.is_over {
            return Ok(IDLE);
        }
        let now = self.env.now();
        let has_any = !locking.locks.own().is_empty();
        if has_any {
            step.used_at = now;
            self.by_inode().last_call.note(now);
            if locking.is_idle() {
                // It may have gone away since nobody asked anything.
                let back = self.is_back(&MemberError::Away).await;
                back.map_err(|error| MemberError::Content(error.to_string()))?;
            }
        }
        let is_due = step.looked_at.is_none_or(|at| now.since(at) >= LOOK_EVERY);
        match &step.term {
            Term::Beside => {
                if is_due && (has_any || step.may_be_recorded) {
                    self.look_from_beside(step).await?;
                }
                if locking.locks.is_wanted() && !locking.locks.in_grace() {
                    step.used_at = now;
                    self.decide(step).await?;
                }
            }
            Term::Has { .. } => self.open(step).await?,
            Term::Decides { since, .. } => {
                let since = *since;
                if is_due && (has_any || step.may_be_recorded || !step.others.is_empty()) {
                    self.look_as_decider(step).await?;
                }
                if self.gives_locks(step, since) {
                    self.give_locks(step).await?;
                }
            }
            Term::Closed { .. } => self.give_locks(step).await?,
        }
        let own = locking.locks.own();
        let is_beside = matches!(step.term, Term::Beside);
        let is_idle = own.is_empty() && !step.may_be_recorded && is_beside;
        locking.is_idle.store(is_idle, Ordering::Release);
        Ok(match is_idle {
            true => IDLE,
            false => LOOK_EVERY,
        })
    }

    /// While another decides: what the record does not cover any more was broken, and what was unlocked is recorded.
    async fn look_from_beside(self: &Arc<Self>, step: &mut Step) -> Result<(), MemberError> {
        let (locking, member) = (self.locking(), self.by_inode().member());
        step.looked_at = Some(self.env.now());
        let mut record = self.record().await?;
        if locking.locks.reclaims_are_unknown() {
            let before = entry_of(&record, locking.edge).to_vec();
            if !before.is_empty() {
                // From here on who wanted to break them as those of an office that is gone finds another count.
                let locks = before.clone();
                record = member.change_locks(&MemberLocksChange::Keep { locks }).await?;
            }
            let covered = before.iter().map(of_office).collect();
            locking.locks.set_reclaims(Reclaims::Covered(covered));
        }
        locking.drop_broken(&record);
        locking.place(step, locking.others(&record));
        let before = entry_of(&record, locking.edge).to_vec();
        // Clients that have not reclaimed yet may still do so.
        let own = match locking.locks.in_grace() && !step.was_broken {
            true => before.clone(),
            false => locking.own(),
        };
        if own != before {
            let mut held = before.iter().filter(|lock| !lock.waits);
            let is_less = !held.all(|lock| lock.is_covered_by(&own));
            if is_less {
                self.published_for_locks().await?;
            }
            let locks = own.clone();
            member.change_locks(&MemberLocksChange::Keep { locks }).await?;
        }
        step.may_be_recorded = !own.is_empty();
        let in_the_way = locking.in_the_way(step, self.env.now(), &record);
        for entry in in_the_way {
            // Only who decides may break them.
            if member.has_fallen(entry.member, false).await? {
                return self.decide(step).await;
            }
        }
        Ok(())
    }

    /// Everything that was changed here before is published.
    async fn published_for_locks(&self) -> Result<(), MemberError> {
        if firn_env::planted!("volume.unlock_recorded_before_published") {
            return Ok(());
        }
        let target = self.lock().applied;
        let reached = self.reached(target).await;
        reached.map_err(|error| MemberError::Content(error.to_string()))
    }

    async fn record(&self) -> Result<HandoverRecord, MemberError> {
        let asked = self.by_inode().member().locks();
        let record = self.env.timeout(CALL_LIMIT, asked).await;
        record.unwrap_or_else(|elapsed| Err(MemberError::Content(elapsed.to_string())))
    }

    /// Gets the lease, and decides. Beside that nothing else is done, so it does not wait for long.
    async fn decide(self: &Arc<Self>, step: &mut Step) -> Result<(), MemberError> {
        let held = self.hold(Held::default(), Unheld::Leases(vec![LOCK_LEASE]));
        let held = self.env.timeout(CALL_LIMIT, held).await;
        let held = match held {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => return Err(MemberError::Content(error.to_string())),
            Err(elapsed) => return Err(MemberError::Content(elapsed.to_string())),
        };
        let Some(pin) = held.lasting(self.by_inode().member()) else {
            return Ok(());
        };
        step.term = Term::Has {
            pin,
            is_recorded: true,
        };
        self.open(step).await
    }

    /// Others' locks, *then* the newest root, *then* grants.
    async fn open(self: &Arc<Self>, step: &mut Step) -> Result<(), MemberError> {
        let (locking, member) = (self.locking(), self.by_inode().member());
        let record = self.record().await?;
        if let Term::Has {
            is_recorded: true, ..
        } = &step.term
        {
            locking.drop_broken(&record);
        }
        if !firn_env::planted!("volume.lock_granted_by_old_root") {
            member.catch_up().await?;
        }
        step.may_be_recorded = record.locks_of(locking.edge).is_some();
        if !firn_env::planted!("volume.decides_before_others_are_known") {
            locking.place(step, locking.others(&record));
        }
        let now = self.env.now();
        step.looked_at = Some(now);
        step.term = match std::mem::take(&mut step.term) {
            Term::Has { pin, .. } => Term::Decides { pin, since: now },
            other => other,
        };
        locking.figures.taken.fetch_add(1, Ordering::Relaxed);
        locking.figures.decides.store(true, Ordering::Relaxed);
        let inner = Arc::downgrade(self);
        locking.locks.open(Arc::new(move || may_grant(&inner)));
        Ok(())
    }

    /// What others have by the record; of what is free from now on the root is read before the table knows it.
    async fn take_in(&self, step: &mut Step, record: &HandoverRecord) -> Result<(), MemberError> {
        let locking = self.locking();
        let others = locking.others(record);
        if others != step.others {
            if !firn_env::planted!("volume.lock_granted_by_old_root") {
                self.by_inode().member().catch_up().await?;
            }
            locking.place(step, others);
        }
        Ok(())
    }

    async fn look_as_decider(&self, step: &mut Step) -> Result<(), MemberError> {
        let (locking, member) = (self.locking(), self.by_inode().member());
        step.looked_at = Some(self.env.now());
        let record = self.record().await?;
        self.take_in(step, &record).await?;
        // After a time in which nothing was granted, since the anchor was away.
        locking.locks.serve();
        let before = entry_of(&record, locking.edge);
        step.may_be_recorded = !before.is_empty();
        let is_waited_for = step
            .others
            .iter()
            .any(|entry| entry.locks.iter().any(|lock| lock.waits));
        let own = locking.own();
        let is_stale = before != own && (is_waited_for || own.is_empty());
        if is_stale && !locking.locks.in_grace() {
            // Who waits learns when to fetch the lease; before it gets that, all of it is published.
            step.may_be_recorded = true;
            let locks = own.clone();
            member.change_locks(&MemberLocksChange::Record { locks }).await?;
            step.may_be_recorded = !own.is_empty();
        }
        for entry in locking.in_the_way(step, self.env.now(), &record) {
            if !member.has_fallen(entry.member, true).await? {
                continue;
            }
            let change = MemberLocksChange::Break {
                edge: entry.member,
                beats: entry.beats,
                inode: None,
            };
            let record = member.change_locks(&change).await?;
            tracing::warn!(
                office = entry.name,
                "the locks of an office that is gone are broken"
            );
            locking.figures.breaks.fetch_add(1, Ordering::Relaxed);
            self.take_in(step, &record).await?;
        }
        Ok(())
    }

    /// Whether a decider gives the lease: others want it, or nothing was locked here for long.
    fn gives_locks(&self, step: &Step, since: Monotonic) -> bool {
        let (locking, now) = (self.locking(), self.env.now());
        let is_wanted = self.by_inode().member().is_wanted(LOCK_LEASE) && now.since(since) >= HOLD;
        let is_free = now.since(step.used_at) >= FREE_AFTER;
        (is_wanted || is_free) && !locking.locks.in_grace()
    }

    /// Publishes, closes the table, publishes the rest, records what clients here have, and lets go of the lease. If something fails it is gone on with by the next call.
    async fn give_locks(&self, step: &mut Step) -> Result<(), MemberError> {
        let (locking, member) = (self.locking(), self.by_inode().member());
        if let Term::Decides { .. } = &step.term {
            // Most of it while locks are still granted.
            self.published_for_locks().await?;
            locking.locks.close();
            locking.figures.decides.store(false, Ordering::Relaxed);
            step.term = match std::mem::take(&mut step.term) {
                Term::Decides { pin, .. } => Term::Closed { _pin: pin },
                other => other,
            };
        }
        let own = locking.own();
        self.published_for_locks().await?;
        if !own.is_empty() || step.may_be_recorded {
            step.may_be_recorded = true;
            let locks = own.clone();
            member.change_locks(&MemberLocksChange::Record { locks }).await?;
            step.may_be_recorded = !own.is_empty();
        }
        step.term = Term::Beside;
        locking.figures.given.fetch_add(1, Ordering::Relaxed);
        member.give_published().await
    }

    /// Before the member goes away: nothing is granted any more, and the record says what clients here have. `false`: it has to stay, since nobody knows yet what they have.
    pub(super) async fn end_locking(self: &Arc<Self>) -> Result<bool, MemberError> {
        let Some(locking) = self.by_inode().locking.get() else {
            return Ok(true);
        };
        let mut step = locking.step.lock().await;
        let step = &mut *step;
        step.is_over = true;
        match &step.term {
            Term::Beside => {}
            Term::Has {
                is_recorded: true, ..
            } => step.term = Term::Beside,
            Term::Has { .. } | Term::Decides { .. } if locking.locks.in_grace() => return Ok(false),
            Term::Has { .. } => {
                self.open(step).await?;
                self.give_locks(step).await?;
            }
            Term::Decides { .. } | Term::Closed { .. } => self.give_locks(step).await?,
        }
        Ok(true)
    }
}

/// Whether a decider may grant at this moment: others cannot have broken it.
fn may_grant(inner: &Weak<Inner>) -> bool {
    inner.upgrade().is_some_and(|inner| {
        let by_inode = inner.by_inode();
        inner.serving.now() == ServingState::Serving && by_inode.member().is_valid()
    })
}

/// Runs until the volume stops serving.
pub(super) async fn run(inner: Arc<Inner>) {
    let work = pin!(work(&inner));
    let ended = pin!(inner.serving.ended());
    let over = pin!(inner.checkpointer.over());
    match select(work, select(ended, over)).await {
        Either::Left(((), _)) | Either::Right(_) => {}
    }
}

async fn work(inner: &Arc<Inner>) {
    let member: Arc<Member> = inner.by_inode().member().clone();
    let locking = inner.locking();
    let mut failures = 0_u32;
    loop {
        let wanted = member.wanted();
        let mut wanted = pin!(wanted);
        wanted.as_mut().enable();
        let pause = match inner.lock_step().await {
            Ok(pause) => {
                failures = 0;
                pause
            }
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::debug!(%error, failures, "locks of other offices cannot be asked for");
                }
                LOOK_EVERY
            }
        };
        let changed = pin!(locking.locks.changed());
        let _ = inner.env.timeout(pause, select(changed, wanted)).await;
    }
}
