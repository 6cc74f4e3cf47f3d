//! The usage map: how many bytes of each segment the head needs, a hint by which the cleaner picks its victims (design §6).
//!
//! Nothing is ever counted by a scan. A checkpoint notes what it does: each object it packs adds its bytes where it lies, each
//! pointer it replaces or drops takes them away ([`UsageChanges`], filled by the packer and by the trees' updates). The sums
//! go into the leaves of the map before the root is committed, so map and trees are of one commit, and a restart or a takeover
//! goes on from what it finds in the root: what a replay changes is noted again when it is packed.
//!
//! Three things are not known exactly, and each is bounded:
//!
//! | what | then |
//! |---|---|
//! | a dropped map (a deleted file): which segments its blocks lie in | its nodes are read, some with each checkpoint; of too many small maps, all is thought to lie where the root of the map lies |
//! | a checkpoint touches more leaves than are worth writing | the rest waits in memory for the next one, and is forgotten by a crash |
//! | where the cleaner put things | its proposal says it, unproved (`Proposal::usage`); taken over with the proposal. What was released after its base was moved for nothing: its records say where to, and what is not remembered is taken off evenly |
//!
//! So a figure may be wrong. Too low costs the cleaner a look, too high leaves garbage until the cleaner, which looks at a few
//! segments of every run whatever their figures say, comes to it. A branch that began without a map (a clone) stays without.

mod changes;

pub use changes::UsageChanges;

use crate::{
    checkpoint::{CheckpointError, Packer, ToPack},
    merge::moves::Moves,
    objects::{Objects, ReadError},
    tree::{self, Update},
    tree_diff::map_of,
};
use bytes::Bytes;
use changes::{Dropped, RELEASED_MAX};
use firn_anchor::UsageChange;
use firn_format::{
    INODE_MAP, Kind, Location, MAX_SEGMENT_BYTES, ORPHAN_MAP, Place, SegmentId, TreeRoot, USAGE_MAP,
    UsageLeaf, Version, radix, usage_slot,
};
use std::collections::{BTreeMap, VecDeque};

/// Leaves written by one checkpoint: each speaks of 512 MiB of log and costs about 2 KB with the nodes above it, so 1 % of a
/// checkpoint of 4 MiB. A volume whose changes touch up to 8 GiB of log at a time has no other error than the first of the table.
const LEAVES_A_CHECKPOINT: usize = 16;

/// Nodes of dropped maps read by one checkpoint: of 256 MiB of data, in four round trips.
const READ_A_CHECKPOINT: usize = 64;
const READ_TOGETHER: usize = 16;

/// The map of a volume, kept by its checkpointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageMap {
    /// The committed map, with the cleaner's places once a merge took them over.
    pub root: Option<TreeRoot>,
    /// Whether there is a map. It is never begun in the middle: figures that leave out what was there before are lies.
    is_kept: bool,
    waiting: UsageChanges,
    /// What the latest commits released, the oldest first.
    released: VecDeque<(Version, Location)>,
}

/// What a proposal that was merged tells of segments.
pub(crate) struct ProposedUsage<'a> {
    pub changes: &'a [UsageChange],
    /// The version of which it speaks.
    pub base: Version,
    /// Where what it moved went.
    pub moves: &'a mut Moves,
}

impl UsageMap {
    /// The map of a new, empty volume.
    pub fn of_new_volume() -> Self {
        Self {
            is_kept: true,
            ..Self::default()
        }
    }

    /// The map that a root has, and what was changed since.
    pub fn found(root: Option<TreeRoot>, since: UsageChanges) -> Self {
        Self {
            root,
            is_kept: root.is_some(),
            waiting: since,
            released: VecDeque::new(),
        }
    }

    /// The same, with what waits, on the map of another root of the branch.
    pub fn on(&self, root: Option<TreeRoot>) -> Self {
        Self {
            root,
            is_kept: root.is_some(),
            ..self.clone()
        }
    }

