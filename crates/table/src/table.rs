//! The [`Table`] trait.

use async_trait::async_trait;
use bytes::Bytes;

/// Operations in one transaction (DynamoDB's limit).
pub const MAX_TRANSACTION_OPERATIONS: usize = 100;
/// Bytes of keys and values in one transaction (DynamoDB's limit).
pub const MAX_TRANSACTION_BYTES: usize = 4 << 20;
/// Bytes of one item: its key, its value and 100 bytes of overhead (DynamoDB's limit).
pub const MAX_ITEM_BYTES: usize = 400 << 10;
/// Bytes of items in one page of a query (DynamoDB's limit).
pub const MAX_PAGE_BYTES: usize = 1 << 20;

/// An item's name: items of one partition are sorted by `sort` (byte order) and can be queried together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemKey {
    /// 1 to 1024 bytes of UTF-8.
    pub partition: String,
    /// 1 to 1024 bytes of UTF-8.
    pub sort: String,
}

impl ItemKey {
    /// Makes a key.
    pub fn new(partition: impl Into<String>, sort: impl Into<String>) -> Self {
        Self {
            partition: partition.into(),
            sort: sort.into(),
        }
    }
}

/// A stored item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub key: ItemKey,
    /// Drawn anew at every put from a per-item counter that starts at 1. A deleted and re-created item starts at 1 again.
    pub version: u64,
    /// Its content.
    pub value: Bytes,
}

/// When an operation of a transaction may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The item does not exist.
    Absent,
    /// The item exists with this version.
    Version(u64),
}

/// One operation of a transaction; a transaction names each item at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Stores a value; the version becomes 1, or v + 1.
    Put {
        /// The item.
        key: ItemKey,
        /// Its new content.
        value: Bytes,
        /// What must hold.
        condition: Condition,
    },
    /// Removes the item at this version.
    Delete {
        /// The item.
        key: ItemKey,
        /// What must hold.
        version: u64,
    },
    /// Changes nothing, but must hold for the others to happen.
    Check {
        /// The item.
        key: ItemKey,
        /// What must hold.
        condition: Condition,
    },
}

/// A part of a query, in order of `sort`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The items.
    pub items: Vec<Item>,
    /// Give this as `after` for the next page; `None`: there is no more.
    pub next: Option<String>,
}

/// Why a table call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TableError {
    /// A condition did not hold; nothing was changed. `index` is the first operation that failed.
    #[error("a condition of the transaction does not hold (operation {index})")]
    ConditionFailed {
        /// Which operation.
        index: usize,
    },
    /// The limits above, an empty key, or one item named twice: a bug of the caller.
    #[error("the transaction breaks a limit: {0}")]
    Limit(String),
    /// Throttled, timed out or unreachable, after the engine's own retries. **The transaction may have happened**: read back.
    #[error("the table is unavailable: {0}")]
    Unavailable(String),
    /// The credentials do not allow it, the table does not exist, or its schema is not ours.
    #[error("the table refuses: {0}")]
    Refused(String),
}

/// A table. All reads are strongly consistent; transactions are serialisable.
#[async_trait]
pub trait Table: Send + Sync {
    /// One item.
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError>;
    /// Items of a partition whose sort key starts with `prefix` and is greater than `after`, at most `limit`.
    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError>;
    /// All of the writes, or none.
    async fn transact(&self, writes: Vec<Write>) -> Result<(), TableError>;
}
