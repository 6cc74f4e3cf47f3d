//! Adoption by a member that writes: a newer root takes the place of the one in memory, under what is changed here and not published.
//!
//! Clean entries that differ are dropped, as a follower drops them; those with a ground stay, and the leaf check at the next publication says whether they
//! may be published. The journal is trimmed here, up to what the own section of the adopted root covers: only then does this machine's disk remember
//! a root that has it, so that a table which was put back is noticed while the journal still has everything.

use super::AdoptedRoot;
use crate::{
    checkpoint::{CheckpointPayload, MemberSection},
    follower::{changed_inodes, follows},
    journal::Sequence,
    load::{LoadedCheckpoint, load_newest},
    objects::Objects,
    serving::ServingState,
    tree,
    volume::Inner,
};
use firn_anchor::{MemberNumber, RememberedRoot, VolumeTuple};
use firn_format::{ORPHAN_MAP, Pointer, TreeRoot};
use firn_leases::MemberError;
use std::{collections::BTreeMap, sync::atomic::Ordering};

/// Adopts the tuple's root, if it is another one.
pub(super) async fn adopt(inner: &Inner, volume: &VolumeTuple) -> Result<(), MemberError> {
    let by_inode = inner.by_inode();
    let mut publishing = by_inode.publishing.lock().await;
    let Some(root) = &volume.root else {
        return Err(tampered(inner, "the volume has lost its root".into()));
    };
    let seen = observe(inner, volume).await?;
    let before = &publishing.adopted;
    if (root.version, root.uid) == (before.version, before.uid) {
        // The own commit, which is in memory and is remembered now.
        if let Some(seen) = seen {
            let covered = covered(by_inode.number, &before.payload);
            remember(inner, seen).await?;
            trim(inner, covered).await;
        }
        return Ok(());
    }
    let of = (inner.checkpointer.packer.family, inner.volume);
    let loaded = load_newest(&inner.objects, of, root).await.map_err(unreadable)?;
    if follows(&loaded.history, (before.version, before.uid)) == Some(false) {
        let why = format!(
            "the history of version {} does not have version {} as this office has adopted it: the anchor told two stories",
            root.version.0, before.version.0
        );
        return Err(tampered(inner, why));
    }
    let LoadedCheckpoint {
        checkpoint,
        payload,
        snapshots,
        history,
    } = loaded;
    let orphan_pointers = match checkpoint.orphans == before.checkpoint.orphans {
        true => before.orphan_pointers.clone(),
        false => orphan_pointers(&inner.objects, checkpoint.orphans).await?,
    };
    let (map_before, known) = {
        let state = inner.lock();
        (state.inode_map, state.known_numbers())
    };
    let changed = changed_inodes(&inner.objects, Some(&known), map_before, checkpoint.inode_map).await;
    if let Some(seen) = seen {
        remember(inner, seen).await?;
    }
    inner.env.fault_point("by_inode.before_adoption").await;
    let keeps = |number: u64| {
        firn_env::planted!("volume.adoption_keeps_stale_entries")
            || changed
                .as_ref()
                .is_some_and(|changed| known.contains(&number) && !changed.contains(&number))
    };
    // From here on nothing is waited for: who gives up in between has adopted all of it or nothing.
    inner
        .lock()
        .adopt_beside(&payload.counters, checkpoint.inode_map, snapshots, keeps);
    let covered = covered(by_inode.number, &payload);
    by_inode.adopted_version.store(root.version.0, Ordering::Release);
    publishing.adopted = AdoptedRoot {
        version: root.version,
        uid: root.uid,
        checkpoint,
        payload,
        history,
        orphan_pointers,
    };
    drop(publishing);
    trim(inner, covered).await;
    Ok(())
}

/// Holds the tuple against the newest one that this machine has seen; what is to be remembered, if that changed.
async fn observe(inner: &Inner, volume: &VolumeTuple) -> Result<Option<RememberedRoot>, MemberError> {
    let Some(mut seen) = inner.checkpointer.local.lock().await.seen.clone() else {
        return Ok(Some(RememberedRoot::new(inner.volume, volume)));
    };
    match seen.observe(volume) {
        Ok(is_new) => Ok(Some(seen).filter(|_| is_new)),
        Err(rolled_back) => Err(tampered(inner, rolled_back.to_string())),
    }
}

async fn remember(inner: &Inner, seen: RememberedRoot) -> Result<(), MemberError> {
    let mut local = inner.checkpointer.local.lock().await;
    local.seen = Some(seen);
    let saved = local.save(&**inner.env.disk()).await;
    saved.map_err(|error| MemberError::Content(format!("the state directory: {error}")))
}

/// The last record of the own journal that a root has.
fn covered(number: MemberNumber, payload: &CheckpointPayload) -> Sequence {
    let section = MemberSection::of(&payload.members, number);
    section.map_or(Sequence(0), |section| section.covered)
}

async fn trim(inner: &Inner, covered: Sequence) {
    if let Err(error) = inner.journal.trim(covered).await {
        tracing::warn!(%error, "the journal is trimmed after the next adoption");
    }
}

/// Where the inodes of an orphan map are.
pub(super) async fn orphan_pointers(
    objects: &Objects,
    orphans: Option<TreeRoot>,
) -> Result<BTreeMap<u64, Pointer>, MemberError> {
    let Some(root) = &orphans else {
        return Ok(BTreeMap::new());
    };
    let listed = tree::range(objects, ORPHAN_MAP, root, 0, u64::MAX, usize::MAX).await;
    Ok(listed.map_err(unreadable)?.into_iter().collect())
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> MemberError {
    MemberError::Content(error.to_string())
}

/// What the anchor shows contradicts what was seen: nothing is served any more.
fn tampered(inner: &Inner, why: String) -> MemberError {
    tracing::error!(why, "the newest root contradicts what this office has seen");
    inner.set_serving_state(ServingState::Failed(why.clone()));
    MemberError::Content(why)
}
