//! Taking over what the cleaner moved.
//!
//! The cleaner offers a relocated copy of a checkpoint that it found as the head: the same uids, other places. Meanwhile the
//! volume went on. The two trees are walked side by side (BlueSky §4.3, Fig. 4, by uids instead of a list of changes):
//!
//! | at a place | then |
//! |---|---|
//! | the same uid | the cleaner's location, for all below it |
//! | different, a node or an inode with a map | go down, and write the node anew if something below it moved |
//! | different, a leaf; or the cleaner has nothing there | keep our own |
//!
//! Only a uid makes an object (so nothing wrong can come in), but a wrong *location* would lead nowhere. So a proposal counts
//! only if its base is a commit of this branch's own history, and some of the adopted subtrees are followed down to a leaf and
//! verified before the commit (`samples.rs`). Where nodes differ, the places of leaves come from the cleaner's forwarding records
//! (`moves.rs`), which are smaller than its nodes. What cannot be read is left alone: nothing is adopted, and forwarding
//! records go on leading from old places to new ones.
//!
//! The walk belongs to the checkpointer and runs between build and commit of a checkpoint that is made anyway, so an idle
//! volume never asks for proposals (I9). It is cut into steps of [`STEP_OBJECTS`]; the checkpoint that ends the last one says
//! that the proposal is merged (`cleaner_sequence`).

mod memory;
pub(crate) mod moves;
mod samples;
pub(crate) mod state;

use crate::{
    checkpoint::{BuiltCheckpoint, CheckpointError, Packer, ToPack},
    checkpointer::CheckpointerState,
    manifest::Manifest,
    objects::{Objects, ReadError},
    state::{Retained, Snapshot},
    tree::{self, Update},
    tree_diff::{Counterpart, map_of},
    volume::Inner,
};
use bytes::Bytes;
use firn_format::{
    Checkpoint, Child, INODE_MAP, Kind, Location, MANIFEST, ORPHAN_MAP, Place, Pointer, TreeRoot, USAGE_MAP,
    UsageLeaf, checkpoint_place, radix,
};
use futures::{FutureExt, future::BoxFuture};
pub(crate) use memory::forget_old_places;
use moves::Moves;
use samples::Samples;
use state::{Step, UnderWay};
use std::collections::BTreeMap;

/// Nodes and inodes looked at in one step: 16 MiB of nodes at most, a fraction of a checkpoint's time. A file is never split.
const STEP_OBJECTS: usize = 2000;

/// Why a step did not happen. The checkpoint goes on without it.
enum NotMerged {
    /// The proposal is no good.
    Refused(String),
    /// Something cannot be read now.
    Later(String),
    /// The checkpoint itself cannot go on.
    Failed(CheckpointError),
}

impl From<ReadError> for NotMerged {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. } => Self::Later(error.to_string()),
            ReadError::Corrupt { .. } | ReadError::Missing { .. } => Self::Refused(error.to_string()),
        }
    }
}

impl From<CheckpointError> for NotMerged {
    fn from(error: CheckpointError) -> Self {
        Self::Failed(error)
    }
}

/// One step, if there is anything to merge: changes what was built and the snapshots' roots, or nothing.
///
/// # Errors
/// Only what ends the checkpoint.
pub(crate) async fn step(
    inner: &Inner,
    own: &mut CheckpointerState,
    packer: &mut Packer,
    built: &mut BuiltCheckpoint,
    snapshots: &mut [Snapshot],
) -> Result<Option<Step>, CheckpointError> {
    let note_refusal = |own: &mut CheckpointerState, sequence: u64, why: String| {
        tracing::warn!(
            sequence,
            why,
            "the cleaner's proposal is refused; nothing was adopted and nothing is lost"
        );
        own.merge.refused = sequence;
        own.merge.under_way = None;
        inner.checkpointer.merge_status().refused = Some(format!("proposal {sequence}: {why}"));
    };
    let sequence = match begin(inner, own).await {
        Ok(None) => return Ok(None),
        Ok(Some(sequence)) => sequence,
        Err((sequence, NotMerged::Refused(why))) => {
            note_refusal(own, sequence, why);
            return Ok(None);
        }
        Err((_, NotMerged::Later(why))) => {
            tracing::debug!(why, "the cleaner's proposal cannot be read now");
            return Ok(None);
        }
        Err((_, NotMerged::Failed(error))) => return Err(error),
    };
    inner.env.fault_point("merge.before_step").await;
    // What was just built is read again by the walk.
    packer.finish().await?;
    let under_way = own.merge.under_way.as_mut().expect("just begun");
    let maps = (&mut own.usage.root, &mut own.manifest);
    match walk(inner, packer, built, snapshots, under_way, maps).await {
        Ok(next_inode) => Ok(Some(Step { sequence, next_inode })),
        Err(NotMerged::Refused(why)) => {
            note_refusal(own, sequence, why);
            Ok(None)
        }
        Err(NotMerged::Later(why)) => {
            tracing::debug!(why, "a step of merging cannot be made now");
            Ok(None)
        }
        Err(NotMerged::Failed(error)) => Err(error),
    }
}

