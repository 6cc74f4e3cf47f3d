//! Adoption: a newer root takes the place of the one in memory, and of the clean entries only those go that differ.
//!
//! Which do is found by walking the old and the new inode map side by side: equal uids are equal subtrees. Only what leads to entries
//! in memory is walked, so it costs a few nodes for each of them that changed, most of them cached. Where others cache too (a mount's kernel, of more
//! files than are in memory here), all that differs is walked, and they are told ([`Elsewhere`](crate::Elsewhere)). More than [`CHANGED_MAX`], or a node
//! that cannot be read: all are dropped, and loaded again as they are asked for.

use super::{Adopted, Follower, NotAdopted, follows};
use crate::{
    elsewhere::FILES_MAX,
    error::VolumeError,
    freshness,
    load::{LoadedCheckpoint, load_newest},
    objects::{Objects, ReadError},
    tree_diff::Counterpart,
    volume::Inner,
};
use firn_anchor::{RememberedRoot, VolumeTuple};
use firn_format::{INODE_MAP, Place, TreeRoot, radix};
use futures::{FutureExt, future::BoxFuture};
use std::collections::BTreeSet;

/// Changed entries found one by one: some 4 MiB of inodes.
const CHANGED_MAX: usize = FILES_MAX;

impl Follower {
    /// Adopts the tuple's root if it is newer.
    pub(super) async fn adopt(
        &self,
        inner: &Inner,
        adopted: &mut Adopted,
        tuple: &VolumeTuple,
    ) -> Result<(), NotAdopted> {
        let mut seen = match &adopted.local.seen {
            Some(seen) => seen.clone(),
            None => RememberedRoot::new(inner.volume, tuple),
        };
        if !firn_env::planted!("volume.follower_adopts_anything") {
            seen.observe(tuple)
                .map_err(|rolled_back| NotAdopted::Tampered(rolled_back.to_string()))?;
        } else {
            seen = RememberedRoot::new(inner.volume, tuple);
        }
        let root = tuple
            .root
            .as_ref()
            .ok_or_else(|| NotAdopted::Tampered("the volume has lost its root".into()))?;
        self.figures().owner = tuple.owner.as_ref().map(|owner| owner.name.clone());
        if (root.version, root.uid) == (adopted.version, adopted.uid) {
            return Ok(());
        }
        let of = (self.parts.family(), inner.volume);
        let loaded = load_newest(&inner.objects, of, root).await;
        if matches!(loaded, Err(VolumeError::KeyNotAtHand { .. })) {
            self.figures().key_misses += 1;
        }
        let loaded = loaded?;
        if !firn_env::planted!("volume.follower_adopts_anything") {
            match follows(&loaded.history, (adopted.version, adopted.uid)) {
                Some(true) => {}
                Some(false) => {
                    return Err(NotAdopted::Tampered(format!(
                        "the history of version {} does not have version {} as this edge has read it: the anchor told two stories, or \
                         somebody went on from an older root",
                        root.version.0, adopted.version.0
                    )));
                }
                None => {
                    let stale = freshness::find(&self.parts, &inner.config, tuple, None).await?;
                    if let Some(stale) = stale.filter(|stale| !stale.is_in_doubt()) {
                        return Err(NotAdopted::Tampered(stale.to_string()));
                    }
                }
            }
        }
        // Remembered before anybody is answered by it: a table that is rolled back after this is noticed.
        adopted.local.seen = Some(seen);
        if let Err(error) = adopted.local.save(&**inner.env.disk()).await {
            tracing::warn!(%error, "the newest root is not remembered on this machine's disk");
        }
        inner.env.fault_point("follow.before_adoption").await;
        self.install(inner, loaded).await;
        (adopted.version, adopted.uid) = (root.version, root.uid);
        inner.checkpointer.times().last_commit_ms = Some(root.committed_at_ms);
        self.figures().adopted(inner.env.now(), root);
        Ok(())
    }

