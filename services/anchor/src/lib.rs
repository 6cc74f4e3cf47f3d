//! The anchor as a service: who may call it, what it adds to a table, and what it counts.
//!
//! ```text
//! edge, cleaner ── AnchorCall ──▶ host: who is it? which volume? ──▶ AnchorService ──▶ one partition of the table
//!                                 (firn-api: certificate, record       │ role, layouts, versions and epochs by one
//!                                  of the edge and the volume)         └ committed: ▶ CommitMeter ▶ usage records
//! ```
//!
//! `HttpsAnchor` and `FunctionAnchor` (feature `client`) are the caller's side. [`AnchorService`] is the library that all hosts share; a host's
//! part is to know the caller: `host` by certificate, `services/anchor-lambda` by what AWS says of a signature, `firn-api` by its records.
//! [`CommitMeter`] makes usage records of root commits. How calls look, what is promised and what they cost is in `docs/anchor.md`.

mod caused;
#[cfg(feature = "client")]
mod client;
mod drawn;
#[cfg(feature = "answering")]
mod exchange;
#[cfg(feature = "client")]
mod function;
#[cfg(feature = "answering")]
mod grants;
#[cfg(feature = "host")]
pub mod host;
mod meter;
#[cfg(feature = "host")]
mod metrics;
mod service;
#[cfg(feature = "client")]
mod tally;
mod url;

pub use caused::GrantedCaller;
#[cfg(feature = "client")]
pub use client::{Clients, HttpsAnchor, PemClients};
#[cfg(feature = "answering")]
pub use exchange::{Refusal, Visit};
#[cfg(feature = "client")]
pub use function::FunctionAnchor;
#[cfg(feature = "answering")]
pub use grants::{AwsPrincipal, CallerName, Grants, GrantsError};
pub use meter::{CommitMeter, Ledger, MeterError};
pub use service::{Admitted, AnchorService};
pub use url::{AnchorUrl, FunctionUrl};
