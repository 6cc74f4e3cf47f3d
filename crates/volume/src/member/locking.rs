//! Locks of a member's clients, over all terms: granted while it has the volume, recorded before it gives it, kept while another has it.
//!
//! ```text
//!  owning     first beat ─▶ what others have is put into the table ─▶ caches are told ─▶ open: grants ─▶ look, look … ─▶ closed ─▶ recorded ─▶ given
//!  following  look, look … while there is anything: what the record does not cover any more was broken; what was unlocked is recorded; a beat
//!             every ten seconds; the volume is wanted once somebody waits whom no known lock keeps from his, or that of a silent office
//!  fenced     all locks here are broken: they were granted by nobody
//! ```
//!
//! An owner's look finds what others have unlocked. It records its own locks while another office waits for some, so that this one
//! learns when to fetch the volume, and breaks those of a member in somebody's way whose count has stood still for a minute
//! ([`super::waiting`] has the same of owners).

use super::{Inner, gate::Served, lease::Lease};
use crate::error::VolumeError;
use firn_anchor::{
    AnchorError, Beating, HandoverRecord, MAX_LOCKING, MAX_LOCKS, MemberLocks, OwnerId, RecordedLock,
};
use firn_env::Monotonic;
use firn_session::{BrokenLock, ByteRange, OFFICE_LOCKS, OFFICES, Office, OfficeLock, OfficeLocks, Reclaims};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;

// What the table lets clients have fits into the record, this office beside the others.
const _: () = assert!(OFFICE_LOCKS == MAX_LOCKS && OFFICES + 1 == MAX_LOCKING);

/// How long one call may take before it is tried again.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Between two tries to record what must be recorded.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// Locks that clients here lost to other offices, for those who can tell them; cheap to clone.
#[derive(Clone, Default)]
pub struct LostLocks {
    news: Arc<(Mutex<Vec<BrokenLock>>, Notify)>,
}

impl LostLocks {
    pub(crate) fn tell(&self, broken: Vec<BrokenLock>) {
        let (news, told) = &*self.news;
        news.lock().expect("no panic under this lock").extend(broken);
        told.notify_one();
    }

    /// All that were lost since the last time; waits until some were. As many as there can be locks, if nobody asks for long.
    pub async fn next(&self) -> Vec<BrokenLock> {
        let (news, told) = &*self.news;
        loop {
            let lost = std::mem::take(&mut *news.lock().expect("no panic under this lock"));
            if !lost.is_empty() {
                return lost;
            }
            told.notified().await;
        }
    }
}

/// What is remembered between looks.
pub(super) struct Locking {
    pub locks: OfficeLocks,
    pub lost: LostLocks,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The record may have an entry of this member.
    may_be_recorded: bool,
    /// When the last change of the entry was sent that was acknowledged.
    kept: Option<Monotonic>,
    /// Counts of other members, and when each was first read.
    counts: BTreeMap<OwnerId, (u64, Monotonic)>,
    /// From whom the volume was taken over.
    taken_from: Option<OwnerId>,
}

impl Locking {
    pub fn new(locks: OfficeLocks) -> Self {
        let known = Known {
            may_be_recorded: true,
            ..Known::default()
        };
        Self {
            locks,
            lost: LostLocks::default(),
            known: Mutex::new(known),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic under this lock")
    }

    fn own(&self) -> Vec<RecordedLock> {
        self.locks.own().iter().map(recorded).collect()
    }

    fn set_others(&self, record: &HandoverRecord, me: OwnerId) {
        let others = record.locks.iter().filter(|entry| entry.member != me);
        self.locks.set_others(others.map(office).collect());
    }

    /// The volume was taken over from this member.
    pub fn takes_over_from(&self, owner: OwnerId) {
        self.known().taken_from = Some(owner);
    }
}

pub(crate) fn recorded(lock: &OfficeLock) -> RecordedLock {
    RecordedLock {
        inode: lock.inode,
        first: lock.range.first,
        last: lock.range.last,
        exclusive: lock.exclusive,
        waits: lock.waits,
    }
}

pub(crate) fn of_office(lock: &RecordedLock) -> OfficeLock {
    let (first, last) = (lock.first, lock.last);
    OfficeLock {
        inode: lock.inode,
        range: ByteRange { first, last },
        exclusive: lock.exclusive,
        waits: lock.waits,
    }
}

pub(crate) fn office(entry: &MemberLocks) -> Office {
    Office {
        id: entry.member.0,
        name: entry.name.clone(),
        locks: entry.locks.iter().map(of_office).collect(),
    }
}

impl Inner {
    /// Breaks what clients here hold and the record does not cover, read when this member did not grant.
    fn drop_broken(&self, record: &HandoverRecord, me: OwnerId) {
        if firn_env::planted!("volume.member_keeps_broken_locks") {
            return;
        }
        let entry = record.locks_of(me);
        let kept = entry.map_or(&[][..], |entry| &entry.locks);
        let broken = self
            .locking
            .locks
            .keep_only(|lock| recorded(lock).is_covered_by(kept));
        self.tell_broken(broken);
    }

