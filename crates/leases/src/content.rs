//! The file system whose inodes are leased, as leases see it.

use crate::MemberError;
use async_trait::async_trait;
use firn_anchor::{LeaseRange, VolumeTuple};
use firn_format::{Location, Uid};

/// A checkpoint that is uploaded, and waits to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Of the checkpoint.
    pub uid: Uid,
    /// Where it lies.
    pub location: Location,
    /// The last segment of this incarnation that it names.
    pub sequence: u64,
}

/// What came of building the next root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Nothing is unpublished.
    Nothing,
    /// It is uploaded.
    Root(Built),
    /// The leaf check: an inode is not any more what it was when the first unpublished change of it was made. The journal goes into a salvage clone.
    LeafChanged {
        /// Which.
        inode: u64,
    },
}

/// A file system, as far as its member needs it. Calls come one at a time, except [`Self::is_published`] and [`Self::is_awaited`] at any time, and [`Self::adopt`] while something is built: that is dropped then,
/// and what waits for it waits until it is.
#[async_trait]
pub trait Content: Send + Sync {
    /// Takes a newer root into memory: what was changed here and is not known to be published stays, everything else that differs is dropped.
    ///
    /// # Errors
    /// [`MemberError::Content`]: it stays at the root before.
    async fn adopt(&self, volume: &VolumeTuple) -> Result<(), MemberError>;

    /// Freezes what is unpublished, puts it on the root of `volume`, which was adopted last, checks the leaves, and uploads it. May take long: the
    /// member gives signs of life meanwhile. Is dropped when that says that the member was broken.
    ///
    /// # Errors
    /// [`MemberError::Content`]: nothing is published.
    async fn build(&self, volume: &VolumeTuple) -> Result<Build, MemberError>;

    /// Whether nothing of a range of an arena is unpublished, nor anything that was done under a lease of it: it is given then. Of the shape lease that is each move of a directory. Asked under the lock of the lease table: no I/O, and no lock under which that table is asked.
    fn is_published(&self, arena: u64, range: LeaseRange) -> bool;

    /// Whether somebody waits until what is unpublished is committed: then the member goes on while it has the right to.
    fn is_awaited(&self) -> bool {
        false
    }

    /// What was built last is committed: it is published, and what was changed since stands on it. The root in memory stays the adopted one, which may be
    /// older or newer: the next adoption follows. A call that is dropped before it changed anything is made again; once it changes something it waits for nothing.
    async fn committed(&self, built: &Built);
}
