//! All histories of the lease and commit protocol of volumes that many write, breadth first.
//!
//! Three members write three inodes of one volume. The table's records change by the rules of `firn-anchor` itself ([`firn_anchor::Arena`],
//! [`firn_anchor::MemberChange`]); what members do between is modelled here. The search goes through *every* order of steps within its bounds,
//! with crashes, members that are cut off, lost and late replies, breaks, departures and returns, and holds each root, each answer and each
//! journal against the promises:
//!
//! - **S1** each inode of each root is the work of the member that held it, and directories stay a tree;
//! - **S2** what is at level 2 is never lost nor reordered; what was acknowledged is in a root, a journal or a salvage clone, and a salvage
//!   stands on what it was written on;
//! - **S3** what a member answers has all that was published before;
//! - **S4** no two members commit changes of one inode that were made from the same state;
//! - a member that was not broken salvages nothing; and from every state all that was begun can be finished (no deadlock).
//!
//! [`BUGS`] leave out one rule each, and each must be found.

mod act;
mod bounds;
mod commit;
mod content;
mod explore;
mod gift;
mod journal;
mod protocol;
mod rules;
mod step;
mod world;

pub use bounds::{LARGE, SMALL, hunt};
pub use content::Kind;
pub use explore::{Counterexample, Explored, Limits, Model, explore};
pub use protocol::{Bounds, Protocol};
pub use rules::{BUGS, Bug};
