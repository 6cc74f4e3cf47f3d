//! Locality estimate of reads: how likely bytes near a fetched object are to be asked for soon (for prefetch).
//!
//! Every fetch drops an *anchor* at the object that made it necessary. The bytes around an anchor, before and behind, are
//! divided into bands that double (16 KiB, 16 KiB, 32 KiB … 2 MiB). What is asked for later in the same segment *touches*
//! 16 KiB cells. Of the cells in some band of recent anchors that had not been touched before, the share that is touched by
//! now estimates the chance that bytes at this distance will be used, and the mean number of touches how many requests it
//! would save to have them. Both are measured whether or not the bytes were fetched, so the estimate finds its way up from
//! exact fetching as well as down from whole segments:
//!
//! - Bytes used count at once; bytes not used count in full only after eight further fetches (a walk needs time).
//! - Old anchors fade (a tenth per fetch), so a change of behaviour is followed within some ten fetches.
//! - Anchors are judged by how they came about: the first touch of a segment, the continuation of a run, or a jump within a
//!   segment. A scan and random reads at the same time do not spoil each other's estimate, and what is learnt on one segment
//!   is the initial guess on the next.
//!
//! All is arithmetic on what was asked for, in order: the same reads give the same estimates.

use firn_format::SegmentId;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

/// Grain of the memory of what was touched.
const CELL_BYTES: u32 = 16 << 10;
/// Cells of the largest segment the format allows.
const CELLS: usize = firn_format::MAX_SEGMENT_BYTES / CELL_BYTES as usize;
/// What a segment is taken to hold until its end was seen: writers finish one at 4 MiB, more or less an object.
const USUAL_SEGMENT_BYTES: u32 = 4 << 20;
/// Asked for beyond that: what is not there costs nothing, and a second GET for the last few objects would.
const BEYOND_BYTES: u32 = 512 << 10;
/// Segments whose touches are remembered; at 200 bytes each this costs nothing.
const SEGMENTS_MAX: usize = 512;
/// Anchors of each kind that are looked at.
const ANCHORS_MAX: usize = 32;
/// Fetches after which an untouched byte counts in full as unused.
const UNUSED_AFTER_FETCHES: f64 = 8.0;
/// Weight of an anchor relative to the one after it.
const FADING: f64 = 0.9;
/// How many anchors an initial belief is worth.
const BELIEF_WEIGHT: f64 = 0.5;

/// Distances from an anchor, in cells: each band is twice the one before, together they reach over a segment.
pub(super) const BANDS: usize = 9;

const fn band(index: usize) -> Range<usize> {
    match index {
        0 => 0..1,
        _ => 1 << (index - 1)..1 << index,
    }
}

/// Bytes of a band.
pub(super) fn band_bytes(index: usize) -> u32 {
    band(index).len() as u32 * CELL_BYTES
}

/// How an anchor came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nothing in this segment was asked for lately.
    First = 0,
    /// What lies just before was.
    Run = 1,
    /// Something else in the segment was.
    Jump = 2,
}

impl Arrival {
    /// All, in the order of their numbers.
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Run, Self::Jump];

    /// The chance that near bytes are used, before anything was observed. High enough to try a little, since a try that fails
    /// costs a few KiB and is remembered.
    const fn belief(self, band: usize) -> f64 {
        let near = match self {
            Self::First => 0.6,
            Self::Run => 0.8,
            Self::Jump => 0.5,
        };
        near / (1 << (band / 2)) as f64
    }
}

/// A set of cells.
#[derive(Clone, Copy)]
struct Cells([u64; CELLS / 64]);

impl Cells {
    const NONE: Self = Self([0; CELLS / 64]);

    fn set(&mut self, cell: usize) {
        if let Some(word) = self.0.get_mut(cell / 64) {
            *word |= 1 << (cell % 64);
        }
    }

    fn get(&self, cell: usize) -> bool {
        self.0
            .get(cell / 64)
            .is_some_and(|word| word >> (cell % 64) & 1 == 1)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

struct Segment {
    touched: Cells,
    /// How many objects that begin in a cell were asked for.
    touches: Box<[u8; CELLS]>,
    /// Its length, once a fetch came back short.
    end: Option<u32>,
    touched_at: u64,
}

struct Anchor {
    segment: SegmentId,
    cells: Range<usize>,
    touched_before: Cells,
    /// Which fetch it was.
    fetch: u64,
}

/// The memory of recent reads.
pub(super) struct Locality {
    segments: BTreeMap<SegmentId, Segment>,
    order: BTreeMap<u64, SegmentId>,
    touches: u64,
    fetches: u64,
    anchors: [VecDeque<Anchor>; 3],
}

/// What is to be expected of a band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// The share of its bytes that will be used.
    pub(super) used: f64,
    /// Requests for objects in it.
    pub(super) touches: f64,
}

/// What is to be expected of the bands behind an anchor and before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chances {
    pub(super) forward: [Expected; BANDS],
    pub(super) backward: [Expected; BANDS],
}

