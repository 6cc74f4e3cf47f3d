//! A disk that remembers what was done to it, so that every moment at which the power could have failed can be tried.
//!
//! [`RecordingDisk`] passes each call on and keeps it, with the moments at which writes began and syncs began and ended.
//! [`Recording::replay`] goes through them one by one on the disk model of the simulation; at any of them
//! [`Replay::crash`] draws a disk that a crash there could have left: unsynced writes dropped, torn by sectors, or
//! reordered. A test marks what it was told is durable with [`Recording::mark`] and compares.

use super::{
    disk::{
        DiskImage, Survival,
        state::{DiskState, NodeRef},
    },
    seeded::Seeded,
};
use crate::{DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, FileStatus, OpenMode, WallTime};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

#[derive(Clone, Debug)]
enum Event {
    CreateDirectory {
        path: String,
    },
    Open {
        file: u64,
        path: String,
    },
    Create {
        file: u64,
        path: String,
    },
    Close {
        file: u64,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Write {
        file: u64,
        offset: u64,
        parts: Vec<Bytes>,
    },
    Allocate {
        file: u64,
        length: u64,
    },
    Truncate {
        file: u64,
        length: u64,
    },
    SyncBegins {
        sync: u64,
    },
    FileSynced {
        sync: u64,
        file: u64,
    },
    SyncFailed {
        sync: u64,
        file: u64,
    },
    DirectorySynced {
        sync: u64,
        path: String,
    },
    Mark {
        value: u64,
    },
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    next: u64,
}

/// What was done to a [`RecordingDisk`]; shared with it.
#[derive(Clone)]
pub struct Recording {
    start: Arc<DiskImage>,
    log: Arc<Mutex<Log>>,
}

impl Recording {
    fn push(&self, event: Event) {
        self.log
            .lock()
            .expect("no panic under this lock")
            .events
            .push(event);
    }

    fn number(&self) -> u64 {
        let mut log = self.log.lock().expect("no panic under this lock");
        log.next += 1;
        log.next
    }

    /// Notes that the test was told something at this moment, such as the acknowledgement of operation `value`.
    pub fn mark(&self, value: u64) {
        self.push(Event::Mark { value });
    }

    /// Events so far; a crash can be placed before and after each.
    pub fn len(&self) -> usize {
        self.log.lock().expect("no panic under this lock").events.len()
    }

    /// Whether nothing was done yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes through the recording from its beginning.
    pub fn replay(&self) -> Replay {
        Replay {
            state: DiskState::new(&self.start, u64::MAX),
            events: self.log.lock().expect("no panic under this lock").events.clone(),
            position: 0,
            files: BTreeMap::new(),
            syncs: BTreeMap::new(),
            marks: Vec::new(),
        }
    }
}

/// A moment within a recording.
pub struct Replay {
    state: DiskState,
    events: Vec<Event>,
    position: usize,
    files: BTreeMap<u64, NodeRef>,
    /// Sequence of the disk at the beginning of each sync: it promises nothing about later writes.
    syncs: BTreeMap<u64, u64>,
    marks: Vec<u64>,
}

impl Replay {
    /// Goes on by one event; false at the end.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.get(self.position).cloned() else {
            return false;
        };
        self.position += 1;
        self.apply(event);
        true
    }

    /// Events gone through.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The marks made so far, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    /// A disk that a crash at this moment could have left.
    pub fn crash(&self, survival: Survival, seed: u64) -> DiskImage {
        self.state.survivor(survival, &mut Seeded::new(seed, 0))
    }

    /// The same with what survives drawn by the seed as well.
    pub fn crash_any(&self, seed: u64) -> DiskImage {
        let mut random = Seeded::new(seed, 0);
        let survival = Survival::draw(self.state.sequence(), &mut random);
        self.state.survivor(survival, &mut random)
    }

    // An operation that succeeded on the recorded disk succeeds on the model too, except where two calls on one name ran
    // at once and the log has them in the other order; the model then has no such name, and nothing to change.
    fn apply(&mut self, event: Event) {
        match event {
            Event::CreateDirectory { path } => self.state.create_directory(&path),
            Event::Open { file, path } => {
                if let Ok(node) = self.state.open(&path) {
                    self.files.insert(file, node);
                }
            }
            Event::Create { file, path } => {
                if let Ok(node) = self.state.create(&path, WallTime::default()) {
                    self.files.insert(file, node);
                }
            }
            Event::Close { file } => {
                if let Some(node) = self.files.remove(&file) {
                    self.state.close(&node);
                }
            }
            Event::Remove { path } => {
                let _ = self.state.remove(&path);
            }
            Event::Rename { from, to } => {
                let _ = self.state.rename(&from, &to);
            }
            Event::Link { from, to } => {
                let _ = self.state.link(&from, &to);
            }
            Event::Write { file, offset, parts } => {
                if let Some(node) = self.files.get(&file) {
                    let _ = self.state.write("", node, offset, &parts, WallTime::default());
                }
            }
            Event::Allocate { file, length } => {
                if let Some(node) = self.files.get(&file) {
                    let _ = self.state.allocate("", node, length);
                }
            }
            Event::Truncate { file, length } => {
                if let Some(node) = self.files.get(&file) {
                    self.state.truncate(node, length, WallTime::default());
                }
            }
            Event::SyncBegins { sync } => {
                self.syncs.insert(sync, self.state.sequence());
            }
            Event::FileSynced { sync, file } => {
                if let (Some(sequence), Some(node)) = (self.syncs.remove(&sync), self.files.get(&file)) {
                    DiskState::sync(node, sequence);
                }
            }
            Event::SyncFailed { sync, file } => {
                if let (Some(sequence), Some(node)) = (self.syncs.remove(&sync), self.files.get(&file)) {
                    DiskState::abandon(node, sequence);
                }
            }
            Event::DirectorySynced { sync, path } => {
                if let Some(sequence) = self.syncs.remove(&sync) {
                    self.state.sync_directory(&path, sequence);
                }
            }
            Event::Mark { value } => self.marks.push(value),
        }
    }
}

