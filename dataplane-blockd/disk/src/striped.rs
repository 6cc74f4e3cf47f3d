//! The modes that write in place: `write-through`, `write-back` and `flush-epoch`.
//!
//! Writes between two flushes are an *epoch*. A write goes out only when every earlier epoch is durable on all replicas, so
//! after a crash the disk holds all of some epochs, any part of the next, and nothing of those after it (I10), and no version
//! is overwritten in place by a later epoch before it is durable itself (I11). The modes differ only in when they answer:
//!
//! | mode            | a write is answered | a flush is answered                     |
//! |-----------------|---------------------|-----------------------------------------|
//! | `write-through` | when durable        | when its epoch is                       |
//! | `write-back`    | from memory         | when its epoch is                       |
//! | `flush-epoch`   | from memory         | `durable`: as above; `ordered`: at once |
//!
//! One write of a block is under way at a time, so replicas apply overlapping writes in one order; a write that still waits
//! is replaced by a later one of the same blocks and epoch.
//!
//! *Runs.* What one request writes or zeroes is one run from the request to the nodes, however long (zeroes to
//! [`ZEROES_AT_ONCE_BYTES`](firn_blockd_nbd::ZEROES_AT_ONCE_BYTES)), and only the layout splits it: it waits for what overlaps it and is older, goes out when all its
//! regions are marked, and what overlaps it and is younger waits for it. The nodes of its tracts take it each by itself, so a
//! crash may leave any of its blocks changed and others not, as with writes of one epoch.
//!
//! *Replicas that differ.* A write that was under way at a crash may be on one replica and not on another. So a region is
//! marked, durably, before anything in it is written; an attach after a crash goes through the marked regions, picks each
//! block's greatest version and brings it to all replicas before the first read. DirtyRegionLog are dropped again in batches, those
//! first whose regions have been idle longest.

mod attach;
mod dirty_region_log;
mod engine;
mod overlaps;

pub use attach::{Attached, attach};
pub use dirty_region_log::Regions;
pub use engine::{StripedConfig, StripedEngine};
