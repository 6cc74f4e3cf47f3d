//! A disk node: one process on one physical disk.
//!
//! - [`Store`]: tracts on the disk, torn-write safe, with group commit. It knows no network.
//! - [`Node`]: a store that takes part in a cluster: it serves the protocol, registers and beats in the table, learns the
//!   rows it is in, copies what it joins, repairs what rots, and drops what is no longer its own.
//! - [`Authenticator`]: who may do what on a connection.
//! - What connections there are and what they may hold is shared by their owners: [`NodeOptions::connections`],
//!   [`NodeOptions::memory_bytes`].
//! - [`Served`]: what clients were served, for the bill.
//! - [`FairQueue`]: tenants share the disk by deficit round robin.
//! - [`DiskModel`]: a disk that is as slow as one says, on the node's own code path.

mod admission;
mod auth;
mod copy;
mod fair;
mod metrics;
mod model;
mod node;
mod options;
mod peers;
mod reclaim;
mod rows;
mod scrub;
mod served;
mod service;
mod shared;
mod store;
mod throttle;
mod upkeep;

pub use admission::HANDSHAKES_MAX;
pub use auth::{AuthError, Authenticator, CapabilityAuthenticator, Grant, Scope};
pub use fair::{FairQueue, IoPermit, QueueFull};
pub use model::{DiskModel, ModelError};
pub use node::{Node, StartError};
pub use options::{MEMORY_BYTES_MIN, NodeOptions, Security};
pub use served::{Served, ServedDisk};
pub use store::{
    Content, Found, Geometry, OpenError, Put, Store, StoreCounts, StoreError, StoreOptions, TractPlace,
};
