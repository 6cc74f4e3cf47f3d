//! The seam to what puts a disk's tracts on nodes. The control plane decides *that* a disk exists; where, this decides.

use async_trait::async_trait;
use firn_identity::{DiskId, TenantId};

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

/// Why a disk was not placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// It does not fit, or there are fewer failure domains than copies. Nothing was placed that was not before.
    #[error("no nodes can take it: {0}")]
    NoCapacity(String),
    /// Something did not answer; it may have happened. Calling again is safe.
    #[error("the nodes did not answer: {0}")]
    Unavailable(String),
}

/// Places disks. Every call is idempotent: a saga that was interrupted calls again with the same arguments.
#[async_trait]
pub trait DiskPlacement: Send + Sync {
    /// Places all tracts of a new disk, or nothing.
    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError>;
    /// Places what a disk lacks to `plan.size_bytes`, or nothing more than it has.
    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError>;
    /// Removes all tracts of a disk; a disk that is not there is removed. It is final: a `create` or `grow` of this disk that
    /// arrives later, from a driver that was slow, is refused. Ids are never used twice.
    async fn remove(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError>;
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
}
