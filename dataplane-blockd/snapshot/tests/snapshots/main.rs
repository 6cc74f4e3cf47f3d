//! Snapshots in virtual time: taken, restored, deleted.

mod deletion;
mod taking;
mod world;
