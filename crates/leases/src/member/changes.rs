//! Changes of leases by a member: what is taken, waited for and given, each when the arena says so, and the fence behind a change in doubt.

use super::{Member, Own, single};
use crate::MemberError;
use firn_anchor::{
    ARENA_BITS, AnchorError, Arena, ArenaChange, COMMIT_LEASE, LEVEL_MAX, LeaseRange, MAX_LEASES,
    MemberEntry, MemberNumber,
};
use firn_env::Monotonic;
use std::time::Duration;

/// Between two bumps of a holder that does not give.
const BUMP_AGAIN: Duration = Duration::from_secs(10);

/// From so many leases of an arena on ranges are taken and wanted a level up, twice as near to the bound another level, and so on: an arena has room for
/// [`MAX_LEASES`], and the files that an owner made before its volume was shared by inode may be a million of one arena.
const CROWDED: usize = MAX_LEASES / 2;

/// A change whose answer did not come, or is awaited: it must not happen later, when the member uses again what it gave.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsettled {
    /// A gift of something in this arena.
    Gift(u64),
    /// The member's departure.
    Departure,
}

/// A holder that is waited for, as it was seen first: its signs of life, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    beats: u64,
    since: Monotonic,
}

impl Member {
    /// Fences what is in doubt: a beat, after which it happens no more, then a look.
    pub(super) async fn settle(&self, own: &mut Own) -> Result<(), MemberError> {
        self.settle_commit(own).await?;
        let Some(unsettled) = own.unsettled else {
            return Ok(());
        };
        if !firn_env::planted!("leases.gift_in_doubt_without_beat") {
            self.beat(own).await?;
        }
        if let Unsettled::Gift(arena) = unsettled {
            let seen = self.anchor.arena(self.volume, arena << ARENA_BITS).await?;
            self.table().see(&seen.arena);
        }
        own.unsettled = None;
        Ok(())
    }

    /// One try to hold an inode, to make it usable and to pin it; `false`: another holds it, and knows that it is wanted.
    pub(super) async fn obtain(&self, inode: u64) -> Result<bool, MemberError> {
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        if own.is_away() {
            return Err(MemberError::Away);
        }
        if self.take(own, inode).await? {
            self.refresh(own).await?;
        }
        // Before anybody else has the lock under which things are given: what was waited for is used at least once.
        let is_pinned = self.table().pin(inode);
        Ok(is_pinned)
    }

    /// `true`: the arena says that the member holds the inode.
    pub(super) async fn take(&self, own: &mut Own, inode: u64) -> Result<bool, MemberError> {
        let seen = self.anchor.arena(self.volume, inode).await?;
        self.table().see(&seen.arena);
        let (me, at) = (self.number, (inode, 0));
        let taken = match seen.arena.holder(single(inode)) {
            Ok(Some(holder)) if holder == me => return Ok(true),
            Ok(None) => {
                let fits = |range| seen.arena.changed(ArenaChange::Take, range, me).is_ok();
                let at = (inode, level(&seen.arena, inode, fits));
                self.anchor
                    .change_lease(&mut own.membership, at, ArenaChange::Take)
                    .await
            }
            Ok(Some(holder)) => {
                let (tuple, version) = match self.anchor.member(self.volume, holder).await {
                    Err(AnchorError::NoSuchMember { .. }) if seen.arena.home() == Some(holder) => {
                        return self.take_from_nobody(own, inode, &seen.arena).await;
                    }
                    found => found?,
                };
                let entry = MemberEntry {
                    member: holder,
                    tuple,
                    version,
                };
                if entry.tuple.record.is_absent() {
                    // Noted before: who drops the call may have taken it.
                    if entry.tuple.record.incarnation.is_none() {
                        self.table().taken_from_broken(inode);
                    }
                    self.anchor
                        .take_from_absent(&mut own.membership, at, holder)
                        .await
                } else if self.is_silent(own, &entry) {
                    self.table().taken_from_broken(inode);
                    let broken = self.anchor.break_member(&mut own.membership, at, &entry).await;
                    let is_full = matches!(broken, Err(AnchorError::NoPlaceToRetain { .. }));
                    if is_full && self.give_up_oldest(own).await? {
                        return Ok(false);
                    }
                    broken
                } else {
                    self.table().owes(inode);
                    self.wait_for(own, inode, holder, &seen.arena).await?;
                    return Ok(false);
                }
            }
            Err(_) => return Ok(false),
        };
        let taken = self.lost_race(taken)?;
        if let Some(arena) = &taken {
            self.table().see(arena);
        }
        Ok(taken.is_some())
    }

