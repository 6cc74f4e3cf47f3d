//! The store: tracts on one physical disk, torn-write safe.
//!
//! ```text
//! put ─→ free slots ─→ data written ─→ shown (active) ──┐
//!                                                        ├─ commit: data synced → journal batch synced → durable → slots free
//! fence, allocate, reset, release (control) ──────────────┘
//!                                                           journal file full → index regions → state file (checkpoint)
//! ```
//!
//! - **Torn writes.** Content is written only to slots that nothing needs ([`layout`]); a block moves to its new content with
//!   a journal record, whose batch is whole or absent ([`journal`]) and is written only after the data is durable. So after a
//!   crash each block is what it was before or after some write, never between, and its checksum says so.
//! - **Group commit.** One task commits; all who wait at one moment share one sync of the data files written and one of the
//!   journal. While it runs, the next batch fills.
//! - **Highest generation wins**, at the moment a block's content is shown, whatever the order of arrival.
//! - **A failed sync is a crash**: what the kernel dropped cannot be told apart from what it kept. The process ends.
//! - **A full file system** makes the store read-only until there is room again ([`room`]).

mod checkpoint;
mod commit;
mod defragmentation;
mod entry;
mod error;
mod fields;
#[cfg(test)]
mod golden;
mod index;
mod journal;
mod layout;
mod open;
mod read;
mod record;
mod room;
mod slots;
mod state;
mod write;

pub use error::{OpenError, StoreError};
pub use index::TractPlace;
pub use layout::Geometry;
pub use read::Found;
pub use write::{Content, Put};

use firn_blockd_protocol::{BlockVersion, DiskId, Fence, NodeId, TractId};
use firn_env::{DiskFile, DiskLock, Env, Task, Watched};
use room::Room;
use state::State;
use std::{
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::Notify;

/// How a store works.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// The longest a write stays volatile that nobody flushes.
    pub commit_interval: Duration,
    /// Blocks that wait for a commit before it is begun though nobody asked.
    pub commit_blocks: usize,
    /// Blocks that may wait for a commit; beyond it writers wait.
    pub pending_blocks: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            commit_interval: Duration::from_millis(500),
            // 16 MiB and 128 MiB of data: enough to share a sync among many, and a fraction of a second to sync.
            commit_blocks: 4096,
            pending_blocks: 32768,
        }
    }
}

/// Counts for metrics.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Commits made.
    pub commits: AtomicU64,
    /// Blocks made durable.
    pub committed_blocks: AtomicU64,
    /// Blocks read.
    pub read_blocks: AtomicU64,
    /// Blocks written, the refused ones included.
    pub written_blocks: AtomicU64,
    /// Times the journal went on to its other file.
    pub checkpoints: AtomicU64,
    /// Blocks moved home from scratch.
    pub defragmented_blocks: AtomicU64,
    /// Reads that had to look again because a slot was used anew meanwhile.
    pub reread: AtomicU64,
}

