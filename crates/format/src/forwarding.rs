//! Forwarding records: where the objects of a retired segment went.
//!
//! The cleaner moves what is still needed out of a segment before it deletes it, and pointers to the old places stay about:
//! in snapshots, in nodes nobody rewrote, in the memory of readers. A record tells, for each object that was moved, the new
//! place. It lies at `<family>/forward/<writer>/<sequence>/<mover>`: the first two name the old segment, the third the
//! cleaner's incarnation that moved it. So a record's name never has two contents, two cleaners that move one segment never
//! write over each other, and one that was stalled for a year can add a hint but take none away. A reader lists
//! `<family>/forward/<writer>/<sequence>/` and takes the records found there one after the other.
//!
//! ```text
//! record     0  magic "FIRNFWRD"
//!            8  version u8 | reserved u8 | features u16
//!           12  family [16]
//!           28  old writer u64
//!           36  old sequence u64
//!           44  mover u64
//!           52  retired_at_ms i64
//!           60  entry_count u32
//!           64  entry × entry_count
//!            …  crc32c of all before u32
//!
//! entry (28) 0  offset u32            of the object in the old segment; strictly increasing, without overlap
//!            4  new location (24)     of the same length, in another segment
//! ```
//!
//! An object without an entry was needed by no root when the segment was retired. No keys are involved and none needed:
//! entries are hints like every location, and whoever follows one verifies the uid of what it finds.

use crate::{
    FamilyId, Features, FormatError, Location, MAX_OBJECT_BYTES, MAX_SEGMENT_BYTES, SegmentId, What,
    WriterId, cursor::Cursor, object::MIN_OBJECT_BYTES,
};
use bytes::{BufMut, Bytes, BytesMut};

/// The version of the forwarding format that this build writes.
pub const FORWARDING_VERSION: u8 = 1;
pub(crate) const OLDEST_VERSION: u8 = 1;

const MAGIC: &[u8; 8] = b"FIRNFWRD";
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 4 + Location::BYTES;
const CHECKSUM_BYTES: usize = 4;

/// The most objects that fit into one segment, each with its entry in the index.
pub const MAX_FORWARDING_ENTRIES: usize = MAX_SEGMENT_BYTES / (MIN_OBJECT_BYTES + crate::INDEX_ENTRY_BYTES);
/// The largest record; no honest one has more bytes, so none need be fetched.
pub const MAX_FORWARDING_BYTES: usize = HEADER_BYTES + MAX_FORWARDING_ENTRIES * ENTRY_BYTES + CHECKSUM_BYTES;

/// Where one object of a retired segment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardingEntry {
    /// Its first byte in the old segment.
    pub offset: u32,
    /// Where it lies now; its length is the same.
    pub new: Location,
}

/// Where the objects of one segment went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardingRecord {
    /// The family.
    pub family: FamilyId,
    /// The segment that was retired.
    pub old: SegmentId,
    /// The cleaner's incarnation that moved the objects.
    pub mover: WriterId,
    /// When, by the mover's wall clock; milliseconds since 1970.
    pub retired_at_ms: i64,
    /// Strictly increasing by offset.
    pub entries: Vec<ForwardingEntry>,
}

impl ForwardingRecord {
    /// The prefix under which all records of a segment lie.
    pub fn prefix(family: &FamilyId, old: SegmentId) -> String {
        format!("{family}/forward/{:016x}/{:016x}/", old.writer.0, old.sequence)
    }

    /// The key of the record that `mover` wrote for a segment.
    pub fn key(family: &FamilyId, old: SegmentId, mover: WriterId) -> String {
        format!("{}{:016x}", Self::prefix(family, old), mover.0)
    }

