//! The usage map: how many bytes of each segment the head of a volume still needs.
//!
//! A leaf is an object of kind Block at the place (2, 0, index) whose *plain* section holds the live bytes of 128
//! consecutive segments of one writer; its sealed payload is empty. Above the leaves stand nodes as in every map.
//!
//! ```text
//! index = writer << 25 | sequence >> 7        for writers below 2^39 and sequences below 2^32
//! slot  = sequence & 127
//!
//! plain (516)   0  version u8 | reserved u8 | features u16
//!               4  live_bytes u32 × 128
//! ```
//!
//! The figure is a hint: an error in it costs the cleaner work, never anybody data. It counts what the head points to and
//! nothing that only a snapshot needs; not checkpoints, the usage map itself, the manifest and the nodes of the orphan map, which (but
//! for the manifest, written after the usage map) every commit writes anew ([`UsageLeaf::counts`]). A leaf that is missing stands for 128 zeros, so a segment nobody needs costs nothing.
//! Segments beyond the two bounds have no place in the map; the cleaner then looks for itself.

use crate::{
    CHECKPOINTS, Features, FormatError, Kind, MANIFEST, ORPHAN_MAP, Place, SegmentId, USAGE_MAP,
    VerifiedObject, What, WriterId, cursor::Cursor,
};
use bytes::{BufMut, Bytes, BytesMut};

/// The version of the usage format that this build writes.
pub const USAGE_VERSION: u8 = 1;
pub(crate) const OLDEST_VERSION: u8 = 1;

/// Segments of one leaf: a leaf of about 700 bytes speaks of 512 MiB of log.
pub const USAGE_SEGMENTS: usize = 128;
const SEQUENCE_BITS: u32 = 7;
/// 2^32 segments of 4 MiB are 16 EiB of one incarnation of a writer.
const MAX_SEQUENCE: u64 = u32::MAX as u64;
const WRITER_SHIFT: u32 = 25;
/// A start every second reaches this bound in 17,000 years.
const MAX_WRITER: u64 = (1 << (u64::BITS - WRITER_SHIFT)) - 1;
const PLAIN_BYTES: usize = 4 + 4 * USAGE_SEGMENTS;

/// Where in the usage map a segment's figure is: the index of the leaf and the slot in it. `None` for a segment beyond what
/// the map can name.
pub const fn usage_slot(segment: SegmentId) -> Option<(u64, usize)> {
    if segment.writer.0 > MAX_WRITER || segment.sequence > MAX_SEQUENCE {
        return None;
    }
    let index = segment.writer.0 << WRITER_SHIFT | segment.sequence >> SEQUENCE_BITS;
    Some((index, segment.sequence as usize % USAGE_SEGMENTS))
}

/// The segment that this slot of a leaf tells of: the reverse of [`usage_slot`].
pub const fn usage_segment(index: u64, slot: usize) -> SegmentId {
    let in_writer = index & ((1 << WRITER_SHIFT) - 1);
    SegmentId {
        writer: WriterId(index >> WRITER_SHIFT),
        sequence: (in_writer << SEQUENCE_BITS) | (slot as u64 % USAGE_SEGMENTS as u64),
    }
}

/// The live bytes of 128 consecutive segments of one writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLeaf {
    /// By slot.
    pub live_bytes: [u32; USAGE_SEGMENTS],
}

impl Default for UsageLeaf {
    fn default() -> Self {
        Self {
            live_bytes: [0; USAGE_SEGMENTS],
        }
    }
}

impl UsageLeaf {
    /// The place of a leaf.
    pub const fn place(index: u64) -> Place {
        Place {
            inode: USAGE_MAP,
            level: 0,
            index,
        }
    }

    /// Whether the bytes of what stands at a place are counted. What every commit writes anew is not: it is garbage a moment
    /// later, and counting it would change the map that counts it.
    pub const fn counts(place: Place) -> bool {
        match place.inode {
            USAGE_MAP | CHECKPOINTS | MANIFEST => false,
            ORPHAN_MAP => place.level == 0,
            _ => true,
        }
    }

    /// Whether nothing in these segments is needed, so that the leaf may be left out of the map.
    pub fn is_empty(&self) -> bool {
        self.live_bytes.iter().all(|live| *live == 0)
    }

    /// The plain section of the object that holds this leaf.
    pub fn to_plain(&self) -> Bytes {
        let mut plain = BytesMut::with_capacity(PLAIN_BYTES);
        plain.put_u8(USAGE_VERSION);
        plain.put_u8(0);
        plain.put_u16_le(Features::NONE.0);
        for live in self.live_bytes {
            plain.put_u32_le(live);
        }
        plain.freeze()
    }

    /// Reads a plain section.
    ///
    /// # Errors
    /// If it is not one that this build can read.
    pub fn from_plain(plain: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(What::UsageLeaf, plain);
        cursor.version(OLDEST_VERSION, USAGE_VERSION)?;
        cursor.reserved::<1>()?;
        cursor.features()?;
        let mut leaf = Self::default();
        for live in &mut leaf.live_bytes {
            *live = cursor.u32()?;
        }
        cursor.end()?;
        Ok(leaf)
    }

    /// Reads the leaf that a verified object holds.
    ///
    /// # Errors
    /// If the object is not a leaf of the usage map, or is malformed.
    pub fn from_verified(object: &VerifiedObject) -> Result<Self, FormatError> {
        let header = &object.header;
        if header.kind != Kind::Block || header.place.inode != USAGE_MAP {
            return Err(FormatError::Invalid {
                what: What::UsageLeaf,
                field: "inode",
                offset: 16,
                found: header.place.inode,
                expected: "2, in a block",
            });
        }
        Self::from_plain(&header.plain)
    }
}
