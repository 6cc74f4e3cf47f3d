//! Names that travel in records: of tenants, of resources, of those who observe.
//!
//! One narrow alphabet for all of them: printable ASCII that means nothing to a shell, a path, a spreadsheet or a table's key
//! design, so a name can stand anywhere unescaped. Look-alike letters and invisible characters cannot be written at all.

use firn_ids::TenantId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A text that is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing, or more than the kind of name allows.
    #[error("a {kind} has 1 to {longest} characters, this has {length}")]
    Length {
        /// What was to be named.
        kind: &'static str,
        /// The limit.
        longest: usize,
        /// What was given.
        length: usize,
    },
    /// A character outside the alphabet, or a first one that is no letter or digit.
    #[error(
        "a {kind} is made of letters, digits and '.', '_', '-', '/', and begins with a letter or digit (byte {position} is not)"
    )]
    Character {
        /// What was to be named.
        kind: &'static str,
        /// Where.
        position: usize,
    },
}

fn check(kind: &'static str, longest: usize, text: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > longest {
        return Err(NameError::Length {
            kind,
            longest,
            length: text.len(),
        });
    }
    let wrong = text.bytes().enumerate().find(|(position, byte)| {
        !byte.is_ascii_alphanumeric() && (*position == 0 || !matches!(byte, b'.' | b'_' | b'-' | b'/'))
    });
    match wrong {
        Some((position, _)) => Err(NameError::Character { kind, position }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $longest:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The longest there may be, in bytes.
            pub const MAX_BYTES: usize = $longest;

            /// Takes a text for a name.
            ///
            /// # Errors
            /// [`NameError`] if it is not one.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check($kind, $longest, text)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name! {
    /// Who pays, as the ledger calls them: in an installation the text of their [`TenantId`], and whatever a batch from outside
    /// says until it was held against who sent it.
    TenantName, "tenant", 64
}
name! {
    /// What was used: `volume/7f3a`, `disk/db-1`, `api`.
    ResourceName, "resource", 128
}
name! {
    /// Who observed it: `api/1`, `cleaner/eu`, `node/12`, `edge/7f3a`. The receiver holds it against the sender's
    /// authenticated identity.
    SourceId, "source", 64
}

/// Between a volume and the grantee that used it.
const BY: &str = "/by/";

impl ResourceName {
    /// A volume: `volume/VOLUME`, or what a grantee used of it: `volume/VOLUME/by/TENANT/EDGE`.
    ///
    /// # Errors
    /// [`NameError`] if these are no names.
    pub fn of_volume(volume: &str, grantee: Option<&str>) -> Result<Self, NameError> {
        match grantee {
            None => Self::new(&format!("volume/{volume}")),
            Some(grantee) => Self::new(&format!("volume/{volume}{BY}{grantee}")),
        }
    }

    /// The volume that it is, and the grantee that used it, as [`Self::of_volume`] takes them.
    pub fn volume(&self) -> Option<(&str, Option<&str>)> {
        let volume = self.0.strip_prefix("volume/")?;
        Some(match volume.split_once(BY) {
            Some((volume, grantee)) => (volume, Some(grantee)),
            None => (volume, None),
        })
    }
}

impl From<TenantId> for TenantName {
    fn from(tenant: TenantId) -> Self {
        Self(tenant.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for text in ["a", "volume/7f3a", "A.b_c-d/e", "0"] {
            assert_eq!(
                ResourceName::new(text).map(|name| name.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            " a",
            "/a",
            "-a",
            "=1+1",
            "@x",
            "a b",
            "a\0",
            "vоlume",
            "a\u{202e}b",
            "a,b",
            "a|b",
        ] {
            assert!(ResourceName::new(text).is_err(), "{text:?}");
        }
        for (text, read) in [
            ("volume/7f3a", Some(("7f3a", None))),
            ("volume/7f3a/by/t/e", Some(("7f3a", Some("t/e")))),
            ("disk/7f3a/by/t/e", None),
        ] {
            let name = ResourceName::new(text).unwrap();
            assert_eq!(name.volume(), read);
            assert!(read.is_none_or(|(volume, by)| ResourceName::of_volume(volume, by) == Ok(name)));
        }
        let longest = format!("{}/{}", TenantId([0xa0; 16]), "e".repeat(37));
        assert!(ResourceName::of_volume(&"v".repeat(36), Some(&longest)).is_ok());
        let tenant = TenantName::from(TenantId([0xa0; 16]));
        assert_eq!(TenantName::new(tenant.as_str()), Ok(tenant));
        assert!(TenantName::new(&"x".repeat(64)).is_ok());
        assert!(TenantName::new(&"x".repeat(65)).is_err());
    }
}
