//! Address mapping: units of a disk to blocks of tracts.
//!
//! ```text
//! in place   tract 0: a block for each page of the dirty-region log │ tract 1 …: the disk's blocks, striped
//! log        groups of 128 tracts: │ checkpoint 0 │ checkpoint 1 │ 126 tracts of physical blocks │
//! ```
//!
//! Both grow at their end without moving anything. A log's checkpoint needs at most 32 bytes for each physical block, so
//! the two tracts in front of 126 (of at most 1024 blocks each) always suffice. Tracts that were never written take no room
//! on nodes.
//!
//! What is sealed with room stands in its blocks as `length u32 | sealed bytes | zeroes`, little-endian.

use crate::settings::Shape;
use firn_blockd_disk::{BadStripe, OVERHEAD_BYTES, Run, Stripe, Unit};
use firn_blockd_protocol::{BLOCK_BYTES, BlockRange, TRACT_BLOCKS, limits::MAX_REQUEST_BLOCKS};
use std::ops::Range;

/// In front of what is sealed with room.
pub(crate) const LENGTH_BYTES: usize = 4;
/// What a record of the log adds to its block: kind and number.
const RECORD_BYTES: usize = 9;
/// Tracts of a log that share two tracts for checkpoints.
const GROUP_TRACTS: u64 = 128;
/// Of them, for physical blocks.
const GROUP_LOG_TRACTS: u64 = GROUP_TRACTS - 2;

/// Consecutive blocks of a tract that one request can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which tract of the disk.
    pub tract: u32,
    /// Which blocks.
    pub range: BlockRange,
}

/// A unit that this disk does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Beyond what one disk can have.
    #[error("{0:?} lies beyond the largest disk")]
    TooFar(Unit),
    /// Of the other shape.
    #[error("a disk of this shape has no {0:?}")]
    Foreign(Unit),
    /// A stripe that cannot be.
    #[error(transparent)]
    Stripe(#[from] BadStripe),
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// Each block has its place.
    InPlace(Stripe),
    /// Each write goes to a new place.
    Log {
        /// Blocks of a tract that one physical block takes.
        slot_blocks: u16,
    },
}

impl Layout {
    /// Of a disk of this shape.
    ///
    /// # Errors
    /// [`LayoutError::Stripe`].
    pub fn new(shape: Shape) -> Result<Self, LayoutError> {
        Ok(match shape {
            Shape::InPlace {
                segment_tracts,
                unit_blocks,
            } => Self::InPlace(Stripe::new(segment_tracts, unit_blocks, TRACT_BLOCKS.into())?),
            Shape::Log { block_bytes, .. } => {
                let bytes = LENGTH_BYTES + OVERHEAD_BYTES + RECORD_BYTES + block_bytes as usize;
                Self::Log {
                    slot_blocks: u16::try_from(bytes.div_ceil(BLOCK_BYTES))
                        .expect("blocks are at most 64 KiB"),
                }
            }
        })
    }

    /// The disk's blocks (physical ones, of a log) that lie in one tract.
    pub fn blocks_in_tract(&self) -> u64 {
        match self {
            Self::InPlace(_) => slots(1),
            Self::Log { slot_blocks } => slots(*slot_blocks),
        }
    }

    /// Tracts that a disk needs with so many blocks (physical ones, of a log).
    pub fn tracts(&self, blocks: u64) -> u64 {
        match self {
            Self::InPlace(stripe) => 1 + stripe.tracts(blocks),
            Self::Log { slot_blocks } => {
                let log_tracts = blocks.div_ceil(slots(*slot_blocks)).max(1);
                let last = log_tracts - 1;
                last / GROUP_LOG_TRACTS * GROUP_TRACTS + 2 + last % GROUP_LOG_TRACTS + 1
            }
        }
    }

    /// Where the first part of a unit lies. Only a checkpoint has more parts.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn chunk(&self, unit: Unit, part: u64) -> Result<Chunk, LayoutError> {
        let too_far = LayoutError::TooFar(unit);
        let at = |tract: u64, first: u64, count: u64| {
            let range = u16::try_from(first)
                .ok()
                .zip(u16::try_from(count).ok())
                .and_then(|(first, count)| BlockRange::new(first, count));
            Ok(Chunk {
                tract: u32::try_from(tract).map_err(|_| too_far)?,
                range: range.ok_or(too_far)?,
            })
        };
        match (self, unit) {
            (_, unit) if part > 0 && !matches!(unit, Unit::Checkpoint(_)) => Err(too_far),
            (Self::InPlace(stripe), Unit::Block(block)) => {
                let place = stripe.place(block);
                at(1 + place.tract, place.block.into(), 1)
            }
            (Self::InPlace(_), Unit::Intent(page)) => at(0, page, 1),
            (Self::Log { slot_blocks }, Unit::Log(physical)) => {
                let (in_tract, length) = (slots(*slot_blocks), u64::from(*slot_blocks));
                let log_tract = physical / in_tract;
                let tract = log_tract / GROUP_LOG_TRACTS * GROUP_TRACTS + 2 + log_tract % GROUP_LOG_TRACTS;
                at(tract, physical % in_tract * length, length)
            }
            (Self::Log { .. }, Unit::Checkpoint(slot @ (0 | 1))) => {
                let (length, in_tract) = (MAX_REQUEST_BLOCKS as u64, CHUNKS_IN_TRACT);
                let tract = part / in_tract * GROUP_TRACTS + u64::from(slot);
                at(tract, part % in_tract * length, length)
            }
            (Self::InPlace(_), Unit::Log(_) | Unit::Checkpoint(_))
            | (Self::Log { .. }, Unit::Block(_) | Unit::Intent(_) | Unit::Checkpoint(_)) => {
                Err(LayoutError::Foreign(unit))
            }
        }
    }
}

