//! Disks on a cluster of `firn-blockd` nodes: what the sagas decide, put into the cluster's table.
//!
//! The disk has one identifier for both, so that a capability of this service's names the disk that nodes know. In the cluster
//! it is called by that identifier; what its owner calls it is the control plane's matter. It is created without a key: the
//! service has none, and whoever attaches it brings it.

use crate::{
    placement::{DiskPlacement, DiskPlan, PlacementError, Room},
    types::TRACT_BYTES,
};
use async_trait::async_trait;
use firn_blockd_client::{DiskSettings, Mode, Shape, UNIT_BLOCKS, replication, tracts_for};
use firn_blockd_placement::{NewDisk, NodeState, Placement, PlacementError as ClusterError};
use firn_identity::{DiskId, NodeId, TenantId};

/// The most tracts over which neighbouring blocks are spread.
const SEGMENT_TRACTS: u64 = 128;

/// See the module.
pub struct Fleet {
    cluster: Placement,
}

impl Fleet {
    /// Places disks in this cluster.
    pub fn new(cluster: Placement) -> Self {
        Self { cluster }
    }

    async fn set_state(&self, node: NodeId, state: NodeState) -> Result<(), PlacementError> {
        match self.cluster.set_node_state(node, state).await {
            Ok(()) | Err(ClusterError::NoNode(_)) => Ok(()),
            Err(error) => Err(unanswered(error)),
        }
    }
}

/// A refusal that will be the same tomorrow ends the saga; everything else is tried again.
fn refused(error: ClusterError) -> PlacementError {
    match error {
        ClusterError::NoCapacity { .. }
        | ClusterError::NotEnoughNodes { .. }
        | ClusterError::Size { .. }
        | ClusterError::Name { .. }
        | ClusterError::DiskExists { .. }
        | ClusterError::Deleting(_)
        | ClusterError::NoDisk(_)
        | ClusterError::NoCluster => PlacementError::NoCapacity(error.to_string()),
        ClusterError::Unavailable(_)
        | ClusterError::Refused(_)
        | ClusterError::Contention { .. }
        | ClusterError::Damaged { .. }
        | ClusterError::ClusterExists
        | ClusterError::Attached { .. }
        | ClusterError::Fenced { .. }
        | ClusterError::NoNode(_)
        | ClusterError::NodeInUse(_)
        | ClusterError::TooFewNodes { .. }
        | ClusterError::NodeAlive(_)
        | ClusterError::NoRoomToDrain { .. }
        | ClusterError::Superseded(_)
        | ClusterError::RowChanged => PlacementError::Unavailable(error.to_string()),
    }
}

/// What is asked about a node is asked again until it is answered.
fn unanswered(error: ClusterError) -> PlacementError {
    PlacementError::Unavailable(error.to_string())
}

fn impossible(error: impl std::fmt::Display) -> PlacementError {
    PlacementError::NoCapacity(error.to_string())
}

#[async_trait]
impl DiskPlacement for Fleet {
    fn cluster(&self) -> Option<&Placement> {
        Some(&self.cluster)
    }

    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        let tracts = plan.size_bytes.div_ceil(TRACT_BYTES);
        let segment_tracts = u32::try_from(tracts.clamp(1, SEGMENT_TRACTS)).map_err(impossible)?;
        let shape = Shape::InPlace {
            segment_tracts,
            unit_blocks: UNIT_BLOCKS,
        };
        let settings = DiskSettings::new(shape, Mode::WriteBack, None).map_err(impossible)?;
        let disk = NewDisk {
            tenant: plan.tenant,
            name: plan.disk.to_string(),
            size_bytes: plan.size_bytes,
            tracts: Some(tracts_for(&settings, plan.size_bytes).map_err(impossible)?),
            replication: replication(plan.replicas).map_err(impossible)?,
            settings: settings.to_text(),
        };
        self.cluster
            .create_disk_as(plan.disk, disk)
            .await
            .map_err(refused)?;
        Ok(())
    }

    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        let disk = plan.disk;
        let record = self.cluster.disk(disk).await.map_err(refused)?;
        let settings = DiskSettings::parse(&record.settings).map_err(impossible)?;
        let tracts = tracts_for(&settings, plan.size_bytes).map_err(impossible)?;
        self.cluster
            .grow_disk(disk, plan.size_bytes, Some(tracts))
            .await
            .map_err(refused)?;
        Ok(())
    }

    async fn remove(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError> {
        self.cluster.remove_disk(tenant, disk).await.map_err(refused)
    }

    async fn room(&self) -> Result<Room, PlacementError> {
        let capacity = self.cluster.capacity().await.map_err(unanswered)?;
        Ok(Room {
            total_bytes: capacity.promisable_tracts().saturating_mul(TRACT_BYTES),
            promised_bytes: capacity.reserved_tracts.saturating_mul(TRACT_BYTES),
        })
    }

    async fn may_drain(&self, node: NodeId) -> Result<(), PlacementError> {
        match self.cluster.check_drain(node).await {
            Err(error @ (ClusterError::TooFewNodes { .. } | ClusterError::NoRoomToDrain { .. })) => {
                Err(PlacementError::TooFewNodes(error.to_string()))
            }
            result => result.map_err(unanswered),
        }
    }

    async fn drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.set_state(node, NodeState::Draining).await
    }

    async fn undrain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.set_state(node, NodeState::Serving).await
    }

    async fn is_empty(&self, node: NodeId) -> Result<bool, PlacementError> {
        self.cluster.is_node_unused(node).await.map_err(unanswered)
    }

    async fn forget(&self, node: NodeId) -> Result<(), PlacementError> {
        self.cluster.remove_node(node).await.map_err(unanswered)
    }
}
