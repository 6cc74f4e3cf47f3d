//! The words in which engines, recovery and replicas speak.

use bytes::Bytes;
use std::ops::Range;

/// One attach of a disk. Each has a number of its own, larger than every earlier one, and fences those off.
///
/// It is the attach's fence in the upper 32 bits and as many random ones below. A table that was restored from a backup gives a
/// fence out again; its random half keeps the second attach under it from sealing other content with the key of the first.
/// (Attaches of the version before had the fence alone, in the lower half: they are smaller than all of today.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The attach under this fence, with a salt that is drawn at random for it.
    pub const fn new(fence: u32, salt: u32) -> Self {
        Self((fence as u64) << 32 | salt as u64)
    }

    /// Its fence.
    pub const fn fence(self) -> u32 {
        match (self.0 >> 32) as u32 {
            0 => self.0 as u32,
            fence => fence,
        }
    }

    /// Whether an attach that was given `self` may go on from what `found` left: it is later, or the same one.
    pub(crate) fn follows(self, found: Self) -> bool {
        found == self || found.fence() < self.fence()
    }
}

/// Names the content of a unit: a later write has a greater version, and replicas keep the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The attach that wrote it.
    pub incarnation: Incarnation,
    /// Counts the writes of that attach; in a log, the entries of the disk.
    pub sequence: u64,
}

/// What is stored, replaced and lost as one. Each replica of a disk has the same units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// A block of a striped disk, in place.
    Block(u64),
    /// A page of the map of regions that may differ between replicas.
    Intent(u64),
    /// A physical block of the log.
    Log(u64),
    /// One of the two places of checkpoints.
    Checkpoint(u8),
}

/// The content of a unit, before sealing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// These bytes.
    Data(Bytes),
    /// All zeroes, stored as a tombstone.
    Zero,
}

impl Body {
    /// What it makes of one of the `count` units of equal length whose content it is, one behind the other.
    pub(crate) fn part(&self, at: u64, count: u64) -> Self {
        match self {
            Self::Data(data) if count > 1 => {
                let unit_bytes = data.len() / count as usize;
                let from = at as usize * unit_bytes;
                Self::Data(data.slice(from..from + unit_bytes))
            }
            Self::Data(_) | Self::Zero => self.clone(),
        }
    }
}

/// A request of the disk's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a store in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ticket {
    /// A run that is written in place.
    Piece(u64),
    /// A version of a page of the dirty-region log.
    DirtyRegionLog {
        /// The page.
        page: u64,
        /// The version's sequence.
        sequence: u64,
    },
    /// An entry of the log.
    Entry(u64),
    /// A checkpoint.
    Checkpoint(u64),
}

/// Makes a unit, or a run of blocks, durable on one replica; answered by `stored` of the engine with the ticket and replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// For the answer.
    pub ticket: Ticket,
    /// Which replica.
    pub replica: usize,
    /// Where; the first of them.
    pub unit: Unit,
    /// How many consecutive units: more than one only of blocks in place, a run, which may be done for some and not for others
    /// until the store is answered.
    pub count: u64,
    /// As what.
    pub version: Version,
    /// What: of a run with data, its blocks one behind the other.
    pub body: Body,
    /// The epoch that it belongs to, for checkers.
    pub epoch: u64,
}

impl Store {
    /// The units that it is about.
    pub fn units(&self) -> impl Iterator<Item = Unit> + use<> {
        let (first, count) = (self.unit, self.count);
        (0..count).map(move |at| match first {
            Unit::Block(block) => Unit::Block(block + at),
            Unit::Intent(_) | Unit::Log(_) | Unit::Checkpoint(_) => first,
        })
    }

    /// What it makes of one of its units.
    pub fn body_of(&self, unit: Unit) -> Body {
        match (self.unit, unit) {
            (Unit::Block(first), Unit::Block(block)) => self.body.part(block - first, self.count),
            _ => self.body.clone(),
        }
    }
}

/// What an engine wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// A store; to be repeated until it succeeds or the disk is fenced.
    Store(Store),
    /// The user's request is answered with success.
    Answer(RequestId),
}

/// What a user asked of a disk, in the order in which it counts: what a journal keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Consecutive blocks' new content, one after the other.
    Data {
        /// The first.
        first: u64,
        /// Whole blocks.
        data: Bytes,
    },
    /// A range of blocks reads as zeroes.
    Zero {
        /// Which.
        blocks: Range<u64>,
    },
    /// All before comes before all behind.
    Flush,
}

/// Where a block is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// From memory: it is not durable yet, or known to be zero.
    Memory(Body),
    /// From any replica; `version` if it must be this one and nothing else.
    Stored {
        /// Where.
        unit: Unit,
        /// The only acceptable one.
        version: Option<Version>,
    },
}

/// A set of replicas, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaSet(u8);

impl ReplicaSet {
    pub(crate) fn all(count: usize) -> Self {
        assert!((1..=3).contains(&count), "a disk has one to three replicas");
        Self((1 << count) - 1)
    }

    pub(crate) fn remove(&mut self, replica: usize) {
        self.0 &= !(1 << replica);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn clear(&mut self) {
        self.0 = 0;
    }
}
