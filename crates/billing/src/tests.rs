//! The ledger's invariants, and the planted bugs that must be found.

mod chain;
mod closing;
mod histories;
mod independent;
mod ingestion;
mod meters;
mod mutants;
mod side_by_side;
mod spreading;
mod world;
