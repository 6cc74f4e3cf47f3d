//! Own copies: what this machine keeps of altered segments, as the store from which a repair reads first; behind it lies the second store, if any.
//!
//! ```text
//! an altered segment ─▶ the pin, as it was put ─ gone meanwhile ─▶ the second store
//! all else ─────────────────────────────────────────────────────▶ the second store
//! ```
//!
//! Only read: a repair writes into the first store. What is read is compared with its hash there, as from any store.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use firn_format::SegmentId;
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use firn_volume::Volume;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// See the module.
pub struct OwnCopies {
    env: Env,
    volume: Volume,
    altered: BTreeSet<SegmentId>,
    behind: Option<Arc<dyn Store>>,
    /// The one that was read last: a repair reads all that is needed of a segment before it goes on.
    newest: Mutex<Option<(SegmentId, Bytes)>>,
}

impl OwnCopies {
    pub fn new(
        env: &Env,
        volume: &Volume,
        altered: impl IntoIterator<Item = SegmentId>,
        behind: Option<Arc<dyn Store>>,
    ) -> Self {
        Self {
            env: env.clone(),
            volume: volume.clone(),
            altered: altered.into_iter().collect(),
            behind,
            newest: Mutex::default(),
        }
    }

    /// The segment as it was put, if it is one of them and still kept.
    async fn kept(&self, key: &ObjectKey) -> Option<Bytes> {
        let (_, segment) = SegmentId::parse_key(key.as_str())?;
        if !self.altered.contains(&segment) {
            return None;
        }
        let newest = self.newest.lock().expect("no panic under this lock").clone();
        if let Some((_, bytes)) = newest.filter(|(id, _)| *id == segment) {
            return Some(bytes);
        }
        let bytes = self.volume.pinned_segment(segment).await?;
        *self.newest.lock().expect("no panic under this lock") = Some((segment, bytes.clone()));
        Some(bytes)
    }

    fn behind(&self, key: &ObjectKey) -> Result<&Arc<dyn Store>, StoreError> {
        self.behind.as_ref().ok_or_else(|| StoreError::not_found(key))
    }
}

#[async_trait]
impl Store for OwnCopies {
    async fn put(&self, key: &ObjectKey, _parts: Vec<Bytes>, _mode: PutMode) -> Result<(), StoreError> {
        Err(StoreError::invalid("put", key, "copies are only read"))
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        match self.kept(key).await {
            Some(bytes) => Ok(bytes),
            None => self.behind(key)?.get(key).await,
        }
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        match self.kept(key).await {
            Some(bytes) => {
                let size = bytes.len() as u64;
                let (from, to) = (offset.min(size), offset.saturating_add(length).min(size));
                Ok(bytes.slice(from as usize..to as usize))
            }
            None => self.behind(key)?.get_range(key, offset, length).await,
        }
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        match self.kept(key).await {
            Some(bytes) => Ok(ObjectInfo {
                key: key.clone(),
                size_bytes: bytes.len() as u64,
                modified_ms: self.env.wall().as_millis(),
            }),
            None => self.behind(key)?.head(key).await,
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(StoreError::invalid("delete", key, "copies are only read"))
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        match &self.behind {
            Some(store) => store.list(prefix, after).await,
            None => Ok(ListPage::default()),
        }
    }
}
