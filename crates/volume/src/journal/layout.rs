//! Layout of a journal file: offsets of its parts, and the room that records take.
//!
//! ```text
//! 0              header
//! 84             opening record (slot 0)
//! first offset   records (slots 1 and on), each `payload + RECORD_ADDED_BYTES`
//! ```

use firn_format::{JOURNAL_HEADER_BYTES, MAX_RECORD_BYTES, RECORD_OVERHEAD_BYTES};
use firn_seal::SEALED_OVERHEAD_BYTES;

/// Bytes that sealing and framing add to a record.
pub(super) const RECORD_ADDED_BYTES: u64 = (RECORD_OVERHEAD_BYTES + SEALED_OVERHEAD_BYTES) as u64;

/// Payload of the opening record.
pub(super) const OPENING_BYTES: u64 = 8;

/// Where the first record after the opening one begins.
pub(super) const FIRST_RECORD_OFFSET: u64 = JOURNAL_HEADER_BYTES as u64 + OPENING_BYTES + RECORD_ADDED_BYTES;

/// The slot of the first record after the opening one.
pub(super) const FIRST_RECORD_SLOT: u32 = 1;

/// Bytes a record of `payload` bytes takes in a file.
pub(super) fn framed(payload: u64) -> u64 {
    payload.saturating_add(RECORD_ADDED_BYTES)
}

/// The largest framed record a file of this size takes: the format's limit, and at most half a file.
pub(super) fn largest_framed(file_bytes: u64) -> u64 {
    let limit = (MAX_RECORD_BYTES - SEALED_OVERHEAD_BYTES) as u64 + RECORD_ADDED_BYTES;
    limit.min(file_bytes.saturating_sub(FIRST_RECORD_OFFSET) / 2)
}

/// Where the next record goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) slot: u32,
}

impl Cursor {
    pub(super) fn start_of(file: u64) -> Self {
        Self {
            file,
            offset: FIRST_RECORD_OFFSET,
            slot: FIRST_RECORD_SLOT,
        }
    }
}
