//! A model of an engine: one branch, its owner, and what each of its versions must show.
//!
//! It keeps the promises of decision 0031 and nothing more: roots refer to new objects or to objects of their predecessor, a
//! clone is made of a retained root, merging takes a proposal's places for everything whose uid is the same.

use super::{
    packer::Packer,
    reader::{Reader, Shown},
    world::{FAMILY, World, run},
};
use bytes::Bytes;
use firn_anchor::{Anchor, OwnerId, Ownership, WriterTenure};
use firn_format::{
    Checkpoint, Child, EncodedObject, ForkPoint, INODE_MAP, Kind, Location, ORPHAN_MAP, Place, Pointer,
    SnapshotRoot, TreeRoot, USAGE_MAP, Uid, UsageLeaf, Version, VolumeId, checkpoint_place, radix,
    usage_slot,
};
use firn_store::ObjectKey;
use std::collections::BTreeMap;

/// The trees of one version.
#[derive(Clone, Default)]
pub struct Trees {
    pub inode_map: Option<TreeRoot>,
    pub orphans: Option<TreeRoot>,
    pub usage: Option<TreeRoot>,
}

pub struct Edge {
    pub volume: VolumeId,
    pub anchor: Anchor,
    pub ownership: Ownership,
    pub packer: Packer,
    pub version: Version,
    pub root: Option<Pointer>,
    pub trees: Trees,
    pub snapshots: Vec<SnapshotRoot>,
    pub fork: Option<ForkPoint>,
    pub cleaner_sequence: u64,
    /// What each version that was committed must show.
    pub shown: BTreeMap<Version, Shown>,
    /// The root of each version that was committed.
    pub history: BTreeMap<Version, Uid>,
    /// Changes not committed yet: per file, blocks written (their bytes) or removed.
    pub dirty: BTreeMap<u64, BTreeMap<u64, Option<usize>>>,
    pub removed: Vec<u64>,
    pub unlinked: Vec<u64>,
    /// Numbers of the files there are; a number is never given twice.
    pub files: Vec<u64>,
    /// Files unlinked and still open.
    pub open: Vec<u64>,
    next_inode: u64,
    /// How wrong the usage map is: 0 right, 1 all zero, 2 far too much, 3 no map at all.
    pub lies: u64,
    /// Bytes written to take over what cleaners proposed.
    pub merge_bytes: u64,
}

/// A checkpoint whose segments are up and whose root is not committed.
pub struct Prepared {
    pub keys: Vec<ObjectKey>,
    root: firn_anchor::Root,
    trees: Trees,
    snapshots: Vec<SnapshotRoot>,
    cleaner_sequence: u64,
    shown: Shown,
    pub volume: VolumeId,
}

type Changes = BTreeMap<u64, Option<Pointer>>;

impl Edge {
    /// The owner of a new volume, without a root.
    pub fn create(world: &World, volume: VolumeId, owner: u8, segment_bytes: usize) -> Self {
        let anchor = world.anchor();
        run(anchor.create_volume(volume, &volume.to_string())).unwrap();
        let ownership = run(anchor.acquire(volume, OwnerId([owner; 16]), "edge")).unwrap();
        Self::over(world, anchor, ownership, segment_bytes)
    }

    fn over(world: &World, anchor: Anchor, ownership: Ownership, segment_bytes: usize) -> Self {
        let tenure = WriterTenure::Owner {
            volume: ownership.volume(),
            epoch: ownership.epoch(),
        };
        let writer = run(anchor.next_writer_for(tenure)).unwrap();
        Self {
            volume: ownership.volume(),
            anchor,
            ownership,
            packer: Packer::new(&world.dice, writer, segment_bytes),
            version: Version(0),
            root: None,
            trees: Trees::default(),
            snapshots: Vec::new(),
            fork: None,
            cleaner_sequence: 0,
            shown: BTreeMap::new(),
            history: BTreeMap::new(),
            dirty: BTreeMap::new(),
            removed: Vec::new(),
            unlinked: Vec::new(),
            files: (16..21).collect(),
            open: Vec::new(),
            next_inode: 21,
            lies: 0,
            merge_bytes: 0,
        }
    }

