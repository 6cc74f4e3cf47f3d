//! The place of one disk's snapshots in an object store.
//!
//! ```text
//! blockd/<disk>/turns/<n>             which snapshots there are; the newest counts, and sorts first
//! blockd/<disk>/roots/<uid>           a snapshot
//! blockd/<disk>/index/<uid>           a page of tracts
//! blockd/<disk>/tracts/<uid>          what a tract held
//! ```
//!
//! Nothing is ever overwritten: what is named by what it holds is the same whoever writes it, and a generation is created once.

use crate::{
    error::SnapshotError,
    format::{PAGE_TRACTS, Root, Uid, decode_page},
    ledger::{Ledger, Listed, NAME_BYTES_MAX},
    seal::{Keys, Kind},
};
use bytes::Bytes;
use firn_blockd_protocol::DiskId;
use firn_env::Env;
use firn_store::{ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use std::sync::Arc;

/// Generations that others make while we try to make ours, or to read the newest: each is a snapshot or a deletion of the same disk.
const ATTEMPTS: usize = 32;

/// See the module.
#[derive(Clone)]
pub struct Catalogue {
    store: Arc<dyn Store>,
    disk: DiskId,
    keys: Keys,
}

/// A name that people give.
pub(crate) fn check_name(name: &str) -> Result<(), SnapshotError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.bytes().all(allowed) {
        return Err(SnapshotError::Name(name.chars().take(80).collect()));
    }
    Ok(())
}

/// The newer a generation, the earlier its object's name.
fn generation_name(number: u64) -> String {
    format!("{:020}", u64::MAX - number)
}

