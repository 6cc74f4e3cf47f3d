//! A step of a rekey: some of the trees gone through in order, and what is old in them packed anew.
//!
//! Children are sealed before their parents, so below a node of the target's epoch there may be old objects, and below an old node
//! there are only old ones: each leaf is read once to know its epoch, and each node above a leaf that changed is written anew
//! with it. Where the step stops it notes the place and changes nothing from there on; the nodes above are written as they are
//! then, and again by the step that goes on.
//!
//! What lies in the disk cache is read from there and put there anew, so a working set stays cached; what does not is read past the
//! caches and written past them, so that the rest of the volume does not push the working set out.

use super::{
    Plan, finish,
    state::{Cursor, RekeyCounts, Tree},
};
use crate::{
    checkpoint::{BuiltCheckpoint, CheckpointError, Packer, PackerContext, ToPack},
    checkpointer::CheckpointerState,
    merge::orphan_map,
    objects::{Object, Objects, ReadError},
    tree_diff::map_of,
    volume::Inner,
};
use bytes::Bytes;
use firn_format::{
    Child, INODE_MAP, KeyEpoch, Kind, MANIFEST, ORPHAN_MAP, Place, Pointer, TreeRoot, USAGE_MAP, radix,
};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;

/// Leaves read and sealed together: 1 MiB of blocks at the default size.
const LEAVES_TOGETHER: usize = 32;

/// What an object counts for at least: a small one costs a look, too.
const OBJECT_BYTES_MIN: u64 = 4096;

/// Makes the step that `plan` allows: changes what was built, and the plan.
///
/// # Errors
/// Only what ends the checkpoint. What cannot be read now ends the step; what cannot be read at all is counted and passed.
pub(crate) async fn step(
    inner: &Inner,
    own: &mut CheckpointerState,
    packer: &mut Packer,
    built: &mut BuiltCheckpoint,
    plan: &mut Plan,
) -> Result<(), CheckpointError> {
    let Some(under_way) = &plan.state.under_way else {
        return Ok(());
    };
    let (target, mut cursor) = (under_way.target, under_way.cursor);
    inner.env.fault_point("rekey.before_step").await;
    // What was just built is read again by the walk.
    packer.finish().await?;
    let past_the_caches = inner.objects.past_the_caches();
    let context = PackerContext {
        objects: past_the_caches.clone(),
        ..inner.checkpointer.packer.clone()
    };
    let mut uncached = Packer::new(context, packer.birth());
    let mut walk = Walk {
        objects: &inner.objects,
        past_the_caches: &past_the_caches,
        packer: &mut *packer,
        uncached: &mut uncached,
        target,
        left_bytes: plan.step_bytes,
        moved_bytes: 0,
        counts: under_way.counts,
        from: cursor,
        inode: None,
        stopped_at: None,
        contents: Vec::new(),
    };
    let before = (built.inode_map, built.orphans, built.orphan_pointers.clone());
    loop {
        walk.from = cursor;
        match cursor.tree {
            Tree::Inodes => {
                if let Some(root) = &mut built.inode_map {
                    *root = walk.tree(INODE_MAP, *root).await?;
                }
            }
            Tree::Orphans => {
                walk.orphans(built).await?;
            }
            Tree::Usage => {
                if let Some(root) = &mut own.usage.root {
                    *root = walk.tree(USAGE_MAP, *root).await?;
                }
            }
            Tree::Manifest => {
                if let Some(root) = own.manifest.root() {
                    own.manifest.set_root(walk.tree(MANIFEST, root).await?);
                }
            }
        }
        let next = match (walk.stopped_at, cursor.tree) {
            (Some((leaf, block)), tree) => {
                cursor = Cursor { tree, leaf, block };
                break;
            }
            (None, Tree::Inodes) => Tree::Orphans,
            (None, Tree::Orphans) => Tree::Usage,
            (None, Tree::Usage) if own.manifest.root().is_some() => Tree::Manifest,
            (None, tree @ (Tree::Usage | Tree::Manifest)) => {
                cursor.tree = tree;
                break;
            }
        };
        cursor = Cursor {
            tree: next,
            ..Cursor::default()
        };
    }
    let is_over = walk.stopped_at.is_none();
    let (counts, moved_bytes) = (walk.counts, walk.moved_bytes);
    let contents = std::mem::take(&mut walk.contents);
    uncached.finish().await?;
    packer.usage().absorb(uncached.take_usage());
    plan.moved_bytes = moved_bytes;
    if firn_env::planted!("volume.rekey_cursor_before_data") {
        (built.inode_map, built.orphans, built.orphan_pointers) = before;
    } else {
        plan.contents = contents;
    }
    let under_way = plan.state.under_way.as_mut().expect("it is under way");
    (under_way.counts, under_way.cursor) = (counts, cursor);
    if is_over {
        finish(plan, packer.birth(), inner.env.wall().as_millis());
    }
    inner.env.fault_point("rekey.after_step").await;
    Ok(())
}

