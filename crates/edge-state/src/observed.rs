//! Observed state, as an edge reports it. Sizes in bytes, times in milliseconds. Its names are of the service's making and its
//! errors are shortened: nothing of it names a file, or what is in one.

use crate::{NewWrites, ObservedRekey, VOLUMES_MAX};
use firn_identity::VolumeId;
use serde::{Deserialize, Serialize};

/// The longest text in an observed state.
pub const TEXT_BYTES_MAX: usize = 400;

/// What an edge says of itself. Fields that a service does not know are passed over: edges may be newer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ObservedState {
    /// The version of its program.
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub version: String,
    /// The generation of the desired state that is in force; 0: none yet.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 9_007_199_254_740_992_u64))]
    pub in_force: u64,
    /// What it refused last, if that was after what is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedState>,
    /// The volumes it serves.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub volumes: Vec<ObservedVolume>,
}

/// A desired state that an edge refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RefusedState {
    /// Its generation, if it was signed for this edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Why, and what to do.
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub why: String,
}

/// By whose word snapshots are made and deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SnapshotSource {
    /// Nobody's: none are made.
    #[default]
    Nobody,
    /// The service's policy of the volume.
    Service,
    /// The configuration of the edge, which goes before the service's.
    Edge,
}

/// How a volume stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ObservedVolume {
    /// Which.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub volume: VolumeId,
    /// `serving`, `detached` (served without the cloud), `stopping`, `fenced` or `failed`.
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub state: String,
    /// Whether clients may add data.
    #[serde(default)]
    pub new_writes: NewWrites,
    /// By whose word snapshots are made.
    #[serde(default)]
    pub snapshots: SnapshotSource,
    /// Since it was opened.
    #[serde(default)]
    pub up_ms: u64,
    /// How far the cloud is behind (level 2): the age of the oldest change that is not committed. Absent: nothing waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// Written and not committed: only on the edge's disk (level 1).
    #[serde(default)]
    pub dirty_bytes: u64,
    /// Data, as `df` counts it.
    #[serde(default)]
    pub used_bytes: u64,
    /// The cache on the edge's disk.
    #[serde(default)]
    pub cache_bytes: u64,
    /// How large it may become.
    #[serde(default)]
    pub cache_limit_bytes: u64,
    /// Connections of clients.
    #[serde(default)]
    pub clients: u64,
    /// Why the last try to commit failed; absent once one succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 400))]
    pub last_error: Option<String>,
    /// How its rekey stands, once the service asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rekey: Option<ObservedRekey>,
}

impl ObservedState {
    /// Whether it is of a size that is stored.
    ///
    /// # Errors
    /// Which field is too large.
    pub fn check(&self) -> Result<(), &'static str> {
        let long = |text: &str| text.len() > TEXT_BYTES_MAX;
        if long(&self.version) {
            return Err("version");
        }
        if self.refused.as_ref().is_some_and(|refused| long(&refused.why)) {
            return Err("refused.why");
        }
        if self.volumes.len() > VOLUMES_MAX {
            return Err("volumes");
        }
        let is_long = |volume: &ObservedVolume| {
            long(&volume.state)
                || volume.last_error.as_deref().is_some_and(long)
                || volume.rekey.as_ref().is_some_and(|rekey| !rekey.fits(long))
        };
        if self.volumes.iter().any(is_long) {
            return Err("volumes");
        }
        Ok(())
    }
}

/// A text of at most [`TEXT_BYTES_MAX`] bytes: what is too long ends in an ellipsis.
pub fn shortened(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX - ELLIPSIS.len());
    format!("{}{ELLIPSIS}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NAMED_SNAPSHOTS_MAX;

    #[test]
    fn a_text_is_shortened_between_characters_and_then_fits() {
        assert_eq!(shortened("short"), "short");
        for text in ["x".repeat(2 * TEXT_BYTES_MAX), "ß€𝕏".repeat(TEXT_BYTES_MAX)] {
            let short = shortened(&text);
            assert!(short.len() <= TEXT_BYTES_MAX && short.ends_with('…'));
            assert!(short.len() > TEXT_BYTES_MAX - 8);
        }
    }

    #[test]
    fn what_a_newer_edge_says_beside_is_passed_over_and_what_is_too_large_is_named() {
        let text = r#"{"version":"9","mood":"fine","volumes":[{"volume":"vol_03030303030303030303030303030303","state":"serving","x":1}]}"#;
        let observed: ObservedState = serde_json::from_str(text).expect("it is read");
        assert_eq!((observed.in_force, observed.volumes.len()), (0, 1));
        assert_eq!(observed.check(), Ok(()));
        let large = ObservedState {
            version: "9".repeat(TEXT_BYTES_MAX + 1),
            ..ObservedState::default()
        };
        assert_eq!(large.check(), Err("version"));
        let many = ObservedState {
            volumes: vec![observed.volumes[0].clone(); VOLUMES_MAX + 1],
            ..ObservedState::default()
        };
        assert_eq!(many.check(), Err("volumes"));
        let rekey = |snapshots: usize, bytes: usize| {
            let mut volume = observed.volumes[0].clone();
            volume.rekey = Some(ObservedRekey {
                old_snapshots: vec!["s".repeat(bytes); snapshots],
                ..ObservedRekey::default()
            });
            let volumes = vec![volume];
            ObservedState {
                volumes,
                ..ObservedState::default()
            }
            .check()
        };
        assert_eq!(rekey(NAMED_SNAPSHOTS_MAX, TEXT_BYTES_MAX), Ok(()));
        assert_eq!(rekey(NAMED_SNAPSHOTS_MAX + 1, 1), Err("volumes"));
        assert_eq!(rekey(1, TEXT_BYTES_MAX + 1), Err("volumes"));
    }
}
