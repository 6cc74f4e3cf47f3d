//! The real disk: plain files under one directory. Calls that may wait for the device go to tokio's blocking pool; a read
//! that the page cache can answer, and a write or sync of little on a device that has lately been fast, are made in place ([`pace`]).

mod direct;
mod pace;
mod read;
#[cfg(test)]
mod tests;

use super::wall_time;
use crate::{
    DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, EntryKind, FileStatus, OpenMode, QueueDepth,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    fs::{File, OpenOptions},
    future,
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    panic,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use direct::Direct;
use pace::{Pace, WhoWaits};
use read::Cached;

/// Plain files under one directory.
pub struct RealDisk {
    root: PathBuf,
    paces: Arc<Paces>,
    depth: Arc<QueueDepth>,
}

/// How fast the disk has lately been.
#[derive(Default)]
struct Paces {
    /// At writes and syncs in one.
    syncs: Pace,
    /// At writes that only go to the page cache, but for those that the kernel holds up because too much in it is not written
    /// yet.
    writes: Pace,
    /// At syncs alone, of what was written to the page cache before.
    flushes: Pace,
    /// At reads of files whose file system cannot say whether it would have to wait, such as a tmpfs.
    reads: Pace,
}

impl RealDisk {
    /// Roots a disk at an existing directory.
    ///
    /// # Errors
    /// If the directory does not exist or cannot be read.
    pub fn open(root: &Path) -> Result<Self, DiskError> {
        let path = root.display().to_string();
        match std::fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => Ok(Self {
                root: root.to_owned(),
                paces: Arc::default(),
                depth: Arc::default(),
            }),
            Ok(_) => Err(DiskError::Io {
                path,
                message: "not a directory".into(),
            }),
            Err(error) => Err(describe(&path, &error)),
        }
    }

    /// The same disk, where the requests that it is needed for are known.
    pub(super) fn serving(self, depth: &Arc<QueueDepth>) -> Self {
        Self {
            depth: depth.clone(),
            ..self
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        let full = self.root.join(path);
        let path = path.to_owned();
        blocking(path, move || work(&full)).await
    }
}

async fn blocking<T: Send + 'static>(
    path: String,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DiskError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| describe(&path, &error)),
        Err(ended) => match ended.try_into_panic() {
            Ok(payload) => panic::resume_unwind(payload),
            // The runtime is ending and did not begin the call. It is about to drop the caller as well, who must not take this
            // for an answer of the disk: after a failed sync, for one, nothing may go on.
            Err(_) => future::pending().await,
        },
    }
}

fn describe(path: &str, error: &io::Error) -> DiskError {
    let path = path.to_owned();
    match error.kind() {
        // Nothing can stand below a plain file.
        ErrorKind::NotFound | ErrorKind::NotADirectory => DiskError::NotFound { path },
        ErrorKind::AlreadyExists => DiskError::AlreadyExists { path },
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full { path },
        _ => DiskError::Io {
            path,
            message: error.to_string(),
        },
    }
}

