//! The spool's invariants, and the planted bugs that must be found.

mod encoding;
mod histories;
mod mutants;
mod spool;
