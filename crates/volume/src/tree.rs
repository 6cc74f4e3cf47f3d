//! Radix trees of pointers: a file's block map, a directory's page map, the inode map (design §3).
//!
//! A tree belongs to one inode number (real or reserved) and maps indices to the objects at its leaves. Nodes are
//! immutable; an update rewrites the nodes on the paths to what changed and nothing else.

use crate::{
    checkpoint::{CheckpointError, Packer},
    objects::{Object, Objects, ReadError},
};
use bytes::Bytes;
use firn_format::{Child, Kind, Place, Pointer, TreeRoot, radix};
use futures::{FutureExt, future::BoxFuture};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// The place of the node at `level` above leaf `index`.
fn node_place(inode: u64, level: u8, index: u64) -> Place {
    Place {
        inode,
        level,
        index: radix::node_index(index, level),
    }
}

/// Finds the object at leaf `index`; `None` is a hole.
///
/// # Errors
/// If a node on the path cannot be read.
pub async fn lookup(
    objects: &Objects,
    inode: u64,
    root: &TreeRoot,
    index: u64,
) -> Result<Option<Pointer>, ReadError> {
    if radix::levels_for(index) > root.level {
        return Ok(None);
    }
    let mut pointer = root.pointer;
    for level in (1..=root.level).rev() {
        let node = objects.get(&pointer, node_place(inode, level, index)).await?;
        let slot = radix::slot(index, level);
        match node
            .header
            .children
            .binary_search_by_key(&slot, |child| child.slot)
        {
            Ok(found) => pointer = node.header.children[found].pointer,
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(pointer))
}

/// The leaves of `root` in `from..to` that exist, at most `limit`, in order.
///
/// # Errors
/// If a node cannot be read.
pub async fn range(
    objects: &Objects,
    inode: u64,
    root: &TreeRoot,
    from: u64,
    to: u64,
    limit: usize,
) -> Result<Vec<(u64, Pointer)>, ReadError> {
    let node = objects
        .get(&root.pointer, node_place(inode, root.level, 0))
        .await?;
    let mut walk = RangeWalk {
        objects,
        inode,
        span: from..to,
        limit,
        nodes_only: false,
        found: Vec::new(),
    };
    walk.collect(node, root.level, 0).await?;
    Ok(walk.found)
}

/// Loads the nodes above the leaves in `from..to`, for whoever asks for these next.
///
/// # Errors
/// If a node cannot be read.
pub async fn load_nodes(
    objects: &Objects,
    inode: u64,
    root: &TreeRoot,
    from: u64,
    to: u64,
) -> Result<(), ReadError> {
    let node = objects
        .get(&root.pointer, node_place(inode, root.level, 0))
        .await?;
    let mut walk = RangeWalk {
        objects,
        inode,
        span: from..to,
        limit: usize::MAX,
        nodes_only: true,
        found: Vec::new(),
    };
    walk.collect(node, root.level, 0).await
}

/// Nodes loaded side by side: with what is below them, those of 128 MiB of a file at the default block size.
const NODES_AT_ONCE: usize = 32;

struct RangeWalk<'a> {
    objects: &'a Objects,
    inode: u64,
    span: Range<u64>,
    limit: usize,
    /// The leaves themselves are not wanted.
    nodes_only: bool,
    found: Vec<(u64, Pointer)>,
}

impl RangeWalk<'_> {
    /// Takes the leaves below a node at `level` whose first leaf is `first`.
    fn collect(&mut self, node: Arc<Object>, level: u8, first: u64) -> BoxFuture<'_, Result<(), ReadError>> {
        async move {
            let width = leaves_below(level - 1);
            let start_of = |slot: u16| width.checked_mul(u64::from(slot))?.checked_add(first);
            let in_span = |child: &Child| {
                let start = start_of(child.slot)?;
                let is_in = start < self.span.end && start.saturating_add(width - 1) >= self.span.start;
                is_in.then_some((start, child.pointer))
            };
            let children: Vec<(u64, Pointer)> = node.header.children.iter().filter_map(in_span).collect();
            if level == 1 && self.nodes_only {
                return Ok(());
            }
            if level == 1 {
                let room = self.limit - self.found.len();
                self.found.extend(children.into_iter().take(room));
                return Ok(());
            }
            // Who wants only the first few leaves mostly finds them below the first node.
            let at_once = if self.limit == usize::MAX {
                NODES_AT_ONCE
            } else {
                1
            };
            for some in children.chunks(at_once) {
                if self.found.len() >= self.limit {
                    break;
                }
                let wanted: Vec<_> = some
                    .iter()
                    .map(|(start, pointer)| (*pointer, node_place(self.inode, level - 1, *start)))
                    .collect();
                let nodes = self.objects.get_all(&wanted).await?;
                for (node, (start, _)) in nodes.into_iter().zip(some) {
                    self.collect(node, level - 1, *start).await?;
                }
            }
            Ok(())
        }
        .boxed()
    }
}

