//! Errors of a checkpoint that could not be built or committed.

use crate::{journal::JournalError, objects::ReadError};
use firn_env::TaskEnded;

/// Why a checkpoint could not be built or committed. The data is still in the journal.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Old data that a change builds on cannot be read.
    #[error("cannot read what a change builds on: {0}")]
    Read(#[from] ReadError),
    /// Journaled data cannot be read back.
    #[error("cannot read the journal back: {0}")]
    Journal(#[from] JournalError),
    /// Sealing failed.
    #[error("cannot seal: {0}")]
    Seal(#[from] firn_seal::SealError),
    /// An upload task died, which happens only when the process stops.
    #[error("an upload ended early")]
    Ended(#[from] TaskEnded),
    /// The root could not be committed.
    #[error("cannot commit the root: {0}")]
    Anchor(#[from] firn_anchor::AnchorError),
}
