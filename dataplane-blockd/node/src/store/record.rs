//! Journal records: what changed, in the order in which it became durable.
//!
//! ```text
//! record   = kind u8 | fields
//! allocate = 1 | frame u32 | disk [16] | tract u32 | copies u8 | row u32 | since u64
//! reset    = 2 | frame u32 | disk [16] | tract u32 | since u64       the tract is empty again, from another membership in its row
//! release  = 3 | frame u32 | disk [16] | tract u32
//! fence    = 4 | disk [16] | fence u32
//! settled  = 5 | disk [16] | fence u32 | sequence u64               of the version before; read, passed over, not written
//! forget   = 6 | disk [16]
//! blocks   = 7 | frame u32 | disk [16] | tract u32 | first u16 | count u16 | fence u32 | sequence u64
//!              | count × (place u32 | checksum u32)
//! ```
//!
//! Replaying a record twice, or upon an index region that is newer, ends in the same state, provided that all that follow
//! are replayed too.

use super::{index::TractPlace, layout::Frame};
use bytes::{Buf, BufMut, BytesMut};
use firn_blockd_protocol::{
    DiskId, Fence, Generation, Replication, RowIndex, RowVersion, TRACT_BLOCKS, TractId,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Allocate {
        frame: Frame,
        place: TractPlace,
    },
    Reset {
        frame: Frame,
        tract: TractId,
        since: RowVersion,
    },
    Release {
        frame: Frame,
        tract: TractId,
    },
    Fence {
        disk: DiskId,
        fence: Fence,
    },
    Settled {
        disk: DiskId,
        settled: Generation,
    },
    Forget {
        disk: DiskId,
    },
    Blocks {
        frame: Frame,
        tract: TractId,
        first: u16,
        generation: Generation,
        /// Code of the place, and checksum, of each block.
        entries: Vec<(u32, u32)>,
    },
}

fn put_tract(bytes: &mut BytesMut, frame: Frame, tract: TractId) {
    bytes.put_u32_le(frame.0);
    bytes.put_slice(&tract.disk.0);
    bytes.put_u32_le(tract.index);
}

impl Record {
    pub(crate) fn encode(&self, bytes: &mut BytesMut) {
        match self {
            Self::Allocate { frame, place } => {
                bytes.put_u8(1);
                put_tract(bytes, *frame, place.tract);
                bytes.put_u8(u8::try_from(place.replication.copies()).expect("at most three"));
                bytes.put_u32_le(place.row.0);
                bytes.put_u64_le(place.since.0);
            }
            Self::Reset { frame, tract, since } => {
                bytes.put_u8(2);
                put_tract(bytes, *frame, *tract);
                bytes.put_u64_le(since.0);
            }
            Self::Release { frame, tract } => {
                bytes.put_u8(3);
                put_tract(bytes, *frame, *tract);
            }
            Self::Fence { disk, fence } => {
                bytes.put_u8(4);
                bytes.put_slice(&disk.0);
                bytes.put_u32_le(fence.0);
            }
            Self::Settled { disk, settled } => {
                bytes.put_u8(5);
                bytes.put_slice(&disk.0);
                bytes.put_u32_le(settled.fence.0);
                bytes.put_u64_le(settled.sequence);
            }
            Self::Forget { disk } => {
                bytes.put_u8(6);
                bytes.put_slice(&disk.0);
            }
            Self::Blocks {
                frame,
                tract,
                first,
                generation,
                entries,
            } => {
                bytes.put_u8(7);
                put_tract(bytes, *frame, *tract);
                bytes.put_u16_le(*first);
                bytes.put_u16_le(u16::try_from(entries.len()).expect("a tract has 2048 blocks"));
                bytes.put_u32_le(generation.fence.0);
                bytes.put_u64_le(generation.sequence);
                for (place, checksum) in entries {
                    bytes.put_u32_le(*place);
                    bytes.put_u32_le(*checksum);
                }
            }
        }
    }

    /// Bytes it takes at most.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Blocks { entries, .. } => 64 + entries.len() * 8,
            Self::Allocate { .. }
            | Self::Reset { .. }
            | Self::Release { .. }
            | Self::Fence { .. }
            | Self::Settled { .. }
            | Self::Forget { .. } => 64,
        }
    }

    /// The record at the beginning of `bytes`; `None` if there is none: a checksum vouches for these bytes, so that means a
    /// later build or a bug.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Some(match bytes.try_get_u8().ok()? {
            1 => {
                let (frame, tract) = get_tract(bytes)?;
                Self::Allocate {
                    frame,
                    place: TractPlace {
                        tract,
                        replication: Replication::new(bytes.try_get_u8().ok()?)?,
                        row: RowIndex(bytes.try_get_u32_le().ok()?),
                        since: RowVersion(bytes.try_get_u64_le().ok()?),
                    },
                }
            }
            2 => {
                let (frame, tract) = get_tract(bytes)?;
                let since = RowVersion(bytes.try_get_u64_le().ok()?);
                Self::Reset { frame, tract, since }
            }
            3 => {
                let (frame, tract) = get_tract(bytes)?;
                Self::Release { frame, tract }
            }
            4 => Self::Fence {
                disk: get_disk(bytes)?,
                fence: Fence(bytes.try_get_u32_le().ok()?),
            },
            5 => Self::Settled {
                disk: get_disk(bytes)?,
                settled: get_generation(bytes)?,
            },
            6 => Self::Forget {
                disk: get_disk(bytes)?,
            },
            7 => {
                let (frame, tract) = get_tract(bytes)?;
                let first = bytes.try_get_u16_le().ok()?;
                let count = bytes.try_get_u16_le().ok()?;
                let generation = get_generation(bytes)?;
                if u32::from(first) + u32::from(count) > u32::from(TRACT_BLOCKS)
                    || bytes.len() < usize::from(count) * 8
                {
                    return None;
                }
                Self::Blocks {
                    frame,
                    tract,
                    first,
                    generation,
                    entries: (0..count)
                        .map(|_| (bytes.get_u32_le(), bytes.get_u32_le()))
                        .collect(),
                }
            }
            _ => return None,
        })
    }
}

fn get_disk(bytes: &mut &[u8]) -> Option<DiskId> {
    let (disk, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(DiskId(*disk))
}

fn get_tract(bytes: &mut &[u8]) -> Option<(Frame, TractId)> {
    let frame = Frame(bytes.try_get_u32_le().ok()?);
    let tract = TractId {
        disk: get_disk(bytes)?,
        index: bytes.try_get_u32_le().ok()?,
    };
    Some((frame, tract))
}

fn get_generation(bytes: &mut &[u8]) -> Option<Generation> {
    let fence = Fence(bytes.try_get_u32_le().ok()?);
    Some(Generation::new(fence, bytes.try_get_u64_le().ok()?))
}
