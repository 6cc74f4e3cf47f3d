//! The bucket as a cleaner sees it: every request is a point at which it may be stopped; puts may be late; what is deleted is
//! written down; bytes may be flipped.

use super::world::Once;
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, Monotonic};
use firn_store::{ListPage, MemoryStore, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use std::sync::{Arc, Mutex};

type LatePut = (ObjectKey, Vec<Bytes>, PutMode);

#[derive(Default)]
struct Trouble {
    late_per_mille: u64,
    deny_deletes: bool,
    flip_in: Option<ObjectKey>,
    late: Vec<LatePut>,
    deleted: Vec<(ObjectKey, Monotonic)>,
}

pub struct Gate {
    inner: Arc<MemoryStore>,
    env: Env,
    trouble: Mutex<Trouble>,
}

impl Gate {
    pub fn new(inner: Arc<MemoryStore>, env: &Env) -> Self {
        Self {
            inner,
            env: env.clone(),
            trouble: Mutex::default(),
        }
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap()
    }

    /// So many puts of a thousand fail and happen later, when the test says so.
    pub fn set_late(&self, per_mille: u64) {
        self.trouble().late_per_mille = per_mille;
    }

    pub fn set_deny_deletes(&self, deny: bool) {
        self.trouble().deny_deletes = deny;
    }

    /// Reads of this object come with one bit turned over near their end.
    pub fn set_flip(&self, key: Option<ObjectKey>) {
        self.trouble().flip_in = key;
    }

    /// What was deleted since the last call, and when.
    pub fn take_deleted(&self) -> Vec<(ObjectKey, Monotonic)> {
        std::mem::take(&mut self.trouble().deleted)
    }

    /// Lets the late puts land.
    pub async fn land(&self) {
        let late = std::mem::take(&mut self.trouble().late);
        for (key, parts, mode) in late {
            let _ = self.inner.put(&key, parts, mode).await;
        }
    }

    fn note_deletion(&self, key: &ObjectKey) -> Result<(), StoreError> {
        if self.trouble().deny_deletes {
            return Err(StoreError::Denied {
                operation: "delete",
                key: key.clone(),
                detail: "held until 2031-01-01".into(),
            });
        }
        let now = self.env.now();
        self.trouble().deleted.push((key.clone(), now));
        Ok(())
    }

    fn flipped(&self, key: &ObjectKey, bytes: Bytes) -> Bytes {
        if self.trouble().flip_in.as_ref() != Some(key) || bytes.len() < 300 {
            return bytes;
        }
        let mut bytes = bytes.to_vec();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        bytes.into()
    }
}

#[async_trait]
impl Store for Gate {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        Once(false).await;
        let late_per_mille = self.trouble().late_per_mille;
        if late_per_mille > 0 && self.env.random_below(1000) < late_per_mille {
            self.trouble().late.push((key.clone(), parts, mode));
            return Err(StoreError::unavailable("put", key, "late"));
        }
        self.inner.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        Once(false).await;
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        Once(false).await;
        let bytes = self.inner.get_range(key, offset, length).await?;
        // Footer and index are read from the end; objects are what is damaged here.
        Ok(if offset < 200 {
            self.flipped(key, bytes)
        } else {
            bytes
        })
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        Once(false).await;
        self.inner.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Once(false).await;
        self.note_deletion(key)?;
        self.inner.delete(key).await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        Once(false).await;
        self.inner.keeps_versions().await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        Once(false).await;
        self.inner.versions(key).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        Once(false).await;
        self.note_deletion(key)?;
        self.inner.delete_version(key, version).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        Once(false).await;
        self.inner.list(prefix, after).await
    }
}
