//! The order in which the log's blocks are written: scattered over all tracts, and computed from three numbers.
//!
//! A linear congruential generator modulo a power of two visits every number below it once before it repeats, if its
//! increment is odd and its multiplier is one more than a multiple of four. Numbers beyond the length are passed over. So a
//! permutation of any length takes constant space, and a position in it is one number.

/// A permutation of `base..base + length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permutation {
    /// First block.
    pub base: u64,
    /// How many.
    pub length: u64,
    /// The generator's multiplier.
    pub multiplier: u64,
    /// The generator's increment.
    pub increment: u64,
}

impl Permutation {
    /// One that is different for each `seed`.
    ///
    /// # Panics
    /// If it would be empty.
    pub fn new(base: u64, length: u64, seed: u64) -> Self {
        assert!(length > 0, "a permutation of nothing has no first element");
        // A multiplier of about half the bits scatters neighbours over the whole range.
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let modulus = length.next_power_of_two();
        let spread = (modulus >> 1) | (modulus >> 3);
        Self {
            base,
            length,
            multiplier: (((spread ^ (mixed % modulus)) & !3) | 1) % modulus.max(4),
            increment: ((mixed >> 32) | 1) % modulus.max(2),
        }
    }

    /// The number after `x` in the cycle of all numbers below the length.
    pub fn after(&self, mut x: u64) -> u64 {
        let mask = self.length.next_power_of_two() - 1;
        loop {
            x = x.wrapping_mul(self.multiplier).wrapping_add(self.increment) & mask;
            if x < self.length {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_block_is_visited_once_in_a_cycle(length in 1..3000_u64, seed: u64) {
            let permutation = Permutation::new(0, length, seed);
            let (mut seen, mut x) = (BTreeSet::new(), 0);
            for _ in 0..length {
                x = permutation.after(x);
                prop_assert!(x < length && seen.insert(x));
            }
            prop_assert_eq!(x, 0);
        }
    }
}
