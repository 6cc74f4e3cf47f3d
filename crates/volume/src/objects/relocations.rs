//! The registry of what cleaners moved, by their forwarding records: for readers that have an object from where it lay before.
//!
//! Retired segments, who retired them and the records that were read; the longest remembered are forgotten first.

use firn_format::{ForwardingRecord, Location, SegmentId, WriterId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard},
};

/// Entries of records that are remembered: of some hundred retired segments, some 100 bytes each.
const ENTRIES_MAX: usize = 1 << 15;
/// Retired segments that are remembered.
const RETIRED_MAX: usize = 1 << 12;

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

/// What is remembered; see the module.
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

    /// Remembers a record that was read.
    pub(super) fn keep(&self, record: ForwardingRecord) {
        self.lock().keep(record);
    }

    pub(super) fn clear(&self) {
        *self.lock() = State::default();
    }

    /// Where an object lay before it was moved to `location`, as far as that is remembered.
    pub(super) fn before(&self, location: &Location) -> Option<Location> {
        self.lock().before.get(location).copied()
    }

    /// Who moved what lay in this segment.
    pub(super) fn mover(&self, segment: SegmentId) -> Option<WriterId> {
        self.lock().retired.get(&segment).copied()
    }

    /// Whether anything is remembered that this writer moved.
    pub(super) fn knows(&self, mover: WriterId) -> bool {
        self.lock().movers.contains_key(&mover)
    }

    pub(super) fn record(&self, segment: SegmentId) -> Option<Arc<ForwardingRecord>> {
        self.lock().records.get(&segment).cloned()
    }
}
