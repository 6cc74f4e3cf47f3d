//! Durability in the cloud: calls that are answered at level 2, all that wait at one moment by one commit (group commit).
//!
//! Such a call is journaled and applied as ever; only its answer waits, until a committed root covers its record. Who waits asks for a
//! checkpoint; who comes while one is under way is covered by the next one, which all of them share. So one client pays a segment and a
//! conditional write for each call, and a hundred clients little more for all.
//!
//! | the cloud | before a change | after it: it is at level 1 | a call that changed nothing (COMMIT) |
//! |---|---|---|---|
//! | takes what it is given | – | waits for the commit that covers it | the same |
//! | away, [`OnDisconnect::Wait`] | waits; after the limit "try again" | waits on, whatever it takes | waits; after the limit "try again" |
//! | away, [`OnDisconnect::Fail`] | fails | fails after the limit, and stands | fails after the limit |
//! | away, [`OnDisconnect::Accept`] | – | is answered at level 1 after the limit, and at once while that is known | the same |
//!
//! *Away* is: somebody waited for [`VolumeConfig::wait_limit`](crate::VolumeConfig::wait_limit), during which no segment was stored and no root
//! committed. It ends with the next commit. A change that was made is never answered "try again": a client does that as a new request,
//! which would find the name taken or gone.

use crate::{journal::Sequence, state::LONG_WAIT, volume::Inner};
use firn_env::{Monotonic, Wait};
use firn_vfs::VfsError;
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

/// What becomes of calls that are to be answered at level 2 while the cloud does not take anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// They wait, for as long as it takes; new ones are told to try again, and nothing is changed.
    #[default]
    Wait,
    /// They fail (EIO).
    Fail,
    /// They are answered at level 1.
    Accept,
}

/// How calls stand that are answered at level 2, since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudWaitStatus {
    /// Calls that wait now.
    pub waiting: u64,
    /// Calls that waited and were answered at level 2.
    pub answered: u64,
    /// Commits that answered at least one.
    pub commits: u64,
    /// The most that one commit answered.
    pub largest_group: u64,
    /// How long the answered ones waited, all together.
    pub waited: Duration,
    /// How long the one that waited longest did.
    pub longest: Duration,
    /// Calls that were told to try again, or failed, since the cloud was away.
    pub refused: u64,
    /// Calls that were answered at level 1, since the cloud was away.
    pub accepted: u64,
    /// Since it was noticed that the cloud is away, if it is.
    pub away: Option<Duration>,
}

/// What becomes of one that waits when the service ends, or the cloud is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// It changed something, which stands.
    Changed,
    /// It changed nothing, and may be asked again.
    Asks,
}

/// See the module.
#[derive(Default)]
pub(crate) struct CloudWaits(Mutex<Waits>);

#[derive(Default)]
struct Waits {
    /// But for `waiting` and `away`.
    status: CloudWaitStatus,
    /// Those that wait: since when, and a number of their own.
    waiting: BTreeSet<(Monotonic, u64)>,
    /// Of the next one that waits.
    next: u64,
    /// The number of the commit that answered last, and how many it answered.
    group: (u64, u64),
    /// When the cloud was found to be away, and the number of commits then: it is for as long as there is no other.
    away: Option<(Monotonic, u64)>,
}

impl CloudWaits {
    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().expect("no panic under this lock")
    }

    /// How long the one has waited that waits longest now.
    pub fn longest_wait(&self, now: Monotonic) -> Duration {
        let waits = self.lock();
        let oldest = waits.waiting.first();
        oldest.map_or(Duration::ZERO, |(since, _)| now.since(*since))
    }
}

/// One that waits; it does so no more when this is dropped.
struct Waiting<'a> {
    waits: &'a CloudWaits,
    since: Monotonic,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn new(waits: &'a CloudWaits, now: Monotonic) -> Self {
        let mut all = waits.lock();
        let number = all.next;
        all.next += 1;
        all.waiting.insert((now, number));
        drop(all);
        Self {
            waits,
            since: now,
            number,
        }
    }

    /// It was answered by the commit of this number.
    fn answered(self, now: Monotonic, commit: u64) {
        let waits = &mut *self.waits.lock();
        let waited = now.since(self.since);
        waits.status.answered += 1;
        waits.status.waited += waited;
        waits.status.longest = waits.status.longest.max(waited);
        if waits.group.0 == commit {
            waits.group.1 += 1;
        } else {
            waits.group = (commit, 1);
            waits.status.commits += 1;
        }
        waits.status.largest_group = waits.status.largest_group.max(waits.group.1);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waits.lock().waiting.remove(&(self.since, self.number));
    }
}

impl Inner {
    /// Before a change that is to be answered at level 2: waits while the cloud is known to be away.
    ///
    /// # Errors
    /// If that takes too long, or such calls fail; nothing was changed.
    pub async fn cloud_at_hand(&self) -> Result<(), VfsError> {
        let end = self.env.now().after(self.config.wait_limit);
        loop {
            let committed = self.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.check_serving()?;
            if self.away().is_none() {
                return Ok(());
            }
            let left = end.since(self.env.now());
            match self.config.on_disconnect {
                OnDisconnect::Accept => return Ok(()),
                OnDisconnect::Fail => return Err(self.refuse(VfsError::NotInCloud)),
                OnDisconnect::Wait if left.is_zero() => return Err(self.refuse(AWAY)),
                OnDisconnect::Wait => {}
            }
            let _waiting = self.env.waits_for(Wait::Cloud);
            // The limit is looked at above.
            let _ = self.env.timeout(left, committed).await;
        }
    }

