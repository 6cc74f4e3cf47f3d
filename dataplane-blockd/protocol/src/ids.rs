//! The nouns of the block store.

pub use firn_ids::{DiskId, NodeId, TenantId};

use std::fmt;

/// The atom: one block is written whole or not at all.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks in a tract.
pub const TRACT_BLOCKS: u16 = 2048;
/// Bytes in a tract: long enough that a disk's seek (8 ms) is a tenth of the time to read it (64 ms at 128 MB/s).
pub const TRACT_BYTES: u64 = BLOCK_BYTES as u64 * TRACT_BLOCKS as u64;

/// Eight mebibytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TractId {
    /// The disk.
    pub disk: DiskId,
    /// Its place in the disk's blob, from 0. (How the disk's bytes map to tracts is the client's affair.)
    pub index: u32,
}

impl fmt::Display for TractId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.disk, self.index)
    }
}

/// Which attach of a disk speaks: raised by one at each attach, so that the one before can do nothing more.
/// No disk is attached under fence 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(pub u32);

/// When a block was written, in the order in which its disk's clients wrote: first by attach, then by the attach's own
/// count. Of two contents of a block the one with the higher generation is the disk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation {
    /// The attach that wrote.
    pub fence: Fence,
    /// Its count of writes and trims, from 1.
    pub sequence: u64,
}

impl Generation {
    /// Before every write.
    pub const ZERO: Self = Self {
        fence: Fence(0),
        sequence: 0,
    };

    /// Makes one.
    pub const fn new(fence: Fence, sequence: u64) -> Self {
        Self { fence, sequence }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.fence.0, self.sequence)
    }
}

/// Which of the locator tables: a cluster has one for each number of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replication(u8);

impl Replication {
    /// One to three copies.
    pub const ALL: [Self; 3] = [Self(1), Self(2), Self(3)];

    /// `copies` from 1 to 3.
    pub const fn new(copies: u8) -> Option<Self> {
        match copies {
            1..=3 => Some(Self(copies)),
            _ => None,
        }
    }

    /// How many copies.
    pub const fn copies(self) -> usize {
        self.0 as usize
    }
}

/// The place of a row in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RowIndex(pub u32);

/// Counts the changes of one row, from 1. A row and its version name one unchanging set of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RowVersion(pub u64);

/// Consecutive blocks of a tract: never empty, never beyond the tract's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    first: u16,
    count: u16,
}

impl BlockRange {
    /// The whole tract.
    pub const TRACT: Self = Self {
        first: 0,
        count: TRACT_BLOCKS,
    };

    /// `count` blocks from `first`; `None` if that is nothing or leaves the tract.
    pub const fn new(first: u16, count: u16) -> Option<Self> {
        if count == 0 || first as u32 + count as u32 > TRACT_BLOCKS as u32 {
            return None;
        }
        Some(Self { first, count })
    }

    /// The first block.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// One behind the last block.
    pub const fn end(self) -> u16 {
        self.first + self.count
    }

    /// How many blocks.
    pub const fn count(self) -> usize {
        self.count as usize
    }

    /// How many bytes.
    pub const fn bytes(self) -> usize {
        self.count() * BLOCK_BYTES
    }

    /// The blocks in order.
    pub fn blocks(self) -> std::ops::Range<u16> {
        self.first..self.end()
    }
}
