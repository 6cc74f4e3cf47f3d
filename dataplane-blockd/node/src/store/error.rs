//! Errors of the store.

use super::layout::LAYOUT_VERSION;
use firn_blockd_protocol::{NodeId, TractId};
use firn_env::DiskError;

/// Why the store did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No frame is left for another tract. Nothing was written.
    #[error("no room for another tract on this node")]
    Full,
    /// A block does not match its checksum. Other replicas have it; the node repairs its own.
    #[error("block {block} of tract {tract} is damaged on this node's disk")]
    Damaged {
        /// The tract.
        tract: TractId,
        /// The first damaged block of the range.
        block: u16,
    },
    /// The node holds the tract from another membership in its row.
    #[error("tract {tract} is from another membership in its row")]
    OtherMembership {
        /// The tract.
        tract: TractId,
    },
    /// The file system is full, and what was written before waits for room. Nothing was written; try again when there is some.
    #[error("the node's file system is full: it is read-only until there is room")]
    ReadOnly,
    /// Scratch slots could not be freed in time. Nothing was written; try again.
    #[error("the group has no free slot now")]
    Busy,
    /// The disk refused to read.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There is a store already.
    #[error("this directory holds the store of node {0} already")]
    Exists(NodeId),
    /// It was never formatted.
    #[error("this directory holds no store; format it first")]
    Empty,
    /// The sizes are impossible, or the disk is too small for one group.
    #[error("a store of these sizes is impossible")]
    Geometry,
    /// A newer build served this store. All blocks are where they were.
    #[error(
        "{what} was written by a newer firn-blockd ({found}, and this build reads layout {LAYOUT_VERSION}). Nothing was changed, and \
         every block is where it was: install that version or a newer one, and do not format this disk"
    )]
    Newer {
        /// Which file.
        what: String,
        /// What is unknown.
        found: String,
    },
    /// What must be there is not, or does not match its checksum. What this node holds cannot be trusted to be complete:
    /// give the node a new, empty store; the cluster copies to it what is needed.
    #[error("{what} is damaged: {reason}; format this disk anew and let the cluster copy to it")]
    Damaged {
        /// Which file.
        what: &'static str,
        /// How.
        reason: String,
    },
}