    /// Removes a file for good, unlinks one that stays open, or lets go of one that was unlinked.
    pub fn remove(&mut self, which: u64, keep_open: bool) {
        if keep_open || self.open.is_empty() || which.is_multiple_of(2) {
            let at = which as usize % self.files.len();
            let number = std::mem::replace(&mut self.files[at], self.next_inode);
            self.next_inode += 1;
            if keep_open {
                self.unlinked.push(number);
                self.open.push(number);
            } else {
                self.removed.push(number);
            }
        } else {
            self.removed.push(self.open.swap_remove(0));
        }
    }

    /// The same volume under a new incarnation: a restart, or another edge that took it over. Memory is empty; what was
    /// prepared is lost.
    pub fn reopen(self, world: &World, owner: u8, takeover: bool, segment_bytes: usize) -> Self {
        let id = OwnerId([owner; 16]);
        let ownership = if takeover {
            run(self.anchor.takeover(self.volume, id, "edge"))
                .unwrap()
                .ownership
        } else {
            run(self.anchor.acquire(self.volume, id, "edge")).unwrap()
        };
        let root = ownership.root().cloned();
        let mut edge = Self::over(world, self.anchor.clone(), ownership, segment_bytes);
        edge.shown = self.shown;
        edge.history = self.history;
        edge.lies = self.lies;
        edge.fork = self.fork;
        // A restart gives out numbers of its own, so that none is given twice.
        edge.next_inode = self.next_inode + 100;
        edge.files = self.files;
        edge.open = self.open;
        edge.merge_bytes = self.merge_bytes;
        if let Some(root) = root {
            let pointer = Pointer {
                uid: root.uid,
                location: root.location,
            };
            let checkpoint = Reader::of_both(world)
                .checkpoint(&pointer, root.version)
                .expect("the head can be read");
            edge.adopt_root(pointer, &checkpoint);
        }
        edge
    }

    fn adopt_root(&mut self, pointer: Pointer, checkpoint: &Checkpoint) {
        self.root = Some(pointer);
        self.version = checkpoint.version;
        self.trees = Trees {
            inode_map: checkpoint.inode_map,
            orphans: checkpoint.orphans,
            usage: checkpoint.usage,
        };
        self.snapshots = checkpoint.snapshots.clone();
        self.cleaner_sequence = checkpoint.cleaner_sequence;
    }

    /// A clone of what `origin` retains at `version`; its first root is not committed yet.
    pub fn clone_of(
        world: &World,
        origin: &Edge,
        version: Version,
        trees: Trees,
        volume: VolumeId,
        segment_bytes: usize,
    ) -> Self {
        let mut edge = Self::create(world, volume, 99, segment_bytes);
        edge.fork = Some(ForkPoint {
            volume: origin.volume,
            version,
            uid: origin.history[&version],
        });
        edge.trees = trees;
        edge.next_inode = origin.next_inode;
        edge.files = origin.files.clone();
        edge.open = origin.open.clone();
        edge.shown.insert(Version(0), origin.shown[&version].clone());
        edge
    }

    pub fn write(&mut self, inode: u64, index: u64, bytes: usize) {
        self.dirty.entry(inode).or_default().insert(index, Some(bytes));
    }

    pub fn punch(&mut self, inode: u64, index: u64) {
        self.dirty.entry(inode).or_default().insert(index, None);
    }