    /// Reads [`ForwardingRecord::key`] back, as a listing gives it; `None` for any other text.
    pub fn parse_key(key: &str) -> Option<(FamilyId, SegmentId, WriterId)> {
        let (family, rest) = key.split_once("/forward/")?;
        let (segment, mover) = rest.rsplit_once('/')?;
        let (family, old) = SegmentId::parse_key(&format!("{family}/log/{segment}"))?;
        // The same rules of spelling as for a segment's own two numbers.
        let (_, spelled) = SegmentId::parse_key(&format!("{family}/log/{mover}/{mover}"))?;
        Some((family, old, spelled.writer))
    }

    /// Where the object at `location` went, if the record knows.
    pub fn find(&self, location: &Location) -> Option<Location> {
        if location.segment != self.old {
            return None;
        }
        let found = self
            .entries
            .binary_search_by_key(&location.offset, |entry| entry.offset);
        let entry = &self.entries[found.ok()?];
        (entry.new.length == location.length).then_some(entry.new)
    }

    /// Encodes.
    ///
    /// # Panics
    /// If the entries are out of order, overlap, or lead back into the segment: the cleaner's own mistakes.
    pub fn encode(&self) -> Bytes {
        assert!(
            self.entries.len() <= MAX_FORWARDING_ENTRIES,
            "more objects than fit a segment"
        );
        let mut bytes =
            BytesMut::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES + CHECKSUM_BYTES);
        bytes.put_slice(MAGIC);
        bytes.put_u8(FORWARDING_VERSION);
        bytes.put_u8(0);
        bytes.put_u16_le(Features::NONE.0);
        bytes.put_slice(&self.family.0);
        bytes.put_u64_le(self.old.writer.0);
        bytes.put_u64_le(self.old.sequence);
        bytes.put_u64_le(self.mover.0);
        bytes.put_i64_le(self.retired_at_ms);
        bytes.put_u32_le(self.entries.len() as u32);
        let mut end = 0;
        for entry in &self.entries {
            assert!(
                u64::from(entry.offset) >= end && entry.new.length > 0,
                "entries out of order"
            );
            assert!(entry.new.segment != self.old, "an entry leads back");
            end = u64::from(entry.offset) + u64::from(entry.new.length);
            bytes.put_u32_le(entry.offset);
            bytes.put_slice(&entry.new.to_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.put_u32_le(checksum);
        bytes.freeze()
    }

    /// Decodes.
    ///
    /// # Errors
    /// If the bytes are not one whole record that this build can read.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(What::Forwarding, bytes);
        cursor.magic(MAGIC)?;
        cursor.version(OLDEST_VERSION, FORWARDING_VERSION)?;
        cursor.reserved::<1>()?;
        cursor.features()?;
        let family = FamilyId(cursor.array()?);
        let old = SegmentId {
            writer: WriterId(cursor.u64()?),
            sequence: cursor.u64()?,
        };
        let mover = WriterId(cursor.u64()?);
        let retired_at_ms = cursor.i64()?;
        let count = cursor.u32()? as usize;
        if count > MAX_FORWARDING_ENTRIES {
            return Err(cursor.invalid("entry_count", 4, count as u64, "what fits into a segment"));
        }
        cursor.require(count * ENTRY_BYTES + CHECKSUM_BYTES)?;
        let mut entries = Vec::with_capacity(count);
        let mut end = 0;
        for _ in 0..count {
            let offset = cursor.u32()?;
            if u64::from(offset) < end {
                return Err(cursor.invalid("offset", 4, u64::from(offset), "past the object before"));
            }
            let new = Location::read(&mut cursor)?;
            if new.length == 0 || new.length as usize > MAX_OBJECT_BYTES {
                return Err(cursor.invalid("length", 4, u64::from(new.length), "that of an object"));
            }
            if new.segment == old {
                return Err(cursor.invalid(
                    "new sequence",
                    16,
                    new.segment.sequence,
                    "another segment than the old one",
                ));
            }
            end = u64::from(offset) + u64::from(new.length);
            entries.push(ForwardingEntry { offset, new });
        }
        let checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
        cursor.crc32c("record", checksum)?;
        cursor.end()?;
        Ok(Self {
            family,
            old,
            mover,
            retired_at_ms,
            entries,
        })
    }
}