/// A disk that passes every call on to another and records it.
pub struct RecordingDisk {
    inner: Arc<dyn Disk>,
    recording: Recording,
}

impl RecordingDisk {
    /// Records what is done to `inner`, whose content now is `start` (everything in it durable).
    pub fn new(inner: Arc<dyn Disk>, start: DiskImage) -> (Self, Recording) {
        let recording = Recording {
            start: Arc::new(start),
            log: Arc::default(),
        };
        let disk = Self {
            inner,
            recording: recording.clone(),
        };
        (disk, recording)
    }
}

#[async_trait]
impl Disk for RecordingDisk {
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let inner = self.inner.open(path, mode).await?;
        let file = self.recording.number();
        let path = path.to_owned();
        self.recording.push(match mode {
            OpenMode::Read | OpenMode::ReadWrite => Event::Open { file, path },
            OpenMode::CreateNew => Event::Create { file, path },
        });
        Ok(Arc::new(RecordedFile {
            inner,
            file,
            recording: self.recording.clone(),
        }))
    }

    async fn create_directory(&self, path: &str) -> Result<(), DiskError> {
        self.inner.create_directory(path).await?;
        self.recording.push(Event::CreateDirectory {
            path: path.to_owned(),
        });
        Ok(())
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(directory).await
    }

    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.inner.remove(path).await?;
        self.recording.push(Event::Remove {
            path: path.to_owned(),
        });
        Ok(())
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to).await?;
        self.recording.push(Event::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        Ok(())
    }

    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.link(from, to).await?;
        self.recording.push(Event::Link {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        Ok(())
    }

    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        self.inner.entries(directory).await
    }

    async fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        self.inner.status(path).await
    }

    async fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        let sync = self.recording.number();
        self.recording.push(Event::SyncBegins { sync });
        self.inner.sync_directory(path).await?;
        self.recording.push(Event::DirectorySynced {
            sync,
            path: path.to_owned(),
        });
        Ok(())
    }

    async fn free_bytes(&self) -> Result<u64, DiskError> {
        self.inner.free_bytes().await
    }

    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let lock = self.inner.lock(path).await?;
        let file = self.recording.number();
        self.recording.push(Event::Create {
            file,
            path: path.to_owned(),
        });
        self.recording.push(Event::Close { file });
        Ok(lock)
    }
}

struct RecordedFile {
    inner: Arc<dyn DiskFile>,
    file: u64,
    recording: Recording,
}

impl Drop for RecordedFile {
    fn drop(&mut self) {
        self.recording.push(Event::Close { file: self.file });
    }
}

#[async_trait]
impl DiskFile for RecordedFile {
    async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        self.inner.read_at(offset, length).await
    }

    async fn read_parts_at(&self, offset: u64, lengths: &[usize]) -> Result<Vec<Bytes>, DiskError> {
        self.inner.read_parts_at(offset, lengths).await
    }

    async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        // At its beginning: from here on any part of it may be on the disk.
        self.recording.push(Event::Write {
            file: self.file,
            offset,
            parts: parts.clone(),
        });
        self.inner.write_at(offset, parts).await
    }

    async fn sync_data(&self) -> Result<(), DiskError> {
        let (sync, file) = (self.recording.number(), self.file);
        self.recording.push(Event::SyncBegins { sync });
        let result = self.inner.sync_data().await;
        self.recording.push(match result {
            Ok(()) => Event::FileSynced { sync, file },
            Err(_) => Event::SyncFailed { sync, file },
        });
        result
    }

    async fn allocate(&self, length: u64) -> Result<(), DiskError> {
        self.recording.push(Event::Allocate {
            file: self.file,
            length,
        });
        self.inner.allocate(length).await
    }

    async fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.recording.push(Event::Truncate {
            file: self.file,
            length,
        });
        self.inner.truncate(length).await
    }

    async fn length(&self) -> Result<u64, DiskError> {
        self.inner.length().await
    }
}
