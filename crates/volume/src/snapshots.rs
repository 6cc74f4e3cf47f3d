//! Snapshots: names for whole states of the volume.
//!
//! A snapshot costs no copy: it keeps the root of a commit, and what later changes replace stays where it is. Creating one asks
//! the checkpointer for a commit; at the instant of its freeze the snapshot's record goes into the journal, so the record's
//! place says exactly what the snapshot holds, and the same commit makes tree and snapshot durable (level 2) together.
//!
//! ```text
//! create ─→ waiting for the next freeze ─→ journaled + frozen (one instant) ─→ built ─→ committed ─→ answered
//!                                           └ a crash after it: the replay packs the tree at the same place
//! ```
//!
//! A protected snapshot is deleted by nobody before its date: the engine refuses, and the date stands in the checkpoint's
//! plain section, where the cleaner finds it. A date can be moved later, never earlier.

mod administration;
mod clone;
mod directory;
mod freeze;
mod info;
mod keeper;
mod registry;
mod restore;
mod retention;
mod space;
mod tree;
mod view;

pub use clone::{CloneError, CloneReport};
pub use directory::SNAPSHOTS_DIRECTORY;
pub(crate) use directory::SnapshotNames;
pub use info::{SnapshotError, SnapshotInfo};
pub use keeper::KeptPolicy;
pub(crate) use registry::Snapshots;
pub use restore::{RestoreError, RestoreReport};
pub use retention::{AUTOMATIC, PolicyError, RetentionPolicy, RetentionTiers};
pub use space::SnapshotSpace;
pub(crate) use view::View;
