//! The progress of a manifest that is gathered from the trees of a volume which was made without one (decision 0206).
//!
//! It stands behind the part of the manifest in the checkpoint while bit 1 of the features is set: the manifest has every segment that was
//! packed or moved since it was begun, and of older ones those that the walk over the trees has met so far.
//!
//! ```text
//! gathering (96)    0  stage u8 | tree u8 | told u8           0: it waits · 1: the head · 2: retained roots · 3: ended with gaps · 4: settled
//!                   3  reserved [5]
//!                   8  root u64                               the version of the retained root in which the walk is
//!                  16  inode u64 | block u64                  where it goes on
//!                  32  proposal u64                           the cleaner's newest when it was begun
//!                  40  begun_at_ms i64
//!                  48  bytes_per_second u64
//!                  56  segments u64                           entered from the trees
//!                  64  lost u64                               of them not in the bucket, or not right
//!                  72  unreadable u64                         nodes and inodes below which nothing was met
//!                  80  data_bytes u64                         of the head, passed
//!                  88  run u64                                begun anew so often
//! ```

use crate::{FormatError, cursor::Cursor};
use bytes::{BufMut, BytesMut};

/// What is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum GatheringStage {
    /// Until what a cleaner proposed before is merged.
    #[default]
    Waiting = 0,
    /// The head.
    Head = 1,
    /// Snapshots and other retained roots, the newest first.
    Retained = 2,
    /// Nothing any more: something could not be read.
    Gaps = 3,
    /// Nothing any more: it has all. Until a round was told, a cleaner may still retire that does not know of it.
    Settled = 4,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathering {
    /// What is gone through.
    pub stage: GatheringStage,
    /// Which of its trees.
    pub tree: u8,
    /// Whether a round was taken in since it was begun.
    pub told: bool,
    /// Which retained root; those above are done.
    pub root: u64,
    /// The inode at which the walk goes on.
    pub inode: u64,
    /// The block of its map.
    pub block: u64,
    /// The cleaner's newest proposal when it was begun.
    pub proposal: u64,
    /// When it was begun, milliseconds since 1970.
    pub begun_at_ms: i64,
    /// Bytes read a second at most.
    pub bytes_per_second: u64,
    /// Segments entered from the trees.
    pub segments: u64,
    /// Those of them that the store had lost or altered.
    pub lost: u64,
    /// Nodes and inodes that could not be read: what only they lead to is not known.
    pub unreadable: u64,
    /// Bytes of the head's data that were passed.
    pub data_bytes: u64,
    /// How often it was begun anew.
    pub run: u64,
}

impl Gathering {
    pub(crate) fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.stage as u8);
        out.put_u8(self.tree);
        out.put_u8(u8::from(self.told));
        out.put_bytes(0, 5);
        for number in [self.root, self.inode, self.block, self.proposal] {
            out.put_u64_le(number);
        }
        out.put_i64_le(self.begun_at_ms);
        for number in [
            self.bytes_per_second,
            self.segments,
            self.lost,
            self.unreadable,
            self.data_bytes,
            self.run,
        ] {
            out.put_u64_le(number);
        }
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let stage = match cursor.u8()? {
            0 => GatheringStage::Waiting,
            1 => GatheringStage::Head,
            2 => GatheringStage::Retained,
            3 => GatheringStage::Gaps,
            4 => GatheringStage::Settled,
            other => return Err(cursor.invalid("stage", 1, u64::from(other), "0 to 4")),
        };
        let tree = cursor.u8()?;
        let told = match cursor.u8()? {
            0 => false,
            1 => true,
            other => return Err(cursor.invalid("told", 1, u64::from(other), "0 or 1")),
        };
        cursor.reserved::<5>()?;
        Ok(Self {
            stage,
            tree,
            told,
            root: cursor.u64()?,
            inode: cursor.u64()?,
            block: cursor.u64()?,
            proposal: cursor.u64()?,
            begun_at_ms: cursor.i64()?,
            bytes_per_second: cursor.u64()?,
            segments: cursor.u64()?,
            lost: cursor.u64()?,
            unreadable: cursor.u64()?,
            data_bytes: cursor.u64()?,
            run: cursor.u64()?,
        })
    }
}
