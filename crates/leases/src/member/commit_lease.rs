//! The lease of commits: members that commit at the same moment go one after the other, instead of each building in vain what another was faster with.
//!
//! ```text
//! lost a try, or met others within 10 s ─▶ stand in line ─▶ had ─▶ build, commit ─┬─▶ more is awaited, and four were not made yet
//!        others that see it in the arena ────────▲                     ▲          │            │
//!                                                                      └──────────┼────────────┘
//!                                                                                 └─▶ given to the first in line, or to nobody
//! ```
//!
//! It is a lease of a number that is no inode: the arena's queue is the line, in order of coming, and who has it and is gone is taken from, or broken, as any other. Each try reads that
//! arena beside the root, so that nobody has to be told. **Nothing is safe by it**: who has waited for five minutes, or for a holder that has given no sign of life for 20 s, commits without.
//!
//! *Four commits, not one*: getting and giving are two writes of one record, as many as it takes in a crowd, and a commit on one's own root adopts nothing. *Not more*: sixteen that publish all
//! the time each come within a quarter of a minute. The first in line reads the root along with the arena; once it has moved four times the lease is on its way, and is not waited for.
//!
//! **Who builds for long** (over a slow uplink) takes it only after two lost tries: while it has it all others wait, so it leaves them two thirds of the time, unless somebody waits for what
//! it has to publish.

use super::{ASKED_LATELY, Member, Own, changes::Unsettled, single};
use crate::{Build, MemberError};
use firn_anchor::{
    ARENA_BITS, AnchorError, Arena, ArenaChange, COMMIT_LEASE, LEVEL_MAX, LeaseRange, MAX_LEASE_QUEUE,
    MemberNumber,
};
use firn_env::Monotonic;
use firn_format::{Version, WriterId};
use std::{sync::MutexGuard, time::Duration};

/// Tries that are lost before who builds for long stands in line.
const TRIES_OF_LONG: usize = 2;
/// A build is long from here on: several times what a commit takes over a line of 100 ms.
const LONG: Duration = Duration::from_secs(1);
/// The longest that others are waited for. What an office uploads in that time is committed whatever others do; more of it only when they pause.
const COMMIT_LEASE_MAX: Duration = Duration::from_secs(300);
/// So many commits are made by who has it and has more that is awaited, and none is begun after so long.
const SLICE_COMMITS: u64 = 4;
const SLICE: Duration = Duration::from_secs(2);
/// What is awaited next comes within so long of the commit before, as clients over a local network do.
const NEXT_WITHIN: Duration = Duration::from_millis(10);
/// Who met others for so long stands in line before it builds.
const MET_LATELY: Duration = Duration::from_secs(10);
/// Between two looks of the first in line, and of the next ones for each that is before them; the longest.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_NEXT: Duration = Duration::from_millis(60);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// A line that stands still for so long has its holder looked at, again and again.
const LOOK_AT_HOLDER: Duration = Duration::from_secs(5);
/// A holder whose record stands still for so long, two of its signs of life, is waited for no more.
const SILENT_HOLDER: Duration = Duration::from_secs(20);

/// How a member stands to the lease of commits.
#[derive(Default)]
pub(super) struct Line {
    /// It was asked for, and neither given nor given up since.
    is_in: bool,
    /// Since when it is had.
    had_since: Option<Monotonic>,
    /// It is on its way, from one who has made all its commits.
    is_coming: bool,
    /// Since then.
    commits: u64,
    /// When others that commit were met last.
    met_at: Option<Monotonic>,
    /// How long the last build took.
    last_build: Duration,
    /// Somebody waits for what is being published.
    pub(super) is_asked: bool,
}

/// Commits of one after the other, as the first in line sees them by the newest root.
#[derive(Default)]
struct Runs {
    /// Who made the newest, and since which version all of them.
    newest: Option<(WriterId, Version)>,
    length: u64,
    /// Who was the first of all waited for, and the run that was complete by then: of the one before.
    holder: Option<(MemberNumber, Option<(WriterId, Version)>)>,
}

impl Runs {
    /// The newest root is this one's.
    fn see(&mut self, writer: WriterId, version: Version) {
        match self.newest {
            Some((before, first)) if before == writer => self.length = version.0 + 1 - first.0,
            _ => (self.newest, self.length) = (Some((writer, version)), 1),
        }
    }

    /// Whether who has the lease has made as many commits as it does, so that it is about to give it.
    fn has_made_all(&mut self, holder: MemberNumber) -> bool {
        let complete = self.newest.filter(|_| self.length >= SLICE_COMMITS);
        match self.holder {
            Some((known, of_before)) if known == holder => complete.is_some() && complete != of_before,
            _ => {
                self.holder = Some((holder, complete));
                false
            }
        }
    }
}

/// What a member has done before a try to commit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
    /// It stood in line, or has the lease.
    pub(super) has_waited: bool,
    /// The root was read a moment ago.
    pub(super) is_fresh: bool,
}

impl Line {
    /// A commit was made.
    pub(super) fn committed(&mut self) {
        self.commits += 1;
    }

