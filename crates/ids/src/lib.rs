//! Identifiers of tenants and of what belongs to them: 16 random bytes, one type for each kind, used by every crate.
//!
//! ```text
//! text, for people and in JSON    ten_0123456789abcdef0123456789abcdef     prefix, `_`, 32 digits      36 bytes
//! digits, in keys and paths           0123456789abcdef0123456789abcdef     lower-case hexadecimal      32 bytes
//! bytes, on wires and disks       as they are                                                          16 bytes
//! ```
//!
//! The prefix tells a person who pastes a disk's id where a tenant's belongs what is wrong. An id has one spelling of each
//! form, lower case only, so that two keys never name one thing; [`str::parse`] takes the text, `from_hex` the digits.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// A text that is no id of the wanted kind. It is not repeated: it may be a secret put in the wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id of the form {prefix}_ and 32 lower-case hex digits")]
pub struct ParseIdError {
    /// How ids of the wanted kind begin.
    pub prefix: &'static str,
}

/// Bytes written as lower-case hexadecimal digits, two a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", HEXLOWER.encode_display(self.0))
    }
}

/// Reads exactly `N` bytes of lower-case hexadecimal digits; `None` for any other text, upper-case digits among them.
pub fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

/// Fields of records that hold an id as its digits: `#[serde(with = "firn_ids::digits")]`.
pub mod digits {
    use super::{Hex, parse_hex};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes an id as `hex` does.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T, S>(id: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Copy + Into<[u8; 16]>,
        S: Serializer,
    {
        serializer.collect_str(&Hex(&(*id).into()))
    }

    /// Reads an id as `from_hex` does.
    ///
    /// # Errors
    /// For any text but 32 lower-case hexadecimal digits.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: From<[u8; 16]>,
        D: Deserializer<'de>,
    {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        parse_hex(&text)
            .map(|bytes: [u8; 16]| bytes.into())
            .ok_or_else(|| D::Error::custom("not an id of 32 lower-case hex digits"))
    }
}

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// How its text begins, before `_`.
            pub const PREFIX: &'static str = $prefix;

            /// A new id out of `entropy`, which fills what it is handed with random bytes.
            pub fn random(entropy: &mut dyn FnMut(&mut [u8])) -> Self {
                let mut bytes = [0; 16];
                entropy(&mut bytes);
                Self(bytes)
            }

            /// The digits without the prefix: its form in keys of tables and stores, and in paths.
            pub fn hex(&self) -> Hex<'_> {
                Hex(&self.0)
            }

            /// Reads [`Self::hex`] back.
            ///
            /// # Errors
            /// [`ParseIdError`] for any text but 32 lower-case hexadecimal digits.
            pub fn from_hex(digits: &str) -> Result<Self, ParseIdError> {
                parse_hex(digits).map(Self).ok_or(ParseIdError { prefix: $prefix })
            }
        }

        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for [u8; 16] {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "_{}"), self.hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(parse_hex)
                    .map(Self)
                    .ok_or(ParseIdError { prefix: $prefix })
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

ids! {
    /// A customer: whose it all is, the unit of isolation, of fair queueing and of the bill.
    TenantId = "ten";
    /// A person of a tenant's.
    MemberId = "mem";
    /// An API key (its name, not its secret).
    KeyId = "key";
    /// A volume: a branch of a family, with a head root and its snapshots.
    VolumeId = "vol";
    /// An edge proxy.
    EdgeId = "edg";
    /// A virtual disk; never used again after it was deleted.
    DiskId = "dsk";
    /// A disk node, which is one process on one physical disk; drawn when its disk is formatted.
    NodeId = "nod";
    /// One token.
    TokenId = "tok";
}
