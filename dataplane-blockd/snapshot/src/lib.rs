//! Snapshots of a virtual disk in an object store, taken while the disk is in use.
//!
//! ```text
//! NBD ─▶ SnapshotGate ─▶ VirtualDisk            taken:    prepare ─▶ freeze (an instant) ─▶ copy ─▶ root
//!          │ holds back a write to a tract                                     │
//!          │ until that tract is copied                                        ▼
//!          └───────── reads ──────────▶ sealed tracts, index pages, root ─▶ object store
//! ```
//!
//! - [`SnapshotGate`] is a device before the disk. Freezing takes no time: from that instant on, a write to a tract that is
//!   still to be copied waits until it was read (copy before write), all others pass.
//! - [`Catalogue`] is the place of one disk's snapshots: objects named by the keyed hash of what they hold, so what did not
//!   change since an earlier snapshot is there already. The generation that lists a snapshot is written last; without it nothing
//!   was taken.
//! - [`take`], [`restore`] and [`delete`] do it all.
//!
//! **What a snapshot holds**: every write that was given to the disk before the instant, none after. That is what a reader
//! saw, in every mode, and so a prefix of the writes; a crash may take from the disk what a snapshot still has.

mod catalogue;
mod delete;
mod error;
mod fields;
mod format;
mod gate;
mod ledger;
mod restore;
mod seal;
mod take;
mod tracts;

pub use catalogue::Catalogue;
pub use delete::{Deleted, delete};
pub use error::SnapshotError;
pub use format::{Root, Uid};
pub use gate::{Frozen, SnapshotGate};
pub use ledger::Listed;
pub use restore::{Restored, restore};
pub use take::{Prepared, Progress, Taken, prepare, take};

/// Bytes of the disk that stand in one object: a tract's.
pub const SNAPSHOT_TRACT_BYTES: u32 = 8 << 20;
