//! Quotas and budgets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much of everything a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Volumes, deleted ones included until they are erased.
    #[schema(maximum = 100_000)]
    pub volumes: u32,
    /// Edges.
    #[schema(maximum = 100_000)]
    pub edges: u32,
    /// Disks.
    #[schema(maximum = 100_000)]
    pub disks: u32,
    /// Bytes of disks, copies not counted.
    #[schema(maximum = 1_152_921_504_606_846_976_u64)]
    pub disk_bytes: u64,
    /// Nodes.
    #[schema(maximum = 100_000)]
    pub nodes: u32,
    /// Members.
    #[schema(maximum = 100_000)]
    pub members: u32,
    /// API keys.
    #[schema(maximum = 100_000)]
    pub keys: u32,
}

impl Default for Quota {
    /// A branch-office customer with room to grow; support raises it.
    fn default() -> Self {
        Self {
            volumes: 100,
            edges: 500,
            disks: 100,
            disk_bytes: 100 << 40,
            nodes: 100,
            members: 500,
            keys: 500,
        }
    }
}

/// What is in use, in the same units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InUse {
    /// Volumes.
    pub volumes: u32,
    /// Edges.
    pub edges: u32,
    /// Disks.
    pub disks: u32,
    /// Bytes of disks.
    pub disk_bytes: u64,
    /// Nodes.
    pub nodes: u32,
    /// Members.
    pub members: u32,
    /// API keys.
    pub keys: u32,
}

/// Quota and use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaReport {
    /// What is allowed.
    pub quota: Quota,
    /// What is used.
    pub in_use: InUse,
}

/// What may be spent in a calendar month (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Tell the billing members from here on, in nano-dollars.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000_000_000_u64)]
    pub alert_nano_dollars: Option<u64>,
    /// Refuse new writes and provisioning from here on, in nano-dollars. What was acknowledged is still flushed; reads,
    /// deletes, export and cleaning go on.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000_000_000_u64)]
    pub hard_cap_nano_dollars: Option<u64>,
}
