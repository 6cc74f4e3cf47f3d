//! Virtual disks on disk nodes.
//!
//! ```text
//! VirtualDisk ── units ──▶ ClusterReplicas ── layout: blocks of tracts ── rows: which nodes ── pool: connections ──▶ nodes
//!                               │ seals                                        ▲
//!                               └──────────── the locator table ───────────────┘
//! ```
//!
//! - [`DiskSettings`]: what a disk is, for its client; it stands in the table beside the disk.
//! - [`Layout`]: which blocks of which tracts hold a unit.
//! - [`ClusterReplicas`]: the disk's `Replicas` over real nodes. There is one path: a unit is stored when all replicas of
//!   one version of its row have it, joining ones included.
//! - [`attach`]: fence, recover, run; [`AttachedDisk::detach`].
//! - [`Access`]: how nodes are reached and what is shown to them.

mod access;
mod attach;
mod chunks;
mod detach;
mod exchange;
mod layout;
mod opening;
mod pool;
mod replicas;
mod retry;
mod rows;
mod runs;
mod settings;
mod takeover;
mod waits;

pub use access::{Access, CapabilitySource, IssuedHere, NoCapability};
pub use attach::{AttachFailed, Attachable, AttachedDisk, News, attach, replication, tracts_for};
pub use detach::{DETACH_LIMIT, DetachFailed, NodesAway};
pub use layout::{Layout, LayoutError};
pub use replicas::{ClusterReplicas, ReplicaOptions, ReplicaUsage};
pub use settings::{DiskSettings, Mode, SettingsError, Shape, UNIT_BLOCKS, key_check};
pub use takeover::{NewOwner, TakenOver};
pub use waits::Waiting;
