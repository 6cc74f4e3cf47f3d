//! The calls about members of a volume that is shared by inode, and about their leases.
//!
//! ```text
//!  call               writes, in one transaction                                     on the version of              the member must be
//!  join               family: next writer; writer; member's record                   family                         new
//!  presence           own record: start, beat, leave, return                         own record                     as the rule says
//!  commit             own record: beat, commit id; volume: root                      own record, volume             present
//!  lease              arena: take, want, withdraw, give                              arena, own record              present
//!  take from absent   arena                                                          arena, holder's, own record    present
//!  take from nobody   arena                                                          arena, own record, and that    present
//!                                                                                    the home's member has none
//!  break              arena; holder's record: no incarnation; volume: head retained  all of these, own record       present
//!  locks              the handover record                                            that record, own record        present; to record or
//!                                                                                                                   break: hold the lease
//!  bump mail          the other member's mail                                        mail                           present
//!  forget retained    volume: without the root retained for the member               volume, own record             present
//!  give up            volume: the same for another member; that one's record         both, own record               present
//! ```
//!
//! **Everything that a member changes is conditional on its own record** (but mail, which only wakes). So a beat fences all that was under way, and
//! not commits alone: a request that was given up does nothing once a later beat of its member was acknowledged, and a new incarnation has no
//! late gift of the one before that gives away what it holds. [`MemberChange`] and [`Arena`](crate::Arena) decide what
//! each change makes of a record.

use crate::{
    ArenaChange, LeaseRange, MemberChange, MemberLocksChange, MemberNumber, OwnerId, Root, TupleVersion, text,
};
use firn_format::WriterId;
use serde::{Deserialize, Serialize};

/// A member, and its record as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeenMember {
    /// Which.
    pub member: MemberNumber,
    /// The version of its record.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub seen: TupleVersion,
}

/// A range of inode numbers, and its arena as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeenRange {
    /// An inode in it.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub inode: u64,
    /// How wide it is: 128^level numbers.
    #[cfg_attr(feature = "schema", schema(maximum = 3))]
    pub level: u8,
    /// The version of the arena's record; absent: there was none.
    #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub seen: Option<TupleVersion>,
}

impl SeenRange {
    /// The range; `None` if there is no such level.
    pub fn range(&self) -> Option<LeaseRange> {
        LeaseRange::around(self.inode, self.level)
    }
}

/// What a member says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// A new incarnation.
    Start,
    /// A sign of life.
    Beat,
    /// Away, with everything published.
    Leave,
    /// Present again.
    Return,
}

impl Presence {
    /// The change of the record that it is.
    pub(crate) fn of(self, incarnation: WriterId) -> MemberChange {
        match self {
            Self::Start => MemberChange::Start { incarnation },
            Self::Beat => MemberChange::Beat { incarnation },
            Self::Leave => MemberChange::Leave { incarnation },
            Self::Return => MemberChange::Return { incarnation },
        }
    }
}

/// One call; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MemberCall {
    /// Reads a member's record.
    Member {
        /// Which.
        member: MemberNumber,
    },
    /// Reads members' records, in order of their numbers.
    Members {
        /// Those after this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<MemberNumber>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Reads an arena.
    Arena {
        /// Its number: that of its inodes without the last 21 bits.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        arena: u64,
    },
    /// Reads arenas, in order of their numbers.
    Arenas {
        /// Those after this one.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        after: Option<u64>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Reads a member's mail.
    Mail {
        /// Whose.
        member: MemberNumber,
    },
    /// Draws a member's number, which is a writer's as well, and makes its record.
    Join {
        /// The version of the family's tuple on which this was decided.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// The number: the family's next writer, or one above.
        member: MemberNumber,
        /// Whose it is.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        edge: OwnerId,
        /// What people call it.
        name: String,
        /// By the caller's wall clock, milliseconds since 1970.
        drawn_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Says that a member is there, or that it leaves.
    Presence {
        /// Who.
        by: SeenMember,
        /// What.
        change: Presence,
        /// Which incarnation says it.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        incarnation: WriterId,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Replaces the volume's root.
    Commit {
        /// Who.
        by: SeenMember,
        /// Which incarnation of it.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        incarnation: WriterId,
        /// The version of the volume's tuple with the root that this one was put on.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// The new root.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        root: Root,
        /// The last segment of this incarnation that it names.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        sequence: u64,
    },
    /// Takes what is nobody's, waits, waits no more, or gives.
    Lease {
        /// Who.
        by: SeenMember,
        /// Of what.
        range: SeenRange,
        /// What.
        change: ArenaChange,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Takes the lease of a member that is away or was broken.
    TakeFromAbsent {
        /// Who.
        by: SeenMember,
        /// Of what.
        range: SeenRange,
        /// The holder, as it was seen to be absent.
        absent: SeenMember,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Takes what is home's, where that home has no member: what an owner made before the volume was shared by inode.
    TakeFromNobody {
        /// Who.
        by: SeenMember,
        /// Of what.
        range: SeenRange,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Takes the lease of a member that is there and gives no sign of life: its incarnation ends.
    Break {
        /// Who.
        by: SeenMember,
        /// Of what.
        range: SeenRange,
        /// The holder, as it was seen to be silent.
        silent: SeenMember,
        /// The version of the volume's tuple, whose root is retained for the holder's journal.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume_seen: TupleVersion,
        /// By the caller's wall clock, milliseconds since 1970.
        broken_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Has another member look at the arenas.
    BumpMail {
        /// Who.
        by: SeenMember,
        /// Whose mail.
        to: MemberNumber,
        /// The version of the mail; absent: there was none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Says what of locks of files the member's clients have, or takes away what another's have.
    Locks {
        /// Who.
        by: SeenMember,
        /// The version of the handover record; absent: there was none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// What.
        change: MemberLocksChange,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Forgets the root that was retained for the member, whose journal is judged.
    ForgetRetained {
        /// Who.
        by: SeenMember,
        /// The version of the volume's tuple.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Gives up the root that is retained for a member that was broken and has not come back: its record says so.
    GiveUp {
        /// Who.
        by: SeenMember,
        /// Whose root.
        broken: SeenMember,
        /// The version of the volume's tuple.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// By the caller's wall clock, milliseconds since 1970.
        given_up_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
}

impl MemberCall {
    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Member { .. }
            | Self::Members { .. }
            | Self::Arena { .. }
            | Self::Arenas { .. }
            | Self::Mail { .. } => true,
            Self::Join { .. }
            | Self::Presence { .. }
            | Self::Commit { .. }
            | Self::Lease { .. }
            | Self::TakeFromAbsent { .. }
            | Self::TakeFromNobody { .. }
            | Self::Break { .. }
            | Self::BumpMail { .. }
            | Self::Locks { .. }
            | Self::ForgetRetained { .. }
            | Self::GiveUp { .. } => false,
        }
    }

    /// Whether it reads a list.
    pub fn is_list(&self) -> bool {
        matches!(self, Self::Members { .. } | Self::Arenas { .. })
    }
}
