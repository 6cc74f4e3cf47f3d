//! A store that follows a script.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use firn_store::{ListPage, MemoryStore, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What a scripted store does with its next request.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Do,
    Refuse,
    Deny,
    /// Does it, but never answers.
    DoAndHang,
    Hang,
    Take(Duration),
}

/// A store that follows a script, then behaves; and counts how many requests it had at once.
pub struct Scripted {
    env: Env,
    pub inner: MemoryStore,
    pub script: Mutex<VecDeque<Act>>,
    usual: Act,
    pub now: Mutex<Concurrency>,
}

#[derive(Default)]
pub struct Concurrency {
    pub reads: u32,
    pub writes: u32,
    pub most_reads: u32,
    pub most_writes: u32,
}

/// Counts down when the request ends, or is dropped.
struct UnderWay<'a>(&'a Scripted, bool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now.lock().expect("no panic under this lock");
        match self.1 {
            true => now.writes -= 1,
            false => now.reads -= 1,
        }
    }
}

impl Scripted {
    pub fn new(env: &Env, usual: Act, script: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            inner: MemoryStore::new(env),
            script: Mutex::new(script.into_iter().collect()),
            usual,
            now: Mutex::default(),
        })
    }

    async fn act<T>(
        &self,
        key: &ObjectKey,
        is_write: bool,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let _under_way = {
            let mut now = self.now.lock().expect("no panic under this lock");
            match is_write {
                true => now.writes += 1,
                false => now.reads += 1,
            }
            now.most_reads = now.most_reads.max(now.reads);
            now.most_writes = now.most_writes.max(now.writes);
            UnderWay(self, is_write)
        };
        let act = self.script.lock().expect("no panic under this lock").pop_front();
        match act.unwrap_or(self.usual) {
            Act::Do => request.await,
            Act::Refuse => Err(StoreError::unavailable("test", key, "scripted")),
            Act::Deny => Err(StoreError::Denied {
                operation: "test",
                key: key.clone(),
                detail: "scripted".into(),
            }),
            Act::DoAndHang => {
                let _ = request.await;
                std::future::pending().await
            }
            Act::Hang => std::future::pending().await,
            Act::Take(time) => {
                self.env.sleep(time).await;
                request.await
            }
        }
    }
}

#[async_trait]
impl Store for Scripted {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.act(key, true, self.inner.put(key, parts, mode)).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.act(key, false, self.inner.get(key)).await
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.act(key, false, self.inner.get_range(key, offset, length))
            .await
    }
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.act(key, false, self.inner.head(key)).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.act(key, true, self.inner.delete(key)).await
    }
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let named = ObjectKey::of_prefix(prefix);
        self.act(&named, false, self.inner.list(prefix, after)).await
    }
}
