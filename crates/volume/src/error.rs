//! Errors of a volume that cannot be made, opened, taken over or checked.

use crate::{
    checkpoint::{CheckpointError, LostSegments},
    codec::DecodeError,
    journal::JournalError,
    objects::{ObjectsError, ReadError},
};
use firn_anchor::AnchorError;
use firn_env::DiskError;
use firn_format::{FormatError, KeyEpoch, OwnershipEpoch, VolumeId};

/// Why a volume cannot be made, opened, taken over or checked.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The local state directory cannot be used.
    #[error("the state directory cannot be used: {0}")]
    Disk(#[from] DiskError),
    /// The local state file is damaged.
    #[error(
        "the local state file is damaged ({0}); nothing was changed. Restore it from a backup, or take the volume over with an empty state directory: what is only in this journal would be lost"
    )]
    LocalState(DecodeError),
    /// A newer build wrote the local state file.
    #[error(
        "the local state file has version {found}, and this build reads up to {read}: a newer build wrote it. Nothing was changed, and \
         everything acknowledged is safe. Install that version or a newer one"
    )]
    NewerLocalState {
        /// Its version.
        found: u8,
        /// The newest that is read.
        read: u8,
    },
    /// The anchor refused or is out of reach.
    #[error("{0}")]
    Anchor(#[from] AnchorError),
    /// The journal cannot be used.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The cache cannot be used.
    #[error("{0}")]
    Objects(#[from] ObjectsError),
    /// Something of the committed state cannot be read.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The anchor names another volume's root.
    #[error(
        "the table names a root of volume {found} for volume {volume}: it was changed by somebody who should not. Nothing was changed \
         here; everything is in the bucket: bring the table back, or recover the volume into a new table"
    )]
    ForeignRoot {
        /// The volume that was opened.
        volume: VolumeId,
        /// The volume whose root it is.
        found: VolumeId,
    },
    /// A committed object decrypts but does not decode: written by a newer build, or by a bug.
    #[error("{what} is not what this build can read: {detail}")]
    Undecodable {
        /// Which object.
        what: &'static str,
        /// How it fails.
        detail: String,
    },
    /// The first or a salvage checkpoint failed.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// The anchor shows an older root than this edge has seen.
    #[error("{0}")]
    RolledBack(#[from] Box<firn_anchor::RolledBack>),
    /// The bucket has newer roots than the table shows, or others.
    #[error("{0}")]
    StaleTable(#[from] Box<crate::freshness::StaleTable>),
    /// The store lost what it had acknowledged.
    #[error("{0}")]
    LevelTwoLost(LostSegments),
    /// The checkpoint that the table names as the newest cannot be read.
    #[error(
        "the newest checkpoint of the volume (version {version}, in the object {key}) cannot be read: {detail}. The store \
         acknowledged it and has lost or altered it. Nothing was changed: this edge's journal and all older checkpoints are as they \
         were. Bring {key} back, from the bucket's versions or a copy of the bucket, and start again: then nothing is lost. If it \
         cannot be brought back: keep this state directory, and with an empty one and a new table (volume.table) type `firn-edge \
         recover --phrase-file FILE`: it goes on from the newest whole checkpoint, and what was committed after that is lost"
    )]
    CheckpointLost {
        /// Which.
        version: u64,
        /// The object that holds it.
        key: String,
        /// Why it cannot be read.
        detail: String,
    },
    /// The checkpoint that the table names as the newest is of a version that this build does not read.
    #[error(
        "the newest checkpoint of the volume (version {version}, in the object {key}) was written by a newer build: {detail}. Nothing was \
         changed, and everything is where it was: install the version that served the volume last, or a newer one. (If none newer than \
         this one ever did, the store altered it: bring {key} back from the bucket's versions or a copy)"
    )]
    NewerCheckpoint {
        /// Which.
        version: u64,
        /// The object that holds it.
        key: String,
        /// What is unknown.
        detail: String,
    },
    /// The newest checkpoint is sealed under a key that this edge's key ring does not have.
    #[error(
        "the newest checkpoint of the volume is sealed under the key of epoch {epoch}, and this edge's newest key is that of epoch \
         {newest}: keys were rotated while it was away. Nothing is lost and nothing was changed: the journal is as it was. Start it \
         where it reaches the bucket or the service, so that it takes the newer key ring; if it was removed from the ring, it can \
         serve this volume no more"
    )]
    KeyNotAtHand {
        /// The checkpoint's epoch.
        epoch: KeyEpoch,
        /// The newest at hand.
        newest: KeyEpoch,
    },
    /// The volume stopped serving before this was done.
    #[error("not done: {0}; what was acknowledged is safe in the journal")]
    Stopped(String),
    /// What was asked for needs the cloud, and the volume was opened without it.
    #[error("{}", DETACHED)]
    Detached,
    /// What was asked for changes the volume, which another edge owns.
    #[error("{}", FOLLOWS)]
    Follows,
    /// What was asked for is done by the owner of a volume, and this one has none.
    #[error("the volume is shared by inode, and such a volume cannot do this yet; nothing was changed")]
    SharedByInode,
    /// This edge owns the volume that it is to follow.
    #[error(
        "this edge owns the volume: it is followed once it was drained here, so that nothing is left in the journal"
    )]
    NotDrained,
    /// The volume cannot be served without the cloud.
    #[error("Without store and table the volume cannot be served: {0}")]
    NotDetachable(#[from] NotDetachable),
    /// The volume was never formatted.
    #[error("the volume has no root; run `firn-edge format` first")]
    NotFormatted,
    /// This edge was fenced and its journal has writes that the volume has not.
    #[error(
        "another edge took the volume over while this one (which had it since epoch {tenure}) had writes in its journal; \
         nothing is lost: salvage them into a clone before this edge serves again"
    )]
    SalvageFirst {
        /// The tenure the journal belongs to.
        tenure: OwnershipEpoch,
    },
    /// What a journal was being salvaged on is kept no more.
    #[error(
        "the root that this journal stands on was given up or forgotten while the journal was salvaged: no clone was made, and the journal \
         is as it was. Start again; what can be done is said then"
    )]
    RetainedNoMore,
}

