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
    entry::{ENTRY_BYTES, Entries},
    layout::{Frame, Geometry, LAYOUT_VERSION},
};
use bytes::Bytes;
use firn_blockd_protocol::{DiskId, Replication, RowIndex, RowVersion, TRACT_BLOCKS, TractId};

const MAGIC: [u8; 4] = *b"FBIX";
const HEADER_BYTES: usize = 128;
const REGION_BYTES: usize = HEADER_BYTES + ENTRY_BYTES * TRACT_BLOCKS as usize;
/// Bytes from one region to the next: the next multiple of a page.
pub(crate) const REGION_STRIDE: u64 = (REGION_BYTES as u64).next_multiple_of(4096);

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
    let mut bytes = vec![0; REGION_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    bytes[8..12].copy_from_slice(&frame.0.to_le_bytes());
    bytes[12..20].copy_from_slice(&version.to_le_bytes());
    if let Some((place, entries)) = used {
        bytes[6] = 1;
        bytes[7] = u8::try_from(place.replication.copies()).expect("at most three");
        bytes[20..36].copy_from_slice(&place.tract.disk.0);
        bytes[36..40].copy_from_slice(&place.tract.index.to_le_bytes());
        bytes[40..44].copy_from_slice(&place.row.0.to_le_bytes());
        bytes[44..52].copy_from_slice(&place.since.0.to_le_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(entries.as_bytes());
    }
    let checksum = checksum(&bytes);
    bytes[124..128].copy_from_slice(&checksum.to_le_bytes());
    bytes.into()
}

fn checksum(region: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&region[..124]), &region[HEADER_BYTES..])
}

/// A region; `None` if these bytes are not one (torn, rotten, or never written).
pub(crate) fn decode(frame: Frame, bytes: &[u8]) -> Option<Region> {
    let bytes = bytes.get(..REGION_BYTES)?;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if bytes[0..4] != MAGIC || bytes[4..6] != LAYOUT_VERSION.to_le_bytes() || word(124) != checksum(bytes) {
        return None;
    }
    if word(8) != frame.0 {
        return None;
    }
    let used = match bytes[6] {
        0 => None,
        1 => Some((
            TractPlace {
                tract: TractId {
                    disk: DiskId(bytes[20..36].try_into().expect("sixteen bytes")),
                    index: word(36),
                },
                replication: Replication::new(bytes[7])?,
                row: RowIndex(word(40)),
                since: RowVersion(long(44)),
            },
            Entries::from_bytes(&bytes[HEADER_BYTES..]),
        )),
        _ => return None,
    };
    Some(Region {
        version: long(12),
        used,
    })
}
