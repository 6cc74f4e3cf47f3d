//! The simulated disk: the contract of [`Disk`](crate::Disk), kept to the letter and not beyond.
//!
//! [`state`] models what is visible and what is durable; this file adds time and failure. A call takes its effect at its
//! beginning or its end, by chance. A call whose future is dropped takes effect all the same, a little later, because
//! that is what a real disk behind a thread pool does. A failed sync leaves its bytes unsynced for ever, visible as they
//! are, as Linux does.

mod content;
mod image;
pub(super) mod state;

pub use image::{DiskImage, FileImage, Survival};

use super::{machine::Handle, seeded::Seeded};
use crate::{Clock, DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, FileStatus, OpenMode};
use async_trait::async_trait;
use bytes::Bytes;
use state::{DiskState, NodeRef};
use std::{
    collections::BTreeMap,
    future::pending,
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

struct Inner {
    state: DiskState,
    options: DiskOptions,
    random: Seeded,
    /// Taken locks with their tokens.
    locks: BTreeMap<String, u64>,
    next_token: u64,
    syncs: u64,
    /// Counts replacements of `state`: files opened before are of no account after.
    generation: u64,
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
    pub(super) fn new(random: Seeded) -> Self {
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under the disk's lock")
    }

    pub(super) fn attach(&self, handle: Arc<Handle>) -> AttachedDisk {
        AttachedDisk {
            disk: self.clone(),
            handle,
        }
    }

    /// Loses what a crash may lose.
    pub(super) fn crash(&self) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let survival = Survival::draw(inner.state.sequence(), &mut inner.random);
        let image = inner.state.survivor(survival, &mut inner.random);
        inner.replace(&image);
    }

    /// The processes that held locks are gone.
    pub(super) fn unlock_all(&self) {
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

/// The disk as the programs of one incarnation see it.
pub(super) struct AttachedDisk {
    disk: SimulatedDisk,
    handle: Arc<Handle>,
}

/// Work that is done even if nobody waits for it any more.
struct Certain<F: FnOnce() + Send + 'static> {
    handle: Arc<Handle>,
    latency: Duration,
    work: Option<F>,
}

impl<F: FnOnce() + Send + 'static> Drop for Certain<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && self.handle.is_alive()
        {
            let sleep = self.handle.sleep_for(self.latency);
            self.handle.detach(
                "disk operation nobody waits for",
                Box::pin(async move {
                    sleep.await;
                    work();
                }),
            );
        }
    }
}

async fn perform<T: Send + 'static>(
    disk: &SimulatedDisk,
    handle: &Arc<Handle>,
    sync: bool,
    work: impl FnOnce(&mut Inner) -> Result<T, DiskError> + Send + 'static,
) -> Result<T, DiskError> {
    if !handle.is_alive() {
        return pending().await;
    }
    let (latency, at_once) = {
        let mut inner = disk.inner();
        let longest = if sync {
            inner.options.sync_latency
        } else {
            inner.options.operation_latency
        };
        let latency = inner.random.duration(Duration::ZERO, longest);
        // A third of the calls answers without a pause, as a page cache does.
        let no_pause = !sync && inner.random.chance(1, 3);
        let latency = if no_pause { Duration::ZERO } else { latency };
        (latency, !sync && inner.random.chance(1, 2))
    };
    handle.shared.core().mix(latency.as_nanos() as u64);
    if latency.is_zero() {
        return work(&mut disk.inner());
    }
    if at_once {
        let result = work(&mut disk.inner());
        handle.sleep_for(latency).await;
        return result;
    }
    let result = Arc::new(Mutex::new(None));
    let certain = {
        let (disk, result) = (disk.clone(), result.clone());
        Certain {
            handle: handle.clone(),
            latency,
            work: Some(move || {
                let outcome = work(&mut disk.inner());
                *result.lock().expect("no panic under this lock") = Some(outcome);
            }),
        }
    };
    handle.sleep_for(latency).await;
    let mut certain = certain;
    if let Some(work) = certain.work.take() {
        work();
    }
    let outcome = result.lock().expect("no panic under this lock").take();
    match outcome {
        Some(outcome) => outcome,
        None => pending().await,
    }
}

impl AttachedDisk {
    async fn perform<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        perform(&self.disk, &self.handle, false, work).await
    }
}

