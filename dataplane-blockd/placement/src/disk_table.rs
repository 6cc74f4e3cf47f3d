//! The table as a disk's client sees it: the calls of an attach from its beginning to its end, and no others.
//!
//! | who answers | for whom |
//! |---|---|
//! | [`Placement`]: the cluster's table itself | an operator, who may change all of it |
//! | a service in front of it, by typed calls over HTTPS | a tenant's machine, which reaches its own disk only |
//!
//! Both keep the same rules, because the service answers with a [`Placement`] too.

use crate::{Attachment, Cluster, DiskRecord, Placement, PlacementError};
use async_trait::async_trait;
use firn_blockd_protocol::{DiskId, Fence, Replication, Row, RowIndex};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Between two looks of an attach at its disk's record, where the table is its own.
const LOOK: Duration = Duration::from_secs(5);

/// What one look at a disk finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiskLook {
    /// The disk as it stands.
    #[serde(flatten)]
    pub record: DiskRecord,
    /// The hard cap of its tenant's budget is reached: whoever has it attached refuses new writes. Never where no service stands before
    /// the table, for budgets are the service's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
}

/// See the module.
#[async_trait]
pub trait DiskTable: Send + Sync + 'static {
    /// How long an attach waits between two looks at its disk's record, by which it learns that it was taken over or is to end.
    fn looks_every(&self) -> Duration {
        LOOK
    }

    /// The disk as it stands.
    ///
    /// # Errors
    /// [`PlacementError::NoDisk`], and what keeps the table from answering.
    async fn disk(&self, disk: DiskId) -> Result<DiskRecord, PlacementError>;

    /// The same, with what is asked of whoever has it attached.
    ///
    /// # Errors
    /// Those of [`DiskTable::disk`].
    async fn look(&self, disk: DiskId) -> Result<DiskLook, PlacementError> {
        let record = self.disk(disk).await?;
        Ok(DiskLook {
            record,
            capped: false,
        })
    }

    /// Raises the disk's fence for a new attach; with `force` also if somebody has it.
    ///
    /// # Errors
    /// [`PlacementError::Attached`], and others.
    async fn attach_disk(
        &self,
        disk: DiskId,
        holder: &str,
        force: bool,
    ) -> Result<Attachment, PlacementError>;

    /// Replaces the client's own settings of the disk, which the attach of that fence has.
    ///
    /// # Errors
    /// [`PlacementError::Fenced`] if somebody else has it meanwhile: nothing was changed.
    async fn change_settings(
        &self,
        disk: DiskId,
        fence: Fence,
        settings: &str,
    ) -> Result<DiskRecord, PlacementError>;

    /// Ends the attach of that fence. `clean`: replicas agree, the next attach has nothing to reconcile.
    ///
    /// # Errors
    /// [`PlacementError::Fenced`] if somebody else has it meanwhile: nothing was changed.
    async fn detach_disk(&self, disk: DiskId, fence: Fence, clean: bool) -> Result<(), PlacementError>;

    /// Makes the disk larger.
    ///
    /// # Errors
    /// [`PlacementError`]; nothing was changed, unless the table is unavailable.
    async fn grow_disk(
        &self,
        disk: DiskId,
        size_bytes: u64,
        tracts: Option<u32>,
    ) -> Result<DiskRecord, PlacementError>;

    /// The cluster's lengths of tables.
    ///
    /// # Errors
    /// [`PlacementError`].
    async fn cluster(&self) -> Result<Cluster, PlacementError>;

    /// One row of a table.
    ///
    /// # Errors
    /// [`PlacementError`].
    async fn row(&self, replication: Replication, index: RowIndex) -> Result<Row, PlacementError>;

    /// A whole table.
    ///
    /// # Errors
    /// [`PlacementError`].
    async fn rows(&self, replication: Replication) -> Result<Vec<Row>, PlacementError>;
}

#[async_trait]
impl DiskTable for Placement {
    async fn disk(&self, disk: DiskId) -> Result<DiskRecord, PlacementError> {
        Self::disk(self, disk).await
    }

    async fn attach_disk(
        &self,
        disk: DiskId,
        holder: &str,
        force: bool,
    ) -> Result<Attachment, PlacementError> {
        Self::attach_disk(self, disk, holder, force).await
    }

    async fn change_settings(
        &self,
        disk: DiskId,
        fence: Fence,
        settings: &str,
    ) -> Result<DiskRecord, PlacementError> {
        Self::change_settings(self, disk, fence, settings).await
    }

    async fn detach_disk(&self, disk: DiskId, fence: Fence, clean: bool) -> Result<(), PlacementError> {
        Self::detach_disk(self, disk, fence, clean).await
    }

    async fn grow_disk(
        &self,
        disk: DiskId,
        size_bytes: u64,
        tracts: Option<u32>,
    ) -> Result<DiskRecord, PlacementError> {
        Self::grow_disk(self, disk, size_bytes, tracts).await
    }

    async fn cluster(&self) -> Result<Cluster, PlacementError> {
        Self::cluster(self).await
    }

    async fn row(&self, replication: Replication, index: RowIndex) -> Result<Row, PlacementError> {
        Self::row(self, replication, index).await
    }

    async fn rows(&self, replication: Replication) -> Result<Vec<Row>, PlacementError> {
        Self::rows(self, replication).await
    }
}
