//! The [`Store`] trait.

use crate::{ObjectKey, StoreError};
use async_trait::async_trait;
use bytes::Bytes;

/// Objects in one page of a listing at most; what S3 returns at once.
pub const LIST_PAGE_OBJECTS: usize = 1000;

/// Whether a put may replace an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Fails with `AlreadyExists` if the object is there; of concurrent creators exactly one wins.
    Create,
    /// Replaces what is there.
    Overwrite,
}

/// What a head or a list says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub key: ObjectKey,
    /// Its length.
    pub size_bytes: u64,
    /// Last modification by the store's clock, milliseconds since 1970.
    pub modified_ms: i64,
}

/// A part of a listing, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The objects.
    pub objects: Vec<ObjectInfo>,
    /// Whether there may be more after the last one; then the page is not empty.
    pub more: bool,
}

/// A bucket, or a prefix of one. An object put successfully is durable at level 2 (cloud; for the local directory: on its disk).
///
/// A failed or dropped put may still happen later ("object absent" is never a fence).
#[async_trait]
pub trait Store: Send + Sync {
    /// Stores an object, given in parts that are sent one after the other.
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError>;
    /// The whole object.
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError>;
    /// `length` bytes at `offset`; fewer only where the object ends, none behind its end.
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError>;
    /// Its size and time.
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError>;
    /// Removes an object; one that is absent is fine.
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError>;
    /// Objects whose key starts with `prefix` (a string, not necessarily a whole component) and sorts after `after`.
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError>;
}