#[async_trait]
impl Disk for RealDisk {
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = self
            .run(path, move |full| {
                let mut options = OpenOptions::new();
                // Journal and cache hold sealed data, the state directory keys: nobody else needs to read them.
                options.read(true).mode(0o600);
                match mode {
                    OpenMode::Read => {}
                    OpenMode::ReadWrite => {
                        options.write(true);
                    }
                    OpenMode::CreateNew => {
                        options.write(true).create_new(true);
                    }
                }
                options.open(full)
            })
            .await?;
        Ok(Arc::new(RealFile::new(self, path, file)))
    }

    async fn create_directory(&self, path: &str) -> Result<(), DiskError> {
        self.run(path, |full| std::fs::create_dir_all(full)).await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.run(directory, |full| {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(full)? {
                let entry = entry?;
                if entry.file_type()?.is_file()
                    && let Ok(name) = entry.file_name().into_string()
                {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        })
        .await
    }

    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        self.run(directory, |full| {
            let mut entries = Vec::new();
            for entry in std::fs::read_dir(full)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let kind = if kind.is_file() {
                    EntryKind::File
                } else if kind.is_dir() {
                    EntryKind::Directory
                } else {
                    continue;
                };
                if let Ok(name) = entry.file_name().into_string() {
                    entries.push(DirectoryEntry { name, kind });
                }
            }
            entries.sort_by(|left, right| left.name.cmp(&right.name));
            Ok(entries)
        })
        .await
    }

    async fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        self.run(path, |full| {
            let metadata = std::fs::metadata(full)?;
            Ok(FileStatus {
                kind: if metadata.is_dir() {
                    EntryKind::Directory
                } else {
                    EntryKind::File
                },
                length_bytes: metadata.len(),
                modified: wall_time(metadata.modified()?),
            })
        })
        .await
    }

    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.run(path, |full| std::fs::remove_file(full)).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let target = self.root.join(to);
        self.run(from, move |full| std::fs::rename(full, target)).await
    }

    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let target = self.root.join(to);
        match self.run(from, move |full| std::fs::hard_link(full, target)).await {
            // The name that is taken is the new one.
            Err(DiskError::AlreadyExists { .. }) => Err(DiskError::AlreadyExists { path: to.to_owned() }),
            other => other,
        }
    }

    async fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        self.run(path, |full| File::open(full)?.sync_all()).await
    }

    async fn free_bytes(&self) -> Result<u64, DiskError> {
        self.run("", |full| {
            let status = rustix::fs::statvfs(full)?;
            Ok(status.f_bavail.saturating_mul(status.f_frsize))
        })
        .await
    }

    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let name = path.to_owned();
        self.run(path, |full| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(full)?;
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
        .await?
        .map_or(Err(DiskError::Locked { path: name }), |file| {
            Ok(Box::new(RealLock { _file: file }) as Box<dyn DiskLock>)
        })
    }
}

/// The kernel releases the lock when the file closes.
struct RealLock {
    _file: File,
}

impl DiskLock for RealLock {}

struct RealFile {
    path: String,
    file: Arc<File>,
    direct: Arc<Direct>,
    paces: Arc<Paces>,
    depth: Arc<QueueDepth>,
    /// Written since the last sync began, about: what the next one has to wait for.
    unsynced_bytes: AtomicUsize,
    /// The file system has said that it does not tell what its page cache holds: a buffer for the question costs as much as the read.
    is_cache_silent: AtomicBool,
}

impl RealFile {
    fn new(disk: &RealDisk, path: &str, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file: Arc::new(file),
            direct: Arc::default(),
            paces: disk.paces.clone(),
            depth: disk.depth.clone(),
            unsynced_bytes: AtomicUsize::new(0),
            is_cache_silent: AtomicBool::new(false),
        }
    }

    /// What the page cache has of a range.
    fn cached(&self, offset: u64, lengths: &[usize]) -> Cached {
        if self.is_cache_silent.load(Relaxed) {
            return Cached::Unknown;
        }
        let cached = read::cached(&self.file, offset, lengths);
        if matches!(cached, Cached::Unknown) {
            self.is_cache_silent.store(true, Relaxed);
        }
        cached
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        let file = self.file.clone();
        blocking(self.path.clone(), move || work(&file)).await
    }
}

impl RealFile {
    /// Who waits for a record of a journal, or what is like it. Other calls may be made beside the request, which they would hold up.
    fn who_waits(&self) -> WhoWaits {
        match self.depth.is_one() {
            true => WhoWaits::One,
            false => WhoWaits::Others,
        }
    }