    /// Packs the leaves that changed; `packer` has noted all that the checkpoint changes, `proposed` is what the cleaner says of a
    /// proposal that this checkpoint merges. Returns the new map's root.
    ///
    /// # Errors
    /// Only what ends the checkpoint. A map that cannot be read is given up: the cleaner then looks for itself.
    pub async fn write(
        &mut self,
        packer: &mut Packer,
        proposed: Option<ProposedUsage<'_>>,
    ) -> Result<Option<TreeRoot>, CheckpointError> {
        let changes = packer.take_usage();
        if !self.is_kept {
            return Ok(None);
        }
        self.waiting.absorb(changes);
        self.read_dropped(packer.objects()).await;
        self.remember_released(packer.birth());
        packer.finish_map(USAGE_MAP).await?;
        if let Some(proposed) = proposed
            && let Err(error) = self.take_over(packer, proposed).await
        {
            tracing::debug!(%error, "what the cleaner proposes for its segments is not taken over");
        }
        match self.update(packer).await {
            Ok(root) => self.root = root,
            Err(CheckpointError::Read(error)) => {
                tracing::warn!(%error, "the usage map is lost; cleaning costs more from now on, and no data is concerned");
                *self = Self::default();
            }
            Err(error) => return Err(error),
        }
        self.waiting.forget_smallest();
        Ok(self.root)
    }

    fn remember_released(&mut self, version: Version) {
        let released = std::mem::take(&mut self.waiting.released);
        self.released
            .extend(released.into_iter().map(|location| (version, location)));
        while self.released.len() > RELEASED_MAX {
            self.released.pop_front();
        }
    }

    /// Takes over what the cleaner tells. It speaks of its base: what the head has released since then in a retired segment was
    /// moved for nothing, and lies in one of those that it was moved to.
    async fn take_over(&mut self, packer: &Packer, proposed: ProposedUsage<'_>) -> Result<(), ReadError> {
        let ProposedUsage { changes, base, moves } = proposed;
        let since = self.released.iter().filter(|(version, _)| *version > base);
        let since = since.map(|(_, location)| *location);
        let mut known = 0;
        for new in moves.unused(packer.objects(), since).await? {
            self.waiting.change(new.segment, -i64::from(new.length));
            known += i128::from(new.length);
        }
        let mut leaves: BTreeMap<u64, UsageLeaf> = BTreeMap::new();
        let (mut released, mut moved) = (0_i128, 0_i128);
        // A segment has no more bytes, whatever it is said to have.
        let most = MAX_SEGMENT_BYTES as i64;
        let bounded = changes.iter().map(|change| UsageChange {
            bytes: change.bytes.clamp(-most, most),
            ..*change
        });
        for change in bounded.clone() {
            let Some((index, slot)) = usage_slot(change.segment) else {
                continue;
            };
            if change.bytes > 0 {
                moved += i128::from(change.bytes);
            } else if change.is_retired {
                if let std::collections::btree_map::Entry::Vacant(vacant) = leaves.entry(index) {
                    vacant.insert(self.leaf(packer, index).await);
                }
                let waiting = self.waiting.bytes.get(&change.segment).copied().unwrap_or(0);
                let live = i64::from(leaves[&index].live_bytes[slot]).saturating_add(waiting);
                released += i128::from(change.bytes.unsigned_abs()) - i128::from(live.max(0));
                self.waiting.change(change.segment, live.saturating_neg());
            } else {
                self.waiting.change(change.segment, change.bytes);
            }
        }
        for change in bounded.filter(|change| change.bytes > 0) {
            let share = (released - known).clamp(0, moved) * i128::from(change.bytes) / moved;
            let share = i64::try_from(share).expect("at most what was moved there");
            self.waiting.change(change.segment, change.bytes - share);
        }
        Ok(())
    }

