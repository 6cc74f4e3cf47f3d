//! The state of a log: what the entries so far have made of it, and nothing else.

use crate::{
    mutants::{Mutant, Planted},
    permutation::Permutation,
    types::{Body, Incarnation, Version},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Free blocks that only releases may use, so that a full log can always go on.
const RELEASE_RESERVE: u64 = 1;
/// Physical blocks beyond the virtual ones: the reserve, one entry to write, and as many again in quarantine.
pub const SLACK_BLOCKS_MIN: u64 = 4;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// A block's new content.
    Data {
        /// The virtual block.
        block: u64,
        /// Its bytes.
        data: Bytes,
    },
    /// Blocks that read as zeroes from now on.
    Zero {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Blocks freed by entries before `before` may be used again.
    Release {
        /// A sequence.
        before: u64,
    },
}

impl Record {
    /// The entry's content as stored.
    pub fn encode(&self) -> Body {
        let mut bytes = BytesMut::new();
        match self {
            Self::Data { block, data } => {
                bytes.reserve(9 + data.len());
                bytes.put_u8(1);
                bytes.put_u64_le(*block);
                bytes.put_slice(data);
            }
            Self::Zero { first, count } => {
                bytes.put_u8(2);
                bytes.put_u64_le(*first);
                bytes.put_u64_le(*count);
            }
            Self::Release { before } => {
                bytes.put_u8(3);
                bytes.put_u64_le(*before);
            }
        }
        Body::Data(bytes.freeze())
    }

    /// The entry of a content; nothing if it is none.
    pub fn decode(body: &Body) -> Option<Self> {
        let Body::Data(bytes) = body else { return None };
        let mut rest = bytes.clone();
        if rest.remaining() < 9 {
            return None;
        }
        let kind = rest.get_u8();
        let first = rest.get_u64_le();
        match (kind, rest.remaining()) {
            (1, _) => Some(Self::Data {
                block: first,
                data: rest,
            }),
            (2, 8) => Some(Self::Zero {
                first,
                count: rest.get_u64_le(),
            }),
            (3, 0) => Some(Self::Release { before: first }),
            _ => None,
        }
    }
}

/// Where a virtual block's content lies, and as what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub(crate) physical: u64,
    pub(crate) version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Free,
    Used,
    /// Freed by the entry with this sequence.
    Quarantined(u64),
}

/// A place in the cycle of all permutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Cursor {
    pub(super) range: usize,
    pub(super) taken: u64,
    pub(super) x: u64,
}

/// The state after all entries before `next`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replay {
    pub(super) next: u64,
    pub(super) map: Vec<Option<Mapping>>,
    pub(super) states: Vec<State>,
    pub(super) free: u64,
    used: u64,
    pub(super) ranges: Vec<Permutation>,
    pub(super) cursor: Cursor,
    /// Blocks freed by entries before this one have been released.
    pub(super) released: u64,
    planted: Planted,
}

impl Replay {
    /// An empty log.
    ///
    /// # Panics
    /// If there is less than the least slack.
    pub fn new(virtual_blocks: u64, physical_blocks: u64, seed: u64, planted: Planted) -> Self {
        assert!(
            physical_blocks >= virtual_blocks + SLACK_BLOCKS_MIN,
            "a log needs {SLACK_BLOCKS_MIN} blocks more than the disk has"
        );
        Self {
            next: 1,
            map: vec![None; virtual_blocks as usize],
            states: vec![State::Free; physical_blocks as usize],
            free: physical_blocks,
            used: 0,
            ranges: vec![Permutation::new(0, physical_blocks, seed)],
            cursor: Cursor::default(),
            released: 0,
            planted,
        }
    }

    /// From the parts of a checkpoint; nothing if they contradict each other.
    pub(super) fn from_parts(
        next: u64,
        map: Vec<Option<Mapping>>,
        states: Vec<State>,
        ranges: Vec<Permutation>,
        cursor: Cursor,
        released: u64,
        planted: Planted,
    ) -> Option<Self> {
        let free = states.iter().filter(|state| **state == State::Free).count() as u64;
        let used = states.iter().filter(|state| **state == State::Used).count() as u64;
        let mut seen = vec![false; states.len()];
        for mapping in map.iter().flatten() {
            let seen = seen.get_mut(mapping.physical as usize)?;
            if *seen || states[mapping.physical as usize] != State::Used {
                return None;
            }
            *seen = true;
        }
        let covered = ranges.iter().try_fold(0, |at, range| {
            (range.base == at && range.length > 0).then(|| at.checked_add(range.length))?
        });
        let cursor_fits = ranges
            .get(cursor.range)
            .is_some_and(|range| cursor.taken <= range.length && cursor.x < range.length);
        let consistent = used == map.iter().flatten().count() as u64
            && covered == Some(states.len() as u64)
            && cursor_fits;
        consistent.then_some(Self {
            next,
            map,
            states,
            free,
            used,
            ranges,
            cursor,
            released,
            planted,
        })
    }

    /// The sequence of the next entry.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Virtual blocks.
    pub fn virtual_blocks(&self) -> u64 {
        self.map.len() as u64
    }

    /// Physical blocks.
    pub fn physical_blocks(&self) -> u64 {
        self.states.len() as u64
    }

    /// Blocks that may be written.
    pub fn free(&self) -> u64 {
        self.free
    }

    pub(super) fn mapping(&self, block: u64) -> Option<Mapping> {
        self.map[block as usize]
    }

