//! Free-slot allocator of a group.
//!
//! Any free slot serves any block of the group's tracts; its own home is only the best one. Since a block names one durable
//! slot, and homes are as many as blocks, all of scratch and more is free whenever no commit is under way: overwriting, however
//! long and however much of the disk, never waits for blocks to be moved, only for commits.

use super::layout::Geometry;
use std::ops::Range;

pub(crate) struct Slots {
    /// One bit for each slot.
    used: Vec<u64>,
    free: u32,
    homes: Region,
    scratch: Region,
}

/// A part of the group. Runs of allocations are runs of slots.
struct Region {
    slots: Range<u32>,
    free: u32,
    /// Where the next search begins.
    next: u32,
}

impl Region {
    fn new(slots: Range<u32>) -> Self {
        Self {
            free: slots.end - slots.start,
            next: slots.start,
            slots,
        }
    }
}

impl Slots {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let first_scratch = geometry.first_scratch_slot();
        let all = first_scratch + geometry.scratch_slots();
        Self {
            used: vec![0; all.div_ceil(64) as usize],
            free: all,
            homes: Region::new(0..first_scratch),
            scratch: Region::new(first_scratch..all),
        }
    }

    /// Free slots.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Whether so little scratch is left that blocks should move home when there is time.
    pub(crate) fn is_scratch_short(&self) -> bool {
        let slots = &self.scratch.slots;
        self.scratch.free < (slots.end - slots.start) / 4
    }

    /// Whether nothing lies in the slot.
    pub(crate) fn is_free(&self, slot: u32) -> bool {
        self.used[slot as usize / 64] & (1 << (slot % 64)) == 0
    }

    /// Takes one slot; false if it was taken, or is none of this group's.
    pub(crate) fn take(&mut self, slot: u32) -> bool {
        if slot >= self.scratch.slots.end || !self.is_free(slot) {
            return false;
        }
        self.used[slot as usize / 64] |= 1 << (slot % 64);
        self.free -= 1;
        self.region(slot).free -= 1;
        true
    }

    /// Takes a slot for a block: its home, else one of scratch, else the home of a block that is elsewhere.
    pub(crate) fn allocate(&mut self, home: u32) -> Option<u32> {
        if self.take(home) {
            return Some(home);
        }
        let region = if self.scratch.free > 0 {
            &self.scratch
        } else if self.homes.free > 0 {
            &self.homes
        } else {
            return None;
        };
        let slot = self
            .first_free(region.next..region.slots.end)
            .or_else(|| self.first_free(region.slots.start..region.next))
            .expect("one is free");
        assert!(self.take(slot), "it was just found free");
        self.region(slot).next = slot + 1;
        Some(slot)
    }

    /// Gives a slot back that was taken.
    pub(crate) fn give_back(&mut self, slot: u32) {
        assert!(!self.is_free(slot), "a free slot is not freed");
        self.used[slot as usize / 64] &= !(1 << (slot % 64));
        self.free += 1;
        self.region(slot).free += 1;
    }

    fn region(&mut self, slot: u32) -> &mut Region {
        if slot < self.homes.slots.end {
            &mut self.homes
        } else {
            &mut self.scratch
        }
    }

    fn first_free(&self, slots: Range<u32>) -> Option<u32> {
        let mut at = slots.start;
        while at < slots.end {
            let free = !self.used[at as usize / 64] >> (at % 64);
            if free != 0 {
                return Some(at + free.trailing_zeros()).filter(|slot| *slot < slots.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn slots() -> Slots {
        Slots::new(&Geometry {
            groups: 1,
            home_frames: 2,
            scratch_frames: 1,
            journal_bytes: 64 << 10,
        })
    }

    #[test]
    fn the_home_comes_first_then_scratch_then_homes_of_others() {
        let mut slots = slots();
        let (homes, all) = (2 * 2048, 3 * 2048);
        assert_eq!(slots.allocate(70), Some(70));
        for scratch in homes..all {
            assert_eq!(slots.allocate(70), Some(scratch));
        }
        assert!(slots.is_scratch_short());
        for home in (0..70).chain(71..homes) {
            assert_eq!(slots.allocate(70), Some(home));
        }
        assert_eq!((slots.free(), slots.allocate(70)), (0, None));
        slots.give_back(all - 1);
        slots.give_back(3);
        slots.give_back(70);
        assert_eq!(slots.allocate(70), Some(70));
        assert_eq!(slots.allocate(70), Some(all - 1));
        assert_eq!(slots.allocate(70), Some(3));
        assert!(!slots.take(all), "it is none of this group's");
    }

    proptest! {
        #[test]
        fn a_slot_is_given_once(steps in proptest::collection::vec((0..9_u8, 0..4096_u32), 1..2000)) {
            let (mut slots, mut taken) = (slots(), BTreeSet::new());
            for (kind, number) in steps {
                if kind < 6 {
                    let slot = slots.allocate(number).expect("fewer steps than slots");
                    prop_assert!(taken.insert(slot));
                } else if let Some(slot) = taken.range(number..).next().copied() {
                    taken.remove(&slot);
                    slots.give_back(slot);
                }
                prop_assert_eq!(slots.free() as usize, 3 * 2048 - taken.len());
            }
        }
    }
}
