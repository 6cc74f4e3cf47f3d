//! The truth of a history: what the table has shown, and what members told their clients; each root is held against the promises as it is written.

use firn_anchor::{Arena, LeaseRange, MemberNumber, OwnerId, VolumeTuple};
use firn_format::Uid;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

pub(crate) type Leaves = BTreeMap<u64, Vec<u64>>;

/// An operation, as its member acknowledged it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) touches: Vec<u64>,
    /// What it was done on.
    pub(crate) on: BTreeMap<u64, Vec<u64>>,
}

/// What everybody can see: the store, and what was told to clients.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) roots: BTreeMap<Uid, Leaves>,
    pub(crate) arenas: BTreeMap<u64, Arena>,
    pub(crate) members: BTreeMap<OwnerId, MemberNumber>,
    pub(crate) head: Leaves,
    pub(crate) operations: BTreeMap<u64, Operation>,
    pub(crate) acknowledged: BTreeSet<u64>,
    pub(crate) published: BTreeSet<u64>,
    pub(crate) salvaged: BTreeSet<u64>,
    pub(crate) violation: Option<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

pub(crate) type Shared = Arc<Mutex<World>>;

pub(crate) fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}

impl World {
    pub(crate) fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    /// What is wrong is told by then; a history that went on could do so without end.
    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A root was committed.
    pub(crate) fn commit(&mut self, tuple: &VolumeTuple) {
        let Some(root) = &tuple.root else { return };
        let Some(leaves) = self.roots.get(&root.uid).cloned() else {
            return;
        };
        let before = std::mem::replace(&mut self.head, leaves.clone());
        if before == leaves {
            return;
        }
        self.count("commits");
        let committer = self.members.get(&root.owner).copied();
        for (inode, after) in &leaves {
            let was = before.get(inode).cloned().unwrap_or_default();
            if *after == was {
                continue;
            }
            if !after.starts_with(&was) {
                self.violate(format!("S2: inode {inode} was {was:?} and is {after:?}"));
            }
            let range = LeaseRange::around(*inode, 0).unwrap();
            let arena = Arena::around(*inode);
            let arena = self.arenas.get(&arena.number()).unwrap_or(&arena);
            let mut leases = arena.leases().iter();
            let is_wide = leases.any(|lease| lease.range.level() > 0 && lease.range.covers(range));
            if arena.holder(range) != Ok(committer) {
                let holder = arena.holder(range);
                self.violate(format!("S1: {committer:?} commits inode {inode} of {holder:?}"));
            }
            if is_wide {
                self.count("of wide ranges");
            }
            let mut seen = was;
            for number in &after[seen.len().min(after.len())..] {
                let on = self
                    .operations
                    .get(number)
                    .and_then(|operation| operation.on.get(inode));
                if on != Some(&seen) {
                    let what =
                        format!("S4: operation {number} was done on {on:?} of {inode}, and is on {seen:?}");
                    self.violate(what);
                }
                seen.push(*number);
            }
        }
    }
}
