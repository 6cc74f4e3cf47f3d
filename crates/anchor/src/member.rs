//! The members of a volume that many write: the pure rules of a member's record.
//!
//! ```text
//!  change     needs                                     the record afterwards
//!  start      a writer incarnation above all before     that incarnation, present, no commit
//!  beat       the incarnation                           beats + 1
//!  commit     the incarnation, present                  beats + 1, the commit's id
//!  leave      the incarnation                           away: all leases of the member are void
//!  return     the incarnation, away                     present
//!  break      present, an incarnation                   no incarnation, and which it was (with the lease: [`Arena::broken`](crate::Arena::broken))
//!  give up    no incarnation                            since when the root that was retained for its journal is kept no more; a commit ends that
//! ```
//!
//! **No incarnation comes back.** A start needs a number above that of the incarnation, or of the one that was broken; so a writer that is over
//! stays over, and what it has not committed it never will ([`MemberRecord::writer`]). A cleaner rests on that.
//!
//! **A record belongs to its member and to who breaks it.** A commit is one transaction with the volume's root, on the version of this record
//! that was seen last. Two things follow: a broken member cannot commit any more, and a beat *fences* what its own member has under way: a
//! request that was given up, and that the network delivers after the next acknowledged beat, does nothing.
//!
//! **Absent** is a member that is away or has no incarnation. Its leases may be taken without asking, by a transaction on the version of this
//! record at which it was absent; without that condition a member that returns in the same instant would have its lease, and the taker too.
//!
//! The calls of members follow these rules ([`MemberCall`](crate::MemberCall)), and `tests/lease-model` tries all histories of them. In the table
//! a record stands beside who the member is ([`MemberTuple`]).

mod bytes;

use crate::{OwnerId, Unfit};
use firn_format::{Version, WriterId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A member of a shared volume, over all its restarts: the writer number that it drew when it joined. Inode numbers from that number times
/// 2^32 on are its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct MemberNumber(pub u32);

impl fmt::Display for MemberNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "member {}", self.0)
    }
}

/// A commit that a member made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberCommit {
    /// Random, drawn for it: tells it from every other after a lost reply, also when others have committed since.
    pub commit_id: [u8; 16],
    /// Of the root.
    pub version: Version,
    /// Of the last segment that it names of this writer.
    pub sequence: u64,
}

/// All the anchor knows of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct MemberRecord {
    /// The writer that may commit; `None` before the first start and after a break.
    pub incarnation: Option<WriterId>,
    /// Whether it has published everything and left its leases to whoever wants them.
    pub is_away: bool,
    /// Signs of life: who waits sees by its own clock that the count does not change.
    pub beats: u64,
    /// The last commit of the newest incarnation: of this one, or of the one that was broken.
    pub last_commit: Option<MemberCommit>,
    /// The incarnation that was broken, as long as no other one has started.
    pub broken: Option<WriterId>,
    /// When the root that a break retained for its journal was given up, milliseconds since 1970: what the journal has that is in no root can
    /// be judged no more. A start leaves it, for who starts has to know; a commit ends it: then the member has gone on without that.
    pub given_up_at_ms: Option<i64>,
}

/// How a member stands, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It joined, and has not started yet.
    NotStarted,
    /// It holds what it holds, and gives it when others want it.
    Present,
    /// It published everything and stopped, or nobody asks anything there: others take what they want.
    Away,
    /// It was not heard for a minute while others waited for it: its next start judges its journal.
    Broken,
    /// The same, and so long ago that what its journal would be judged by is not kept any more.
    GivenUp,
}

impl fmt::Display for MemberState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::NotStarted => "not started",
            Self::Present => "present",
            Self::Away => "away",
            Self::Broken => "broken",
            Self::GivenUp => "given up",
        })
    }
}

/// What a member's record says of one of its writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberWriter {
    /// It commits nothing any more.
    Over,
    /// It may commit, and everything that it committed so far lies in segments up to this sequence; `None`: it has committed nothing.
    Commits {
        /// The sequence.
        up_to: Option<u64>,
    },
    /// It was drawn, and has not started; it may.
    NotStarted,
}

/// Who a service knows a caller to be, by its certificate or its signature: what a member's record is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalId(pub [u8; 16]);

/// A member as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberTuple {
    /// Whose: the edge as it was made.
    pub edge: OwnerId,
    /// What people call it.
    pub name: String,
    /// Who alone may speak for it at a service; `None`: it joined on the table itself, and whoever has that may.
    pub principal: Option<PrincipalId>,
    /// Whether it is there, and what it committed last.
    pub record: MemberRecord,
    /// Random, drawn for this state of the tuple: recognised after a lost reply.
    pub change_id: [u8; 16],
}

/// A change that a member makes of its own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new incarnation, at a start and after a break.
    Start {
        /// Which.
        incarnation: WriterId,
    },
    /// A sign of life.
    Beat {
        /// Whose.
        incarnation: WriterId,
    },
    /// In one transaction with the volume's root.
    Commit {
        /// Whose.
        incarnation: WriterId,
        /// Which.
        commit: MemberCommit,
    },
    /// Everything is published, and no lease needed.
    Leave {
        /// Whose.
        incarnation: WriterId,
    },
    /// Leases are needed again: then the arenas are asked, and then the root is read, in this order.
    Return {
        /// Whose.
        incarnation: WriterId,
    },
}

