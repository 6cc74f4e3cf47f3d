//! Checkpoints: what moves acknowledged changes from the journal (level 1) to the cloud (level 2).
//!
//! freeze the dirty set → build and seal objects → upload segments → commit the root → drop the frozen layer, trim the journal
//!
//! One checkpoint is built at a time; its segments are uploaded side by side while later entries are still being built.

mod build;
mod compressibility;
mod confirm;
mod packer;
mod payload;
mod run;

pub use build::{BuiltCheckpoint, build};
pub use compressibility::Compressibility;
pub use confirm::{ConfirmError, LostSegments, Uploads};
pub(crate) use confirm::{LIST_NAMES, confirm, unlisted_up_to};
pub use packer::{Packer, PackerContext, ToPack, UploadProgress};
pub use payload::{CheckpointPayload, HISTORY_MAX, SealedSnapshot};
pub(crate) use run::{pack_checkpoint, run};

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
