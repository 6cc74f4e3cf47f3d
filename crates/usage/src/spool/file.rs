//! The layout of a spool file.
//!
//! ```text
//! name    = number in 20 decimal digits, ".spool"
//! file    = header | frame*
//! header  = magic "FSPL" | version u8 = 1 | source text | incarnation u64 | first_sequence u64 | crc32c u32
//! frame   = length u32 | batch                                   (with a checksum of its own: see batch.rs)
//! ```
//!
//! A scan ends at the first frame that is not whole or does not follow: everything before it was written before it.

use crate::{
    BATCH_MAX_BYTES, Incarnation, SourceId, UsageBatch,
    batch::VERSION as BATCH_VERSION,
    codec::{Malformed, Reader, Usage, Writer},
};

const MAGIC: &[u8; 4] = b"FSPL";
/// Of a spool's files, in the byte behind the magic: the newest that this build reads, and the one it writes.
pub const VERSION: u8 = 1;
const SUFFIX: &str = ".spool";
const NUMBER_DIGITS: usize = 20;

/// Bytes of a frame before its batch.
pub(super) const LENGTH_BYTES: usize = 4;

pub(super) fn path(directory: &str, number: u64) -> String {
    format!("{directory}/{number:020}{SUFFIX}")
}

/// The number in a file's name; `None`: not one of ours.
pub(super) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    (digits.len() == NUMBER_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) source: SourceId,
    pub(super) incarnation: Incarnation,
    pub(super) first_sequence: u64,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        writer.u8(VERSION);
        writer.text(self.source.as_str());
        writer.u64(self.incarnation.0);
        writer.u64(self.first_sequence);
        writer.u32(crc32c::crc32c(writer.as_slice()));
        writer.finish()
    }

    /// The header and its length; an error if these bytes do not begin with a whole one.
    fn decode(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let mut reader = Reader::new(Usage, bytes);
        if reader.take(4)? != MAGIC || reader.u8()? != VERSION {
            return Err(reader.malformed("no spool file of version 1"));
        }
        let source = SourceId::new(reader.text()?).map_err(|_| reader.malformed("a name of no source"))?;
        let incarnation = Incarnation(reader.u64()?);
        let first_sequence = reader.u64()?;
        let length = bytes.len() - reader.remaining();
        if reader.u32()? != crc32c::crc32c(&bytes[..length]) || first_sequence == 0 {
            return Err(reader.malformed("a header whose checksum does not match"));
        }
        let header = Self {
            source,
            incarnation,
            first_sequence,
        };
        Ok((header, length + 4))
    }
}

/// What a file holds.
pub(super) struct Scan {
    pub(super) header: Header,
    /// After its last whole record.
    pub(super) next_sequence: u64,
    /// Up to the end of its last whole frame.
    pub(super) whole_bytes: u64,
    pub(super) has_records: bool,
}

/// Reads all of a file; `None`: it has no whole header, so it was never used.
pub(super) fn scan(bytes: &[u8]) -> Option<Scan> {
    let (header, start) = Header::decode(bytes).ok()?;
    let mut next_sequence = header.first_sequence;
    let mut offset = start;
    while let Some(batch) = frame(&bytes[offset..]) {
        let follows = batch.source() == &header.source
            && batch.incarnation() == header.incarnation
            && batch.first_sequence() >= next_sequence;
        if !follows {
            break;
        }
        next_sequence = batch.next_sequence();
        offset += frame_bytes(&bytes[offset..]);
    }
    Some(Scan {
        header,
        next_sequence,
        whole_bytes: offset as u64,
        has_records: offset > start,
    })
}

/// The version of a file's head, or of the batch where its scan ends, if a newer build wrote it: not damage, and not never used.
pub(super) fn newer_version(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [b'F', b'S', b'P', b'L', version, ..] if *version > VERSION => return Some(*version),
        _ => {}
    }
    let end = usize::try_from(scan(bytes)?.whole_bytes).ok()?;
    match bytes.get(end + LENGTH_BYTES..)? {
        [b'F', b'U', b'S', b'G', version, ..] if *version > BATCH_VERSION => Some(*version),
        _ => None,
    }
}

/// Where the first frame begins.
pub(super) fn header_bytes(bytes: &[u8]) -> Option<usize> {
    Header::decode(bytes).ok().map(|(_, length)| length)
}

/// The frame at the beginning of these bytes, if it is whole.
pub(super) fn frame(bytes: &[u8]) -> Option<UsageBatch> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > BATCH_MAX_BYTES {
        return None;
    }
    UsageBatch::decode(rest.get(..length)?).ok()
}

/// Bytes of the whole frame at the beginning of these bytes.
pub(super) fn frame_bytes(bytes: &[u8]) -> usize {
    bytes
        .first_chunk::<LENGTH_BYTES>()
        .map_or(0, |length| LENGTH_BYTES + u32::from_le_bytes(*length) as usize)
}

/// A batch as a frame.
pub(super) fn framed(batch: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + batch.len());
    bytes.extend_from_slice(&(batch.len() as u32).to_le_bytes());
    bytes.extend_from_slice(batch);
    bytes
}