    async fn update(&mut self, packer: &mut Packer) -> Result<Option<TreeRoot>, CheckpointError> {
        let mut by_leaf: BTreeMap<u64, Vec<(SegmentId, usize, i64)>> = BTreeMap::new();
        for (segment, bytes) in &self.waiting.bytes {
            if let Some((index, slot)) = usage_slot(*segment)
                && *bytes != 0
            {
                by_leaf.entry(index).or_default().push((*segment, slot, *bytes));
            }
        }
        let mut ranked: Vec<(u64, u64)> = by_leaf
            .iter()
            .map(|(index, changes)| {
                let bytes = changes
                    .iter()
                    .map(|(_, _, bytes)| bytes.unsigned_abs())
                    .fold(0, u64::saturating_add);
                (bytes, *index)
            })
            .collect();
        ranked.sort_unstable_by_key(|(bytes, index)| (std::cmp::Reverse(*bytes), *index));
        ranked.truncate(LEAVES_A_CHECKPOINT);
        let mut leaves = BTreeMap::new();
        let (mut indices, mut batch, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for (_, index) in &ranked {
            let mut leaf = self.leaf(packer, *index).await;
            for (segment, slot, bytes) in &by_leaf[index] {
                let live = i64::from(leaf.live_bytes[*slot]).saturating_add(*bytes);
                leaf.live_bytes[*slot] = live.clamp(0, i64::from(u32::MAX)) as u32;
                done.push(*segment);
            }
            if leaf.is_empty() {
                leaves.insert(*index, None);
                continue;
            }
            indices.push(*index);
            batch.push(ToPack {
                kind: Kind::Block,
                place: UsageLeaf::place(*index),
                plain: leaf.to_plain(),
                children: Vec::new(),
                payload: Bytes::new(),
            });
        }
        let packed = packer.pack_all(batch).await?;
        leaves.extend(indices.into_iter().zip(packed.into_iter().map(Some)));
        if leaves.is_empty() {
            return Ok(self.root);
        }
        let change = Update {
            leaves,
            keep_below: u64::MAX,
            lost_below: 0,
        };
        let updated = tree::update(packer, USAGE_MAP, self.root, change).await?;
        for segment in done {
            self.waiting.bytes.remove(&segment);
        }
        self.waiting
            .bytes
            .retain(|segment, bytes| *bytes != 0 && usage_slot(*segment).is_some());
        Ok(updated.root)
    }

    /// The leaf as committed. What is damaged or what this build cannot read is counted anew: it is a hint.
    async fn leaf(&self, packer: &Packer, index: u64) -> UsageLeaf {
        let Some(root) = &self.root else {
            return UsageLeaf::default();
        };
        let objects = packer.objects();
        let read = packer.patiently(|| async {
            match tree::lookup(objects, USAGE_MAP, root, index).await? {
                Some(pointer) => objects.get(&pointer, UsageLeaf::place(index)).await.map(Some),
                None => Ok(None),
            }
        });
        match read.await {
            Ok(object) => object
                .and_then(|object| UsageLeaf::from_plain(&object.header.plain).ok())
                .unwrap_or_default(),
            Err(error) => {
                tracing::error!(%error, "a part of the usage map is lost, and counted anew");
                UsageLeaf::default()
            }
        }
    }

    /// Reads some nodes of what was dropped. Whatever cannot be read now waits; what cannot be read at all is let go of.
    async fn read_dropped(&mut self, objects: &Objects) {
        let mut left = READ_A_CHECKPOINT;
        while left > 0 && !self.waiting.dropped.is_empty() {
            // The newest first: depth first, so that a large tree does not become a long list.
            let count = self.waiting.dropped.len().min(READ_TOGETHER).min(left);
            let some = self.waiting.dropped.split_off(self.waiting.dropped.len() - count);
            left -= count;
            let reads = some.iter().map(|one| objects.get(&one.pointer, one.place));
            let read = futures::future::join_all(reads).await;
            for (one, object) in some.into_iter().zip(read) {
                let object = match object {
                    Ok(object) => object,
                    Err(ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. }) => {
                        self.waiting.dropped.push(one);
                        left = 0;
                        continue;
                    }
                    Err(ReadError::Corrupt { .. } | ReadError::Missing { .. }) => continue,
                };
                self.waiting.release(one.place, one.pointer.location);
                let Place { inode, level, index } = one.place;
                if level == 0 {
                    if matches!(inode, INODE_MAP | ORPHAN_MAP)
                        && let Some(map) = map_of(&object)
                    {
                        self.waiting.dropped.push(Dropped {
                            place: Place {
                                inode: index,
                                level: map.level,
                                index: 0,
                            },
                            pointer: map.pointer,
                        });
                    }
                    continue;
                }
                for child in &object.header.children {
                    let place = Place {
                        inode,
                        level: level - 1,
                        index: index << radix::FANOUT.trailing_zeros() | u64::from(child.slot),
                    };
                    self.waiting.release_below(place, child.pointer);
                }
            }
        }
    }
}
