//! Disk nodes, and virtual disks on them.
//!
//! [`program`] is `firn-blockd`. Whoever runs nodes beside other parts of Firn in one process (`firn-dev`) starts them with
//! [`start_node`] and lets one of them [`coordinate`]; [`Operator`] makes what they need to be believed.

mod admin;
mod cap;
mod cluster;
mod config;
mod dev;
mod disks;
mod failure;
mod https;
mod joined;
mod journal;
mod kernel;
mod meter;
mod node;
mod program;
mod security;
mod served;
mod service_table;
mod snapshots;
mod status;
mod tenant;
mod tenant_snapshots;
mod ticket;
mod tls;

pub use config::NodeSection;
pub use failure::Failure;
pub use firn_quantity::Size;
pub use meter::{NodeMeter, usage_source};
pub use node::{coordinate, serve_metrics, start as start_node};
pub use program::program;
pub use security::{Operator, Secret};
