//! Framing of the journal: what tells a whole record from a torn one, and from one of an earlier use of the file, before any key
//! is used.
//!
//! ```text
//! file    = header | record* | what stood there before: zeros, or an earlier use
//!
//! header (84)   0  magic "FIRNJRNL"
//!               8  version u8 | recycled u8 | features u16
//!              12  key_epoch u32
//!              16  volume [16]
//!              32  writer u64
//!              40  number u64
//!              48  salt [32]
//!              80  crc32c of the header u32
//!
//! record        0  length u32            bytes of the sealed payload, at least 1
//!               4  slot u32 ^ seed       counts the records of this file
//!               8  sealed payload [length]
//!               …  crc32c of all before, begun with seed, u32
//!
//! seed          crc32c of the salt; in version 1: 0
//! ```
//!
//! The checksum is checked before the seal: a torn tail, which every power loss may leave, is not tampering. A new file is
//! preallocated with zeros, and zeros are no record, so the end needs no mark. A file that is used again has another salt, so
//! none of its old records has the slot and the checksum of one that could stand where it stands: a checksum begun with another
//! seed differs for the same bytes.

use crate::{FormatError, KeyEpoch, VolumeId, What, WriterId, cursor::Cursor};
use std::ops::Range;

/// The version of the journal format that this build writes.
pub const JOURNAL_VERSION: u8 = 2;
pub(crate) const OLDEST_VERSION: u8 = 1;

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

/// What stood in a journal file before it was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalUse {
    /// Zeros; a file of version 1, whose records have no seed.
    Unseeded,
    /// Zeros: the file was made for this use.
    First,
    /// An earlier use of the file.
    Recycled,
}

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
    /// Drawn afresh for each use of a file; the records' key is derived from the epoch key and this.
    pub salt: [u8; 32],
    /// What stands behind the records.
    pub usage: JournalUse,
}

impl JournalFileHeader {
    /// How its records are framed.
    pub fn framing(&self) -> Framing {
        Framing::new(self.usage, &self.salt)
    }

    /// Encodes.
    pub fn encode(&self) -> [u8; JOURNAL_HEADER_BYTES] {
        let mut bytes = [0; JOURNAL_HEADER_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        (bytes[8], bytes[9]) = match self.usage {
            JournalUse::Unseeded => (1, 0),
            JournalUse::First => (JOURNAL_VERSION, 0),
            JournalUse::Recycled => (JOURNAL_VERSION, 1),
        };
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
        let usage = match cursor.version(OLDEST_VERSION, JOURNAL_VERSION)? {
            1 => {
                cursor.reserved::<1>()?;
                JournalUse::Unseeded
            }
            _ => match cursor.u8()? {
                0 => JournalUse::First,
                1 => JournalUse::Recycled,
                other => return Err(cursor.invalid("recycled", 1, u64::from(other), "0 or 1")),
            },
        };
        cursor.features()?;
        let key_epoch = KeyEpoch(cursor.u32()?);
        let header = Self {
            volume: VolumeId(cursor.array()?),
            writer: WriterId(cursor.u64()?),
            number: cursor.u64()?,
            key_epoch,
            salt: cursor.array()?,
            usage,
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
    /// Nothing was written here in this use of the file.
    End,
}

/// How the records of one use of a file are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    seed: u32,
    is_recycled: bool,
}

impl Framing {
    /// Of a file with this salt.
    pub fn new(usage: JournalUse, salt: &[u8; 32]) -> Self {
        Self {
            seed: match usage {
                JournalUse::Unseeded => 0,
                JournalUse::First | JournalUse::Recycled => crc32c::crc32c(salt),
            },
            is_recycled: usage == JournalUse::Recycled,
        }
    }

    /// Whether an earlier use of the file may stand behind the records.
    pub fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    fn checksum(&self, parts: [&[u8]; 2]) -> [u8; RECORD_TAIL_BYTES] {
        parts
            .into_iter()
            .fold(self.seed, crc32c::crc32c_append)
            .to_le_bytes()
    }

    /// The length and the slot that a record's head says, whatever it is the head of.
    pub fn head(&self, head: &[u8; RECORD_HEAD_BYTES]) -> (usize, u32) {
        let [l0, l1, l2, l3, s0, s1, s2, s3] = *head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        (length, u32::from_le_bytes([s0, s1, s2, s3]) ^ self.seed)
    }

    /// Frames a sealed payload without copying it.
    ///
    /// # Panics
    /// If the payload is empty or exceeds [`MAX_RECORD_BYTES`].
    pub fn frame(&self, slot: u32, sealed: &[u8]) -> RecordFrame {
        assert!(
            (1..=MAX_RECORD_BYTES).contains(&sealed.len()),
            "record of {} bytes",
            sealed.len()
        );
        let mut head = [0; RECORD_HEAD_BYTES];
        head[..4].copy_from_slice(&(sealed.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&(slot ^ self.seed).to_le_bytes());
        RecordFrame {
            head,
            tail: self.checksum([&head, sealed]),
        }
    }

    /// Looks at the start of `bytes`, which must reach to the end of the file.
    pub fn next(&self, bytes: &[u8], expected_slot: u32) -> RecordScan {
        let other = if self.is_recycled {
            RecordScan::End
        } else {
            RecordScan::Torn
        };
        let Some(head) = bytes.first_chunk::<RECORD_HEAD_BYTES>() else {
            return if bytes.iter().all(|byte| *byte == 0) {
                RecordScan::End
            } else {
                other
            };
        };
        if *head == [0; RECORD_HEAD_BYTES] {
            return RecordScan::End;
        }
        let (length, slot) = self.head(head);
        if slot != expected_slot {
            return other;
        }
        if !(1..=MAX_RECORD_BYTES).contains(&length) {
            return RecordScan::Torn;
        }
        let payload = RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + length;
        let Some(tail) = bytes[payload.start..].get(length..length + RECORD_TAIL_BYTES) else {
            return RecordScan::Torn;
        };
        if self.checksum([head, &bytes[payload.clone()]]) != tail {
            return RecordScan::Torn;
        }
        RecordScan::Record {
            total_bytes: payload.end + RECORD_TAIL_BYTES,
            payload,
        }
    }
}
