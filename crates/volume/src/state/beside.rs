//! The state of a member beside others: which unpublished change stands on which root, and what of the counters is its own.
//!
//! ```text
//! first change of an inode ─▶ ground: the root in memory then ─▶ leaf check at a checkpoint: the inode's leaf is the same in the adopted root
//!                                  ▲                                                    │ committed
//!                                  └──────── changed again meanwhile: that root ◀───────┘ else forgotten
//! ```
//!
//! An inode has a ground exactly as long as something of it is in no committed root, so the grounds also say what is unpublished. The counters of a root
//! are everybody's: what is in memory is those of the adopted root and the difference that is not published.

use super::{Snapshot, State, VolumeCounters};
use crate::{journal::Sequence, record::Operation};
use firn_anchor::SHAPE_LEASE;
use firn_format::TreeRoot;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// By inode, the inode map on which its first unpublished change was made.
pub type Grounds = BTreeMap<u64, Option<TreeRoot>>;

/// What of the counters is not in the adopted root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersChange {
    files: i64,
    used_bytes: i64,
}

impl CountersChange {
    /// From one to the other.
    pub fn between(before: &VolumeCounters, after: &VolumeCounters) -> Self {
        let difference = |before: u64, after: u64| {
            let difference = i128::from(after) - i128::from(before);
            i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
        };
        Self {
            files: difference(before.files, after.files),
            used_bytes: difference(before.used_bytes, after.used_bytes),
        }
    }

    /// The sums with this change; what is no sum stays.
    pub fn on(self, counters: &VolumeCounters) -> VolumeCounters {
        VolumeCounters {
            files: counters.files.saturating_add_signed(self.files),
            used_bytes: counters.used_bytes.saturating_add_signed(self.used_bytes),
            ..counters.clone()
        }
    }
}

/// See the module.
pub struct Beside {
    /// The numbers that are given out here.
    home: Range<u64>,
    /// The counters of the adopted root.
    base: VolumeCounters,
    grounds: Grounds,
    /// Whether a directory was moved into another parent since the last freeze, and whether what is frozen has such a move: neither is a change of the shape lease's number.
    has_moves: bool,
    has_frozen_moves: bool,
}

impl Beside {
    /// What was changed is taken for a root.
    pub(super) fn freeze(&mut self) {
        self.has_frozen_moves |= std::mem::take(&mut self.has_moves);
    }

    /// An inode that had no unpublished change is changed.
    pub(super) fn note(&mut self, number: u64, inode_map: Option<TreeRoot>) {
        self.grounds.entry(number).or_insert(inode_map);
    }
}

impl State {
    /// Others write the volume as well from now on: `home` are the numbers that this member gives out, from `next_inode` on.
    pub fn write_beside_others(&mut self, home: Range<u64>, next_inode: u64) {
        self.beside = Some(Box::new(Beside {
            home,
            base: self.counters.clone(),
            grounds: Grounds::new(),
            has_moves: false,
            has_frozen_moves: false,
        }));
        self.counters.next_inode = next_inode;
    }

    /// Whether a number is one of those that are given out here: what was not given out does not exist.
    pub(super) fn gives_out(&self, number: u64) -> bool {
        match &self.beside {
            None => true,
            Some(_) if firn_env::planted!("volume.others_numbers_denied") => true,
            Some(beside) => beside.home.contains(&number),
        }
    }

    /// Whether there is a number left for a new inode.
    pub fn has_numbers(&self) -> bool {
        self.gives_out(self.counters.next_inode)
    }

    /// Inodes with changes that are in no committed root, and what each was changed on.
    pub fn grounds(&self) -> Grounds {
        let beside = self.beside.as_ref();
        beside.map(|beside| beside.grounds.clone()).unwrap_or_default()
    }

    /// Whether something of an inode is unpublished.
    pub fn has_ground(&self, number: u64) -> bool {
        let beside = self.beside.as_ref();
        beside.is_some_and(|beside| beside.grounds.contains_key(&number))
    }