impl MemberRecord {
    /// How the member stands.
    pub fn state(&self) -> MemberState {
        match (self.incarnation, self.broken) {
            (Some(_), _) if self.is_away => MemberState::Away,
            (Some(_), _) => MemberState::Present,
            (None, _) if self.given_up_at_ms.is_some() => MemberState::GivenUp,
            (None, Some(_)) => MemberState::Broken,
            (None, None) => MemberState::NotStarted,
        }
    }

    /// Whether its leases may be taken without asking.
    pub fn is_absent(&self) -> bool {
        self.is_away || self.incarnation.is_none()
    }

    /// Whether this commit happened: asked by its own member after a beat, which keeps a delayed request from happening later.
    pub fn records_commit(&self, commit_id: &[u8; 16]) -> bool {
        self.last_commit
            .is_some_and(|commit| commit.commit_id == *commit_id)
    }

    /// The incarnation that started last: the one that is there, or the one that was broken.
    pub fn newest(&self) -> Option<WriterId> {
        self.incarnation.or(self.broken)
    }

    /// What it says of a writer that was drawn for this member.
    pub fn writer(&self, writer: WriterId) -> MemberWriter {
        let newest = self.newest();
        if self.incarnation == Some(writer) {
            let up_to = self.last_commit.map(|commit| commit.sequence);
            return MemberWriter::Commits { up_to };
        }
        match newest.is_some_and(|newest| writer <= newest) {
            true => MemberWriter::Over,
            false => MemberWriter::NotStarted,
        }
    }

    /// The record after its member was broken.
    ///
    /// # Errors
    /// [`Unfit`]: it is absent, so that there is nothing to break.
    pub(crate) fn broken(&self) -> Result<Self, Unfit> {
        if self.is_absent() {
            return Err(Unfit(
                "the holder is absent; its leases are taken without a break",
            ));
        }
        Ok(Self {
            incarnation: None,
            broken: self.incarnation,
            ..self.clone()
        })
    }

    /// The record after the root that was retained for its journal was given up.
    ///
    /// # Errors
    /// [`Unfit`]: it has started again, and is about to judge its journal, or was never broken.
    pub(crate) fn given_up(&self, given_up_at_ms: i64) -> Result<Self, Unfit> {
        if self.incarnation.is_some() {
            return Err(Unfit("the member has started again, and judges its journal"));
        }
        Ok(Self {
            given_up_at_ms: Some(given_up_at_ms),
            ..self.clone()
        })
    }

    fn of(&self, incarnation: WriterId) -> Result<Self, Unfit> {
        if self.incarnation != Some(incarnation) {
            return Err(Unfit("this incarnation of the member is over"));
        }
        Ok(Self {
            beats: self.beats.saturating_add(1),
            ..self.clone()
        })
    }
}

impl MemberChange {
    /// The record after the change.
    ///
    /// # Errors
    /// [`Unfit`] if it cannot be made of this one.
    pub fn apply(&self, record: &MemberRecord) -> Result<MemberRecord, Unfit> {
        match *self {
            Self::Start { incarnation } => {
                if record.writer(incarnation) != MemberWriter::NotStarted {
                    return Err(Unfit("the member has a newer incarnation"));
                }
                Ok(MemberRecord {
                    incarnation: Some(incarnation),
                    is_away: false,
                    beats: record.beats.saturating_add(1),
                    // Its sequence counts another writer's segments.
                    last_commit: None,
                    broken: None,
                    // Its journal is still to be judged, and it has to learn that it cannot.
                    given_up_at_ms: record.given_up_at_ms,
                })
            }
            Self::Beat { incarnation } => record.of(incarnation),
            Self::Commit { incarnation, commit } => {
                let alive = record.of(incarnation)?;
                if record.is_away {
                    return Err(Unfit("a member that is away commits nothing"));
                }
                Ok(MemberRecord {
                    last_commit: Some(commit),
                    given_up_at_ms: None,
                    ..alive
                })
            }
            Self::Leave { incarnation } => Ok(MemberRecord {
                is_away: true,
                ..record.of(incarnation)?
            }),
            Self::Return { incarnation } => {
                let alive = record.of(incarnation)?;
                if !record.is_away {
                    return Err(Unfit("the member is present"));
                }
                Ok(MemberRecord {
                    is_away: false,
                    ..alive
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_says_how_its_member_stands() {
        let record = |incarnation, broken, is_away, given_up_at_ms| MemberRecord {
            incarnation: Option::map(incarnation, WriterId),
            broken: Option::map(broken, WriterId),
            is_away,
            given_up_at_ms,
            ..MemberRecord::default()
        };
        for (record, state) in [
            (record(None, None, false, None), MemberState::NotStarted),
            (record(Some(3), None, false, None), MemberState::Present),
            (record(Some(3), None, true, None), MemberState::Away),
            (record(None, Some(3), false, None), MemberState::Broken),
            (record(None, Some(3), false, Some(7)), MemberState::GivenUp),
            (record(Some(4), None, false, Some(7)), MemberState::Present),
        ] {
            assert_eq!(record.state(), state, "{record:?}");
        }
    }
}
