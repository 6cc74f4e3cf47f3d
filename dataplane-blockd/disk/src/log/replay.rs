//! The state of a log: what the entries so far have made of it, and nothing else.

use crate::{
    fields::Fields,
    types::{Body, Incarnation, Version},
};
use bytes::Bytes;
use firn_codec::{Reader, Writer};

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
        let room = match self {
            Self::Data { data, .. } => 9 + data.len(),
            Self::Zero { .. } | Self::Release { .. } => 17,
        };
        let mut bytes = Writer::with_capacity(room);
        match self {
            Self::Data { block, data } => {
                bytes.u8(1);
                bytes.u64(*block);
                bytes.raw(data);
            }
            Self::Zero { first, count } => {
                bytes.u8(2);
                bytes.u64(*first);
                bytes.u64(*count);
            }
            Self::Release { before } => {
                bytes.u8(3);
                bytes.u64(*before);
            }
        }
        Body::Data(bytes.finish().into())
    }

    /// The entry of a content; nothing if it is none.
    pub fn decode(body: &Body) -> Option<Self> {
        let Body::Data(bytes) = body else { return None };
        let mut fields = Reader::new(Fields, bytes.clone());
        let kind = fields.u8().ok()?;
        let first = fields.u64().ok()?;
        match (kind, fields.remaining()) {
            (1, _) => Some(Self::Data {
                block: first,
                data: fields.rest(),
            }),
            (2, 8) => Some(Self::Zero {
                first,
                count: fields.u64().ok()?,
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

/// The state after all entries before `next`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replay {
    pub(super) next: u64,
    pub(super) map: Vec<Option<Mapping>>,
    pub(super) states: Vec<State>,
    free: u64,
    used: u64,
    /// Physical blocks that lie in one tract.
    pub(super) tract_blocks: u64,
    /// The next tract by round robin.
    pub(super) next_tract: u64,
    /// Of each tract, its lowest free block. Follows from the states.
    lowest_free: Vec<Option<u64>>,
    /// Blocks freed by entries before this one have been released.
    pub(super) released: u64,
}

impl Replay {
    /// An empty log, of which `tract_blocks` neighbouring physical blocks lie in one tract.
    ///
    /// # Panics
    /// If there is less than the least slack, or tracts have no blocks.
    pub fn new(virtual_blocks: u64, physical_blocks: u64, tract_blocks: u64) -> Self {
        assert!(
            physical_blocks >= virtual_blocks + SLACK_BLOCKS_MIN,
            "a log needs {SLACK_BLOCKS_MIN} blocks more than the disk has"
        );
        let map = vec![None; virtual_blocks as usize];
        let states = vec![State::Free; physical_blocks as usize];
        Self::from_parts(1, map, states, (tract_blocks, 0), 0).expect("an empty log is consistent")
    }

    /// From the parts of a checkpoint; nothing if they contradict each other. `striping`: the blocks of a tract, and the tract
    /// that is next in the round-robin.
    pub(super) fn from_parts(
        next: u64,
        map: Vec<Option<Mapping>>,
        states: Vec<State>,
        (tract_blocks, next_tract): (u64, u64),
        released: u64,
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
        let is_a_tract = tract_blocks > 0 && next_tract < (states.len() as u64).div_ceil(tract_blocks);
        if used != map.iter().flatten().count() as u64 || !is_a_tract {
            return None;
        }
        let mut replay = Self {
            next,
            map,
            states,
            free,
            used,
            tract_blocks,
            next_tract,
            lowest_free: Vec::new(),
            released,
        };
        replay.find_lowest_free(0);
        Some(replay)
    }

    /// Looks at all blocks of the tracts from this one on.
    fn find_lowest_free(&mut self, first_tract: u64) {
        self.lowest_free.truncate(first_tract as usize);
        for tract in first_tract..self.physical_blocks().div_ceil(self.tract_blocks) {
            let lowest = self.free_from(tract * self.tract_blocks);
            self.lowest_free.push(lowest);
        }
    }

    /// The lowest free block of a block's tract that is not below it.
    fn free_from(&self, physical: u64) -> Option<u64> {
        let end = (physical / self.tract_blocks + 1) * self.tract_blocks;
        (physical..end.min(self.physical_blocks()))
            .find(|physical| self.states[*physical as usize] == State::Free)
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

    /// The physical block of the next entry: tracts round-robin, those that are full are passed over, and each gives its lowest
    /// free block.
    pub(super) fn place(&self) -> Option<u64> {
        let (before, from) = self.lowest_free.split_at(self.next_tract as usize);
        from.iter().chain(before).find_map(|lowest| *lowest)
    }

    fn set_state(&mut self, physical: u64, state: State) {
        let was = std::mem::replace(&mut self.states[physical as usize], state);
        let tract = (physical / self.tract_blocks) as usize;
        match (was, state) {
            (State::Free, State::Free) => {}
            (State::Free, _) => {
                self.free -= 1;
                if self.lowest_free[tract] == Some(physical) {
                    self.lowest_free[tract] = self.free_from(physical);
                }
            }
            (_, State::Free) => {
                self.free += 1;
                let lowest = &mut self.lowest_free[tract];
                *lowest = Some(lowest.map_or(physical, |lowest| lowest.min(physical)));
            }
            (State::Used | State::Quarantined(_), State::Used | State::Quarantined(_)) => {}
        }
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
    pub(super) fn apply(&mut self, record: &Record, incarnation: Incarnation, physical: u64) {
        let sequence = self.next;
        assert_eq!(
            self.states[physical as usize],
            State::Free,
            "an entry goes to a free block"
        );
        self.next_tract = (physical / self.tract_blocks + 1) % self.lowest_free.len() as u64;
        self.next += 1;
        match record {
            Record::Data { block, .. } => {
                self.set_state(physical, State::Used);
                self.used += 1;
                self.unmap(*block, sequence);
                let version = Version {
                    incarnation,
                    sequence,
                };
                self.map[*block as usize] = Some(Mapping { physical, version });
            }
            Record::Zero { first, count } => {
                self.set_state(physical, State::Quarantined(sequence));
                (*first..first + count).for_each(|block| self.unmap(block, sequence));
            }
            Record::Release { before } => {
                self.set_state(physical, State::Quarantined(sequence));
                self.released = self.released.max(*before);
                for physical in 0..self.physical_blocks() {
                    if matches!(self.states[physical as usize], State::Quarantined(freed) if freed < *before)
                    {
                        self.set_state(physical, State::Free);
                    }
                }
            }
        }
    }

    fn unmap(&mut self, block: u64, sequence: u64) {
        if let Some(old) = self.map[block as usize].take() {
            self.used -= 1;
            let at_once = firn_env::planted!("disk.skip_quarantine")
                || firn_env::planted!("disk.skip_depends_on_retirement");
            let state = if at_once {
                State::Free
            } else {
                State::Quarantined(sequence)
            };
            self.set_state(old.physical, state);
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

    /// Makes the disk larger: tracts of new physical blocks join the round robin. Only at a checkpoint.
    pub(super) fn grow(&mut self, virtual_blocks: u64, physical_blocks: u64) {
        assert!(virtual_blocks >= self.virtual_blocks() && physical_blocks > self.physical_blocks());
        assert!(physical_blocks >= virtual_blocks + SLACK_BLOCKS_MIN);
        let before = self.physical_blocks();
        self.map.resize(virtual_blocks as usize, None);
        self.states.resize(physical_blocks as usize, State::Free);
        self.free += physical_blocks - before;
        self.find_lowest_free(before / self.tract_blocks);
    }

    /// What the paper does: blocks become free when the entry that replaced them retires.
    #[cfg(feature = "mutants")]
    pub(super) fn hold_until_retired(&mut self, physical: u64, held: bool) {
        match (held, self.states[physical as usize]) {
            (true, State::Free) => self.set_state(physical, State::Quarantined(u64::MAX)),
            (false, State::Quarantined(u64::MAX)) => self.set_state(physical, State::Free),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(replay: &mut Replay, block: u64) -> u64 {
        let place = replay.place().expect("there is a free block");
        let data = Bytes::new();
        replay.apply(&Record::Data { block, data }, Incarnation(2), place);
        place
    }

    #[test]
    fn tracts_are_filled_round_robin_and_each_is_written_from_its_beginning() {
        let mut replay = Replay::new(8, 14, 4);
        let places: Vec<u64> = (0..8).map(|block| write(&mut replay, block)).collect();
        assert_eq!(places, [0, 4, 8, 12, 1, 5, 9, 13]);
        // The last tract has two blocks, and both are taken.
        assert_eq!((write(&mut replay, 1), write(&mut replay, 2)), (2, 6));
        assert_eq!((write(&mut replay, 3), write(&mut replay, 4)), (10, 3));
        // What is overwritten is free when it was released, and its tract is in the round-robin again.
        let place = replay.place().expect("there is a free block");
        let before = replay.next();
        replay.apply(&Record::Release { before }, Incarnation(2), place);
        assert_eq!((place, write(&mut replay, 7)), (7, 8));
        replay.grow(12, 22);
        let places: Vec<u64> = (8..12).map(|block| write(&mut replay, block)).collect();
        assert_eq!(places, [12, 16, 20, 1]);
    }

    proptest! {
        #[test]
        fn neighbouring_entries_share_no_tract_while_all_have_room_and_no_place_is_given_twice(
            tract_blocks in 1..7_u64,
            blocks in proptest::collection::vec(0..20_u64, 1..200),
        ) {
            let mut replay = Replay::new(20, 31, tract_blocks);
            let tracts = 31_u64.div_ceil(tract_blocks);
            let mut last = Vec::new();
            for block in blocks {
                if !replay.has_room() {
                    let place = replay.place().expect("the last is for a release");
                    let before = replay.next();
                    replay.apply(&Record::Release { before }, Incarnation(2), place);
                    last.clear();
                }
                let all_have_room = replay.lowest_free.iter().all(Option::is_some);
                let place = write(&mut replay, block);
                last.push(place / tract_blocks);
                if !all_have_room {
                    last.clear();
                }
                let recent = last.iter().rev().take(tracts as usize);
                prop_assert!(recent.clone().collect::<std::collections::BTreeSet<_>>().len() == recent.count());
                let again = Replay::from_parts(
                    replay.next,
                    replay.map.clone(),
                    replay.states.clone(),
                    (replay.tract_blocks, replay.next_tract),
                    replay.released,
                );
                prop_assert_eq!(again.as_ref(), Some(&replay));
            }
        }
    }

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
