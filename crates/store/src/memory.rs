//! A store in memory: deterministic, and shared by all machines of a simulation through one `Arc`.

use crate::{LIST_PAGE_OBJECTS, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Mutex, MutexGuard},
};

#[derive(Clone)]
struct Object {
    content: Bytes,
    modified_ms: i64,
}

/// Every version there is of every object, oldest first; a mark of deletion has no object.
#[derive(Default)]
struct Kept {
    next: u64,
    versions: BTreeMap<ObjectKey, Vec<(u64, Option<Object>)>>,
}

impl Kept {
    fn add(&mut self, key: &ObjectKey, object: Option<Object>) {
        self.next += 1;
        let versions = self.versions.entry(key.clone()).or_default();
        versions.push((self.next, object));
    }
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Object>,
    /// In a store that keeps versions.
    kept: Option<Kept>,
}

/// Versions in one page: few, so that tests turn pages.
const VERSION_PAGE: usize = 4;

/// A map from key to bytes. Each call takes effect at one moment; nothing is ever unavailable, stale or reordered.
pub struct MemoryStore {
    env: Env,
    state: Mutex<State>,
}

impl MemoryStore {
    /// An empty store that takes its modification times from `env`.
    pub fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            state: Mutex::default(),
        }
    }

    /// One that keeps what is deleted or replaced, as a versioned bucket does.
    pub fn keeping_versions(env: &Env) -> Self {
        let store = Self::new(env);
        store.state().kept = Some(Kept::default());
        store
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// All objects, for tests that compare or damage what a store holds.
    pub fn contents(&self) -> BTreeMap<ObjectKey, Bytes> {
        self.state()
            .objects
            .iter()
            .map(|(key, object)| (key.clone(), object.content.clone()))
            .collect()
    }

    /// Bytes of all objects together, those of older versions as well.
    pub fn stored_bytes(&self) -> u64 {
        let state = self.state();
        let objects: Vec<&Object> = match &state.kept {
            None => state.objects.values().collect(),
            Some(kept) => kept
                .versions
                .values()
                .flatten()
                .filter_map(|(_, object)| object.as_ref())
                .collect(),
        };
        objects.iter().map(|object| object.content.len() as u64).sum()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let object = Object {
            content: joined(parts),
            modified_ms: self.env.wall().as_millis(),
        };
        let mut state = self.state();
        if mode == PutMode::Create && state.objects.contains_key(key) {
            return Err(StoreError::already_exists(key));
        }
        if let Some(kept) = &mut state.kept {
            kept.add(key, Some(object.clone()));
        }
        state.objects.insert(key.clone(), object);
        Ok(())
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let state = self.state();
        let object = state.objects.get(key).ok_or_else(|| StoreError::not_found(key))?;
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
        let state = self.state();
        let object = state.objects.get(key).ok_or_else(|| StoreError::not_found(key))?;
        Ok(info(key, object))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let mut state = self.state();
        state.objects.remove(key);
        if let Some(kept) = &mut state.kept {
            kept.add(key, None);
        }
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let start = ObjectKey::of_prefix(prefix);
        let from = match after {
            Some(after) if *after >= start => Bound::Excluded(after.clone()),
            _ => Bound::Included(start),
        };
        let state = self.state();
        let mut matching = state
            .objects
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(prefix));
        let page = matching.by_ref().take(LIST_PAGE_OBJECTS);
        Ok(ListPage {
            objects: page.map(|(key, object)| info(key, object)).collect(),
            more: matching.next().is_some(),
        })
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        Ok(self.state().kept.is_some())
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        let state = self.state();
        let all = state.kept.as_ref().and_then(|kept| kept.versions.get(key));
        let newest_first = all.into_iter().flatten().rev();
        Ok(VersionPage {
            versions: newest_first
                .take(VERSION_PAGE)
                .map(|(version, _)| version.to_string())
                .collect(),
            more: all.is_some_and(|all| all.len() > VERSION_PAGE),
        })
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        let mut state = self.state();
        let State { objects, kept } = &mut *state;
        let Some(kept) = kept else {
            return Err(StoreError::invalid("delete version", key, "no versions are kept"));
        };
        let Some(versions) = kept.versions.get_mut(key) else {
            return Ok(());
        };
        versions.retain(|(number, _)| number.to_string() != version);
        let current = versions.last().and_then(|(_, object)| object.clone());
        if versions.is_empty() {
            kept.versions.remove(key);
        }
        objects.remove(key);
        objects.extend(current.map(|current| (key.clone(), current)));
        Ok(())
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
