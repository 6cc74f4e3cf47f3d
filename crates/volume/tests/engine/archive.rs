//! A store beside a copy from which nothing is deleted.

use async_trait::async_trait;
use bytes::Bytes;
use firn_store::{ListPage, MemoryStore, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use std::sync::Arc;

pub struct Archived {
    live: Arc<MemoryStore>,
    archive: Arc<MemoryStore>,
}

impl Archived {
    pub fn new(live: Arc<MemoryStore>, archive: Arc<MemoryStore>) -> Self {
        Self { live, archive }
    }
}

#[async_trait]
impl Store for Archived {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.live.put(key, parts.clone(), mode).await?;
        self.archive.put(key, parts, PutMode::Overwrite).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.live.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.live.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.live.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.live.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.live.list(prefix, after).await
    }
}
