//! A step of gathering: some of the trees gone through in order, and the segments noted in which their objects lie.
//!
//! Nodes and inodes are read, leaves are not: their parents name their segments. Where a retained root has the same pointer, hash and place, as the next
//! newer root, nothing is read below it. Where the step stops it notes the place, as a rekey does (`rekey/walk.rs`).

use crate::{
    checkpointer::CheckpointerState,
    error::VolumeError,
    load::read_checkpoint,
    manifest::Manifest,
    objects::{Object, Objects, ReadError},
    tree_diff::{Counterpart, map_of},
    volume::Inner,
};
use firn_anchor::Root;
use firn_format::{
    Checkpoint, Gathering, GatheringStage, INODE_MAP, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot,
    USAGE_MAP, radix,
};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What an object counts for at least: a small one costs a request, too.
const OBJECT_BYTES_MIN: u64 = 4096;

/// Segments of one step at most, but for those of the node at which it stops: each takes two requests.
const SEGMENTS_MAX: usize = 256;

/// Pointers into a segment that its index is compared with; others of the same segment are as good.
const REFERENCES_MAX: usize = 8;

/// The trees of a branch between two commits.
pub(super) struct Scene {
    pub manifest: Manifest,
    /// The newest proposal of the cleaner that is merged.
    pub merged: u64,
    inode_map: Option<TreeRoot>,
    orphans: BTreeMap<u64, Pointer>,
    usage: Option<TreeRoot>,
    /// Of snapshots: version, inodes, orphans.
    snapshots: Vec<(u64, TreeRoot, Option<TreeRoot>)>,
    /// Kept by the table at takeovers.
    kept: Vec<Root>,
}

/// Reads what the checkpointer has between two checkpoints; `None` of a volume that is another's.
pub(super) async fn look(inner: &Inner) -> Option<Scene> {
    // Held by a checkpoint from freeze to install: what is read here belongs to one commit.
    let own = inner.checkpointer.own()?.lock().await;
    let CheckpointerState {
        ownership,
        orphan_pointers,
        merge,
        usage,
        manifest,
        ..
    } = &*own;
    let state = inner.lock();
    let snapshots = state.snapshots().iter().filter_map(|snapshot| {
        let retained = snapshot.retained?;
        Some((retained.version.0, retained.inode_map, retained.orphans))
    });
    Some(Scene {
        manifest: manifest.clone(),
        merged: merge.merged,
        inode_map: state.inode_map,
        orphans: orphan_pointers.clone(),
        usage: usage.root,
        snapshots: snapshots.collect(),
        kept: ownership
            .tuple()
            .retained
            .iter()
            .map(|retained| retained.root.clone())
            .collect(),
    })
}

/// Pointers into segments.
pub(super) type Found = BTreeMap<SegmentId, BTreeSet<Pointer>>;

/// What a step met.
pub(super) struct Walked {
    pub next: Gathering,
    pub found: Found,
    pub read_bytes: u64,
    /// It stopped at something that cannot be read now.
    pub is_away: bool,
    /// That was all.
    pub is_over: bool,
}

/// Goes on where `from` says until so many bytes are read.
pub(super) async fn step(inner: &Inner, scene: &Scene, from: Gathering, allowed: u64) -> Walked {
    let mut walk = Walk {
        objects: inner.objects.past_the_caches(),
        allowed,
        read_bytes: 0,
        inodes: 0,
        leaf_nodes: 0,
        from: (from.inode, from.block),
        inode: None,
        stopped_at: None,
        is_away: false,
        found: Found::new(),
        unreadable: 0,
        data_bytes: 0,
    };
    let mut next = from;
    let is_over = walk.all(inner, scene, &mut next).await;
    if let Some((inode, block)) = walk.stopped_at {
        (next.inode, next.block) = (inode, block);
    }
    next.unreadable += walk.unreadable;
    if from.stage == GatheringStage::Head {
        next.data_bytes += walk.data_bytes;
    }
    Walked {
        next,
        found: walk.found,
        read_bytes: walk.read_bytes,
        is_away: walk.is_away,
        is_over,
    }
}

struct Walk {
    objects: Objects,
    allowed: u64,
    read_bytes: u64,
    /// Inodes, and nodes above other leaves, that were gone through: the first of each is, whatever it takes to get there.
    inodes: u64,
    leaf_nodes: u64,
    from: (u64, u64),
    /// Whose map is gone through.
    inode: Option<u64>,
    stopped_at: Option<(u64, u64)>,
    is_away: bool,
    found: Found,
    unreadable: u64,
    data_bytes: u64,
}