    /// Makes a place for one more root that is retained: the oldest is given up, if it was kept for [`RETAINED_FOR`](super::RETAINED_FOR) and its member has not come
    /// back. `false`: there is none.
    pub(super) async fn give_up_oldest(&self, own: &mut Own) -> Result<bool, MemberError> {
        let (tuple, _) = self.anchor.load(self.volume).await?;
        let now_ms = self.env.wall().as_millis();
        let kept_ms = i64::try_from(super::RETAINED_FOR.as_millis()).unwrap_or(i64::MAX);
        for retained in &tuple.retained {
            let is_old = now_ms.saturating_sub(retained.retained_at_ms) >= kept_ms;
            let is_kept = !is_old && !firn_env::planted!("leases.gives_up_early");
            if is_kept || firn_env::planted!("leases.never_gives_up") {
                continue;
            }
            if let Some(member) = retained.member
                && member != self.number
                && self.give_up_retained(own, member).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives up what is retained for a member that was broken and has not come back.
    pub(super) async fn give_up_retained(
        &self,
        own: &mut Own,
        member: MemberNumber,
    ) -> Result<bool, MemberError> {
        let (tuple, version) = self.anchor.member(self.volume, member).await?;
        let broken = MemberEntry {
            member,
            tuple,
            version,
        };
        let given_up = self.anchor.give_up(&mut own.membership, &broken).await;
        let is_given_up = given_up.map_err(|error| self.told(error))?;
        if is_given_up {
            let office = &broken.tuple.name;
            tracing::error!(
                office,
                %member,
                "the root that was kept for an office that was broken and has not come back is given up: what that office has not published stays in its own journal"
            );
        }
        Ok(is_given_up)
    }

    /// The same of what is the home of no member.
    async fn take_from_nobody(&self, own: &mut Own, inode: u64, arena: &Arena) -> Result<bool, MemberError> {
        let fits = |range| arena.taken_from_nobody(range, self.number).is_ok();
        let at = (inode, level(arena, inode, fits));
        let taken = self.anchor.take_from_nobody(&mut own.membership, at).await;
        let taken = self.lost_race(taken)?;
        if let Some(arena) = &taken {
            self.table().see(arena);
        }
        Ok(taken.is_some())
    }

    /// Joins the queue, and wakes the holder: again as long as it is waited for, since a bump may have been lost.
    async fn wait_for(
        &self,
        own: &mut Own,
        inode: u64,
        holder: MemberNumber,
        arena: &Arena,
    ) -> Result<(), MemberError> {
        // What is waited for comes if the holder has all of it: of a wider range others may have got parts meanwhile.
        let mut waited_for = arena
            .leases()
            .iter()
            .filter(|lease| lease.queue.contains(&self.number));
        let waits = waited_for
            .any(|lease| lease.range.covers(single(inode)) && arena.holder(lease.range) == Ok(Some(holder)));
        if !waits {
            let fits = |range| arena.changed(ArenaChange::Want, range, self.number).is_ok();
            let at = (inode, level(arena, inode, fits));
            let wanted = self
                .anchor
                .change_lease(&mut own.membership, at, ArenaChange::Want)
                .await;
            self.lost_race(wanted)?;
            own.bumped.remove(&holder);
        }
        let now = self.env.now();
        let is_fresh = |bumped: &Monotonic| now.since(*bumped) < BUMP_AGAIN;
        if own.bumped.get(&holder).is_some_and(is_fresh) {
            return Ok(());
        }
        let bumped = self.anchor.bump_mail(&mut own.membership, holder).await;
        bumped.map_err(|error| self.told(error))?;
        own.bumped.insert(holder, now);
        Ok(())
    }

    /// Whether a holder's record has stood still for long, by this member's clock, over all looks since it was first waited for.
    pub(super) fn is_silent(&self, own: &mut Own, holder: &MemberEntry) -> bool {
        let now = self.env.now();
        let beats = holder.tuple.record.beats;
        match own.watched.get(&holder.member) {
            Some(watched) if watched.beats == beats => now.since(watched.since) >= super::BREAK_AFTER,
            _ => {
                own.watched.insert(holder.member, Watched { beats, since: now });
                false
            }
        }
    }

    /// For how long a holder's record has stood still, as far as it was looked at.
    pub(super) fn silence_of(&self, own: &Own, holder: MemberNumber) -> Duration {
        let watched = own.watched.get(&holder);
        watched.map_or(Duration::ZERO, |watched| self.env.now().since(watched.since))
    }

    /// Gives what others wait for, if somebody said that they do; `publishes`: also what has to be published before.
    pub(super) async fn answer_mail(&self, publishes: bool) -> Result<(), MemberError> {
        let (mail, wanted) = {
            let own = self.own.lock().await;
            let mail = self.anchor.mail(self.volume, self.number).await?;
            if mail == own.mail {
                return Ok(());
            }
            let commits = (COMMIT_LEASE >> ARENA_BITS, single(COMMIT_LEASE));
            let mut wanted = Vec::new();
            for seen in self.anchor.arenas(self.volume).await? {
                let mut table = self.table();
                table.see(&seen.arena);
                let mut ranges = table.wanted(&seen.arena);
                // Whoever has that gives it without being asked.
                ranges.retain(|range| (seen.arena.number(), *range) != commits);
                // Before anything is published: what is published then is all of it.
                table.close(seen.arena.number(), &ranges);
                wanted.extend(ranges.into_iter().map(|range| (seen.arena.number(), range)));
            }
            (mail, wanted)
        };
        if !wanted.is_empty() {
            *self.asked_at.lock().expect("no panic under this lock") = Some(self.env.now());
            self.news.notify_waiters();
        }
        let mut is_all_given = true;
        for (arena, range) in wanted {
            is_all_given &= self.give(arena, range, publishes).await?;
        }
        if is_all_given {
            self.own.lock().await.mail = mail;
        }
        Ok(())
    }

    /// Gives a range, once everything of it is published and nothing pins it. `false`: it is still needed, or would have to be published and is not to be.
    pub(super) async fn give(
        &self,
        arena: u64,
        range: LeaseRange,
        publishes: bool,
    ) -> Result<bool, MemberError> {
        let is_careless = firn_env::planted!("leases.given_unpublished");
        {
            let table = self.table();
            if table.is_pinned(arena, range) || table.is_owed(arena, range) {
                return Ok(false);
            }
        }
        // What is published is given though all else of this member is not.
        let is_published =
            self.content.is_published(arena, range) && !firn_env::planted!("leases.gives_behind_all");
        if !is_careless && !is_published {
            if !publishes {
                return Ok(false);
            }
            self.line().is_asked = true;
            let published = self.publish().await;
            self.line().is_asked = false;
            published?;
        }
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        if own.is_away() {
            return Ok(false);
        }
        {
            // In one step: from here on no change pins it, and none was made since it was published.
            let mut table = self.table();
            if table.holds((arena << ARENA_BITS) + u64::from(range.first())) != Some(true) {
                // Given meanwhile by another look at the mail.
                return Ok(true);
            }
            let is_free = !table.is_pinned(arena, range) && self.content.is_published(arena, range);
            if !is_free && !is_careless {
                return Ok(false);
            }
            table.give_up(arena, range);
        }
        self.hand_over(own, arena, range).await?;
        Ok(true)
    }
}

/// How wide a range around an inode is taken, of those that `fits` says can be.
fn level(arena: &Arena, inode: u64, fits: impl Fn(LeaseRange) -> bool) -> u8 {
    let left = MAX_LEASES.saturating_sub(arena.leases().len());
    if firn_env::planted!("leases.arenas_always_crowded") {
        let range = LeaseRange::around(inode, 1).filter(|range| fits(*range));
        return range.map_or(0, LeaseRange::level);
    }
    let widest = (0..LEVEL_MAX)
        .take_while(|level| left <= CROWDED >> level)
        .count() as u8;
    let can_be = |level: &u8| LeaseRange::around(inode, *level).is_some_and(&fits);
    (1..=widest).rev().find(can_be).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: MemberNumber = MemberNumber(9);
    const HOME: u64 = 3 << 32;

    fn taken(arena: &Arena, inode: u64) -> Arena {
        let level = level(arena, inode, |range| arena.taken_from_nobody(range, ME).is_ok());
        let range = LeaseRange::around(inode, level).expect("a level");
        arena.taken_from_nobody(range, ME).expect("it fits")
    }

    /// A million files that an owner made, one after the other and in whatever order.
    #[test]
    fn an_arena_has_room_for_all_its_numbers() {
        for step in [1_u64, 61, 1_048_583] {
            let mut arena = Arena::around(HOME);
            let mut most = 0;
            for number in 0..40_000 {
                let inode = HOME + number * step % (1 << ARENA_BITS);
                if arena.holder(single(inode)) != Ok(Some(ME)) {
                    arena = taken(&arena, inode);
                    most = most.max(arena.leases().len());
                }
            }
            assert!(
                most > CROWDED && most < MAX_LEASES,
                "{most} leases by steps of {step}"
            );
        }
    }

    #[test]
    fn a_range_of_which_another_holds_a_part_is_taken_in_narrower_ones() {
        let mut arena = Arena::around(HOME);
        for number in 0..CROWDED as u64 {
            arena = arena
                .taken_from_nobody(single(HOME + number * 128), MemberNumber(8))
                .expect("free");
        }
        assert_eq!(taken(&arena, HOME + 5).leases().len(), CROWDED + 1, "one number");
        let beyond = taken(&arena, HOME + (1 << 20));
        let wide = LeaseRange::around(HOME + (1 << 20), 1).expect("a level");
        assert_eq!(beyond.holder(wide), Ok(Some(ME)), "where nobody holds anything");
    }
}
