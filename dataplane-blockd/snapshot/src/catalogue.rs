//! The place of one disk's snapshots in an object store.
//!
//! ```text
//! blockd/<disk>/snapshots/<name>      the root, written last and never replaced
//! blockd/<disk>/index/<uid>           a page of tracts
//! blockd/<disk>/tracts/<uid>          what a tract held
//! ```
//!
//! Nothing is ever overwritten: what is named by what it holds is the same whoever writes it.

use crate::{
    error::SnapshotError,
    format::{PAGE_TRACTS, Root, Uid, decode_page},
    seal::{Keys, Kind},
};
use bytes::Bytes;
use firn_blockd_protocol::DiskId;
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct Catalogue {
    store: Arc<dyn Store>,
    disk: DiskId,
    keys: Keys,
}

/// A name that people give becomes a part of an object's.
fn check_name(name: &str) -> Result<(), SnapshotError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(allowed) {
        return Err(SnapshotError::Name(name.chars().take(80).collect()));
    }
    Ok(())
}

impl Catalogue {
    /// Of a disk, whose key seals all that is stored.
    pub fn new(store: Arc<dyn Store>, disk: DiskId, key: &[u8; 32]) -> Self {
        Self {
            store,
            disk,
            keys: Keys::new(disk, key),
        }
    }

    pub(crate) fn disk(&self) -> DiskId {
        self.disk
    }

    fn object(&self, kind: Kind, name: &str) -> ObjectKey {
        ObjectKey::new(&format!("blockd/{}/{}/{name}", self.disk, kind.folder()))
    }

    /// Names of all snapshots of the disk, the newest by the store's clock first.
    ///
    /// # Errors
    /// [`SnapshotError::Store`].
    pub async fn names(&self) -> Result<Vec<String>, SnapshotError> {
        let prefix = format!("blockd/{}/{}/", self.disk, Kind::Root.folder());
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list(&prefix, after.as_ref()).await?;
            after = page.objects.last().map(|object| object.key.clone());
            for object in page.objects {
                if let Some(name) = object.key.as_str().strip_prefix(&prefix) {
                    found.push((object.modified_ms, name.to_owned()));
                }
            }
            if !page.more || after.is_none() {
                break;
            }
        }
        found.sort_by(|one, other| other.cmp(one));
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// A snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub async fn root(&self, name: &str) -> Result<Root, SnapshotError> {
        check_name(name)?;
        let object = self.object(Kind::Root, name);
        let sealed = match self.store.get(&object).await {
            Err(StoreError::NotFound { .. }) => return Err(SnapshotError::NotFound(name.to_owned())),
            other => other?,
        };
        let root = self
            .keys
            .open_root(name, &sealed)
            .and_then(|payload| Root::decode(&payload))
            .map_err(|reason| damaged(&object, reason))?;
        if root.disk != self.disk {
            return Err(damaged(&object, "it is of another disk"));
        }
        Ok(root)
    }

    /// That a snapshot of this name can be taken.
    pub(crate) async fn check_free(&self, name: &str) -> Result<(), SnapshotError> {
        check_name(name)?;
        match self.store.head(&self.object(Kind::Root, name)).await {
            Ok(_) => Err(SnapshotError::Exists(name.to_owned())),
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the snapshot be, if there is none of its name.
    pub(crate) async fn put_root(
        &self,
        name: &str,
        salt: [u8; 32],
        root: &Root,
    ) -> Result<(), SnapshotError> {
        let sealed = self.keys.seal_root(name, salt, &root.encode());
        let object = self.object(Kind::Root, name);
        match self
            .store
            .put(&object, vec![sealed.clone()], PutMode::Create)
            .await
        {
            // A put whose answer was lost and that was tried again finds itself.
            Err(StoreError::AlreadyExists { .. }) if self.store.get(&object).await? == sealed => Ok(()),
            Err(StoreError::AlreadyExists { .. }) => Err(SnapshotError::Exists(name.to_owned())),
            other => Ok(other?),
        }
    }

    /// Stores what is not there yet; its uid, and the bytes that were sent.
    pub(crate) async fn put(&self, kind: Kind, payload: &[u8]) -> Result<(Uid, u64), SnapshotError> {
        let uid = self.keys.uid(kind, payload);
        let sealed = self.keys.seal(kind, uid, payload);
        let bytes = sealed.len() as u64;
        let object = self.object(kind, &uid.to_string());
        match self.store.put(&object, vec![sealed], PutMode::Create).await {
            Err(StoreError::AlreadyExists { .. }) => Ok((uid, 0)),
            other => other.map(|()| (uid, bytes)).map_err(Into::into),
        }
    }

    /// What a payload would be called.
    pub(crate) fn uid(&self, kind: Kind, payload: &[u8]) -> Uid {
        self.keys.uid(kind, payload)
    }

    pub(crate) async fn get(&self, kind: Kind, uid: Uid) -> Result<Bytes, SnapshotError> {
        let object = self.object(kind, &uid.to_string());
        let sealed = match self.store.get(&object).await {
            Err(StoreError::NotFound { .. }) => return Err(damaged(&object, "it is not there")),
            other => other?,
        };
        self.keys
            .open(kind, uid, &sealed)
            .map_err(|reason| damaged(&object, reason))
    }

    /// The tracts of one page of a snapshot.
    pub(crate) async fn page(&self, root: &Root, page: usize) -> Result<Vec<Uid>, SnapshotError> {
        let first = (page * PAGE_TRACTS) as u64;
        let count = (root.tracts() - first).min(PAGE_TRACTS as u64) as usize;
        let uid = root.pages[page];
        if uid == Uid::NONE {
            return Ok(vec![Uid::NONE; count]);
        }
        let payload = self.get(Kind::Index, uid).await?;
        decode_page(&payload, count)
            .map_err(|reason| damaged(&self.object(Kind::Index, &uid.to_string()), reason))
    }

    pub(crate) fn damaged_tract(&self, uid: Uid, reason: &'static str) -> SnapshotError {
        damaged(&self.object(Kind::Tract, &uid.to_string()), reason)
    }
}

fn damaged(object: &ObjectKey, reason: &'static str) -> SnapshotError {
    SnapshotError::Damaged {
        object: object.to_string(),
        reason,
    }
}
