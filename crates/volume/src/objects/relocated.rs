//! What this volume has already of objects that a cleaner moved.
//!
//! After a merge, pointers lead to the cleaner's copies. A copy of a block is the same bytes; a copy of a node above blocks is
//! the same node with other places of its leaves. So neither needs to be fetched while it is cached from where it lay before:
//!
//! | wanted at its new place | had | then |
//! |---|---|---|
//! | a block | in the disk cache, at its old place | read there |
//! | a node above blocks | in memory or in the disk cache, the old copy | that, with the places of its leaves changed |
//!
//! What moved where is said by the mover's forwarding records: those that the merge has read, and a few more where that is
//! cheaper than the node. They are hints: blocks are verified by their uid as ever, and a wrong place of a leaf is no worse than
//! one in the mover's own copy of the node, which nobody but the mover vouches for either.
//!
//! Nodes further up and inodes lead to nodes that the cleaner wrote anew; of those no record tells, and they are small.

use super::{Inner, Object};
use firn_format::{
    CHECKPOINTS, Child, ForwardingRecord, INODE_MAP, Location, ORPHAN_MAP, Place, Pointer, SegmentId,
    USAGE_MAP, WriterId,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard},
};

/// Entries of records that are remembered: of some hundred retired segments, some 100 bytes each.
const ENTRIES_MAX: usize = 1 << 15;
/// Retired segments that are remembered.
const RETIRED_MAX: usize = 1 << 12;
/// Moves of one object that are followed: more often than this nothing is moved between two merges that are remembered.
const HOPS_MAX: usize = 16;
/// Records fetched for one node. Two have about as many bytes as it has, and serve for its neighbours too.
const RECORDS_FETCHED: usize = 2;

/// What was moved out of some segments.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// Who moved it.
    pub mover: WriterId,
    /// What it was moved out of.
    pub retired: BTreeSet<SegmentId>,
    /// The records that were read.
    pub records: Vec<ForwardingRecord>,
}

#[derive(Default)]
struct State {
    retired: BTreeMap<SegmentId, WriterId>,
    /// How many of them each has retired.
    movers: BTreeMap<WriterId, usize>,
    /// Those first that were retired first.
    order: VecDeque<SegmentId>,
    records: BTreeMap<SegmentId, Arc<ForwardingRecord>>,
    /// From new places to old ones, by these records.
    before: BTreeMap<Location, Location>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Relocations(Mutex<State>);

impl State {
    fn keep(&mut self, record: ForwardingRecord) {
        let segment = record.old;
        if !self.retired.contains_key(&segment) || self.records.contains_key(&segment) {
            return;
        }
        for entry in &record.entries {
            let old = Location {
                segment,
                offset: entry.offset,
                length: entry.new.length,
            };
            self.before.insert(entry.new, old);
        }
        self.records.insert(segment, Arc::new(record));
        while self.before.len() > ENTRIES_MAX && self.forget_oldest() {}
    }

    fn retire(&mut self, segment: SegmentId, mover: WriterId) {
        // Two cleaners may have moved the same things; the first that was merged is as right as the second.
        if let Entry::Vacant(vacant) = self.retired.entry(segment) {
            vacant.insert(mover);
            self.order.push_back(segment);
            *self.movers.entry(mover).or_default() += 1;
        }
        while self.order.len() > RETIRED_MAX && self.forget_oldest() {}
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.order.pop_front() else {
            return false;
        };
        if let Some(mover) = self.retired.remove(&oldest)
            && let Some(count) = self.movers.get_mut(&mover)
        {
            *count -= 1;
            if *count == 0 {
                self.movers.remove(&mover);
            }
        }
        if let Some(record) = self.records.remove(&oldest) {
            for entry in &record.entries {
                self.before.remove(&entry.new);
            }
        }
        true
    }
}

impl Relocations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under the lock of relocations")
    }

    pub(super) fn note(&self, relocation: Relocation) {
        let mut state = self.lock();
        for segment in relocation.retired {
            state.retire(segment, relocation.mover);
        }
        for record in relocation.records {
            state.keep(record);
        }
    }

    pub(super) fn clear(&self) {
        *self.lock() = State::default();
    }

    /// Where an object lay before it was moved to `location`, as far as that is remembered.
    fn before(&self, location: &Location) -> Option<Location> {
        self.lock().before.get(location).copied()
    }

    /// Who moved what lay in this segment.
    fn mover(&self, segment: SegmentId) -> Option<WriterId> {
        self.lock().retired.get(&segment).copied()
    }

    /// Whether anything is remembered that this writer moved.
    fn knows(&self, mover: WriterId) -> bool {
        self.lock().movers.contains_key(&mover)
    }

    fn record(&self, segment: SegmentId) -> Option<Arc<ForwardingRecord>> {
        self.lock().records.get(&segment).cloned()
    }
}

/// Whether the place is in the map of a file, where leaves are moved and never written anew by a cleaner.
fn is_of_a_file(place: Place) -> bool {
    !matches!(place.inode, INODE_MAP | ORPHAN_MAP | USAGE_MAP | CHECKPOINTS)
}

impl Inner {
    /// The object, if it is one that a cleaner moved and that is had from before; nothing of it is asked of the store.
    pub(super) async fn load_relocated(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        if !is_of_a_file(place) || place.level > 1 || !self.relocations.knows(pointer.location.segment.writer)
        {
            return None;
        }
        if place.level == 0 {
            return self.load_from_before(pointer, place).await;
        }
        let had = self.lock().memory.get_copy(&pointer.uid);
        let had = match had {
            Some(had) => had,
            None => self.load_from_before(pointer, place).await?,
        };
        let mut children = had.header.children.clone();
        self.follow_moves(&mut children).await?;
        let mut object = (*had).clone();
        object.header.children = children;
        (object.header.place == place).then(|| Arc::new(object))
    }

    /// From the disk cache, where it lay before.
    async fn load_from_before(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let mut location = pointer.location;
        for _ in 0..HOPS_MAX {
            location = self.relocations.before(&location)?;
            let before = Pointer { location, ..*pointer };
            if let Some(object) = self.load_from_disk(&before, place).await {
                return Some(object);
            }
        }
        None
    }

    /// Gives leaves the places that they were moved to; `None` if that is not known of all.
    async fn follow_moves(&self, leaves: &mut [Child]) -> Option<()> {
        let mut fetched = 0;
        for leaf in leaves {
            for _ in 0..HOPS_MAX {
                let location = leaf.pointer.location;
                let Some(mover) = self.relocations.mover(location.segment) else {
                    break;
                };
                let record = match self.relocations.record(location.segment) {
                    Some(record) => record,
                    None if fetched == RECORDS_FETCHED => return None,
                    None => {
                        fetched += 1;
                        let forwarding = self.fetcher.forwarding();
                        let read = forwarding.record_of(location.segment, mover).await;
                        let record = read.ok().flatten()?;
                        self.relocations.lock().keep(record.clone());
                        Arc::new(record)
                    }
                };
                leaf.pointer.location = record.find(&location)?;
            }
            if self.relocations.mover(leaf.pointer.location.segment).is_some() {
                return None; // In circles, which only a forged record does.
            }
        }
        Some(())
    }
}