    /// Waits until a committed root covers `target` (level 2).
    ///
    /// # Errors
    /// Those of the table in the module.
    pub async fn in_cloud(&self, target: Sequence, waiter: Waiter) -> Result<(), VfsError> {
        if self.is_committed(target) {
            return Ok(());
        }
        let waiting = Waiting::new(&self.cloud_waits, self.env.now());
        let _waits = self.env.waits_for(Wait::Cloud);
        let reached = self.reached(target);
        futures::pin_mut!(reached);
        let mut progress = self.progress();
        loop {
            if self.config.on_disconnect == OnDisconnect::Accept && self.away().is_some() {
                return self.accept();
            }
            match self.env.timeout(self.config.wait_limit, &mut reached).await {
                Ok(Ok(())) => {
                    let commit = self.checkpointer.times().committed;
                    // Before it ends to wait: no checkpoint may forget it in between.
                    if self.env.now().since(waiting.since) > LONG_WAIT {
                        self.lock().renew_completed(self.now());
                    }
                    waiting.answered(self.env.now(), commit);
                    return Ok(());
                }
                Ok(Err(ended)) => {
                    return Err(match (ended, waiter) {
                        (VfsError::Fenced, _) => VfsError::Fenced,
                        (_, Waiter::Changed) => VfsError::Unanswered,
                        (_, Waiter::Asks) => STOPPED,
                    });
                }
                Err(_) => {}
            }
            let now = self.progress();
            if std::mem::replace(&mut progress, now) != now {
                continue;
            }
            self.note_away();
            match (self.config.on_disconnect, waiter) {
                (OnDisconnect::Wait, Waiter::Changed) => {}
                (OnDisconnect::Wait, Waiter::Asks) => return Err(self.refuse(AWAY)),
                (OnDisconnect::Fail, _) => return Err(self.refuse(VfsError::NotInCloud)),
                (OnDisconnect::Accept, _) => return self.accept(),
            }
        }
    }

    /// Waits until a committed root covers `target`, however long that takes; asks for a checkpoint as long as none does.
    ///
    /// # Errors
    /// If the service ends before.
    pub async fn reached(&self, target: Sequence) -> Result<(), VfsError> {
        loop {
            let committed = self.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.serving.check_not_ended()?;
            if self.is_committed(target) {
                return Ok(());
            }
            self.checkpointer.want();
            committed.await;
            if firn_env::planted!("volume.level_two_by_any_commit") {
                return Ok(());
            }
        }
    }

    fn is_committed(&self, target: Sequence) -> bool {
        let state = self.lock();
        let times = self.checkpointer.times();
        let clean = !state.is_dirty() && !times.building;
        clean || times.committed_to >= target
    }

    /// Changes whenever the cloud has taken something: commits, and segments stored.
    fn progress(&self) -> (u64, u64) {
        let segments = &self.checkpointer.packer.progress.segments;
        (
            self.checkpointer.times().committed,
            segments.load(Ordering::Relaxed),
        )
    }

    fn note_away(&self) {
        let committed = self.checkpointer.times().committed;
        let now = self.env.now();
        let waits = &mut *self.cloud_waits.lock();
        let is_known = waits.away.is_some_and(|(_, then)| then == committed);
        if !is_known {
            waits.away = Some((now, committed));
            tracing::warn!("the cloud takes nothing: calls that are to be answered at level 2 wait");
        }
    }

    /// How long the cloud has been known to be away; nobody knows when that will end in a volume that was opened without it.
    fn away(&self) -> Option<Duration> {
        let now = self.env.now();
        if self.checkpointer.own().is_none() && self.follower.is_none() && self.by_inode.is_none() {
            return Some(now.since(self.started));
        }
        let committed = self.checkpointer.times().committed;
        let away = self.cloud_waits.lock().away;
        let (since, _) = away.filter(|(_, then)| *then == committed)?;
        Some(now.since(since))
    }

    fn refuse(&self, error: VfsError) -> VfsError {
        self.cloud_waits.lock().status.refused += 1;
        error
    }

    fn accept(&self) -> Result<(), VfsError> {
        self.cloud_waits.lock().status.accepted += 1;
        Ok(())
    }

    /// For `status`.
    pub fn cloud_wait_status(&self) -> CloudWaitStatus {
        let away = self.away();
        let waits = self.cloud_waits.lock();
        CloudWaitStatus {
            away,
            waiting: waits.waiting.len() as u64,
            ..waits.status.clone()
        }
    }
}

const AWAY: VfsError = VfsError::TryAgain {
    reason: "the cloud takes nothing at the moment, and calls are answered once it has",
};

const STOPPED: VfsError = VfsError::TryAgain {
    reason: "the edge has stopped",
};
