//! Byte ranges locked by one owner in one file: disjoint, in order, each shared or exclusive, neighbours of one kind merged.
//!
//! POSIX has no stack of locks: a new lock replaces what its owner held in its range, cutting ranges that stick out.

use super::ByteRange;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) range: ByteRange,
    pub(super) exclusive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter()
    }

    /// The first segment that overlaps `range`, among the exclusive ones or all.
    pub(super) fn first_overlap(&self, range: ByteRange, only_exclusive: bool) -> Option<&Segment> {
        let start = self.0.partition_point(|segment| segment.range.last < range.first);
        self.0[start..]
            .iter()
            .take_while(|segment| segment.range.first <= range.last)
            .find(|segment| segment.exclusive || !only_exclusive)
    }

    /// Whether each byte of `range` is locked, and for writing if that is asked.
    pub(super) fn covers(&self, range: ByteRange, exclusive: bool) -> bool {
        let mut next = range.first;
        for segment in self.0.iter().filter(|segment| segment.exclusive || !exclusive) {
            if segment.range.first > next {
                return false;
            }
            if segment.range.last >= range.last {
                return true;
            }
            next = next.max(segment.range.last + 1);
        }
        false
    }

    /// Sets `range` to shared, exclusive or (with `None`) not locked.
    pub(super) fn set(&mut self, range: ByteRange, exclusive: Option<bool>) {
        // Everything before `from` ends before the range, everything from `to` on starts after it.
        let from = self.0.partition_point(|segment| segment.range.last < range.first);
        let to = self
            .0
            .partition_point(|segment| segment.range.first <= range.last);
        let (before, after) = (from.checked_sub(1), Some(to).filter(|at| *at < self.0.len()));
        let mut merged: Vec<Segment> = Vec::with_capacity(5);
        merged.extend(before.map(|at| self.0[at]));
        if let Some(left) = self.0[from..to].first()
            && left.range.first < range.first
        {
            merged.push(Segment {
                range: ByteRange {
                    first: left.range.first,
                    last: range.first - 1,
                },
                ..*left
            });
        }
        if let Some(exclusive) = exclusive {
            merged.push(Segment { range, exclusive });
        }
        if let Some(right) = self.0[from..to].last()
            && right.range.last > range.last
        {
            merged.push(Segment {
                range: ByteRange {
                    first: range.last + 1,
                    last: right.range.last,
                },
                ..*right
            });
        }
        merged.extend(after.map(|at| self.0[at]));
        merged.dedup_by(|next, previous| {
            let continues = next.exclusive == previous.exclusive
                && previous.range.last.checked_add(1) == Some(next.range.first);
            if continues {
                previous.range.last = next.range.last;
            }
            continues
        });
        let replaced = before.unwrap_or(from)..after.map_or(to, |at| at + 1);
        self.0.splice(replaced, merged);
    }
}
