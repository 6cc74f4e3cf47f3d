//! The census: a walk over all nodes and inodes of the roots, which reads and verifies each and counts the data below.
//!
//! A root is walked where it differs from the next newer one: where both have the same uid at a place, all below is the same and was
//! counted. An object lives in one interval of versions (I4), so what several roots share is counted once. (An inode that was
//! unlinked while open changes its place, and is counted in both.)
//!
//! The walk is depth first in batches, so that what waits is bounded by the depth of the trees, and neighbours come together. It comes from the last
//! place to the first ([`TreePlace`]), so that what waits uppermost when it is cut off is where the next one begins.

use super::{AuditProgress, budget::Budget, draws::Draws, newest::Failures, place::TreePlace};
use crate::{
    CleanError,
    branches::Trees,
    lookup::{Copies, root_of_map},
    objects::Objects,
    reading::read_together,
};
use firn_format::{
    INODE_MAP, Kind, Location, MAX_OBJECT_BYTES, ORPHAN_MAP, Place, Pointer, ROOT_DIRECTORY, TreeRoot,
    USAGE_MAP, VerifiedObject, Version, radix,
};
use firn_store::Usage;
use std::sync::{Arc, atomic::Ordering};

/// Objects read together. Each brings at most 128 more, at each of some ten levels: 20 MB wait at most.
const BATCH: usize = 128;

/// What a batch takes at most but for records: each alone, with its counterpart, and as large as a full node.
const BATCH_USAGE: Usage = Usage {
    puts: 0,
    gets: 0,
    ranged_gets: 2 * BATCH as u64,
    heads: 0,
    lists: 0,
    deletes: 0,
    failures: 0,
    bytes_up: 0,
    bytes_down: 2 * BATCH as u64 * (8 << 10),
};

/// An object that a root needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub pointer: Pointer,
    pub place: Place,
    /// The version of the root.
    pub version: Version,
}

/// One that could not be read. Why is asked once more when the newest roots were seen.
pub(super) struct Failure {
    pub sample: Sample,
    /// Whether it is data that was drawn, and not a part of the trees.
    pub is_drawn: bool,
}

/// What stands in the next newer root where the walk is, or further down at slot 0: trees grow at the top.
#[derive(Clone, Copy, Debug)]
struct Counterpart {
    pointer: Pointer,
    level: u8,
}

struct Visit {
    sample: Sample,
    /// On which map of its root it hangs.
    map: u64,
    newer: Option<Counterpart>,
}

/// See the module.
pub(super) struct Census<'a> {
    progress: &'a AuditProgress,
    draws: Draws<Sample>,
    waiting: Vec<Visit>,
    /// Where the walk of this root began.
    from: TreePlace,
    counted: Counted,
}

/// What the census saw.
#[derive(Default)]
pub(super) struct Counted {
    pub read_objects: u64,
    pub read_bytes: u64,
    pub data_objects: u64,
    pub data_bytes: u64,
    pub failures: Failures,
    pub drawn: Vec<Sample>,
}

impl<'a> Census<'a> {
    /// `draws` are of a seed that nobody knew before the roots were read.
    pub fn new(draws: Draws<Sample>, progress: &'a AuditProgress) -> Self {
        Self {
            progress,
            draws,
            waiting: Vec::new(),
            from: TreePlace::ALL,
            counted: Counted::default(),
        }
    }

    /// What was counted and drawn.
    pub fn end(mut self) -> Counted {
        self.counted.drawn = self.draws.end();
        self.counted
    }

    /// Walks a root where it differs from `newer`, beginning at a place; where it was cut off if the money was not enough.
    pub async fn walk(
        &mut self,
        objects: &mut Objects,
        (trees, from): (&Trees, TreePlace),
        newer: Option<&Trees>,
        budget: &Budget,
    ) -> Result<Option<TreePlace>, CleanError> {
        let version = trees.version;
        self.from = from;
        for (inode, root, other) in [
            (
                INODE_MAP,
                trees.inode_map,
                newer.and_then(|newer| newer.inode_map),
            ),
            (ORPHAN_MAP, trees.orphans, newer.and_then(|newer| newer.orphans)),
            (USAGE_MAP, trees.usage, None),
        ] {
            if let Some(root) = root {
                self.meet_root(objects, (inode, inode), root, other, version)
                    .await?;
            }
        }
        while let Some(next) = self.waiting.last() {
            let drawn_usage = self.reserve();
            if !budget.allows(&BATCH_USAGE.plus(&drawn_usage)) {
                let place = TreePlace::of(next.map, &next.sample.place);
                self.waiting.clear();
                return Ok(Some(place));
            }
            let batch = self.waiting.split_off(self.waiting.len().saturating_sub(BATCH));
            self.read(objects, batch).await?;
        }
        Ok(None)
    }

    /// What the challenges will take, as far as the data met tell.
    fn reserve(&self) -> Usage {
        let challenges = self.draws.slots() as u64;
        let mean = self
            .counted
            .data_bytes
            .checked_div(self.counted.data_objects)
            .unwrap_or(0);
        Usage {
            ranged_gets: challenges,
            bytes_down: challenges.saturating_mul(mean),
            ..Usage::default()
        }
    }

