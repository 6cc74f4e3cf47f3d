//! The journal's files: appended to by one task, read by all, deleted when the disk has what they hold.
//!
//! Files are never written on by a process that finds them, nor after a sync that failed: what comes then goes into the next file.
//! So any file may end torn. What is torn was answered to nobody, and the next file begins with the entry that was to stand there:
//! that its first follows the last one that is whole is what tells a torn end from one that is damaged or cut off.

use super::entry::{ENTRY_HEAD_BYTES, Entry, FILE_HEAD_BYTES, FileHead, FileKey, SEALED_MAX, entry_head};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use firn_env::{DiskError, DiskFile, Env, OpenMode};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};
use zeroize::Zeroizing;

/// Bytes that are read at once when a file is gone through.
const SCAN_BYTES: usize = 1 << 20;
/// What a zeroed block counts for the bound: after a crash each is looked at.
pub(super) const ZEROED_BLOCK_BYTES: u64 = 16;

/// Why a journal cannot be used. What it holds stays as it is.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The local disk.
    #[error("the local journal: {0}")]
    Disk(#[from] DiskError),
    /// Bytes that were synced are not what was written, or the key is another disk's.
    #[error("the local journal's file {path} is damaged behind entry {after}, or belongs to another key")]
    Damaged {
        /// The file.
        path: String,
        /// The last entry that is whole.
        after: u64,
    },
    /// The journal is of another disk.
    #[error("the local journal in {path} belongs to disk {disk}")]
    OtherDisk {
        /// The file.
        path: String,
        /// The other disk, in hexadecimal.
        disk: String,
    },
}

/// Where an entry's sealed part stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    sealed_bytes: u32,
}

struct File {
    path: String,
    first: u64,
    began: u64,
    places: Vec<Place>,
    length_bytes: u64,
    zeroed_blocks: u64,
    handle: Arc<dyn DiskFile>,
    key: Arc<FileKey>,
}

impl File {
    fn end(&self) -> u64 {
        self.first + self.places.len() as u64
    }
}

#[derive(Default)]
struct Files {
    files: VecDeque<File>,
    next_file: u64,
    /// Whether the last file may be written on: this process began it, and no sync of it failed.
    ours: bool,
    /// With which entry the present journaling began; 0 before any.
    began: u64,
}

/// See the module.
pub(super) struct JournalFiles {
    env: Env,
    directory: String,
    disk: [u8; 16],
    key: Zeroizing<[u8; 32]>,
    file_bytes: u64,
    files: Mutex<Files>,
    /// Held by whoever deletes files.
    deleting: tokio::sync::Mutex<()>,
}