    /// Builds and uploads the next checkpoint; `merge` takes the newest proposal over if it can be.
    pub fn prepare(
        &mut self,
        world: &World,
        merge: bool,
        snapshot: Option<u64>,
        drop: Option<u64>,
    ) -> Prepared {
        let mut reader = Reader::of_both(world);
        let mut cleaner_sequence = self.cleaner_sequence;
        let mut trees = self.trees.clone();
        if merge && let Some(sequence) = self.merge(&mut reader, &mut trees) {
            cleaner_sequence = sequence;
        }
        // What merging rewrote is read again below.
        let mut keys = run(self.packer.upload(&world.store));
        let mut reader = Reader::of_both(world);
        let version = self.version.next();
        let mut shown = self.shown.get(&self.version).cloned().unwrap_or_default();
        let orphans = trees.orphans.map_or(Vec::new(), |root| {
            reader.leaves(ORPHAN_MAP, &root).expect("orphans can be read")
        });
        let mut orphans: BTreeMap<u64, Pointer> = orphans.into_iter().collect();
        let mut changes = Changes::new();
        for (inode, blocks) in std::mem::take(&mut self.dirty) {
            let old = self.inode_pointer(&mut reader, &trees, inode);
            let map = old.and_then(|pointer| self.map_of(&mut reader, pointer, Place::of_inode(inode)));
            let mut leaves = Changes::new();
            for (index, bytes) in blocks {
                let place = Place {
                    inode,
                    level: 0,
                    index,
                };
                leaves.insert(
                    index,
                    bytes.map(|bytes| {
                        let plain = Bytes::new();
                        self.packer
                            .pack(Kind::Block, place, version, plain, Vec::new(), bytes)
                    }),
                );
                match leaves[&index] {
                    Some(pointer) => shown.insert((inode, index), pointer.uid),
                    None => shown.remove(&(inode, index)),
                };
            }
            let map = self.update(&mut reader, inode, map, leaves, version);
            let place = Place::of_inode(inode);
            changes.insert(inode, Some(self.pack_inode(place, map, version)));
        }
        for inode in std::mem::take(&mut self.unlinked) {
            let pointer = changes
                .get(&inode)
                .copied()
                .flatten()
                .or_else(|| self.inode_pointer(&mut reader, &trees, inode));
            if let Some(pointer) = pointer {
                let map = self.map_of(&mut reader, pointer, Place::of_inode(inode));
                let place = Place {
                    inode: ORPHAN_MAP,
                    level: 0,
                    index: inode,
                };
                orphans.insert(inode, self.pack_inode(place, map, version));
                changes.insert(inode, None);
            }
        }
        for inode in std::mem::take(&mut self.removed) {
            changes.insert(inode, None);
            orphans.remove(&inode);
            shown.retain(|(number, _), _| *number != inode);
        }
        trees.inode_map = self.update(&mut reader, INODE_MAP, trees.inode_map, changes, version);
        let orphans = orphans
            .into_iter()
            .map(|(number, pointer)| (number, Some(pointer)));
        trees.orphans = self.update(&mut reader, ORPHAN_MAP, None, orphans.collect(), version);
        trees.usage = self.usage(&mut reader, &trees, version);
        let mut snapshots = self.snapshots.clone();
        if let Some(drop) = drop {
            snapshots.retain(|snapshot| snapshot.id != drop);
        }
        if let (Some(id), Some(inode_map)) = (snapshot, trees.inode_map) {
            snapshots.push(SnapshotRoot {
                id,
                version,
                created_ms: 0,
                protected_until_ms: 0,
                inode_map,
                orphans: trees.orphans,
            });
        }
        let checkpoint = Checkpoint {
            family: FAMILY,
            volume: self.volume,
            version,
            epoch: self.ownership.epoch(),
            writer: self.packer.writer,
            previous: self.root.map(|root| root.uid),
            fork: self.fork,
            inode_map: trees.inode_map,
            orphans: trees.orphans,
            usage: trees.usage,
            snapshots: snapshots.clone(),
            cleaner_sequence,
            committed_at_ms: world.env.wall().as_millis(),
            manifest: None,
        };
        let (plain, children) = checkpoint.to_plain_and_children();
        let place = checkpoint_place(version);
        let pointer = self
            .packer
            .pack(Kind::Checkpoint, place, version, plain, children, 40);
        keys.extend(run(self.packer.upload(&world.store)));
        let commit_id = world.env.random_bytes();
        let root = self
            .ownership
            .next_root(pointer.uid, pointer.location, version, commit_id, 0);
        Prepared {
            keys,
            root,
            trees,
            snapshots,
            cleaner_sequence,
            shown,
            volume: self.volume,
        }
    }

