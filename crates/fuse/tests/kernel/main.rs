//! The real kernel on a mount. The file system behind it is the executable model, so what fails here is the mount's.

#![allow(
    clippy::disallowed_methods,
    reason = "tests of a real kernel measure real time"
)]

mod durability;
mod files;
mod queue_depth;
mod sharing;
mod space;
mod stalls;
mod world;
