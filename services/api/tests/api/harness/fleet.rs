//! Nodes in memory.

use async_trait::async_trait;
use firn_api::{DiskPlacement, DiskPlan, PlacementError, Room};
use firn_identity::{DiskId, NodeId, TenantId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// A fleet in memory that keeps the placement's contract.
#[derive(Clone, Default)]
pub struct Fleet(Arc<Mutex<FleetState>>);

#[derive(Default)]
struct FleetState {
    disks: BTreeMap<DiskId, u64>,
    removed: Vec<DiskId>,
    capacity_bytes: Option<u64>,
    draining: BTreeSet<NodeId>,
    holding: BTreeSet<NodeId>,
    is_short: bool,
}

impl Fleet {
    pub fn disks(&self) -> BTreeMap<DiskId, u64> {
        self.0.lock().unwrap().disks.clone()
    }

    /// Which nodes are being emptied.
    pub fn draining(&self) -> BTreeSet<NodeId> {
        self.0.lock().unwrap().draining.clone()
    }

    /// Says whether a node holds what others need.
    pub fn hold(&self, node: NodeId, holds: bool) {
        let mut state = self.0.lock().unwrap();
        if holds {
            state.holding.insert(node);
        } else {
            state.holding.remove(&node);
        }
    }

    /// Says whether those that remain would be too few if one left.
    pub fn be_short(&self, is_short: bool) {
        self.0.lock().unwrap().is_short = is_short;
    }

    pub fn limit(&self, bytes: u64) {
        self.0.lock().unwrap().capacity_bytes = Some(bytes);
    }
}

#[async_trait]
impl DiskPlacement for Fleet {
    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        let mut state = self.0.lock().unwrap();
        if state.removed.contains(&plan.disk) {
            return Err(PlacementError::NoCapacity("it was removed".into()));
        }
        let others: u64 = state
            .disks
            .iter()
            .filter(|(id, _)| **id != plan.disk)
            .map(|(_, bytes)| bytes)
            .sum();
        if state
            .capacity_bytes
            .is_some_and(|capacity| others + plan.size_bytes > capacity)
        {
            return Err(PlacementError::NoCapacity("the fleet is full".into()));
        }
        state.disks.insert(plan.disk, plan.size_bytes);
        Ok(())
    }

    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.create(plan).await
    }

    async fn remove(&self, _tenant: TenantId, disk: DiskId) -> Result<(), PlacementError> {
        let mut state = self.0.lock().unwrap();
        state.disks.remove(&disk);
        state.removed.push(disk);
        Ok(())
    }

    async fn room(&self) -> Result<Room, PlacementError> {
        let state = self.0.lock().unwrap();
        Ok(Room {
            total_bytes: state.capacity_bytes.unwrap_or(u64::MAX),
            promised_bytes: state.disks.values().sum(),
        })
    }

    async fn may_drain(&self, _node: NodeId) -> Result<(), PlacementError> {
        if self.0.lock().unwrap().is_short {
            return Err(PlacementError::TooFewNodes("add 1 first".into()));
        }
        Ok(())
    }

    async fn undrain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.0.lock().unwrap().draining.remove(&node);
        Ok(())
    }

    async fn drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.0.lock().unwrap().draining.insert(node);
        Ok(())
    }

    async fn is_empty(&self, node: NodeId) -> Result<bool, PlacementError> {
        Ok(!self.0.lock().unwrap().holding.contains(&node))
    }

    async fn forget(&self, node: NodeId) -> Result<(), PlacementError> {
        let mut state = self.0.lock().unwrap();
        assert!(!state.holding.contains(&node), "it still holds something");
        state.draining.remove(&node);
        Ok(())
    }
}
