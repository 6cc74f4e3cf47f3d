//! The local disk: a directory of files with explicit durability.
//!
//! Contract, which the simulated disk enforces by losing everything else at a crash:
//!
//! - Written bytes are durable only after [`DiskFile::sync_data`] returned success; before that any subset of the written
//!   512-byte sectors may survive, in any order.
//! - A created, renamed or removed name is durable only after [`Disk::sync_directory`] of its directory.
//! - A failed `sync_data` leaves the file's unsynced bytes undefined; calling it again proves nothing.

use crate::WallTime;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// What the disk refused, with the path it was about.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    /// No such file or directory.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// Relative to the disk's root.
        path: String,
    },
    /// The name exists and was to be created.
    #[error("{path}: already exists")]
    AlreadyExists {
        /// Relative to the disk's root.
        path: String,
    },
    /// No space left on the device, or the quota is used up.
    #[error("{path}: the disk is full")]
    Full {
        /// Relative to the disk's root.
        path: String,
    },
    /// Another process holds the lock.
    #[error("{path}: locked by another process")]
    Locked {
        /// Relative to the disk's root.
        path: String,
    },
    /// Anything else the operating system said.
    #[error("{path}: {message}")]
    Io {
        /// Relative to the disk's root.
        path: String,
        /// The operating system's words.
        message: String,
    },
}

impl DiskError {
    /// The same as [`DiskError::Io`], for operations after which "try again" would be wrong advice.
    #[must_use]
    pub fn into_io(self) -> Self {
        let message = self.to_string();
        match self {
            Self::Io { .. } => self,
            Self::NotFound { path }
            | Self::AlreadyExists { path }
            | Self::Full { path }
            | Self::Locked { path } => Self::Io { path, message },
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; writes are refused.
    Read,
    /// The file must exist.
    ReadWrite,
    /// The file must not exist.
    CreateNew,
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name, without its directory.
    pub name: String,
    /// What it stands for.
    pub kind: EntryKind,
}

/// What is known of a file without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// File or directory.
    pub kind: EntryKind,
    /// The length of a file; of no meaning for a directory.
    pub length_bytes: u64,
    /// When its content last changed.
    pub modified: WallTime,
}

/// A directory tree; all paths are relative to it, separated by `/`, without `.` or `..`.
#[async_trait]
pub trait Disk: Send + Sync {
    /// Opens a file.
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;
    /// Makes a directory and its parents; one that exists is fine.
    async fn create_directory(&self, path: &str) -> Result<(), DiskError>;
    /// The names of plain files in a directory, sorted.
    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError>;
    /// The names of plain files and directories in a directory, sorted by name; anything else is left out.
    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError>;
    /// Length and time of a file or directory.
    async fn status(&self, path: &str) -> Result<FileStatus, DiskError>;
    /// Removes a file.
    async fn remove(&self, path: &str) -> Result<(), DiskError>;
    /// Renames a file within this disk, replacing what stood at `to`.
    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Gives a file a second name; `AlreadyExists` if there is anything at `to`, of concurrent callers exactly one wins.
    /// The new name shows the whole file from its first moment on, and is durable after [`Disk::sync_directory`].
    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Makes the names in a directory durable.
    async fn sync_directory(&self, path: &str) -> Result<(), DiskError>;
    /// Bytes that can still be written.
    async fn free_bytes(&self) -> Result<u64, DiskError>;
    /// Takes an exclusive lock on `path` (created if absent), released when the guard drops or the process dies.
    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError>;
}

/// Holds a [`Disk::lock`].
pub trait DiskLock: Send + Sync {}

/// An open file.
#[async_trait]
pub trait DiskFile: Send + Sync {
    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, DiskError>;
    /// Reads parts of these lengths that lie side by side from `offset` on, each into a buffer of its own; shorter ones, and
    /// empty ones, only at the end of the file.
    async fn read_parts_at(&self, offset: u64, lengths: &[usize]) -> Result<Vec<Bytes>, DiskError> {
        let bytes = self.read_at(offset, lengths.iter().sum()).await?;
        let mut rest = &bytes[..];
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (part, behind) = rest.split_at(rest.len().min(*length));
            parts.push(Bytes::copy_from_slice(part));
            rest = behind;
        }
        Ok(parts)
    }
    /// Writes `parts` one after the other at `offset`, all of them or an error.
    async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError>;
    /// [`write_at`](Self::write_at) of what will hardly be read here: past the page cache, where there is one and it can be avoided.
    /// Cheapest in one part whose address is aligned to a page as its offset in the file is.
    async fn write_uncached_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        self.write_at(offset, parts).await
    }
    /// Makes everything written before this call durable (level 1).
    async fn sync_data(&self) -> Result<(), DiskError>;
    /// [`write_uncached_at`](Self::write_uncached_at), then [`sync_data`](Self::sync_data), in one trip to the disk: a small durable
    /// write is dominated by such trips.
    ///
    /// [`DiskError::Full`] means that the write was refused and nothing was synced, so it may be tried again; a sync that
    /// fails, for whatever reason, is [`DiskError::Io`].
    async fn write_and_sync(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        self.write_uncached_at(offset, parts).await?;
        self.sync_data().await.map_err(DiskError::into_io)
    }
    /// Reserves space so that later writes below `length` cannot fail for want of it; the file grows to `length`.
    async fn allocate(&self, length: u64) -> Result<(), DiskError>;
    /// Sets the length.
    async fn truncate(&self, length: u64) -> Result<(), DiskError>;
    /// The length in bytes.
    async fn length(&self) -> Result<u64, DiskError>;
}
