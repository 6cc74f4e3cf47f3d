//! A store and a table that could not be opened at the start: each request tries to open them again, and says that they are out of
//! reach until that succeeds. So an edge whose cloud is away starts, and goes on by itself when it is back.

use async_trait::async_trait;
use bytes::Bytes;
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use firn_table::{Applied, Item, ItemKey, Page, Table, TableError, Write};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Tries to open it.
type Opener<T, E> = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<T>, E>> + Send + Sync>;

/// See the module.
pub struct Later<T: ?Sized, E> {
    opened: OnceCell<Arc<T>>,
    open: Opener<T, E>,
}

/// A store; the error says why it cannot be opened, in words.
pub type LaterStore = Later<dyn Store, String>;
/// A table; one that refuses to be opened refuses every request.
pub type LaterTable = Later<dyn Table, TableError>;

impl<T: ?Sized + Send + Sync, E> Later<T, E> {
    pub fn new(open: Opener<T, E>) -> Self {
        Self {
            opened: OnceCell::new(),
            open,
        }
    }

    async fn opened(&self) -> Result<&Arc<T>, E> {
        self.opened.get_or_try_init(&self.open).await
    }
}

impl LaterStore {
    async fn store(&self, operation: &'static str, key: &ObjectKey) -> Result<&Arc<dyn Store>, StoreError> {
        let opened = self.opened().await;
        opened.map_err(|why| StoreError::unavailable(operation, key, why))
    }
}

#[async_trait]
impl Store for LaterStore {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.store("put", key).await?.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.store("get", key).await?.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.store("get", key).await?.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.store("head", key).await?.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store("delete", key).await?.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let key = ObjectKey::of_prefix(prefix);
        self.store("list", &key).await?.list(prefix, after).await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        let bucket = ObjectKey::of_prefix("");
        self.store("see versioning", &bucket)
            .await?
            .keeps_versions()
            .await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store("list versions", key).await?.versions(key).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        let store = self.store("delete version", key).await?;
        store.delete_version(key, version).await
    }
}

impl LaterTable {
    async fn table(&self) -> Result<&Arc<dyn Table>, TableError> {
        self.opened().await
    }
}

#[async_trait]
impl Table for LaterTable {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.table().await?.get(key).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.table().await?.query(partition, prefix, after, limit).await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.table().await?.transact(writes).await
    }
}
