//! Names of things: families, volumes, writers, segments, versions, epochs and objects.

pub use firn_ids::VolumeId;

use firn_ids::Hex;
use std::{fmt, str::FromStr};

/// A text that is not the hexadecimal form of the id it was read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is written as {digits} hexadecimal digits")]
pub struct ParseIdError {
    what: &'static str,
    digits: usize,
}

fn parse_hex<const N: usize>(what: &'static str, text: &str) -> Result<[u8; N], ParseIdError> {
    firn_ids::parse_hex(text).ok_or(ParseIdError { what, digits: 2 * N })
}

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $length:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $length]);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                Hex(&self.0).fmt(formatter)
            }
        }

        /// The first eight digits: enough to tell ids apart in a log line.
        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({}…)"), Hex(&self.0[..4]))
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex($what, text).map(Self)
            }
        }
    };
}

byte_id! {
    /// One log with one key space under one bucket prefix; volumes are its branches. Random, made once.
    FamilyId, 16, "a family id"
}
byte_id! {
    /// The BLAKE3 hash of an object, but for the locations of its children.
    Uid, 32, "a uid"
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $number:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }

        impl $name {
            /// The one after this.
            ///
            /// # Panics
            /// If the numbers are used up, which counting from zero cannot reach.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("ids are never used up"))
            }
        }
    };
}

number_id! {
    /// One incarnation of a writer. A new one is taken from the family at every start, so that a segment name never has
    /// two contents.
    WriterId, u64
}
number_id! {
    /// Counts the commits of a branch; an object's birth is the version that first held it.
    Version, u64
}
number_id! {
    /// Counts the owners of a volume: each takeover raises it, and a commit under an older one is refused.
    OwnershipEpoch, u64
}
number_id! {
    /// Counts the keys of a family: each rotation raises it.
    KeyEpoch, u32
}

/// The name of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Who wrote it.
    pub writer: WriterId,
    /// Counts the segments of one writer.
    pub sequence: u64,
}

impl SegmentId {
    /// The object key in the family's bucket: `<family>/log/<writer>/<sequence>`, all hexadecimal, so that a listing is
    /// in order.
    pub fn key(&self, family: &FamilyId) -> String {
        format!("{family}/log/{:016x}/{:016x}", self.writer.0, self.sequence)
    }

    /// Reads [`SegmentId::key`] back, as a listing gives it; `None` for any other text.
    pub fn parse_key(key: &str) -> Option<(FamilyId, Self)> {
        let mut parts = key.split('/');
        let family = parts.next()?.parse().ok()?;
        let ("log", writer, sequence, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next())
        else {
            return None;
        };
        let writer = WriterId(u64::from_be_bytes(parse_hex("a writer id", writer).ok()?));
        let sequence = u64::from_be_bytes(parse_hex("a sequence", sequence).ok()?);
        Some((family, Self { writer, sequence }))
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}/{:x}", self.writer.0, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_key_is_read_back_and_nothing_else_is() {
        let family = FamilyId([0xab; 16]);
        let id = SegmentId {
            writer: WriterId(7),
            sequence: 0x1f,
        };
        let key = id.key(&family);
        assert_eq!(
            key,
            format!("{}/log/0000000000000007/000000000000001f", "ab".repeat(16))
        );
        assert_eq!(SegmentId::parse_key(&key), Some((family, id)));

        assert_eq!(SegmentId::parse_key(&key.to_uppercase()), None);
        assert_eq!(SegmentId::parse_key(&key.replace("/log/", "/keyring/")), None);
        assert_eq!(SegmentId::parse_key(&format!("{key}/more")), None);
        assert_eq!(SegmentId::parse_key(&key[1..]), None);
        assert_eq!(SegmentId::parse_key(&key[..key.len() - 1]), None);
        assert_eq!(SegmentId::parse_key("é"), None);
    }

    #[test]
    fn ids_print_whole_for_people_and_short_for_logs() {
        let uid = Uid([0xc0; 32]);
        assert_eq!(uid.to_string(), "c0".repeat(32));
        assert_eq!(format!("{uid:?}"), "Uid(c0c0c0c0…)");
        assert_eq!(uid.to_string().parse(), Ok(uid));
        assert_eq!(
            "zz".parse::<Uid>().unwrap_err().to_string(),
            "a uid is written as 64 hexadecimal digits"
        );
    }
}
