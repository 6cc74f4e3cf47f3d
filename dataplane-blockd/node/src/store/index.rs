//! Index regions: the entries of one tract as they stand on the disk.
//!
//! ```text
//! region = magic "FBIX" | layout version u16 | used u8 | copies u8 | frame u32 | version u64 | disk [16] | tract u32
//!        | row u32 | since u64 | zeros to 124 | crc32c of header and entries u32 | 2048 × entry | zeros to 45056
//! entry  = fence u32 | sequence u64 | checksum u32 | place u32          place: 0 absent, 1 trimmed, slot + 2
//! ```
//!
//! Each frame has two copies; version *v* is written over copy *v* mod 2, so a torn write leaves the one before, and the
//! journal still holds what it lacks. The state file remembers the newest version of each region that was made durable: if
//! only an older copy can be read, the newer one rotted, and the node says so instead of going back in time.

use super::{
    entry::Entries,
    fields::fields,
    layout::{
        ENTRIES_BYTES, Frame, Geometry, LAYOUT_VERSION, REGION_BYTES, REGION_HEADER_BYTES, REGION_STRIDE,
    },
};
use bytes::Bytes;
use firn_blockd_protocol::{DiskId, Replication, RowIndex, RowVersion, TractId};
use firn_codec::Writer;

const MAGIC: [u8; 4] = *b"FBIX";
const CHECKSUM_AT: usize = REGION_HEADER_BYTES - 4;
/// In the region of a free frame.
static NO_ENTRIES: [u8; ENTRIES_BYTES] = [0; ENTRIES_BYTES];

/// Which tract a frame holds and under what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TractPlace {
    /// The tract.
    pub tract: TractId,
    /// The table of its row.
    pub replication: Replication,
    /// Its row.
    pub row: RowIndex,
    /// The version of the row with which this node joined it. Content from an earlier membership is not the tract's.
    pub since: RowVersion,
}

/// A region that was read.
pub(crate) struct Region {
    pub(crate) version: u64,
    /// `None`: the frame is free.
    pub(crate) used: Option<(TractPlace, Entries)>,
}

pub(crate) fn offset(geometry: &Geometry, frame: Frame, version: u64) -> u64 {
    (u64::from(frame.0 % geometry.home_frames) * 2 + version % 2) * REGION_STRIDE
}

pub(crate) fn encode(frame: Frame, version: u64, used: Option<(TractPlace, &Entries)>) -> Bytes {
    let mut region = Writer::with_capacity(REGION_BYTES);
    region.raw(&MAGIC);
    region.u16(LAYOUT_VERSION);
    let (place, entries) = used.unzip();
    region.u8(place.is_some().into());
    region.u8(place.map_or(0, |place| {
        u8::try_from(place.replication.copies()).expect("at most three")
    }));
    region.u32(frame.0);
    region.u64(version);
    if let Some(place) = place {
        region.raw(&place.tract.disk.0);
        region.u32(place.tract.index);
        region.u32(place.row.0);
        region.u64(place.since.0);
    }
    region.zeros_to(CHECKSUM_AT);
    let entries = entries.map_or(&NO_ENTRIES[..], Entries::as_bytes);
    region.u32(checksum(region.as_slice(), entries));
    region.raw(entries);
    region.finish().into()
}

fn checksum(header: &[u8], entries: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), entries)
}

/// The layout of a region that is whole, if this build does not know it.
pub(crate) fn newer_layout(bytes: &[u8]) -> Option<u16> {
    let bytes = bytes.get(..REGION_BYTES)?;
    let (covered, entries) = (&bytes[..CHECKSUM_AT], &bytes[REGION_HEADER_BYTES..]);
    let is_whole = fields(&bytes[CHECKSUM_AT..]).u32().ok()? == checksum(covered, entries);
    let mut fields = fields(covered);
    let is_region = fields.array().ok()? == MAGIC;
    let layout = fields.u16().ok()?;
    (is_whole && is_region && layout != LAYOUT_VERSION).then_some(layout)
}

/// A region; `None` if these bytes are not one (torn, rotten, or never written).
pub(crate) fn decode(frame: Frame, bytes: &[u8]) -> Option<Region> {
    let bytes = bytes.get(..REGION_BYTES)?;
    let (covered, entries) = (&bytes[..CHECKSUM_AT], &bytes[REGION_HEADER_BYTES..]);
    if fields(&bytes[CHECKSUM_AT..]).u32().ok()? != checksum(covered, entries) {
        return None;
    }
    let mut fields = fields(covered);
    if fields.array().ok()? != MAGIC || fields.u16().ok()? != LAYOUT_VERSION {
        return None;
    }
    let (used, copies) = (fields.u8().ok()?, fields.u8().ok()?);
    if fields.u32().ok()? != frame.0 {
        return None;
    }
    let version = fields.u64().ok()?;
    let used = match used {
        0 => None,
        1 => Some((
            TractPlace {
                tract: TractId {
                    disk: DiskId(fields.array().ok()?),
                    index: fields.u32().ok()?,
                },
                replication: Replication::new(copies)?,
                row: RowIndex(fields.u32().ok()?),
                since: RowVersion(fields.u64().ok()?),
            },
            Entries::from_bytes(entries),
        )),
        _ => return None,
    };
    Some(Region { version, used })
}
