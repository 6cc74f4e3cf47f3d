//! By which numbers port mappers and calls name the lock manager.

/// NLM's program number.
pub const PROGRAM: u32 = 100_021;
/// The version that goes with NFSv3. Earlier ones have 32-bit offsets and belong to NFSv2.
pub const VERSION: u32 = 4;
