//! State of the modelled world: the table, three members with memory and journal, and what is on its way between them.

use crate::content::{
    ASCENDING, EACH, History, INODES, Kind, MEMBERS, NAMES, NUMBERS, Operation, Root, SHAPE, arena_of,
    empty_arenas, member_of, number_of, range_of,
};
use firn_anchor::{Arena, MemberChange, MemberRecord};
use firn_format::WriterId;
use std::fmt;

/// The member that may join later: the one whose home one inode is.
pub const NEWCOMER: usize = 1;
/// A lease lapses when so many ticks have passed since the last acknowledged heartbeat was sent: 40 s.
pub const LAPSES: u8 = 2;
/// It is broken when its holder's heartbeat has stood still for so many ticks: 60 s.
pub const BREAKS: u8 = 3;

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not joined, and has no record.
    Outside,
    /// Serves.
    Up,
    /// Its process died; its journal is there.
    Down,
    /// It has heard that it was broken.
    Broken,
    /// It is present with an incarnation, and has to ask the arenas what it holds.
    Asking {
        /// Whether the incarnation before was broken.
        was_broken: bool,
    },
    /// It has asked, and has to read the root.
    Reading {
        /// Whether the incarnation before was broken.
        was_broken: bool,
    },
    /// It has published everything and left.
    Away,
}

impl Phase {
    /// Whether it gives signs of life.
    pub fn runs(self) -> bool {
        matches!(self, Self::Up | Self::Asking { .. } | Self::Reading { .. })
    }
}

/// What became of a request to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// On its way.
    Sent,
    /// It happened; the reply is on its way.
    Done,
    /// The root had moved; the reply is on its way.
    LostRace,
    /// The member was broken; the reply is on its way.
    Refused,
}

/// A request to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The commit's number among its member's.
    pub commit: u8,
    /// By which incarnation.
    pub incarnation: u8,
    /// The root's version that it is conditional on.
    pub on_version: u8,
    /// The new root's leaves.
    pub leaves: [History; INODES],
    /// The operations in it.
    pub operations: History,
    /// Where it is.
    pub stage: Stage,
}

/// An absence of signs of life, as a member that waits sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// Whose.
    pub holder: u8,
    /// For what.
    pub slot: u8,
    /// Ticks.
    pub silent: u8,
}

/// How the unstable write of a member's client stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unstable {
    /// There is none.
    #[default]
    None,
    /// It is in memory, or published since; the client's COMMIT is to come.
    Written,
    /// It was in memory when the process died.
    Crashed,
    /// It was in memory when the member was broken.
    Broken,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// See there.
    pub phase: Phase,
    /// Whether it reaches table and bucket.
    pub is_connected: bool,
    /// Ticks since the last acknowledged heartbeat was sent.
    pub beat_age: u8,
    /// Ticks since the heartbeat was sent whose reply is still on its way.
    pub late_beat: Option<u8>,
    /// The running one, or the last.
    pub incarnation: u8,
    /// The adopted root.
    pub base: Root,
    /// What clients are shown: the adopted root with the own changes.
    pub view: [History; INODES],
    /// What each inode was when the first change of it that is not published was made.
    pub ground: [History; INODES],
    /// Operations that are not known to be published.
    pub journal: History,
    /// What it holds and may use.
    pub usable: u8,
    /// What it holds and has not adopted the root for.
    pub granted: u8,
    /// What its client's operation keeps.
    pub pins: u8,
    /// Its client's operation.
    pub current: u8,
    /// A root that was read and is not adopted yet, and what was held when the read began.
    pub root_read: Option<(Root, u8)>,
    /// Its last commit lost a race: a newer root is to be adopted first.
    pub must_adopt: bool,
    /// Its commit that is under way.
    pub request: Option<Request>,
    /// A commit whose reply it does not expect any more, and the operations in it.
    pub doubt: Option<(u8, History)>,
    /// A request that it has given up, and that the network may still deliver.
    pub delayed: Option<Request>,
    /// What it gives by a request that is under way.
    pub gift: Option<u8>,
    /// What it gave by a request whose answer it does not expect any more.
    pub gift_in_doubt: Option<u8>,
    /// What it gave by a request that the network may still deliver.
    pub late_gift: Option<u8>,
    /// Commits that it tried.
    pub commits: u8,
    /// Whom it waits for.
    pub watch: Option<Watch>,
    /// It has seen that the holder of what it needs is absent, or no member (only with the bugs of a take without condition).
    pub saw_absent: Option<u8>,
    /// Its client's unstable write.
    pub unstable: Unstable,
}

