//! Roots, ownership epochs and writer incarnations over the table.
//!
//! The anchor is all that Firn needs a consistent store for. It holds one small tuple a family and one a volume; whoever
//! holds a volume's current root can verify everything below it on any store, however stale or untrusted.
//!
//! - A **family** tuple hands out writer incarnations ([`Anchor::next_writer_for`]), so that a segment name never has two
//!   contents.
//! - A **volume** tuple ([`VolumeTuple`]) holds the root, who may replace it, and the roots retained at takeovers.
//! - [`Ownership`] is the right to replace the root, until somebody takes it away. It never expires by time.
//! - A **writer** tuple says for what an incarnation was drawn, hence when what it left behind is garbage ([`WriterTenure`]).
//! - A [`HandoverRecord`] says whether the owner of a shared volume lives, and who waits to own it.
//! - An [`Arena`] says which member of a volume that is shared by inode may change which inodes, a [`MemberRecord`] whether that member is there;
//!   [`Membership`] is the right of one incarnation of a member to change either, and to commit.
//! - A [`CleaningAccount`] adds up what cleaners sent to the bucket and found in it, for the bill.
//! - A [`Proposal`] is a relocated head that the cleaner offers; [`Anchor::retire`] puts the retirements of all cleaners into
//!   one order.
//! - [`AnchorCall`] is what may be asked, [`AnchorBackend`] who answers: a table ([`TableBackend`]), or a service before one.
//! - [`RememberedRoot`] is what an edge keeps on its own disk to notice a table that was rolled back.
//!
//! Nothing here runs in the background: a volume nobody uses costs no request.

mod account;
mod anchor;
mod arena;
mod call;
mod cleaning;
#[cfg(feature = "testing")]
pub mod conformance;
mod error;
mod formats;
mod handover;
mod hold;
mod known;
mod layout;
mod mark;
mod member;
mod membership;
mod on_table;
mod ownership;
mod proposal;
mod remembered;
mod restore;
mod retry;
mod rounds;
mod text;
mod transition;
mod tuple;
mod writer;

pub use account::{CleaningAccount, CleaningNote, LISTING_GAP_MAX, Listing};
pub use anchor::{Anchor, VolumeEntry};
pub use arena::{
    ARENA_BITS, Arena, ArenaChange, COMMIT_LEASE, LEVEL_BITS, LEVEL_MAX, LOCK_LEASE, Lease, LeaseRange,
    LeaseRefusal, MAX_LEASE_QUEUE, MAX_LEASES, SHAPE_LEASE,
};
pub use call::{
    AnchorAnswer, AnchorBackend, AnchorCall, AnchorRole, EDGE_CALL_BYTES_MAX, MAX_LISTED, Obstacle,
    RetireProposal, RetireSegment, SeenSegment, StoredTuple,
};
pub use cleaning::{
    CleanerRound, Cover, DoomedSegment, MAX_COVERS, RetiredSegment, Retirement, RetirementOutcome, Sweep,
    retirement_segments,
};
pub use error::{AnchorError, Fenced};
pub use formats::FORMATS;
pub use handover::locks::{MAX_LOCKING, MAX_LOCKS, MemberLocks, RecordedLock};
pub use handover::{Beating, HandoverChange, HandoverRecord, Heartbeat, MAX_WANTS, Want};
pub use hold::{Hold, HoldChange, MAX_RELEASED};
pub use known::KnownTuples;
pub use member::{
    MemberChange, MemberCommit, MemberNumber, MemberRecord, MemberState, MemberTuple, MemberWriter,
    PrincipalId,
};
pub use membership::call::{MemberCall, Presence, SeenMember, SeenRange};
pub use membership::locks::MemberLocksChange;
pub use membership::mail::Mail;
pub use membership::{MemberCommitEnd, MemberEntry, Membership, SeenArena};
pub use on_table::TableBackend;
pub use ownership::{Ownership, Takeover};
pub use proposal::{MAX_PROPOSAL_USAGE, Overtaken, Proposal, UsageChange};
pub use remembered::{RememberedRoot, RolledBack, SeenRoot};
pub use rounds::{MAX_ROUND_SEGMENTS, RetirementRound, StoredRound};
pub use transition::{MAX_VERSION_STEP, Unfit, VolumeChange};
pub use tuple::{
    FamilyTuple, MAX_NAME_BYTES, MAX_RETAINED_ROOTS, NameError, Owner, OwnerId, ROOT_SIGNATURE_BYTES,
    RetainedRoot, Root, TupleError, TupleVersion, VolumeTuple,
};
pub use writer::{WriterTenure, WriterTuple};

#[cfg(test)]
mod tests;