impl Walk {
    /// Whether all is done.
    async fn all(&mut self, inner: &Inner, scene: &Scene, next: &mut Gathering) -> bool {
        if next.stage == GatheringStage::Head {
            self.head(scene, next).await;
            if self.stopped_at.is_some() {
                return false;
            }
            // Its own commit: a snapshot that is there then was made of a head that is done, or is gone through.
            *next = Gathering {
                stage: GatheringStage::Retained,
                tree: 0,
                root: u64::MAX,
                inode: 0,
                block: 0,
                ..*next
            };
            return false;
        }
        if firn_env::planted!("volume.gathering_forgets_snapshots") {
            return true;
        }
        self.retained(inner, scene, next).await
    }

    async fn head(&mut self, scene: &Scene, next: &mut Gathering) {
        loop {
            match next.tree {
                0 => {
                    if let Some(root) = scene.inode_map {
                        self.tree(INODE_MAP, root, None).await;
                    }
                }
                1 => {
                    for (number, pointer) in scene.orphans.range(self.from.0..) {
                        let place = leaf(ORPHAN_MAP, *number);
                        self.inode(place, *pointer, None).await;
                    }
                }
                _ => {
                    if let Some(root) = scene.usage {
                        self.tree(USAGE_MAP, root, None).await;
                    }
                }
            }
            if self.stopped_at.is_some() || next.tree >= 2 {
                return;
            }
            next.tree += 1;
            self.from = (0, 0);
        }
    }

    /// Whether all retained roots are done.
    async fn retained(&mut self, inner: &Inner, scene: &Scene, next: &mut Gathering) -> bool {
        let mut roots = scene.snapshots.clone();
        for kept in &scene.kept {
            if kept.version.0 <= next.root {
                let pointer = Pointer {
                    uid: kept.uid,
                    location: kept.location,
                };
                self.note(pointer);
                match checkpoint(inner, &self.objects, kept, pointer).await {
                    Ok(Some(read)) => {
                        roots.extend(read.inode_map.map(|map| (kept.version.0, map, read.orphans)));
                    }
                    // Read by each step, and counted by the first.
                    Ok(None) => self.unreadable += u64::from(next.root == u64::MAX),
                    Err(()) => {
                        self.is_away = true;
                        self.stopped_at = Some(self.from);
                        return false;
                    }
                }
            }
        }
        // The newest first; the sort is stable.
        roots.sort_by_key(|(version, ..)| std::cmp::Reverse(*version));
        let mut newer = scene.inode_map;
        let mut at = 0;
        while at < roots.len() {
            let version = roots[at].0;
            let of_it = roots.iter().filter(|(one, ..)| *one == version).count();
            let some = at..at + of_it;
            at += of_it;
            if version > next.root {
                newer = Some(roots[some.start].1);
                continue;
            }
            if version < next.root {
                (next.root, next.tree) = (version, 0);
                self.from = (0, 0);
            }
            for (ordinal, (_, inode_map, orphans)) in roots[some.clone()].iter().enumerate() {
                for (tree, root) in [(INODE_MAP, Some(*inode_map)), (ORPHAN_MAP, *orphans)] {
                    let number = (2 * ordinal) as u8 + u8::from(tree == ORPHAN_MAP);
                    if number < next.tree {
                        continue;
                    }
                    if number > next.tree {
                        next.tree = number;
                        self.from = (0, 0);
                    }
                    if let Some(root) = root {
                        let beside = newer.filter(|_| tree == INODE_MAP);
                        self.tree(tree, root, beside).await;
                    }
                    if self.stopped_at.is_some() {
                        return false;
                    }
                }
            }
            newer = Some(roots[some.start].1);
            match next.root.checked_sub(1) {
                Some(below) => (next.root, next.tree) = (below, 0),
                None => return true,
            }
            self.from = (0, 0);
        }
        true
    }

    fn note(&mut self, pointer: Pointer) {
        let references = self.found.entry(pointer.location.segment).or_default();
        if references.len() < REFERENCES_MAX {
            references.insert(pointer);
        }
    }

    fn is_spent(&self) -> bool {
        self.read_bytes >= self.allowed || self.found.len() >= SEGMENTS_MAX
    }

    /// The first leaf of the tree of `inode` that is not done.
    fn first(&self, inode: u64) -> u64 {
        match self.inode {
            None => self.from.0,
            Some(number) if number == inode && number == self.from.0 => self.from.1,
            Some(_) => 0,
        }
    }

    fn stop(&mut self, leaf: u64) {
        self.stopped_at = Some(match self.inode {
            None => (leaf, 0),
            Some(number) => (number, leaf),
        });
    }