fn cells_of(range: &Range<u32>) -> Range<usize> {
    (range.start / CELL_BYTES) as usize..range.end.div_ceil(CELL_BYTES) as usize
}

impl Locality {
    pub(super) fn new() -> Self {
        Self {
            segments: BTreeMap::new(),
            order: BTreeMap::new(),
            touches: 0,
            fetches: 0,
            anchors: Default::default(),
        }
    }

    /// An object was asked for that no cache of opened objects had.
    pub(super) fn touch(&mut self, segment: SegmentId, range: &Range<u32>) -> Arrival {
        self.touches += 1;
        let now = self.touches;
        let entry = self.segments.entry(segment).or_insert(Segment {
            touched: Cells::NONE,
            touches: Box::new([0; CELLS]),
            end: None,
            touched_at: 0,
        });
        let cells = cells_of(range);
        let arrival = if entry.touched.is_empty() {
            Arrival::First
        } else if entry.touched.get(cells.start)
            || cells
                .start
                .checked_sub(1)
                .is_some_and(|cell| entry.touched.get(cell))
        {
            Arrival::Run
        } else {
            Arrival::Jump
        };
        if let Some(touches) = entry.touches.get_mut(cells.start) {
            *touches = touches.saturating_add(1);
        }
        for cell in cells {
            entry.touched.set(cell);
        }
        let before = std::mem::replace(&mut entry.touched_at, now);
        self.order.remove(&before);
        self.order.insert(now, segment);
        while self.order.len() > SEGMENTS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.segments.remove(&oldest);
        }
        arrival
    }

    /// An object (touched just now) has to be fetched.
    pub(super) fn anchor(&mut self, segment: SegmentId, range: &Range<u32>, arrival: Arrival) {
        self.fetches += 1;
        let touched_before = self
            .segments
            .get(&segment)
            .map_or(Cells::NONE, |entry| entry.touched);
        let anchors = &mut self.anchors[arrival as usize];
        anchors.push_front(Anchor {
            segment,
            cells: cells_of(range),
            touched_before,
            fetch: self.fetches,
        });
        anchors.truncate(ANCHORS_MAX);
    }

    /// The segment was seen to end.
    pub(super) fn note_end(&mut self, segment: SegmentId, end: u32) {
        if let Some(entry) = self.segments.get_mut(&segment) {
            entry.end = Some(end);
        }
    }

    /// Where the segment ends at the latest, as far as is known or usual.
    pub(super) fn end_of(&self, segment: SegmentId, at_least: u32) -> u32 {
        self.segments
            .get(&segment)
            .and_then(|entry| entry.end)
            .unwrap_or(USUAL_SEGMENT_BYTES + BEYOND_BYTES)
            .max(at_least)
    }

    /// Judges by what became of recent anchors of the same kind, and a little by those of the others.
    pub(super) fn chances(&self, arrival: Arrival) -> Chances {
        let mut own = Evidence::default();
        let mut all = Evidence::default();
        for (kind, anchors) in self.anchors.iter().enumerate() {
            let evidence = self.evidence(anchors);
            if kind == arrival as usize {
                own = evidence;
            }
            all.add(&evidence);
        }
        let judge = |own: &[Band; BANDS], all: &[Band; BANDS]| {
            std::array::from_fn(|index| {
                let cells = band(index).len() as f64;
                let first = arrival.belief(index);
                let guess = all[index].judge(first, first, BELIEF_WEIGHT * cells);
                let (used, touches) = own[index].judge(guess.0, guess.1, BELIEF_WEIGHT * cells);
                Expected {
                    used,
                    touches: touches * cells,
                }
            })
        };
        Chances {
            forward: judge(&own.forward, &all.forward),
            backward: judge(&own.backward, &all.backward),
        }
    }

    fn evidence(&self, anchors: &VecDeque<Anchor>) -> Evidence {
        let mut evidence = Evidence::default();
        let mut weight = 1.0;
        for anchor in anchors {
            let Some(entry) = self.segments.get(&anchor.segment) else {
                continue;
            };
            let later = (self.fetches - anchor.fetch) as f64;
            let seen = Seen {
                entry,
                before: &anchor.touched_before,
                weight,
                unused_weight: weight * (later / UNUSED_AFTER_FETCHES).min(1.0),
            };
            let end = (entry.end.unwrap_or(USUAL_SEGMENT_BYTES)).div_ceil(CELL_BYTES) as usize;
            for index in 0..BANDS {
                let distances = band(index);
                let ahead = distances.clone().map(|distance| anchor.cells.end + distance);
                seen.count(ahead.filter(|cell| *cell < end), &mut evidence.forward[index]);
                let behind = distances.filter_map(|distance| anchor.cells.start.checked_sub(distance + 1));
                seen.count(behind, &mut evidence.backward[index]);
            }
            weight *= FADING;
        }
        evidence
    }
}