/// Faults and the like that have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Processes that died.
    pub crashes: u8,
    /// Members that were cut off.
    pub partitions: u8,
    /// Requests or replies that were lost or delayed.
    pub losses: u8,
    /// Members that left.
    pub departures: u8,
    /// Leases that were given though nobody waited.
    pub returns: u8,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The volume's root.
    pub head: Root,
    /// Roots that breaks retained, by the broken member.
    pub retained: [Option<Root>; MEMBERS],
    /// The members' records.
    pub records: [MemberRecord; MEMBERS],
    /// The arenas' records.
    pub arenas: [Arena; MEMBERS],
    /// See there.
    pub members: [Member; MEMBERS],
    /// What clients asked for, by number.
    pub operations: [Option<Operation>; NUMBERS],
    /// Operations that were acknowledged to clients: bits by number.
    pub acknowledged: u16,
    /// Operations whose commit was acknowledged to their member: level 2.
    pub published: u16,
    /// Operations that were put into a salvage clone.
    pub salvaged: u16,
    /// See there.
    pub spent: Spent,
}

impl World {
    /// Three members that have started and hold what is home to them; or two, and one that may join.
    pub fn initial(has_newcomer: bool) -> Self {
        let is_outside = |member| has_newcomer && member == NEWCOMER;
        let arenas = empty_arenas();
        let members = std::array::from_fn(|member| Member {
            phase: match is_outside(member) {
                true => Phase::Outside,
                false => Phase::Up,
            },
            is_connected: true,
            beat_age: 0,
            late_beat: None,
            incarnation: 1,
            base: Root::default(),
            view: Default::default(),
            ground: Default::default(),
            journal: History::default(),
            usable: match is_outside(member) {
                true => 0,
                false => held_of(&arenas, member),
            },
            granted: 0,
            pins: 0,
            current: 0,
            root_read: None,
            must_adopt: false,
            request: None,
            doubt: None,
            delayed: None,
            gift: None,
            gift_in_doubt: None,
            late_gift: None,
            commits: 0,
            watch: None,
            saw_absent: None,
            unstable: Unstable::None,
        });
        Self {
            head: Root::default(),
            retained: [None; MEMBERS],
            records: std::array::from_fn(|member| MemberRecord {
                incarnation: (!is_outside(member)).then_some(WriterId(1)),
                ..MemberRecord::default()
            }),
            arenas,
            members,
            operations: [None; NUMBERS],
            acknowledged: 0,
            published: 0,
            salvaged: 0,
            spent: Spent::default(),
        }
    }

    /// How many operations a member's clients have begun.
    pub fn begun(&self, member: usize) -> usize {
        let own = &self.operations[member * EACH..(member + 1) * EACH];
        own.iter().flatten().count()
    }

    /// An operation by its number.
    ///
    /// # Panics
    /// If there is none.
    pub fn operation(&self, number: u8) -> &Operation {
        self.operations[number as usize - 1]
            .as_ref()
            .expect("operations are numbered as they begin")
    }

    /// Who holds a lease, by the table.
    pub fn holder(&self, slot: usize) -> Option<usize> {
        holder_in(&self.arenas, slot)
    }

    /// Whether a member has a record. Without one what stands for it in `records` is not there.
    pub fn has_joined(&self, member: usize) -> bool {
        self.members[member].phase != Phase::Outside
    }

    /// Whether a member waits for a lease, by the table.
    pub fn waits(&self, member: usize, slot: usize) -> bool {
        let arena = &self.arenas[arena_of(slot)];
        arena.queue(range_of(slot)).contains(&number_of(member))
    }

    /// All that a member holds, by the table.
    pub fn held(&self, member: usize) -> u8 {
        held_of(&self.arenas, member)
    }

    /// Whether a member gives signs of life.
    pub fn is_heard(&self, member: usize) -> bool {
        let member = &self.members[member];
        member.phase.runs() && member.is_connected
    }

    /// Whether the member of the record is the one that runs.
    pub fn is_incarnation(&self, member: usize) -> bool {
        self.records[member].incarnation == Some(WriterId(u64::from(self.members[member].incarnation)))
    }

    /// Changes a member's own record. The count of beats is not part of a state: what it tells is kept as [`Watch`].
    ///
    /// # Errors
    /// What the rules of the record say.
    pub fn change_record(&mut self, member: usize, change: MemberChange) -> Result<(), String> {
        let changed = change
            .apply(&self.records[member])
            .map_err(|why| why.to_string())?;
        self.records[member] = MemberRecord { beats: 0, ..changed };
        Ok(())
    }

