//! The conditional-write table: one trait, the embedded engine, the conformance suite.