    fn tell_broken(&self, broken: Vec<BrokenLock>) {
        if broken.is_empty() {
            return;
        }
        tracing::error!(
            locks = broken.len(),
            "locks of clients here were broken: another office could not wait for this one any longer"
        );
        self.figures().locks_lost += broken.len() as u64;
        self.locking.lost.tell(broken);
    }

    /// The first beat of an owner's term was answered with this. `continues`: it had the volume before the restart too, and nobody since.
    pub(super) async fn restore_locks(&self, beating: &Beating, mut record: HandoverRecord, continues: bool) {
        let (locking, me) = (&self.locking, beating.owner);
        if locking.locks.reclaims_are_unknown() {
            let entry = record.locks_of(me).map_or(&[][..], |entry| &entry.locks);
            locking.locks.set_reclaims(match continues {
                true => Reclaims::All,
                false => Reclaims::Covered(entry.iter().map(of_office).collect()),
            });
        }
        self.drop_broken(&record, me);
        // Whoever was taken over breaks all that its clients have, and had a minute to be heard.
        let taken_from = locking.known().taken_from.take();
        if let Some(entry) = taken_from.and_then(|owner| record.locks_of(owner)) {
            let of = (entry.member, entry.beats);
            let broken = self
                .parts
                .anchor
                .break_locks(self.parts.volume, beating, of, None);
            if let Ok(Ok(changed)) = self.parts.env.timeout(CALL_LIMIT, broken).await {
                record = changed;
            }
        }
        locking.known().may_be_recorded = record.locks_of(me).is_some();
        if !firn_env::planted!("volume.member_grants_before_restoring") {
            locking.set_others(&record, me);
        }
    }

    /// Grants from now on, if this is an owner's term.
    pub(super) fn open_locks(&self, served: &Arc<Served>) {
        let Some(lease) = served.owning.clone() else {
            return;
        };
        let (env, serves_lapsed) = (self.parts.env.clone(), self.options.serves_lapsed);
        self.locking
            .locks
            .open(Arc::new(move || serves_lapsed || lease.holds(&env)));
        self.gate.is_had();
    }

    /// What an owner does with the record at a look that began then.
    pub(super) async fn look_at_locks(&self, lease: &Lease, record: &HandoverRecord, began: Monotonic) {
        let (env, locking, me) = (&self.parts.env, &self.locking, lease.beating.owner);
        locking.set_others(record, me);
        if let Some(entry) = self.silent_in_the_way(record, me, began) {
            tracing::warn!(
                office = entry.name,
                "an office gives no sign of life: its locks are broken, for which clients wait here"
            );
            let of = (entry.member, entry.beats);
            let broken = self
                .parts
                .anchor
                .break_locks(self.parts.volume, &lease.beating, of, None);
            if let Ok(Ok(record)) = env.timeout(CALL_LIMIT, broken).await {
                self.figures().lock_breaks += 1;
                locking.set_others(&record, me);
            }
        }
        let waits = |entry: &MemberLocks| entry.member != me && entry.locks.iter().any(|lock| lock.waits);
        let is_waited_for = record.locks.iter().any(waits);
        let own = locking.own();
        let recorded = record.locks_of(me).map_or(&[][..], |entry| &entry.locks);
        if is_waited_for && recorded != own && !locking.locks.in_grace() {
            locking.known().may_be_recorded = true;
            let (anchor, name) = (&self.parts.anchor, &self.config.owner_name);
            let record = anchor.record_locks(self.parts.volume, &lease.beating, name, &own);
            let _ = env.timeout(CALL_LIMIT, record).await;
        }
    }

