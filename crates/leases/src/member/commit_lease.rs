//! The turn to commit: without it a member over a slow uplink would lose to others for as long as they commit more often than it uploads.
//!
//! ```text
//! lost twice ─▶ take the turn, wake everybody ─▶ build, commit ─▶ give it: to who waits, or nobody
//!                        others that know of it ─▶ wait for it, in order of their coming, before they build
//! ```
//!
//! It is a lease of a number that is no inode, so that who has it and is gone is taken from, or broken, as any other. **Nothing is safe by it**: who does not know of it, or has
//! waited for five minutes, commits without.

use super::{Member, Own, changes::Unsettled, single};
use crate::MemberError;
use firn_anchor::{ARENA_BITS, ArenaChange, COMMIT_LEASE, LeaseRange};
use std::time::Duration;

/// Tries that are lost before the turn is taken.
const TRIES_WITHOUT: usize = 2;
/// The longest that others are waited for. What an office uploads in that time is committed whatever others do; more of it only when they pause.
const COMMIT_LEASE_MAX: Duration = Duration::from_secs(300);
/// Between two looks of who waits.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Member {
    /// Publishes, and gives the turn if it came to that; by who has the right to publish.
    pub(super) async fn publish_and_give(&self) -> Result<(), MemberError> {
        let published = self.publish_alone().await;
        match self.give_commit_lease().await {
            // It is given by the next look of [`Member::tend`].
            Err(MemberError::Anchor(error)) if error.is_transient() => published,
            ended => published.and(ended),
        }
    }

    /// Before a try to commit, after so many that were lost: waits for the turn, if somebody has it or this member needs it.
    pub(super) async fn wait_for_commit_lease(&self, lost: usize) -> Result<(), MemberError> {
        if firn_env::planted!("leases.no_commit_lease") {
            return Ok(());
        }
        let is_needed = lost >= TRIES_WITHOUT && self.holds(COMMIT_LEASE) != Some(true);
        if !is_needed && !self.table().is_anothers(COMMIT_LEASE) {
            return Ok(());
        }
        let began = self.env.now();
        loop {
            let is_own = {
                let mut own = self.own.lock().await;
                let own = &mut *own;
                self.settle(own).await?;
                self.take(own, COMMIT_LEASE).await?
            };
            if is_own {
                break;
            }
            if self.env.now().since(began) >= COMMIT_LEASE_MAX {
                tracing::warn!("another office has uploaded for five minutes, and is waited for no more");
                return Ok(());
            }
            self.env.sleep(LOOK_AGAIN).await;
            self.beat_if_due().await?;
        }
        match is_needed {
            true => self.tell_others().await,
            false => Ok(()),
        }
    }

    /// Has everybody who is there look at the arenas.
    async fn tell_others(&self) -> Result<(), MemberError> {
        for entry in self.anchor.members(self.volume).await? {
            if entry.member == self.number || entry.tuple.record.is_absent() {
                continue;
            }
            let mut own = self.own.lock().await;
            let own = &mut *own;
            self.settle(own).await?;
            let bumped = self.anchor.bump_mail(&mut own.membership, entry.member).await;
            bumped.map_err(|error| self.told(error))?;
        }
        Ok(())
    }

    /// Gives the turn, if this member has it.
    pub(super) async fn give_commit_lease(&self) -> Result<(), MemberError> {
        if self.holds(COMMIT_LEASE) != Some(true) {
            return Ok(());
        }
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        if own.is_away() || self.holds(COMMIT_LEASE) != Some(true) {
            return Ok(());
        }
        self.hand_over(own, COMMIT_LEASE >> ARENA_BITS, single(COMMIT_LEASE))
            .await
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
