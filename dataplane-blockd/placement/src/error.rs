//! Errors between a caller and the table.

use firn_blockd_protocol::{DiskId, Fence, NodeId};
use firn_table::TableError;

/// Why a call on [`Placement`](crate::Placement) failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlacementError {
    /// The table does not answer. What was asked may have happened; every call may be repeated.
    #[error("the table is unavailable: {0}; nothing is lost, try again")]
    Unavailable(String),
    /// The table refuses: credentials or set-up.
    #[error("the table refuses: {0}")]
    Refused(String),
    /// Others kept changing the same item. Nothing was done; try again.
    #[error("too many others change {what} at once; nothing was done, try again")]
    Contention {
        /// What was to be changed.
        what: &'static str,
    },
    /// A record in the table is not one of ours, or of a later version.
    #[error("{key} in the table cannot be read: {reason}")]
    Damaged {
        /// Its key.
        key: String,
        /// Why.
        reason: String,
    },
    /// The cluster was never set up.
    #[error("there is no cluster of this name; set it up first")]
    NoCluster,
    /// The cluster was set up already, with other sizes.
    #[error("the cluster was set up before, with other table sizes")]
    ClusterExists,
    /// A name with characters or a length that is not allowed.
    #[error("{what} name {name:?}: 1 to 64 letters, digits, dots, hyphens and underscores are allowed")]
    Name {
        /// Of what.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The node serves, or others still need what it holds.
    #[error("node {0} still has a part in the cluster; drain it and wait")]
    NodeInUse(NodeId),
    /// No such disk.
    #[error("there is no disk {0}")]
    NoDisk(String),
    /// The tenant has a disk of that name.
    #[error("a disk named {name} exists ({disk})")]
    DiskExists {
        /// The name.
        name: String,
        /// The disk.
        disk: DiskId,
    },
    /// The disk is being deleted.
    #[error("disk {0} is being deleted")]
    Deleting(DiskId),
    /// Somebody has the disk attached.
    #[error("disk {disk} is attached by {holder}; detach it there, or force")]
    Attached {
        /// The disk.
        disk: DiskId,
        /// Who has it.
        holder: String,
    },
    /// A later attach took over.
    #[error("the disk was attached by somebody else since (attach {})", current.0)]
    Fenced {
        /// The attach that has it.
        current: Fence,
    },
    /// A size of zero, smaller than before, or beyond what a disk can have.
    #[error("a disk cannot have {tracts} tracts: {reason}")]
    Size {
        /// What was asked for.
        tracts: u64,
        /// Why not.
        reason: &'static str,
    },
    /// Not enough room is left.
    #[error(
        "{needed_tracts} tracts are needed, all copies counted, and {free_tracts} can be promised: what is promised must still have room \
         after the loss of the largest failure domain; nothing was done"
    )]
    NoCapacity {
        /// What was asked for, all copies counted.
        needed_tracts: u64,
        /// What is left.
        free_tracts: u64,
    },
    /// There are fewer nodes than copies, so there is no table of that many copies yet.
    #[error("no table of {copies} copies yet: it needs that many nodes")]
    NotEnoughNodes {
        /// How many copies were asked for.
        copies: usize,
    },
    /// What a node holds could not be held by others if it left.
    #[error(
        "its rows have {copies} copies and {remaining} other nodes serve; add {} first",
        copies.saturating_sub(*remaining)
    )]
    TooFewNodes {
        /// Of the rows that the node is in, the most copies that one has.
        copies: usize,
        /// Other nodes that serve and are not being emptied.
        remaining: usize,
    },
    /// What is promised to disks would not fit the nodes that remain.
    #[error(
        "{promised_tracts} tracts are promised to disks and the other nodes have room for {room_tracts}; add nodes first"
    )]
    NoRoomToDrain {
        /// To all disks, all copies counted.
        promised_tracts: u64,
        /// On the nodes that would remain.
        room_tracts: u64,
    },
    /// No such node.
    #[error("there is no node {0}")]
    NoNode(NodeId),
    /// Another process registered as this node.
    #[error("another process has registered as node {0}; this one must stop")]
    Superseded(NodeId),
    /// A node of the cluster runs.
    #[error("node {0} of the cluster runs; stop all nodes, clients and the service first, nothing was done")]
    NodeAlive(NodeId),
    /// The row has changed since; look it up again.
    #[error("the row has changed since")]
    RowChanged,
}

impl From<TableError> for PlacementError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Unavailable(reason) | TableError::InvalidAnswer(reason) => Self::Unavailable(reason),
            TableError::Refused(reason) | TableError::Limit(reason) => Self::Refused(reason),
            TableError::ConditionFailed { .. } => Self::Contention { what: "an item" },
        }
    }
}
