//! Errors that stop a run, said so that an operator knows what is safe.

use firn_anchor::AnchorError;
use firn_format::{FormatError, Place, Uid};
use firn_store::StoreError;

/// A run that ended early. Whatever it had not retired is as before; copies it made are collected by a later run.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The table.
    #[error("the table: {0}; nothing is lost, run again")]
    Anchor(#[from] AnchorError),
    /// The bucket.
    #[error("the bucket: {0}; nothing is lost, run again")]
    Store(#[from] StoreError),
    /// An object that roots lead to cannot be read, so nothing can be said about what hangs on it.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A name the cleaner alone gives away holds something else.
    #[error("{key} holds what this cleaner did not write: who else writes with its credentials?")]
    Foreign {
        /// The name.
        key: String,
    },
}

/// An object that roots lead to and that is not there, or not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} ({uid:?}) {}", self.story())]
pub struct Damage {
    /// Where it stands: which file.
    pub place: Place,
    /// Its hash.
    pub uid: Uid,
    /// What was found instead.
    pub detail: String,
    /// It is of a version that this build does not read.
    pub is_newer: bool,
}

/// Why bytes are not the object that they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    /// They are others, or none.
    #[error("{0}")]
    Other(String),
    /// They may be it: of a version, or with features, that this build does not know.
    #[error(transparent)]
    Newer(FormatError),
}

impl From<FormatError> for Misread {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::UnknownVersion { .. } | FormatError::UnknownFeatures { .. } => Self::Newer(error),
            other => Self::Other(other.to_string()),
        }
    }
}

impl Damage {
    pub(crate) fn new(place: Place, uid: Uid, detail: impl ToString) -> Self {
        Self {
            place,
            uid,
            detail: detail.to_string(),
            is_newer: false,
        }
    }

    pub(crate) fn misread(place: Place, uid: Uid, misread: &Misread) -> Self {
        Self {
            is_newer: matches!(misread, Misread::Newer(_)),
            ..Self::new(place, uid, misread)
        }
    }

    fn story(&self) -> String {
        let detail = &self.detail;
        match self.is_newer {
            true => format!(
                "was written by a newer build: {detail}. Nothing was cleaned that it could need: install the version that wrote it, or a \
                 newer one"
            ),
            false => format!(
                "is lost or damaged: {detail}; it needs to be repaired or restored, and what it lies in is kept"
            ),
        }
    }

    /// The inode the object belongs to, to be shown to people: that of an inode's own object is the inode itself.
    pub fn inode(&self) -> u64 {
        match (self.place.inode, self.place.level) {
            (firn_format::INODE_MAP | firn_format::ORPHAN_MAP, 0) => self.place.index,
            (inode, _) => inode,
        }
    }
}

impl CleanError {
    pub(crate) fn format(place: Place, uid: Uid, error: &FormatError) -> Self {
        Self::Damaged(Damage::misread(place, uid, &(*error).into()))
    }
}