    /// Commits what was prepared.
    pub fn commit(&mut self, prepared: Prepared) {
        let root = prepared.root;
        run(self.anchor.commit(&mut self.ownership, root.clone())).unwrap();
        self.version = root.version;
        self.root = Some(Pointer {
            uid: root.uid,
            location: root.location,
        });
        self.trees = prepared.trees;
        self.snapshots = prepared.snapshots;
        self.cleaner_sequence = prepared.cleaner_sequence;
        self.shown.insert(root.version, prepared.shown);
        self.history.insert(root.version, root.uid);
    }

    pub(super) fn load(&mut self, reader: &mut Reader, pointer: Pointer, place: Place) -> EncodedObject {
        let object = reader
            .read(&pointer, place)
            .expect("what the head has can be read");
        (*object).clone().into_encoded()
    }

    fn inode_pointer(&mut self, reader: &mut Reader, trees: &Trees, inode: u64) -> Option<Pointer> {
        let root = trees.inode_map?;
        let leaves = reader
            .leaves(INODE_MAP, &root)
            .expect("the inode map can be read");
        leaves
            .into_iter()
            .find(|(number, _)| *number == inode)
            .map(|(_, pointer)| pointer)
    }

    fn map_of(&mut self, reader: &mut Reader, pointer: Pointer, place: Place) -> Option<TreeRoot> {
        // What was packed a moment ago is not in the bucket yet.
        let object = match self.packer.nodes.get(&pointer.uid) {
            Some(object) if pointer.location.segment.writer == self.packer.writer => object.clone(),
            _ => self.load(reader, pointer, place),
        };
        let child = object.header.children.first()?;
        Some(TreeRoot {
            pointer: child.pointer,
            level: object.header.plain[0],
        })
    }

    fn pack_inode(&mut self, place: Place, map: Option<TreeRoot>, version: Version) -> Pointer {
        let plain = Bytes::copy_from_slice(&[map.map_or(0, |map| map.level)]);
        let children = map.map(|map| Child {
            slot: 0,
            pointer: map.pointer,
        });
        let children = children.into_iter().collect();
        self.packer.pack(Kind::Inode, place, version, plain, children, 60)
    }

    /// Rewrites the paths to what changed.
    pub fn update(
        &mut self,
        reader: &mut Reader,
        inode: u64,
        root: Option<TreeRoot>,
        changes: Changes,
        version: Version,
    ) -> Option<TreeRoot> {
        let highest = changes.keys().next_back().copied().unwrap_or(0);
        let needed = radix::levels_for(highest);
        let mut root = root;
        while let Some(low) = root.filter(|root| root.level < needed) {
            let child = Child {
                slot: 0,
                pointer: low.pointer,
            };
            let level = low.level + 1;
            let place = Place {
                inode,
                level,
                index: 0,
            };
            let pointer = self
                .packer
                .pack(Kind::Node, place, version, Bytes::new(), vec![child], 16);
            root = Some(TreeRoot { pointer, level });
        }
        let level = root.map_or(needed, |root| root.level);
        let pointer = self.build(
            reader,
            Place {
                inode,
                level,
                index: 0,
            },
            root.map(|root| root.pointer),
            &changes,
            version,
        )?;
        Some(TreeRoot { pointer, level })
    }

