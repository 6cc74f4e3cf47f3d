//! The file system of a history: a list of operations for each inode.

use crate::world::{Leaves, Shared, lock};
use async_trait::async_trait;
use firn_anchor::{Arena, LeaseRange, VolumeTuple};
use firn_env::Env;
use firn_format::{Location, SegmentId, Uid, WriterId};
use firn_leases::{Build, Built, Content, MemberError};
use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What a member has in memory and in its journal.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) base: Leaves,
    /// Unpublished operations in their order.
    pub(crate) journal: Vec<u64>,
    /// What the first unpublished change of an inode was made on.
    pub(crate) ground: Leaves,
    /// With own changes.
    pub(crate) shown: Leaves,
}

pub(crate) struct Files {
    pub(crate) env: Env,
    pub(crate) world: Shared,
    pub(crate) memory: Mutex<Memory>,
    /// The longest upload.
    pub(crate) upload_ms: u64,
    pub(crate) uploads: AtomicU64,
}

impl Files {
    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    pub(crate) fn put_in(&self, number: u64) {
        let operation = lock(&self.world).operations[&number].clone();
        let mut memory = self.memory();
        for inode in operation.touches {
            let shown = memory.shown.get(&inode).cloned().unwrap_or_default();
            memory.ground.entry(inode).or_insert_with(|| shown.clone());
            memory.shown.entry(inode).or_default().push(number);
        }
        memory.journal.push(number);
    }
}

#[async_trait]
impl Content for Files {
    async fn adopt(&self, volume: &VolumeTuple) -> Result<(), MemberError> {
        let uid = volume.root.as_ref().unwrap().uid;
        self.env
            .sleep(Duration::from_millis(self.env.random_below(40)))
            .await;
        let leaves = lock(&self.world).roots[&uid].clone();
        let mut memory = self.memory();
        let held = std::mem::take(&mut memory.shown);
        memory.shown = leaves.clone();
        for (inode, _) in memory.ground.clone() {
            let kept = held.get(&inode).cloned().unwrap_or_default();
            memory.shown.insert(inode, kept);
        }
        memory.base = leaves;
        Ok(())
    }

    async fn build(&self, _: &VolumeTuple) -> Result<Build, MemberError> {
        let built = {
            let memory = self.memory();
            if memory.journal.is_empty() {
                return Ok(Build::Nothing);
            }
            let mut leaves = memory.base.clone();
            for (inode, ground) in &memory.ground {
                let is = leaves.get(inode).cloned().unwrap_or_default();
                if is != *ground {
                    return Ok(Build::LeafChanged { inode: *inode });
                }
                leaves.insert(*inode, memory.shown[inode].clone());
            }
            leaves
        };
        let uid = Uid(self.env.random_bytes());
        lock(&self.world).roots.insert(uid, built);
        self.env
            .sleep(Duration::from_millis(self.env.random_below(self.upload_ms)))
            .await;
        let sequence = self.uploads.fetch_add(1, Ordering::Relaxed) + 1;
        let segment = SegmentId {
            writer: WriterId(1),
            sequence,
        };
        let location = Location {
            segment,
            offset: 0,
            length: 1,
        };
        Ok(Build::Root(Built {
            uid,
            location,
            sequence,
        }))
    }

    fn is_published(&self, arena: u64, range: LeaseRange) -> bool {
        let memory = self.memory();
        !memory.ground.keys().any(|inode| {
            Arena::around(*inode).number() == arena && range.covers(LeaseRange::around(*inode, 0).unwrap())
        })
    }

    async fn committed(&self, built: &Built) {
        let mut world = lock(&self.world);
        let leaves = world.roots[&built.uid].clone();
        let mut memory = self.memory();
        let done: BTreeSet<u64> = leaves.values().flatten().copied().collect();
        let published: Vec<_> = memory
            .journal
            .iter()
            .copied()
            .filter(|number| done.contains(number))
            .collect();
        world.published.extend(&published);
        memory.journal.retain(|number| !done.contains(number));
        let left: BTreeSet<u64> = memory
            .journal
            .iter()
            .flat_map(|number| world.operations[number].touches.clone())
            .collect();
        memory.ground.retain(|inode, _| left.contains(inode));
        for inode in left {
            let now = leaves.get(&inode).cloned().unwrap_or_default();
            memory.ground.insert(inode, now);
        }
    }
}