    /// Whether any of these blocks has content.
    pub(super) fn maps_any(&self, blocks: std::ops::Range<u64>) -> bool {
        self.map[blocks.start as usize..blocks.end as usize]
            .iter()
            .any(Option::is_some)
    }

    /// Blocks that are neither free nor hold what the disk reads.
    pub(super) fn quarantined(&self) -> u64 {
        #[cfg(feature = "mutants")]
        let held = self
            .states
            .iter()
            .filter(|state| **state == State::Quarantined(u64::MAX))
            .count() as u64;
        #[cfg(not(feature = "mutants"))]
        let held = 0;
        self.physical_blocks() - self.free - self.used - held
    }

    /// Whether an entry may be written now: the last free block is for a release.
    pub(super) fn has_room(&self) -> bool {
        self.free > RELEASE_RESERVE
    }

    /// The physical block of the next entry, and the cursor behind it.
    pub(super) fn place(&self) -> Option<(u64, Cursor)> {
        let mut cursor = self.cursor;
        for _ in 0..self.states.len() {
            let range = self.ranges[cursor.range];
            if cursor.taken == range.length {
                cursor = Cursor {
                    range: (cursor.range + 1) % self.ranges.len(),
                    ..Cursor::default()
                };
            }
            let range = self.ranges[cursor.range];
            cursor.x = range.after(cursor.x);
            cursor.taken += 1;
            let physical = range.base + cursor.x;
            if self.states[physical as usize] == State::Free {
                return Some((physical, cursor));
            }
        }
        None
    }

    /// Whether a record can stand in this log.
    pub(super) fn accepts(&self, record: &Record) -> bool {
        let blocks = self.virtual_blocks();
        match record {
            Record::Data { block, .. } => *block < blocks,
            Record::Zero { first, count } => first.checked_add(*count).is_some_and(|end| end <= blocks),
            Record::Release { before } => *before <= self.next,
        }
    }

    /// Takes the next entry into account; it lies where [`Replay::place`] said.
    pub(super) fn apply(&mut self, record: &Record, incarnation: Incarnation, place: (u64, Cursor)) {
        let (physical, cursor) = place;
        let sequence = self.next;
        assert_eq!(
            self.states[physical as usize],
            State::Free,
            "an entry goes to a free block"
        );
        self.cursor = cursor;
        self.free -= 1;
        self.next += 1;
        match record {
            Record::Data { block, .. } => {
                self.states[physical as usize] = State::Used;
                self.used += 1;
                self.unmap(*block, sequence);
                let version = Version {
                    incarnation,
                    sequence,
                };
                self.map[*block as usize] = Some(Mapping { physical, version });
            }
            Record::Zero { first, count } => {
                self.states[physical as usize] = State::Quarantined(sequence);
                (*first..first + count).for_each(|block| self.unmap(block, sequence));
            }
            Record::Release { before } => {
                self.states[physical as usize] = State::Quarantined(sequence);
                self.released = self.released.max(*before);
                for state in &mut self.states {
                    if matches!(state, State::Quarantined(freed) if *freed < *before) {
                        *state = State::Free;
                        self.free += 1;
                    }
                }
            }
        }
    }

    fn unmap(&mut self, block: u64, sequence: u64) {
        if let Some(old) = self.map[block as usize].take() {
            self.used -= 1;
            let at_once =
                self.planted.is(Mutant::SkipQuarantine) || self.planted.is(Mutant::SkipDependsOnRetirement);
            self.states[old.physical as usize] = if at_once {
                self.free += 1;
                State::Free
            } else {
                State::Quarantined(sequence)
            };
        }
    }

    /// Whether a release of blocks freed before `before` would free any.
    pub(super) fn would_release(&self, before: u64) -> bool {
        before > self.released
            && self
                .states
                .iter()
                .any(|state| matches!(state, State::Quarantined(freed) if *freed < before))
    }

    /// Makes the disk larger: the new physical blocks get a permutation of their own. Only at a checkpoint.
    pub(super) fn grow(&mut self, virtual_blocks: u64, physical_blocks: u64, seed: u64) {
        assert!(virtual_blocks >= self.virtual_blocks() && physical_blocks > self.physical_blocks());
        assert!(physical_blocks >= virtual_blocks + SLACK_BLOCKS_MIN);
        let added = physical_blocks - self.physical_blocks();
        self.ranges
            .push(Permutation::new(self.physical_blocks(), added, seed));
        self.map.resize(virtual_blocks as usize, None);
        self.states.resize(physical_blocks as usize, State::Free);
        self.free += added;
    }

    /// What the paper does: blocks become free when the entry that replaced them retires.
    #[cfg(feature = "mutants")]
    pub(super) fn hold_until_retired(&mut self, physical: u64, held: bool) {
        let state = &mut self.states[physical as usize];
        match (held, *state) {
            (true, State::Free) => {
                *state = State::Quarantined(u64::MAX);
                self.free -= 1;
            }
            (false, State::Quarantined(u64::MAX)) => {
                *state = State::Free;
                self.free += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_nonsense_is_not() {
        for record in [
            Record::Data {
                block: 7,
                data: Bytes::from_static(b"content"),
            },
            Record::Zero { first: 3, count: 9 },
            Record::Release { before: 12 },
        ] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        for bytes in [
            &b""[..],
            b"\x01234567",
            b"\x0223456789",
            b"\x03234567890",
            b"\x0923456789",
        ] {
            assert_eq!(Record::decode(&Body::Data(Bytes::copy_from_slice(bytes))), None);
        }
    }
}
