//! Signed reports of audits, as edges bring them and members see them.

use firn_identity::{EdgeId, UnixTime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Brings the report of an audit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAuditReport {
    /// The signed file (docs/formats.md), as it is.
    #[schema(min_length = 1, max_length = 98_304)]
    pub report: String,
}

/// A report is kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditReportFiled {
    /// Its number.
    #[schema(maximum = 9_007_199_254_740_992_u64)]
    pub sequence: u64,
    /// Its hash, 64 hex digits.
    pub hash: String,
}

/// The report of an audit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditReportFile {
    /// Which report of the volume's it is, from 1.
    #[schema(maximum = 9_007_199_254_740_992_u64)]
    pub sequence: u64,
    /// Which edge brought it.
    #[schema(value_type = String)]
    pub edge: EdgeId,
    /// When.
    #[schema(value_type = u64)]
    pub at: UnixTime,
    /// The signed file: verify it, and that each has the hash of the one before.
    pub report: String,
}
