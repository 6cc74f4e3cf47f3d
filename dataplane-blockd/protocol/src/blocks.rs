//! Block data as messages carry it: the blocks that have content, one behind the other, each with its checksum.

use crate::{
    BLOCK_BYTES, BlockRange, Generation, TractId,
    checksum::block_checksum,
    cursor::{DecodeError, Decoder, Encoder},
    limits::{MAX_DATA_BYTES, MAX_REQUEST_BLOCKS},
};
use bytes::Bytes;

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
                Ok(match decoder.u8()? {
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
                        state: BlockState::Written(decoder.u32()?),
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
        .map(|_| decoder.u32())
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
