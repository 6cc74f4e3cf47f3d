//! Fetching ahead: objects that nobody has asked for yet and somebody will, such as the next blocks of a file that is being read.
//!
//! Of the objects named, those that are nowhere near are put in order of their places in segments. What lies side by side there
//! is one *run* and one GET, whether or not it lies side by side in the file: of a file that was overwritten here and there, the
//! blocks that are left of an old segment are some runs, the new ones of one checkpoint are one. Runs are not widened by what
//! reads have been like; a gap between two is fetched along only if it costs less than a GET, and never more than an eighth.
//!
//! A GET made ahead is like any other under way: who needs the bytes waits for it. If it fails, that is nobody's failure: who
//! waited asks for itself, with all the retries that a reader has.

use super::{FetchPolicy, Inner, Objects};
use firn_format::{Location, MAX_OBJECT_BYTES, Pointer, SegmentId};
use std::{collections::BTreeMap, ops::Range};

/// An object that is wanted: its place in its segment, and its place in the order in which it will be needed.
type Wanted = (Range<u32>, u64);

/// What one or some GETs fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) segment: SegmentId,
    pub(super) range: Range<u32>,
    /// The first of its objects to be needed.
    pub(super) first: u64,
}

impl Objects {
    /// Fetches what is nowhere near of the objects that `leaves` name, in the order of their indices: those below `until`, and
    /// of those beyond it what lies in a run with them. Starts GETs and never waits. Returns the first index that had to be left
    /// out because enough is under way.
    pub(crate) fn fetch_ahead(&self, leaves: &[(u64, Pointer)], until: u64) -> Option<u64> {
        let inner = &self.inner;
        if inner.fetcher.policy() != FetchPolicy::Adaptive || !inner.disk.can_hold_anything() {
            return None;
        }
        let mut by_segment: BTreeMap<SegmentId, Vec<Wanted>> = BTreeMap::new();
        for (index, pointer) in self.nowhere_near(leaves) {
            let location = pointer.location;
            // Places are anybody's word until the object was verified.
            if let Some(range) = location_range(&location) {
                by_segment
                    .entry(location.segment)
                    .or_default()
                    .push((range, *index));
            }
        }
        let mut due: Vec<Run> = Vec::new();
        for (segment, wanted) in by_segment {
            let gap_bytes = inner.fetcher.gap_bytes();
            let runs = runs(segment, wanted, gap_bytes);
            due.extend(runs.into_iter().filter(|run| run.first < until));
        }
        due.sort_by_key(|run| run.first);
        for run in due {
            if !inner.fetcher.fetch_ahead(run.segment, run.range) {
                return Some(run.first);
            }
        }
        None
    }

    /// Those that are not in memory, nor in the disk cache, nor on their way here, nor known to have been moved.
    fn nowhere_near<'a>(&self, leaves: &'a [(u64, Pointer)]) -> Vec<&'a (u64, Pointer)> {
        let inner = &self.inner;
        let mut far: Vec<_> = {
            let state = inner.lock();
            let absent = |(_, pointer): &&(u64, Pointer)| {
                state.memory.get_copy(&pointer.uid).is_none() && !state.loads.contains_key(pointer)
            };
            leaves.iter().filter(absent).collect()
        };
        far.retain(|(_, pointer)| !inner.is_near(&pointer.location));
        far
    }
}

impl Inner {
    /// Whether the object is in the disk cache or on its way, or is known not to be where its pointer says.
    pub(super) fn is_near(&self, location: &Location) -> bool {
        let segment = location.segment;
        self.disk.may_hold(location)
            || self.fetcher.is_under_way(location)
            || self.fetcher.is_absent(segment)
            || self.fetcher.forwarding().remembered(location).is_some()
            || self.relocations.before(location).is_some()
    }
}

/// The bytes a location names; `None` if no object is so long or ends so far.
pub(super) fn location_range(location: &Location) -> Option<Range<u32>> {
    let end = location.offset.checked_add(location.length)?;
    (location.length as usize <= MAX_OBJECT_BYTES).then_some(location.offset..end)
}

/// Joins what lies side by side, and across gaps of `gap_bytes` at most, the shortest first, while all of them together are no
/// more than an eighth of what is wanted.
pub(super) fn runs(segment: SegmentId, mut wanted: Vec<Wanted>, gap_bytes: u32) -> Vec<Run> {
    wanted.sort_by_key(|(range, _)| (range.start, range.end));
    let gap = |pair: &[Wanted]| pair[1].0.start.saturating_sub(pair[0].0.end);
    let mut gaps: Vec<(u32, usize)> = wanted
        .windows(2)
        .enumerate()
        .map(|(at, pair)| (gap(pair), at + 1))
        .filter(|(bytes, _)| *bytes <= gap_bytes)
        .collect();
    gaps.sort_unstable();
    let wanted_bytes: u64 = wanted
        .iter()
        .map(|(range, _)| u64::from(range.end - range.start))
        .sum();
    let mut left = wanted_bytes / 8;
    let mut is_joined = vec![false; wanted.len()];
    for (bytes, at) in gaps {
        let Some(rest) = left.checked_sub(u64::from(bytes)) else {
            break;
        };
        left = rest;
        is_joined[at] = true;
    }
    let mut runs: Vec<Run> = Vec::new();
    for ((range, index), joined) in wanted.into_iter().zip(is_joined) {
        match runs.last_mut() {
            Some(run) if joined => {
                run.range.end = run.range.end.max(range.end);
                run.first = run.first.min(index);
            }
            _ => runs.push(Run {
                segment,
                range,
                first: index,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::{Run, runs};
    use firn_format::{SegmentId, WriterId};

    const SEGMENT: SegmentId = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };

    fn run(range: std::ops::Range<u32>, first: u64) -> Run {
        Run {
            segment: SEGMENT,
            range,
            first,
        }
    }

    #[test]
    fn what_lies_side_by_side_is_one_run_in_whatever_order_it_is_needed() {
        let wanted = vec![(200..300, 5), (0..100, 9), (100..200, 7), (900..1000, 1)];
        assert_eq!(runs(SEGMENT, wanted, 0), [run(0..300, 5), run(900..1000, 1)]);
        assert_eq!(runs(SEGMENT, Vec::new(), 0), []);
    }

    #[test]
    fn short_gaps_are_joined_as_long_as_they_are_an_eighth_of_what_is_wanted() {
        // 400 bytes are wanted: 50 more are allowed.
        let wanted = vec![(0..100, 0), (130..230, 1), (245..345, 2), (380..480, 3)];
        assert_eq!(
            runs(SEGMENT, wanted.clone(), 1000),
            [run(0..345, 0), run(380..480, 3)]
        );
        assert_eq!(
            runs(SEGMENT, wanted, 20),
            [run(0..100, 0), run(130..345, 1), run(380..480, 3)]
        );
    }
}
