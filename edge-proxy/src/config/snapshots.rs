//! `[snapshots]`: which are made and kept by themselves.

use firn_quantity::{Size, Span};
use serde::Deserialize;

/// Which snapshots are made and kept by themselves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotsSection {
    /// Whether `.snapshots` is shown in listings of the root.
    pub visible: bool,
    pub every: Option<Span>,
    pub after_written: Option<Size>,
    pub keep_last: u32,
    pub keep_hourly: u32,
    pub keep_daily: u32,
    pub keep_weekly: u32,
    pub keep_monthly: u32,
    pub time_zone: String,
}

impl Default for SnapshotsSection {
    fn default() -> Self {
        Self {
            visible: false,
            every: None,
            after_written: None,
            keep_last: 4,
            keep_hourly: 24,
            keep_daily: 7,
            keep_weekly: 4,
            keep_monthly: 12,
            time_zone: "UTC".into(),
        }
    }
}
