//! The checksum of a block, computed once by the client and carried to the platter and back.
//!
//! It covers where the block belongs as well as what is in it, so that a block that was written to, or read from, a wrong
//! place does not pass: a node's disk that misdirects a write is found out by the client itself.

use crate::{BLOCK_BYTES, TractId};

/// CRC-32C of the disk, the tract's index, the block's number (little-endian) and the block's 4096 bytes.
///
/// # Panics
/// If `data` is not one block.
pub fn block_checksum(tract: TractId, block: u16, data: &[u8]) -> u32 {
    assert_eq!(data.len(), BLOCK_BYTES, "a checksum is of one block");
    let mut place = [0; 22];
    place[..16].copy_from_slice(&tract.disk.0);
    place[16..20].copy_from_slice(&tract.index.to_le_bytes());
    place[20..].copy_from_slice(&block.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), data)
}
