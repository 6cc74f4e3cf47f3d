//! The calls of the anchor: everything that may be asked of it, each one read or one transaction.
//!
//! ```text
//! [`Anchor`] (retries, lost replies) ── [`AnchorCall`] ──▶ [`AnchorBackend`] ── [`AnchorAnswer`] ──▶ [`Anchor`]
//!                                                          ├ [`TableBackend`]: a table of one's own
//!                                                          └ a service that checks and counts (docs/anchor.md), by JSON over HTTPS
//! ```
//!
//! A change names the **version of the tuple that it was decided on**, and happens only if that still stands: so a call that was
//! lost can be sent again, one that comes twice or late does nothing, and whoever answers needs no memory. A change that carries
//! a random mark (`change_id`, `grant`, a root's commit id) and finds that very mark in the tuple already is answered as done.
//!
//! No call names a family or a partition: whoever answers knows which one the caller's is.

use crate::{
    CleaningNote, HandoverChange, HoldChange, MemberCall, Proposal, RetiredSegment, RetirementRound, Root,
    Sweep, TupleVersion, VolumeChange, WriterTenure, text,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::{SegmentId, VolumeId, WriterId};
use firn_table::TableError;
use serde::{Deserialize, Serialize};

/// Tuples in one answer, at most.
pub const MAX_LISTED: u16 = 1000;

/// The text of a call that an edge makes, at most: its locks, all that a record takes, beside a long name. A root takes some 400.
pub const EDGE_CALL_BYTES_MAX: usize = 16 << 10;

/// Answers the anchor's calls for one family.
#[async_trait]
pub trait AnchorBackend: Send + Sync {
    /// Makes a call.
    ///
    /// # Errors
    /// [In doubt](TableError::is_in_doubt): it may have happened or may still happen. [`TableError::Refused`]: the caller may not.
    /// [`TableError::Limit`]: the call cannot be made by anybody (a root that does not come next, a list too long). Of a guarded
    /// backend [`TableError::ConditionFailed`]: a guard does not hold.
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError>;
}

/// What a caller is to a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorRole {
    /// Owns volumes and commits their roots.
    Edge,
    /// Moves and deletes what nothing needs.
    Cleaner,
    /// Reads.
    Observer,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AnchorCall {
    /// Reads the family's tuple.
    Family {},
    /// Reads a volume's tuple, with its root.
    Volume {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
    },
    /// Reads the tuples of volumes, in order of their ids.
    Volumes {
        /// Those after this one.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        after: Option<VolumeId>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Finds the volume that has a name.
    VolumeNamed {
        /// The name.
        name: String,
    },
    /// Reads what is registered of a writer incarnation.
    Writer {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        writer: WriterId,
    },
    /// Reads the cleaner's proposal for a volume.
    Proposal {
        /// Which volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
    },
    /// Reads the handover record of a shared volume.
    Handover {
        /// Which volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
    },
    /// Reads the cleaner's round.
    CleanerRound {},
    /// Reads what is known of a segment's retirement.
    Retired {
        /// Which segment.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        segment: SegmentId,
    },
    /// Reads what is known of retired segments, in order of their names.
    ListRetired {
        /// Those after this one.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        after: Option<SegmentId>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Reads which retired segments are still there, in order of their names.
    ListDoomed {
        /// Those after this one.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        after: Option<SegmentId>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Reads whether a retired segment is still there.
    Doomed {
        /// Which segment.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        segment: SegmentId,
    },
    /// Reads what retirements changed of the log, in their order.
    ListRounds {
        /// Those after this round.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        after: u64,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
        limit: u16,
    },
    /// Reads where a sweep of the cleaner goes on.
    CleanerCursor {
        /// Which sweep.
        sweep: Sweep,
    },
    /// Reads what cleaners noted for the bill.
    CleaningAccount {},
    /// Reads the hold on what is retired.
    Hold {},
    /// Creates the family.
    CreateFamily {
        /// By the caller's wall clock, milliseconds since 1970.
        created_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Creates a volume without an owner.
    CreateVolume {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// What people call it; of one volume in the family.
        name: String,
        /// A root found in the bucket, of a volume whose tuple was lost.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        root: Option<Root>,
        /// The first grant, of nobody.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// By the caller's wall clock, milliseconds since 1970.
        created_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Takes, commits, drains or tidies a volume.
    ChangeVolume {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// The version of its tuple on which this was decided.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// What changes.
        change: VolumeChange,
    },
    /// Gives a sign of life of a shared volume's owner, or joins or leaves the queue of those who wait for it.
    ChangeHandover {
        /// Which volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// The version of the record on which this was decided; absent: there was none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// What changes.
        change: HandoverChange,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Draws a writer incarnation.
    DrawWriter {
        /// The version of the family's tuple on which this was decided.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
        /// The incarnation: the family's next, or one above.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        writer: WriterId,
        /// For what.
        tenure: WriterTenure,
        /// By the caller's wall clock, milliseconds since 1970.
        drawn_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Ends a cleaner's incarnation.
    EndWriter {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        writer: WriterId,
        /// The version of its tuple on which this was decided.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
    },
    /// Offers a relocated head to the owner of a volume.
    Propose {
        /// Which volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// The version of the proposal that it replaces.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// What is offered.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        proposal: Proposal,
    },
    /// Retires segments and makes proposals, all or nothing.
    Retire {
        /// The version of the round that was seen before anything else was looked at.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// The cleaner's incarnation.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mover: WriterId,
        /// Its registration as it was when it began.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mover_seen: TupleVersion,
        /// What is retired.
        segments: Vec<RetireSegment>,
        /// What is proposed.
        proposals: Vec<RetireProposal>,
        /// What manifests are to be told of it; absent where no volume has one.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        round: Option<RetirementRound>,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Notes that retired segments were found; all or nothing.
    SeeDoomed {
        /// Which.
        segments: Vec<SeenSegment>,
        /// By the caller's wall clock, milliseconds since 1970.
        seen_at_ms: i64,
    },
    /// Notes that a retired segment was deleted.
    ForgetDoomed {
        /// Which, and the version of its tuple.
        segment: SeenSegment,
    },
    /// Begins a hold on what is retired, counts a pass over the parity groups that it is for, or ends it.
    ChangeHold {
        /// The version of the hold on which this was decided; absent: there was none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// To begin and to end: the version of the cleaner's round; absent: there was none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        round: Option<TupleVersion>,
        /// What changes.
        change: HoldChange,
        /// By the caller's wall clock, milliseconds since 1970.
        changed_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Releases retired segments from the hold; all or nothing.
    ReleaseDoomed {
        /// The version of the hold that the caller's pass left.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        hold: TupleVersion,
        /// Which.
        segments: Vec<SeenSegment>,
        /// By the caller's wall clock, milliseconds since 1970: from then on their grace is counted.
        released_at_ms: i64,
    },
    /// Replaces what is known of a retired segment, or forgets it.
    ChangeRetired {
        /// Which, and the version of its tuple.
        segment: SeenSegment,
        /// What is known of it now; absent: nothing leads to it any more.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        retired: Option<RetiredSegment>,
    },
    /// Forgets what a retirement changed of the log, since every manifest has taken it in.
    ForgetRound {
        /// Which round.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        round: u64,
        /// The version of its tuple.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        seen: TupleVersion,
    },
    /// Notes where a sweep of the cleaner goes on.
    SetCleanerCursor {
        /// Which sweep.
        sweep: Sweep,
        /// The version of the note that it replaces.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// The last segment that was looked at; absent: from the beginning.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        after: Option<SegmentId>,
    },
    /// Notes for the bill what a run of the cleaner sent and found.
    NoteCleaning {
        /// The version of the account on which this was decided.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        seen: Option<TupleVersion>,
        /// What is noted.
        note: CleaningNote,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Asks or changes something of the members of a volume that is shared by inode, and of their leases.
    Members {
        /// Which volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// What.
        call: MemberCall,
    },
}

/// A segment to retire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetireSegment {
    /// Which.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub segment: SegmentId,
    /// What is to be known of it.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub retired: RetiredSegment,
}

/// A proposal that comes with a retirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetireProposal {
    /// For which volume.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub volume: VolumeId,
    /// The version of the proposal that it replaces.
    #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub seen: Option<TupleVersion>,
    /// What is offered.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub proposal: Proposal,
}

/// A segment as its tuple was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeenSegment {
    /// Which.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub segment: SegmentId,
    /// The version of its tuple.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub seen: TupleVersion,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AnchorAnswer {
    /// The tuple that was asked for, if there is one.
    Tuple {
        /// It.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tuple: Option<StoredTuple>,
    },
    /// Tuples, in order of their names.
    Tuples {
        /// Them.
        tuples: Vec<StoredTuple>,
        /// Whether there are others after the last.
        more: bool,
    },
    /// The change happened, now or before.
    Changed {
        /// The version of the tuple that it left; absent if it left none.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        version: Option<TupleVersion>,
    },
    /// What the change was decided on does not stand any more. Nothing was changed by this call.
    Conflict {
        /// What is different.
        with: Obstacle,
    },
}

/// What stood in the way of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// A tuple that it was decided on, or that must not be there, is another one.
    Tuple,
    /// The name belongs to another volume.
    Name,
    /// The member's own record is another one: it spoke meanwhile, or it was broken.
    Member,
    /// The holder's record is another one: it gave a sign of life.
    Holder,
    /// The member joined as another caller, who alone may speak for it.
    Principal,
}

/// A tuple as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StoredTuple {
    /// Its name (its sort key in the table).
    pub name: String,
    /// Which change made it what it is.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub version: TupleVersion,
    /// Its content, in the layout of docs/formats.md.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub content: Bytes,
}

impl AnchorCall {
    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Family {}
            | Self::Volume { .. }
            | Self::Volumes { .. }
            | Self::VolumeNamed { .. }
            | Self::Writer { .. }
            | Self::Proposal { .. }
            | Self::Handover { .. }
            | Self::CleanerRound {}
            | Self::Retired { .. }
            | Self::ListRetired { .. }
            | Self::ListDoomed { .. }
            | Self::Doomed { .. }
            | Self::ListRounds { .. }
            | Self::CleanerCursor { .. }
            | Self::CleaningAccount {}
            | Self::Hold {} => true,
            Self::CreateFamily { .. }
            | Self::CreateVolume { .. }
            | Self::ChangeVolume { .. }
            | Self::ChangeHandover { .. }
            | Self::DrawWriter { .. }
            | Self::EndWriter { .. }
            | Self::Propose { .. }
            | Self::Retire { .. }
            | Self::SeeDoomed { .. }
            | Self::ForgetDoomed { .. }
            | Self::ChangeHold { .. }
            | Self::ReleaseDoomed { .. }
            | Self::ChangeRetired { .. }
            | Self::ForgetRound { .. }
            | Self::SetCleanerCursor { .. }
            | Self::NoteCleaning { .. } => false,
            Self::Members { call, .. } => call.is_read(),
        }
    }
}

impl AnchorRole {
    /// Whether this role may make the call. Everybody may read: what a family's tuples say is hashes, places and names that all of
    /// them need.
    ///
    /// A cleaner cannot touch roots, names and owners; an edge cannot retire or delete, nor pass for a cleaner.
    pub fn may(self, call: &AnchorCall) -> bool {
        if call.is_read() {
            return true;
        }
        match (self, call) {
            (Self::Observer, _) => false,
            (Self::Edge, AnchorCall::DrawWriter { tenure, .. }) => *tenure != WriterTenure::Cleaner,
            (Self::Cleaner, AnchorCall::DrawWriter { tenure, .. }) => *tenure == WriterTenure::Cleaner,
            (
                role,
                AnchorCall::CreateFamily { .. }
                | AnchorCall::CreateVolume { .. }
                | AnchorCall::ChangeVolume { .. }
                | AnchorCall::ChangeHandover { .. }
                | AnchorCall::Members { .. },
            ) => role == Self::Edge || firn_env::planted!("anchor.cleaners_may_all"),
            (role, _) => role == Self::Cleaner,
        }
    }
}
