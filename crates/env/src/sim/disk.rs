//! The simulated disk: the contract of [`Disk`](crate::Disk), kept to the letter and not beyond.
//!
//! `state` models what is visible and what is durable; `attached` adds time and failure. A call takes its effect at its
//! beginning or its end, by chance. A call whose future is dropped takes effect all the same, a little later, because
//! that is what a real disk behind a thread pool does. A failed sync leaves its bytes unsynced for ever, visible as they
//! are, as Linux does.

mod attached;
mod content;
mod device;
mod image;
pub(super) mod state;

pub(super) use attached::AttachedDisk;
pub use device::{DiskOptions, SimulatedDisk};
pub use image::{DiskImage, FileImage, Survival};
