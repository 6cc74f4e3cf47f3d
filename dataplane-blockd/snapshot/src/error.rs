//! Errors of taking and restoring a snapshot.

use firn_blockd_nbd::DeviceError;
use firn_store::StoreError;

/// Nothing was lost: a snapshot that failed does not exist, and a disk that was not restored to its end is not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The name is no name.
    #[error(
        "{0:?} is no name for a snapshot: up to 64 letters, digits, '-', '_' and '.', not beginning with a dot"
    )]
    Name(String),
    /// There is one of this name; snapshots are never replaced.
    #[error("a snapshot named {0} exists; choose another name")]
    Exists(String),
    /// There is none of this name.
    #[error("there is no snapshot {0}")]
    NotFound(String),
    /// It was deleted while it was restored.
    #[error("snapshot {0} was deleted while it was read; the disk holds a part of it and is of no use")]
    Deleted(String),
    /// A snapshot of this disk was deleted meanwhile, again and again.
    #[error("snapshots of this disk were deleted while this one was taken; take it again")]
    Overtaken,
    /// More than can be listed.
    #[error("the disk has {0} snapshots, which is as many as can be; delete some")]
    TooMany(usize),
    /// It is deleted, and not all of its room is free yet.
    #[error(
        "the snapshot is deleted, but what only it needed is not all removed yet; say the same again: {0}"
    )]
    NotSwept(#[source] Box<SnapshotError>),
    /// Another one of this disk is under way.
    #[error("a snapshot of this disk is being taken; wait for it")]
    Busy,
    /// The disk.
    #[error("the disk: {0}")]
    Device(#[from] DeviceError),
    /// The object store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object is not what it was when it was written, or not of this disk's key.
    #[error("object {object} is damaged, or was sealed with another key: {reason}")]
    Damaged {
        /// Its name in the store.
        object: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The disk to restore into is too small.
    #[error("the snapshot has {snapshot_bytes} bytes, the disk only {disk_bytes}")]
    TooSmall {
        /// What is needed.
        snapshot_bytes: u64,
        /// What there is.
        disk_bytes: u64,
    },
    /// The disk is larger than an index can name.
    #[error("a disk of {0} bytes is too large for a snapshot")]
    TooLarge(u64),
}
