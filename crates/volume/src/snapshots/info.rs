//! A snapshot as administrators see it, and why something was not done with one.

use crate::state::{SNAPSHOTS_MAX, Snapshot};
use bytes::Bytes;
use firn_vfs::VfsError;

/// A snapshot as administrators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number; never given twice in a volume.
    pub id: u64,
    /// Its name: 1 to 255 bytes, as a file's.
    pub name: Bytes,
    /// When it was taken, milliseconds since 1970 by the edge's clock.
    pub created_ms: i64,
    /// It cannot be deleted before this; 0: not protected.
    pub protected_until_ms: i64,
    /// Inodes in it.
    pub files: u64,
    /// Bytes of data in it, as `df` counts them.
    pub used_bytes: u64,
    /// The version whose tree it keeps; `None` while its commit is under way.
    pub version: Option<u64>,
}

impl From<&Snapshot> for SnapshotInfo {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            id: snapshot.id,
            name: snapshot.name.clone(),
            created_ms: snapshot.created_ms,
            protected_until_ms: snapshot.protected_until_ms,
            files: snapshot.files,
            used_bytes: snapshot.used_bytes,
            version: snapshot.retained.map(|retained| retained.version.0),
        }
    }
}

/// Why something was not done with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It would be no directory's name.
    #[error(
        "a snapshot's name has 1 to 255 bytes, without `/` and zero bytes, and is not `.` or `..`; nothing was changed"
    )]
    BadName,
    /// The name is in use.
    #[error("a snapshot named {name} exists already; nothing was changed")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no snapshot named {name}; nothing was changed")]
    NoSuchSnapshot {
        /// The name.
        name: String,
    },
    /// It may not be deleted yet.
    #[error(
        "snapshot {name} is protected for another {hours} hours (until {until_ms} ms since 1970) and cannot be deleted before, by nobody; nothing was changed"
    )]
    Protected {
        /// The name.
        name: String,
        /// Until when, milliseconds since 1970.
        until_ms: i64,
        /// From now, rounded up.
        hours: i64,
    },
    /// A protection can only become longer.
    #[error(
        "snapshot {name} is protected until {until_ms} ms since 1970, which cannot be shortened; nothing was changed"
    )]
    CannotShorten {
        /// The name.
        name: String,
        /// Until when, milliseconds since 1970.
        until_ms: i64,
    },
    /// The volume has as many as it can have.
    #[error(
        "the volume has {SNAPSHOTS_MAX} snapshots, and can have no more; delete some first. Nothing was changed"
    )]
    TooMany,
    /// It is being cloned.
    #[error("snapshot {name} is being cloned; delete it when that is done. Nothing was changed")]
    InUse {
        /// The name.
        name: String,
    },
    /// Its tree is not committed yet.
    #[error("snapshot {name} is being made; try again when its commit is done")]
    NotYet {
        /// The name.
        name: String,
    },
    /// The volume cannot do it now, or any more.
    #[error("{0}")]
    Volume(#[from] VfsError),
    /// The edge stopped serving while it was made.
    #[error(
        "the edge stopped before the commit: whether the snapshot exists shows at its next start; everything acknowledged is in the journal"
    )]
    Unknown,
}

/// A name for messages.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
