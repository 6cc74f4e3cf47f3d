//! A checkpoint: the state of a log before one of its entries, under one incarnation.
//!
//! ```text
//! magic "FIRNDLC2" | number u64 | incarnation u64 | next u64 | released u64 | blocks of a tract u64 | next tract of the round-robin u64
//! | virtual blocks u64, each: physical u64 (all ones: zeroes), incarnation u64, sequence u64
//! | physical blocks u64, each: 0 free, 1 used, n + 2 quarantined by entry n          all little-endian
//! ```
//!
//! Sealed as a whole, so a torn one is no checkpoint. Two places alternate: while one is being written, the other holds
//! the one before.

use super::replay::{Mapping, Replay, State};
use crate::{
    fields::{Fields, Truncated},
    types::{Body, Incarnation, Unit, Version},
};
use bytes::Bytes;
use firn_codec::{Reader, Writer};

const MAGIC: &[u8; 8] = b"FIRNDLC2";
const NOWHERE: u64 = u64::MAX;

/// The unit in which the checkpoint of this number lies.
pub(super) fn unit(number: u64) -> Unit {
    Unit::Checkpoint(if firn_env::planted!("disk.checkpoint_in_place") {
        0
    } else {
        (number % 2) as u8
    })
}

/// A checkpoint, decoded.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Counts the checkpoints of a disk; the greater one is newer.
    pub number: u64,
    /// The only incarnation whose entries may follow.
    pub incarnation: Incarnation,
    /// The state.
    pub replay: Replay,
}

impl Checkpoint {
    /// Its bytes.
    pub fn encode(&self) -> Body {
        let replay = &self.replay;
        let mut bytes = Writer::with_capacity(128 + replay.map.len() * 24 + replay.states.len() * 8);
        bytes.raw(MAGIC);
        for word in [
            self.number,
            self.incarnation.0,
            replay.next,
            replay.released,
            replay.tract_blocks,
            replay.next_tract,
        ] {
            bytes.u64(word);
        }
        bytes.u64(replay.map.len() as u64);
        for mapping in &replay.map {
            let (physical, version) = mapping.map_or((NOWHERE, Version::default()), |mapping| {
                (mapping.physical, mapping.version)
            });
            bytes.u64(physical);
            bytes.u64(version.incarnation.0);
            bytes.u64(version.sequence);
        }
        bytes.u64(replay.states.len() as u64);
        for state in &replay.states {
            bytes.u64(match state {
                State::Free => 0,
                State::Used => 1,
                // Held back by a planted bug until an entry retires, which it has when this is written.
                #[cfg(feature = "mutants")]
                State::Quarantined(u64::MAX) => 0,
                State::Quarantined(freed) => freed.saturating_add(2),
            });
        }
        Body::Data(bytes.finish().into())
    }

    /// The checkpoint in these bytes; nothing if it is none, or contradicts itself.
    pub fn decode(body: &Body) -> Option<Self> {
        let Body::Data(bytes) = body else { return None };
        Self::read(&mut Reader::new(Fields, bytes)).ok().flatten()
    }

    fn read(input: &mut Input<'_>) -> Result<Option<Self>, Truncated> {
        if input.array()? != *MAGIC {
            return Ok(None);
        }
        let (number, incarnation) = (input.u64()?, Incarnation(input.u64()?));
        let (next, released) = (input.u64()?, input.u64()?);
        let striping = (input.u64()?, input.u64()?);
        let map = list(input, 3, |input| {
            let physical = input.u64()?;
            let version = Version {
                incarnation: Incarnation(input.u64()?),
                sequence: input.u64()?,
            };
            Ok((physical != NOWHERE).then_some(Mapping { physical, version }))
        })?;
        let states = list(input, 1, |input| {
            Ok(match input.u64()? {
                0 => State::Free,
                1 => State::Used,
                freed => State::Quarantined(freed - 2),
            })
        })?;
        let replay = Replay::from_parts(next, map, states, striping, released);
        Ok(replay.filter(|_| input.remaining() == 0).map(|replay| Self {
            number,
            incarnation,
            replay,
        }))
    }
}

type Input<'a> = Reader<&'a Bytes, Fields>;

/// A counted list whose items have `words` words each: a count beyond what is there allocates nothing.
fn list<T>(
    input: &mut Input<'_>,
    words: usize,
    item: impl Fn(&mut Input<'_>) -> Result<T, Truncated>,
) -> Result<Vec<T>, Truncated> {
    let count = usize::try_from(input.u64()?).unwrap_or(usize::MAX);
    input.require(count.saturating_mul(words * 8))?;
    (0..count).map(|_| item(input)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Checkpoint {
        let mut replay = Replay::new(4, 9, 3);
        for block in [0, 1, 0, 3] {
            let place = replay.place().unwrap();
            let record = crate::log::Record::Data {
                block,
                data: Bytes::new(),
            };
            replay.apply(&record, Incarnation(3), place);
        }
        Checkpoint {
            number: 8,
            incarnation: Incarnation(3),
            replay,
        }
    }

    #[test]
    fn a_checkpoint_is_read_back() {
        let body = example().encode();
        let decoded = Checkpoint::decode(&body).unwrap();
        assert_eq!((decoded.number, decoded.incarnation), (8, Incarnation(3)));
        assert_eq!(decoded.replay, example().replay);
    }

    #[test]
    fn the_bytes_are_what_the_format_says() {
        let Body::Data(bytes) = example().encode() else {
            unreachable!()
        };
        let mut expected = b"FIRNDLC2".to_vec();
        let none = [u64::MAX, 0, 0];
        for word in [8, 3, 5, 0, 3, 1, 4]
            .into_iter()
            .chain([6, 3, 3, 3, 3, 2])
            .chain(none)
            .chain([1, 3, 4, 9])
            // The first entry's block was overwritten by the third.
            .chain([5, 1, 0, 1, 0, 0, 1, 0, 0])
        {
            expected.extend(u64::to_le_bytes(word));
        }
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn damaged_checkpoints_are_refused_or_consistent_and_never_panic(at in 0..1000_usize, byte: u8, cut in 0..1000_usize) {
            let Body::Data(bytes) = example().encode() else { unreachable!() };
            let mut bytes = bytes.to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Checkpoint::decode(&Body::Data(bytes.clone().into()));
            bytes.truncate(cut % bytes.len());
            prop_assert!(Checkpoint::decode(&Body::Data(bytes.into())).is_none());
        }
    }
}
