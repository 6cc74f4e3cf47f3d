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

use super::{fields::Fields, index::TractPlace, layout::Frame};
use firn_blockd_protocol::{
    DiskId, Fence, Generation, Replication, RowIndex, RowVersion, TRACT_BLOCKS, TractId,
};
use firn_codec::{Reader, Writer};

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

fn put_tract(fields: &mut Writer, frame: Frame, tract: TractId) {
    fields.u32(frame.0);
    fields.raw(&tract.disk.0);
    fields.u32(tract.index);
}

impl Record {
    pub(crate) fn encode(&self, fields: &mut Writer) {
        match self {
            Self::Allocate { frame, place } => {
                fields.u8(1);
                put_tract(fields, *frame, place.tract);
                fields.u8(u8::try_from(place.replication.copies()).expect("at most three"));
                fields.u32(place.row.0);
                fields.u64(place.since.0);
            }
            Self::Reset { frame, tract, since } => {
                fields.u8(2);
                put_tract(fields, *frame, *tract);
                fields.u64(since.0);
            }
            Self::Release { frame, tract } => {
                fields.u8(3);
                put_tract(fields, *frame, *tract);
            }
            Self::Fence { disk, fence } => {
                fields.u8(4);
                fields.raw(&disk.0);
                fields.u32(fence.0);
            }
            Self::Settled { disk, settled } => {
                fields.u8(5);
                fields.raw(&disk.0);
                fields.u32(settled.fence.0);
                fields.u64(settled.sequence);
            }
            Self::Forget { disk } => {
                fields.u8(6);
                fields.raw(&disk.0);
            }
            Self::Blocks {
                frame,
                tract,
                first,
                generation,
                entries,
            } => {
                fields.u8(7);
                put_tract(fields, *frame, *tract);
                fields.u16(*first);
                fields.u16(u16::try_from(entries.len()).expect("a tract has 2048 blocks"));
                fields.u32(generation.fence.0);
                fields.u64(generation.sequence);
                for (place, checksum) in entries {
                    fields.u32(*place);
                    fields.u32(*checksum);
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

    /// The next record.
    ///
    /// # Errors
    /// If there is none: a checksum vouches for these bytes, so that means a later build or a bug.
    pub(crate) fn decode(fields: &mut Input<'_>) -> Result<Self, &'static str> {
        Ok(match fields.u8()? {
            1 => {
                let (frame, tract) = get_tract(fields)?;
                Self::Allocate {
                    frame,
                    place: TractPlace {
                        tract,
                        replication: Replication::new(fields.u8()?).ok_or("copies nobody makes")?,
                        row: RowIndex(fields.u32()?),
                        since: RowVersion(fields.u64()?),
                    },
                }
            }
            2 => {
                let (frame, tract) = get_tract(fields)?;
                let since = RowVersion(fields.u64()?);
                Self::Reset { frame, tract, since }
            }
            3 => {
                let (frame, tract) = get_tract(fields)?;
                Self::Release { frame, tract }
            }
            4 => Self::Fence {
                disk: get_disk(fields)?,
                fence: Fence(fields.u32()?),
            },
            5 => Self::Settled {
                disk: get_disk(fields)?,
                settled: get_generation(fields)?,
            },
            6 => Self::Forget {
                disk: get_disk(fields)?,
            },
            7 => {
                let (frame, tract) = get_tract(fields)?;
                let first = fields.u16()?;
                let count = fields.u16()?;
                let generation = get_generation(fields)?;
                if u32::from(first) + u32::from(count) > u32::from(TRACT_BLOCKS) {
                    return Err("blocks beyond the tract");
                }
                fields.require(usize::from(count) * 8)?;
                Self::Blocks {
                    frame,
                    tract,
                    first,
                    generation,
                    entries: (0..count)
                        .map(|_| Ok((fields.u32()?, fields.u32()?)))
                        .collect::<Result<_, &'static str>>()?,
                }
            }
            _ => return Err("a record of another kind"),
        })
    }
}

type Input<'a> = Reader<&'a [u8], Fields>;

fn get_disk(fields: &mut Input<'_>) -> Result<DiskId, &'static str> {
    fields.array().map(DiskId)
}

fn get_tract(fields: &mut Input<'_>) -> Result<(Frame, TractId), &'static str> {
    let frame = Frame(fields.u32()?);
    let tract = TractId {
        disk: get_disk(fields)?,
        index: fields.u32()?,
    };
    Ok((frame, tract))
}

fn get_generation(fields: &mut Input<'_>) -> Result<Generation, &'static str> {
    let fence = Fence(fields.u32()?);
    Ok(Generation::new(fence, fields.u64()?))
}
