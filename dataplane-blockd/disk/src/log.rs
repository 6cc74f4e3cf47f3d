//! The mode `log`: every write goes to a new place at once, in whatever epoch, and order is kept by sequence numbers.
//!
//! ```text
//!  a write ──▶ entry (incarnation, sequence) ──▶ a free physical block of the next tract by round robin, on all replicas
//!                       │                                       │
//!                       ▼                                       ▼ durable everywhere, and all before it
//!              replay.apply: map, free blocks              retired: flushes and FUA are answered
//!                       │
//!                       └──▶ every so often: a checkpoint of the state before entry s, written once all of them are durable
//! ```
//!
//! *Where an entry goes.* Tracts are filled round-robin: an entry goes to the lowest free block of the next tract that has one. So as many
//! entries as there are tracts go to as many arms, however full the log is, and a tract is written from its beginning to its end;
//! what is written in one piece lies in one piece in each tract, and is read so. (The paper goes by a linear congruential
//! generator, whose neighbours meet on one arm as chance would have it; and since an entry counts when all before it are durable,
//! each waits for the slowest of those before.)
//!
//! What makes recovery exact, where the paper's rules are not:
//!
//! - **The state is a pure function of the log's prefix.** Which block an entry goes to, which are skipped, which are freed:
//!   all follow from the entries before it ([`Replay`]), never from what happened to be durable at that moment. The writer
//!   and roll-forward run the same code.
//! - **Exactly the next.** Roll-forward accepts an entry only if its authenticated name is (the checkpoint's incarnation, the
//!   next sequence). A recovery makes a checkpoint under a new incarnation durable before it writes or answers anything, so
//!   an entry that an earlier recovery disavowed can never count again, however the blocks lie.
//! - **One valid replica suffices**, and its copy is brought to the others before the entry is accepted.
//! - **Freed blocks are quarantined** until two durable checkpoints no longer refer to them; they are then released by an entry
//!   of the log itself, so that release too is part of the prefix.
//! - **TRIM and WRITE_ZEROES are entries**, freed like any overwritten block.
//!
//! So after a crash the disk holds exactly the first n entries for some n, at least as many as were acknowledged as durable:
//! stronger than I10 asks.
//!
//! *Space.* P physical blocks serve V virtual ones; P − V is at least [`SLACK_BLOCKS_MIN`] and should be a quarter of V. A log
//! without a free block does not fail: writes wait while two checkpoints are made, which always frees some, since at most V
//! blocks are live. *Memory:* some 40 bytes a physical block, and the same again while a checkpoint is being made.

mod checkpoint;
mod engine;
mod recovery;
mod replay;

pub use checkpoint::Checkpoint;
pub use engine::{LogConfig, LogEngine};
pub use recovery::{format, recover};
pub use replay::{Record, Replay, SLACK_BLOCKS_MIN};
