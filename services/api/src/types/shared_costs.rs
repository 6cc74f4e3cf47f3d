//! Costs of volumes that are shared, by who caused them.

use firn_identity::{EdgeId, TenantId, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who caused what of the volumes that are shared, in a month.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SharedCosts {
    /// Such as 2026-11.
    pub month: String,
    /// Volumes of this tenant that are or were granted: what each costs it, and by whom.
    pub given: Vec<SharedVolumeCost>,
    /// Volumes of others that were granted to this tenant: what its own edges caused, which the owner pays.
    pub granted: Vec<SharedVolumeCost>,
}

/// What a shared volume costs its owner.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SharedVolumeCost {
    /// Which.
    #[schema(value_type = String)]
    pub volume: VolumeId,
    /// Who pays.
    #[schema(value_type = String)]
    pub owner: TenantId,
    /// ISO 4217.
    pub currency: String,
    /// By whom: to the owner first a line without an edge, of the volume's own edges, of what is stored and of the cleaner; then one for each grantee's edge.
    pub lines: Vec<SharedCostLine>,
    /// The sum of the lines, in billionths.
    pub total_nanos: String,
}

/// What one edge caused of a shared volume's cost.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SharedCostLine {
    /// Whose edge it is; of the line without an edge the owner.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// The edge that the volume was granted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub edge: Option<EdgeId>,
    /// Root commits that the service saw, in digits: what is charged by the operation.
    pub commits: String,
    /// File operations, as the edge says, in digits.
    pub operations: String,
    /// Requests to the bucket, as the edge says, in digits.
    pub requests: String,
    /// Bytes sent to the bucket, as the edge says, in digits.
    pub bytes_up: String,
    /// Bytes fetched from the bucket, as the edge says, in digits.
    pub bytes_down: String,
    /// Its part of what the volume costs, in billionths.
    pub amount_nanos: String,
}
