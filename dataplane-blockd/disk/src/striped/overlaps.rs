//! Interval index: the pieces that overlap a range of blocks, for pieces that are a block long and for pieces that are
//! a gibibyte long.
//!
//! ```text
//! class 0    1 block       ▌  ▌▌    ▌          an index by first block for each class of lengths (2^(c-1), 2^c]:
//! class 1    2 blocks        ██                what overlaps [a, b) begins behind a - 2^c and before b
//! class 10   513 … 1024        ████████████
//! ```
//!
//! Pieces of a class that do not overlap each other are few in such a window, so a question costs a step for each class in use,
//! and one for each answer. There are at most 65 classes.

use std::{collections::BTreeMap, ops::Range};

/// Pieces by where they lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Overlaps {
    /// By class: first block and number to the end of the piece.
    classes: BTreeMap<u32, BTreeMap<(u64, u64), u64>>,
}

fn class(blocks: &Range<u64>) -> u32 {
    (blocks.end - blocks.start).next_power_of_two().trailing_zeros()
}

impl Overlaps {
    /// Takes a piece in; its number is its own.
    pub(super) fn insert(&mut self, blocks: &Range<u64>, number: u64) {
        let class = self.classes.entry(class(blocks)).or_default();
        class.insert((blocks.start, number), blocks.end);
    }

    /// Leaves a piece out again.
    pub(super) fn remove(&mut self, blocks: &Range<u64>, number: u64) {
        let class = class(blocks);
        if let Some(pieces) = self.classes.get_mut(&class) {
            pieces.remove(&(blocks.start, number));
            if pieces.is_empty() {
                self.classes.remove(&class);
            }
        }
    }

    /// The numbers of the pieces that overlap a range, in no order.
    pub(super) fn of(&self, blocks: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.classes.iter().flat_map(move |(class, pieces)| {
            let longest = 1_u64.checked_shl(*class).unwrap_or(u64::MAX);
            let first = (blocks.start + 1).saturating_sub(longest);
            let (start, end) = (blocks.start, blocks.end);
            pieces
                .range((first, 0)..(end, 0))
                .filter(move |(_, piece_end)| **piece_end > start)
                .map(|((_, number), _)| *number)
        })
    }

    /// The newest piece that overlaps a range.
    pub(super) fn newest(&self, blocks: Range<u64>) -> Option<u64> {
        self.of(blocks).max()
    }

    /// Whether an older piece than this one overlaps its range.
    pub(super) fn is_behind(&self, blocks: Range<u64>, number: u64) -> bool {
        self.of(blocks).any(|other| other < number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_a_look_at_all_pieces_finds(
            pieces in proptest::collection::vec((0..200_u64, 1..80_u64, any::<bool>()), 0..40),
            asked in (0..200_u64, 1..80_u64),
        ) {
            let mut overlaps = Overlaps::default();
            let mut kept = Vec::new();
            for (number, (first, count, leaves)) in (0..).zip(pieces) {
                let blocks = first..first + count;
                overlaps.insert(&blocks, number);
                if leaves {
                    overlaps.remove(&blocks, number);
                } else {
                    kept.push((blocks, number));
                }
            }
            let asked = asked.0..asked.0 + asked.1;
            let mut found: Vec<u64> = overlaps.of(asked.clone()).collect();
            found.sort_unstable();
            let expected: Vec<u64> = kept
                .iter()
                .filter(|(blocks, _)| blocks.start < asked.end && asked.start < blocks.end)
                .map(|(_, number)| *number)
                .collect();
            prop_assert_eq!(overlaps.newest(asked.clone()), expected.last().copied());
            for number in &expected {
                prop_assert_eq!(overlaps.is_behind(asked.clone(), *number), expected[0] < *number);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
