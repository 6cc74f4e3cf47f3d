//! The group object: which segment lies where in a group, and the hash of every row of its columns and parities.
//!
//! ```text
//! group      0  magic "FIRNPGRP"
//!            8  version u8 | reserved u8 | features u16
//!           12  family [16]
//!           28  group u64
//!           36  generation u64
//!           44  columns u8 = 32 | parities u8 = 3 | reserved [2]
//!           48  row_bytes u32 = 65536
//!           52  member_count u32
//!           56  member × member_count
//!            …  crc32c of all before u32                  so far the head, which can be read alone
//!            …  hash [32] × rows of column 0, then 1 ‥ 31, then parity 0 ‥ 2
//!            …  crc32c of all before u32
//!
//! member (60) 0  writer u64 | sequence u64                the segment
//!            16  column u32
//!            20  offset u32                               in the column; members are in order of (column, offset), without overlap
//!            24  bytes u32
//!            28  hash [32]                                BLAKE3 of the segment
//! ```
//!
//! A column has as many rows as its last member needs, a parity as many as the longest column. A row's hash is BLAKE3 of 64 KiB; behind the
//! last member they are zeros. Nothing is signed: what is restored is verified by its uid, as whatever a store says.

use crate::{COLUMNS, MEMBERS_MAX, PARITIES, ROW_BYTES, ROWS_MAX};
use bytes::{BufMut, Bytes, BytesMut};
use firn_format::{Cursor, FamilyId, Features, FormatError, MAX_SEGMENT_BYTES, SegmentId, What, WriterId};
use std::{collections::BTreeSet, ops::Range};

/// The version of the group object that this build writes.
pub const GROUP_VERSION: u8 = 1;
const OLDEST_VERSION: u8 = 1;

const WHAT: What = What::Other("parity group");
const MAGIC: &[u8; 8] = b"FIRNPGRP";
const HEADER_BYTES: usize = 56;
const MEMBER_BYTES: usize = 60;
const HASH_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

/// The largest group object; no honest one has more bytes.
pub const MAX_GROUP_BYTES: usize = HEADER_BYTES
    + MEMBERS_MAX * MEMBER_BYTES
    + (COLUMNS + PARITIES) * ROWS_MAX * HASH_BYTES
    + 2 * CHECKSUM_BYTES;

/// What a reader of heads fetches first: the head of a group of up to 271 members, twice those of a full one of segments of 4 MiB.
pub const HEAD_USUAL_BYTES: usize = 16 << 10;

/// BLAKE3 of a column's or a parity's piece of a row.
pub type RowHash = [u8; HASH_BYTES];

/// The hash of a row's piece, or of a whole segment.
pub fn row_hash(bytes: &[u8]) -> RowHash {
    *blake3::hash(bytes).as_bytes()
}

/// One segment of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub segment: SegmentId,
    /// In which column.
    pub column: u8,
    /// Its first byte in the column.
    pub offset: u32,
    /// Its length.
    pub bytes: u32,
    /// BLAKE3 of it.
    pub hash: RowHash,
}

impl Member {
    /// Where it ends in the column.
    pub fn end(&self) -> u32 {
        self.offset + self.bytes
    }

    /// Rows of the column that have a part of it.
    pub fn rows(&self) -> Range<usize> {
        self.offset as usize / ROW_BYTES..(self.end() as usize).div_ceil(ROW_BYTES)
    }
}

/// A part of a member within a range of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The member.
    pub segment: SegmentId,
    /// Where the part begins in the segment.
    pub segment_offset: u32,
    /// Where it begins in the range.
    pub range_offset: usize,
    /// Its length.
    pub bytes: u32,
}

/// A group object but for its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHead {
    /// Whose segments.
    pub family: FamilyId,
    /// Which group.
    pub group: u64,
    /// Which generation of it.
    pub generation: u64,
    /// In order of column and offset.
    pub members: Vec<Member>,
}

impl GroupHead {
    /// Rows of a column.
    pub fn column_rows(&self, column: usize) -> usize {
        let last = self.of_column(column).last();
        last.map_or(0, |member| member.rows().end)
    }

    /// Rows of the parities.
    pub fn rows(&self) -> usize {
        (0..COLUMNS)
            .map(|column| self.column_rows(column))
            .max()
            .unwrap_or(0)
    }

