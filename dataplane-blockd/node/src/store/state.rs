//! The store's state in memory.
//!
//! A tract's blocks stand in three layers: **active** (written, not yet in a batch), **committing** (in the batch that is
//! being made durable) and the **durable** entries. What is seen is the topmost. A slot is free again when the entry that
//! took its block's place is durable; the slot of an entry that never became durable is free at once.

use super::{
    entry::{Entries, Entry, Place},
    index::TractPlace,
    layout::{Frame, Geometry},
    record::Record,
};
use firn_blockd_protocol::{DiskId, Fence, Generation, RowVersion, TRACT_BLOCKS, TractId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::RwLock;

pub(crate) struct Tract {
    pub(crate) place: TractPlace,
    pub(crate) frame: Frame,
    pub(crate) entries: Entries,
    pub(crate) active: BTreeMap<u16, Entry>,
    pub(crate) committing: BTreeMap<u16, Entry>,
    home_used: [u64; TRACT_BLOCKS as usize / 64],
    /// Written under it shared; emptied and released under it alone.
    pub(crate) gate: Arc<RwLock<()>>,
    /// The highest generation of any block.
    pub(crate) newest: Generation,
}

impl Tract {
    fn new(place: TractPlace, frame: Frame) -> Self {
        Self {
            place,
            frame,
            entries: Entries::absent(),
            active: BTreeMap::new(),
            committing: BTreeMap::new(),
            home_used: [0; TRACT_BLOCKS as usize / 64],
            gate: Arc::default(),
            newest: Generation::ZERO,
        }
    }

    /// What is seen of a block.
    pub(crate) fn latest(&self, block: u16) -> Entry {
        self.active
            .get(&block)
            .or_else(|| self.committing.get(&block))
            .copied()
            .unwrap_or_else(|| self.entries.get(block))
    }
}

pub(crate) struct Group {
    /// One bit for each scratch slot.
    scratch_used: Vec<u64>,
    pub(crate) scratch_free: u32,
    next: u32,
}

impl Group {
    fn new(geometry: &Geometry) -> Self {
        let slots = geometry.scratch_slots();
        Self {
            scratch_used: vec![0; slots.div_ceil(64) as usize],
            scratch_free: slots,
            next: 0,
        }
    }

    /// The next free scratch slot, counted from the first scratch slot; runs of allocations are runs of slots.
    fn allocate(&mut self, slots: u32) -> Option<u32> {
        if self.scratch_free == 0 {
            return None;
        }
        for step in 0..slots {
            let slot = (self.next + step) % slots;
            if self.set(slot) {
                self.next = (slot + 1) % slots;
                return Some(slot);
            }
        }
        None
    }

    fn set(&mut self, slot: u32) -> bool {
        let word = &mut self.scratch_used[slot as usize / 64];
        let bit = 1 << (slot % 64);
        let was_free = *word & bit == 0;
        *word |= bit;
        self.scratch_free -= u32::from(was_free);
        was_free
    }

    fn clear(&mut self, slot: u32) {
        let word = &mut self.scratch_used[slot as usize / 64];
        let bit = 1 << (slot % 64);
        assert!(*word & bit != 0, "a free slot is not freed");
        *word &= !bit;
        self.scratch_free += 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct DiskFacts {
    pub(crate) fence: Fence,
    pub(crate) settled: Generation,
}

pub(crate) struct State {
    pub(crate) geometry: Geometry,
    pub(crate) tracts: BTreeMap<TractId, Tract>,
    pub(crate) free_frames: BTreeSet<Frame>,
    /// Newest version written of each frame's index region.
    pub(crate) region_versions: Vec<u64>,
    pub(crate) groups: Vec<Group>,
    pub(crate) disks: BTreeMap<DiskId, DiskFacts>,
    /// Records for the next batch, other than those of blocks.
    pub(crate) control: Vec<Record>,
    /// Tracts with active blocks.
    pub(crate) dirty: BTreeSet<TractId>,
    /// Groups written to since they were last synced.
    pub(crate) dirty_groups: BTreeSet<u32>,
    /// Disks whose settled generation has moved since it was last recorded.
    pub(crate) settled_dirty: BTreeSet<DiskId>,
    pub(crate) active_blocks: usize,
    /// The number of the batch being filled.
    pub(crate) batch: u64,
    /// Frames changed by durable records since the journal last went on to another file.
    pub(crate) dirty_frames: BTreeSet<Frame>,
    /// Blocks that do not match their checksums.
    pub(crate) damaged: BTreeSet<(TractId, u16)>,
}

impl State {
    pub(crate) fn empty(geometry: Geometry) -> Self {
        let frames = geometry.groups * geometry.home_frames;
        Self {
            geometry,
            tracts: BTreeMap::new(),
            free_frames: (0..frames).map(Frame).collect(),
            region_versions: vec![0; frames as usize],
            groups: (0..geometry.groups).map(|_| Group::new(&geometry)).collect(),
            disks: BTreeMap::new(),
            control: Vec::new(),
            dirty: BTreeSet::new(),
            dirty_groups: BTreeSet::new(),
            settled_dirty: BTreeSet::new(),
            active_blocks: 0,
            batch: 1,
            dirty_frames: BTreeSet::new(),
            damaged: BTreeSet::new(),
        }
    }

    /// Gives a tract the first free frame; false if there is none.
    pub(crate) fn allocate_tract(&mut self, place: TractPlace) -> bool {
        let Some(frame) = self.free_frames.pop_first() else {
            return false;
        };
        self.tracts.insert(place.tract, Tract::new(place, frame));
        self.control.push(Record::Allocate { frame, place });
        true
    }

    /// A slot for a new version of a block: its home if that is free.
    pub(crate) fn allocate_slot(&mut self, tract: TractId, block: u16) -> Option<u32> {
        let geometry = self.geometry;
        let tract = self
            .tracts
            .get_mut(&tract)
            .expect("the caller holds the tract's gate");
        let word = &mut tract.home_used[usize::from(block) / 64];
        let bit = 1 << (block % 64);
        if *word & bit == 0 {
            *word |= bit;
            return Some(geometry.home_slot(tract.frame, block));
        }
        let group = &mut self.groups[geometry.group_of(tract.frame) as usize];
        let slot = group.allocate(geometry.scratch_slots())?;
        Some(geometry.first_scratch_slot() + slot)
    }

    /// Gives a slot back that no durable entry names.
    pub(crate) fn free_slot(&mut self, tract: TractId, block: u16, slot: u32) {
        let geometry = self.geometry;
        let tract = self
            .tracts
            .get_mut(&tract)
            .expect("slots are freed before their tract goes");
        match slot.checked_sub(geometry.first_scratch_slot()) {
            Some(scratch) => self.groups[geometry.group_of(tract.frame) as usize].clear(scratch),
            None => {
                assert_eq!(
                    slot,
                    geometry.home_slot(tract.frame, block),
                    "a block lies at its own home"
                );
                tract.home_used[usize::from(block) / 64] &= !(1 << (block % 64));
            }
        }
    }

    /// Takes the slots that durable entries name, after recovery. False if two name one slot.
    pub(crate) fn take_slots(&mut self) -> bool {
        let geometry = self.geometry;
        for tract in self.tracts.values_mut() {
            for (block, entry) in tract.entries.iter() {
                tract.newest = tract.newest.max(entry.generation);
                let Some(slot) = entry.slot() else { continue };
                let free = match slot.checked_sub(geometry.first_scratch_slot()) {
                    Some(scratch) if scratch < geometry.scratch_slots() => {
                        self.groups[geometry.group_of(tract.frame) as usize].set(scratch)
                    }
                    Some(_) => false,
                    None => {
                        tract.home_used[usize::from(block) / 64] |= 1 << (block % 64);
                        slot == geometry.home_slot(tract.frame, block)
                    }
                };
                if !free {
                    return false;
                }
            }
        }
        true
    }

    /// Shows a new version of a block, whose content is in its slot. False if something newer stands there: the slot is
    /// free again.
    pub(crate) fn insert(&mut self, tract: TractId, block: u16, entry: Entry, accept: Accept) -> bool {
        let group = {
            let state = self
                .tracts
                .get_mut(&tract)
                .expect("the caller holds the tract's gate");
            let current = state.latest(block);
            let welcome = match accept {
                Accept::Newer => entry.generation > current.generation,
                Accept::Instead(expected) => current == expected,
                Accept::Always => true,
            };
            if !welcome {
                if let Some(slot) = entry.slot() {
                    self.free_slot(tract, block, slot);
                }
                return false;
            }
            self.geometry.group_of(state.frame)
        };
        let state = self.tracts.get_mut(&tract).expect("as before");
        state.newest = state.newest.max(entry.generation);
        let replaced = state.active.insert(block, entry);
        match replaced {
            Some(replaced) => {
                if let Some(slot) = replaced.slot() {
                    self.free_slot(tract, block, slot);
                }
            }
            None => self.active_blocks += 1,
        }
        self.dirty.insert(tract);
        self.dirty_groups.insert(group);
        self.damaged.remove(&(tract, block));
        true
    }

    /// Forgets what is active of a tract.
    pub(crate) fn drop_active(&mut self, tract: TractId) {
        let Some(state) = self.tracts.get_mut(&tract) else {
            return;
        };
        let active = std::mem::take(&mut state.active);
        self.active_blocks -= active.len();
        self.dirty.remove(&tract);
        for (block, entry) in active {
            if let Some(slot) = entry.slot() {
                self.free_slot(tract, block, slot);
            }
        }
    }

    /// Applies a durable record; at replay also those of blocks, whose slots are taken afterwards.
    pub(crate) fn apply(&mut self, record: &Record, replay: bool) {
        match record {
            Record::Allocate { frame, place } => {
                if replay {
                    self.forget_frame(*frame);
                    if let Some(other) = self.tracts.get(&place.tract).map(|tract| tract.frame) {
                        self.forget_frame(other);
                        self.free_frames.insert(other);
                    }
                    self.free_frames.remove(frame);
                    self.tracts.insert(place.tract, Tract::new(*place, *frame));
                }
                self.dirty_frames.insert(*frame);
            }
            Record::Reset { frame, tract, since } => {
                if self.tracts.get(tract).is_some_and(|state| state.frame == *frame) {
                    self.empty_tract(*tract, *since, replay);
                }
                self.dirty_frames.insert(*frame);
            }
            Record::Release { frame, tract } => {
                if self.tracts.get(tract).is_some_and(|state| state.frame == *frame) {
                    self.empty_tract(*tract, RowVersion(0), replay);
                    self.tracts.remove(tract);
                    self.free_frames.insert(*frame);
                }
                self.damaged.retain(|(damaged, _)| damaged != tract);
                self.dirty_frames.insert(*frame);
            }
            Record::Fence { disk, fence } => {
                let facts = self.disks.entry(*disk).or_default();
                facts.fence = facts.fence.max(*fence);
            }
            Record::Settled { disk, settled } => {
                let facts = self.disks.entry(*disk).or_default();
                facts.settled = facts.settled.max(*settled);
            }
            Record::Forget { disk } => {
                self.disks.remove(disk);
            }
            Record::Blocks {
                frame,
                tract,
                first,
                generation,
                entries,
            } => {
                if let Some(state) = self.tracts.get_mut(tract)
                    && state.frame == *frame
                {
                    for (block, (place, checksum)) in (*first..).zip(entries) {
                        let entry = Entry {
                            generation: *generation,
                            checksum: *checksum,
                            place: Place::from_code(*place),
                        };
                        state.entries.set(block, entry);
                    }
                }
                self.dirty_frames.insert(*frame);
            }
        }
    }

    /// Takes over what an index region says.
    pub(crate) fn adopt(&mut self, frame: Frame, place: TractPlace, entries: Entries) {
        self.free_frames.remove(&frame);
        let mut tract = Tract::new(place, frame);
        tract.entries = entries;
        // Two regions may name one tract if it moved between frames: the journal, replayed next, says which is right.
        if let Some(other) = self.tracts.insert(place.tract, tract) {
            self.free_frames.insert(other.frame);
        }
    }

    fn forget_frame(&mut self, frame: Frame) {
        self.tracts.retain(|_, tract| tract.frame != frame);
    }

    fn empty_tract(&mut self, tract: TractId, since: RowVersion, replay: bool) {
        let slots: Vec<(u16, u32)> = match self.tracts.get(&tract) {
            Some(state) if !replay => state
                .entries
                .iter()
                .filter_map(|(block, entry)| entry.slot().map(|slot| (block, slot)))
                .collect(),
            Some(_) | None => Vec::new(),
        };
        for (block, slot) in slots {
            self.free_slot(tract, block, slot);
        }
        if let Some(state) = self.tracts.get_mut(&tract) {
            assert!(
                state.active.is_empty() && state.committing.is_empty(),
                "nothing is written to a tract that is being emptied"
            );
            state.entries = Entries::absent();
            state.newest = Generation::ZERO;
            state.place.since = since;
        }
        self.damaged.retain(|(damaged, _)| *damaged != tract);
    }

    /// Makes the committing layer durable: what it took the place of is free.
    pub(crate) fn merge(&mut self, tract: TractId) {
        let Some(state) = self.tracts.get_mut(&tract) else {
            return;
        };
        let committing = std::mem::take(&mut state.committing);
        self.dirty_frames.insert(state.frame);
        let mut freed = Vec::new();
        for (block, entry) in committing {
            if let Some(slot) = state.entries.get(block).slot() {
                freed.push((block, slot));
            }
            state.entries.set(block, entry);
        }
        for (block, slot) in freed {
            self.free_slot(tract, block, slot);
        }
    }
}

/// When a new version of a block is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accept {
    /// Its generation is higher than what stands there.
    Newer,
    /// Exactly this stands there: content that only moves, or replaces its damaged self.
    Instead(Entry),
    /// Whatever stands there: a planted bug.
    Always,
}
