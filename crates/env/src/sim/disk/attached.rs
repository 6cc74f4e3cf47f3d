//! The disk as the programs of one incarnation see it: calls that take time, fail, and happen though nobody waits for them.

use super::{
    device::{Inner, SimulatedDisk},
    state::{DiskState, NodeRef},
};
use crate::{
    Clock, DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, FileStatus, OpenMode, sim::handle::Handle,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

/// See the module.
pub(in crate::sim) struct AttachedDisk {
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
    pub(in crate::sim) fn new(disk: &SimulatedDisk, handle: Arc<Handle>) -> Self {
        Self {
            disk: disk.clone(),
            handle,
        }
    }

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