/// Finds a proposal to merge; returns its number once it is under way.
async fn begin(inner: &Inner, own: &mut CheckpointerState) -> Result<Option<u64>, (u64, NotMerged)> {
    if let Some(under_way) = &own.merge.under_way {
        return Ok(Some(under_way.sequence));
    }
    let now = inner.env.now();
    if own
        .merge
        .looked
        .is_some_and(|looked| now.since(looked) < inner.config.merge_every)
    {
        return Ok(None);
    }
    own.merge.looked = Some(now);
    let proposal = match inner.anchor.proposal(inner.volume).await {
        Ok(Some((proposal, _))) => proposal,
        Ok(None) => return Ok(None),
        Err(error) => return Err((0, NotMerged::Later(error.to_string()))),
    };
    let sequence = proposal.sequence;
    if sequence <= own.merge.merged || sequence == own.merge.refused {
        return Ok(None);
    }
    let is_ours = own.history.contains(&(proposal.base_version, proposal.base_uid));
    if !is_ours && !firn_env::planted!("volume.merge_any_base") {
        let why = format!(
            "its base, version {} with checkpoint {}, is none of this volume's latest commits",
            proposal.base_version.0, proposal.base_uid
        );
        return Err((sequence, NotMerged::Refused(why)));
    }
    let pointer = Pointer {
        uid: proposal.base_uid,
        location: proposal.location,
    };
    let object = inner
        .objects
        .get_alone(&pointer, checkpoint_place(proposal.base_version))
        .await
        .map_err(|error| (sequence, error.into()))?;
    let theirs = Checkpoint::from_plain_and_children(&object.header.plain, &object.header.children)
        .map_err(|error| (sequence, NotMerged::Refused(error.to_string())))?;
    own.merge.under_way = Some(UnderWay {
        sequence,
        theirs,
        next_inode: 0,
        moves: Moves::new(proposal.mover, &proposal.usage),
        proposed: proposal.usage,
    });
    Ok(Some(sequence))
}

async fn walk(
    inner: &Inner,
    packer: &mut Packer,
    built: &mut BuiltCheckpoint,
    snapshots: &mut [Snapshot],
    under_way: &mut UnderWay,
    (usage, manifest): (&mut Option<TreeRoot>, &mut Manifest),
) -> Result<Option<u64>, NotMerged> {
    let theirs = &under_way.theirs;
    let mut walk = Walk {
        objects: inner.objects.clone(),
        packer,
        careless: firn_env::planted!("volume.merge_different_uids"),
        left: STEP_OBJECTS,
        from: under_way.next_inode,
        stopped_at: None,
        samples: Samples::default(),
        adopted: 0,
        rewritten: 0,
        moves: &mut under_way.moves,
    };
    let mut inode_map = built.inode_map;
    if let (Some(own), Some(other)) = (inode_map, theirs.inode_map) {
        inode_map = Some(walk.tree(INODE_MAP, own, other).await?);
    }
    let (mut orphans, mut orphan_pointers) = (built.orphans, built.orphan_pointers.clone());
    let mut roots: Vec<(usize, Retained)> = Vec::new();
    let (mut usage_map, mut manifest_root) = (*usage, manifest.root());
    if walk.stopped_at.is_none() {
        if let (Some(own), Some(other)) = (usage_map, theirs.usage) {
            usage_map = Some(walk.tree(USAGE_MAP, own, other).await?);
        }
        let of_theirs = theirs.manifest.as_ref().and_then(|manifest| manifest.root);
        if let (Some(own), Some(other)) = (manifest_root, of_theirs) {
            manifest_root = Some(walk.tree(MANIFEST, own, other).await?);
        }
        if let Some(other) = theirs.orphans {
            walk.orphans(&mut orphan_pointers, &other).await?;
            orphans = orphan_map(walk.packer, &orphan_pointers).await?;
        }
        for (at, snapshot) in snapshots.iter().enumerate() {
            let theirs = theirs.snapshots.iter().find(|one| one.id == snapshot.id);
            let (Some(theirs), Some(mut retained)) = (theirs, snapshot.retained) else {
                continue;
            };
            walk.adopt_root(INODE_MAP, &mut retained.inode_map, &theirs.inode_map);
            if let (Some(own), Some(other)) = (&mut retained.orphans, &theirs.orphans) {
                walk.adopt_root(ORPHAN_MAP, own, other);
            }
            if Some(retained) != snapshot.retained {
                roots.push((at, retained));
            }
        }
    }
    walk.samples.verify(inner).await?;
    // Nothing of it was kept before this line.
    let (stopped_at, adopted, rewritten) = (walk.stopped_at, walk.adopted, walk.rewritten);
    *usage = usage_map;
    if let Some(root) = manifest_root {
        manifest.set_root(root);
    }
    (built.inode_map, built.orphans, built.orphan_pointers) = (inode_map, orphans, orphan_pointers);
    for (at, retained) in roots {
        snapshots[at].retained = Some(retained);
    }
    let mut status = inner.checkpointer.merge_status();
    status.adopted += adopted;
    status.rewritten += rewritten;
    Ok(stopped_at)
}

