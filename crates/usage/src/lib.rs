//! Usage: what a component of the service saw somebody use, and its safe way to the bill.
//!
//! ```text
//! component sees an operation
//!        │  Observation (who, what, which meter, how much, when)
//!        ▼
//! Spool::append ── fsync, level 1 ──▶ numbered UsageRecord (source, incarnation, sequence)
//!        │
//!        ▼
//! Delivery ── batches of a few thousand, retried until received ──▶ UsageSink
//! ```
//!
//! A record's name is (source, incarnation, sequence): the spool gives each record the next sequence number and never gives
//! a number twice, whatever crashes, so a sink that takes each name once has counted each record once. A batch may be sent
//! any number of times, cut differently each time, and may arrive in any order.
//!
//! - [`Observation`], [`UsageRecord`], [`Meter`]: what is counted.
//! - [`UsageBatch`]: records of one source in a row, and their versioned encoding.
//! - [`Spool`]: the durable queue on the local disk.
//! - [`UsageSink`], [`Delivery`]: the way out of it.

mod batch;
mod codec;
mod delivery;
mod meter;
mod name;
mod record;
mod sink;
mod spool;
#[cfg(test)]
mod tests;

pub use batch::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS, BatchError, UsageBatch};
pub use delivery::{Delivered, Delivery, DeliveryPolicy};
pub use meter::Meter;
pub use name::{NameError, ResourceName, SourceId, TenantName};
pub use record::{Incarnation, LATEST_MS, Observation, ObservationError, UsageRecord};
pub use sink::{SinkError, UsageSink};
pub use spool::{APPEND_MAX, SPOOL_VERSION, Spool, SpoolConfig, SpoolError, SpoolStatus};
