//! The hash of a public key, as part of a name that nobody else can have: the first 16 bytes of its SHA-256, as 32 digits.
//!
//! Whoever wants another's name would need a key of the same hash (2¹²⁸ tries), and its private half.

use crate::VerifyingKey;
use aws_lc_rs::digest::{SHA256, digest};
use std::fmt;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash([u8; 16]);

impl KeyHash {
    /// The hash of a key.
    pub fn of(key: &VerifyingKey) -> Self {
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest(&SHA256, &key.to_bytes()).as_ref()[..16]);
        Self(hash)
    }

    /// Reads what `Display` writes; nothing for any other text.
    pub fn parse(digits: &str) -> Option<Self> {
        firn_ids::parse_hex(digits).map(Self)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        firn_ids::Hex(&self.0).fmt(formatter)
    }
}