#[async_trait]
impl Disk for AttachedDisk {
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let name = path.to_owned();
        let (disk, handle) = (self.disk.clone(), self.handle.clone());
        let now = handle.wall();
        // The file is made inside the operation, so that its handle is given back even if nobody waits for it.
        let file = self
            .perform(move |inner| {
                let node = match mode {
                    OpenMode::Read | OpenMode::ReadWrite => inner.state.open(&name)?,
                    OpenMode::CreateNew => inner.state.create(&name, now)?,
                };
                Ok(AttachedFile {
                    disk,
                    handle,
                    path: name,
                    node,
                    generation: inner.generation,
                    writable: mode != OpenMode::Read,
                })
            })
            .await?;
        Ok(Arc::new(file))
    }

    async fn create_directory(&self, path: &str) -> Result<(), DiskError> {
        let path = path.to_owned();
        self.perform(move |inner| {
            inner.state.create_directory(&path);
            Ok(())
        })
        .await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        let directory = directory.to_owned();
        self.perform(move |inner| inner.state.list(&directory)).await
    }

    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        let directory = directory.to_owned();
        self.perform(move |inner| inner.state.entries(&directory)).await
    }

    async fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        let path = path.to_owned();
        self.perform(move |inner| inner.state.status(&path)).await
    }

    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.perform(move |inner| inner.state.link(&from, &to)).await
    }

    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        let path = path.to_owned();
        self.perform(move |inner| inner.state.remove(&path)).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.perform(move |inner| inner.state.rename(&from, &to)).await
    }

    async fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        let path = path.to_owned();
        let sequence = self.disk.inner().state.sequence();
        perform(&self.disk, &self.handle, true, move |inner| {
            inner.state.check_directory(&path, &path)?;
            inner.state.sync_directory(&path, sequence);
            Ok(())
        })
        .await
    }

    async fn free_bytes(&self) -> Result<u64, DiskError> {
        self.perform(|inner| Ok(inner.state.free_bytes())).await
    }

    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let (name, disk) = (path.to_owned(), self.disk.clone());
        let now = self.handle.wall();
        let lock = self
            .perform(move |inner| {
                if inner.locks.contains_key(&name) {
                    return Err(DiskError::Locked { path: name });
                }
                match inner.state.create(&name, now) {
                    Ok(node) => inner.state.close(&node),
                    Err(DiskError::AlreadyExists { .. }) => {}
                    Err(error) => return Err(error),
                }
                inner.next_token += 1;
                let token = inner.next_token;
                inner.locks.insert(name.clone(), token);
                Ok(AttachedLock {
                    disk,
                    path: name,
                    token,
                })
            })
            .await?;
        Ok(Box::new(lock))
    }
}

struct AttachedLock {
    disk: SimulatedDisk,
    path: String,
    token: u64,
}

impl DiskLock for AttachedLock {}

impl Drop for AttachedLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.locks.get(&self.path) == Some(&self.token) {
            inner.locks.remove(&self.path);
        }
    }
}

struct AttachedFile {
    disk: SimulatedDisk,
    handle: Arc<Handle>,
    path: String,
    node: NodeRef,
    generation: u64,
    writable: bool,
}

impl AttachedFile {
    fn check_writable(&self) -> Result<(), DiskError> {
        if self.writable {
            return Ok(());
        }
        Err(self.error("opened for reading only"))
    }

    fn error(&self, message: &str) -> DiskError {
        DiskError::Io {
            path: self.path.clone(),
            message: message.to_owned(),
        }
    }
}

impl Drop for AttachedFile {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.generation == self.generation {
            inner.state.close(&self.node);
        }
    }
}

#[async_trait]
impl DiskFile for AttachedFile {
    async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        let node = self.node.clone();
        let failure = self.error("input/output error");
        perform(&self.disk, &self.handle, false, move |inner| {
            let failures = u64::from(inner.options.read_failures);
            if failures > 0 && inner.random.chance(failures, 1_000_000) {
                return Err(failure);
            }
            Ok(DiskState::read(&node, offset, length))
        })
        .await
    }

    async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        self.check_writable()?;
        let (node, path, now) = (self.node.clone(), self.path.clone(), self.handle.wall());
        perform(&self.disk, &self.handle, false, move |inner| {
            inner.state.write(&path, &node, offset, &parts, now)
        })
        .await
    }

    async fn sync_data(&self) -> Result<(), DiskError> {
        let sequence = self.disk.inner().state.sequence();
        let node = self.node.clone();
        let failure = self.error("input/output error while syncing");
        perform(&self.disk, &self.handle, true, move |inner| {
            let failures = u64::from(inner.options.sync_failures);
            if failures > 0 && inner.random.chance(failures, 1_000_000) {
                DiskState::abandon(&node, sequence);
                return Err(failure);
            }
            DiskState::sync(&node, sequence);
            inner.syncs += 1;
            Ok(())
        })
        .await
    }

    async fn allocate(&self, length: u64) -> Result<(), DiskError> {
        self.check_writable()?;
        let (node, path) = (self.node.clone(), self.path.clone());
        perform(&self.disk, &self.handle, false, move |inner| {
            inner.state.allocate(&path, &node, length)
        })
        .await
    }

    async fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.check_writable()?;
        let (node, now) = (self.node.clone(), self.handle.wall());
        perform(&self.disk, &self.handle, false, move |inner| {
            inner.state.truncate(&node, length, now);
            Ok(())
        })
        .await
    }

    async fn length(&self) -> Result<u64, DiskError> {
        let node = self.node.clone();
        perform(&self.disk, &self.handle, false, move |_| {
            Ok(DiskState::length(&node))
        })
        .await
    }
}