    fn gets(&mut self, now: Monotonic, is_coming: bool) {
        (self.had_since, self.is_coming, self.commits) = (Some(now), is_coming, 0);
    }

    /// Something was built, or given up, after so long.
    pub(super) fn built(&mut self, took: Duration, built: &Option<Build>) {
        match built {
            Some(Build::Root(_)) => self.last_build = took,
            None => self.last_build = self.last_build.max(took),
            Some(Build::Nothing | Build::LeafChanged { .. }) => {}
        }
    }
}

impl Member {
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("no panic under this lock")
    }

    /// Publishes, and gives the lease if it came to that and nothing more is awaited; by who has the right to publish.
    pub(super) async fn publish_and_give(&self) -> Result<(), MemberError> {
        let published = self.publish_alone().await;
        if published.is_ok() && self.is_slice_left() {
            self.env.sleep(NEXT_WITHIN).await;
            if self.goes_on() {
                return published;
            }
        }
        match self.leave_line().await {
            // It is given by the next look of [`Member::tend`].
            Err(MemberError::Anchor(error)) if error.is_transient() => published,
            ended => published.and(ended),
        }
    }

    fn is_slice_left(&self) -> bool {
        let line = self.line();
        let is_young = |since| self.env.now().since(since) < SLICE;
        line.commits < SLICE_COMMITS && line.last_build < LONG && line.had_since.is_some_and(is_young)
    }

    /// Whether the lease is kept for what is awaited.
    fn goes_on(&self) -> bool {
        self.is_slice_left() && self.content.is_awaited()
    }

    /// Others committed, or are about to.
    pub(super) fn meets_others(&self) {
        self.line().met_at = Some(self.env.now());
    }

    /// Whether somebody else has the lease, for whom this member would wait.
    pub(super) fn is_others_turn(&self) -> bool {
        self.table().is_anothers(COMMIT_LEASE)
            && !firn_env::planted!("leases.no_commit_lease")
            && !self.is_all_published()
    }

    /// What is published waits for nobody.
    fn is_all_published(&self) -> bool {
        let everything = LeaseRange::around(0, LEVEL_MAX).expect("the highest level");
        let arenas = self.table().arenas();
        arenas
            .iter()
            .all(|arena| self.content.is_published(*arena, everything))
    }

    /// Whether the lease is to be had before the next build, after so many tries that were lost.
    fn needs_lease(&self, lost: usize) -> bool {
        let now = self.env.now();
        let line = self.line();
        match line.last_build >= LONG && !line.is_asked {
            true => lost >= TRIES_OF_LONG,
            false => lost > 0 || line.met_at.is_some_and(|met| now.since(met) < MET_LATELY),
        }
    }

    /// Reads who has the lease and who waits for it, beside the root.
    pub(super) async fn look_at_line(&self) -> Result<(), MemberError> {
        let is_known = {
            let line = self.line();
            line.had_since.is_some() && !line.is_coming
        };
        if !is_known {
            let seen = self.anchor.arena(self.volume, COMMIT_LEASE).await?;
            self.table().see(&seen.arena);
            if self.holds(COMMIT_LEASE) == Some(true) {
                self.line().is_coming = false;
            }
        }
        Ok(())
    }

    /// Before a try to commit, after so many that were lost: stands in line if somebody has the lease, or this member needs it.
    pub(super) async fn wait_for_commit_lease(&self, lost: usize) -> Result<Waited, MemberError> {
        if firn_env::planted!("leases.no_commit_lease") {
            return Ok(Waited::default());
        }
        let waited = Waited {
            has_waited: true,
            is_fresh: false,
        };
        let (is_had, is_coming) = {
            let line = self.line();
            (line.had_since.is_some(), line.is_coming)
        };
        if is_had && (is_coming || self.holds(COMMIT_LEASE) == Some(true)) {
            return Ok(waited);
        }
        if !(self.needs_lease(lost) || self.is_others_turn()) || self.is_all_published() {
            return Ok(Waited::default());
        }
        let began = self.env.now();
        let (mut place, mut stands_since, mut looked) = (None, began, began);
        let mut before_me = Runs::default();
        loop {
            self.meets_others();
            let mut guard = self.own.lock().await;
            let own = &mut *guard;
            self.settle(own).await?;
            let is_near = place.is_some_and(|place| place <= 1);
            let seen = match is_near {
                false => self.anchor.arena(self.volume, COMMIT_LEASE).await?,
                true => {
                    let looking = self.anchor.arena(self.volume, COMMIT_LEASE);
                    let (refreshed, seen) = futures::join!(self.refresh(own), looking);
                    refreshed?;
                    seen?
                }
            };
            let fresh = Waited {
                is_fresh: is_near,
                ..waited
            };
            let Some(found) = self.stand_in_line(own, &seen.arena).await? else {
                self.line().gets(self.env.now(), false);
                return Ok(fresh);
            };
            let now = self.env.now();
            if is_near && let Some(root) = &own.adopted.0.root {
                before_me.see(root.location.segment.writer, root.version);
                let holder = self.table().holder(COMMIT_LEASE).filter(|_| found == 0);
                if holder.is_some_and(|holder| before_me.has_made_all(holder)) {
                    self.line().gets(now, true);
                    return Ok(fresh);
                }
            }
            if place != Some(found) {
                (place, stands_since, looked) = (Some(found), now, now);
            }
            if now.since(began) >= COMMIT_LEASE_MAX {
                tracing::warn!("another office has uploaded for five minutes, and is waited for no more");
                return Ok(waited);
            }
            if now.since(looked) >= LOOK_AT_HOLDER {
                looked = now;
                // Of who is away or was broken it is taken, and who is silent for a minute is broken.
                self.take(own, COMMIT_LEASE).await?;
                let holder = self.table().holder(COMMIT_LEASE);
                if holder.is_some_and(|holder| self.silence_of(own, holder) >= SILENT_HOLDER) {
                    return Ok(waited);
                }
            }
            let stands = now.since(stands_since);
            let base = match found {
                0 => LOOK_FIRST,
                ahead => LOOK_NEXT * ahead.min(8) as u32,
            };
            drop(guard);
            self.env.sleep(base.max(stands / 8).min(LOOK_MAX)).await;
            self.beat_if_due().await?;
        }
    }

    /// Takes in the line as it was seen, and joins it. `None`: the lease is had; else how many wait before this member.
    async fn stand_in_line(&self, own: &mut Own, seen: &Arena) -> Result<Option<usize>, MemberError> {
        self.table().see(seen);
        let change = match (seen.holder(single(COMMIT_LEASE)), self.place_in(seen)) {
            (Ok(Some(holder)), _) if holder == self.number => return Ok(None),
            (_, Some(place)) => return Ok(Some(place)),
            (Ok(None), None) => ArenaChange::Take,
            (Ok(Some(_)) | Err(_), None) => ArenaChange::Want,
        };
        self.line().is_in = true;
        let changed = self
            .anchor
            .change_lease(&mut own.membership, (COMMIT_LEASE, 0), change)
            .await;
        let arena = match changed {
            // So many want it that this one is not heard.
            Err(AnchorError::Contended { .. }) => None,
            changed => self.lost_race(changed)?,
        };
        let Some(arena) = arena else {
            return Ok(Some(MAX_LEASE_QUEUE));
        };
        self.table().see(&arena);
        match arena.holder(single(COMMIT_LEASE)) == Ok(Some(self.number)) {
            true => Ok(None),
            false => Ok(Some(self.place_in(&arena).unwrap_or(MAX_LEASE_QUEUE))),
        }
    }

    fn place_in(&self, arena: &Arena) -> Option<usize> {
        let mut leases = arena.leases().iter();
        let line = leases.find(|lease| lease.range == single(COMMIT_LEASE))?;
        line.queue.iter().position(|member| *member == self.number)
    }

    /// Gives the lease, or one's place in line.
    pub(super) async fn leave_line(&self) -> Result<(), MemberError> {
        let is_in = self.line().is_in;
        if !is_in && self.holds(COMMIT_LEASE) != Some(true) {
            return Ok(());
        }
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        if !own.is_away() {
            if self.holds(COMMIT_LEASE) != Some(true) {
                let left = self
                    .anchor
                    .change_lease(&mut own.membership, (COMMIT_LEASE, 0), ArenaChange::Withdraw)
                    .await;
                if let Some(arena) = self.lost_race(left)? {
                    self.table().see(&arena);
                }
            }
            // Also what came just now.
            if self.holds(COMMIT_LEASE) == Some(true) {
                let arena = COMMIT_LEASE >> ARENA_BITS;
                self.hand_over(own, arena, single(COMMIT_LEASE)).await?;
            }
        }
        let mut line = self.line();
        (line.is_in, line.had_since, line.is_coming) = (false, None, false);
        Ok(())
    }

    /// Gives the lease if nothing more is awaited, or it was had for long; between two publications.
    pub(super) async fn leave_line_if_done(&self) -> Result<(), MemberError> {
        let Ok(_publisher) = self.publisher.try_lock() else {
            return Ok(());
        };
        match self.goes_on() {
            true => Ok(()),
            false => self.leave_line().await,
        }
    }

    /// Whether others asked for something of this member lately.
    pub(super) fn is_asked_lately(&self) -> bool {
        let asked_at = *self.asked_at.lock().expect("no panic under this lock");
        asked_at.is_some_and(|asked| self.env.now().since(asked) < ASKED_LATELY)
    }

    /// Gives a range that nothing rests on any more.
    pub(super) async fn hand_over(
        &self,
        own: &mut Own,
        arena: u64,
        range: LeaseRange,
    ) -> Result<(), MemberError> {
        own.unsettled = Some(Unsettled::Gift(arena));
        let at = ((arena << ARENA_BITS) + u64::from(range.first()), range.level());
        let given = self
            .anchor
            .change_lease(&mut own.membership, at, ArenaChange::Give)
            .await;
        // Whatever else was answered: the next call fences and looks.
        if let Some(arena) = self.lost_race(given)? {
            self.table().see(&arena);
            own.unsettled = None;
        }
        Ok(())
    }
}
