//! The seam to what puts a disk's tracts on nodes. The control plane decides *that* a disk exists; where, this decides.

use async_trait::async_trait;
use firn_blockd_placement::Placement;
use firn_identity::{DiskId, NodeId, TenantId};

/// What a disk needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub disk: DiskId,
    /// How large.
    pub size_bytes: u64,
    /// How many copies of each tract.
    pub replicas: u8,
}

/// The room of all nodes that serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What may be promised: it is still there after the loss of the largest failure domain.
    pub total_bytes: u64,
    /// What is promised to disks, all copies counted.
    pub promised_bytes: u64,
}

impl Room {
    /// What can still be promised.
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.promised_bytes)
    }
}

/// Why a disk was not placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// It does not fit, or there are fewer failure domains than copies. Nothing was placed that was not before.
    #[error("no nodes can take it: {0}")]
    NoCapacity(String),
    /// What the node holds could not be held by those that remain. Nothing was changed; more nodes help.
    #[error("the node cannot be emptied: {0}")]
    TooFewNodes(String),
    /// Something did not answer; it may have happened. Calling again is safe.
    #[error("the nodes did not answer: {0}")]
    Unavailable(String),
}

/// Places disks. Every call is idempotent: a saga that was interrupted calls again with the same arguments.
#[async_trait]
pub trait DiskPlacement: Send + Sync {
    /// The table of the nodes' cluster, in which attachments are agreed on; nothing where there are no nodes.
    fn cluster(&self) -> Option<&Placement> {
        None
    }

    /// Places all tracts of a new disk, or nothing.
    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError>;
    /// Places what a disk lacks to `plan.size_bytes`, or nothing more than it has.
    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError>;
    /// Removes all tracts of a disk; a disk that is not there is removed. It is final: a `create` or `grow` of this disk that
    /// arrives later, from a driver that was slow, is refused. Ids are never used twice.
    async fn remove(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError>;
    /// The room there is.
    async fn room(&self) -> Result<Room, PlacementError>;
    /// Whether those that remain could hold what a node holds; if not, [`PlacementError::TooFewNodes`].
    async fn may_drain(&self, node: NodeId) -> Result<(), PlacementError>;
    /// Begins to empty a node: it gets nothing new. A node that is not known has nothing.
    async fn drain(&self, node: NodeId) -> Result<(), PlacementError>;
    /// Takes a node that is being emptied back into service; one that is not known stays so.
    async fn undrain(&self, node: NodeId) -> Result<(), PlacementError>;
    /// Whether nobody needs what a node holds any more.
    async fn is_empty(&self, node: NodeId) -> Result<bool, PlacementError>;
    /// Forgets a node that is being emptied and is empty, so that it is not waited for; one that is not known is forgotten.
    async fn forget(&self, node: NodeId) -> Result<(), PlacementError>;
}

/// For a service without a fleet of nodes: every disk is refused, nothing is pretended.
pub struct NoFleet;

#[async_trait]
impl DiskPlacement for NoFleet {
    async fn create(&self, _plan: &DiskPlan) -> Result<(), PlacementError> {
        Err(PlacementError::NoCapacity(
            "this service runs without a fleet of nodes".into(),
        ))
    }

    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.create(plan).await
    }

    async fn remove(&self, _tenant: TenantId, _disk: DiskId) -> Result<(), PlacementError> {
        Ok(())
    }

    async fn room(&self) -> Result<Room, PlacementError> {
        Ok(Room::default())
    }

    async fn may_drain(&self, _node: NodeId) -> Result<(), PlacementError> {
        Ok(())
    }

    async fn drain(&self, _node: NodeId) -> Result<(), PlacementError> {
        Ok(())
    }

    async fn undrain(&self, _node: NodeId) -> Result<(), PlacementError> {
        Ok(())
    }

    async fn is_empty(&self, _node: NodeId) -> Result<bool, PlacementError> {
        Ok(true)
    }

    async fn forget(&self, _node: NodeId) -> Result<(), PlacementError> {
        Ok(())
    }
}