    /// Members of a column, in order.
    pub fn of_column(&self, column: usize) -> &[Member] {
        let of = |member: &Member| usize::from(member.column);
        let start = self.members.partition_point(|member| of(member) < column);
        let end = self.members.partition_point(|member| of(member) <= column);
        &self.members[start..end]
    }

    /// The member that is this segment.
    pub fn find(&self, segment: SegmentId) -> Option<&Member> {
        self.members.iter().find(|member| member.segment == segment)
    }

    /// Bytes of all members.
    pub fn member_bytes(&self) -> u64 {
        self.members.iter().map(|member| u64::from(member.bytes)).sum()
    }

    /// Parts of members in some rows of a column.
    pub fn pieces(&self, column: usize, rows: &Range<usize>) -> Vec<Piece> {
        let (from, to) = (rows.start * ROW_BYTES, rows.end * ROW_BYTES);
        let part = |member: &Member| {
            let start = (member.offset as usize).max(from);
            let end = (member.end() as usize).min(to);
            (start < end).then(|| Piece {
                segment: member.segment,
                segment_offset: (start - member.offset as usize) as u32,
                range_offset: start - from,
                bytes: (end - start) as u32,
            })
        };
        self.of_column(column).iter().filter_map(part).collect()
    }

    /// Bytes of the encoded head.
    fn bytes(member_count: usize) -> usize {
        HEADER_BYTES + member_count * MEMBER_BYTES + CHECKSUM_BYTES
    }

    /// How long the head is whose first bytes these are.
    ///
    /// # Errors
    /// If they are not those of a group object that this build can read.
    pub fn bytes_needed(bytes: &[u8]) -> Result<usize, FormatError> {
        Self::header(&mut Cursor::new(WHAT, bytes)).map(|(_, member_count)| Self::bytes(member_count))
    }

    fn header(cursor: &mut Cursor<'_>) -> Result<(Self, usize), FormatError> {
        cursor.magic(MAGIC)?;
        cursor.version(OLDEST_VERSION, GROUP_VERSION)?;
        cursor.reserved::<1>()?;
        cursor.features()?;
        let head = Self {
            family: FamilyId(cursor.array()?),
            group: cursor.u64()?,
            generation: cursor.u64()?,
            members: Vec::new(),
        };
        let columns = cursor.u8()?;
        if usize::from(columns) != COLUMNS {
            return Err(cursor.invalid("columns", 1, u64::from(columns), "32"));
        }
        let parities = cursor.u8()?;
        if usize::from(parities) != PARITIES {
            return Err(cursor.invalid("parities", 1, u64::from(parities), "3"));
        }
        cursor.reserved::<2>()?;
        let row_bytes = cursor.u32()?;
        if row_bytes as usize != ROW_BYTES {
            return Err(cursor.invalid("row_bytes", 4, u64::from(row_bytes), "65536"));
        }
        let member_count = cursor.u32()?;
        if !(1..=MEMBERS_MAX as u32).contains(&member_count) {
            return Err(cursor.invalid("member_count", 4, u64::from(member_count), "1 to 4096"));
        }
        Ok((head, member_count as usize))
    }

    fn read(cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<Self, FormatError> {
        let (mut head, member_count) = Self::header(cursor)?;
        cursor.require(member_count * MEMBER_BYTES + CHECKSUM_BYTES)?;
        head.members.reserve_exact(member_count);
        let mut segments = BTreeSet::new();
        let mut before = (0, 0);
        for _ in 0..member_count {
            let segment = SegmentId {
                writer: WriterId(cursor.u64()?),
                sequence: cursor.u64()?,
            };
            if !segments.insert(segment) {
                return Err(cursor.invalid("sequence", 8, segment.sequence, "a segment once"));
            }
            let column = cursor.u32()?;
            if column as usize >= COLUMNS {
                return Err(cursor.invalid("column", 4, u64::from(column), "below 32"));
            }
            let offset = cursor.u32()?;
            if (column, offset) < before || offset as usize >= ROWS_MAX * ROW_BYTES {
                return Err(cursor.invalid("offset", 4, u64::from(offset), "behind the member before"));
            }
            let length = cursor.u32()?;
            let room = ROWS_MAX * ROW_BYTES - offset as usize;
            if length == 0 || length as usize > room.min(MAX_SEGMENT_BYTES) {
                return Err(cursor.invalid(
                    "bytes",
                    4,
                    u64::from(length),
                    "those of a segment within its column",
                ));
            }
            before = (column, offset + length);
            head.members.push(Member {
                segment,
                column: column as u8,
                offset,
                bytes: length,
                hash: cursor.array()?,
            });
        }
        let checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
        cursor.crc32c("head", checksum)?;
        Ok(head)
    }

    /// Decodes the head of a group object; what follows is not looked at.
    ///
    /// # Errors
    /// If the bytes do not begin with a whole head that this build can read.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::read(&mut Cursor::new(WHAT, bytes), bytes)
    }
}