pub(crate) fn generation_number(name: &str) -> Option<u64> {
    let left: u64 = (name.len() == 20).then(|| name.parse().ok()).flatten()?;
    Some(u64::MAX - left)
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

    pub(crate) fn prefix(&self, kind: Kind) -> String {
        format!("blockd/{}/{}/", self.disk.hex(), kind.folder())
    }

    fn object(&self, kind: Kind, name: &str) -> ObjectKey {
        ObjectKey::new(&format!("{}{name}", self.prefix(kind)))
    }

    /// All snapshots of the disk, the newest first.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub async fn list(&self) -> Result<Vec<Listed>, SnapshotError> {
        let mut live = self.newest().await?.live;
        live.reverse();
        Ok(live)
    }

    /// A snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub async fn root(&self, name: &str) -> Result<Root, SnapshotError> {
        let listed = self.find(name).await?;
        match self.root_of(&listed).await {
            Err(error) => Err(self.explain(&listed, error).await),
            other => other,
        }
    }

    /// Why a snapshot cannot be read: objects that are gone are damage, unless somebody said that they may go.
    pub(crate) async fn explain(&self, listed: &Listed, error: SnapshotError) -> SnapshotError {
        match self.newest().await {
            Ok(now) if matches!(error, SnapshotError::Damaged { .. }) && !now.live.contains(listed) => {
                SnapshotError::Deleted(listed.name.clone())
            }
            Ok(_) | Err(_) => error,
        }
    }

    pub(crate) async fn find(&self, name: &str) -> Result<Listed, SnapshotError> {
        check_name(name)?;
        let ledger = self.newest().await?;
        let listed = ledger.named(name).cloned();
        listed.ok_or_else(|| SnapshotError::NotFound(name.to_owned()))
    }

    pub(crate) async fn root_of(&self, listed: &Listed) -> Result<Root, SnapshotError> {
        let payload = self.get(Kind::Root, listed.root).await?;
        let object = || self.object(Kind::Root, &listed.root.to_string());
        let root = Root::decode(&payload).map_err(|reason| damaged(&object(), reason))?;
        if root.disk != self.disk {
            return Err(damaged(&object(), "it is of another disk"));
        }
        Ok(root)
    }

    /// What there is now.
    pub(crate) async fn newest(&self) -> Result<Ledger, SnapshotError> {
        let prefix = self.prefix(Kind::Generation);
        for _ in 0..ATTEMPTS {
            let page = self.store.list(&prefix, None).await?;
            let Some((key, number)) = page.objects.into_iter().find_map(|object| {
                let number = generation_number(object.key.as_str().strip_prefix(&prefix)?)?;
                Some((object.key, number))
            }) else {
                return Ok(Ledger::default());
            };
            let sealed = match self.store.get(&key).await {
                // There is a newer one, and whoever made that has removed this one.
                Err(StoreError::NotFound { .. }) => continue,
                other => other?,
            };
            let ledger = self
                .keys
                .open_generation(number, &sealed)
                .and_then(|payload| Ledger::decode(&payload))
                .map_err(|reason| damaged(&key, reason))?;
            if ledger.number != number {
                return Err(damaged(&key, "it is another generation"));
            }
            return Ok(ledger);
        }
        Err(SnapshotError::Overtaken)
    }

    /// Makes the generation after the newest. `next` says what it is to be, of the newest; nothing: what is wanted is so already.
    ///
    /// # Errors
    /// What `next` says; [`SnapshotError::Store`]: then it may have been made.
    pub(crate) async fn commit(
        &self,
        env: &Env,
        next: impl Fn(&Ledger) -> Result<Option<Ledger>, SnapshotError>,
    ) -> Result<Ledger, SnapshotError> {
        for _ in 0..ATTEMPTS {
            let newest = self.newest().await?;
            let Some(mut generation) = next(&newest)? else {
                return Ok(newest);
            };
            generation.number = newest.number + 1;
            env.fault_point("snapshot.before_generation").await;
            let sealed =
                self.keys
                    .seal_generation(generation.number, env.random_bytes(), &generation.encode());
            let object = self.object(Kind::Generation, &generation_name(generation.number));
            match self.store.put(&object, vec![sealed], PutMode::Create).await {
                // Whether it counts, or an answer was lost, shows the newest: what we slept through may have gone past us.
                Ok(()) | Err(StoreError::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            env.fault_point("snapshot.after_turn").await;
            let now = self.newest().await?;
            if next(&now)?.is_none() {
                self.forget_generation(newest.number).await;
                return Ok(now);
            }
        }
        Err(SnapshotError::Overtaken)
    }

    /// Removes a generation that is not the newest any more. Nobody misses it, so nobody minds if it stays.
    async fn forget_generation(&self, number: u64) {
        if number > 0
            && let Err(error) = self
                .store
                .delete(&self.object(Kind::Generation, &generation_name(number)))
                .await
        {
            tracing::debug!(%error, number, "an old generation stays");
        }
    }

    /// Stores what is not there yet; its uid, and the bytes that were sent.
    pub(crate) async fn put(
        &self,
        kind: Kind,
        payload: &[u8],
        epoch: u64,
    ) -> Result<(Uid, u64), SnapshotError> {
        let uid = self.keys.uid(kind, payload, epoch);
        let sealed = self.keys.seal(kind, uid, payload);
        let bytes = sealed.len() as u64;
        let object = self.object(kind, &uid.to_string());
        match self.store.put(&object, vec![sealed], PutMode::Create).await {
            Err(StoreError::AlreadyExists { .. }) => Ok((uid, 0)),
            other => other.map(|()| (uid, bytes)).map_err(Into::into),
        }
    }

    /// What a payload would be called.
    pub(crate) fn uid(&self, kind: Kind, payload: &[u8], epoch: u64) -> Uid {
        self.keys.uid(kind, payload, epoch)
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

    /// Objects of a kind, as many as the store tells at once, from after one on.
    pub(crate) async fn objects(
        &self,
        kind: Kind,
        after: Option<&ObjectKey>,
    ) -> Result<(Vec<ObjectInfo>, bool), SnapshotError> {
        let page = self.store.list(&self.prefix(kind), after).await?;
        Ok((page.objects, page.more))
    }

    pub(crate) async fn remove(&self, object: &ObjectKey) -> Result<(), SnapshotError> {
        Ok(self.store.delete(object).await?)
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
