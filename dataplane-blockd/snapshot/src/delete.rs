//! Deleting a snapshot, and giving back what nobody needs.
//!
//! ```text
//! generation: the list without it, a new epoch ──▶ all that the list still names ──▶ what earlier epochs stored beside that is removed
//! ```
//!
//! The generation is the deletion; what follows can be done by anyone at any time, and again. Why what is removed is needed by nobody,
//! however long ago it was found to be so: a snapshot is taken in the epoch of the generation that it began with, and exists only
//! if no deletion came between. What it names was stored in its own epoch, which is not earlier than the one of a deletion
//! before it, or is named by a snapshot that existed all the while.
//!
//! What snapshots left behind that failed or died is removed with it.

use crate::{
    catalogue::{Catalogue, check_name, generation_number},
    error::SnapshotError,
    format::Uid,
    ledger::{Ledger, Listed},
    seal::Kind,
    take::Progress,
};
use firn_env::Env;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::{collections::HashSet, sync::atomic::Ordering::Relaxed};

/// Requests under way at once.
const REMOVED_AT_ONCE: usize = 16;
/// Deletions by others within which ours looks again.
const ATTEMPTS: usize = 8;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// There was such a snapshot. If not, something was swept all the same.
    pub existed: bool,
    /// Objects removed: tracts, index pages, roots, and generations long past.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Deletes a snapshot, and removes all that no other one needs. Whoever was interrupted says it again; whoever deletes
/// another one does the rest as well.
///
/// # Errors
/// [`SnapshotError::NotSwept`]: it is deleted, and takes room yet. Any other: it is there as before, unless the answer to
/// the very last request was lost.
pub async fn delete(
    env: &Env,
    catalogue: &Catalogue,
    name: &str,
    progress: &Progress,
) -> Result<Deleted, SnapshotError> {
    check_name(name)?;
    let found = catalogue.newest().await?;
    let target = found.named(name).cloned();
    let mut ledger = match &target {
        // It may be that only its objects are left.
        None => found,
        Some(target) => {
            let is_it =
                |listed: &Listed| listed.generation == target.generation && listed.name == target.name;
            catalogue
                .commit(env, |newest| {
                    Ok(newest.live.iter().any(is_it).then(|| Ledger {
                        number: newest.number + 1,
                        epoch: newest.number + 1,
                        live: newest
                            .live
                            .iter()
                            .filter(|listed| !is_it(listed))
                            .cloned()
                            .collect(),
                    }))
                })
                .await?
        }
    };
    let mut swept = sweep(env, catalogue, &ledger, progress).await;
    for _ in 0..ATTEMPTS {
        // What was listed a moment ago may have been deleted, and swept, by somebody else.
        if !matches!(swept, Err(SnapshotError::Damaged { .. })) {
            break;
        }
        let now = catalogue.newest().await?;
        if now.number == ledger.number {
            break;
        }
        ledger = now;
        swept = sweep(env, catalogue, &ledger, progress).await;
    }
    match swept {
        Ok(swept) => Ok(Deleted {
            existed: target.is_some(),
            ..swept
        }),
        Err(error) if target.is_some() => Err(SnapshotError::NotSwept(Box::new(error))),
        Err(error) => Err(error),
    }
}

/// Removes what earlier epochs stored and no snapshot of the list names.
async fn sweep(
    env: &Env,
    catalogue: &Catalogue,
    ledger: &Ledger,
    progress: &Progress,
) -> Result<Deleted, SnapshotError> {
    let mut deleted = Deleted::default();
    if ledger.epoch == 0 {
        return Ok(deleted);
    }
    // Before the list: what it names is read to its end, or nothing is removed.
    let needed = needed(catalogue, ledger).await?;
    let is_old = |uid: Uid| uid.epoch() < ledger.epoch || firn_env::planted!("snapshot.sweeps_its_own_epoch");
    for kind in [Kind::Root, Kind::Index, Kind::Tract, Kind::Generation] {
        let prefix = catalogue.prefix(kind);
        let is_garbage = |name: &str| {
            name.strip_prefix(&prefix).is_some_and(|name| match kind {
                Kind::Generation => generation_number(name).is_some_and(|number| number < ledger.number),
                Kind::Root | Kind::Index | Kind::Tract => {
                    Uid::parse(name).is_some_and(|uid| is_old(uid) && !needed.contains(&uid))
                }
            })
        };
        let mut after = None;
        loop {
            let (objects, more) = catalogue.objects(kind, after.as_ref()).await?;
            after = objects.last().map(|object| object.key.clone());
            let garbage = objects
                .into_iter()
                .filter(|object| is_garbage(object.key.as_str()));
            let removed: Vec<u64> = stream::iter(garbage)
                .map(|object| async move {
                    env.fault_point("snapshot.before_remove").await;
                    catalogue.remove(&object.key).await?;
                    progress.done.fetch_add(1, Relaxed);
                    progress.bytes.fetch_add(object.size_bytes, Relaxed);
                    Ok::<u64, SnapshotError>(object.size_bytes)
                })
                .buffer_unordered(REMOVED_AT_ONCE)
                .try_collect()
                .await?;
            deleted.objects += removed.len() as u64;
            deleted.bytes += removed.iter().sum::<u64>();
            if !more || after.is_none() {
                break;
            }
        }
    }
    Ok(deleted)
}

/// All that the snapshots of the list name: 32 bytes for each tract that one of them has and no other shares.
async fn needed(catalogue: &Catalogue, ledger: &Ledger) -> Result<HashSet<Uid>, SnapshotError> {
    let mut needed = HashSet::new();
    // Whoever looks only at what it deletes takes what it shares with others for its own.
    if firn_env::planted!("snapshot.deletes_what_is_shared") {
        return Ok(needed);
    }
    for listed in &ledger.live {
        if !needed.insert(listed.root) {
            continue;
        }
        let root = catalogue.root_of(listed).await?;
        for (number, page) in root.pages.iter().enumerate() {
            // Neighbouring snapshots share most pages: each is read once.
            if *page != Uid::NONE && needed.insert(*page) {
                needed.extend(catalogue.page(&root, number).await?);
            }
        }
    }
    Ok(needed)
}
