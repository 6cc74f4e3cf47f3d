//! Interval map of the journal's newest content: which entry holds which blocks, for what was not destaged to the disk.
//!
//! Ranges never overlap: a newer one cuts what it covers out of the older ones. So they are at most twice as many as there are
//! entries.

use std::{collections::BTreeMap, ops::Range};

/// A part of a range that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its blocks.
    pub(super) blocks: Range<u64>,
    /// The entry that holds them; nothing: the disk does.
    pub(super) entry: Option<u64>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    /// By first block: the end, and the entry.
    spans: BTreeMap<u64, (u64, u64)>,
}

impl Spans {
    /// An entry is now the newest for these blocks.
    pub(super) fn insert(&mut self, blocks: Range<u64>, entry: u64) {
        let overlapping: Vec<(u64, (u64, u64))> = self.overlapping(&blocks).collect();
        for (first, (end, older)) in overlapping {
            self.spans.remove(&first);
            if first < blocks.start {
                self.spans.insert(first, (blocks.start, older));
            }
            if end > blocks.end {
                self.spans.insert(blocks.end, (end, older));
            }
        }
        if !blocks.is_empty() {
            self.spans.insert(blocks.start, (blocks.end, entry));
        }
    }

    /// The disk has an entry's blocks now; those that are newest elsewhere stay so.
    pub(super) fn remove(&mut self, blocks: &Range<u64>, entry: u64) {
        let gone: Vec<u64> = self
            .overlapping(blocks)
            .filter(|(_, (_, of))| *of == entry)
            .map(|(first, _)| first)
            .collect();
        for first in gone {
            self.spans.remove(&first);
        }
    }

    /// Who holds a range, in order.
    pub(super) fn parts(&self, blocks: Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = blocks.start;
        for (first, (end, entry)) in self.overlapping(&blocks) {
            if at < first {
                parts.push(Part {
                    blocks: at..first,
                    entry: None,
                });
            }
            at = end.min(blocks.end);
            parts.push(Part {
                blocks: first.max(blocks.start)..at,
                entry: Some(entry),
            });
        }
        if at < blocks.end {
            parts.push(Part {
                blocks: at..blocks.end,
                entry: None,
            });
        }
        parts
    }

    fn overlapping(&self, blocks: &Range<u64>) -> impl Iterator<Item = (u64, (u64, u64))> + '_ {
        let before = self.spans.range(..blocks.start).next_back();
        let before = before.filter(|(_, (end, _))| *end > blocks.start);
        let within = self.spans.range(blocks.clone());
        before
            .into_iter()
            .chain(within)
            .map(|(first, span)| (*first, *span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_map_of_blocks_to_their_newest_entries(
            changes in proptest::collection::vec((0..60_u64, 1..30_u64, any::<bool>()), 0..30),
            asked in (0..60_u64, 1..40_u64),
        ) {
            let mut spans = Spans::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            let mut known: Vec<Range<u64>> = Vec::new();
            for (first, count, given) in changes {
                let entry = known.len() as u64;
                known.push(first..first + count);
                spans.insert(first..first + count, entry);
                model.extend((first..first + count).map(|block| (block, entry)));
                if given {
                    let oldest = entry / 2;
                    spans.remove(&known[oldest as usize], oldest);
                    model.retain(|_, of| *of != oldest);
                }
            }
            let asked = asked.0..asked.0 + asked.1;
            let parts = spans.parts(asked.clone());
            let found: Vec<(u64, Option<u64>)> = parts
                .iter()
                .flat_map(|part| part.blocks.clone().map(|block| (block, part.entry)))
                .collect();
            let expected: Vec<(u64, Option<u64>)> =
                asked.map(|block| (block, model.get(&block).copied())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