    /// Whether a member has changes of something that are not known to be published.
    pub fn has_changes(&self, member: usize, slot: usize) -> bool {
        let mut journal = self.members[member].journal.iter();
        journal.any(|number| self.operation(number).touches().any(|touched| touched == slot))
    }

    /// Takes a newer root into memory; what it has changes of stays.
    pub fn adopt(&mut self, member: usize, root: Root) {
        if root.version >= self.members[member].base.version {
            self.members[member].base = root;
        }
        for inode in 0..INODES {
            if !self.has_changes(member, inode) {
                let member = &mut self.members[member];
                member.view[inode] = member.base.leaves[inode];
                member.ground[inode] = History::default();
            }
        }
    }

    /// Whether a root has all that an operation did.
    pub fn has_done(&self, root: &Root, number: u8) -> bool {
        self.operation(number)
            .changes()
            .all(|inode| root.leaves[inode].has(number))
    }

    /// What a member's operation needs and does not keep yet, the next first.
    pub fn next_needed(&self, member: usize, needs: &[usize]) -> Option<usize> {
        let pins = self.members[member].pins;
        needs.iter().copied().find(|slot| pins & bit(*slot) == 0)
    }

    /// Where each directory is, by the moves in a root.
    pub fn parents(&self, root: &Root) -> [Option<usize>; INODES] {
        parents(root.leaves, &self.operations)
    }
}

/// Where each directory is.
pub fn parents(
    leaves: [History; INODES],
    operations: &[Option<Operation>; NUMBERS],
) -> [Option<usize>; INODES] {
    leaves.map(|leaf| {
        let moves = leaf.iter().filter_map(|number| operations[number as usize - 1]);
        moves
            .filter(|operation| operation.kind == Kind::Move)
            .last()
            .map(|operation| operation.second as usize)
    })
}

/// Whether a directory lies in or below another.
pub fn is_below(parents: &[Option<usize>; INODES], inode: usize, top: usize) -> bool {
    let mut place = Some(inode);
    for _ in 0..=INODES {
        match place {
            Some(here) if here == top => return true,
            Some(here) => place = parents[here],
            None => return false,
        }
    }
    false
}

/// One bit for each thing that can be held.
pub fn bit(slot: usize) -> u8 {
    1 << slot
}

fn holder_in(arenas: &[Arena; MEMBERS], slot: usize) -> Option<usize> {
    let holder = arenas[arena_of(slot)].holder(range_of(slot));
    holder.expect("ranges are of one number").map(member_of)
}

fn held_of(arenas: &[Arena; MEMBERS], member: usize) -> u8 {
    let held = ASCENDING
        .iter()
        .filter(|slot| holder_in(arenas, **slot) == Some(member));
    held.fold(0, |all, slot| all | bit(*slot))
}

/// Set bits by the names of what can be held.
fn names(held: u8) -> String {
    let slots = (0..=SHAPE).filter(|slot| held & bit(*slot) != 0);
    slots
        .map(|slot| match slot {
            SHAPE => "S".to_owned(),
            inode => inode.to_string(),
        })
        .collect()
}

impl fmt::Display for World {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "root {:?}", self.head)?;
        for (index, member) in self.members.iter().enumerate() {
            write!(formatter, " | {} {:?}", NAMES[index], member.phase)?;
            if !member.is_connected {
                write!(formatter, " cut off {}", member.beat_age)?;
            }
            if self.records[index].incarnation.is_none() {
                formatter.write_str(" (broken)")?;
            }
            let held = self.held(index);
            write!(formatter, " holds {} uses {}", names(held), names(member.usable))?;
            if member.pins != 0 {
                write!(formatter, " pins {}", names(member.pins))?;
            }
            write!(formatter, " sees {:?}", member.view)?;
            if !member.journal.is_empty() {
                write!(formatter, " journal {:?}", member.journal)?;
            }
            if let Some(request) = member.request {
                write!(formatter, " commit {:?}", request.stage)?;
            }
            if member.doubt.is_some() {
                formatter.write_str(" in doubt")?;
            }
            let gifts = [
                ("gives", member.gift),
                ("in doubt whether it gave", member.gift_in_doubt),
                ("gave up to give", member.late_gift),
            ];
            for (what, slot) in gifts {
                if let Some(slot) = slot {
                    write!(formatter, " {what} {}", names(bit(slot as usize)))?;
                }
            }
        }
        Ok(())
    }
}
