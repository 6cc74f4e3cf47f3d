//! Framing of the journal: what tells a whole record from a torn one before any key is used.
//!
//! ```text
//! file    = header | record* | zeros
//!
//! header (84)   0  magic "FIRNJRNL"
//!               8  version u8 | reserved u8 | features u16
//!              12  key_epoch u32
//!              16  volume [16]
//!              32  writer u64
//!              40  number u64
//!              48  salt [32]
//!              80  crc32c of the header u32
//!
//! record        0  length u32            bytes of the sealed payload, at least 1
//!               4  slot u32              counts the records of this file
//!               8  sealed payload [length]
//!               …  crc32c of all before u32
//! ```
//!
//! The checksum is checked before the seal: a torn tail, which every power loss may leave, is not tampering. A file is
//! preallocated with zeros, and zeros are no record, so the end needs no mark.

use crate::{FormatError, KeyEpoch, VolumeId, What, WriterId, cursor::Cursor};
use std::ops::Range;

/// The version of the journal format that this build writes.
pub const JOURNAL_VERSION: u8 = 1;
const OLDEST_VERSION: u8 = 1;

/// Bytes of a journal file before its first record.
pub const JOURNAL_HEADER_BYTES: usize = 84;
/// Bytes of a record before its sealed payload.
pub const RECORD_HEAD_BYTES: usize = 8;
/// Bytes of a record after its sealed payload.
pub const RECORD_TAIL_BYTES: usize = 4;
/// Bytes of a record beside its sealed payload.
pub const RECORD_OVERHEAD_BYTES: usize = RECORD_HEAD_BYTES + RECORD_TAIL_BYTES;
/// The largest sealed payload of a record: a WRITE of 1 MiB (the most a client is offered), names and attributes, twice
/// over.
pub const MAX_RECORD_BYTES: usize = 2 << 20;

const MAGIC: &[u8; 8] = b"FIRNJRNL";

/// What a journal file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalFileHeader {
    /// The volume whose changes it holds.
    pub volume: VolumeId,
    /// The incarnation that wrote it.
    pub writer: WriterId,
    /// Counts the files of the volume's journal.
    pub number: u64,
    /// Which key of the family.
    pub key_epoch: KeyEpoch,
    /// Drawn afresh for each file; the records' key is derived from the epoch key and this.
    pub salt: [u8; 32],
}

impl JournalFileHeader {
    /// Encodes.
    pub fn encode(&self) -> [u8; JOURNAL_HEADER_BYTES] {
        let mut bytes = [0; JOURNAL_HEADER_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8] = JOURNAL_VERSION;
        bytes[12..16].copy_from_slice(&self.key_epoch.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.volume.0);
        bytes[32..40].copy_from_slice(&self.writer.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..80].copy_from_slice(&self.salt);
        let checksum = crc32c::crc32c(&bytes[..80]);
        bytes[80..84].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the first [`JOURNAL_HEADER_BYTES`] of a file; what follows is ignored.
    ///
    /// # Errors
    /// If they are not the header of a journal file that this build can read. A file whose header was never written
    /// whole holds no acknowledged record, since the header is synced before the first of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(What::JournalHeader, bytes);
        cursor.magic(MAGIC)?;
        cursor.version(OLDEST_VERSION, JOURNAL_VERSION)?;
        cursor.reserved::<1>()?;
        cursor.features()?;
        let key_epoch = KeyEpoch(cursor.u32()?);
        let header = Self {
            volume: VolumeId(cursor.array()?),
            writer: WriterId(cursor.u64()?),
            number: cursor.u64()?,
            key_epoch,
            salt: cursor.array()?,
        };
        let checksum = crc32c::crc32c(&bytes[..cursor.offset()]);
        cursor.crc32c("header", checksum)?;
        Ok(header)
    }
}

/// What to write before and after a sealed payload to make it a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFrame {
    /// Goes before.
    pub head: [u8; RECORD_HEAD_BYTES],
    /// Goes after.
    pub tail: [u8; RECORD_TAIL_BYTES],
}

/// Frames a sealed payload without copying it.
///
/// # Panics
/// If the payload is empty or exceeds [`MAX_RECORD_BYTES`].
pub fn frame_record(slot: u32, sealed: &[u8]) -> RecordFrame {
    assert!(
        (1..=MAX_RECORD_BYTES).contains(&sealed.len()),
        "record of {} bytes",
        sealed.len()
    );
    let mut head = [0; RECORD_HEAD_BYTES];
    head[..4].copy_from_slice(&(sealed.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&slot.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head), sealed);
    RecordFrame {
        head,
        tail: checksum.to_le_bytes(),
    }
}

/// What stands at a position of a journal file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordScan {
    /// A whole record with the expected slot.
    Record {
        /// Its sealed payload, within the bytes given.
        payload: Range<usize>,
        /// Bytes to the next record.
        total_bytes: usize,
    },
    /// A record that was not written whole, or not the next one: the journal ends before it.
    Torn,
    /// Nothing was written here.
    End,
}

/// Looks at the start of `bytes`, which must reach to the end of the file.
pub fn next_record(bytes: &[u8], expected_slot: u32) -> RecordScan {
    let Some(head) = bytes.first_chunk::<RECORD_HEAD_BYTES>() else {
        return if bytes.iter().all(|byte| *byte == 0) {
            RecordScan::End
        } else {
            RecordScan::Torn
        };
    };
    if *head == [0; RECORD_HEAD_BYTES] {
        return RecordScan::End;
    }
    let [l0, l1, l2, l3, s0, s1, s2, s3] = *head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let slot = u32::from_le_bytes([s0, s1, s2, s3]);
    if slot != expected_slot || !(1..=MAX_RECORD_BYTES).contains(&length) {
        return RecordScan::Torn;
    }
    let payload = RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + length;
    let Some(tail) = bytes[payload.start..].get(length..length + RECORD_TAIL_BYTES) else {
        return RecordScan::Torn;
    };
    if crc32c::crc32c(&bytes[..payload.end]).to_le_bytes() != tail {
        return RecordScan::Torn;
    }
    RecordScan::Record {
        total_bytes: payload.end + RECORD_TAIL_BYTES,
        payload,
    }
}
