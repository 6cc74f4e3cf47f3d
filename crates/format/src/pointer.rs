//! Pointers: what an object is (its uid) and where it was last seen (its location).
//!
//! ```text
//! location (24) = writer u64 | sequence u64 | offset u32 | length u32        little-endian
//! pointer  (56) = uid [32] | location
//! ```

use crate::{FormatError, SegmentId, Uid, What, WriterId, cursor::Cursor};
use std::fmt;

/// Where an object lies: one ranged GET of one segment. Only ever a hint: what is fetched is checked against the uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The segment.
    pub segment: SegmentId,
    /// The object's first byte within it.
    pub offset: u32,
    /// The object's bytes.
    pub length: u32,
}

impl Location {
    /// Bytes of an encoded location.
    pub const BYTES: usize = 24;

    /// Nowhere: what a pointer holds whose object has not been put anywhere yet. No segment begins with an object, so no
    /// real location equals it.
    pub const UNKNOWN: Self = Self {
        segment: SegmentId {
            writer: WriterId(0),
            sequence: 0,
        },
        offset: 0,
        length: 0,
    };

    /// Encodes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&self.segment.writer.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.segment.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.offset.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes; every bit pattern is a location.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut cursor = Cursor::new(What::Pointer, bytes);
        Self::read(&mut cursor).expect("the array is long enough")
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            segment: SegmentId {
                writer: WriterId(cursor.u64()?),
                sequence: cursor.u64()?,
            },
            offset: cursor.u32()?,
            length: cursor.u32()?,
        })
    }

    /// The first byte after the object, for the range of a GET.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.length)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}+{}:{}", self.segment, self.offset, self.length)
    }
}

/// What an object is and where it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    /// The hash of the object.
    pub uid: Uid,
    /// Where to look first.
    pub location: Location,
}

impl Pointer {
    /// Bytes of an encoded pointer.
    pub const BYTES: usize = 32 + Location::BYTES;

    /// Encodes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..32].copy_from_slice(&self.uid.0);
        bytes[32..].copy_from_slice(&self.location.to_bytes());
        bytes
    }

    /// Decodes; every bit pattern is a pointer.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut cursor = Cursor::new(What::Pointer, bytes);
        let uid = Uid(cursor.array().expect("the array is long enough"));
        let location = Location::read(&mut cursor).expect("the array is long enough");
        Self { uid, location }
    }
}

/// One filled slot of an object that points to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Child {
    /// Which slot; what it means is the parent's business (for a node: the next digit of the index).
    pub slot: u16,
    /// What stands there.
    pub pointer: Pointer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_56_bytes_are_a_pointer_and_encode_to_themselves(bytes in proptest::array::uniform32(any::<u8>()), tail in proptest::array::uniform24(any::<u8>())) {
            let mut whole = [0; Pointer::BYTES];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&tail);
            let pointer = Pointer::from_bytes(&whole);
            prop_assert_eq!(pointer.to_bytes(), whole);
            prop_assert_eq!(Location::from_bytes(&tail), pointer.location);
            prop_assert_eq!(pointer.location.to_bytes(), tail);
        }
    }
}
