//! Block data as messages carry it: the blocks that have content, one behind the other, each with its checksum.

use crate::{
    BLOCK_BYTES, BlockRange, Generation, TractId,
    checksum::block_checksum,
    cursor::{DecodeError, Decoder, Encoder},
    limits::{MAX_DATA_BYTES, MAX_REQUEST_BLOCKS},
};
use bytes::{Bytes, BytesMut};

/// The content of a write: every block of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBlocks {
    /// Of each block, by [`block_checksum`].
    pub checksums: Vec<u32>,
    /// The blocks one behind the other.
    pub data: Bytes,
}

impl WriteBlocks {
    /// Cuts `data` into blocks and computes their checksums; `None` unless it fills `range` exactly.
    pub fn new(tract: TractId, range: BlockRange, data: Bytes) -> Option<Self> {
        (data.len() == range.bytes()).then(|| Self {
            checksums: range
                .blocks()
                .zip(data.chunks_exact(BLOCK_BYTES))
                .map(|(block, data)| block_checksum(tract, block, data))
                .collect(),
            data,
        })
    }

    /// The first block whose data is not what its checksum says.
    pub fn first_damaged(&self, tract: TractId, range: BlockRange) -> Option<u16> {
        range
            .blocks()
            .zip(self.data.chunks_exact(BLOCK_BYTES))
            .zip(&self.checksums)
            .find(|((block, data), checksum)| block_checksum(tract, *block, data) != **checksum)
            .map(|((block, _), _)| block)
    }
}

/// What a read found: blocks that were never written, or trimmed, have no data and read as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBlocks {
    /// The blocks asked for.
    pub range: BlockRange,
    /// Of each block of the range, in order: its checksum, or nothing if it reads as zeros.
    pub checksums: Vec<Option<u32>>,
    /// The blocks that have content, one behind the other.
    pub data: Bytes,
}

impl ReadBlocks {
    /// All bytes of the range, verified, zeros included; the number of the first damaged block otherwise.
    ///
    /// # Errors
    /// The block whose data is not what its checksum says.
    pub fn verified(&self, tract: TractId) -> Result<Bytes, u16> {
        let mut rest = self.data.chunks_exact(BLOCK_BYTES);
        for (block, checksum) in self.range.blocks().zip(&self.checksums) {
            if let Some(checksum) = checksum {
                let data = rest.next().ok_or(block)?;
                if block_checksum(tract, block, data) != *checksum {
                    return Err(block);
                }
            }
        }
        if self.checksums.iter().all(Option::is_some) {
            return Ok(self.data.clone());
        }
        let mut all = BytesMut::zeroed(self.range.bytes());
        let mut rest = self.data.chunks_exact(BLOCK_BYTES);
        for (target, checksum) in all.chunks_exact_mut(BLOCK_BYTES).zip(&self.checksums) {
            if checksum.is_some()
                && let Some(data) = rest.next()
            {
                target.copy_from_slice(data);
            }
        }
        Ok(all.freeze())
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) {
        encoder.range(self.range);
        encode_presence(encoder, self.checksums.iter().map(Option::is_some));
        for checksum in self.checksums.iter().flatten() {
            encoder.u32(*checksum);
        }
    }

    pub(crate) fn decode(decoder: &mut Decoder, data: Bytes) -> Result<Self, DecodeError> {
        let range = request_range(decoder)?;
        let present = decode_presence(decoder, range.count())?;
        let checksums = present
            .into_iter()
            .map(|present| present.then(|| decoder.u32("checksum")).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        require_blocks(&data, checksums.iter().flatten().count())?;
        Ok(Self {
            range,
            checksums,
            data,
        })
    }
}

/// What stands in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Never written here.
    Absent,
    /// Trimmed: reads as zeros, and stays so against anything written before.
    Trimmed,
    /// Written, with this checksum.
    Written(u32),
}

/// A block's state and since when it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockVersion {
    /// Highest wins. Zero for an absent block.
    pub generation: Generation,
    /// What stands there.
    pub state: BlockState,
}

/// What a fetch found: the versions of all blocks of a range and the data of those that have any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedBlocks {
    /// The blocks asked for.
    pub range: BlockRange,
    /// One for each block of the range.
    pub versions: Vec<BlockVersion>,
    /// The written blocks, one behind the other.
    pub data: Bytes,
}

impl VersionedBlocks {
    /// The first block whose data is not what its checksum says.
    pub fn first_damaged(&self, tract: TractId) -> Option<u16> {
        self.contents()
            .find(|(block, version, data)| match (version.state, data) {
                (BlockState::Written(checksum), Some(data)) => {
                    block_checksum(tract, *block, data) != checksum
                }
                (BlockState::Written(_), None) => true,
                (BlockState::Absent | BlockState::Trimmed, _) => false,
            })
            .map(|(block, _, _)| block)
    }

