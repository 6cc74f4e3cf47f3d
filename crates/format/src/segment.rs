//! Segments: the unit of upload.
//!
//! ```text
//! segment = header | object* | index | footer
//!
//! header (52)       0  magic "FIRNSEGM"
//!                   8  version u8 | reserved u8 | features u16
//!                  12  family [16]
//!                  28  writer u64
//!                  36  sequence u64
//!                  44  reserved [4]
//!                  48  crc32c of the header u32
//!
//! index entry (68)  0  uid [32]
//!                  32  inode u64
//!                  40  index u64
//!                  48  birth u64
//!                  56  offset u32
//!                  60  length u32
//!                  64  level u8 | kind u8 | reserved u16
//!
//! footer (64)       0  version u8 | reserved u8 | features u16
//!                   4  index_offset u32
//!                   8  entry_count u32
//!                  12  crc32c of header and objects u32
//!                  16  crc32c of the index u32
//!                  20  family [16]
//!                  36  writer u64
//!                  44  sequence u64
//!                  52  crc32c of the footer u32
//!                  56  magic "FIRNSEND"
//! ```
//!
//! Objects follow each other without gaps, so an entry's offset is the end of the one before it. The index is a trailer,
//! since a segment is written in one go, and the footer has a fixed size, since a reader who wants the index alone (the
//! cleaner, a salvage) asks for the last bytes first. The index is a hint like a location: what it says of an object
//! counts only after the object was verified.

use crate::{
    EncodedObject, FamilyId, FormatError, Kind, Location, MAX_LEVEL, MAX_OBJECT_BYTES, Place, SegmentId, Uid,
    Version, What, WriterId, cursor::Cursor,
};
use bytes::{BufMut, Bytes, BytesMut};

/// The version of the segment format that this build writes.
pub const SEGMENT_VERSION: u8 = 1;
pub(crate) const OLDEST_VERSION: u8 = 1;

/// Bytes of a segment before its first object.
pub const SEGMENT_HEADER_BYTES: usize = 52;
/// Bytes of one entry of the index.
pub const INDEX_ENTRY_BYTES: usize = 68;
/// Bytes at a segment's end that tell where its index is.
pub const FOOTER_BYTES: usize = 64;
/// The largest segment. Writers aim at 4 MiB; this only bounds what a reader is willing to hold.
pub const MAX_SEGMENT_BYTES: usize = 16 << 20;

const MAGIC: &[u8; 8] = b"FIRNSEGM";
const END_MAGIC: &[u8; 8] = b"FIRNSEND";

/// What a segment's index says of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentIndexEntry {
    /// Where the object stands in its volume.
    pub place: Place,
    /// What it is for.
    pub kind: Kind,
    /// The version that first held it.
    pub birth: Version,
    /// Its hash.
    pub uid: Uid,
    /// Its first byte in the segment.
    pub offset: u32,
    /// Its bytes.
    pub length: u32,
}

impl SegmentIndexEntry {
    /// Where the object lies, `segment` being the one the entry is from.
    pub fn location(&self, segment: SegmentId) -> Location {
        Location {
            segment,
            offset: self.offset,
            length: self.length,
        }
    }

    fn end(&self) -> usize {
        self.offset as usize + self.length as usize
    }
}

/// Packs objects into a segment.
pub struct SegmentBuilder {
    family: FamilyId,
    id: SegmentId,
    parts: Vec<Bytes>,
    entries: Vec<SegmentIndexEntry>,
    /// Bytes of `parts`.
    packed_bytes: usize,
    /// CRC-32C of `parts`.
    checksum: u32,
}

impl SegmentBuilder {
    /// Starts an empty segment.
    pub fn new(family: FamilyId, id: SegmentId) -> Self {
        let header = encode_header(&family, id);
        Self {
            family,
            id,
            packed_bytes: header.len(),
            checksum: crc32c::crc32c(&header),
            parts: vec![header],
            entries: Vec::new(),
        }
    }

    /// The segment's name.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Bytes the segment would have if it were finished now.
    pub fn bytes_used(&self) -> usize {
        self.packed_bytes + self.entries.len() * INDEX_ENTRY_BYTES + FOOTER_BYTES
    }

    /// Adds an object (no copy) and tells where it will lie.
    ///
    /// # Panics
    /// If the segment would exceed [`MAX_SEGMENT_BYTES`]; callers finish it long before.
    pub fn push(&mut self, object: &EncodedObject) -> Location {
        let length = object.bytes.len();
        assert!(
            self.bytes_used() + length + INDEX_ENTRY_BYTES <= MAX_SEGMENT_BYTES,
            "segment {} is full",
            self.id
        );
        let entry = SegmentIndexEntry {
            place: object.header.place,
            kind: object.header.kind,
            birth: object.header.birth,
            uid: object.uid,
            offset: self.packed_bytes as u32,
            length: length as u32,
        };
        self.checksum = crc32c::crc32c_append(self.checksum, &object.bytes);
        self.parts.push(object.bytes.clone());
        self.packed_bytes += length;
        self.entries.push(entry);
        entry.location(self.id)
    }

