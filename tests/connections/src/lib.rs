//! The connection check: a crowd of silent and slow connections against a server, and clients beside it whose work must go on.
//!
//! - [`Protocol`]: how a target is spoken to: what a slow connection begins with, and what a client does.
//! - [`servers`]: real ones, started for the check: an edge, the control plane, it behind its gateway, a disk node.
//! - [`attack`]: holds the crowd; in processes of its own, since one may not have so many descriptors.
//! - [`probe`]: the clients, and how long each of their operations took.
//! - [`check`]: both, alternating: without the crowd, with it, and again. The ratio is of one run.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "a program that looks from outside: real time, real network, real processes"
)]

pub mod attack;
pub mod check;
mod disk;
pub mod probe;
mod protocol;
pub mod servers;
mod tls;

pub use protocol::{Protocol, Target};