    /// Each block with its version and its data, if it has any.
    pub fn contents(&self) -> impl Iterator<Item = (u16, BlockVersion, Option<Bytes>)> + '_ {
        let mut offset = 0;
        self.range
            .blocks()
            .zip(&self.versions)
            .map(move |(block, version)| match version.state {
                BlockState::Absent | BlockState::Trimmed => (block, *version, None),
                BlockState::Written(_) => {
                    let end = offset + BLOCK_BYTES;
                    let data = (end <= self.data.len()).then(|| self.data.slice(offset..end));
                    offset = end;
                    (block, *version, data)
                }
            })
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) {
        encoder.range(self.range);
        for version in &self.versions {
            match version.state {
                BlockState::Absent => encoder.u8(0),
                BlockState::Trimmed => {
                    encoder.u8(1);
                    encoder.generation(version.generation);
                }
                BlockState::Written(checksum) => {
                    encoder.u8(2);
                    encoder.generation(version.generation);
                    encoder.u32(checksum);
                }
            }
        }
    }

    pub(crate) fn decode(decoder: &mut Decoder, data: Bytes) -> Result<Self, DecodeError> {
        let range = request_range(decoder)?;
        let versions = range
            .blocks()
            .map(|_| {
                Ok(match decoder.u8("block state")? {
                    0 => BlockVersion {
                        generation: Generation::ZERO,
                        state: BlockState::Absent,
                    },
                    1 => BlockVersion {
                        generation: decoder.generation()?,
                        state: BlockState::Trimmed,
                    },
                    2 => BlockVersion {
                        generation: decoder.generation()?,
                        state: BlockState::Written(decoder.u32("checksum")?),
                    },
                    value => {
                        return Err(DecodeError::Invalid {
                            field: "block state",
                            value: value.into(),
                        });
                    }
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let written = versions
            .iter()
            .filter(|version| matches!(version.state, BlockState::Written(_)))
            .count();
        require_blocks(&data, written)?;
        Ok(Self {
            range,
            versions,
            data,
        })
    }
}

/// A range that one request may ask for.
pub(crate) fn request_range(decoder: &mut Decoder) -> Result<BlockRange, DecodeError> {
    let range = decoder.range()?;
    if range.count() > MAX_REQUEST_BLOCKS {
        return Err(DecodeError::Invalid {
            field: "block count",
            value: range.count() as u64,
        });
    }
    Ok(range)
}

pub(crate) fn encode_write(blocks: &WriteBlocks, encoder: &mut Encoder) {
    for checksum in &blocks.checksums {
        encoder.u32(*checksum);
    }
}

pub(crate) fn decode_write(
    decoder: &mut Decoder,
    range: BlockRange,
    data: Bytes,
) -> Result<WriteBlocks, DecodeError> {
    let checksums = range
        .blocks()
        .map(|_| decoder.u32("checksum"))
        .collect::<Result<Vec<_>, _>>()?;
    require_blocks(&data, checksums.len())?;
    Ok(WriteBlocks { checksums, data })
}

fn require_blocks(data: &Bytes, blocks: usize) -> Result<(), DecodeError> {
    if data.len() != blocks * BLOCK_BYTES || data.len() > MAX_DATA_BYTES {
        return Err(DecodeError::Invalid {
            field: "data length",
            value: data.len() as u64,
        });
    }
    Ok(())
}

/// One bit for each block, the first in the lowest bit of the first byte.
pub(crate) fn encode_presence(encoder: &mut Encoder, present: impl Iterator<Item = bool>) {
    let mut byte = 0_u8;
    let mut filled = 0;
    for present in present {
        byte |= u8::from(present) << filled;
        filled += 1;
        if filled == 8 {
            encoder.u8(byte);
            (byte, filled) = (0, 0);
        }
    }
    if filled > 0 {
        encoder.u8(byte);
    }
}

pub(crate) fn decode_presence(decoder: &mut Decoder, blocks: usize) -> Result<Vec<bool>, DecodeError> {
    let mut present = Vec::with_capacity(blocks);
    while present.len() < blocks {
        let byte = decoder.u8("presence")?;
        let bits = (blocks - present.len()).min(8);
        if bits < 8 && byte >> bits != 0 {
            return Err(DecodeError::Invalid {
                field: "presence",
                value: byte.into(),
            });
        }
        present.extend((0..bits).map(|bit| byte >> bit & 1 == 1));
    }
    Ok(present)
}
