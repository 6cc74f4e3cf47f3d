//! The whole product against real servers, with a foreign client: see `tests/`. Here is what those tests have in common.
//!
//! The edges are processes of the program `firn-edge` that was built with the tests. Tests that need servers are named
//! `real_…` and ignored; `make test` starts the servers and runs them.

mod office;
mod tree;

pub use office::Office;
pub use tree::Tree;