    fn build(
        &mut self,
        reader: &mut Reader,
        place: Place,
        old: Option<Pointer>,
        changes: &Changes,
        version: Version,
    ) -> Option<Pointer> {
        let first = radix::first_leaf(place.index, place.level);
        let last = first + radix::last_leaf(place.level);
        if changes.range(first..=last).next().is_none() {
            return old;
        }
        let mut children: BTreeMap<u16, Pointer> = BTreeMap::new();
        if let Some(old) = old {
            let node = match self.packer.nodes.get(&old.uid) {
                Some(node) if old.location.segment.writer == self.packer.writer => node.clone(),
                _ => self.load(reader, old, place),
            };
            children.extend(
                node.header
                    .children
                    .iter()
                    .map(|child| (child.slot, child.pointer)),
            );
        }
        let before = children.clone();
        let mut slots: Vec<u16> = changes
            .range(first..=last)
            .map(|(index, _)| radix::slot(*index, place.level))
            .collect();
        slots.dedup();
        for slot in slots {
            let index = place.index * 128 + u64::from(slot);
            let child = if place.level == 1 {
                changes[&index]
            } else {
                let below = Place {
                    level: place.level - 1,
                    index,
                    ..place
                };
                self.build(reader, below, children.get(&slot).copied(), changes, version)
            };
            match child {
                Some(pointer) => children.insert(slot, pointer),
                None => children.remove(&slot),
            };
        }
        if children.is_empty() {
            return None;
        }
        if old.is_some() && children == before {
            return old;
        }
        let children = children
            .into_iter()
            .map(|(slot, pointer)| Child { slot, pointer });
        let children = children.collect();
        Some(
            self.packer
                .pack(Kind::Node, place, version, Bytes::new(), children, 16),
        )
    }

    /// The usage map, written anew: what the head's pointers lead to.
    fn usage(&mut self, reader: &mut Reader, trees: &Trees, version: Version) -> Option<TreeRoot> {
        if self.lies == 3 {
            return None;
        }
        let mut live: BTreeMap<u64, UsageLeaf> = BTreeMap::new();
        let mut count = |location: Location| {
            if let Some((index, slot)) = usage_slot(location.segment) {
                live.entry(index).or_default().live_bytes[slot] += location.length;
            }
        };
        for (map, root) in [(INODE_MAP, trees.inode_map), (ORPHAN_MAP, trees.orphans)] {
            let Some(root) = root else { continue };
            let mut open = vec![(
                root.pointer,
                Place {
                    inode: map,
                    level: root.level,
                    index: 0,
                },
            )];
            while let Some((pointer, place)) = open.pop() {
                count(pointer.location);
                if place.level == 0 && place.inode >= 16 {
                    continue;
                }
                let object = match self.packer.nodes.get(&pointer.uid) {
                    Some(node) if pointer.location.segment.writer == self.packer.writer => node.clone(),
                    _ => self.load(reader, pointer, place),
                };
                for child in &object.header.children {
                    let below = if place.level > 0 {
                        Place {
                            inode: place.inode,
                            level: place.level - 1,
                            index: place.index * 128 + u64::from(child.slot),
                        }
                    } else {
                        Place {
                            inode: place.index,
                            level: object.header.plain[0],
                            index: 0,
                        }
                    };
                    open.push((child.pointer, below));
                }
            }
        }
        let mut changes = Changes::new();
        for (index, mut leaf) in live {
            match self.lies {
                1 => leaf = UsageLeaf::default(),
                2 => leaf
                    .live_bytes
                    .iter_mut()
                    .for_each(|live| *live = live.saturating_mul(3)),
                _ => {}
            }
            let place = UsageLeaf::place(index);
            let plain = leaf.to_plain();
            let pointer = self
                .packer
                .pack(Kind::Block, place, version, plain, Vec::new(), 16);
            changes.insert(index, Some(pointer));
        }
        self.update(reader, USAGE_MAP, None, changes, version)
    }
}
