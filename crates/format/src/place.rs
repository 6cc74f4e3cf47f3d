//! Place of an object in a volume's tree: its backpointer.
//!
//! Every object names the one place it stands at in every root that holds it. So whether it is still needed is answered
//! by one lookup at that place, and an object put at another place is noticed.
//!
//! ```text
//! inode 0   the inode map: leaf i is the Inode object of inode i
//! inode 1   the orphan map: inodes unlinked but still open
//! inode 2   the usage map: live bytes per segment, a hint for the cleaner
//! inode 3   checkpoints: leaf v is the checkpoint of version v (in no map; the anchor points to it)
//! inode 4   the manifest: segments that must exist
//! inode 16  the root directory; user inodes follow
//! ```

use std::fmt;

/// The inode number under which the inode map's objects stand.
pub const INODE_MAP: u64 = 0;
/// The inode number under which the map of unlinked but open inodes stands.
pub const ORPHAN_MAP: u64 = 1;
/// The inode number under which the segment usage map stands.
pub const USAGE_MAP: u64 = 2;
/// The inode number under which checkpoints stand, at the index of their version.
pub const CHECKPOINTS: u64 = 3;
/// The inode number under which the manifest of segments stands.
pub const MANIFEST: u64 = 4;
/// The inode of every volume's root directory. Numbers below it that are not named above are reserved.
pub const ROOT_DIRECTORY: u64 = 16;
/// The first inode number given to a user's file.
pub const FIRST_FREE_INODE: u64 = 17;

/// The highest level a node can have: ten levels of 128 slots reach every 64-bit index.
pub const MAX_LEVEL: u8 = 10;

/// Where an object stands in its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file (or map) it belongs to.
    pub inode: u64,
    /// 0 for a leaf, counting up towards the root of the file's map.
    pub level: u8,
    /// For a leaf, which block it is; for a node, which of the nodes of its level.
    pub index: u64,
}

impl Place {
    /// The place of an inode's own object: a leaf of the inode map.
    pub const fn of_inode(inode: u64) -> Self {
        Self {
            inode: INODE_MAP,
            level: 0,
            index: inode,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, level, index } = *self;
        match (inode, level) {
            (INODE_MAP, 0) => write!(formatter, "inode {index}"),
            (INODE_MAP, _) => write!(formatter, "inode map, level {level}, node {index}"),
            (ORPHAN_MAP, _) => write!(formatter, "orphan map, level {level}, index {index}"),
            (USAGE_MAP, _) => write!(formatter, "usage map, level {level}, index {index}"),
            (MANIFEST, _) => write!(formatter, "manifest, level {level}, index {index}"),
            (CHECKPOINTS, _) => write!(formatter, "checkpoint of version {index}"),
            (_, 0) => write!(formatter, "inode {inode}, block {index}"),
            (_, _) => write!(formatter, "inode {inode}, level {level}, node {index}"),
        }
    }
}