    /// A directory was moved into another parent, or may have been: that stands under the shape lease until it is published.
    pub fn moved_directory(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.has_moves = true;
        }
    }

    /// Whether nothing of these inodes is unpublished, nor of what stands under the shape lease if its number is one of them.
    pub fn is_published(&self, numbers: Range<u64>) -> bool {
        self.beside.as_ref().is_none_or(|beside| {
            let has_moves = (beside.has_moves || beside.has_frozen_moves)
                && numbers.contains(&SHAPE_LEASE)
                && !firn_env::planted!("volume.moves_stand_under_no_lease");
            !has_moves && beside.grounds.range(numbers).next().is_none()
        })
    }

    /// What of the counters is not in the adopted root.
    pub fn unpublished_counters(&self) -> CountersChange {
        let beside = self.beside.as_ref();
        beside.map_or_else(CountersChange::default, |beside| {
            CountersChange::between(&beside.base, &self.counters)
        })
    }

    /// Takes another root's tree, keeping what is changed here and not published; of the rest `keeps` says which entries are in both. How
    /// many were dropped.
    pub fn adopt_beside(
        &mut self,
        counters: &VolumeCounters,
        inode_map: Option<TreeRoot>,
        snapshots: Vec<Snapshot>,
        keeps: impl Fn(u64) -> bool,
    ) -> usize {
        let next_inode = self.counters.next_inode;
        let unpublished = self.unpublished_counters();
        let beside = self.beside.as_mut().expect("who writes alone adopts nothing");
        let (grounds, orphans) = (&beside.grounds, &self.orphans);
        let before = self.entries.len();
        let is_own = |number: &u64| orphans.contains_key(number) || grounds.contains_key(number);
        self.entries.retain(|number, _| match is_own(number) {
            true => !firn_env::planted!("volume.adoption_drops_own_changes"),
            false => keeps(*number),
        });
        beside.base = counters.clone();
        self.counters = unpublished.on(counters);
        self.counters.next_inode = next_inode;
        self.inode_map = inode_map;
        self.snapshots = snapshots;
        before - self.entries.len()
    }

    /// What was frozen is committed, and installed, with these counters: what was changed since stands on it.
    pub fn committed_beside(&mut self, counters: &VolumeCounters, frozen: impl Iterator<Item = u64>) {
        let (inode_map, dirty) = (self.inode_map, &self.dirty);
        let beside = self.beside.as_mut().expect("who writes alone has no grounds");
        for number in frozen {
            match dirty.contains(&number) {
                true => beside.grounds.insert(number, inode_map),
                false => beside.grounds.remove(&number),
            };
        }
        beside.base = counters.clone();
        beside.has_frozen_moves = false;
    }

    /// The same number of records is the last one applied: a replay begins behind it.
    pub fn begin_behind(&mut self, covered: Sequence) {
        self.applied = covered;
    }

    /// A record is passed over, since what it did is kept elsewhere: it counts as applied, and a number that it gave out is not given out again, since
    /// clients have it in their handles.
    pub fn leave_out(&mut self, sequence: Sequence, operation: &Operation) {
        assert!(sequence > self.applied, "records are passed over in order");
        if !firn_env::planted!("volume.salvaged_stays_uncovered") {
            self.applied = sequence;
        }
        if let Operation::Create { inode, .. } = operation
            && !firn_env::planted!("volume.salvaged_numbers_given_again")
        {
            self.counters.next_inode = self.counters.next_inode.max(inode.number + 1);
        }
    }

    /// Orphans of others, which are theirs to free: they are forgotten here.
    pub fn forget_orphans(&mut self, is_own: impl Fn(u64) -> bool) {
        let others: BTreeSet<u64> = self.orphans.keys().copied().filter(|one| !is_own(*one)).collect();
        for number in others {
            self.orphans.remove(&number);
            self.entries.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::root_inode;
    use firn_format::{Location, Pointer, SegmentId, Uid, WriterId};
    use firn_vfs::Timestamp;

    fn root(number: u8) -> TreeRoot {
        let segment = SegmentId {
            writer: WriterId(1),
            sequence: 1,
        };
        let location = Location {
            segment,
            offset: 0,
            length: 1,
        };
        let uid = Uid([number; 32]);
        TreeRoot {
            pointer: Pointer { uid, location },
            level: 1,
        }
    }

    fn counters(files: u64, used_bytes: u64) -> VolumeCounters {
        VolumeCounters {
            files,
            used_bytes,
            ..VolumeCounters::new([0; 32])
        }
    }

    #[test]
    fn counters_are_those_of_the_adopted_root_and_what_is_not_published() {
        let mut state = State::new(1, counters(10, 100), Some(root(1)));
        state.write_beside_others(1 << 32..2 << 32, 1 << 32);
        state.counters.files += 2;
        state.counters.used_bytes -= 40;
        state.counters.next_inode += 2;
        state.adopt_beside(&counters(5, 1000), Some(root(2)), Vec::new(), |_| true);
        let found = &state.counters;
        assert_eq!((found.files, found.used_bytes), (7, 960));
        assert_eq!(found.next_inode, (1 << 32) + 2, "numbers are the member's own");
        state.adopt_beside(&counters(0, 0), None, Vec::new(), |_| true);
        assert_eq!(state.counters.used_bytes, 0, "no sum is below nothing");
    }

    #[test]
    fn an_inode_has_a_ground_as_long_as_something_of_it_is_unpublished() {
        let now = Timestamp::from_nanos(0);
        let mut state = State::new(1, counters(0, 0), None);
        state.write_beside_others(1 << 32..2 << 32, 1 << 32);
        state.create_root(&root_inode(16, 0o755, (0, 0), now), now);
        assert_eq!(state.grounds(), Grounds::from([(16, None)]));
        assert!(!state.is_published(16..17) && state.is_published(17..u64::MAX));
        let frozen = state.freeze();
        assert!(!state.is_published(0..u64::MAX), "frozen is not published");
        state.changed(16);
        let built = frozen
            .iter()
            .map(|entry| (entry.number, super::super::Content::Empty, 0));
        state.install(Some(root(3)), built.collect());
        state.committed_beside(&counters(1, 0), [16].into_iter());
        assert_eq!(state.grounds(), Grounds::from([(16, Some(root(3)))]));
        state.freeze();
        state.install(Some(root(4)), vec![(16, super::super::Content::Empty, 0)]);
        state.committed_beside(&counters(1, 0), [16].into_iter());
        assert!(state.is_published(0..u64::MAX));
    }

    #[test]
    fn numbers_of_others_are_asked_of_the_map_and_own_ones_that_were_not_given_out_do_not_exist() {
        let mut state = State::new(1, counters(0, 0), Some(root(1)));
        state.write_beside_others(5 << 32..6 << 32, 5 << 32);
        assert_eq!(state.inode((5 << 32) + 1), Ok(None));
        let missing = state.inode(9 << 32);
        assert_eq!(missing, Err(super::super::Missing::Inode(9 << 32)));
    }
}
