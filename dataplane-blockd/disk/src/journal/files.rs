//! The journal's files: appended to by one task, read by all, deleted when the disk has what they hold.
//!
//! A file is synced before its successor begins, so only the last one may end torn; a torn entry was answered to nobody. What a
//! process finds it never writes on: it begins a file of its own.

use super::entry::{ENTRY_HEAD_BYTES, Entry, FILE_HEAD_BYTES, FileHead, FileKey, SEALED_MAX, entry_head};
use bytes::Bytes;
use firn_env::{DiskError, DiskFile, Env, OpenMode};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};
use zeroize::Zeroizing;

/// Bytes that are read at once when a file is gone through.
const SCAN_BYTES: usize = 1 << 20;

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
    /// Whether the last file was begun by this process.
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

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
        let names: Vec<String> = names.into_iter().filter(|name| is_file_name(name)).collect();
        for (at, name) in names.iter().enumerate() {
            found.take_up(name, at + 1 == names.len()).await?;
        }
        Ok(found)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no panic under this lock")
    }

    async fn take_up(&self, name: &str, is_last: bool) -> Result<(), JournalError> {
        let path = format!("{}/{name}", self.directory);
        let handle = self.env.disk().open(&path, OpenMode::Read).await?;
        let length = handle.length().await?;
        let expected = self.files().files.back().map(File::end);
        let damaged = |after: u64| JournalError::Damaged {
            path: path.clone(),
            after,
        };
        let head = FileHead::decode(&handle.read_at(0, FILE_HEAD_BYTES).await?);
        let head = match head {
            Some(head) => head,
            // Its process died before it had synced anything.
            None if is_last => {
                self.files().next_file = number_of(name) + 1;
                return Ok(());
            }
            None => return Err(damaged(expected.unwrap_or(1) - 1)),
        };
        if head.disk != self.disk {
            let disk = hexadecimal(&head.disk);
            return Err(JournalError::OtherDisk { path, disk });
        }
        if expected.is_some_and(|expected| expected != head.first) {
            return Err(damaged(expected.unwrap_or(1) - 1));
        }
        let key = Arc::new(FileKey::new(&self.key, &head));
        let (mut places, mut offset) = (Vec::new(), FILE_HEAD_BYTES as u64);
        let mut window = Window::new(&*handle);
        loop {
            let number = head.first + places.len() as u64;
            let Some((sealed_bytes, _)) =
                entry_head(&window.read(offset, ENTRY_HEAD_BYTES).await?).filter(|(_, of)| *of == number)
            else {
                break;
            };
            let at = offset + ENTRY_HEAD_BYTES as u64;
            let sealed = window.read(at, sealed_bytes).await?;
            if sealed.len() < sealed_bytes || key.open(number, &sealed).is_none() {
                break;
            }
            places.push(Place {
                offset: at,
                sealed_bytes: u32::try_from(sealed_bytes).expect("entries are bounded"),
            });
            offset = at + sealed_bytes as u64;
        }
        if offset < length && !is_last {
            return Err(damaged(head.first + places.len() as u64 - 1));
        }
        let mut files = self.files();
        files.next_file = head.file + 1;
        files.began = head.began;
        files.files.push_back(File {
            path,
            first: head.first,
            began: head.began,
            places,
            length_bytes: offset,
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

    /// The next entry is the first of a new journaling, which is whole when it has said so.
    pub(super) fn begin_at(&self, first: u64) {
        self.files().began = first;
    }

    /// Whether the first entry there is, is the one with which its journaling began.
    pub(super) fn has_beginning(&self) -> bool {
        let files = self.files();
        files.files.front().is_some_and(|file| file.first == file.began)
    }

    /// Bytes of all files.
    pub(super) fn used_bytes(&self) -> u64 {
        self.files().files.iter().map(|file| file.length_bytes).sum()
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
        handle.write_and_sync(begin, parts).await?;
        self.env.fault_point("journal.after_append").await;
        let mut files = self.files();
        let file = files.files.back_mut().expect("nobody else takes the last one");
        file.places.extend(places);
        file.length_bytes = offset;
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
        handle.write_and_sync(0, vec![head.encode()]).await?;
        self.env.disk().sync_directory(&self.directory).await?;
        let mut files = self.files();
        files.ours = true;
        files.files.push_back(File {
            path,
            first,
            began: head.began,
            places: Vec::new(),
            length_bytes: FILE_HEAD_BYTES as u64,
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

    /// Deletes the files all of whose entries are below `durable`, but not the one that is being written.
    ///
    /// # Errors
    /// If the local disk fails; what is left is deleted the next time.
    pub(super) async fn retire(&self, durable: u64) -> Result<(), DiskError> {
        let _alone = self.deleting.lock().await;
        loop {
            let path = {
                let files = self.files();
                let done = files.files.front().filter(|file| file.end() <= durable);
                match done.filter(|_| files.files.len() > 1) {
                    Some(file) => file.path.clone(),
                    None => return Ok(()),
                }
            };
            self.env.disk().remove(&path).await?;
            self.files().files.pop_front();
        }
    }

    /// Deletes everything, durably.
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
            self.env.disk().remove(&path).await?;
            self.files().files.pop_front();
        }
        {
            let mut files = self.files();
            files.ours = false;
            // What comes now has nothing before it that is not durable.
            files.began = 0;
        }
        for name in self.env.disk().list(&self.directory).await? {
            if is_file_name(&name) {
                self.env
                    .disk()
                    .remove(&format!("{}/{name}", self.directory))
                    .await?;
            }
        }
        self.env.disk().sync_directory(&self.directory).await
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
