//! Trust pins of volumes and of invited edges (trust on first use), so that a service that changes its mind is noticed.
//!
//! A volume's family never changes and its key rings only grow; an invitation is for the volumes that were named when it was made.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// The newest that was seen of a volume's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedVolume {
    /// The family of its key rings, as in the bucket; none: a profile of version 1 did not say.
    #[serde(default)]
    pub family: Option<String>,
    /// The newest ring's generation.
    pub generation: u64,
    /// BLAKE3 of that ring, 64 hex digits; none: a profile of version 1 did not say.
    #[serde(default)]
    pub hash: Option<String>,
    /// Whether a ring was seen that is signed for this volume: then later ones are.
    #[serde(default)]
    pub bound: bool,
    /// What it was called then.
    #[serde(default)]
    pub name: String,
}

/// An edge that was invited here and is not approved yet.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedInvitation {
    /// The join secret.
    pub secret: String,
    /// The ids of the volumes it was invited to; none: a profile of version 1 did not say.
    #[serde(default)]
    pub volumes: Option<Vec<String>>,
}

impl Drop for PinnedInvitation {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}
