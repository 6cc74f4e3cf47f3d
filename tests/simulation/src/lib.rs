//! Random histories against an executable model.
//!
//! A history ([`history`]) is a whole installation in a simulated world ([`firn_env::sim`]): edges that serve a file system,
//! clients that use it ([`client`], [`workload`]), a cloud with changing weather, crashes. A judge ([`oracle`]) follows with
//! the model of the crate vfs and says at every answer and after every stop whether it could be right. All follows from one
//! seed, so a failure is repeated by its number.
//!
//! What is tested is behind a small trait ([`system`]). A toy ([`toy`]) with eight planted bugs tests the tests.

mod administrator;
mod bad_line;
mod cleaners;
mod client;
mod clones;
mod ending;
pub mod engine;
mod gathering;
pub mod history;
mod judged;
mod life;
mod manifests;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod operation;
pub mod oracle;
mod outage;
pub mod outcome;
mod rekeying;
pub mod runner;
pub mod sharing;
pub mod system;
mod takeover;
pub mod toy;
pub mod tree;
pub mod workload;
