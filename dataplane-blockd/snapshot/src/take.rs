//! Taking a snapshot.
//!
//! Four tracts are under way at once, those first for which a writer waits: a tract is read, and its writers go on; then it
//! is sealed and stored. So memory is bounded by four tracts in three forms (about 100 MiB), and a writer waits at most until
//! one of the four is stored and its own is read. The root and the generation that lists it come last: until then nothing was taken.
//!
//! Who takes a snapshot relies on what it stored itself, under the epoch in which it began, and on what an earlier snapshot
//! names that exists all the while. So the generation is made only if nothing was deleted since; else it begins again.

use crate::{
    catalogue::{Catalogue, check_name},
    error::SnapshotError,
    format::{PAGE_TRACTS, PAGES_MAX, Root, Uid, encode_page, encode_tract},
    gate::{Frozen, SnapshotGate},
    ledger::{Ledger, Listed, SNAPSHOTS_MAX},
    seal::Kind,
};
use firn_blockd_nbd::BlockDevice;
use firn_env::Env;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Tracts under way at once.
const TRACTS_AT_ONCE: usize = 4;
/// Times a snapshot begins again because another one was deleted meanwhile.
const ATTEMPTS: usize = 4;

/// How far a snapshot or a restore is; for those who wait.
#[derive(Debug, Default)]
pub struct Progress {
    /// Tracts dealt with.
    pub done: AtomicU64,
    /// Tracts to be dealt with, once that is known.
    pub total: AtomicU64,
    /// Bytes sent to the store, or fetched from it.
    pub bytes: AtomicU64,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The snapshot.
    pub root: Root,
    /// Tracts that were read because they may have changed.
    pub read_tracts: u64,
    /// Bytes sent to the store: what was not there yet, sealed.
    pub stored_bytes: u64,
}

/// A snapshot that can be taken now.
pub struct Prepared {
    catalogue: Catalogue,
    name: String,
    /// The epoch in which it began.
    epoch: u64,
    /// The earlier one to which this one is compared.
    base: Option<String>,
    pages: Vec<Uid>,
    tracts: Vec<Uid>,
}

/// Looks for an earlier snapshot to compare with: the last one taken through this gate, or else the newest there is.
///
/// # Errors
/// [`SnapshotError`]. An earlier snapshot that cannot be read is no error: then all is read and stored.
pub async fn prepare<D: BlockDevice>(
    catalogue: &Catalogue,
    gate: &SnapshotGate<D>,
    name: &str,
) -> Result<Prepared, SnapshotError> {
    check_name(name)?;
    let ledger = catalogue.newest().await?;
    check_free(&ledger, name)?;
    let own = gate.base();
    let known = ledger
        .live
        .iter()
        .find(|listed| own.as_ref() == Some(&listed.identity()));
    let newest = known.or(ledger.live.last());
    let mut prepared = Prepared {
        catalogue: catalogue.clone(),
        name: name.to_owned(),
        epoch: ledger.epoch,
        base: None,
        pages: Vec::new(),
        tracts: Vec::new(),
    };
    let Some(newest) = newest else {
        return Ok(prepared);
    };
    match base(catalogue, newest, gate.tract_bytes()).await {
        Ok((pages, tracts)) => {
            prepared.base = Some(newest.identity());
            prepared.pages = pages;
            prepared.tracts = tracts;
        }
        Err(error @ SnapshotError::Store(_)) => return Err(error),
        Err(error) => {
            tracing::warn!(%error, snapshot = newest.name, "an earlier snapshot is of no use for this one")
        }
    }
    Ok(prepared)
}

/// That a snapshot of this name can be added.
fn check_free(ledger: &Ledger, name: &str) -> Result<(), SnapshotError> {
    if ledger.named(name).is_some() {
        return Err(SnapshotError::Exists(name.to_owned()));
    }
    if ledger.live.len() >= SNAPSHOTS_MAX {
        return Err(SnapshotError::TooMany(SNAPSHOTS_MAX));
    }
    Ok(())
}