/// How many leaves a node at `level` covers (saturating: 128^9 is 2^63).
fn leaves_below(level: u8) -> u64 {
    u64::from(radix::FANOUT)
        .checked_pow(u32::from(level))
        .unwrap_or(u64::MAX)
}

/// Changes to one tree.
pub struct Update {
    /// New objects at leaves, or holes.
    pub leaves: BTreeMap<u64, Option<Pointer>>,
    /// Leaves at and beyond this index are dropped first.
    pub keep_below: u64,
    /// If a node is damaged that has to be rewritten, leaves below this index that it leads to are taken to exist, and are
    /// lost with it; there is none beyond.
    pub lost_below: u64,
}

/// What an update did.
pub struct Updated {
    pub root: Option<TreeRoot>,
    /// Leaves that exist now and did not (dropped ranges are not counted).
    pub added: u64,
    /// Leaves named in the update that existed and no longer do.
    pub removed: u64,
}

/// Applies `update` to the tree of `inode`, packing the new nodes.
///
/// # Errors
/// If a new node cannot be packed. (The store's absence is waited out; for damage see [`Update::lost_below`].)
pub async fn update(
    packer: &mut Packer,
    inode: u64,
    root: Option<TreeRoot>,
    update: Update,
) -> Result<Updated, CheckpointError> {
    let highest = update
        .leaves
        .iter()
        .rev()
        .find(|(_, leaf)| leaf.is_some())
        .map(|(index, _)| *index);
    let needed = highest.map_or(1, radix::levels_for);
    let old = root.map(|root| (root.pointer, root.level));
    let mut level = root.map_or(needed, |root| root.level);
    let mut walk = Walk {
        packer,
        inode,
        keep_below: update.keep_below,
        lost_below: update.lost_below,
        added: 0,
        removed: 0,
    };
    // A higher tree has the old root at its leftmost place; the nodes between are made where they are needed.
    level = level.max(needed);
    let leaves: Vec<_> = update.leaves.into_iter().collect();
    // Clearing a leaf that a low tree cannot even reach changes nothing.
    let reachable = leaves.partition_point(|(index, _)| radix::levels_for(*index) <= level);
    let pointer = walk.node(level, 0, old, &leaves[..reachable]).await?;
    Ok(Updated {
        root: pointer.map(|pointer| TreeRoot { pointer, level }),
        added: walk.added,
        removed: walk.removed,
    })
}

/// A node as it was, and its level, which may be lower than that of the place it is to take: a tree that grows has its old
/// root there, below nodes with one child that nobody has made yet. They are packed once their other children are known,
/// because what was just packed cannot be read back before it is uploaded.
type Old = (Pointer, u8);

struct Walk<'a> {
    packer: &'a mut Packer,
    inode: u64,
    keep_below: u64,
    lost_below: u64,
    added: u64,
    removed: u64,
}

