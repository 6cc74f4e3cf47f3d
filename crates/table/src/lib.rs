//! The one consistency primitive of Firn: a table with conditional transactions.
//!
//! Get, paginated query, and a transaction of puts, deletes and checks under the conditions "absent" and "version is v".
//! The limits are DynamoDB's own, and every engine enforces them ([`limits`]), so that what works on a laptop works on the
//! service. One [`conformance`] suite runs on all engines.
//!
//! - [`RedbTable`]: the embedded engine, one file on the local disk.
//! - [`MemoryTable`]: a table for simulations, shared by all simulated machines, with faults on demand.
//! - The engines of DynamoDB and of Azure Table Storage are crates of their own, so that nothing waits for the cloud SDKs to compile;
//!   they share one policy of retries ([`persist`]).
//! - [`Metered`] counts requests and money over any of them.

#[cfg(feature = "testing")]
pub mod conformance;
pub mod limits;
#[cfg(feature = "testing")]
mod memory;
mod metered;
mod page;
mod redb_table;
mod request_retry;
mod table;
mod url;

pub use limits::{
    ITEM_OVERHEAD_BYTES, MAX_ITEM_BYTES, MAX_KEY_BYTES, MAX_PAGE_BYTES, MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS,
};
#[cfg(feature = "testing")]
pub use memory::{Fault, FaultRates, MemoryTable, MemoryTableClient, MemoryTableImage, TableCounts};
pub use metered::{Metered, TablePrices, TableUsage};
pub use redb_table::RedbTable;
pub use request_retry::{RequestFailure, persist};
pub use table::{Applied, Condition, Item, ItemKey, ItemVersion, Page, Table, TableError, Write};
pub use url::{AzureTableUrl, DynamoDbUrl, TableUrl, TableUrlError};