    /// What was added so far, in order.
    pub fn objects(&self) -> &[SegmentIndexEntry] {
        &self.entries
    }

    /// The whole segment, in pieces to be written one after the other.
    pub fn finish(mut self) -> Vec<Bytes> {
        let index_bytes = self.entries.len() * INDEX_ENTRY_BYTES;
        let mut trailer = BytesMut::with_capacity(index_bytes + FOOTER_BYTES);
        for entry in &self.entries {
            put_entry(&mut trailer, entry);
        }
        let index_checksum = crc32c::crc32c(&trailer);
        let footer = trailer.len();
        trailer.put_u8(SEGMENT_VERSION);
        trailer.put_u8(0);
        trailer.put_u16_le(0);
        trailer.put_u32_le(self.packed_bytes as u32);
        trailer.put_u32_le(self.entries.len() as u32);
        trailer.put_u32_le(self.checksum);
        trailer.put_u32_le(index_checksum);
        trailer.put_slice(&self.family.0);
        trailer.put_u64_le(self.id.writer.0);
        trailer.put_u64_le(self.id.sequence);
        let footer_checksum = crc32c::crc32c(&trailer[footer..]);
        trailer.put_u32_le(footer_checksum);
        trailer.put_slice(END_MAGIC);
        self.parts.push(trailer.freeze());
        self.parts
    }
}

fn encode_header(family: &FamilyId, id: SegmentId) -> Bytes {
    let mut header = BytesMut::with_capacity(SEGMENT_HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u8(SEGMENT_VERSION);
    header.put_u8(0);
    header.put_u16_le(0);
    header.put_slice(&family.0);
    header.put_u64_le(id.writer.0);
    header.put_u64_le(id.sequence);
    header.put_u32_le(0);
    let checksum = crc32c::crc32c(&header);
    header.put_u32_le(checksum);
    header.freeze()
}

fn put_entry(bytes: &mut BytesMut, entry: &SegmentIndexEntry) {
    bytes.put_slice(&entry.uid.0);
    bytes.put_u64_le(entry.place.inode);
    bytes.put_u64_le(entry.place.index);
    bytes.put_u64_le(entry.birth.0);
    bytes.put_u32_le(entry.offset);
    bytes.put_u32_le(entry.length);
    bytes.put_u8(entry.place.level);
    bytes.put_u8(entry.kind as u8);
    bytes.put_u16_le(0);
}

/// A segment's footer: where its index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFooter {
    /// The family it belongs to.
    pub family: FamilyId,
    /// Its name.
    pub id: SegmentId,
    /// Where the index begins, from the start of the segment; objects end there.
    pub index_offset: u32,
    /// How many objects there are.
    pub entry_count: u32,
    objects_checksum: u32,
    index_checksum: u32,
}

impl SegmentFooter {
    /// Bytes of the index.
    pub fn index_bytes(&self) -> usize {
        self.entry_count as usize * INDEX_ENTRY_BYTES
    }

    /// Bytes of the whole segment.
    pub fn segment_bytes(&self) -> usize {
        self.index_offset as usize + self.index_bytes() + FOOTER_BYTES
    }

    /// Decodes the index, given exactly its bytes.
    ///
    /// # Errors
    /// If the bytes are not the index that this footer belongs to.
    pub fn decode_index(&self, bytes: &[u8]) -> Result<Vec<SegmentIndexEntry>, FormatError> {
        let mut cursor = Cursor::new(What::SegmentIndex, bytes);
        cursor.require(self.index_bytes())?;
        let mut entries = Vec::with_capacity(self.entry_count as usize);
        let mut end = SEGMENT_HEADER_BYTES;
        for _ in 0..self.entry_count {
            let entry = read_entry(&mut cursor, end)?;
            end = entry.end();
            entries.push(entry);
        }
        cursor.end()?;
        let checksum = crc32c::crc32c(bytes);
        if checksum != self.index_checksum {
            return Err(FormatError::Checksum {
                what: What::SegmentIndex,
                part: "entries",
                offset: self.segment_bytes() - FOOTER_BYTES + 16,
                expected: self.index_checksum,
                found: checksum,
            });
        }
        if end != self.index_offset as usize {
            return Err(cursor.invalid("end of the last object", 0, end as u64, "the start of the index"));
        }
        Ok(entries)
    }
}

fn read_entry(cursor: &mut Cursor<'_>, expected_offset: usize) -> Result<SegmentIndexEntry, FormatError> {
    let uid = Uid(cursor.array()?);
    let inode = cursor.u64()?;
    let index = cursor.u64()?;
    let birth = Version(cursor.u64()?);
    let offset = cursor.u32()?;
    if offset as usize != expected_offset {
        return Err(cursor.invalid("offset", 4, u64::from(offset), "the end of the object before"));
    }
    let length = cursor.u32()?;
    if length == 0 || length as usize > MAX_OBJECT_BYTES {
        return Err(cursor.invalid("length", 4, u64::from(length), "that of an object"));
    }
    let level = cursor.u8()?;
    if level > MAX_LEVEL {
        return Err(cursor.invalid("level", 1, u64::from(level), "at most 10"));
    }
    let kind = cursor.u8()?;
    let kind = Kind::from_byte(kind).ok_or_else(|| cursor.invalid("kind", 1, u64::from(kind), "1 to 4"))?;
    cursor.reserved::<2>()?;
    Ok(SegmentIndexEntry {
        place: Place { inode, level, index },
        kind,
        birth,
        uid,
        offset,
        length,
    })
}