/// Weighted counts of cells that had not been touched before their anchor.
#[derive(Clone, Copy, Default)]
struct Band {
    used: f64,
    all: f64,
    touches: f64,
}

impl Band {
    /// Share of used cells and mean touches of a cell, starting from a guess that is worth `weight` cells.
    fn judge(&self, used: f64, touches: f64, weight: f64) -> (f64, f64) {
        let all = self.all + weight;
        (
            (self.used + used * weight) / all,
            (self.touches + touches * weight) / all,
        )
    }
}

#[derive(Clone, Copy, Default)]
struct Evidence {
    forward: [Band; BANDS],
    backward: [Band; BANDS],
}

impl Evidence {
    fn add(&mut self, other: &Self) {
        let bands = self.forward.iter_mut().chain(&mut self.backward);
        for (band, more) in bands.zip(other.forward.iter().chain(&other.backward)) {
            band.used += more.used;
            band.all += more.all;
            band.touches += more.touches;
        }
    }
}

/// One anchor's evidence.
struct Seen<'a> {
    entry: &'a Segment,
    before: &'a Cells,
    weight: f64,
    unused_weight: f64,
}

impl Seen<'_> {
    fn count(&self, cells: impl Iterator<Item = usize>, band: &mut Band) {
        for cell in cells.filter(|cell| !self.before.get(*cell)) {
            if self.entry.touched.get(cell) {
                band.used += self.weight;
                band.all += self.weight;
                band.touches += self.weight * self.entry.touches.get(cell).copied().map_or(0.0, f64::from);
            } else {
                band.all += self.unused_weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrival, BANDS, CELL_BYTES, Locality, SEGMENTS_MAX, band, band_bytes};
    use firn_format::{SegmentId, WriterId};

    fn segment(sequence: u64) -> SegmentId {
        SegmentId {
            writer: WriterId(1),
            sequence,
        }
    }

    /// Asks for an object as exact fetching would: each one is fetched.
    fn read(locality: &mut Locality, sequence: u64, cell: u32) -> Arrival {
        let range = cell * CELL_BYTES..(cell + 1) * CELL_BYTES;
        let arrival = locality.touch(segment(sequence), &range);
        locality.anchor(segment(sequence), &range, arrival);
        arrival
    }

    #[test]
    fn the_bands_cover_a_segment_without_gap() {
        assert_eq!((0..BANDS).map(band_bytes).sum::<u32>(), 4 << 20);
        assert!((1..BANDS).all(|index| band(index).start == band(index - 1).end));
    }

    #[test]
    fn a_walk_makes_all_distances_likely_also_on_the_next_segment() {
        let mut locality = Locality::new();
        for sequence in 0..4 {
            for cell in 0..256 {
                read(&mut locality, sequence, cell);
            }
        }
        let run = locality.chances(Arrival::Run);
        assert!(
            run.forward[..6].iter().all(|expected| expected.used > 0.7),
            "{run:?}"
        );
        let first = locality.chances(Arrival::First);
        assert!(
            first.forward.iter().all(|expected| expected.used > 0.7),
            "{first:?}"
        );
        let touches = first.forward[2].touches;
        assert!((1.8..2.2).contains(&touches), "two cells, two objects: {first:?}");
    }

    #[test]
    fn random_reads_make_all_distances_unlikely_within_some_fetches() {
        let mut locality = Locality::new();
        for sequence in 0..4 {
            for cell in 0..256 {
                read(&mut locality, sequence, cell);
            }
        }
        for number in 0..24_u32 {
            assert_eq!(
                read(&mut locality, 1000 + u64::from(number), number * 97 % 256),
                Arrival::First
            );
        }
        let chances = locality.chances(Arrival::First);
        assert!(
            chances
                .forward
                .iter()
                .chain(&chances.backward)
                .all(|expected| expected.used < 0.2),
            "{chances:?}"
        );
        // The walk's own estimate stays: it may go on at any time.
        assert!(locality.chances(Arrival::Run).forward[3].used > 0.5);
    }

    #[test]
    fn bytes_beyond_a_segments_end_say_nothing() {
        let mut locality = Locality::new();
        for sequence in 0..20 {
            for cell in [0, 1, 2, 3] {
                read(&mut locality, sequence, cell);
            }
            locality.note_end(segment(sequence), 4 * CELL_BYTES);
        }
        let chances = locality.chances(Arrival::First);
        assert!(
            chances.forward[..3].iter().all(|expected| expected.used > 0.8),
            "{chances:?}"
        );
    }

    #[test]
    fn the_memory_of_segments_is_bounded() {
        let mut locality = Locality::new();
        for sequence in 0..3 * SEGMENTS_MAX as u64 {
            read(&mut locality, sequence, 7);
        }
        assert_eq!(locality.segments.len(), SEGMENTS_MAX);
        assert_eq!(locality.order.len(), SEGMENTS_MAX);
    }
}
