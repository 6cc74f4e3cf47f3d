//! Names of tenants and of what belongs to them: 128 random bits with a prefix that tells what they name.
//!
//! As text `ten_` and 32 hex digits, so that a person who pastes a disk's name where a tenant's belongs is told so.

use crate::secret::Entropy;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// A text that is no name of this kind. It is not repeated: it may be a secret put in the wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a name of the form {prefix}_ and 32 lower-case hex digits")]
pub struct BadName {
    /// How names of the wanted kind begin.
    pub prefix: &'static str,
}

macro_rules! names {
    ($($(#[$meta:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// How its text begins, before `_`.
            pub const PREFIX: &'static str = $prefix;

            /// A new name.
            pub fn random(entropy: Entropy<'_>) -> Self {
                let mut bytes = [0; 16];
                entropy(&mut bytes);
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(concat!($prefix, "_"))?;
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                parse($prefix, text).map(Self).ok_or(BadName { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

names! {
    /// A customer.
    TenantId = "ten";
    /// A person of a tenant's.
    MemberId = "mem";
    /// An API key (its name, not its secret).
    KeyId = "key";
    /// A volume.
    VolumeId = "vol";
    /// An edge proxy.
    EdgeId = "edg";
    /// A virtual disk.
    DiskId = "dsk";
    /// A blockd node.
    NodeId = "nod";
    /// One token.
    TokenId = "tok";
}

fn parse(prefix: &str, text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(prefix)?.strip_prefix('_')?;
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    HEXLOWER.decode_mut(digits.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}
