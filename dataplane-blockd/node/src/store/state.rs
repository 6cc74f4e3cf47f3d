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
    slots::Slots,
};
use firn_blockd_protocol::{DiskId, Fence, Generation, RowVersion, TractId};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct DiskFacts {
    pub(crate) fence: Fence,
}

pub(crate) struct State {
    pub(crate) geometry: Geometry,
    pub(crate) tracts: BTreeMap<TractId, Tract>,
    pub(crate) free_frames: BTreeSet<Frame>,
    /// Newest version written of each frame's index region.
    pub(crate) region_versions: Vec<u64>,
    pub(crate) slots: Vec<Slots>,
    pub(crate) disks: BTreeMap<DiskId, DiskFacts>,
    /// Records for the next batch, other than those of blocks.
    pub(crate) control: Vec<Record>,
    /// Tracts with active blocks.
    pub(crate) dirty: BTreeSet<TractId>,
    /// Groups written to since they were last synced.
    pub(crate) dirty_groups: BTreeSet<u32>,
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
            slots: (0..geometry.groups).map(|_| Slots::new(&geometry)).collect(),
            disks: BTreeMap::new(),
            control: Vec::new(),
            dirty: BTreeSet::new(),
            dirty_groups: BTreeSet::new(),
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

    /// The home of a block of a tract that is held.
    pub(crate) fn home(&self, tract: TractId, block: u16) -> u32 {
        self.geometry.home_slot(self.tracts[&tract].frame, block)
    }

    /// The slots among which those of a tract are.
    pub(crate) fn slots_of(&mut self, tract: TractId) -> &mut Slots {
        let frame = self.tracts[&tract].frame;
        &mut self.slots[self.geometry.group_of(frame) as usize]
    }

    /// Takes the slots that durable entries name, after recovery. False if two name one slot.
    pub(crate) fn take_slots(&mut self) -> bool {
        let geometry = self.geometry;
        for tract in self.tracts.values_mut() {
            let slots = &mut self.slots[geometry.group_of(tract.frame) as usize];
            for (_, entry) in tract.entries.iter() {
                tract.newest = tract.newest.max(entry.generation);
                if entry.slot().is_some_and(|slot| !slots.take(slot)) {
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
                    self.slots_of(tract).give_back(slot);
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
                    self.slots_of(tract).give_back(slot);
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
        for entry in active.into_values() {
            if let Some(slot) = entry.slot() {
                self.slots_of(tract).give_back(slot);
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
            // Of the version before, whose clients could have said it; none did.
            Record::Settled { .. } => {}
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
        let slots: Vec<u32> = match self.tracts.get(&tract) {
            Some(state) if !replay => state
                .entries
                .iter()
                .filter_map(|(_, entry)| entry.slot())
                .collect(),
            Some(_) | None => Vec::new(),
        };
        for slot in slots {
            self.slots_of(tract).give_back(slot);
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
                freed.push(slot);
            }
            state.entries.set(block, entry);
        }
        for slot in freed {
            self.slots_of(tract).give_back(slot);
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
