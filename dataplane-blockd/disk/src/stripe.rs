//! Nested striping: neighbouring blocks lie on different nodes, so that one sequential reader keeps many disks busy.
//!
//! ```text
//! disk     │ segment 0 (here of 2 tracts)   │ segment 1 …
//! units    │ 0  1  2  3  4  5 …             │
//! tract 0  │ 0     2     4    …             │      a segment's tracts are striped round-robin, unit by unit;
//! tract 1  │    1     3     5  …            │      the locator table puts each tract on a node of its own
//! ```
//!
//! With one tract a segment this is plain concatenation. 128 is the paper's default and largest. A unit is a few blocks: it
//! is what an arm reads once it is in place. A seek of 8 ms for 4 KiB would make a wide segment slower than one disk.

use std::{collections::BTreeMap, ops::Range};

/// Most tracts a segment may have.
pub const SEGMENT_TRACTS_MAX: u32 = 128;
/// Most blocks of a unit: 1 MiB, so that one request carries it.
pub const UNIT_BLOCKS_MAX: u32 = 256;

/// A way to lay blocks out over tracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    segment_tracts: u32,
    unit_blocks: u32,
    tract_blocks: u32,
}

/// A block's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which tract of the disk.
    pub tract: u64,
    /// Which block in it.
    pub block: u32,
}

/// Neighbouring blocks of a tract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins.
    pub first: Place,
    /// How many.
    pub blocks: u32,
}

/// A layout that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a segment has 1 to {SEGMENT_TRACTS_MAX} tracts of whole units of 1 to {UNIT_BLOCKS_MAX} blocks, not {segment_tracts} of {tract_blocks} in units of {unit_blocks}"
)]
pub struct BadStripe {
    segment_tracts: u32,
    unit_blocks: u32,
    tract_blocks: u32,
}

impl Stripe {
    /// Segments of `segment_tracts` tracts of `tract_blocks` blocks, striped round-robin after `unit_blocks`.
    ///
    /// # Errors
    /// [`BadStripe`].
    pub fn new(segment_tracts: u32, unit_blocks: u32, tract_blocks: u32) -> Result<Self, BadStripe> {
        if !(1..=SEGMENT_TRACTS_MAX).contains(&segment_tracts)
            || !(1..=UNIT_BLOCKS_MAX).contains(&unit_blocks)
            || tract_blocks == 0
            || !tract_blocks.is_multiple_of(unit_blocks)
        {
            return Err(BadStripe {
                segment_tracts,
                unit_blocks,
                tract_blocks,
            });
        }
        Ok(Self {
            segment_tracts,
            unit_blocks,
            tract_blocks,
        })
    }

    /// Where a block lies.
    pub fn place(&self, block: u64) -> Place {
        let (tracts, in_tract) = (u64::from(self.segment_tracts), u64::from(self.tract_blocks));
        let unit_blocks = u64::from(self.unit_blocks);
        let segment = block / (tracts * in_tract);
        let within = block % (tracts * in_tract);
        let unit = within / unit_blocks;
        Place {
            tract: segment * tracts + unit % tracts,
            block: (unit / tracts * unit_blocks + within % unit_blocks) as u32,
        }
    }

    /// How many blocks from this one on lie side by side whatever comes behind: the rest of its unit.
    pub fn left_in_unit(&self, block: u64) -> u64 {
        let unit_blocks = u64::from(self.unit_blocks);
        unit_blocks - block % unit_blocks
    }

