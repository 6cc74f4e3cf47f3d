//! The shape of the trees: sparse radix trees of 128 slots, used for inode maps and for the block map of every file.
//!
//! Levels count from the leaves (level 0); a node at level 1 points to leaves. A tree's root may stand at any level from
//! 1 up: a small file has one node, and a tree grows by putting a node above its root. An absent slot is a hole, so a
//! sparse file costs what its data cost. Every function is total: any index at any level has an answer.

/// Slots of a node: 128 pointers are about 8 KiB encoded, so changing one leaf rewrites 8 KiB a level, and three levels
/// reach 2 million leaves (64 GiB in blocks of 32 KiB).
pub const FANOUT: u16 = 128;

/// log2 of [`FANOUT`].
const BITS: u32 = FANOUT.trailing_zeros();

/// Levels of nodes needed so that leaf `index` can be reached; at least 1.
pub const fn levels_for(index: u64) -> u8 {
    let used = u64::BITS - index.leading_zeros();
    let levels = used.div_ceil(BITS);
    if levels == 0 { 1 } else { levels as u8 }
}

/// The slot to follow in the node at `level` on the way to leaf `index`.
///
/// # Panics
/// If `level` is 0: a leaf has no slots.
pub const fn slot(index: u64, level: u8) -> u16 {
    assert!(level > 0, "a leaf has no slots");
    (node_index(index, level - 1) % FANOUT as u64) as u16
}

/// Which of the nodes of `level` stands above leaf `index` (`level` 0: the leaf itself).
pub const fn node_index(index: u64, level: u8) -> u64 {
    let shift = BITS * level as u32;
    if shift >= u64::BITS { 0 } else { index >> shift }
}

/// The first leaf below node `node` of `level`.
pub const fn first_leaf(node: u64, level: u8) -> u64 {
    let shift = BITS * level as u32;
    if shift >= u64::BITS { 0 } else { node << shift }
}

/// The last leaf index that a tree whose root is at `level` reaches.
pub const fn last_leaf(level: u8) -> u64 {
    let bits = BITS * level as u32;
    if bits >= u64::BITS {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_LEVEL;
    use proptest::prelude::*;

    #[test]
    fn one_more_level_is_needed_where_the_last_one_is_full() {
        assert_eq!(levels_for(0), 1);
        for level in 1..MAX_LEVEL {
            let last = last_leaf(level);
            assert_eq!(levels_for(last), level);
            assert_eq!(levels_for(last + 1), level + 1);
        }
        assert_eq!(last_leaf(MAX_LEVEL), u64::MAX);
        assert_eq!(levels_for(u64::MAX), MAX_LEVEL);
    }

    proptest! {
        #[test]
        fn following_the_slots_from_the_top_leads_to_the_leaf(index: u64) {
            let index = index >> (index % 64);
            let top = levels_for(index);
            prop_assert_eq!(node_index(index, top), 0);
            let mut reached = 0;
            for level in (1..=top).rev() {
                prop_assert_eq!(reached, node_index(index, level));
                prop_assert!(slot(index, level) < FANOUT);
                reached = reached * u64::from(FANOUT) + u64::from(slot(index, level));
            }
            prop_assert_eq!(reached, index);
            for level in 0..=top {
                let first = first_leaf(node_index(index, level), level);
                prop_assert!(first <= index && index - first <= last_leaf(level));
            }
        }
    }
}
