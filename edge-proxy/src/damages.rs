//! Damages that a running edge knows of, as its status shows them.

use firn_volume::{DamageKind, KnownDamage};
use serde::{Deserialize, Serialize};

/// An object that the store has lost or altered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DamagePart {
    /// The file it belongs to, or which part of the volume; absent if that cannot be read.
    pub path: Option<String>,
    pub inode: u64,
    /// `damaged` or `missing`.
    pub kind: String,
    pub segment: String,
    pub detail: String,
    /// Milliseconds since 1970.
    pub found_at_ms: i64,
}

impl DamagePart {
    /// The file, for people.
    pub fn file(&self) -> String {
        self.path
            .clone()
            .unwrap_or_else(|| format!("inode {}", self.inode))
    }
}

impl From<KnownDamage> for DamagePart {
    fn from(known: KnownDamage) -> Self {
        let kind = match known.kind {
            DamageKind::Damaged => "damaged",
            DamageKind::Missing => "missing",
        };
        Self {
            inode: known.inode(),
            path: known.path.flatten(),
            kind: kind.into(),
            segment: known.segment.to_string(),
            detail: known.detail,
            found_at_ms: known.found_at.as_millis(),
        }
    }
}