impl JournalFiles {
    /// The files in a directory, which exists.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(super) async fn open(
        env: &Env,
        directory: &str,
        disk: [u8; 16],
        key: &[u8; 32],
        file_bytes: u64,
    ) -> Result<Self, JournalError> {
        let found = Self {
            env: env.clone(),
            directory: directory.to_owned(),
            disk,
            key: Zeroizing::new(*key),
            file_bytes,
            files: Mutex::default(),
            deleting: tokio::sync::Mutex::default(),
        };
        let names: Vec<String> = env.disk().list(directory).await?;
        for name in names.into_iter().filter(|name| is_file_name(name)) {
            found.take_up(&name).await?;
        }
        Ok(found)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no panic under this lock")
    }

    async fn take_up(&self, name: &str) -> Result<(), JournalError> {
        let path = format!("{}/{name}", self.directory);
        let handle = self.env.disk().open(&path, OpenMode::Read).await?;
        self.files().next_file = number_of(name).saturating_add(1);
        let Some(head) = FileHead::decode(&handle.read_at(0, FILE_HEAD_BYTES).await?) else {
            // Its head was never synced, so nothing behind it was.
            return Ok(());
        };
        if head.disk != self.disk {
            let disk = HEXLOWER.encode(&head.disk);
            return Err(JournalError::OtherDisk { path, disk });
        }
        let key = Arc::new(FileKey::new(&self.key, &head));
        let (mut places, mut offset, mut zeroed_blocks) = (Vec::new(), FILE_HEAD_BYTES as u64, 0_u64);
        let mut window = Window::new(&*handle);
        loop {
            let number = head.first.checked_add(places.len() as u64);
            let found = entry_head(&window.read(offset, ENTRY_HEAD_BYTES).await?);
            let Some((sealed_bytes, number)) = found.filter(|(_, of)| Some(*of) == number) else {
                break;
            };
            let at = offset + ENTRY_HEAD_BYTES as u64;
            let sealed = window.read(at, sealed_bytes).await?;
            if sealed.len() < sealed_bytes {
                break;
            }
            let Some(entry) = key.open(number, &sealed) else {
                break;
            };
            zeroed_blocks = zeroed_blocks.saturating_add(entry.zeroed_blocks());
            places.push(Place {
                offset: at,
                sealed_bytes: u32::try_from(sealed_bytes).expect("entries are bounded"),
            });
            offset = at + sealed_bytes as u64;
        }
        if places.is_empty() {
            // Nothing says that even its head is what was written.
            return Ok(());
        }
        let mut files = self.files();
        if let Some(before) = files.files.back_mut() {
            if head.first < before.first || head.first > before.end() {
                let (path, after) = (before.path.clone(), before.end().saturating_sub(1));
                return Err(JournalError::Damaged { path, after });
            }
            // What stood there after a sync that failed was written once more.
            before.places.truncate((head.first - before.first) as usize);
        }
        files.began = head.began;
        files.files.push_back(File {
            path,
            first: head.first,
            began: head.began,
            places,
            length_bytes: offset,
            zeroed_blocks,
            handle,
            key,
        });
        Ok(())
    }

    /// The entries that there are: the first, and the one after the last.
    pub(super) fn range(&self) -> (u64, u64) {
        let files = self.files();
        match (files.files.front(), files.files.back()) {
            (Some(first), Some(last)) => (first.first, last.end()),
            _ => (1, 1),
        }
    }

    /// Makes what was found durable: a process that died may have written it, and no crash have lost it yet. What follows on it
    /// will be answered.
    ///
    /// # Errors
    /// If the local disk fails.
    pub(super) async fn sync_found(&self) -> Result<(), DiskError> {
        let found: Vec<_> = self
            .files()
            .files
            .iter()
            .map(|file| file.handle.clone())
            .collect();
        for handle in found {
            handle.sync_data().await?;
        }
        self.env.disk().sync_directory(&self.directory).await
    }

    /// The next entry is the first of a new journaling, which is whole when it has said so.
    pub(super) fn begin_at(&self, first: u64) {
        self.files().began = first;
    }

    /// Whether the first entry there is, is the one with which its journaling began.
    pub(super) fn has_beginning(&self) -> bool {
        let files = self.files();
        files.files.front().is_some_and(|file| file.first == file.began)
    }

    /// Bytes of all files, as they count for the bound.
    pub(super) fn used_bytes(&self) -> u64 {
        let counted = |file: &File| {
            file.length_bytes
                .saturating_add(file.zeroed_blocks.saturating_mul(ZEROED_BLOCK_BYTES))
        };
        self.files().files.iter().map(counted).sum()
    }

    /// Appends entries from `first` on, durably. One caller at a time.
    ///
    /// # Errors
    /// If the local disk fails; then none of them counts.
    pub(super) async fn append(&self, first: u64, entries: &[Entry]) -> Result<(), DiskError> {
        let full = {
            let files = self.files();
            let last = files.files.back().filter(|_| files.ours);
            last.is_none_or(|file| file.length_bytes >= self.file_bytes)
        };
        if full {
            self.begin(first).await?;
        }
        let (handle, key, mut offset) = {
            let files = self.files();
            let file = files.files.back().expect("one was begun");
            assert_eq!(file.end(), first, "entries follow each other");
            (file.handle.clone(), file.key.clone(), file.length_bytes)
        };
        let begin = offset;
        let zeroed_blocks: u64 = entries.iter().map(Entry::zeroed_blocks).sum();
        let (mut parts, mut places) = (
            Vec::with_capacity(entries.len()),
            Vec::with_capacity(entries.len()),
        );
        for (number, entry) in (first..).zip(entries) {
            let bytes = key.seal(number, entry);
            let sealed_bytes = bytes.len() - ENTRY_HEAD_BYTES;
            places.push(Place {
                offset: offset + ENTRY_HEAD_BYTES as u64,
                sealed_bytes: u32::try_from(sealed_bytes).expect("entries are bounded"),
            });
            offset += bytes.len() as u64;
            parts.push(bytes);
        }
        self.env.fault_point("journal.before_append").await;
        if let Err(error) = handle.write_and_sync(begin, parts).await {
            // Where there was no room nothing was synced, and the same bytes may go there again. After a sync that failed nobody
            // knows what another one would say of.
            self.files().ours &= matches!(error, DiskError::Full { .. });
            return Err(error);
        }
        self.env.fault_point("journal.after_append").await;
        let mut files = self.files();
        let file = files.files.back_mut().expect("nobody else takes the last one");
        file.places.extend(places);
        file.length_bytes = offset;
        file.zeroed_blocks += zeroed_blocks;
        Ok(())
    }

    async fn begin(&self, first: u64) -> Result<(), DiskError> {
        let (number, began) = {
            let files = self.files();
            (files.next_file, files.began)
        };
        let head = FileHead {
            disk: self.disk,
            file: number,
            first,
            began,
            salt: self.env.random_bytes(),
        };
        let path = format!("{}/{number:020}", self.directory);
        let handle = self.env.disk().open(&path, OpenMode::CreateNew).await?;
        // From here on the name is taken, whatever comes.
        self.files().next_file = number + 1;
        let begun = async {
            handle.write_and_sync(0, vec![head.encode()]).await?;
            self.env.disk().sync_directory(&self.directory).await
        };
        if let Err(error) = begun.await {
            // If it stays, it says nothing; it is removed with the others.
            let _ = self.env.disk().remove(&path).await;
            return Err(error);
        }
        let mut files = self.files();
        files.ours = true;
        files.files.push_back(File {
            path,
            first,
            began: head.began,
            places: Vec::new(),
            length_bytes: FILE_HEAD_BYTES as u64,
            zeroed_blocks: 0,
            key: Arc::new(FileKey::new(&self.key, &head)),
            handle,
        });
        Ok(())
    }

    /// An entry; nothing if it was retired.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(super) async fn read(&self, number: u64) -> Result<Option<Entry>, JournalError> {
        let found = {
            let files = self.files();
            let at = files.files.partition_point(|file| file.end() <= number);
            files
                .files
                .get(at)
                .filter(|file| file.first <= number)
                .map(|file| {
                    let place = file.places[(number - file.first) as usize];
                    (file.handle.clone(), file.key.clone(), place, file.path.clone())
                })
        };
        let Some((handle, key, place, path)) = found else {
            return Ok(None);
        };
        let sealed = handle.read_at(place.offset, place.sealed_bytes as usize).await?;
        match key.open(number, &sealed) {
            Some(entry) => Ok(Some(entry)),
            None => Err(JournalError::Damaged {
                path,
                after: number - 1,
            }),
        }
    }

    /// Deletes the files all of whose entries are below `durable`, but not the one that may be written on.
    ///
    /// # Errors
    /// If the local disk fails; what is left is deleted the next time.
    pub(super) async fn retire(&self, durable: u64) -> Result<(), DiskError> {
        let _alone = self.deleting.lock().await;
        loop {
            let path = {
                let files = self.files();
                let written_on =
                    |file: &File| files.ours && files.files.len() == 1 && file.length_bytes < self.file_bytes;
                let done = files.files.front().filter(|file| file.end() <= durable);
                match done.filter(|file| !written_on(file)) {
                    Some(file) => file.path.clone(),
                    None => return Ok(()),
                }
            };
            self.delete_first(&path).await?;
        }
    }

    /// Deletes everything, durably. Nobody appends meanwhile.
    ///
    /// # Errors
    /// If the local disk fails; then it is not known what is left.
    pub(super) async fn clear(&self) -> Result<(), DiskError> {
        let _alone = self.deleting.lock().await;
        // The newest last: whatever is left of a crash in between is a journal whose beginning was retired.
        loop {
            let Some(path) = self.files().files.front().map(|file| file.path.clone()) else {
                break;
            };
            self.delete_first(&path).await?;
        }
        {
            let mut files = self.files();
            files.ours = false;
            // What comes now has nothing before it that is not durable.
            files.began = 0;
        }
        for name in self.env.disk().list(&self.directory).await? {
            if is_file_name(&name) {
                self.remove(&format!("{}/{name}", self.directory)).await?;
            }
        }
        self.env.disk().sync_directory(&self.directory).await
    }

    /// Durably, before the next one is: a file must not come back without those behind it.
    async fn delete_first(&self, path: &str) -> Result<(), DiskError> {
        self.remove(path).await?;
        self.env.disk().sync_directory(&self.directory).await?;
        self.files().files.pop_front();
        Ok(())
    }

    /// A file that was removed before, by an attempt that failed later, is as good as removed.
    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        match self.env.disk().remove(path).await {
            Err(DiskError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

/// Whether a name in the journal's directory is one of its files.
pub(super) fn is_file_name(name: &str) -> bool {
    name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn number_of(name: &str) -> u64 {
    name.parse().unwrap_or(0)
}

/// A file that is read from its beginning to its end, in long pieces.
struct Window<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
    bytes: Bytes,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn DiskFile) -> Self {
        Self {
            file,
            offset: 0,
            bytes: Bytes::new(),
        }
    }

    /// Bytes from `offset` on; fewer only at the end of the file.
    async fn read(&mut self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        let from = offset
            .checked_sub(self.offset)
            .and_then(|from| usize::try_from(from).ok());
        if from.is_none_or(|from| from + length > self.bytes.len()) {
            self.bytes = self
                .file
                .read_at(offset, length.max(SCAN_BYTES).max(SEALED_MAX))
                .await?;
            self.offset = offset;
        }
        let from = usize::try_from(offset - self.offset)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len());
        let to = (from + length).min(self.bytes.len());
        Ok(self.bytes.slice(from..to))
    }
}