    /// The places of a range of blocks, as runs of neighbours within a tract: in the order of tracts, at most as many as the range
    /// has units. Of whole segments it is one run for each tract.
    pub fn runs(&self, blocks: Range<u64>) -> Vec<Run> {
        let mut runs: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let count = (blocks.end - at).min(self.left_in_unit(at));
            let place = self.place(at);
            let of_tract = runs.entry(place.tract).or_default();
            match of_tract.last_mut() {
                Some(run) if run.first.block + run.blocks == place.block => run.blocks += count as u32,
                Some(_) | None => of_tract.push(Run {
                    first: place,
                    blocks: count as u32,
                }),
            }
            at += count;
        }
        runs.into_values().flatten().collect()
    }

    /// Which block lies there.
    pub fn block(&self, place: Place) -> u64 {
        let (tracts, in_tract) = (u64::from(self.segment_tracts), u64::from(self.tract_blocks));
        let unit_blocks = u64::from(self.unit_blocks);
        let segment = place.tract / tracts;
        let (row, within) = (
            u64::from(place.block) / unit_blocks,
            u64::from(place.block) % unit_blocks,
        );
        segment * tracts * in_tract + (row * tracts + place.tract % tracts) * unit_blocks + within
    }

    /// Tracts that a disk of so many blocks needs: whole segments.
    pub fn tracts(&self, blocks: u64) -> u64 {
        let tracts = u64::from(self.segment_tracts);
        blocks.div_ceil(tracts * u64::from(self.tract_blocks)) * tracts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_and_blocks_are_one_to_one(
            segment in 1..=128_u32,
            unit in 1..=256_u32,
            units in 1..30_u32,
            block in 0..1_u64 << 40,
        ) {
            let tract = unit * units;
            let stripe = Stripe::new(segment, unit, tract).unwrap();
            let place = stripe.place(block);
            prop_assert!(place.block < tract);
            prop_assert!(place.tract < stripe.tracts(block + 1));
            prop_assert_eq!(stripe.block(place), block);
        }

        #[test]
        fn runs_are_the_places_of_a_range_and_one_a_tract_of_a_whole_segment(
            segment in 1..=128_u32,
            unit in 1..=16_u32,
            units in 1..8_u32,
            first in 0..4000_u64,
            count in 1..4000_u64,
        ) {
            let stripe = Stripe::new(segment, unit, unit * units).unwrap();
            let places = |runs: Vec<Run>| -> Vec<Place> {
                let one = |run: Run| (0..run.blocks).map(move |at| Place { block: run.first.block + at, ..run.first });
                runs.into_iter().flat_map(one).collect()
            };
            let mut expected: Vec<Place> = (first..first + count).map(|block| stripe.place(block)).collect();
            expected.sort_unstable();
            prop_assert_eq!(places(stripe.runs(first..first + count)), expected);
            let whole = u64::from(segment * unit * units);
            let at = first / whole * whole;
            prop_assert_eq!(stripe.runs(at..at + whole).len(), segment as usize);
        }

        #[test]
        fn neighbours_within_a_segment_lie_on_as_many_tracts_as_it_has(
            segment in 1..=128_u32,
            unit in prop_oneof![Just(1_u32), Just(32), Just(256)],
            start in 0..1000_u64,
        ) {
            let stripe = Stripe::new(segment, unit, 2048).unwrap();
            let round = u64::from(segment * unit);
            let places: Vec<Place> = (start * round..(start + 1) * round).map(|block| stripe.place(block)).collect();
            let tracts: std::collections::BTreeSet<u64> = places.iter().map(|place| place.tract).collect();
            prop_assert_eq!(tracts.len(), segment as usize);
            for unit in places.chunks(unit as usize) {
                let follow = |pair: &[Place]| pair[1].tract == pair[0].tract && pair[1].block == pair[0].block + 1;
                prop_assert!(unit.windows(2).all(follow), "a unit lies together");
            }
        }
    }

    #[test]
    fn segments_of_none_or_too_many_are_refused() {
        assert!(
            Stripe::new(0, 1, 2048).is_err()
                && Stripe::new(129, 1, 2048).is_err()
                && Stripe::new(1, 1, 0).is_err()
        );
        assert!(
            Stripe::new(1, 0, 2048).is_err()
                && Stripe::new(1, 512, 2048).is_err()
                && Stripe::new(1, 3, 2048).is_err()
        );
    }
}
