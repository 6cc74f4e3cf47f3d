//! The log-structured file system engine: a volume that journals on the local disk and lives in an object store.
//!
//! A [`Volume`] implements [`firn_vfs::Vfs`]. Start reading at `volume` (the picture of the data path) and `change`, then `state` (what is
//! in memory and how it changes), `journal` (what makes it survive), `checkpoint` (how it gets to the cloud), `objects` (how
//! it comes back), `open`, `start`, `stop`, `detached` and `salvage` (start, stop, takeover), `freshness` (a table that was rolled back), `follower` (the same volume at
//! other edges, to be read), `member` (owner and follower by turns), `by_inode` (many that write at the same moment), `elsewhere` (what
//! other edges changed, for those who cache).

mod branch;
mod by_inode;
mod change;
mod checkpoint;
mod checkpointer;
mod cloud_durability;
mod codec;
mod config;
mod damage;
mod detached;
mod elsewhere;
mod error;
mod extents;
mod filesystem;
mod follower;
mod formats;
mod freshness;
mod gathering;
mod holes;
mod inode;
pub mod journal;
mod kept_checkpoint;
mod load;
mod local;
mod manifest;
mod member;
mod merge;
pub mod objects;
mod open;
mod owner_signer;
mod ownership_statement;
mod parts;
mod paths;
mod quota;
mod read;
mod read_ahead;
mod read_view;
mod record;
pub mod recover;
mod rekey;
mod replay;
mod rollback;
mod salvage;
mod second_store;
mod serving;
mod snapshots;
mod start;
mod state;
mod status;
mod stop;
mod touched;
mod tree;
mod tree_diff;
mod usage;
mod verify;
mod volume;

pub use by_inode::{ByInodeLocks, ByInodeStatus, ByInodeVfs, MemberStartError, MemberStartReport};
pub use checkpoint::{LostSegments, ReadBackStatus};
pub use cloud_durability::{CloudWaitStatus, OnDisconnect};
pub use config::{Cadence, VolumeConfig};
pub use detached::DetachedReport;
pub use elsewhere::{ChangedElsewhere, Elsewhere};
pub use error::{NotDetachable, VolumeError};
pub use firn_format::{Gathering, GatheringStage};
pub use follower::{FollowOptions, FollowStatus, FollowerVfs, StaleReads};
pub use formats::{FORMATS, LOCAL_STATE_VERSION};
pub use freshness::{Contradiction, RootSight, StaleTable};
pub use gathering::{GATHERING_BYTES_PER_SECOND, ManifestStatus};
pub use member::{
    HandoverTimes, LostLocks, Member, MemberOptions, MemberRole, MemberStatus, MemberVfs, Salvaged, Term,
    TermEnd,
};
pub use merge::state::MergeStatus;
pub use objects::{DamageCounters, DamageKind, FetchPolicy, FetchPrices, KnownDamage, SecondReads};
pub use open::FormatOptions;
pub use owner_signer::{AnnouncedKey, OwnerSigner, announced_key};
pub use parts::{Parts, file_system_id};
pub use rekey::{
    CleanSince, LastRekey, OldSnapshot, REKEY_BYTES_PER_SECOND, RekeyCounts, RekeyEnd, RekeyState,
    RekeyStatus, UnderWay,
};
pub use replay::RecoveryReport;
pub use rollback::AcceptReport;
pub use salvage::{SalvageReport, TakeoverReport};
pub use serving::ServingState;
pub use snapshots::{
    AUTOMATIC, CloneError, CloneReport, KeptPolicy, PolicyError, RestoreError, RestoreReport,
    RetentionPolicy, RetentionTiers, SNAPSHOTS_DIRECTORY, SnapshotError, SnapshotInfo, SnapshotSpace,
};
pub use status::VolumeStatus;
pub use verify::{Damage, VerifyReport};
pub use volume::Volume;
// Why a member does not start.
pub use firn_leases::MemberError;
// The table of locks that a member takes.
pub use firn_session::{LockLimits, LockTable};

/// Space is counted in units of this; no block is smaller.
pub(crate) const BLOCK_BYTES_MIN: u64 = 4096;