    /// `None`: lost, or the step ends before `leaf`.
    async fn read(&mut self, pointer: &Pointer, place: Place, leaf: u64) -> Option<Arc<Object>> {
        self.read_bytes += u64::from(pointer.location.length).max(OBJECT_BYTES_MIN);
        match self.objects.get(pointer, place).await {
            Ok(object) => Some(object),
            Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => {
                tracing::debug!(%error, "the manifest is gathered further when this can be read");
                self.is_away = true;
                self.stop(leaf);
                None
            }
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
                tracing::error!(%error, "what hangs on this cannot be entered in the manifest");
                self.unreadable += 1;
                None
            }
        }
    }

    /// The same of another root, which is only compared with.
    async fn read_beside(&mut self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        self.read_bytes += u64::from(pointer.location.length).max(OBJECT_BYTES_MIN);
        self.objects.get(pointer, place).await.ok()
    }

    async fn tree(&mut self, inode: u64, root: TreeRoot, newer: Option<TreeRoot>) {
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        let newer = match newer {
            Some(newer) => {
                let down = Counterpart::from(newer).down_to(&self.objects, inode, root.level);
                down.await.ok().flatten()
            }
            None => None,
        };
        self.node(place, root.pointer, newer).await;
    }

    fn node(&mut self, place: Place, own: Pointer, newer: Option<Counterpart>) -> BoxFuture<'_, ()> {
        async move {
            let first = radix::first_leaf(place.index, place.level);
            let last = first.saturating_add(radix::last_leaf(place.level));
            let from = self.first(place.inode);
            if self.stopped_at.is_some() || last < from {
                return;
            }
            let same_place = newer.filter(|newer| newer.level == place.level);
            if same_place.is_some_and(|newer| newer.pointer == own) {
                return;
            }
            let is_of_inodes = matches!(place.inode, INODE_MAP | ORPHAN_MAP);
            if place.level == 1 && !is_of_inodes {
                if self.leaf_nodes > 0 && self.is_spent() {
                    return self.stop(first.max(from));
                }
                self.leaf_nodes += 1;
            }
            self.note(own);
            let Some(node) = self.read(&own, place, first.max(from)).await else {
                return;
            };
            let beside = match same_place {
                Some(newer) => self.read_beside(&newer.pointer, place).await,
                None => None,
            };
            for child in &node.header.children {
                let below = Place {
                    inode: place.inode,
                    level: place.level - 1,
                    index: place.index << radix::FANOUT.trailing_zeros() | u64::from(child.slot),
                };
                let newer = newer.and_then(|newer| newer.below(place.level, child.slot, beside.as_deref()));
                if place.level > 1 {
                    self.node(below, child.pointer, newer).await;
                } else if is_of_inodes {
                    self.inode(below, child.pointer, newer).await;
                } else if newer.is_none_or(|newer| newer.pointer != child.pointer) {
                    self.data_bytes += u64::from(child.pointer.location.length);
                    self.note(child.pointer);
                }
            }
        }
        .boxed()
    }

    /// An inode, and the map below it.
    async fn inode(&mut self, place: Place, own: Pointer, newer: Option<Counterpart>) {
        let number = place.index;
        if self.stopped_at.is_some() || number < self.from.0 {
            return;
        }
        let newer = newer.filter(|newer| newer.level == 0);
        if newer.is_some_and(|newer| newer.pointer == own) {
            return;
        }
        let block = if number == self.from.0 { self.from.1 } else { 0 };
        if self.inodes > 0 && self.is_spent() {
            self.stopped_at = Some((number, block));
            return;
        }
        self.inodes += 1;
        self.note(own);
        let Some(object) = self.read(&own, place, number).await else {
            if self.stopped_at.is_some() {
                self.stopped_at = Some((number, block));
            }
            return;
        };
        let Some(map) = map_of(&object) else { return };
        let beside = match newer {
            Some(newer) => self.read_beside(&newer.pointer, place).await,
            None => None,
        };
        let newer = beside.and_then(|beside| map_of(&beside));
        self.inode = Some(number);
        self.tree(number, map, newer).await;
        self.inode = None;
    }
}

fn leaf(inode: u64, index: u64) -> Place {
    Place {
        inode,
        level: 0,
        index,
    }
}

/// The checkpoint of a root that was kept; `None`: lost. An error: it cannot be read now.
async fn checkpoint(
    inner: &Inner,
    objects: &Objects,
    root: &Root,
    pointer: Pointer,
) -> Result<Option<Checkpoint>, ()> {
    let family = inner.checkpointer.packer.family;
    match read_checkpoint(objects, family, root.version, pointer).await {
        Ok(object) => {
            let header = &object.header;
            Ok(Checkpoint::from_plain_and_children(&header.plain, &header.children).ok())
        }
        Err(VolumeError::CheckpointLost { .. }) => Ok(None),
        Err(_) => Err(()),
    }
}
