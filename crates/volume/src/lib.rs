//! The log-structured file system engine.