struct Shared {
    env: Env,
    node: NodeId,
    geometry: Geometry,
    options: StoreOptions,
    state: Mutex<State>,
    data: Vec<Arc<dyn DiskFile>>,
    index: Vec<Arc<dyn DiskFile>>,
    /// Of each group: held by who waits for free slots, so that all who come later wait behind it.
    short_of_slots: Vec<tokio::sync::Mutex<()>>,
    /// Somebody wants a commit now.
    wanted: Notify,
    /// The newest durable batch.
    durable: Watched<u64>,
    counts: StoreCounts,
    room: Room,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Waits until `batch` is durable, and asks for it.
    async fn wait_durable(&self, batch: u64) {
        self.wanted.notify_one();
        self.durable.wait_for(|durable| *durable >= batch).await;
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    _committer: Arc<Committer>,
}

/// Ends the committer with the last handle on the store.
struct Committer {
    task: Task<()>,
    _lock: Box<dyn DiskLock>,
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Store {
    /// Whose store it is.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// How it is cut.
    pub fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    /// Its counts.
    pub fn counts(&self) -> &StoreCounts {
        &self.shared.counts
    }

    /// Tracts it holds.
    pub fn used_tracts(&self) -> u64 {
        self.shared.state().tracts.len() as u64
    }

    /// Tracts for which there is still a frame.
    pub fn free_tracts(&self) -> u64 {
        self.shared.state().free_frames.len() as u64
    }

    /// Damaged blocks that are known.
    pub fn damaged(&self) -> Vec<(TractId, u16)> {
        self.shared.state().damaged.iter().copied().collect()
    }

    /// The fence of a disk: nothing if it was told none.
    pub fn fence(&self, disk: DiskId) -> Option<Fence> {
        let state = self.shared.state();
        let fence = state.disks.get(&disk)?.fence;
        (fence > Fence(0)).then_some(fence)
    }

    /// Raises a disk's fence; returns when that is durable. The caller sees to it that nothing under an older fence is on
    /// its way to the store.
    pub async fn set_fence(&self, disk: DiskId, fence: Fence) {
        let batch = {
            let mut state = self.shared.state();
            let facts = state.disks.entry(disk).or_default();
            facts.fence = facts.fence.max(fence);
            state.control.push(record::Record::Fence { disk, fence });
            state.batch
        };
        self.shared.env.fault_point("store.fence_raised").await;
        if firn_env::planted!("store.fence_not_durable") {
            return;
        }
        self.shared.wait_durable(batch).await;
    }

    /// The disks of which this node knows anything.
    pub fn disks(&self) -> Vec<DiskId> {
        let state = self.shared.state();
        let mut disks: Vec<DiskId> = state.disks.keys().copied().collect();
        disks.extend(state.tracts.keys().map(|tract| tract.disk));
        disks.sort_unstable();
        disks.dedup();
        disks
    }

    /// Forgets a disk whose tracts were all released.
    pub fn forget_disk(&self, disk: DiskId) {
        let mut state = self.shared.state();
        if state.disks.remove(&disk).is_some() {
            state.control.push(record::Record::Forget { disk });
        }
    }

    /// Where a tract it holds belongs.
    pub fn place(&self, tract: TractId) -> Option<TractPlace> {
        self.shared.state().tracts.get(&tract).map(|tract| tract.place)
    }

    /// All tracts it holds, in order.
    pub fn places(&self) -> Vec<TractPlace> {
        self.shared
            .state()
            .tracts
            .values()
            .map(|tract| tract.place)
            .collect()
    }

    /// The versions of all blocks of a tract, without reading any.
    pub fn versions(&self, tract: TractId) -> Option<Vec<BlockVersion>> {
        let state = self.shared.state();
        let held = state.tracts.get(&tract)?;
        Some(
            (0..firn_blockd_protocol::TRACT_BLOCKS)
                .map(|block| held.latest(block).version())
                .collect(),
        )
    }

    /// Whether the file system has no room: puts are refused, or the last one found none.
    pub async fn is_full(&self) -> bool {
        self.shared.is_full().await
    }

    /// Whether puts are refused until there is room on the file system.
    pub fn is_read_only(&self) -> bool {
        self.shared.room.is_read_only()
    }

    /// Makes everything durable that was put before.
    pub async fn flush(&self) {
        let batch = self.shared.state().batch;
        self.shared.wait_durable(batch).await;
    }

    /// Waits until a batch that [`Store::put`] named is durable.
    pub async fn durable(&self, batch: u64) {
        self.shared.wait_durable(batch).await;
    }

    /// The same for somebody who can wait: a commit is asked for only if none came in this time.
    pub async fn durable_within(&self, batch: u64, limit: Duration) {
        let committed = self.shared.durable.wait_for(|durable| *durable >= batch);
        if self.shared.env.timeout(limit, committed).await.is_err() {
            self.durable(batch).await;
        }
    }

    /// Empties a tract that this node holds from another membership in its row than `place` says; durable when it returns. Of
    /// several who ask at once one empties it, and what is written under `place` after that stays.
    pub async fn reset(&self, place: TractPlace) {
        let (tract, since) = (place.tract, place.since);
        self.clear(
            tract,
            |held| held.since != since,
            |frame| record::Record::Reset { frame, tract, since },
        )
        .await;
    }

    /// Gives up a tract, if it is still held as `place` says; durable when it returns.
    pub async fn release(&self, place: TractPlace) {
        let tract = place.tract;
        self.clear(
            tract,
            |held| *held == place,
            |frame| record::Record::Release { frame, tract },
        )
        .await;
    }

    async fn clear(
        &self,
        tract: TractId,
        applies: impl Fn(&TractPlace) -> bool,
        record: impl FnOnce(layout::Frame) -> record::Record,
    ) {
        let gate = self
            .shared
            .state()
            .tracts
            .get(&tract)
            .map(|held| held.gate.clone());
        let Some(gate) = gate else {
            return;
        };
        let _alone = gate.clone().write_owned().await;
        let batch = {
            let mut state = self.shared.state();
            // It may have become another's while we waited at the gate.
            let held = state.tracts.get(&tract);
            let held = held.filter(|held| Arc::ptr_eq(&held.gate, &gate) && applies(&held.place));
            let Some(frame) = held.map(|held| held.frame) else {
                return;
            };
            state.drop_active(tract);
            state.control.push(record(frame));
            state.batch
        };
        self.shared.wait_durable(batch).await;
    }
}
