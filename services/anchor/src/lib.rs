//! The anchor as a service: who may call it, what it adds to a table, and what it counts.
//!
//! ```text
//! edge, cleaner ── AnchorCall ──▶ host: who is it? which volume? ──▶ AnchorService ──▶ one partition of the table
//!                                 (firn-api: certificate, record       │ role, layouts, versions and epochs by one
//!                                  of the edge and the volume)         └ committed: ▶ CommitMeter ▶ usage records
//! ```
//!
//! `HttpsAnchor` (feature `client`) is the caller's side. [`AnchorService`] is the library that all hosts share; a host's part is to know the caller. [`CommitMeter`] makes usage records of
//! root commits. How calls look, what is promised and what they cost is in `docs/anchor.md`.

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "host")]
pub mod host;
mod meter;
mod service;
#[cfg(feature = "client")]
mod tally;

#[cfg(feature = "client")]
pub use client::{Clients, HttpsAnchor, PemClients};
pub use meter::{CommitMeter, Ledger, MeterError};
pub use service::{Admitted, AnchorService};
