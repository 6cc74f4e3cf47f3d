//! The rekey of a volume, as the service asks for it and as the edge that serves the volume reports it (decision 0172).
//!
//! An order names the key epoch that the volume is to be brought to, so an edge that restarts, or takes the volume over, obeys it again
//! without harm: where nothing is older there is nothing to do, and a later rotation begins no rekey that nobody asked for.

use serde::{Deserialize, Serialize};

/// The most snapshots that a report names; it counts the others.
pub const NAMED_SNAPSHOTS_MAX: usize = 8;

/// What is wanted of a volume's rekey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredRekey {
    /// Rises with each order; the first is 1.
    pub number: u64,
    /// Nothing in the live tree is to be sealed under an older epoch than this.
    pub to_epoch: u32,
    /// Read and written a second, at most.
    pub bytes_per_second: u64,
    /// Whether a rekey that is under way is to end; what it did stays done.
    pub is_stopped: bool,
}

/// How a volume's rekey stands, once the service asked for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ObservedRekey {
    /// The order that was obeyed last; 0: none yet.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 9_007_199_254_740_992_u64))]
    pub number: u64,
    /// What is written now is sealed under this key epoch.
    pub newest_epoch: u32,
    /// Nothing in the live tree is older; absent: not known before a rekey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_epoch: Option<u32>,
    /// The same with the snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_epoch_needed: Option<u32>,
    /// The epoch to which a rekey is under way; absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way_to: Option<u32>,
    /// Sealed anew by the rekey that is under way, or else by the last one.
    #[serde(default)]
    pub resealed_bytes: u64,
    /// What the one that is under way has still to look at.
    #[serde(default)]
    pub left_bytes: u64,
    /// Objects that could not be read, and so not sealed anew.
    #[serde(default)]
    pub unreadable_objects: u64,
    /// How the last one ended: `done`, `stopped` or `unreadable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub last_end: Option<String>,
    /// Names of snapshots that still need older keys, the oldest first: [`NAMED_SNAPSHOTS_MAX`] at most.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 8))]
    pub old_snapshots: Vec<String>,
    /// How many need them.
    #[serde(default)]
    pub old_snapshot_count: u64,
    /// Why the newest order was not obeyed yet; it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub waits: Option<String>,
}

impl ObservedRekey {
    /// Whether it is of a size that is stored.
    pub(crate) fn fits(&self, is_long: impl Fn(&str) -> bool) -> bool {
        let texts = self.old_snapshots.iter().chain(&self.last_end).chain(&self.waits);
        self.old_snapshots.len() <= NAMED_SNAPSHOTS_MAX && !texts.into_iter().any(|text| is_long(text))
    }
}
