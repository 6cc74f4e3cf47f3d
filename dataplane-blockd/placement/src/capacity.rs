//! Room in the cluster: what there is, and what is promised to disks.
//!
//! Disks are thin on the nodes but reserved here, all copies counted, so that a write to a disk that was created never finds
//! the cluster full.

use crate::{Placement, PlacementError, record::Stored};
use serde::{Deserialize, Serialize};

/// The cluster's room in tracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capacity {
    /// On nodes that live and are not being emptied; kept by the coordinator.
    pub total_tracts: u64,
    /// Promised to disks, all copies counted.
    pub reserved_tracts: u64,
}

impl Capacity {
    /// What can still be promised.
    pub fn free_tracts(&self) -> u64 {
        self.total_tracts.saturating_sub(self.reserved_tracts)
    }

    /// The same with `tracts` more promised.
    pub(crate) fn reserve(self, tracts: u64) -> Result<Self, PlacementError> {
        if tracts > self.free_tracts() {
            return Err(PlacementError::NoCapacity {
                needed_tracts: tracts,
                free_tracts: self.free_tracts(),
            });
        }
        Ok(Self {
            reserved_tracts: self.reserved_tracts + tracts,
            ..self
        })
    }
}

impl Placement {
    /// The cluster's room.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn capacity(&self) -> Result<Capacity, PlacementError> {
        Ok(self
            .stored_capacity()
            .await?
            .map(|stored| stored.value)
            .unwrap_or_default())
    }

    pub(crate) async fn stored_capacity(&self) -> Result<Option<Stored<Capacity>>, PlacementError> {
        self.read(&self.capacity_key()).await
    }
}
