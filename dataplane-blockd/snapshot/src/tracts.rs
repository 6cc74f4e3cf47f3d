//! A set of tracts: a bit each, 16 KiB for a TiB.

use std::ops::Range;

/// Grows to whatever is put in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TractSet {
    words: Vec<u64>,
}

fn place(tract: u64) -> (usize, u64) {
    ((tract / 64) as usize, 1 << (tract % 64))
}

impl TractSet {
    /// The first `count`.
    pub(crate) fn all(count: u64) -> Self {
        let mut set = Self::default();
        set.insert(0..count);
        set
    }

    pub(crate) fn insert(&mut self, tracts: Range<u64>) {
        for tract in tracts {
            let (word, bit) = place(tract);
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= bit;
        }
    }

    pub(crate) fn remove(&mut self, tract: u64) {
        let (word, bit) = place(tract);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(crate) fn contains(&self, tract: u64) -> bool {
        let (word, bit) = place(tract);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The first one at or after `from`.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        let (first, _) = place(from);
        (first..self.words.len()).find_map(|at| {
            let mut word = self.words[at];
            if at == first {
                word &= u64::MAX << (from % 64);
            }
            (word != 0).then(|| at as u64 * 64 + u64::from(word.trailing_zeros()))
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Leaves out `count` and all after it.
    pub(crate) fn truncate(&mut self, count: u64) {
        let (word, _) = place(count);
        self.words.truncate(word + 1);
        if let Some(last) = self.words.get_mut(word) {
            *last &= (1 << (count % 64)) - 1;
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
        fn it_is_a_set(
            ranges in proptest::collection::vec((0..300_u64, 0..40_u64), 0..10),
            removed in proptest::collection::vec(0..340_u64, 0..20),
            from in 0..400_u64,
            cut in 0..400_u64,
        ) {
            let (mut set, mut model) = (TractSet::default(), BTreeSet::new());
            for (first, count) in ranges {
                set.insert(first..first + count);
                model.extend(first..first + count);
            }
            for tract in removed {
                set.remove(tract);
                model.remove(&tract);
            }
            prop_assert_eq!(set.first_from(from), model.range(from..).next().copied());
            prop_assert_eq!(set.count(), model.len() as u64);
            let mut joined = TractSet::all(7);
            joined.add_all(&set);
            set.truncate(cut);
            model.retain(|tract| *tract < cut);
            for tract in 0..400 {
                prop_assert_eq!(set.contains(tract), model.contains(&tract));
                prop_assert!(!set.contains(tract) || joined.contains(tract));
            }
            prop_assert!((0..7).all(|tract| joined.contains(tract)));
        }
    }
}
