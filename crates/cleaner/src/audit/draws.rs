//! Draws: a sample of the bytes of a stream whose length is not known before its end; each byte has the same chance in each slot.
//!
//! Each slot is a weighted reservoir of one (Chao 1982; the jumps are those of Efraimidis and Spirakis 2006): what it has drawn
//! among the first `a` bytes is still there at byte `c` with probability a / c. So the next byte at which it draws anew is a / u
//! for a u that is uniform in (0, 1], and nothing needs to be done until the stream comes there: ln(bytes) draws a slot.
//!
//! The numbers are those of BLAKE3's extendable output for the seed, so whoever has the seed and the same stream draws the same.

use std::{cmp::Reverse, collections::BinaryHeap};

/// 2⁻⁵³: of a number of 53 random bits a fraction.
const UNIT: f64 = 1.0 / (1u64 << 53) as f64;

pub(super) struct Draws<T> {
    numbers: blake3::OutputReader,
    /// The byte at which each slot draws next. The bits of numbers that are not negative are in their order.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    drawn: Vec<Option<T>>,
    met_bytes: u64,
}

impl<T: Copy> Draws<T> {
    /// The numbers follow from `seed` and `of`, which tells streams with one seed apart.
    pub fn new(seed: &[u8; 32], of: &[u8], slots: usize) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("firn 1 audit draws");
        hasher.update(seed).update(of);
        Self {
            numbers: hasher.finalize_xof(),
            next: (0..slots).map(|slot| Reverse((0, slot))).collect(),
            drawn: vec![None; slots],
            met_bytes: 0,
        }
    }

    /// The next `bytes` of the stream are those of `item`.
    pub fn meet(&mut self, item: T, bytes: u32) {
        let end = (self.met_bytes + u64::from(bytes)) as f64;
        self.met_bytes += u64::from(bytes);
        while let Some(Reverse((at, slot))) = self.next.peek().copied()
            && f64::from_bits(at) < end
        {
            self.next.pop();
            self.drawn[slot] = Some(item);
            if firn_env::planted!("cleaner.audit_draws_once") {
                continue;
            }
            let mut number = [0; 8];
            self.numbers.fill(&mut number);
            let unit = ((u64::from_le_bytes(number) >> 11) + 1) as f64 * UNIT;
            self.next.push(Reverse(((end / unit).to_bits(), slot)));
        }
    }

    /// How many there are.
    pub fn slots(&self) -> usize {
        self.drawn.len()
    }

    /// What the slots have drawn; nothing if there was nothing.
    pub fn end(self) -> Vec<T> {
        self.drawn.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_drawn_in_proportion_to_its_bytes() {
        let slots = 200_000;
        let mut draws = Draws::new(&[7; 32], b"", slots);
        let items = [1u32, 1000, 10, 0, 3000, 500, 1, 5488];
        for (item, bytes) in items.iter().enumerate() {
            draws.meet(item, *bytes);
        }
        let drawn = draws.end();
        assert_eq!(drawn.len(), slots, "every slot has drawn");
        for (item, bytes) in items.iter().enumerate() {
            let share = f64::from(*bytes) / 10_000.0;
            let count = drawn.iter().filter(|drawn| **drawn == item).count() as f64;
            let expected = share * slots as f64;
            // Six standard deviations: once in a thousand million runs.
            let bound = 6.0 * (slots as f64 * share * (1.0 - share)).sqrt();
            assert!(
                (count - expected).abs() <= bound,
                "{count} draws of item {item}, {expected} expected"
            );
        }
    }

    #[test]
    fn of_nothing_nothing_is_drawn() {
        assert!(Draws::<u8>::new(&[7; 32], b"", 10).end().is_empty());
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_draws_otherwise() {
        let drawn = |seed: u8, of: &[u8]| {
            let mut draws = Draws::new(&[seed; 32], of, 50);
            for item in 0..1000u32 {
                draws.meet(item, 1 + item % 7);
            }
            draws.end()
        };
        assert_eq!(drawn(1, b"a"), drawn(1, b"a"));
        assert_ne!(drawn(1, b"a"), drawn(2, b"a"));
        assert_ne!(drawn(1, b"a"), drawn(1, b"b"));
        // These very items: whoever repeats a draw years later draws them.
        assert_eq!(drawn(1, b"a")[..4], [305, 867, 505, 901]);
    }
}