impl Walk<'_> {
    async fn pack(
        &mut self,
        level: u8,
        first: u64,
        children: Vec<Child>,
    ) -> Result<Pointer, CheckpointError> {
        let place = node_place(self.inode, level, first);
        self.packer
            .pack(Kind::Node, place, Bytes::new(), children, Bytes::new())
            .await
    }

    /// Notes that a child of the node at `level` is dropped, with all below it.
    fn release_child(&mut self, level: u8, start: u64, (pointer, stored): Old) {
        let place = node_place(self.inode, stored, start);
        if level == 1 {
            self.packer.usage().release(place, pointer.location);
        } else {
            self.packer.usage().release_below(place, pointer);
        }
    }

    /// Notes that a node gives way to another at its place.
    fn release_node(&mut self, level: u8, first: u64, old: Option<Old>) {
        if let Some((pointer, stored)) = old
            && stored == level
        {
            let place = node_place(self.inode, level, first);
            self.packer.usage().release(place, pointer.location);
        }
    }

    /// The children of a node that cannot be read. What is written now was acknowledged and must not be lost with them, nor
    /// may they turn into holes, which read as zeros. So each becomes a pointer to the damaged node itself: no object belongs
    /// at two places, so whoever follows it is told of the damage, and a write heals what it covers.
    fn lost_children(&self, level: u8, first: u64, damaged: Pointer) -> BTreeMap<u16, Old> {
        let width = leaves_below(level - 1);
        (0..radix::FANOUT)
            .take_while(|slot| first.saturating_add(width.saturating_mul(u64::from(*slot))) < self.lost_below)
            .map(|slot| (slot, (damaged, level - 1)))
            .collect()
    }

    /// Packs what is missing between an old node and its place at `level`.
    async fn raise(&mut self, (mut pointer, stored): Old, level: u8) -> Result<Pointer, CheckpointError> {
        for above in stored + 1..=level {
            pointer = self.pack(above, 0, vec![Child { slot: 0, pointer }]).await?;
        }
        Ok(pointer)
    }

    /// Rewrites the node at `level` whose first leaf is `first`; returns its new pointer, or `None` if nothing is left.
    fn node<'b>(
        &'b mut self,
        level: u8,
        first: u64,
        old: Option<Old>,
        leaves: &'b [(u64, Option<Pointer>)],
    ) -> BoxFuture<'b, Result<Option<Pointer>, CheckpointError>> {
        async move {
            let width = leaves_below(level - 1);
            let ends_behind_cut =
                first.saturating_add(width.saturating_mul(u64::from(radix::FANOUT)) - 1) >= self.keep_below;
            if leaves.is_empty() && (old.is_none() || !ends_behind_cut) {
                return match old {
                    None => Ok(None),
                    Some(old) => self.raise(old, level).await.map(Some),
                };
            }
            let mut children: BTreeMap<u16, Old> = match old {
                None => BTreeMap::new(),
                Some((_, stored)) if stored < level => old.map(|old| (0, old)).into_iter().collect(),
                Some((pointer, _)) => {
                    let (packer, place) = (&*self.packer, node_place(self.inode, level, first));
                    match packer.patiently(|| packer.objects().get(&pointer, place)).await {
                        Ok(node) => node
                            .header
                            .children
                            .iter()
                            .map(|child| (child.slot, (child.pointer, level - 1)))
                            .collect(),
                        Err(error) => {
                            tracing::error!(%place, %error, "what this node led to is lost, but for what changes now");
                            self.lost_children(level, first, pointer)
                        }
                    }
                }
            };
            let before = children.clone();
            let start_of = |slot: u16| first.saturating_add(width.saturating_mul(u64::from(slot)));
            let keep_below = self.keep_below;
            children.retain(|slot, child| {
                let kept = start_of(*slot) < keep_below;
                if !kept {
                    self.release_child(level, start_of(*slot), *child);
                }
                kept
            });
            // The child that straddles the cut is rewritten even if no leaf in it is named.
            let straddling = children
                .keys()
                .next_back()
                .copied()
                .filter(|slot| level > 1 && start_of(*slot).saturating_add(width - 1) >= self.keep_below);
            let mut rest = leaves;
            let mut visited_straddling = straddling.is_none();
            while let Some((index, _)) = rest.first() {
                let slot = radix::slot(*index, level);
                let start = start_of(slot);
                let count = rest.partition_point(|(index, _)| *index - start < width);
                let (these, others) = rest.split_at(count);
                rest = others;
                visited_straddling |= straddling == Some(slot);
                let old_child = children.get(&slot).copied();
                let new_child = if level == 1 {
                    let leaf = these[0].1;
                    if let Some(old) = old_child
                        && leaf != Some(old.0)
                    {
                        self.release_child(level, *index, old);
                    }
                    self.added += u64::from(old_child.is_none() && leaf.is_some());
                    self.removed += u64::from(old_child.is_some() && leaf.is_none());
                    leaf
                } else {
                    self.node(level - 1, start, old_child, these).await?
                };
                match new_child {
                    Some(pointer) => children.insert(slot, (pointer, level - 1)),
                    None => children.remove(&slot),
                };
            }
            if let Some(slot) = straddling
                && !visited_straddling
            {
                let old_child = children.get(&slot).copied();
                match self.node(level - 1, start_of(slot), old_child, &[]).await? {
                    Some(pointer) => children.insert(slot, (pointer, level - 1)),
                    None => children.remove(&slot),
                };
            }
            if children.is_empty() {
                self.release_node(level, first, old);
                return Ok(None);
            }
            if let Some(old) = old
                && children == before
            {
                return self.raise(old, level).await.map(Some);
            }
            let mut packed = Vec::with_capacity(children.len());
            for (slot, child) in children {
                let pointer = self.raise(child, level - 1).await?;
                packed.push(Child { slot, pointer });
            }
            self.release_node(level, first, old);
            self.pack(level, first, packed).await.map(Some)
        }
        .boxed()
    }
}