struct Walk<'a> {
    objects: &'a Objects,
    past_the_caches: &'a Objects,
    packer: &'a mut Packer,
    /// Packs what is not kept in the caches.
    uncached: &'a mut Packer,
    target: KeyEpoch,
    left_bytes: u64,
    moved_bytes: u64,
    counts: RekeyCounts,
    from: Cursor,
    /// Whose map is gone through.
    inode: Option<u64>,
    /// The leaf and the block at which the next step goes on.
    stopped_at: Option<(u64, u64)>,
    contents: Vec<(u64, TreeRoot)>,
}

impl Walk<'_> {
    async fn tree(&mut self, inode: u64, root: TreeRoot) -> Result<TreeRoot, CheckpointError> {
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        let pointer = self.node(place, root.pointer).await?;
        Ok(TreeRoot { pointer, ..root })
    }

    /// The first leaf of the tree of `inode` that is not done.
    fn first(&self, inode: u64) -> u64 {
        match self.inode {
            None => self.from.leaf,
            Some(number) if number == inode && number == self.from.leaf => self.from.block,
            Some(_) => 0,
        }
    }

    /// Nothing from this leaf on is done by this step.
    fn stop(&mut self, leaf: u64) {
        self.stopped_at = Some(match self.inode {
            None => (leaf, 0),
            Some(number) => (number, leaf),
        });
    }

    fn charge(&mut self, pointer: &Pointer) {
        let bytes = u64::from(pointer.location.length).max(OBJECT_BYTES_MIN);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        self.moved_bytes += bytes;
    }

    fn is_old(&self, object: &Object) -> bool {
        object.header.seal.key_epoch < self.target
    }

    /// `None`: damaged, or the step ends before `leaf`.
    fn readable(&mut self, found: Result<Arc<Object>, ReadError>, leaf: u64) -> Option<Arc<Object>> {
        match found {
            Ok(object) => Some(object),
            Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => {
                tracing::debug!(%error, "the rekey goes on when this can be read");
                self.stop(leaf);
                None
            }
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
                tracing::warn!(%error, "what cannot be read cannot be sealed anew");
                self.counts.unreadable += 1;
                None
            }
        }
    }

    fn note_resealed(&mut self, place: Place, old: &Pointer) {
        self.counts.resealed_objects += 1;
        self.counts.resealed_bytes += u64::from(old.location.length);
        self.packer.usage().release(place, old.location);
    }

    /// What is to stand at `place`, the place of a node.
    fn node(&mut self, place: Place, own: Pointer) -> BoxFuture<'_, Result<Pointer, CheckpointError>> {
        async move {
            let first = radix::first_leaf(place.index, place.level);
            let last = first.saturating_add(radix::last_leaf(place.level));
            let from = self.first(place.inode);
            if self.stopped_at.is_some() || last < from {
                return Ok(own);
            }
            let found = self.objects.get(&own, place).await;
            let Some(node) = self.readable(found, first.max(from)) else {
                return Ok(own);
            };
            let mut children = node.header.children.clone();
            let below = |slot: u16| Place {
                inode: place.inode,
                level: place.level - 1,
                index: place.index << radix::FANOUT.trailing_zeros() | u64::from(slot),
            };
            if place.level > 1 {
                for child in &mut children {
                    child.pointer = self.node(below(child.slot), child.pointer).await?;
                }
            } else if matches!(place.inode, INODE_MAP | ORPHAN_MAP) {
                for child in &mut children {
                    child.pointer = self.inode(below(child.slot), child.pointer).await?;
                }
            } else {
                self.leaves(place, &mut children).await?;
            }
            let is_done = self.stopped_at.is_none();
            if children == node.header.children && !(is_done && self.is_old(&node)) {
                return Ok(own);
            }
            self.note_resealed(place, &own);
            self.packer
                .pack(Kind::Node, place, Bytes::new(), children, Bytes::new())
                .await
        }
        .boxed()
    }

    /// An inode, and the map below it.
    async fn inode(&mut self, place: Place, own: Pointer) -> Result<Pointer, CheckpointError> {
        let number = place.index;
        if self.stopped_at.is_some() || number < self.from.leaf {
            return Ok(own);
        }
        let block = if number == self.from.leaf {
            self.from.block
        } else {
            0
        };
        if self.left_bytes == 0 {
            self.stopped_at = Some((number, block));
            return Ok(own);
        }
        let found = self.objects.get(&own, place).await;
        let Some(object) = self.readable(found, number) else {
            if let Some((_, stopped_block)) = &mut self.stopped_at {
                *stopped_block = block;
            }
            return Ok(own);
        };
        self.charge(&own);
        let mut children = object.header.children.clone();
        if let Some(map) = map_of(&object) {
            self.inode = Some(number);
            let walked = self.tree(number, map).await;
            self.inode = None;
            let walked = walked?;
            if walked != map {
                self.contents.push((number, walked));
                children = vec![Child {
                    slot: 0,
                    pointer: walked.pointer,
                }];
            }
        }
        let is_done = self.stopped_at.is_none();
        if children == object.header.children && !(is_done && self.is_old(&object)) {
            return Ok(own);
        }
        self.note_resealed(place, &own);
        let inode = ToPack {
            kind: Kind::Inode,
            place,
            plain: object.header.plain.clone(),
            children,
            payload: object.payload.clone(),
        };
        Ok(self.packer.pack_all(vec![inode]).await?[0])
    }

    /// The leaves below a node of a map.
    async fn leaves(&mut self, node: Place, children: &mut [Child]) -> Result<(), CheckpointError> {
        let from = self.first(node.inode);
        let index_of = |child: &Child| node.index << radix::FANOUT.trailing_zeros() | u64::from(child.slot);
        let begin = children.partition_point(|child| index_of(child) < from);
        for some in children[begin..].chunks_mut(LEAVES_TOGETHER) {
            if self.stopped_at.is_some() {
                return Ok(());
            }
            if self.left_bytes == 0 {
                self.stop(index_of(&some[0]));
                return Ok(());
            }
            let wanted: Vec<(Pointer, Place)> = some
                .iter()
                .map(|child| {
                    let place = Place {
                        inode: node.inode,
                        level: 0,
                        index: index_of(child),
                    };
                    (child.pointer, place)
                })
                .collect();
            let is_cached = matches!(node.inode, USAGE_MAP | MANIFEST)
                || wanted
                    .iter()
                    .any(|(pointer, _)| self.objects.may_have_cached(pointer));
            let objects = if is_cached {
                self.objects
            } else {
                self.past_the_caches
            };
            let found: Vec<_> = match objects.get_all(&wanted).await {
                Ok(found) => found.into_iter().map(Ok).collect(),
                // One by one, to tell what can be read from what cannot.
                Err(_) => {
                    let each = wanted.iter().map(|(pointer, place)| objects.get(pointer, *place));
                    futures::future::join_all(each).await
                }
            };
            let (mut at, mut batch) = (Vec::new(), Vec::new());
            for (number, (found, (pointer, place))) in found.into_iter().zip(&wanted).enumerate() {
                if self.stopped_at.is_some() {
                    break;
                }
                let Some(object) = self.readable(found, place.index) else {
                    continue;
                };
                self.charge(pointer);
                self.counts.passed_bytes += object.payload.len() as u64;
                if !self.is_old(&object) {
                    continue;
                }
                self.note_resealed(*place, pointer);
                at.push(number);
                batch.push(ToPack {
                    kind: object.header.kind,
                    place: *place,
                    plain: object.header.plain.clone(),
                    children: object.header.children.clone(),
                    payload: object.payload.clone(),
                });
            }
            let packer = if is_cached {
                &mut *self.packer
            } else {
                &mut *self.uncached
            };
            let packed = packer.pack_all(batch).await?;
            for (number, pointer) in at.into_iter().zip(packed) {
                some[number].pointer = pointer;
            }
        }
        Ok(())
    }

    /// What is unlinked while it is open: few, and their tree is written anew with every checkpoint.
    async fn orphans(&mut self, built: &mut BuiltCheckpoint) -> Result<(), CheckpointError> {
        let mut changed = false;
        for (number, pointer) in built.orphan_pointers.range_mut(self.from.leaf..) {
            let place = Place {
                inode: ORPHAN_MAP,
                level: 0,
                index: *number,
            };
            let sealed = self.inode(place, *pointer).await?;
            changed |= sealed != *pointer;
            *pointer = sealed;
        }
        if changed {
            built.orphans = orphan_map(self.packer, &built.orphan_pointers).await?;
        }
        Ok(())
    }
}
