//! Receive state of a stream of usage records: everything before `end` was received but the holes.
//!
//! ```text
//! sequence   1 ……………… 40   41 … 44   45 ……………… 80   81 …
//!            received       hole      received       end = 81
//! ```
//!
//! Batches come in order as a rule, so there are no holes and the whole state is one number. A batch that overtook another
//! leaves a hole; the other one fills it. A hole that stays is reported, once; if it is filled later, that counts all the
//! same.

use serde::{Deserialize, Serialize};

/// Holes of one stream at most. A sender with more has to send the oldest first.
pub(crate) const HOLES_MAX: usize = 128;

/// Sequence numbers not received although later ones were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hole {
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// When a later record was first received.
    pub(crate) since_ms: u64,
    pub(crate) reported: bool,
}

/// The state of one (source, incarnation).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHead {
    pub(crate) end: u64,
    pub(crate) holes: Vec<Hole>,
    /// When something new was last received.
    pub(crate) received_ms: u64,
}

/// Sequence numbers from the first to before the second.
pub(crate) type Range = (u64, u64);

impl StreamHead {
    pub(crate) fn new() -> Self {
        Self {
            end: 1,
            holes: Vec::new(),
            received_ms: 0,
        }
    }

    /// Splits a range into what was received before and what is new.
    pub(crate) fn split(&self, range: Range) -> (Vec<Range>, Vec<Range>) {
        if firn_env::planted!("billing.overlap_is_new") {
            return if range.0 >= self.end || range.1 > self.end {
                (Vec::new(), vec![range])
            } else {
                (vec![range], Vec::new())
            };
        }
        let (mut known, mut new) = (Vec::new(), Vec::new());
        let mut at = range.0;
        for hole in &self.holes {
            let (first, next) = (hole.first.max(at), hole.next.min(range.1));
            if first >= next {
                continue;
            }
            if at < first {
                known.push((at, first));
            }
            new.push((first, next));
            at = next;
        }
        let end = self.end.clamp(at, range.1);
        if at < end {
            known.push((at, end));
            at = end;
        }
        if at < range.1 {
            new.push((at, range.1));
        }
        (known, new)
    }

    /// Notes that a new range, as `split` gave it, was received.
    pub(crate) fn receive(&mut self, range: Range, now_ms: u64) {
        self.received_ms = self.received_ms.max(now_ms);
        if range.0 >= self.end {
            if range.0 > self.end && !firn_env::planted!("billing.reordered_is_lost") {
                self.holes.push(Hole {
                    first: self.end,
                    next: range.0,
                    since_ms: now_ms,
                    reported: false,
                });
            }
            self.end = range.1;
            return;
        }
        let mut left = Vec::with_capacity(self.holes.len() + 1);
        for hole in self.holes.drain(..) {
            let piece = |first: u64, next: u64| Hole {
                first,
                next,
                ..hole.clone()
            };
            if hole.next <= range.0 || range.1 <= hole.first {
                left.push(hole);
                continue;
            }
            if hole.first < range.0 {
                left.push(piece(hole.first, range.0));
            }
            if range.1 < hole.next {
                left.push(piece(range.1, hole.next));
            }
        }
        self.holes = left;
        self.end = self.end.max(range.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn any_order_of_overlapping_ranges_is_taken_once_each(ranges in proptest::collection::vec((1..60_u64, 1..12_u64), 1..40)) {
            let mut head = StreamHead::new();
            let mut model = BTreeSet::new();
            for (moment, (first, length)) in ranges.into_iter().enumerate() {
                let range = (first, first + length);
                let (known, new) = head.split(range);
                let mut covered = Vec::new();
                for (known_first, known_next) in &known {
                    covered.extend(*known_first..*known_next);
                    prop_assert!((*known_first..*known_next).all(|sequence| model.contains(&sequence)));
                }
                for (new_first, new_next) in &new {
                    covered.extend(*new_first..*new_next);
                    prop_assert!((*new_first..*new_next).all(|sequence| model.insert(sequence)));
                    head.receive((*new_first, *new_next), moment as u64);
                }
                covered.sort_unstable();
                prop_assert_eq!(covered, (range.0..range.1).collect::<Vec<_>>());
                let missing: Vec<u64> = head.holes.iter().flat_map(|hole| hole.first..hole.next).collect();
                let expected: Vec<u64> = (1..head.end).filter(|sequence| !model.contains(sequence)).collect();
                prop_assert_eq!(missing, expected);
            }
        }
    }
}
