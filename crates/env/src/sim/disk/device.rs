//! A simulated disk as it is seen from outside its machine: how it behaves, what is on it, what a crash leaves.

use super::{
    image::{DiskImage, Survival},
    state::DiskState,
};
use crate::sim::seeded::Seeded;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How a simulated disk behaves. The defaults are those of a healthy solid-state disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Bytes that fit; a write beyond fails with [`DiskError::Full`].
    pub capacity_bytes: u64,
    /// The longest a read, write or name change takes.
    pub operation_latency: Duration,
    /// The longest a sync takes.
    pub sync_latency: Duration,
    /// Syncs that fail, in a million.
    pub sync_failures: u32,
    /// Reads that fail with an I/O error, in a million.
    pub read_failures: u32,
    /// Every change is durable at once. For measurements, which cut no power: what a crash might bring back, such as a
    /// removed file whose directory was never synced, takes memory.
    pub writes_through: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 40,
            operation_latency: Duration::from_micros(100),
            sync_latency: Duration::from_millis(2),
            sync_failures: 0,
            read_failures: 0,
            writes_through: false,
        }
    }
}

pub(super) struct Inner {
    pub(super) state: DiskState,
    pub(super) options: DiskOptions,
    pub(super) random: Seeded,
    /// Taken locks with their tokens.
    pub(super) locks: BTreeMap<String, u64>,
    pub(super) next_token: u64,
    pub(super) syncs: u64,
    /// Counts replacements of `state`: files opened before are of no account after.
    pub(super) generation: u64,
}

impl Inner {
    fn replace(&mut self, image: &DiskImage) {
        self.state = DiskState::new(image, self.options.capacity_bytes);
        self.state.set_writes_through(self.options.writes_through);
        self.locks.clear();
        self.generation += 1;
    }
}

/// A machine's disk, seen from outside the machine; cheap to clone.
#[derive(Clone)]
pub struct SimulatedDisk {
    inner: Arc<Mutex<Inner>>,
}

impl SimulatedDisk {
    pub(in crate::sim) fn new(random: Seeded) -> Self {
        let options = DiskOptions::default();
        Self {
            inner: Arc::new(Mutex::new(Inner {
                state: DiskState::new(&DiskImage::default(), options.capacity_bytes),
                options,
                random,
                locks: BTreeMap::new(),
                next_token: 0,
                syncs: 0,
                generation: 0,
            })),
        }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under the disk's lock")
    }

    /// Loses what a crash may lose.
    pub(in crate::sim) fn crash(&self) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let survival = Survival::draw(inner.state.sequence(), &mut inner.random);
        let image = inner.state.survivor(survival, &mut inner.random);
        inner.replace(&image);
    }

    /// The processes that held locks are gone.
    pub(in crate::sim) fn unlock_all(&self) {
        self.inner().locks.clear();
    }

    /// Makes everything visible durable, as the kernel does in time.
    pub fn settle(&self) {
        let mut inner = self.inner();
        let image = inner.state.visible();
        inner.replace(&image);
    }

    /// Changes how it behaves from now on.
    pub fn configure(&self, change: impl FnOnce(&mut DiskOptions)) {
        let mut inner = self.inner();
        change(&mut inner.options);
        inner.state.capacity_bytes = inner.options.capacity_bytes;
        let writes_through = inner.options.writes_through;
        inner.state.set_writes_through(writes_through);
    }

    /// Bytes that can still be written.
    pub fn free_bytes(&self) -> u64 {
        self.inner().state.free_bytes()
    }

    /// Syncs of files that succeeded.
    pub fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// What programs see on it now.
    pub fn image(&self) -> DiskImage {
        self.inner().state.visible()
    }

    /// What a crash now would leave, drawn by `survival` and `seed`. The disk itself is not changed.
    pub fn image_after_crash(&self, survival: Survival, seed: u64) -> DiskImage {
        self.inner().state.survivor(survival, &mut Seeded::new(seed, 0))
    }

    /// Replaces everything on it; for a machine that is down.
    pub fn restore(&self, image: &DiskImage) {
        self.inner().replace(image);
    }

    /// Flips `bits` random bits in the files whose path starts with `prefix`; returns where.
    pub fn rot(&self, prefix: &str, bits: usize) -> Vec<(String, u64)> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let image = inner.state.visible();
        let candidates: Vec<(String, u64)> = inner
            .state
            .paths()
            .into_iter()
            .filter(|path| path.starts_with(prefix))
            .filter_map(|path| {
                let length = image.files.get(&path)?.length();
                (length > 0).then_some((path, length))
            })
            .collect();
        if candidates.is_empty() {
            return Vec::new();
        }
        (0..bits)
            .map(|_| {
                let (path, length) = inner.random.pick(&candidates).clone();
                let offset = inner.random.below(length);
                let bit = inner.random.below(8) as u8;
                // The path was listed under the same lock.
                let _ = inner.state.flip(&path, offset, bit);
                (path, offset)
            })
            .collect()
    }
}
