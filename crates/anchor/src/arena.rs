//! Leases of inodes: the pure rules of an arena's record.
//!
//! An **arena** is 2^21 consecutive inode numbers, and the list of leases that are exceptions to their *home*:
//!
//! ```text
//! inode number = home u32 | arena within the home 11 bits | offset 21 bits
//! lease        = range (an offset, and a level: 128^level numbers) , holder or nobody , queue of at most 16 members
//! ```
//!
//! The narrowest lease that covers a number decides who holds it; without one it is its home's member, who needs no record for what it
//! makes; number 0 is nobody's home, and the lowest numbers there are leases that are no inodes ([`SHAPE_LEASE`]).
//!
//! ```text
//!  change             needs                                                   the range afterwards
//!  take               all of it is nobody's or the member's                   the member's
//!  want               one other member holds all of it; 16 wait at most       one more in the queue
//!  withdraw           -                                                       without the member in its queue
//!  give               all of it is the member's, nobody waits for a part      the first's of the queue; without one home's, or nobody's
//!  taken from absent  the holder is away or broken                            the taker's; on the version of the holder's record
//!  taken from nobody  it is home's, and no member has that home               the taker's; on the absence of that member's record
//!  broken             the holder is present and was silent                    the breaker's; one transaction with the holder's record
//! ```
//!
//! A record is written on the version that was read, so who loses a race reads again. **A lease in the record is not yet one to use**: its
//! holder reads the root by a read that began after it saw the lease, and adopts it, before anything is answered from it. A lease that is its
//! home's needs no entry, hence *that an entry is gone says nothing of what happened meanwhile*: a member that was broken must compare what it
//! built on, and not only who holds it.
//!
//! **A home without a member is nobody's**: what an owner made before its volume was shared by inode has numbers of the writers that it drew, and those were
//! never members. Whether there is a member the arena does not know; so such a range is taken by a transaction on the *absence* of that member's record. A member that
//! joins in the same instant, and whose home this is, asks the arenas after it is present, and finds what was taken before.
//!
//! The calls of members follow these rules ([`MemberCall`](crate::MemberCall)), and `tests/lease-model` tries all histories of them.

mod bytes;

use crate::{MemberNumber, MemberRecord};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Inode numbers of an arena: 2 million of one home, so that members that work in their own files meet in no record.
pub const ARENA_BITS: u32 = 21;
/// Numbers of a level are 2^7 = 128 of the level below: a directory's files lie beside each other.
pub const LEVEL_BITS: u32 = 7;
/// The whole arena.
pub const LEVEL_MAX: u8 = 3;
/// Members that wait for one range.
pub const MAX_LEASE_QUEUE: usize = 16;
/// Leases of an arena: twice the number from which on members want ranges a level up, and 5 KiB as a rule.
pub const MAX_LEASES: usize = 512;
/// The lease of directories' places: who renames one into another parent holds it, since two such renames of disjoint inodes could make a
/// cycle.
pub const SHAPE_LEASE: u64 = 4;

/// The lease of a number that is no inode: the turn to commit, which who lost to faster members takes, and which all others wait for once they know of it. Nothing rests on it
/// but that everybody's commits come about.
pub const COMMIT_LEASE: u64 = 5;

/// The lease of a number that is no inode: whoever holds it decides locks of files for all offices, and says in the handover record what of them its clients have before it gives it.
pub const LOCK_LEASE: u64 = 6;

/// Aligned numbers of an arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseRange {
    first: u32,
    level: u8,
}

impl fmt::Debug for LeaseRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}+{}", self.first, self.numbers())
    }
}

impl LeaseRange {
    /// The range of a level that an inode lies in; `None` if there is no such level.
    pub fn around(inode: u64, level: u8) -> Option<Self> {
        if level > LEVEL_MAX {
            return None;
        }
        let offset = u32::try_from(inode & ((1 << ARENA_BITS) - 1)).ok()?;
        let within = (1_u32 << (LEVEL_BITS * u32::from(level))) - 1;
        Some(Self {
            first: offset & !within,
            level,
        })
    }

    /// The first offset.
    pub fn first(self) -> u32 {
        self.first
    }

    /// How wide it is: 128^level numbers.
    pub fn level(self) -> u8 {
        self.level
    }

    /// How many numbers.
    pub fn numbers(self) -> u32 {
        1 << (LEVEL_BITS * u32::from(self.level))
    }

    /// Whether all of `other` lies in it.
    pub fn covers(self, other: Self) -> bool {
        self.level >= other.level && other.first & !(self.numbers() - 1) == self.first
    }
}

