//! Format errors: what is wrong with bytes, said so that a reader of the message knows what is safe and what to do.

use crate::{Place, Uid};
use std::fmt;

/// What was being decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An object.
    Object,
    /// A pointer or location on its own.
    Pointer,
    /// A segment.
    Segment,
    /// A segment's footer, fetched alone.
    SegmentFooter,
    /// A segment's index, fetched alone.
    SegmentIndex,
    /// A checkpoint's plain section.
    Checkpoint,
    /// A leaf of the usage map.
    UsageLeaf,
    /// A part of the manifest.
    Manifest,
    /// A forwarding record.
    Forwarding,
    /// A journal file's header.
    JournalHeader,
    /// A key ring.
    KeyRing,
    /// A format that another crate defines.
    Other(&'static str),
}

impl fmt::Display for What {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Object => "object",
            Self::Pointer => "pointer",
            Self::Segment => "segment",
            Self::SegmentFooter => "segment footer",
            Self::SegmentIndex => "segment index",
            Self::Checkpoint => "checkpoint",
            Self::UsageLeaf => "usage leaf",
            Self::Manifest => "manifest",
            Self::Forwarding => "forwarding record",
            Self::JournalHeader => "journal header",
            Self::KeyRing => "key ring",
            Self::Other(name) => name,
        })
    }
}

/// Bytes that are not what they were read as. Nothing was changed by finding out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end early.
    #[error("{what} is cut short: {needed} bytes needed at offset {offset}, {found} there")]
    Truncated {
        /// What was being decoded.
        what: What,
        /// Where the bytes were wanted.
        offset: usize,
        /// How many were wanted.
        needed: usize,
        /// How many were left.
        found: usize,
    },

    /// Bytes follow where the thing ends.
    #[error("{what} ends at offset {offset} but {extra} bytes follow")]
    Trailing {
        /// What was being decoded.
        what: What,
        /// Where it ends.
        offset: usize,
        /// How many bytes follow.
        extra: usize,
    },

    /// The first bytes are not those of this format at all.
    #[error("not a firn {what}: the bytes at offset {offset} are not its magic number")]
    BadMagic {
        /// What was expected.
        what: What,
        /// Where its magic number should be.
        offset: usize,
    },

    /// A version this build cannot read.
    #[error(
        "{what} has format version {found}; this build reads {oldest} to {newest}: use a build of firn that reads version {found}"
    )]
    UnknownVersion {
        /// What was being decoded.
        what: What,
        /// The version found.
        found: u8,
        /// The oldest version this build reads.
        oldest: u8,
        /// The newest version this build reads (and the one it writes).
        newest: u8,
    },

    /// A feature flag that a reader must know and this build does not.
    #[error("{what} needs features {flags:#06x} that this build does not know: use a newer build of firn")]
    UnknownFeatures {
        /// What was being decoded.
        what: What,
        /// The flags that are not known.
        flags: u16,
    },

    /// A field has a value it cannot have.
    #[error("{what} has {field} = {found} at offset {offset}; expected {expected}")]
    Invalid {
        /// What was being decoded.
        what: What,
        /// Which field.
        field: &'static str,
        /// Where the field is.
        offset: usize,
        /// Its value.
        found: u64,
        /// What would have been right.
        expected: &'static str,
    },

    /// A checksum does not match: damage in storage or transport.
    #[error(
        "{what} is damaged: checksum of its {part} is {found:#010x}, {expected:#010x} was stored at offset {offset}"
    )]
    Checksum {
        /// What was being decoded.
        what: What,
        /// Which part of it the checksum covers.
        part: &'static str,
        /// Where the checksum is stored.
        offset: usize,
        /// The checksum stored.
        expected: u32,
        /// The checksum of the bytes found.
        found: u32,
    },

    /// The object is not the one that was asked for: it is damaged, or another was put in its stead.
    #[error("object at {place} is not the one asked for: uid {expected} expected, {found} found")]
    WrongUid {
        /// Where it was reached; if that is not known, where the object found says that it stands (which then is all
        /// there is to tell whose it is).
        place: Place,
        /// The uid asked for.
        expected: Uid,
        /// The uid of the bytes found.
        found: Uid,
    },

    /// The object stands at another place than the one it was reached by.
    #[error("object {uid} was reached at {expected} but belongs at {found}")]
    WrongPlace {
        /// The object.
        uid: Uid,
        /// Where it was reached.
        expected: Place,
        /// Where it says it stands.
        found: Place,
    },
}
