//! A set of byte ranges of one segment.

use std::{collections::BTreeMap, ops::Range};

/// Disjoint, non-adjacent ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u32, u32>,
}

impl RangeSet {
    /// Adds a range; returns how many of its bytes are new.
    pub(super) fn insert(&mut self, range: Range<u32>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut merged = range.clone();
        let mut old_bytes = 0;
        let touching: Vec<(u32, u32)> = self
            .ranges
            .range(..=range.end)
            .rev()
            .map(|(start, end)| (*start, *end))
            .take_while(|(_, end)| *end >= range.start)
            .collect();
        for (start, end) in touching {
            self.ranges.remove(&start);
            old_bytes += u64::from(end.min(range.end).saturating_sub(start.max(range.start)));
            merged = merged.start.min(start)..merged.end.max(end);
        }
        self.ranges.insert(merged.start, merged.end);
        u64::from(range.end - range.start) - old_bytes
    }

    /// Takes a range out; returns how many bytes that were.
    pub(super) fn remove(&mut self, range: Range<u32>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let touched = self.overlaps(&range);
        let mut removed = 0;
        for Range { start, end } in touched {
            self.ranges.remove(&start);
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
            removed += u64::from(end.min(range.end) - start.max(range.start));
        }
        removed
    }

    /// Whether the whole range is there.
    pub(super) fn contains(&self, range: &Range<u32>) -> bool {
        range.is_empty()
            || self
                .ranges
                .range(..=range.start)
                .next_back()
                .is_some_and(|(_, end)| *end >= range.end)
    }

    /// The ranges that share bytes with `range`, in order.
    pub(super) fn overlaps(&self, range: &Range<u32>) -> Vec<Range<u32>> {
        if range.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<Range<u32>> = self
            .ranges
            .range(..range.end)
            .rev()
            .map(|(start, end)| *start..*end)
            .take_while(|held| held.end > range.start)
            .collect();
        found.reverse();
        found
    }

    /// All ranges in order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u32>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_range_set_is_a_set_of_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0_u32..60, 0_u32..12), 1..60),
            probe in (0_u32..60, 0_u32..12),
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (add, start, length) in steps {
                let range = start..start + length;
                let before = model.len() as u64;
                if add {
                    model.extend(range.clone());
                    prop_assert_eq!(set.insert(range), model.len() as u64 - before);
                } else {
                    model.retain(|byte| !range.contains(byte));
                    prop_assert_eq!(set.remove(range), before - model.len() as u64);
                }
                let bytes: BTreeSet<u32> = set.iter().flatten().collect();
                prop_assert_eq!(&bytes, &model);
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            let range = probe.0..probe.0 + probe.1;
            prop_assert_eq!(set.contains(&range), range.clone().all(|byte| model.contains(&byte)));
            let shared: BTreeSet<u32> =
                set.overlaps(&range).into_iter().flatten().filter(|byte| range.contains(byte)).collect();
            prop_assert_eq!(shared, model.intersection(&range.collect()).copied().collect());
        }
    }
}
