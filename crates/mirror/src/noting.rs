//! A layer over the first store that notes what is put into it, for the copier.

use crate::Queue;
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use std::sync::Arc;

/// See the module.
pub struct Noting {
    env: Env,
    store: Arc<dyn Store>,
    queue: Arc<Queue>,
}

impl Noting {
    /// The same store; `queue` hears of each put that it acknowledges.
    pub fn new(env: &Env, store: Arc<dyn Store>, queue: Arc<Queue>) -> Self {
        Self {
            env: env.clone(),
            store,
            queue,
        }
    }
}

#[async_trait]
impl Store for Noting {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let put = self.store.put(key, parts, mode).await;
        // One that exists may have been put by an earlier try, which nobody has noted.
        if matches!(put, Ok(()) | Err(StoreError::AlreadyExists { .. })) {
            self.queue.note(key, bytes, self.env.wall().as_millis());
        }
        put
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.store.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.store.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.store.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.store.list(prefix, after).await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        self.store.keeps_versions().await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store.versions(key).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        self.store.delete_version(key, version).await
    }
}
