//! The table on Azure Table Storage, over its REST interface: a leaf crate, so that nothing else waits for the cloud protocols to compile.
//!
//! One table of a storage account holds everything; an item is an entity:
//!
//! ```text
//! PartitionKey     partition, each half in base 32 with the extended hex alphabet: Azure refuses characters that keys
//! RowKey           sort       of ours have, and this encoding keeps the order of the bytes in any order of texts
//! version          String     random, drawn by the client for each put
//! value0 … value6  Binary     64 KiB each, which is Azure's limit of a property
//! ```
//!
//! - **Conditions.** Azure compares entity tags, we compare versions: a version's tag is remembered when an item is read or written
//!   ([`etags`]), or else read first, and goes with the write as `If-Match`. If the tag is over, the items are read and judged anew.
//! - **Transactions** are entity group transactions: one partition, a hundred operations, 4 MiB with base 64 and headers. So one of ours
//!   spans no partitions here, and keys and transactions are shorter than elsewhere ([`MAX_KEY_BYTES`], [`MAX_TRANSACTION_BYTES`]); what is
//!   longer is refused before anything is sent. All that an anchor of a family does is within one partition.
//! - **A check** is a merge that changes nothing under `If-Match`, since a group has no operation that only looks. That an item is absent is
//!   checked by inserting a *placeholder*, an entity without a version, which counts as absent and is removed afterwards.
//! - **A lost reply** is retried here. Whether the first try was done shows in the versions of the items that it put. What remains in doubt
//!   is reported as unavailable, never as a failed condition.
//! - **Throttling and conflicts** are retried with exponential backoff and full jitter, within a bounded time.
//!
//! Credentials are those that open the account's blobs: an account key, a shared access signature, a workload or managed identity.

mod batch;
mod entity;
mod etags;
mod failure;
mod keys;
mod open;
mod service;
mod table;

pub use keys::{MAX_KEY_BYTES, MAX_TRANSACTION_BYTES};
pub use open::exists;
pub use table::AzureTable;
