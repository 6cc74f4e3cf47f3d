//! Content of the modelled volume: operations, the inodes' histories of them, and roots.

use firn_anchor::{Arena, LeaseRange, MemberNumber, SHAPE_LEASE};
use std::fmt;

/// Members of the volume.
pub const MEMBERS: usize = 3;
/// Inodes that are worked on.
pub const INODES: usize = 3;
/// The place of the shape lease among what can be held, behind the inodes.
pub const SHAPE: usize = INODES;
/// Operations of one member at most.
pub const EACH: usize = 4;
/// Numbers of operations, from 1: four bits. It follows from the member and the ordinal among that member's, so that worlds that differ only in
/// the order in which operations of different members began are one.
pub const NUMBERS: usize = MEMBERS * EACH;
/// Whose home each inode lies in, by the number of the member from 1. Two are the first member's, one the second's, none the third's.
const HOMES: [u64; INODES] = [1, 1, 2];

/// Names in traces.
pub const NAMES: [&str; MEMBERS] = ["A", "B", "C"];

/// How the anchor knows a member.
pub fn number_of(member: usize) -> MemberNumber {
    MemberNumber(u32::try_from(member).expect("members are few") + 1)
}

/// The other way.
pub fn member_of(number: MemberNumber) -> usize {
    number.0 as usize - 1
}

/// The inode number of what can be held.
pub fn inode_number(slot: usize) -> u64 {
    match slot {
        SHAPE => SHAPE_LEASE,
        slot => (HOMES[slot] << 32) + slot as u64,
    }
}

/// The place of an inode's arena among all.
pub fn arena_of(slot: usize) -> usize {
    match slot {
        SHAPE => 0,
        slot => HOMES[slot] as usize,
    }
}

/// The lease of one number.
pub fn range_of(slot: usize) -> LeaseRange {
    LeaseRange::around(inode_number(slot), 0).expect("the lowest level")
}

/// All arenas without leases.
pub fn empty_arenas() -> [Arena; MEMBERS] {
    [SHAPE, 0, 2].map(|slot| Arena::around(inode_number(slot)))
}

/// What can be held, by ascending inode numbers.
pub const ASCENDING: [usize; INODES + 1] = [SHAPE, 0, 1, 2];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Changes one inode; durable in the journal when it is acknowledged.
    Write,
    /// Changes two, as a link or a rename does: both or none.
    Pair,
    /// Puts a directory below another.
    Move,
    /// Changes one inode in memory; a COMMIT makes it durable.
    Unstable,
    /// The cleaner's proposal puts a leaf elsewhere.
    Relocate,
}

/// Something that a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// What.
    pub kind: Kind,
    /// Whom.
    pub member: u8,
    /// The inode.
    pub first: u8,
    /// The other inode; for a move the directory below which it goes.
    pub second: u8,
    /// Operations of others that the changed inodes had when it was done.
    pub built_on: [History; 2],
}

impl Operation {
    /// The inodes that it changes.
    pub fn changes(&self) -> impl Iterator<Item = usize> + use<> {
        let second = (self.kind == Kind::Pair).then_some(self.second as usize);
        std::iter::once(self.first as usize).chain(second)
    }

    /// All that has to be held for it.
    pub fn touches(&self) -> impl Iterator<Item = usize> + use<> {
        self.changes().chain((self.kind == Kind::Move).then_some(SHAPE))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Write => write!(formatter, "write {}", self.first),
            Kind::Pair => write!(formatter, "link {}, {}", self.first, self.second),
            Kind::Move => write!(formatter, "move {} below {}", self.first, self.second),
            Kind::Unstable => write!(formatter, "unstable write {}", self.first),
            Kind::Relocate => write!(formatter, "relocate {}", self.first),
        }
    }
}

/// Numbers of operations, from 1, in their order: what an inode is, or what a journal holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct History(u32);

impl History {
    /// With one more.
    ///
    /// # Panics
    /// If it has eight already.
    #[must_use]
    pub fn with(self, operation: u8) -> Self {
        let length = self.iter().count();
        assert!(length < 8 && operation > 0, "operations are bounded");
        Self(self.0 | u32::from(operation) << (4 * length))
    }

    /// The oldest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..8)
            .map(move |place| (self.0 >> (4 * place) & 15) as u8)
            .take_while(|operation| *operation != 0)
    }

    /// Whether it has it.
    pub fn has(self, operation: u8) -> bool {
        self.iter().any(|had| had == operation)
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are wanted.
    #[must_use]
    pub fn only(self, is_wanted: impl Fn(u8) -> bool) -> Self {
        self.iter()
            .filter(|operation| is_wanted(*operation))
            .fold(Self::default(), Self::with)
    }

    /// Whether it begins with all of another.
    pub fn continues(self, other: Self) -> bool {
        let mut own = self.iter();
        other.iter().all(|operation| own.next() == Some(operation))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for operation in self.iter() {
            write!(formatter, "{operation}")?;
        }
        formatter.write_str("]")
    }
}

/// A committed state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Root {
    /// One more each time.
    pub version: u8,
    /// Whose commit made it, and its number.
    pub commit: (u8, u8),
    /// Each inode's history; equal ones have equal uids.
    pub leaves: [History; INODES],
}

impl fmt::Debug for Root {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}{:?}", self.version, self.leaves)
    }
}
