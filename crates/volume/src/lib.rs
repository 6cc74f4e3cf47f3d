//! The log-structured file system engine.

pub mod journal;
pub mod mutants;