    /// A member in somebody's way whose count has stood still for long enough at a read that began then.
    fn silent_in_the_way<'a>(
        &self,
        record: &'a HandoverRecord,
        me: OwnerId,
        began: Monotonic,
    ) -> Option<&'a MemberLocks> {
        let now = self.parts.env.now();
        let in_the_way = self.locking.locks.take_in_the_way();
        let mut known = self.locking.known();
        known
            .counts
            .retain(|member, _| record.locks_of(*member).is_some());
        let mut silent = None;
        for entry in record.locks.iter().filter(|entry| entry.member != me) {
            let seen = known.counts.entry(entry.member).or_insert((entry.beats, now));
            if seen.0 != entry.beats {
                *seen = (entry.beats, now);
            }
            let stands_still = began.since(seen.1) >= self.options.break_after;
            if stands_still && in_the_way.contains(&entry.member.0) {
                silent = silent.or(Some(entry));
            }
        }
        silent
    }

    /// Records what clients here have, before the volume is given: nobody grants from here on until the next owner has read it.
    ///
    /// # Errors
    /// If the volume is another's by now.
    pub(super) async fn hand_locks_over(&self, lease: &Lease) -> Result<(), VolumeError> {
        self.locking.locks.close();
        let own = self.locking.own();
        let may_be_recorded = self.locking.known().may_be_recorded;
        if own.is_empty() && !may_be_recorded || firn_env::planted!("volume.member_gives_before_recording") {
            return Ok(());
        }
        let (env, anchor) = (&self.parts.env, &self.parts.anchor);
        loop {
            let record =
                anchor.record_locks(self.parts.volume, &lease.beating, &self.config.owner_name, &own);
            match env.timeout(CALL_LIMIT, record).await {
                Ok(Ok(_)) => {
                    let mut known = self.locking.known();
                    known.may_be_recorded = !own.is_empty();
                    known.kept = Some(env.now());
                    return Ok(());
                }
                Ok(Err(error @ AnchorError::Fenced(_))) => return Err(error.into()),
                Ok(Err(error)) => tracing::warn!(%error, "the volume is given once its locks are recorded"),
                Err(elapsed) => tracing::warn!(%elapsed, "the volume is given once its locks are recorded"),
            }
            env.sleep(RECORD_AGAIN).await;
        }
    }

    /// The volume was taken over: what was granted here nobody else knows of.
    pub(super) fn lose_locks(&self) {
        self.locking.locks.close();
        self.locking.known().may_be_recorded = true;
        if !firn_env::planted!("volume.member_keeps_broken_locks") {
            let broken = self.locking.locks.keep_only(|_| false);
            self.tell_broken(broken);
        }
    }

    /// Keeps the locks of clients here while another has the volume. While there are none, and none was recorded, nobody is asked.
    pub(super) async fn keep_locks(&self, me: OwnerId) {
        let (env, locking) = (&self.parts.env, &self.locking);
        loop {
            let is_idle = locking.locks.own().is_empty() && !locking.known().may_be_recorded;
            if !is_idle {
                let look = self.look_at_own_locks(me);
                let _ = env.timeout(CALL_LIMIT, look).await;
            }
            if locking.locks.is_wanted() {
                self.gate.want();
            }
            if is_idle {
                locking.locks.changed().await;
                continue;
            }
            let next = env.now().after(self.options.look_every);
            while env.now() < next {
                let left = next.since(env.now());
                if env.timeout(left, locking.locks.changed()).await.is_ok() && locking.locks.is_wanted() {
                    self.gate.want();
                }
            }
        }
    }

    async fn look_at_own_locks(&self, me: OwnerId) -> Result<(), AnchorError> {
        let (env, anchor, locking) = (&self.parts.env, &self.parts.anchor, &self.locking);
        let began = env.now();
        let (record, _) = anchor.handover(self.parts.volume).await?;
        let entry = record.locks_of(me);
        let before = entry.map_or(&[][..], |entry| &entry.locks);
        if locking.locks.reclaims_are_unknown() {
            let covered = before.iter().map(of_office).collect();
            locking.locks.set_reclaims(Reclaims::Covered(covered));
        }
        self.drop_broken(&record, me);
        locking.set_others(&record, me);
        if self.silent_in_the_way(&record, me, began).is_some() {
            // Only who has the volume may break them.
            self.gate.want();
        }
        // Clients that have not reclaimed yet may still do so.
        let own = match locking.locks.in_grace() {
            true => before.to_vec(),
            false => locking.own(),
        };
        let kept = locking.known().kept;
        let is_due = kept.is_none_or(|at| env.now().since(at) >= self.options.beat_every);
        if own != before || (is_due && entry.is_some()) {
            let sent = env.now();
            locking.known().may_be_recorded = true;
            anchor
                .keep_locks(self.parts.volume, me, &self.config.owner_name, &own)
                .await?;
            locking.known().kept = Some(sent);
        }
        if own.is_empty() {
            locking.known().may_be_recorded = false;
        }
        Ok(())
    }

    /// Takes away what another office has of a file.
    pub(super) async fn break_locks_of(&self, office: OwnerId, inode: u64) -> Result<(), VolumeError> {
        let at_hand = self.gate.at_hand();
        let Some(lease) = at_hand.and_then(|served| served.owning.clone()) else {
            return Err(VolumeError::Stopped(
                "another office has the volume, and breaks locks; ask there".into(),
            ));
        };
        let (anchor, volume) = (&self.parts.anchor, self.parts.volume);
        let (record, _) = anchor.handover(volume).await?;
        let Some(entry) = record.locks_of(office) else {
            return Ok(());
        };
        let of = (office, entry.beats);
        let record = anchor
            .break_locks(volume, &lease.beating, of, Some(inode))
            .await?;
        self.locking.set_others(&record, lease.beating.owner);
        Ok(())
    }

    /// Reads what other offices have at the moment.
    pub(super) async fn refresh_locks(&self) -> Result<(), VolumeError> {
        let me = crate::local::LocalState::load(&self.parts.env).await?.owner;
        let (record, _) = self.parts.anchor.handover(self.parts.volume).await?;
        self.locking.set_others(&record, me);
        Ok(())
    }
}
