//! The NFS service over real loopback connections, on the in-memory file system.
//!
//! One program, so that it is linked once. Each module is about one thing a client may rely on.

#![allow(missing_docs)]
// These tests run in real time on a real network; those of simulated histories do not need it.
#![allow(
    clippy::disallowed_methods,
    reason = "they measure a server over real connections"
)]

mod access_rules;
mod acls;
mod connections;
mod directories;
mod duplicates;
mod errors;
mod foreign_client;
mod junctions;
mod malformed;
mod mounting;
mod names;
mod procedures;
mod queue_depth;
mod retransmission;
mod served;
mod xdr;
