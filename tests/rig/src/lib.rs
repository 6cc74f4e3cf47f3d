//! Test rig: what programs need that try Firn from outside, as its users meet it. The demonstration, the bounds, the integration tests.
//!
//! - [`Edge`]: `firn-edge` as a process, with a configuration of its own: formatted, started, asked, killed, stopped.
//! - [`Client`]: NFS in terms of the crate `nfs3_client`, which knows nothing of Firn: two ends of one mistake cannot agree.
//! - `servers`, `buckets`, `cloud` (feature `servers`): a store, a table and a cloud's other services on real servers.
//! - [`Collector`]: a collector of OpenTelemetry's, for traces.
//! - [`SlowLink`]: a TCP connection's way that can be cut and mended, without being root.
//! - [`WrongClock`]: a way to an HTTP server whose date is an hour off.
//!
//! Nothing here depends on a crate of Firn.

#![allow(
    clippy::disallowed_methods,
    reason = "programs that look from outside: real time, real network, real processes"
)]

#[cfg(feature = "servers")]
pub mod buckets;
mod client;
#[cfg(feature = "servers")]
pub mod cloud;
mod collector;
mod edge;
mod link;
mod port;
#[cfg(feature = "servers")]
pub mod servers;
mod wrong_clock;

pub use client::{Client, FileHandle, Listed};
pub use collector::{Collector, TakenSpan};
pub use edge::{Counters, EXPORT, Edge, Settings, program};
pub use link::SlowLink;
pub use port::free_port;
pub use wrong_clock::WrongClock;