/// The tree of what is unlinked and open, written anew.
pub(crate) async fn orphan_map(
    packer: &mut Packer,
    orphans: &BTreeMap<u64, Pointer>,
) -> Result<Option<TreeRoot>, CheckpointError> {
    let leaves = orphans
        .iter()
        .map(|(number, pointer)| (*number, Some(*pointer)))
        .collect();
    let change = Update {
        leaves,
        keep_below: u64::MAX,
        lost_below: 0,
    };
    Ok(tree::update(packer, ORPHAN_MAP, None, change).await?.root)
}

struct Walk<'a> {
    objects: Objects,
    packer: &'a mut Packer,
    /// A planted bug: the cleaner's object is taken whether or not it is ours.
    careless: bool,
    left: usize,
    from: u64,
    stopped_at: Option<u64>,
    samples: Samples,
    adopted: u64,
    rewritten: u64,
    moves: &'a mut Moves,
}

impl Walk<'_> {
    /// Our tree with the places of theirs.
    async fn tree(&mut self, inode: u64, own: TreeRoot, theirs: TreeRoot) -> Result<TreeRoot, NotMerged> {
        let place = Place {
            inode,
            level: own.level,
            index: 0,
        };
        let theirs = Counterpart::from(theirs)
            .down_to(&self.objects, inode, own.level)
            .await?;
        let pointer = self.place(place, own.pointer, theirs).await?;
        Ok(TreeRoot { pointer, ..own })
    }

    fn adopt(&mut self, place: Place, own: Pointer, theirs: Pointer) -> Pointer {
        if own.location != theirs.location {
            self.adopted += 1;
            self.samples.draw(place, own, theirs);
        }
        theirs
    }

    fn adopt_root(&mut self, inode: u64, own: &mut TreeRoot, theirs: &TreeRoot) {
        if own.pointer.uid == theirs.pointer.uid && own.level == theirs.level {
            let place = Place {
                inode,
                level: own.level,
                index: 0,
            };
            own.pointer = self.adopt(place, own.pointer, theirs.pointer);
        }
    }

    /// What is to stand at `place`: ours, or the same at its new place, or ours written anew around what moved.
    fn place<'b>(
        &'b mut self,
        place: Place,
        own: Pointer,
        theirs: Option<Counterpart>,
    ) -> BoxFuture<'b, Result<Pointer, NotMerged>> {
        async move {
            let Some(theirs) = theirs else {
                return Ok(own);
            };
            let same = theirs.pointer.uid == own.uid || (self.careless && place.level == 0);
            if theirs.level == place.level && same {
                return Ok(self.adopt(place, own, theirs.pointer));
            }
            let in_a_map_of_inodes = matches!(place.inode, INODE_MAP | ORPHAN_MAP);
            if place.level == 0 {
                if !in_a_map_of_inodes || place.index < self.from {
                    return Ok(own);
                }
                return self.inode(place, own, theirs.pointer).await;
            }
            if theirs.level == place.level && UsageLeaf::counts(place) {
                self.moves.note_unused(theirs.pointer.location);
            }
            if in_a_map_of_inodes {
                let first = radix::first_leaf(place.index, place.level);
                if self.stopped_at.is_some()
                    || first.saturating_add(radix::last_leaf(place.level)) < self.from
                {
                    return Ok(own);
                }
                if self.left == 0 {
                    self.stopped_at = Some(first.max(self.from));
                    return Ok(own);
                }
                self.left -= 1;
            }
            let node = self.objects.get(&own, place).await?;
            let mut children = node.header.children.clone();
            if place.level == 1
                && !in_a_map_of_inodes
                && !matches!(place.inode, USAGE_MAP | MANIFEST)
                && let Some(moved) = self.moves.of_leaves(&self.objects, &children).await?
            {
                return self.leaves_moved(place, own, children, moved).await;
            }
            let other = if theirs.level == place.level {
                Some(self.objects.get_alone(&theirs.pointer, place).await?)
            } else {
                None
            };
            for child in &mut children {
                let below = Place {
                    inode: place.inode,
                    level: place.level - 1,
                    index: place.index << 7 | u64::from(child.slot),
                };
                let beside = theirs.below(place.level, child.slot, other.as_deref());
                child.pointer = self.place(below, child.pointer, beside).await?;
            }
            if children == node.header.children {
                return Ok(own);
            }
            self.rewrite(place, own, children).await
        }
        .boxed()
    }

    async fn rewrite(
        &mut self,
        place: Place,
        own: Pointer,
        children: Vec<Child>,
    ) -> Result<Pointer, NotMerged> {
        self.rewritten += 1;
        self.packer.usage().release(place, own.location);
        let packed = self
            .packer
            .pack(Kind::Node, place, Bytes::new(), children, Bytes::new())
            .await?;
        Ok(packed)
    }

    /// A node above leaves that changed since the base: each leaf that lay in a retired segment lies elsewhere now.
    async fn leaves_moved(
        &mut self,
        place: Place,
        own: Pointer,
        mut children: Vec<Child>,
        moved: BTreeMap<u16, Location>,
    ) -> Result<Pointer, NotMerged> {
        if moved.is_empty() {
            return Ok(own);
        }
        for child in &mut children {
            if let Some(location) = moved.get(&child.slot) {
                let below = Place {
                    inode: place.inode,
                    level: 0,
                    index: place.index << 7 | u64::from(child.slot),
                };
                let theirs = Pointer {
                    location: *location,
                    ..child.pointer
                };
                child.pointer = self.adopt(below, child.pointer, theirs);
            }
        }
        self.rewrite(place, own, children).await
    }

    /// An inode that changed since the base: its map may still be the same in part.
    async fn inode(&mut self, place: Place, own: Pointer, theirs: Pointer) -> Result<Pointer, NotMerged> {
        if self.stopped_at.is_some() {
            return Ok(own);
        }
        if self.left == 0 {
            self.stopped_at = Some(place.index);
            return Ok(own);
        }
        self.left -= 1;
        let object = self.objects.get(&own, place).await?;
        let Some(map) = map_of(&object) else {
            return Ok(own);
        };
        let other = self.objects.get_alone(&theirs, place).await?;
        self.moves.note_unused(theirs.location);
        let Some(their_map) = map_of(&other) else {
            return Ok(own);
        };
        let merged = self.tree(place.index, map, their_map).await?;
        if merged == map {
            return Ok(own);
        }
        self.rewritten += 1;
        self.packer.usage().release(place, own.location);
        let inode = ToPack {
            kind: Kind::Inode,
            place,
            plain: object.header.plain.clone(),
            children: vec![Child {
                slot: 0,
                pointer: merged.pointer,
            }],
            payload: object.payload.clone(),
        };
        let packed = self.packer.pack_all(vec![inode]).await?;
        Ok(packed[0])
    }

    /// Unlinked but open inodes are few: each is looked up.
    async fn orphans(
        &mut self,
        pointers: &mut BTreeMap<u64, Pointer>,
        theirs: &TreeRoot,
    ) -> Result<(), NotMerged> {
        self.from = 0;
        self.left = usize::MAX;
        for (number, pointer) in pointers.iter_mut() {
            let place = Place {
                inode: ORPHAN_MAP,
                level: 0,
                index: *number,
            };
            let found = tree::lookup(&self.objects, ORPHAN_MAP, theirs, *number).await?;
            let theirs = found.map(|pointer| Counterpart { pointer, level: 0 });
            *pointer = self.place(place, *pointer, theirs).await?;
        }
        Ok(())
    }
}

/// A step was committed.
pub(crate) fn committed(inner: &Inner, own: &mut CheckpointerState, step: &Step) {
    match step.next_inode {
        None => {
            own.merge.merged = step.sequence;
            if let Some(done) = own.merge.under_way.take() {
                inner.objects.note_relocation(done.moves.into_relocation());
            }
            inner.checkpointer.merge_status().merged += 1;
            tracing::info!(sequence = step.sequence, "what the cleaner moved is taken over");
        }
        Some(next_inode) => {
            if let Some(under_way) = &mut own.merge.under_way {
                under_way.next_inode = next_inode;
            }
        }
    }
}
