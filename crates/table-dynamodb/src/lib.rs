//! The table on Amazon DynamoDB: a leaf crate, so that nothing else waits for the cloud SDK to compile.
//!
//! One DynamoDB table holds everything, or two, with some partitions in the second ([`open_with_partitions_apart`]); an item is four
//! attributes:
//!
//! ```text
//! partition  S   hash key
//! sort       S   range key (DynamoDB sorts strings by their UTF-8 bytes, as the trait promises)
//! version    N   random, drawn by the client for each put
//! value      B
//! ```
//!
//! - A transaction of **one** put or delete is a conditional `PutItem` or `DeleteItem`, and of one check a consistent
//!   `GetItem`: half the price of `TransactWriteItems`, which serves all others. All of them are serialisable with each other.
//! - **A lost reply** is retried here. A transaction carries a client request token, so DynamoDB itself answers a repetition
//!   with success. A single put recognises its own version in the item that failed its condition. What remains in doubt is
//!   reported as unavailable, never as a failed condition.
//! - **Throttling and conflicts** are retried with exponential backoff and full jitter, within a bounded time.
//!
//! Credentials, region and profile come from where all AWS tools look for them.

mod any;
mod attributes;
mod failure;
mod open;
mod table;

pub use any::{open, open_with_partitions_apart};
pub use open::{AwsCredentials, exists};
pub use table::{ConsumedUnits, DynamoDbTable};
