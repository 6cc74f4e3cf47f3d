//! A store in memory: deterministic, and shared by all machines of a simulation through one `Arc`.

use crate::{LIST_PAGE_OBJECTS, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Mutex, MutexGuard},
};

struct Object {
    content: Bytes,
    modified_ms: i64,
}

/// A map from key to bytes. Each call takes effect at one moment; nothing is ever unavailable, stale or reordered.
pub struct MemoryStore {
    env: Env,
    objects: Mutex<BTreeMap<ObjectKey, Object>>,
}

impl MemoryStore {
    /// An empty store that takes its modification times from `env`.
    pub fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            objects: Mutex::default(),
        }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Object>> {
        self.objects.lock().expect("no panic under this lock")
    }

    /// All objects, for tests that compare or damage what a store holds.
    pub fn contents(&self) -> BTreeMap<ObjectKey, Bytes> {
        self.objects()
            .iter()
            .map(|(key, object)| (key.clone(), object.content.clone()))
            .collect()
    }

    /// Bytes of all objects together.
    pub fn stored_bytes(&self) -> u64 {
        self.objects()
            .values()
            .map(|object| object.content.len() as u64)
            .sum()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let object = Object {
            content: joined(parts),
            modified_ms: self.env.wall().as_millis(),
        };
        let mut objects = self.objects();
        if mode == PutMode::Create && objects.contains_key(key) {
            return Err(StoreError::already_exists(key));
        }
        objects.insert(key.clone(), object);
        Ok(())
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let objects = self.objects();
        let object = objects.get(key).ok_or_else(|| StoreError::not_found(key))?;
        Ok(object.content.clone())
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        let content = self.get(key).await?;
        let size = content.len() as u64;
        let start = offset.min(size);
        let end = start.saturating_add(length).min(size);
        Ok(content.slice(start as usize..end as usize))
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        let objects = self.objects();
        let object = objects.get(key).ok_or_else(|| StoreError::not_found(key))?;
        Ok(info(key, object))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.objects().remove(key);
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let start = ObjectKey::of_prefix(prefix);
        let from = match after {
            Some(after) if *after >= start => Bound::Excluded(after.clone()),
            _ => Bound::Included(start),
        };
        let objects = self.objects();
        let mut matching = objects
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(prefix));
        let page = matching.by_ref().take(LIST_PAGE_OBJECTS);
        Ok(ListPage {
            objects: page.map(|(key, object)| info(key, object)).collect(),
            more: matching.next().is_some(),
        })
    }
}

fn info(key: &ObjectKey, object: &Object) -> ObjectInfo {
    ObjectInfo {
        key: key.clone(),
        size_bytes: object.content.len() as u64,
        modified_ms: object.modified_ms,
    }
}

/// The parts as one buffer, without a copy when there is only one.
fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.remove(0),
        _ => parts.concat().into(),
    }
}
