//! Nested striping: neighbouring blocks lie on different nodes, so that one sequential reader keeps many disks busy.
//!
//! ```text
//! disk     │ segment 0 (here of 2 tracts)   │ segment 1 …
//! blocks   │ 0  1  2  3  4  5 …             │
//! tract 0  │ 0     2     4    …             │      tracts of a segment take turns, block by block;
//! tract 1  │    1     3     5  …            │      the locator table puts each tract on a node of its own
//! ```
//!
//! With one tract a segment this is plain concatenation. 128 is the paper's default and largest.

/// Most tracts a segment may have.
pub const SEGMENT_TRACTS_MAX: u32 = 128;

/// A way to lay blocks out over tracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    segment_tracts: u32,
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

/// A layout that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a segment has 1 to {SEGMENT_TRACTS_MAX} tracts of at least one block, not {segment_tracts} of {tract_blocks}"
)]
pub struct BadStripe {
    segment_tracts: u32,
    tract_blocks: u32,
}

impl Stripe {
    /// Segments of `segment_tracts` tracts of `tract_blocks` blocks.
    ///
    /// # Errors
    /// [`BadStripe`].
    pub fn new(segment_tracts: u32, tract_blocks: u32) -> Result<Self, BadStripe> {
        if !(1..=SEGMENT_TRACTS_MAX).contains(&segment_tracts) || tract_blocks == 0 {
            return Err(BadStripe {
                segment_tracts,
                tract_blocks,
            });
        }
        Ok(Self {
            segment_tracts,
            tract_blocks,
        })
    }

    /// Where a block lies.
    pub fn place(&self, block: u64) -> Place {
        let (tracts, in_tract) = (u64::from(self.segment_tracts), u64::from(self.tract_blocks));
        let segment = block / (tracts * in_tract);
        let within = block % (tracts * in_tract);
        Place {
            tract: segment * tracts + within % tracts,
            block: (within / tracts) as u32,
        }
    }

    /// Which block lies there.
    pub fn block(&self, place: Place) -> u64 {
        let (tracts, in_tract) = (u64::from(self.segment_tracts), u64::from(self.tract_blocks));
        let segment = place.tract / tracts;
        segment * tracts * in_tract + u64::from(place.block) * tracts + place.tract % tracts
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
        fn places_and_blocks_are_one_to_one(segment in 1..=128_u32, tract in 1..3000_u32, block in 0..1_u64 << 40) {
            let stripe = Stripe::new(segment, tract).unwrap();
            let place = stripe.place(block);
            prop_assert!(place.block < tract);
            prop_assert!(place.tract < stripe.tracts(block + 1));
            prop_assert_eq!(stripe.block(place), block);
        }

        #[test]
        fn neighbours_within_a_segment_lie_on_as_many_tracts_as_it_has(segment in 1..=128_u32, start in 0..100_000_u64) {
            let stripe = Stripe::new(segment, 2048).unwrap();
            let begin = start / u64::from(segment) * u64::from(segment);
            let tracts: std::collections::BTreeSet<u64> =
                (begin..begin + u64::from(segment)).map(|block| stripe.place(block).tract).collect();
            prop_assert_eq!(tracts.len(), segment as usize);
        }
    }

    #[test]
    fn segments_of_none_or_too_many_are_refused() {
        assert!(
            Stripe::new(0, 2048).is_err() && Stripe::new(129, 2048).is_err() && Stripe::new(1, 0).is_err()
        );
    }
}
