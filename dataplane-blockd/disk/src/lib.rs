//! The virtual disk: what turns many nodes into one disk that keeps its order through crashes.
//!
//! ```text
//! user ──▶ VirtualDisk ──▶ engine: striped or log ──▶ stores ──▶ Replicas (nodes)
//!              ▲            a state machine, no I/O                  │
//!              └─────────────── answers ◀── stored ◀─────────────────┘
//! ```
//!
//! - [`StripedEngine`] writes in place (`write-through`, `write-back`, `flush-epoch`); [`LogEngine`] writes a log. Both are
//!   pure state machines, so that every crash point of a short history can be tried; [`striped::attach`] and [`log::recover`]
//!   bring a disk back.
//! - [`Replicas`] is the seam to the nodes; [`Stripe`] lays blocks out over tracts; [`Sealer`] seals what nodes store;
//!   [`MemoryNodes`] are nodes without machines, for tests.
//! - [`DiskEngine`] is what both are to whoever runs them; [`VirtualDisk`] runs one over replicas as a `BlockDevice`.
//!
//! What holds after a crash is said in [`striped`] and [`log`], and checked by `firn-blockd-simulation`.

mod engine;
mod fields;
pub mod journal;
pub mod log;
#[cfg(feature = "testing")]
mod memory;
mod mode;
mod replicas;
mod seal;
mod stripe;
pub mod striped;
mod types;
mod virtual_disk;
mod xts;

pub use engine::{DiskEngine, GrowError};
pub use log::{LogConfig, LogEngine};
#[cfg(feature = "testing")]
pub use memory::{MemoryNodes, MemoryReplicas};
pub use mode::{FlushPolicy, WritePolicy};
pub use replicas::{AttachError, Copy, LoadedPart, ReplicaError, Replicas, Stored};
pub use seal::{NotAuthentic, OVERHEAD_BYTES, Sealed, Sealer, derive_key};
pub use stripe::{BadStripe, Place, Run, SEGMENT_TRACTS_MAX, Stripe, UNIT_BLOCKS_MAX};
pub use striped::{Regions, StripedConfig, StripedEngine};
pub use types::{Body, Change, Effect, Incarnation, Lookup, RequestId, Store, Ticket, Unit, Version};
pub use virtual_disk::VirtualDisk;
