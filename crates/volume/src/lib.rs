//! The log-structured file system engine: a volume that journals on the local disk and lives in an object store.
//!
//! A [`Volume`] implements [`firn_vfs::Vfs`]. Start reading at `volume` (the picture of the data path), then `state` (what is
//! in memory and how it changes), `journal` (what makes it survive), `checkpoint` (how it gets to the cloud), `objects` (how
//! it comes back), `open`, `detached` and `salvage` (start, stop, takeover).

mod branch;
mod checkpoint;
mod codec;
mod config;
mod damage;
mod detached;
mod error;
mod extents;
mod filesystem;
mod inode;
pub mod journal;
mod kept_checkpoint;
mod load;
mod local;
mod merge;
pub mod objects;
mod open;
mod paths;
mod read;
mod read_view;
mod record;
pub mod recover;
mod replay;
mod salvage;
mod snapshots;
mod start;
mod state;
mod status;
mod tree;
mod tree_diff;
mod usage;
mod verify;
mod volume;

pub use checkpoint::LostSegments;
pub use config::{Cadence, VolumeConfig};
pub use detached::{DetachedReport, NotDetachable};
pub use error::VolumeError;
pub use merge::MergeStatus;
pub use objects::{DamageCounters, DamageKind, FetchPolicy, FetchPrices, KnownDamage};
pub use open::{FormatOptions, Parts, RecoveryReport, file_system_id};
pub use salvage::{SalvageReport, TakeoverReport};
pub use snapshots::{
    AUTOMATIC, CloneError, CloneReport, PolicyError, RestoreError, RestoreReport, RetentionPolicy, Rungs,
    SNAPSHOTS_DIRECTORY, SnapshotAccess, SnapshotError, SnapshotInfo, SnapshotSpace,
};
pub use status::VolumeStatus;
pub use verify::{Damage, VerifyReport};
pub use volume::{ServingState, Volume};

/// Space is counted in units of this; no block is smaller.
pub(crate) const BLOCK_BYTES_MIN: u64 = 4096;