async fn base(
    catalogue: &Catalogue,
    listed: &Listed,
    tract_bytes: u32,
) -> Result<(Vec<Uid>, Vec<Uid>), SnapshotError> {
    let root = catalogue.root_of(listed).await?;
    if root.tract_bytes != tract_bytes {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut tracts = Vec::new();
    for page in 0..root.pages.len() {
        tracts.extend(catalogue.page(&root, page).await?);
    }
    // The last tract may have been shorter than it is now, and is compared by its content then.
    Ok((root.pages, tracts))
}

impl Prepared {
    /// Freezes the disk: the instant of the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::Busy`].
    pub fn freeze<D: BlockDevice>(&self, gate: &SnapshotGate<D>) -> Result<Frozen<D>, SnapshotError> {
        gate.freeze(self.base.as_deref())
    }

    /// Copies the frozen disk.
    ///
    /// # Errors
    /// [`SnapshotError`]: then there is no such snapshot, unless the answer to the very last request was lost.
    /// [`SnapshotError::Overtaken`]: another one was deleted meanwhile; prepare again.
    pub async fn copy<D: BlockDevice>(
        mut self,
        env: &Env,
        frozen: Frozen<D>,
        settings: &str,
        progress: &Progress,
    ) -> Result<Taken, SnapshotError> {
        let taken_unix_ms = env.wall().as_millis();
        let (size_bytes, tract_bytes) = (frozen.size_bytes(), frozen.tract_bytes());
        let count = usize::try_from(size_bytes.div_ceil(tract_bytes))
            .ok()
            .filter(|count| count.div_ceil(PAGE_TRACTS) <= PAGES_MAX)
            .ok_or(SnapshotError::TooLarge(size_bytes))?;
        self.tracts.resize(count, Uid::NONE);
        let read_tracts = frozen.left();
        progress.total.store(read_tracts, Relaxed);
        let before = &self.tracts;
        let copied: Vec<(usize, Uid)> = stream::iter(std::iter::from_fn(|| frozen.next()))
            .map(|tract| self.copy_tract(&frozen, tract, before, progress))
            .buffer_unordered(TRACTS_AT_ONCE)
            .try_filter_map(|copied| async move { Ok(copied) })
            .try_collect()
            .await?;
        for (tract, uid) in copied {
            self.tracts[tract] = uid;
        }
        let mut pages = Vec::with_capacity(count.div_ceil(PAGE_TRACTS));
        for (number, tracts) in self.tracts.chunks(PAGE_TRACTS).enumerate() {
            let page = match encode_page(tracts) {
                None => Uid::NONE,
                Some(payload) => {
                    let before = self.pages.get(number).copied();
                    self.stored(Kind::Index, &payload, before, progress).await?
                }
            };
            pages.push(page);
        }
        let root = Root {
            disk: self.catalogue.disk(),
            size_bytes,
            tract_bytes: u32::try_from(tract_bytes).expect("the gate was made from one"),
            taken_unix_ms,
            settings: settings.to_owned(),
            pages,
        };
        env.fault_point("snapshot.before_root").await;
        let payload = root.encode();
        let (uid, _) = self.catalogue.put(Kind::Root, &payload, self.epoch).await?;
        let ledger = self
            .catalogue
            .commit(env, |newest| self.generation(newest, &root, uid))
            .await?;
        if let Some(listed) = ledger.named(&self.name) {
            frozen.complete(&listed.identity());
        }
        Ok(Taken {
            root,
            read_tracts,
            stored_bytes: progress.bytes.load(Relaxed),
        })
    }

    /// The list with this snapshot in it; nothing if it is.
    fn generation(&self, newest: &Ledger, root: &Root, uid: Uid) -> Result<Option<Ledger>, SnapshotError> {
        if newest.named(&self.name).is_some_and(|listed| listed.root == uid) {
            return Ok(None);
        }
        if newest.epoch != self.epoch && !firn_env::planted!("snapshot.ignores_deletions") {
            return Err(SnapshotError::Overtaken);
        }
        check_free(newest, &self.name)?;
        let mut next = newest.clone();
        next.live.push(Listed {
            name: self.name.clone(),
            generation: newest.number + 1,
            taken_unix_ms: root.taken_unix_ms,
            size_bytes: root.size_bytes,
            root: uid,
        });
        Ok(Some(next))
    }

    /// The uid of a payload: the one it had before if it is the same, or else it is stored now.
    async fn stored(
        &self,
        kind: Kind,
        payload: &[u8],
        before: Option<Uid>,
        progress: &Progress,
    ) -> Result<Uid, SnapshotError> {
        let now = self.catalogue.uid(kind, payload, self.epoch);
        if let Some(before) = before.filter(|before| before.is_like(&now)) {
            return Ok(before);
        }
        let (uid, bytes) = self.catalogue.put(kind, payload, self.epoch).await?;
        progress.bytes.fetch_add(bytes, Relaxed);
        Ok(uid)
    }

    /// Nothing if the tract is what it was.
    async fn copy_tract<D: BlockDevice>(
        &self,
        frozen: &Frozen<D>,
        tract: u64,
        before: &[Uid],
        progress: &Progress,
    ) -> Result<Option<(usize, Uid)>, SnapshotError> {
        let pieces = frozen.read(tract).await?;
        let at = tract as usize;
        let uid = match encode_tract(&pieces) {
            None => Uid::NONE,
            Some(payload) => {
                drop(pieces);
                self.stored(Kind::Tract, &payload, Some(before[at]), progress)
                    .await?
            }
        };
        progress.done.fetch_add(1, Relaxed);
        Ok((uid != before[at]).then_some((at, uid)))
    }
}

/// Takes a snapshot of the disk behind a gate, as it is when the earlier snapshots have been looked at; as it is later if others
/// are deleted meanwhile.
///
/// # Errors
/// [`SnapshotError`].
pub async fn take<D: BlockDevice>(
    env: &Env,
    catalogue: &Catalogue,
    gate: &SnapshotGate<D>,
    name: &str,
    settings: &str,
    progress: &Progress,
) -> Result<Taken, SnapshotError> {
    for _ in 1..ATTEMPTS {
        match take_once(env, catalogue, gate, name, settings, progress).await {
            Err(SnapshotError::Overtaken) => progress.done.store(0, Relaxed),
            other => return other,
        }
    }
    take_once(env, catalogue, gate, name, settings, progress).await
}

async fn take_once<D: BlockDevice>(
    env: &Env,
    catalogue: &Catalogue,
    gate: &SnapshotGate<D>,
    name: &str,
    settings: &str,
    progress: &Progress,
) -> Result<Taken, SnapshotError> {
    let prepared = prepare(catalogue, gate, name).await?;
    let frozen = prepared.freeze(gate)?;
    prepared.copy(env, frozen, settings, progress).await
}
