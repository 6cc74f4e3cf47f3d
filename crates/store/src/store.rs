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

/// Some versions of one object, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionPage {
    /// The store's names for them; marks of a deletion are versions too.
    pub versions: Vec<String>,
    /// Whether there are more.
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
    /// Removes an object; one that is absent is fine. A store that keeps versions only hides it: see [`erase`](crate::erase).
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError>;
    /// Objects whose key starts with `prefix` (a string, not necessarily a whole component) and sorts after `after`.
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError>;

    /// Whether what is deleted or replaced is kept as an older version, as in an S3 bucket with versioning switched on or
    /// suspended. One request, whose answer may need a permission of its own.
    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// The newest versions of an object, if the store keeps any.
    async fn versions(&self, _key: &ObjectKey) -> Result<VersionPage, StoreError> {
        Ok(VersionPage::default())
    }

    /// Removes one version for good; one that is absent is fine.
    async fn delete_version(&self, key: &ObjectKey, _version: &str) -> Result<(), StoreError> {
        Err(StoreError::invalid(
            "delete version",
            key,
            "this store keeps no versions",
        ))
    }
}