    async fn read(&mut self, objects: &mut Objects, batch: Vec<Visit>) -> Result<(), CleanError> {
        let mut wanted: Vec<(Pointer, Place)> = batch
            .iter()
            .map(|visit| (visit.sample.pointer, visit.sample.place))
            .collect();
        // Behind them the objects of the newer root at the same places.
        let level_with = |visit: &Visit| {
            visit
                .newer
                .filter(|newer| newer.level == visit.sample.place.level)
        };
        for visit in &batch {
            wanted.extend(level_with(visit).map(|newer| (newer.pointer, visit.sample.place)));
        }
        let mut read = read_together(objects, &wanted, Copies::Any).await?;
        let mut others = read.split_off(batch.len()).into_iter();
        for (visit, object) in batch.into_iter().zip(read) {
            // One that cannot be read was found in its own root; what is below is counted again.
            let other = level_with(&visit)
                .and_then(|_| others.next())
                .and_then(Result::ok);
            match object {
                Ok(object) => self.met(objects, &visit, &object, other.as_deref()).await?,
                Err(_) => self.lost(visit.sample),
            }
        }
        Ok(())
    }

    fn lost(&mut self, sample: Sample) {
        if firn_env::planted!("cleaner.audit_skips_lost_nodes") {
            return;
        }
        self.counted.failures.add(Failure {
            sample,
            is_drawn: false,
        });
    }

    /// Goes on below an object that was read and verified.
    async fn met(
        &mut self,
        objects: &mut Objects,
        visit: &Visit,
        object: &VerifiedObject,
        other: Option<&VerifiedObject>,
    ) -> Result<(), CleanError> {
        self.counted.read_objects += 1;
        self.counted.read_bytes += object.encoded.len() as u64;
        self.progress.read_objects.fetch_add(1, Ordering::Relaxed);
        let Sample { place, version, .. } = visit.sample;
        let Place { inode, level, index } = place;
        if level > 0 {
            for child in &object.header.children {
                let below = Place {
                    inode,
                    level: level - 1,
                    index: (index << radix::FANOUT.trailing_zeros()) | u64::from(child.slot),
                };
                let newer = visit
                    .newer
                    .and_then(|newer| newer.below(level, child.slot, other));
                self.meet((child.pointer, visit.map), below, newer, version);
            }
            return Ok(());
        }
        if object.header.kind != Kind::Inode {
            return Ok(());
        }
        let other = other.and_then(|other| root_of_map(other).ok().flatten());
        match root_of_map(object) {
            Ok(Some(root)) => {
                self.meet_root(objects, (index, visit.map), root, other, version)
                    .await?
            }
            Ok(None) => {}
            Err(CleanError::Damaged(_)) => self.lost(visit.sample),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A tree, and the newer root's in its place.
    async fn meet_root(
        &mut self,
        objects: &mut Objects,
        (inode, map): (u64, u64),
        root: TreeRoot,
        newer: Option<TreeRoot>,
        version: Version,
    ) -> Result<(), CleanError> {
        let newer = match newer {
            Some(newer) => Counterpart::of(newer).down_to(objects, inode, root.level).await?,
            None => None,
        };
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        self.meet((root.pointer, map), place, newer, version);
        Ok(())
    }

    /// Something that a verified object leads to.
    fn meet(
        &mut self,
        (pointer, map): (Pointer, u64),
        place: Place,
        newer: Option<Counterpart>,
        version: Version,
    ) {
        let is_same = |newer: &Counterpart| newer.level == place.level && newer.pointer.uid == pointer.uid;
        if newer.as_ref().is_some_and(is_same) {
            return;
        }
        let sample = Sample {
            pointer,
            place,
            version,
        };
        let is_data = place.level == 0 && place.inode >= ROOT_DIRECTORY;
        if !is_data {
            // Data is met with its node, which was cut off before it or not at all.
            if !self.from.is_past(map, &place) {
                self.waiting.push(Visit { sample, map, newer });
            }
            return;
        }
        let Location { length, .. } = pointer.location;
        if pointer.location == Location::UNKNOWN || length == 0 {
            return self.lost(sample);
        }
        // A longer one is not read; it must not drown the others either.
        let bytes = length.min(MAX_OBJECT_BYTES as u32);
        self.counted.data_objects += 1;
        self.counted.data_bytes += u64::from(bytes);
        self.progress
            .data_bytes
            .fetch_add(u64::from(bytes), Ordering::Relaxed);
        self.draws.meet(sample, bytes);
    }
}

impl Counterpart {
    fn of(root: TreeRoot) -> Self {
        Self {
            pointer: root.pointer,
            level: root.level,
        }
    }

    /// Goes down to `level` where this root's tree is the higher one; `None` if it has nothing at its leftmost place there.
    async fn down_to(
        mut self,
        objects: &mut Objects,
        inode: u64,
        level: u8,
    ) -> Result<Option<Self>, CleanError> {
        while self.level > level {
            let place = Place {
                inode,
                level: self.level,
                index: 0,
            };
            let node: Arc<VerifiedObject> = match objects.get(&self.pointer, place).await {
                Ok(node) => node,
                // Found in its own root.
                Err(CleanError::Damaged(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Some(first) = node.header.children.first().filter(|child| child.slot == 0) else {
                return Ok(None);
            };
            self.pointer = first.pointer;
            self.level -= 1;
        }
        Ok(Some(self))
    }

    /// What stands below `slot` of the walk's node at `level`; `object` is this root's node there, if it has one of that level.
    fn below(self, level: u8, slot: u16, object: Option<&VerifiedObject>) -> Option<Self> {
        if self.level < level {
            return (slot == 0).then_some(self);
        }
        let children = &object?.header.children;
        let found = children.binary_search_by_key(&slot, |child| child.slot).ok()?;
        Some(Self {
            pointer: children[found].pointer,
            level: level.checked_sub(1)?,
        })
    }
}