    /// Puts the tree in the place of the one in memory.
    async fn install(&self, inner: &Inner, loaded: LoadedCheckpoint) {
        let (before, known) = {
            let state = inner.lock();
            (state.inode_map, state.known_numbers())
        };
        let after = loaded.checkpoint.inode_map;
        let of = (!self.elsewhere.is_heard()).then_some(&known);
        let changed = changed_inodes(&inner.objects, of, before, after).await;
        let keeps = |number: u64| {
            firn_env::planted!("volume.follower_keeps_stale_entries")
                || changed
                    .as_ref()
                    .is_some_and(|changed| known.contains(&number) && !changed.contains(&number))
        };
        let counters = loaded.payload.counters;
        let dropped = inner.lock().adopt(counters, after, loaded.snapshots, keeps);
        self.figures().dropped_entries += dropped as u64;
        self.elsewhere.tell(changed);
    }
}

/// The inodes that differ between two inode maps, those of `known` only if it is given; `None`: too many, or it cannot be told.
pub(crate) async fn changed_inodes(
    objects: &Objects,
    known: Option<&BTreeSet<u64>>,
    before: Option<TreeRoot>,
    after: Option<TreeRoot>,
) -> Option<BTreeSet<u64>> {
    match differing_inodes(objects, known, before, after).await {
        Ok(changed) => Some(changed).filter(|changed| changed.len() <= CHANGED_MAX),
        Err(error) => {
            tracing::debug!(%error, "what differs between two roots cannot be told: anything may");
            None
        }
    }
}

/// The same, where it must be told. If more than [`CHANGED_MAX`] differ, some of them.
///
/// # Errors
/// If a node cannot be read.
pub(crate) async fn differing_inodes(
    objects: &Objects,
    known: Option<&BTreeSet<u64>>,
    before: Option<TreeRoot>,
    after: Option<TreeRoot>,
) -> Result<BTreeSet<u64>, ReadError> {
    let mut walk = Walk {
        objects,
        known,
        changed: BTreeSet::new(),
    };
    walk.compare(before, after).await?;
    Ok(walk.changed)
}

/// Two versions of the inode map, walked from their roots to the inodes that are asked about.
struct Walk<'a> {
    objects: &'a Objects,
    known: Option<&'a BTreeSet<u64>>,
    changed: BTreeSet<u64>,
}

impl Walk<'_> {
    async fn compare(&mut self, before: Option<TreeRoot>, after: Option<TreeRoot>) -> Result<(), ReadError> {
        let level = before.iter().chain(&after).map(|root| root.level).max();
        let Some(level) = level else { return Ok(()) };
        self.node(
            level,
            0,
            before.map(Counterpart::from),
            after.map(Counterpart::from),
        )
        .await
    }

    /// Compares what stands at `index` of `level`.
    fn node(
        &mut self,
        level: u8,
        index: u64,
        before: Option<Counterpart>,
        after: Option<Counterpart>,
    ) -> BoxFuture<'_, Result<(), ReadError>> {
        async move {
            let first = radix::first_leaf(index, level);
            let last = first.saturating_add(radix::last_leaf(level));
            let leads_to_known = self
                .known
                .is_none_or(|known| known.range(first..=last).next().is_some());
            let is_equal = match (before, after) {
                (None, None) => true,
                (Some(before), Some(after)) => {
                    before.level == after.level && before.pointer.uid == after.pointer.uid
                }
                _ => false,
            };
            if is_equal || !leads_to_known || self.changed.len() > CHANGED_MAX {
                return Ok(());
            }
            if level == 0 {
                self.changed.insert(index);
                return Ok(());
            }
            let place = Place {
                inode: INODE_MAP,
                level,
                index,
            };
            let read = async |side: Option<Counterpart>| match side {
                Some(side) => side.object(self.objects, place).await,
                None => Ok(None),
            };
            let objects = [read(before).await?, read(after).await?];
            let slots: BTreeSet<u16> = objects
                .iter()
                .flatten()
                .flat_map(|object| object.header.children.iter().map(|child| child.slot))
                // A lower tree stands at the first slot.
                .chain([0])
                .collect();
            for slot in slots {
                let child = index.saturating_mul(u64::from(radix::FANOUT)) + u64::from(slot);
                let below = |side: Option<Counterpart>, at: usize| {
                    side.and_then(|side| side.below(level, slot, objects[at].as_deref()))
                };
                self.node(level - 1, child, below(before, 0), below(after, 1))
                    .await?;
            }
            Ok(())
        }
        .boxed()
    }
}