/// Decodes the last [`FOOTER_BYTES`] of a segment.
///
/// # Errors
/// If they are not the footer of a segment that this build can read.
pub fn decode_footer(bytes: &[u8]) -> Result<SegmentFooter, FormatError> {
    let mut cursor = Cursor::new(What::SegmentFooter, bytes);
    cursor.require(FOOTER_BYTES)?;
    Cursor::new(What::SegmentFooter, &bytes[FOOTER_BYTES - END_MAGIC.len()..]).magic(END_MAGIC)?;
    cursor.version(OLDEST_VERSION, SEGMENT_VERSION)?;
    cursor.reserved::<1>()?;
    cursor.features()?;
    let index_offset = cursor.u32()?;
    let entry_count = cursor.u32()?;
    let footer = SegmentFooter {
        index_offset,
        entry_count,
        objects_checksum: cursor.u32()?,
        index_checksum: cursor.u32()?,
        family: FamilyId(cursor.array()?),
        id: SegmentId {
            writer: WriterId(cursor.u64()?),
            sequence: cursor.u64()?,
        },
    };
    let checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
    cursor.crc32c("footer", checksum)?;
    cursor.magic(END_MAGIC)?;
    cursor.end()?;
    // Bounded before they are added up: 2^32 entries would overflow a 32-bit reader.
    if index_offset as usize > MAX_SEGMENT_BYTES
        || entry_count as usize > MAX_SEGMENT_BYTES / INDEX_ENTRY_BYTES
    {
        return Err(FormatError::Invalid {
            what: What::SegmentFooter,
            field: "index_offset or entry_count",
            offset: 4,
            found: u64::from(index_offset),
            expected: "those of a segment of at most 16 MiB",
        });
    }
    Ok(footer)
}

/// A whole segment.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The family it belongs to.
    pub family: FamilyId,
    /// Its name.
    pub id: SegmentId,
    /// Its objects, in order.
    pub entries: Vec<SegmentIndexEntry>,
    bytes: Bytes,
}

impl Segment {
    /// The bytes of the object an entry describes (no copy), still to be decoded and verified.
    ///
    /// # Panics
    /// If the entry is not one of this segment's.
    pub fn object(&self, entry: &SegmentIndexEntry) -> Bytes {
        self.bytes.slice(entry.offset as usize..entry.end())
    }
}

/// Decodes a whole segment and checks all its checksums. Objects are not decoded.
///
/// # Errors
/// If the bytes are not one whole segment that this build can read.
pub fn decode_segment(bytes: Bytes) -> Result<Segment, FormatError> {
    let mut cursor = Cursor::new(What::Segment, &bytes);
    cursor.magic(MAGIC)?;
    cursor.version(OLDEST_VERSION, SEGMENT_VERSION)?;
    cursor.reserved::<1>()?;
    cursor.features()?;
    let family = FamilyId(cursor.array()?);
    let id = SegmentId {
        writer: WriterId(cursor.u64()?),
        sequence: cursor.u64()?,
    };
    cursor.reserved::<4>()?;
    let header_checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
    cursor.crc32c("header", header_checksum)?;
    cursor.require(FOOTER_BYTES)?;

    let footer = decode_footer(&bytes[bytes.len() - FOOTER_BYTES..])?;
    let expected_bytes = footer.segment_bytes();
    if bytes.len() < expected_bytes {
        return Err(FormatError::Truncated {
            what: What::Segment,
            offset: bytes.len(),
            needed: expected_bytes - bytes.len(),
            found: 0,
        });
    }
    if bytes.len() > expected_bytes {
        return Err(FormatError::Trailing {
            what: What::Segment,
            offset: expected_bytes,
            extra: bytes.len() - expected_bytes,
        });
    }
    if (footer.family, footer.id) != (family, id) {
        return Err(FormatError::Invalid {
            what: What::Segment,
            field: "sequence in the footer",
            offset: expected_bytes - FOOTER_BYTES + 44,
            found: footer.id.sequence,
            expected: "the family, writer and sequence of the header",
        });
    }
    let index_offset = footer.index_offset as usize;
    let objects_checksum = crc32c::crc32c(&bytes[..index_offset]);
    if objects_checksum != footer.objects_checksum {
        return Err(FormatError::Checksum {
            what: What::Segment,
            part: "objects",
            offset: expected_bytes - FOOTER_BYTES + 12,
            expected: footer.objects_checksum,
            found: objects_checksum,
        });
    }
    let entries = footer.decode_index(&bytes[index_offset..index_offset + footer.index_bytes()])?;
    Ok(Segment {
        family,
        id,
        entries,
        bytes,
    })
}
