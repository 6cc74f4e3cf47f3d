//! A family without keys: what the cleaner needs of engines, with arbitrary bytes in place of sealed payloads, and an
//! executable model of what every root must show.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

pub mod edge;
pub mod gate;
mod merge;
mod mutants;
pub mod packer;
pub mod reader;
pub mod world;

pub use edge::{Edge, Prepared};
pub use gate::Gate;
pub use mutants::{MUTANTS, REPAIR_MUTANTS};
pub use reader::{Reader, check_root};
pub use world::{World, run, step};
