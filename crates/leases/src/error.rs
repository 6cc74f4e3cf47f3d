//! Errors of a member, each with what it means for who waits.

use firn_anchor::AnchorError;

/// A member's call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberError {
    /// The anchor.
    #[error(transparent)]
    Anchor(#[from] AnchorError),
    /// The file system could not read or write what it had to.
    #[error(
        "the volume could not be read or written: {0}; nothing was committed, and what was acknowledged is in the journal"
    )]
    Content(String),
    /// No heartbeat was acknowledged for 40 s, and others may have taken what is held.
    #[error("no heartbeat reaches the anchor: leases lapsed, and changes wait; nothing is lost")]
    Lapsed,
    /// It left, and holds nothing until it comes back.
    #[error("this office is away from the volume: it comes back before it changes anything")]
    Away,
    /// What was built on is not there any more, which happens only after a break or with clocks that lie.
    #[error("inode {inode} was changed by another office: what is not published goes into a salvage clone")]
    LeafChanged {
        /// Which.
        inode: u64,
    },
}
