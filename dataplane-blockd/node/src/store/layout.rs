//! On-disk layout of a node.
//!
//! ```text
//! superblock        who the node is and how its disk is cut; written once
//! data/00000 …      groups: H home frames, then S scratch frames, of 8 MiB each, preallocated
//! index/00000 …     for each home frame two copies of its index region (44 KiB each), written in turn
//! journal/0, /1     changes since the index regions were written
//! state             fences, the newest version of each index region, where the journal begins
//! ```
//!
//! A **frame** is the home of one tract; block *b*'s home is the frame's *b*th slot of 4 KiB. No slot that holds content
//! somebody may still need is ever written: a block goes to its home if that is free, and to a free scratch slot of the same
//! group if not; when scratch is used up, to the home of a block that is elsewhere ([`slots`](super::slots)). A block that is overwritten again and again thus goes back and forth between the two, each write is one
//! write, and what is written once or trimmed in between lies where a sequential read finds it.
//!
//! A group of 1 GiB with an eighth of scratch: as many files as gibibytes, and a seek from home to scratch stays short.

use super::{
    entry::ENTRY_BYTES,
    fields::{Unfit, checked},
};
use firn_blockd_protocol::{NodeId, TRACT_BLOCKS};
use firn_codec::Writer;

/// Version of everything on the disk; in every header.
pub(crate) const LAYOUT_VERSION: u16 = 1;
/// Home frames of a group unless a test wants less.
const HOME_FRAMES: u32 = 112;
/// Scratch frames of a group.
const SCRATCH_FRAMES: u32 = 16;
/// Bytes of one journal file: about 300 000 blocks written one at a time, so that an index region is written once for many
/// changes of its tract.
const JOURNAL_BYTES: u64 = 32 << 20;
/// Header of an index region; its last four bytes are the checksum.
pub(crate) const REGION_HEADER_BYTES: usize = 128;
/// The entries of an index region, one for each block of a tract.
pub(crate) const ENTRIES_BYTES: usize = ENTRY_BYTES * TRACT_BLOCKS as usize;
/// An index region.
pub(crate) const REGION_BYTES: usize = REGION_HEADER_BYTES + ENTRIES_BYTES;
/// Bytes from one region to the next: the next multiple of a page.
pub(crate) const REGION_STRIDE: u64 = (REGION_BYTES as u64).next_multiple_of(4096);
const SUPERBLOCK_MAGIC: [u8; 8] = *b"FIRNBLKD";
const SUPERBLOCK_BYTES: usize = 50;
pub(crate) const SUPERBLOCK: &str = "superblock";

/// How a node's disk is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Files of home and scratch frames.
    pub groups: u32,
    /// Home frames in a group: tracts it can hold.
    pub home_frames: u32,
    /// Scratch frames in a group.
    pub scratch_frames: u32,
    /// Bytes of each of the two journal files.
    pub journal_bytes: u64,
}

impl Geometry {
    /// For a disk that may use `bytes`: as many groups of 1 GiB as fit beside their index and the journal.
    pub fn for_bytes(bytes: u64) -> Self {
        let frame = u64::from(TRACT_BLOCKS) * 4096;
        let group =
            u64::from(HOME_FRAMES + SCRATCH_FRAMES) * frame + u64::from(HOME_FRAMES) * 2 * REGION_STRIDE;
        Self {
            groups: u32::try_from(bytes.saturating_sub(2 * JOURNAL_BYTES) / group).unwrap_or(u32::MAX),
            home_frames: HOME_FRAMES,
            scratch_frames: SCRATCH_FRAMES,
            journal_bytes: JOURNAL_BYTES,
        }
    }

    /// Tracts it can hold.
    pub fn capacity_tracts(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.home_frames)
    }

    /// Whether it can be worked with.
    pub(crate) fn is_sound(&self) -> bool {
        let slots = u64::from(self.home_frames + self.scratch_frames) * u64::from(TRACT_BLOCKS);
        (1..=1 << 20).contains(&self.groups)
            && (1..=4096).contains(&self.home_frames)
            && (1..=4096).contains(&self.scratch_frames)
            && slots < u64::from(u32::MAX) - 2
            && (64 << 10..=1 << 30).contains(&self.journal_bytes)
    }

    pub(crate) fn group_of(&self, frame: Frame) -> u32 {
        frame.0 / self.home_frames
    }

    pub(crate) fn home_slot(&self, frame: Frame, block: u16) -> u32 {
        frame.0 % self.home_frames * u32::from(TRACT_BLOCKS) + u32::from(block)
    }

    pub(crate) fn first_scratch_slot(&self) -> u32 {
        self.home_frames * u32::from(TRACT_BLOCKS)
    }

    pub(crate) fn scratch_slots(&self) -> u32 {
        self.scratch_frames * u32::from(TRACT_BLOCKS)
    }

    pub(crate) fn data_file_bytes(&self) -> u64 {
        u64::from(self.home_frames + self.scratch_frames) * u64::from(TRACT_BLOCKS) * 4096
    }
}

/// A home frame, counted over all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Frame(pub(crate) u32);

pub(crate) fn data_path(group: u32) -> String {
    format!("data/{group:05}")
}

pub(crate) fn index_path(group: u32) -> String {
    format!("index/{group:05}")
}

pub(crate) fn journal_path(slot: u64) -> String {
    format!("journal/{slot}")
}

/// The superblock's bytes.
///
/// ```text
/// magic "FIRNBLKD" | layout version u16 | node [16] | groups u32 | home frames u32 | scratch frames u32 | journal bytes u64
/// | crc32c u32                                                                                         little-endian
/// ```
pub(crate) fn encode_superblock(node: NodeId, geometry: &Geometry) -> Vec<u8> {
    let mut fields = Writer::with_capacity(SUPERBLOCK_BYTES);
    fields.raw(&SUPERBLOCK_MAGIC);
    fields.u16(LAYOUT_VERSION);
    fields.raw(&node.0);
    fields.u32(geometry.groups);
    fields.u32(geometry.home_frames);
    fields.u32(geometry.scratch_frames);
    fields.u64(geometry.journal_bytes);
    fields.u32(crc32c::crc32c(fields.as_slice()));
    fields.finish()
}

/// What a superblock says; why, if this build cannot use it.
pub(crate) fn decode_superblock(bytes: &[u8]) -> Result<(NodeId, Geometry), Unfit> {
    let mut fields = checked(bytes, SUPERBLOCK_MAGIC, "it is not one of a disk node")?;
    if bytes.len() != SUPERBLOCK_BYTES {
        return Err(Unfit::Damaged("it has another length"));
    }
    let node = NodeId(fields.array()?);
    let geometry = Geometry {
        groups: fields.u32()?,
        home_frames: fields.u32()?,
        scratch_frames: fields.u32()?,
        journal_bytes: fields.u64()?,
    };
    if !geometry.is_sound() {
        return Err(Unfit::Damaged("its sizes are impossible"));
    }
    Ok((node, geometry))
}