/// An exception to home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Of what.
    pub range: LeaseRange,
    /// Whose; `None`: nobody's.
    pub holder: Option<MemberNumber>,
    /// Who waits for it, the first first.
    pub queue: Vec<MemberNumber>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arena {
    number: u64,
    leases: Vec<Lease>,
}

/// A change that needs no other record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArenaChange {
    /// Takes what is nobody's.
    Take,
    /// Waits for it.
    Want,
    /// Waits no more.
    Withdraw,
    /// Gives it to who waits, after everything of it was published.
    Give,
}

/// Why a lease cannot be changed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// It need not be waited for.
    #[error("the range is nobody's and can be taken")]
    IsNobodys,
    /// It need not be waited for.
    #[error("the member holds the range")]
    IsHeld,
    /// It can be waited for, or its holder broken.
    #[error("another member holds the range, or a part of it")]
    HeldByOther,
    /// Only narrower ranges can be waited for.
    #[error("parts of the range have another holder")]
    PartsHeldByOthers,
    /// Come again later.
    #[error("sixteen members wait for the range")]
    QueueFull,
    /// Somebody else has it by now.
    #[error("the member does not hold the range")]
    NotHeld,
    /// The narrower ranges are to be given first.
    #[error("members wait for parts of the range: those are given first")]
    PartsWanted,
    /// There is nobody to give it to.
    #[error("nobody waits for the range, and it is the member's home")]
    NobodyWaits,
    /// One lease of a wider range takes the place of many.
    #[error("the arena has 512 leases: a range of the level above is to be taken")]
    ArenaFull,
    /// Its lease has to be waited for.
    #[error("the holder is there")]
    HolderPresent,
    /// Its leases are taken without a break.
    #[error("the holder is absent; its leases are taken without a break")]
    HolderAbsent,
}

impl Arena {
    /// The arena that an inode lies in, without any lease.
    pub fn around(inode: u64) -> Self {
        Self {
            number: inode >> ARENA_BITS,
            leases: Vec::new(),
        }
    }

    /// Which one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The exceptions, by their ranges.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Whose numbers these are.
    pub fn home(&self) -> Option<MemberNumber> {
        let home = u32::try_from(self.number >> (32 - ARENA_BITS)).unwrap_or(0);
        (home != 0).then_some(MemberNumber(home))
    }

    /// Who holds all of a range.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: several do.
    pub fn holder(&self, range: LeaseRange) -> Result<Option<MemberNumber>, LeaseRefusal> {
        let holder = match self.exact(range) {
            Some(lease) => lease.holder,
            None => self.inherited(range),
        };
        match self.inner(range).all(|lease| lease.holder == holder) {
            true => Ok(holder),
            false => Err(LeaseRefusal::PartsHeldByOthers),
        }
    }

    /// Who waits for a range.
    pub fn queue(&self, range: LeaseRange) -> &[MemberNumber] {
        self.exact(range).map_or(&[], |lease| &lease.queue)
    }

    /// The record after a member's change of a range.
    ///
    /// # Errors
    /// [`LeaseRefusal`] if it cannot be made of this one.
    pub fn changed(
        &self,
        change: ArenaChange,
        range: LeaseRange,
        member: MemberNumber,
    ) -> Result<Self, LeaseRefusal> {
        let mut queue = self.queue(range).to_vec();
        match change {
            ArenaChange::Take => {
                self.is_all_of(range, |holder| holder.is_none_or(|holder| holder == member))?;
                self.passed_on(range, Some(member))
            }
            ArenaChange::Want => {
                let Some(holder) = self.holder(range)? else {
                    return Err(LeaseRefusal::IsNobodys);
                };
                if holder == member {
                    return Err(LeaseRefusal::IsHeld);
                }
                if queue.contains(&member) {
                    return Ok(self.clone());
                }
                if queue.len() >= MAX_LEASE_QUEUE {
                    return Err(LeaseRefusal::QueueFull);
                }
                queue.push(member);
                self.with(range, Some(holder), queue)
            }
            ArenaChange::Withdraw => {
                let Some(lease) = self.exact(range) else {
                    return Ok(self.clone());
                };
                queue.retain(|waiting| *waiting != member);
                self.with(range, lease.holder, queue)
            }
            ArenaChange::Give => {
                if self.holder(range)? != Some(member) {
                    return Err(LeaseRefusal::NotHeld);
                }
                if self.inner(range).any(|lease| !lease.queue.is_empty()) {
                    return Err(LeaseRefusal::PartsWanted);
                }
                let next = queue.first().copied().or(self.home());
                if next == Some(member) {
                    return Err(LeaseRefusal::NobodyWaits);
                }
                self.passed_on(range, next)
            }
        }
    }

