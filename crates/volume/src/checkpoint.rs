//! Checkpoints: what moves acknowledged changes from the journal (level 1) to the cloud (level 2).
//!
//! freeze the dirty set → build and seal objects → upload segments → commit the root → drop the frozen layer, trim the journal
//!                                                └ each pinned on the local disk until it was read back, a minute later
//!
//! One checkpoint is built at a time; its segments are uploaded side by side while later entries are still being built.

mod build;
mod compressibility;
pub(crate) mod confirm;
mod error;
mod packer;
mod payload;
pub(crate) mod read_back;
mod root;
mod run;
mod section;
mod uplink;
mod uploads;
mod urgency;

pub use build::{BuiltCheckpoint, build};
pub use compressibility::Compressibility;
pub use confirm::ConfirmError;
pub(crate) use confirm::{confirm, kept_here, unlisted_up_to};
pub use error::CheckpointError;
pub use packer::{Packer, PackerContext, ToPack, UploadProgress};
pub use payload::{CheckpointPayload, HISTORY_MAX, SealedSnapshot};
pub(crate) use payload::{OLDEST_VERSION as PAYLOAD_OLDEST_VERSION, VERSION as PAYLOAD_VERSION};
pub(crate) use root::{pack_checkpoint, sealed_snapshots};
pub(crate) use run::run;
pub use section::MemberSection;
pub use uplink::Uplink;
pub use uploads::{LostSegments, ReadBackStatus, Uploads};
pub use urgency::Urgency;
