//! Virtual disks through crashes.
//!
//! [`history`] drives the production engines and their recovery through random histories: requests, stores that arrive in any
//! order, late or torn, a replica that rots, crashes of the client at any point, crashes within recovery, stores of a dead
//! attach that arrive after its successor's fence. [`exhaustive`] does the same for *all* short histories. [`check`] is the
//! model: what a disk may hold after a crash (I10), and that nothing is overwritten too early (I11).
//!
//! [`on_nodes`] runs the production client on production nodes on simulated machines, networks and disks ([`cluster`]): fewer
//! histories, of everything; snapshots are taken all the while, and at the end each is restored and compared.
//!
//! [`full`] runs the same on clusters on which all that can be promised is promised: nodes are lost and come late, and every write must
//! end all the same.
//!
//! [`figures`] measures the same in virtual time on slow disks; [`setting`] is a disk on a cluster of its own, for that and for tests.
//! `throughput` is one user who takes as much as there is, `crowd` as many users as disks, `attaches` what a crash of the client costs the next attach.
//! [`death`] is a node that dies for good under load, [`neighbours`] one tenant at full blast beside others.
//!
//! `firn-blockd-simulation --seeds N --first-seed S` runs histories; the same seed is the same history.

mod attaches;
pub mod check;
pub mod cluster;
pub mod cluster_figures;
mod crowd;
pub mod death;
pub mod engine;
mod exchange;
pub mod exhaustive;
pub mod figures;
pub mod full;
pub mod history;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod neighbours;
pub mod on_nodes;
pub mod replicas;
pub mod setting;
mod throughput;
mod user;
