//! The edge: the appliance in a branch office. To its clients a file server, to the cloud one writer of a volume.
//!
//! [`program`] is `firn-edge`. Whoever runs an edge beside other parts of Firn in one process (`firn-dev`) opens its [`Outside`]
//! over a table that it shares with them, enrols it ([`enrol`]) and serves it ([`serve_until`]): the same code, without a process
//! of its own.

mod accept_rollback;
mod access_log;
mod accounts;
mod admin;
pub mod allocator;
mod anchor;
mod audit;
mod auditor;
mod bounds;
mod certificate;
mod check;
mod cleaner;
mod cloud_session;
mod commands;
mod config;
mod damages;
mod desired;
mod detached;
mod durability;
mod enrol;
mod failure;
mod finding;
mod following;
mod format;
mod formats;
mod granted;
mod id;
mod identity;
mod join;
mod joined;
mod junctions;
mod later;
mod life;
mod locks;
mod manifest;
mod metrics;
mod mount;
mod nfs;
mod opened;
mod ordered_rekey;
mod outage;
mod parts;
mod periodic;
mod port_holders;
mod program;
mod readable;
mod recover;
mod rekey;
mod repair;
mod replace;
mod report;
mod reporting;
mod rings;
mod run;
mod second;
mod serve;
mod sharing;
mod smb;
mod snapshot;
mod snapshots;
mod terms;
mod upgrade;
mod usage;
mod validation;
mod volumes;

pub use config::{Config, EdgeConfig};
pub use enrol::{Enrolment, Place, enrol};
pub use failure::Failure;
pub use firn_volume::FormatOptions;
pub use parts::Outside;
pub use program::program;
pub use run::serve_until;
