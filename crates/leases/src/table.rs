//! The lease table of a member: what the arenas say it holds, what of that it may use, and what its clients' changes have pinned.
//!
//! ```text
//!            seen in the arena            adopted: a root whose read began since
//!  not held ──────────────────▶ granted ───────────────────────────────────────▶ usable ◀──▶ pinned by changes under way
//!      ▲                           │                                                │
//!      └────────── given ──────────┴────────────────────── given (nobody pins it) ──┘
//! ```
//!
//! **A read of the root counts for what was granted when it began**, and not for a lease that was given since and came back: whatever becomes the
//! member's has a number, and an adopted root the number that was the newest when its read began.
//!
//! What the member holds stays so until it gives it, as long as it is present: others take from the absent and break the silent only. So an
//! arena that was seen once says for all its inodes what is held, and a new inode of the own home asks nobody.
//!
//! **What others wait for is closed**: no change begins with it any more, so that it can be given however busy the member is. Only what the member itself had
//! waited for is used once first: else it could go to and fro between two that never use it.
//!
//! Memory only: a start asks the arenas.

use firn_anchor::{ARENA_BITS, Arena, LeaseRange, MemberNumber};
use std::collections::{BTreeMap, BTreeSet};

/// A read of the root that is under way: for which grants it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRead(u64);

/// An arena as it was seen last.
#[derive(Clone, Debug)]
struct Seen {
    arena: Arena,
    /// The number of what was the member's at the first look.
    first: u64,
    /// Of ranges that became the member's later, or were nearly given.
    later: Vec<(LeaseRange, u64)>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    member: MemberNumber,
    arenas: BTreeMap<u64, Seen>,
    /// The newest grant.
    granted: u64,
    /// Grants up to this one are usable.
    adopted: u64,
    /// By inode, how many changes under way need it.
    pins: BTreeMap<u64, usize>,
    /// Inodes that were taken from a member that was broken, and not changed since. As few as leases of arenas: they are taken one by one.
    from_broken: BTreeSet<u64>,
    /// By arena, ranges that others wait for.
    closed: BTreeMap<u64, Vec<LeaseRange>>,
    /// Inodes that another had when they were asked for, and that were not used since.
    owed: BTreeSet<u64>,
    /// By inode, how many calls wait for it.
    waiting: BTreeMap<u64, usize>,
}