/// What is said to whoever asks for something that needs the cloud.
pub(crate) const DETACHED: &str = "this edge started while the store or the table was away and serves from its journal and its cache: \
                                   nothing was changed. Ask again when `firn-edge status` no longer says detached";

/// What is said to whoever asks a follower for something that only the owner does.
pub(crate) const FOLLOWS: &str =
    "this edge follows the volume, which another edge owns: nothing was changed. Ask the edge that owns it";

/// Why a volume cannot be served without the cloud. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDetachable {
    /// It was drained, or never served here.
    #[error("this edge did not own the volume when it stopped (it was drained, or never served here)")]
    NotOwned,
    /// It was last started by an earlier build, it was fenced, or the disk refused to keep the copy.
    #[error(
        "there is no copy of the newest checkpoint on this machine: it was last served by an earlier version, another edge took it over, \
         or the state directory was full"
    )]
    NoCopy,
    /// The copy is not the checkpoint that this edge has seen last.
    #[error("the copy of the newest checkpoint on this machine is damaged: {detail}")]
    Damaged {
        /// What is wrong.
        detail: String,
    },
    /// Replaying it would mean to upload its tree.
    #[error("a snapshot was made and had not reached the cloud")]
    SnapshotUncommitted,
    /// What the journal changes is not in the cache.
    #[error("what the journal changes is not in the cache: {detail}")]
    NotCached {
        /// What is missing.
        detail: String,
    },
    /// All inode numbers set aside for such starts are given out.
    #[error("it was started without the cloud too often")]
    TooManyStarts,
}

impl From<FormatError> for VolumeError {
    fn from(error: FormatError) -> Self {
        Self::Undecodable {
            what: "the checkpoint",
            detail: error.to_string(),
        }
    }
}

impl From<DecodeError> for VolumeError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable {
            what: error.what,
            detail: error.to_string(),
        }
    }
}
