//! The lease of locks: who holds it decides locks of files for all members, and keeps it for as long as it does ([`LastingPin`]).
//!
//! ```text
//! acquired ─▶ pinned for as long as it decides ─▶ others wait (told by the mail) ─▶ what its clients have is recorded ─▶ unpinned ─▶ given as any lease
//! ```
//!
//! What members have of locks lies in the handover record; a member whose locks are in somebody's way falls as a holder does that is waited for: by its own record, once that has
//! stood still for [`BREAK_AFTER`](super::BREAK_AFTER). So there is one heart, and who lost its locks cannot change anything before it has started anew.

use super::{Member, Pins};
use crate::MemberError;
use firn_anchor::{AnchorError, HandoverRecord, MemberEntry, MemberLocksChange, MemberNumber, OwnerId};
use std::sync::Arc;
use tokio::sync::futures::Notified;

/// Inode numbers of a home are 2^32.
const HOME_BITS: u32 = 32;
/// At the end of a home, where no file is, lie so many numbers of which one is taken with a break.
const BREAK_NUMBERS: u64 = 1 << 20;

/// Inodes that stay held and usable over many changes, until this is dropped.
pub struct LastingPin {
    member: Arc<Member>,
    inodes: Vec<u64>,
}

impl Drop for LastingPin {
    fn drop(&mut self) {
        let mut table = self.member.table();
        self.inodes.iter().for_each(|inode| table.unpin(*inode));
    }
}

impl Pins<'_> {
    /// The same for as long as wanted; `member` is whose they are.
    ///
    /// # Panics
    /// If they are another's.
    pub fn lasting(mut self, member: &Arc<Member>) -> LastingPin {
        assert!(std::ptr::eq(self.member, &**member), "pins are of one member");
        LastingPin {
            member: member.clone(),
            inodes: std::mem::take(&mut self.inodes),
        }
    }
}

impl Member {
    /// Keeps an inode that is held and usable, without asking anybody; `None` if it is not, or others wait for it.
    pub fn keep(self: &Arc<Self>, inode: u64) -> Option<LastingPin> {
        self.table().pin(inode).then(|| LastingPin {
            member: self.clone(),
            inodes: vec![inode],
        })
    }

    /// Whether others wait for an inode that is held here, by what was seen last.
    pub fn is_wanted(&self, inode: u64) -> bool {
        self.table().is_closed(inode)
    }

    /// The next time that others are seen to wait for something.
    pub fn wanted(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// What members have of locks. One read.
    ///
    /// # Errors
    /// What the anchor says.
    pub async fn locks(&self) -> Result<HandoverRecord, MemberError> {
        let (record, _) = self.anchor.handover(self.volume).await?;
        Ok(record)
    }

    /// Changes that record.
    ///
    /// # Errors
    /// As [`Self::publish`]; what the rule forbids is [contended](AnchorError::Contended).
    pub async fn change_locks(&self, change: &MemberLocksChange) -> Result<HandoverRecord, MemberError> {
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        let changed = self.anchor.change_member_locks(&mut own.membership, change).await;
        changed.map_err(|error| self.told(error))
    }

    /// The edge by which the record names this member.
    pub async fn edge(&self) -> OwnerId {
        self.own.lock().await.membership.tuple().edge
    }

    /// Whether the locks of another member fall: it was broken, or its record has stood still for long, away or not; `breaks`: one that is present and silent is broken before. Asked again and
    /// again of who is in somebody's way, since how long its record has stood still is known from the first time on.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn has_fallen(&self, edge: OwnerId, breaks: bool) -> Result<bool, MemberError> {
        let members = self.anchor.members(self.volume).await?;
        let Some(entry) = members.into_iter().find(|entry| entry.tuple.edge == edge) else {
            return Ok(true);
        };
        let record = &entry.tuple.record;
        if record.incarnation.is_none() || entry.member == self.number {
            return Ok(entry.member != self.number);
        }
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        match self.is_silent(own, &entry) {
            false => Ok(false),
            true if record.is_away || !breaks => Ok(true),
            true => self.break_at_its_home(own, &entry).await,
        }
    }

    /// Breaks a silent member by a number of its home that is nobody's file.
    async fn break_at_its_home(
        &self,
        own: &mut super::Own,
        silent: &MemberEntry,
    ) -> Result<bool, MemberError> {
        let MemberNumber(home) = silent.member;
        let end = (u64::from(home) + 1) << HOME_BITS;
        let inode = end - 1 - self.env.random_below(BREAK_NUMBERS);
        let broken = self
            .anchor
            .break_member(&mut own.membership, (inode, 0), silent)
            .await;
        if matches!(broken, Err(AnchorError::NoPlaceToRetain { .. })) && self.give_up_oldest(own).await? {
            return Ok(false);
        }
        Ok(match self.lost_race(broken)? {
            None => false,
            Some(arena) => {
                self.table().see(&arena);
                tracing::warn!(
                    office = silent.tuple.name,
                    "an office gives no sign of life: its locks fall, for which clients wait here"
                );
                true
            }
        })
    }
}