impl LeaseTable {
    /// Of a member that has asked nothing yet.
    pub fn new(member: MemberNumber) -> Self {
        Self {
            member,
            arenas: BTreeMap::new(),
            granted: 0,
            adopted: 0,
            pins: BTreeMap::new(),
            from_broken: BTreeSet::new(),
            closed: BTreeMap::new(),
            owed: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// An inode was, or may have been, taken from a member that was broken: what that one counted of changes is not known.
    pub fn taken_from_broken(&mut self, inode: u64) {
        self.from_broken.insert(inode);
    }

    /// Whether it was, and was not changed since.
    pub fn is_from_broken(&self, inode: u64) -> bool {
        self.from_broken.contains(&inode)
    }

    /// It was changed.
    pub fn changed(&mut self, inode: u64) {
        self.from_broken.remove(&inode);
    }

    /// Single inodes that arenas give to the member as exceptions: from whom it has them it does not know after a start.
    pub fn exceptions(&self) -> Vec<u64> {
        let mut exceptions = Vec::new();
        for (number, seen) in &self.arenas {
            let own = seen
                .arena
                .leases()
                .iter()
                .filter(|lease| lease.holder == Some(self.member));
            let singles = own.filter(|lease| lease.range.level() == 0);
            exceptions.extend(singles.map(|lease| (number << ARENA_BITS) + u64::from(lease.range.first())));
        }
        exceptions
    }

    /// Takes in an arena as it is now: what became the member's is granted, what is another's is not held.
    pub fn see(&mut self, arena: &Arena) {
        let (member, adopted) = (self.member, self.adopted);
        let next = self.granted + 1;
        self.granted = next;
        self.from_broken.retain(|inode| {
            inode >> ARENA_BITS != arena.number() || arena.holder(single(*inode)) == Ok(Some(member))
        });
        let Some(seen) = self.arenas.get_mut(&arena.number()) else {
            let seen = Seen {
                arena: arena.clone(),
                first: next,
                later: Vec::new(),
            };
            self.arenas.insert(arena.number(), seen);
            return;
        };
        seen.later.retain(|(_, number)| *number > adopted);
        let leases = arena.leases().iter().chain(seen.arena.leases());
        let became = leases.map(|lease| lease.range).filter(|range| {
            // Of a range that is held in parts some may have become the member's. To count too much as new costs a read of the root.
            let is_others = arena.holder(*range).is_ok_and(|holder| holder != Some(member));
            !is_others && seen.arena.holder(*range) != Ok(Some(member))
        });
        let became: Vec<_> = became.map(|range| (range, next)).collect();
        seen.later.extend(became);
        seen.arena = arena.clone();
    }

    /// Whether the member holds an inode, by the arena as it was seen last; `None`: it was never looked at.
    pub fn holds(&self, inode: u64) -> Option<bool> {
        let seen = self.arenas.get(&(inode >> ARENA_BITS))?;
        Some(seen.arena.holder(single(inode)) == Ok(Some(self.member)))
    }

    /// Whether another member holds it, by the arena as it was seen last.
    pub fn is_anothers(&self, inode: u64) -> bool {
        self.holder(inode).is_some_and(|holder| holder != self.member)
    }

    /// Who holds it, by the arena as it was seen last.
    pub fn holder(&self, inode: u64) -> Option<MemberNumber> {
        let seen = self.arenas.get(&(inode >> ARENA_BITS))?;
        seen.arena.holder(single(inode)).ok().flatten()
    }

    /// Whether an inode may be used: it is held, and a root was adopted whose read began since.
    pub fn is_usable(&self, inode: u64) -> bool {
        let Some(seen) = self.arenas.get(&(inode >> ARENA_BITS)) else {
            return false;
        };
        let covering = seen.later.iter().filter(|(range, _)| range.covers(single(inode)));
        let number = covering.map(|(_, number)| *number).max().unwrap_or(seen.first);
        let is_adopted = number <= self.adopted || firn_env::planted!("leases.used_before_adoption");
        self.holds(inode) == Some(true) && is_adopted
    }

    /// A read of the root begins now.
    pub fn begin_root_read(&self) -> RootRead {
        RootRead(self.granted)
    }

    /// What it read was adopted.
    pub fn adopted(&mut self, read: RootRead) {
        self.adopted = self.adopted.max(read.0);
    }

    /// Keeps an inode that may be used; `false`: it may not, or others wait for it.
    pub fn pin(&mut self, inode: u64) -> bool {
        let may_begin = self.is_usable(inode) && (!self.is_closed(inode) || self.owed.contains(&inode));
        if may_begin {
            *self.pins.entry(inode).or_default() += 1;
            self.owed.remove(&inode);
        }
        may_begin
    }

    /// Whether others wait for an inode, by what was seen last.
    pub fn is_closed(&self, inode: u64) -> bool {
        let closed = self.closed.get(&(inode >> ARENA_BITS));
        closed.is_some_and(|ranges| ranges.iter().any(|range| range.covers(single(inode))))
    }

    /// These ranges of an arena, and no others of it, are what others wait for.
    pub fn close(&mut self, arena: u64, ranges: &[LeaseRange]) {
        self.closed.remove(&arena);
        if !ranges.is_empty() && !firn_env::planted!("leases.goes_on_with_what_is_wanted") {
            self.closed.insert(arena, ranges.to_vec());
        }
    }

    /// Whether others wait for anything.
    pub fn has_closed(&self) -> bool {
        self.closed.values().any(|ranges| !ranges.is_empty())
    }

    /// Another has an inode that a call here asks for.
    pub fn owes(&mut self, inode: u64) {
        self.owed.insert(inode);
    }

    /// A call waits for an inode, until [`Self::waits_no_more`].
    pub fn waits(&mut self, inode: u64) {
        *self.waiting.entry(inode).or_default() += 1;
    }

    /// The call has it, or waits no more.
    pub fn waits_no_more(&mut self, inode: u64) {
        if let Some(waiting) = self.waiting.get_mut(&inode) {
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting.remove(&inode);
                self.owed.remove(&inode);
            }
        }
    }

    /// Whether a range has something that a call waited for and has not used yet.
    pub fn is_owed(&self, arena: u64, range: LeaseRange) -> bool {
        let mut owed = self.owed.iter().filter(|inode| self.waiting.contains_key(inode));
        owed.any(|inode| inode >> ARENA_BITS == arena && range.covers(single(*inode)))
    }

    /// Keeps it no more.
    pub fn unpin(&mut self, inode: u64) {
        if let Some(pins) = self.pins.get_mut(&inode) {
            *pins -= 1;
            if *pins == 0 {
                self.pins.remove(&inode);
            }
        }
    }

    /// Whether changes under way keep a part of a range.
    pub fn is_pinned(&self, arena: u64, range: LeaseRange) -> bool {
        let mut pinned = self.pins.keys().filter(|inode| **inode >> ARENA_BITS == arena);
        pinned.any(|inode| range.covers(single(*inode)))
    }

    /// Whether anything is kept.
    pub fn has_pins(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Ranges that the member holds and others wait for, the narrowest first, as they can be given.
    pub fn wanted(&self, arena: &Arena) -> Vec<LeaseRange> {
        let waited_for = arena.leases().iter().filter(|lease| !lease.queue.is_empty());
        let ours = waited_for.filter(|lease| arena.holder(lease.range) == Ok(Some(self.member)));
        let mut ranges: Vec<_> = ours.map(|lease| lease.range).collect();
        ranges.sort_by_key(|range| range.level());
        ranges
    }

    /// A range is used no more, since it is about to be given; if it is not, it is usable by the next read of the root.
    pub fn give_up(&mut self, arena: u64, range: LeaseRange) {
        self.granted += 1;
        let number = self.granted;
        if let Some(seen) = self.arenas.get_mut(&arena) {
            seen.later.push((range, number));
        }
        if let Some(closed) = self.closed.get_mut(&arena) {
            closed.retain(|closed| *closed != range);
        }
    }

    /// How many leases the member holds beside its home, and for how many of all that it holds others wait, by the arenas as they were seen last.
    pub fn counts(&self) -> (usize, usize) {
        let seen = self.arenas.values().map(|seen| &seen.arena);
        let leases = seen.flat_map(|arena| arena.leases().iter().map(move |lease| (arena, lease)));
        leases.fold((0, 0), |(held, wanted), (arena, lease)| {
            let is_own = arena.holder(lease.range) == Ok(Some(self.member));
            let is_beside_home = is_own && arena.home() != Some(self.member);
            let is_wanted = is_own && !lease.queue.is_empty();
            (
                held + usize::from(is_beside_home),
                wanted + usize::from(is_wanted),
            )
        })
    }

    /// Which arenas were looked at.
    pub fn arenas(&self) -> Vec<u64> {
        self.arenas.keys().copied().collect()
    }

    /// Nothing is held any more: the member left, or was broken.
    pub fn forget(&mut self) {
        self.arenas.clear();
        self.closed.clear();
        self.owed.clear();
    }
}

fn single(inode: u64) -> LeaseRange {
    LeaseRange::around(inode, 0).expect("the lowest level")
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_anchor::{ArenaChange, SHAPE_LEASE};

    const ME: MemberNumber = MemberNumber(2);
    const OTHER: MemberNumber = MemberNumber(3);

    fn held() -> (LeaseTable, Arena) {
        let arena = Arena::around(SHAPE_LEASE)
            .changed(ArenaChange::Take, single(SHAPE_LEASE), ME)
            .expect("it is nobody's");
        let mut table = LeaseTable::new(ME);
        table.see(&arena);
        (table, arena)
    }

    fn adopt(table: &mut LeaseTable) {
        let read = table.begin_root_read();
        table.adopted(read);
    }

    #[test]
    fn a_lease_is_used_once_a_root_is_adopted_whose_read_began_after_it_was_seen() {
        let (_, arena) = held();
        let mut table = LeaseTable::new(ME);
        table.see(&Arena::around(SHAPE_LEASE));
        let early = table.begin_root_read();
        table.see(&arena);
        assert_eq!(table.holds(SHAPE_LEASE), Some(true));
        table.adopted(early);
        assert!(!table.pin(SHAPE_LEASE), "the read began before");
        adopt(&mut table);
        assert!(table.pin(SHAPE_LEASE));
        table.see(&arena);
        assert!(table.is_usable(SHAPE_LEASE), "a look is no new grant");
    }

    #[test]
    fn a_read_that_began_under_an_earlier_lease_does_not_count_for_the_one_that_came_back() {
        let (mut table, arena) = held();
        adopt(&mut table);
        let read = table.begin_root_read();
        table.give_up(arena.number(), single(SHAPE_LEASE));
        assert!(!table.is_usable(SHAPE_LEASE));
        table.adopted(read);
        assert!(!table.is_usable(SHAPE_LEASE));
        table.see(&Arena::around(SHAPE_LEASE));
        let read = table.begin_root_read();
        table.see(&arena);
        table.adopted(read);
        assert!(!table.is_usable(SHAPE_LEASE), "it was away between");
        adopt(&mut table);
        assert!(table.is_usable(SHAPE_LEASE));
    }

    #[test]
    fn with_what_others_wait_for_no_change_begins_unless_it_was_waited_for() {
        let (mut table, arena) = held();
        adopt(&mut table);
        assert!(!table.has_closed());
        table.close(arena.number(), &[single(SHAPE_LEASE)]);
        assert!(table.has_closed() && !table.pin(SHAPE_LEASE));
        table.owes(SHAPE_LEASE);
        assert!(!table.is_owed(0, single(SHAPE_LEASE)), "no call waits");
        table.waits(SHAPE_LEASE);
        assert!(table.is_owed(0, single(SHAPE_LEASE)));
        assert!(table.pin(SHAPE_LEASE), "once");
        assert!(!table.pin(SHAPE_LEASE) && !table.is_owed(0, single(SHAPE_LEASE)));
        table.waits_no_more(SHAPE_LEASE);
        table.close(arena.number(), &[]);
        assert!(table.pin(SHAPE_LEASE), "nobody waits any more");
        table.close(arena.number(), &[single(SHAPE_LEASE)]);
        table.give_up(arena.number(), single(SHAPE_LEASE));
        assert!(!table.has_closed(), "it is given");
    }

    #[test]
    fn what_is_made_in_the_own_home_asks_nobody() {
        let home = u64::from(ME.0) << 32;
        let mut table = LeaseTable::new(ME);
        assert_eq!(table.holds(home), None);
        table.see(&Arena::around(home));
        adopt(&mut table);
        assert!((0..1000).all(|number| table.pin(home + number)));
        assert!(!table.is_usable(home + (1 << ARENA_BITS)), "another arena");
    }

    #[test]
    fn what_was_taken_from_a_broken_member_is_known_until_it_is_changed_or_given() {
        let (mut table, arena) = held();
        assert_eq!(table.exceptions(), [SHAPE_LEASE]);
        table.taken_from_broken(SHAPE_LEASE);
        table.see(&arena);
        assert!(table.is_from_broken(SHAPE_LEASE));
        table.changed(SHAPE_LEASE);
        assert!(!table.is_from_broken(SHAPE_LEASE));
        table.taken_from_broken(SHAPE_LEASE);
        table.see(&Arena::around(SHAPE_LEASE));
        assert!(!table.is_from_broken(SHAPE_LEASE), "it is nobody's");
        assert!(table.exceptions().is_empty());
    }

    #[test]
    fn what_others_wait_for_is_told_and_what_is_pinned_is_kept() {
        let (mut table, arena) = held();
        adopt(&mut table);
        assert!(table.wanted(&arena).is_empty());
        let wanted = arena
            .changed(ArenaChange::Want, single(SHAPE_LEASE), OTHER)
            .expect("a place");
        assert_eq!(table.wanted(&wanted), [single(SHAPE_LEASE)]);
        assert!(table.pin(SHAPE_LEASE) && table.pin(SHAPE_LEASE));
        table.unpin(SHAPE_LEASE);
        let wide = LeaseRange::around(SHAPE_LEASE, 2).expect("a level");
        assert!(table.is_pinned(0, single(SHAPE_LEASE)) && table.is_pinned(0, wide));
        table.unpin(SHAPE_LEASE);
        assert!(!table.is_pinned(0, wide) && !table.has_pins());
        let given = wanted
            .changed(ArenaChange::Give, single(SHAPE_LEASE), ME)
            .expect("it is ours");
        table.see(&given);
        assert!(!table.pin(SHAPE_LEASE));
        table.forget();
        assert_eq!(table.holds(SHAPE_LEASE), None);
    }
}