    /// The record after a range was taken from a holder that is away or broken. To be written on the version of the holder's record that is
    /// `record`.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: the holder is there, or others hold parts of the range.
    pub fn taken_from_absent(
        &self,
        range: LeaseRange,
        taker: MemberNumber,
        (absent, record): (MemberNumber, &MemberRecord),
    ) -> Result<Self, LeaseRefusal> {
        if !record.is_absent() {
            return Err(LeaseRefusal::HolderPresent);
        }
        let is_free =
            |holder: Option<MemberNumber>| holder.is_none_or(|holder| holder == taker || holder == absent);
        self.is_all_of(range, is_free)?;
        self.passed_on(range, Some(taker))
    }

    /// The record after a range was taken that is home's, where that home has no member. To be written on the absence of the record of [`Self::home`].
    ///
    /// # Errors
    /// [`LeaseRefusal`]: members hold parts of the range.
    pub fn taken_from_nobody(&self, range: LeaseRange, taker: MemberNumber) -> Result<Self, LeaseRefusal> {
        let home = self.home();
        let is_free = |holder: Option<MemberNumber>| {
            holder.is_none_or(|holder| holder == taker || Some(holder) == home)
        };
        self.is_all_of(range, is_free)?;
        self.passed_on(range, Some(taker))
    }

    /// The record, and that of the holder, after the lease of a holder that is present was broken: both in one transaction, on the version of
    /// the holder's record that is `record`, with the head root retained for the holder's journal.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: the holder does not hold all of it, or is absent.
    pub fn broken(
        &self,
        range: LeaseRange,
        breaker: MemberNumber,
        (silent, record): (MemberNumber, &MemberRecord),
    ) -> Result<(Self, MemberRecord), LeaseRefusal> {
        self.is_all_of(range, |holder| {
            holder.is_none_or(|holder| holder == breaker || holder == silent)
        })?;
        Ok((
            self.passed_on(range, Some(breaker))?,
            record.broken().map_err(|_| LeaseRefusal::HolderAbsent)?,
        ))
    }

    fn exact(&self, range: LeaseRange) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.range == range)
    }

    /// Leases of parts of the range.
    fn inner(&self, range: LeaseRange) -> impl Iterator<Item = &Lease> {
        self.leases
            .iter()
            .filter(move |lease| lease.range != range && range.covers(lease.range))
    }

    /// Whose the range would be without leases of it and of its parts.
    fn inherited(&self, range: LeaseRange) -> Option<MemberNumber> {
        self.leases
            .iter()
            .filter(|lease| lease.range != range && lease.range.covers(range))
            .min_by_key(|lease| lease.range.level)
            .map_or(self.home(), |lease| lease.holder)
    }

    fn is_all_of(
        &self,
        range: LeaseRange,
        is_fit: impl Fn(Option<MemberNumber>) -> bool,
    ) -> Result<(), LeaseRefusal> {
        let outside = match self.exact(range) {
            Some(lease) => lease.holder,
            None => self.inherited(range),
        };
        match is_fit(outside) && self.inner(range).all(|lease| is_fit(lease.holder)) {
            true => Ok(()),
            false => Err(LeaseRefusal::HeldByOther),
        }
    }

    /// The range is another's, whole; who waits for it goes on waiting.
    fn passed_on(&self, range: LeaseRange, holder: Option<MemberNumber>) -> Result<Self, LeaseRefusal> {
        let mut queue = self.queue(range).to_vec();
        queue.retain(|waiting| Some(*waiting) != holder);
        let mut passed = self.clone();
        passed
            .leases
            .retain(|lease| lease.range == range || !range.covers(lease.range));
        passed.with(range, holder, queue)
    }

    fn with(
        &self,
        range: LeaseRange,
        holder: Option<MemberNumber>,
        queue: Vec<MemberNumber>,
    ) -> Result<Self, LeaseRefusal> {
        let mut changed = self.clone();
        changed.leases.retain(|lease| lease.range != range);
        let is_needless = queue.is_empty() && holder == changed.inherited(range);
        if !is_needless {
            if changed.leases.len() >= MAX_LEASES {
                return Err(LeaseRefusal::ArenaFull);
            }
            let place = changed.leases.partition_point(|lease| lease.range < range);
            changed.leases.insert(place, Lease { range, holder, queue });
        }
        Ok(changed)
    }
}
