//! The second store as readers and repairs have it: what it lost or altered of a group's members is computed from the rest of the group.
//!
//! Reads of members are of whole rows, which their hashes tell right from wrong. All else is the store's own.

use super::{Parity, rows::RowError};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use firn_format::SegmentId;
use firn_parity::ROW_BYTES;
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};

/// See the module.
pub struct Restoring {
    parity: Parity,
}

impl Restoring {
    /// The second store with what `parity` makes up for.
    pub(super) fn new(parity: Parity) -> Self {
        Self { parity }
    }

    fn store(&self) -> &dyn Store {
        self.parity.second()
    }

    /// A range of a member; `None` if it is none, or cannot be had: then the store answers.
    async fn restored(&self, key: &ObjectKey, offset: u64, length: u64) -> Option<Bytes> {
        let (family, segment) = SegmentId::parse_key(key.as_str())?;
        if family != self.parity.family() {
            return None;
        }
        if let Err(error) = self.parity.refresh_if_old().await {
            tracing::debug!(%error, "parity groups cannot be listed");
        }
        let mut is_second_try = false;
        loop {
            match self.member_range(segment, offset, length).await? {
                Ok(found) => return Some(found),
                // Its group was written anew by somebody else since it was listed.
                Err(RowError::Store(StoreError::NotFound { .. })) if !is_second_try => {
                    is_second_try = true;
                    self.parity.refresh().await.ok()?;
                }
                Err(error) => {
                    tracing::warn!(%error, %segment, "a segment cannot be had from its parity group");
                    return None;
                }
            }
        }
    }

    async fn member_range(
        &self,
        segment: SegmentId,
        offset: u64,
        length: u64,
    ) -> Option<Result<Bytes, RowError>> {
        let head = self.parity.group_of(segment)?;
        let member = head.find(segment)?;
        if offset >= u64::from(member.bytes) {
            return None;
        }
        let length = length.min(u64::from(member.bytes) - offset) as usize;
        let from = member.offset as usize + offset as usize;
        let rows = from / ROW_BYTES..(from + length).div_ceil(ROW_BYTES);
        let skipped = from - rows.start * ROW_BYTES;
        let found = async {
            let group = self.parity.group(&head).await?;
            let rows = self.parity.rows(&group, usize::from(member.column), rows).await?;
            let mut bytes = BytesMut::with_capacity(rows.len() * ROW_BYTES);
            rows.iter().for_each(|row| bytes.extend_from_slice(row));
            Ok(bytes.freeze().slice(skipped..skipped + length))
        };
        Some(found.await)
    }
}

#[async_trait]
impl Store for Restoring {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.store().put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        match self.restored(key, 0, u64::MAX).await {
            Some(restored) => Ok(restored),
            None => self.store().get(key).await,
        }
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        match self.restored(key, offset, length).await {
            Some(restored) => Ok(restored),
            None => self.store().get_range(key, offset, length).await,
        }
    }

    /// Of a member that is gone, or has another length, what its group says.
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        let found = self.store().head(key).await;
        let Some((family, segment)) = SegmentId::parse_key(key.as_str()) else {
            return found;
        };
        if family != self.parity.family() || matches!(found, Err(ref error) if !is_absent(error)) {
            return found;
        }
        if let Err(error) = self.parity.refresh_if_old().await {
            tracing::debug!(%error, "parity groups cannot be listed");
        }
        let head = self.parity.group_of(segment);
        match head.as_ref().and_then(|head| head.find(segment)) {
            Some(member) => Ok(ObjectInfo {
                key: key.clone(),
                size_bytes: u64::from(member.bytes),
                modified_ms: found.map_or(0, |found| found.modified_ms),
            }),
            None => found,
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store().delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.store().list(prefix, after).await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        self.store().keeps_versions().await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store().versions(key).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        self.store().delete_version(key, version).await
    }
}

fn is_absent(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { .. })
}
