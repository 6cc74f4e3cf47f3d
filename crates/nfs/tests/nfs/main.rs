//! The NFS service over real loopback connections, on the in-memory file system.
//!
//! One program, so that it is linked once. Each module is about one thing a client may rely on.

#![allow(clippy::unwrap_used, missing_docs)]

mod access_rules;
mod connections;
mod directories;
mod duplicates;
mod foreign_client;
mod malformed;
mod mounting;
mod procedures;
mod served;
mod xdr;