/// A group object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its members.
    pub head: GroupHead,
    /// Hashes of the rows of each column, then of each parity.
    pub hashes: Vec<Vec<RowHash>>,
}

impl Group {
    /// The hash of a column's piece of a row; `None` behind the column's end, where it is zeros.
    pub fn column_hash(&self, column: usize, row: usize) -> Option<&RowHash> {
        self.hashes[column].get(row)
    }

    /// The hash of a parity's piece of a row.
    pub fn parity_hash(&self, parity: usize, row: usize) -> Option<&RowHash> {
        self.hashes[COLUMNS + parity].get(row)
    }

    /// Encodes.
    ///
    /// # Panics
    /// If the members are out of order or too many, or there are more or fewer hashes than rows: the caller's own mistakes.
    pub fn encode(&self) -> Bytes {
        let head = &self.head;
        assert!(
            (1..=MEMBERS_MAX).contains(&head.members.len()),
            "members of a group"
        );
        assert!(
            self.hashes.len() == COLUMNS + PARITIES,
            "hashes of columns and parities"
        );
        let mut bytes = BytesMut::with_capacity(GroupHead::bytes(head.members.len()) + CHECKSUM_BYTES);
        bytes.put_slice(MAGIC);
        bytes.put_u8(GROUP_VERSION);
        bytes.put_u8(0);
        bytes.put_u16_le(Features::NONE.0);
        bytes.put_slice(&head.family.0);
        bytes.put_u64_le(head.group);
        bytes.put_u64_le(head.generation);
        bytes.put_u8(COLUMNS as u8);
        bytes.put_u8(PARITIES as u8);
        bytes.put_u16_le(0);
        bytes.put_u32_le(ROW_BYTES as u32);
        bytes.put_u32_le(head.members.len() as u32);
        let mut before = (0, 0);
        for member in &head.members {
            assert!((member.column, member.offset) >= before, "members out of order");
            before = (member.column, member.end());
            bytes.put_u64_le(member.segment.writer.0);
            bytes.put_u64_le(member.segment.sequence);
            bytes.put_u32_le(u32::from(member.column));
            bytes.put_u32_le(member.offset);
            bytes.put_u32_le(member.bytes);
            bytes.put_slice(&member.hash);
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.put_u32_le(checksum);
        let rows = head.rows();
        for (at, hashes) in self.hashes.iter().enumerate() {
            let expected = if at < COLUMNS { head.column_rows(at) } else { rows };
            assert!(hashes.len() == expected, "a hash for each row");
            hashes.iter().for_each(|hash| bytes.put_slice(hash));
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.put_u32_le(checksum);
        bytes.freeze()
    }

    /// Decodes.
    ///
    /// # Errors
    /// If the bytes are not one whole group object that this build can read.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        let head = GroupHead::read(&mut cursor, bytes)?;
        let longest = head.rows();
        let rows = (0..COLUMNS).map(|column| head.column_rows(column));
        let rows: Vec<usize> = rows.chain([longest; PARITIES]).collect();
        cursor.require(rows.iter().sum::<usize>() * HASH_BYTES + CHECKSUM_BYTES)?;
        let mut hashes = Vec::with_capacity(rows.len());
        for count in rows {
            let of_column = (0..count).map(|_| cursor.array());
            hashes.push(of_column.collect::<Result<Vec<RowHash>, _>>()?);
        }
        let checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
        cursor.crc32c("group", checksum)?;
        cursor.end()?;
        Ok(Self { head, hashes })
    }
}
