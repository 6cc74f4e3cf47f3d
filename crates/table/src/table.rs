//! The [`Table`] trait.

use async_trait::async_trait;
use bytes::Bytes;

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

/// The identity of one put of one item: drawn anew at every put, never the same twice for an item, **not even after the
/// item was deleted and created again**, nor after the whole table was restored from an older copy.
///
/// A counter per item would start over with the item, so that somebody who still holds version 1 of the old one could
/// overwrite version 1 of the new one unseen (ABA). Keeping the counters of deleted items would need a tombstone for each,
/// for ever. A number without order needs neither, and lets an engine recognise its own write after a lost reply.
/// There is no order between versions: compare for equality only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemVersion(pub u64);

/// A stored item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub key: ItemKey,
    /// Which put made it what it is.
    pub version: ItemVersion,
    /// Its content.
    pub value: Bytes,
}

/// When an operation of a transaction may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The item does not exist.
    Absent,
    /// The item exists with this version.
    Version(ItemVersion),
}

impl Condition {
    /// Whether it holds for an item whose version is `current` (`None`: there is no such item).
    pub fn holds(self, current: Option<ItemVersion>) -> bool {
        match self {
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// One operation of a transaction; a transaction names each item at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Stores a value under a version never used before.
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
        version: ItemVersion,
    },
    /// Changes nothing, but must hold for the others to happen.
    Check {
        /// The item.
        key: ItemKey,
        /// What must hold.
        condition: Condition,
    },
}

impl Write {
    /// The item it is about.
    pub fn key(&self) -> &ItemKey {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => key,
        }
    }

    /// What must hold for it to happen.
    pub fn condition(&self) -> Condition {
        match self {
            Self::Put { condition, .. } | Self::Check { condition, .. } => *condition,
            Self::Delete { version, .. } => Condition::Version(*version),
        }
    }
}

/// A part of a query, in order of `sort`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The items.
    pub items: Vec<Item>,
    /// Give this as `after` for the next page, which may turn out empty; `None`: there is no more.
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
    /// The limits of [`limits`](crate::limits), an empty key, or one item named twice: a bug of the caller.
    #[error("the request breaks a limit of the table: {0}")]
    Limit(String),
    /// Throttled, timed out or unreachable, after the engine's own retries. **The transaction may have happened, or may
    /// still happen later**: read back; if nothing changed, repeat it under the same conditions (only one of the two can
    /// then succeed).
    #[error("the table is unavailable: {0}")]
    Unavailable(String),
    /// Something answered, but nothing that a table of ours would say. As with [`TableError::Unavailable`] the transaction may
    /// have happened; but whoever answers is there, so nobody takes it for an outage and goes on without it.
    #[error("what answered as the table said nothing that a table says: {0}")]
    InvalidAnswer(String),
    /// The credentials do not allow it, the table does not exist, or its schema is not ours.
    #[error("the table refuses: {0}")]
    Refused(String),
}

impl TableError {
    /// Whether a transaction that ended so may have happened, or may still happen: read back.
    pub fn is_in_doubt(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::InvalidAnswer(_) => true,
            Self::ConditionFailed { .. } | Self::Limit(_) | Self::Refused(_) => false,
        }
    }
}

/// What a transaction did: for each of its writes in order, the version a put stored; `None` for deletes and checks.
pub type Applied = Vec<Option<ItemVersion>>;

/// A table. All reads are strongly consistent; transactions are serialisable. What was acknowledged is durable.
#[async_trait]
pub trait Table: Send + Sync {
    /// One item.
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError>;
    /// Items of a partition whose sort key starts with `prefix` and is greater than `after`, at most `limit` (from 1).
    ///
    /// A page may end early, at [`MAX_PAGE_BYTES`](crate::MAX_PAGE_BYTES); only `next` says whether there is more. Each item
    /// is read as it is at some moment of the query, so a transaction of others may show in one item and not yet in the
    /// next, even within a page. Whoever needs several items of one moment reads them and has a transaction check them.
    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError>;
    /// All of the writes, or none.
    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError>;
}