    /// A call that writes `bytes`: in place while such calls are short, else on a thread of its own.
    async fn paced<T: Send + 'static>(
        &self,
        pace: fn(&Paces) -> &Pace,
        bytes: usize,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        self.paced_for(WhoWaits::Others, pace, bytes, work).await
    }

    /// The same, where it is known who waits while it is made in place.
    async fn paced_for<T: Send + 'static>(
        &self,
        who_waits: WhoWaits,
        pace: fn(&Paces) -> &Pace,
        bytes: usize,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        if pace(&self.paces).is_short(bytes, who_waits) {
            return pace(&self.paces)
                .measure(bytes, || work(&self.file))
                .map_err(|error| describe(&self.path, &error));
        }
        let paces = self.paces.clone();
        self.run(move |file| pace(&paces).measure(bytes, || work(file)))
            .await
    }
}

#[async_trait]
impl DiskFile for RealFile {
    async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        let whole = move |file: &File| read::whole(file, offset, length);
        match self.cached(offset, &[length]) {
            Cached::Whole(mut parts) => Ok(parts.pop().unwrap_or_default()),
            Cached::No => self.run(whole).await,
            Cached::Unknown => self.paced(|paces| &paces.reads, length, whole).await,
        }
    }

    async fn read_parts_at(&self, offset: u64, lengths: &[usize]) -> Result<Vec<Bytes>, DiskError> {
        let owned = lengths.to_vec();
        let bytes = lengths.iter().sum();
        let whole = move |file: &File| read::parts(file, offset, &owned);
        match self.cached(offset, lengths) {
            Cached::Whole(parts) => Ok(parts),
            Cached::No => self.run(whole).await,
            Cached::Unknown => self.paced(|paces| &paces.reads, bytes, whole).await,
        }
    }

    async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let bytes = parts.iter().map(Bytes::len).sum();
        self.unsynced_bytes.fetch_add(bytes, Relaxed);
        let write = move |file: &File| write_parts(file, offset, &parts);
        self.paced(|paces| &paces.writes, bytes, write).await
    }

    async fn write_uncached_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        if bytes < direct::LEAST_BYTES {
            return self.write_at(offset, parts).await;
        }
        self.unsynced_bytes.fetch_add(bytes, Relaxed);
        let direct = self.direct.clone();
        self.run(move |file| direct::write(file, &direct, offset, &parts))
            .await
    }

    async fn write_and_sync(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let path = self.path.clone();
        let bytes = parts.iter().map(Bytes::len).sum();
        let direct = self.direct.clone();
        let both = move |file: &File| {
            // Little goes the usual way.
            let written = direct::write(file, &direct, offset, &parts);
            let synced = match &written {
                Ok(()) => file.sync_data(),
                Err(_) => Ok(()),
            };
            Ok((written, synced))
        };
        let (written, synced) = match bytes < direct::LEAST_BYTES {
            true => {
                self.paced_for(self.who_waits(), |paces| &paces.syncs, bytes, both)
                    .await?
            }
            false => self.run(both).await?,
        };
        written.map_err(|error| describe(&path, &error))?;
        synced.map_err(|error| describe(&path, &error).into_io())
    }

    async fn sync_data(&self) -> Result<(), DiskError> {
        let bytes = self.unsynced_bytes.swap(0, Relaxed);
        self.paced(|paces| &paces.flushes, bytes, |file| file.sync_data())
            .await
    }

    async fn allocate(&self, length: u64) -> Result<(), DiskError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        self.unsynced_bytes.fetch_add(bytes, Relaxed);
        self.run(move |file| {
            match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length) {
                Ok(()) => Ok(()),
                // A file system without fallocate still works; a full disk is then found at the write.
                Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(length),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.run(move |file| file.set_len(length)).await
    }

    async fn length(&self) -> Result<u64, DiskError> {
        self.run(|file| Ok(file.metadata()?.len())).await
    }
}

/// Gathers the parts into as few system calls as the kernel's limit of 1024 vectors allows.
fn write_parts(file: &File, mut offset: u64, parts: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<io::IoSlice<'_>> = parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| io::IoSlice::new(part))
        .collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let batch = rest.len().min(1024);
        let written = match rustix::io::pwritev(file, &rest[..batch], offset) {
            Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero)),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        io::IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}