impl Layout {
    /// Where a range of blocks in place lies, in as few chunks as tracts allow; they may be longer than what a request with data
    /// carries.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn runs(&self, blocks: Range<u64>) -> Result<Vec<Chunk>, LayoutError> {
        let unit = Unit::Block(blocks.start);
        let Self::InPlace(stripe) = self else {
            return Err(LayoutError::Foreign(unit));
        };
        let chunk = |run: Run| {
            let first = u16::try_from(run.first.block).ok()?;
            Some(Chunk {
                tract: u32::try_from(1 + run.first.tract).ok()?,
                range: BlockRange::new(first, u16::try_from(run.blocks).ok()?)?,
            })
        };
        let runs = stripe.runs(blocks).into_iter();
        runs.map(|run| chunk(run).ok_or(LayoutError::TooFar(unit)))
            .collect()
    }

    /// A run of blocks in place, cut where it lies on different tracts: each part's chunk, which one request can carry, and its first
    /// block, in the order of blocks.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn parts(&self, blocks: Range<u64>) -> Result<Vec<(Chunk, u64)>, LayoutError> {
        let Self::InPlace(stripe) = self else {
            return Err(LayoutError::Foreign(Unit::Block(blocks.start)));
        };
        let mut parts = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let count = (blocks.end - at).min(stripe.left_in_unit(at));
            let mut chunk = self.chunk(Unit::Block(at), 0)?;
            let first = chunk.range.first();
            let range = u16::try_from(count)
                .ok()
                .and_then(|count| BlockRange::new(first, count));
            chunk.range = range.ok_or(LayoutError::TooFar(Unit::Block(at)))?;
            parts.push((chunk, at));
            at += count;
        }
        Ok(parts)
    }
}

const CHUNKS_IN_TRACT: u64 = TRACT_BLOCKS as u64 / MAX_REQUEST_BLOCKS as u64;

/// Physical blocks of a tract.
fn slots(slot_blocks: u16) -> u64 {
    u64::from(TRACT_BLOCKS / slot_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn take(taken: &mut BTreeSet<(u32, u16)>, chunk: Chunk) {
        for block in chunk.range.blocks() {
            assert!(taken.insert((chunk.tract, block)), "{chunk:?} is taken");
        }
    }

    #[test]
    fn no_two_units_share_a_block_and_all_lie_within_the_disk() {
        for block_bytes in [4096, 65_536] {
            let shape = Shape::Log {
                block_bytes,
                physical_blocks: 0,
            };
            let layout = Layout::new(shape).unwrap();
            let mut taken = BTreeSet::new();
            let blocks = 140_000;
            for block in 0..blocks {
                take(&mut taken, layout.chunk(Unit::Log(block), 0).unwrap());
            }
            let parts = layout.tracts(blocks).div_ceil(GROUP_TRACTS) * CHUNKS_IN_TRACT;
            for (slot, part) in (0..parts).flat_map(|part| [(0, part), (1, part)]) {
                take(&mut taken, layout.chunk(Unit::Checkpoint(slot), part).unwrap());
            }
            let last = u64::from(taken.last().unwrap().0);
            assert_eq!(layout.tracts(blocks), last + 1);
            assert!(parts * (1 << 20) >= blocks * 32 + 4096, "a checkpoint fits");
        }
        let layout = Layout::new(Shape::in_place(3)).unwrap();
        let mut taken = BTreeSet::new();
        for block in 0..20_000 {
            take(&mut taken, layout.chunk(Unit::Block(block), 0).unwrap());
        }
        for page in 0..100 {
            take(&mut taken, layout.chunk(Unit::Intent(page), 0).unwrap());
        }
        assert!(u64::from(taken.last().unwrap().0) < layout.tracts(20_000));
    }

    #[test]
    fn a_run_is_cut_where_its_tract_changes_and_nowhere_else_within_a_unit() {
        let layout = Layout::new(Shape::InPlace {
            segment_tracts: 3,
            unit_blocks: 32,
        })
        .unwrap();
        let blocks = 20..2_000_u64;
        let parts = layout.parts(blocks.clone()).unwrap();
        let mut at = blocks.start;
        for (chunk, first) in parts {
            assert_eq!(first, at);
            assert!(chunk.range.count() <= 32 && (at + chunk.range.count() as u64) <= blocks.end);
            for block in chunk.range.blocks() {
                let own = layout.chunk(Unit::Block(at), 0).unwrap();
                assert_eq!((own.tract, own.range.first()), (chunk.tract, block));
                at += 1;
            }
            assert!(at == blocks.end || at.is_multiple_of(32));
        }
        assert_eq!(at, blocks.end);
    }

    #[test]
    fn a_unit_of_another_shape_or_beyond_the_largest_disk_has_no_place() {
        let layout = Layout::new(Shape::in_place(1)).unwrap();
        assert!(matches!(
            layout.chunk(Unit::Log(0), 0),
            Err(LayoutError::Foreign(_))
        ));
        for unit in [Unit::Intent(2048), Unit::Block(u64::MAX)] {
            assert!(matches!(layout.chunk(unit, 0), Err(LayoutError::TooFar(_))));
        }
    }
}
