//! The case-folded index of directories: a name in whatever case is found without a listing for each question.
//!
//! smbd finds a name by its exact bytes first. Of one that is not there it asks a mount that can tell for the name as it is
//! written, by reading the extended attribute [`QUESTION`] + name of the directory (the convention of GlusterFS, for which Samba
//! has a module; decision 0139). So the kernel's cache of names has exact names only and never needs to know of case.
//!
//! ```text
//! table   = sorted (hash of the folded name, place of the name)*      made by one listing, 8 bytes an entry
//! names   = (length u8 | bytes)*
//! touched = names that were made since, by whatever protocol
//! ```
//!
//! Table and touched names are *candidates*: each is looked up by its exact bytes before it is an answer, so removals need not be known, and
//! what was made must be: a mount's own calls are noted by [`crate::indexed::IndexedVfs`], those of other protocols by their announcements, and a
//! rescan (more was announced than the queue holds, or a restore) drops all tables, and a directory that another edge changed loses its own. When more was made than half of what a table has it is
//! dropped too and made anew at the next question, so that names that come and go cost memory within a bound.
//!
//! All tables together have [`BYTES_MAX`]; the least recently used is evicted. Of a directory that would not fit alone the answer is that it
//! cannot be told: smbd lists it then, as it does on any other file system.

use crate::fold::fold;
use bytes::Bytes;
use firn_vfs::{Caller, Credentials, FileHandle, Name, Vfs, VfsError};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

/// Before a name: the extended attribute of a directory by which smbd asks how the name is written there.
pub(crate) const QUESTION: &[u8] = b"glusterfs.get_real_filename:";

/// The longest name that can be asked for: the kernel takes attributes' names of at most 255 bytes.
pub(crate) const ASKED_BYTES_MAX: usize = 255 - QUESTION.len();

/// Of all tables: two million names of 20 bytes.
const BYTES_MAX: usize = 64 << 20;
/// Tables, however small.
const DIRECTORIES_MAX: usize = 4096;
/// Names made since a table was, before it is made anew, however small the table is.
const TOUCHED_MIN: usize = 4096;
/// Names asked of the file system at once.
const PAGE_ENTRIES: u32 = 4096;
/// What a touched name takes beside its bytes.
const TOUCHED_BYTES: usize = 96;

/// How an index is used, for the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CaseIndexCounts {
    /// Names that were asked for.
    pub questions: u64,
    /// Directories listed for their tables.
    pub listings: u64,
    /// Bytes of all tables.
    pub bytes: u64,
    /// Directories that have one.
    pub directories: u64,
}

/// The names of a directory at one moment.
#[derive(Default)]
struct Table {
    places: Vec<(u32, u32)>,
    names: Vec<u8>,
}

impl Table {
    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<(u32, u32)>() + self.names.capacity()
    }

    fn push(&mut self, hash: u32, name: &[u8]) {
        let place = u32::try_from(self.names.len()).expect("BYTES_MAX is below 4 GiB");
        self.names
            .push(u8::try_from(name.len()).expect("names have at most 255 bytes"));
        self.names.extend_from_slice(name);
        self.places.push((hash, place));
    }

    fn finish(&mut self) {
        self.places.sort_unstable();
        self.places.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    fn of(&self, hash: u32) -> impl Iterator<Item = &[u8]> {
        let from = self.places.partition_point(|(other, _)| *other < hash);
        let same = self.places[from..]
            .iter()
            .take_while(move |(other, _)| *other == hash);
        same.map(|(_, place)| {
            let at = *place as usize;
            let length = usize::from(self.names[at]);
            &self.names[at + 1..at + 1 + length]
        })
    }
}

enum Listed {
    No,
    Yes(Table),
    /// It would not fit.
    TooLarge,
}

struct Names {
    listed: Listed,
    touched: HashMap<u32, BTreeSet<Bytes>>,
    touched_count: usize,
}

/// What is known of one directory.
struct Directory {
    /// Held while it is listed: who else asks waits for that.
    listing: tokio::sync::Mutex<()>,
    names: Mutex<Names>,
}

impl Directory {
    fn new() -> Self {
        Self {
            listing: tokio::sync::Mutex::default(),
            names: Mutex::new(Names {
                listed: Listed::No,
                touched: HashMap::new(),
                touched_count: 0,
            }),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("no panic under this lock")
    }
}

struct Slot {
    directory: Arc<Directory>,
    used: u64,
    bytes: usize,
}

#[derive(Default)]
struct State {
    directories: HashMap<FileHandle, Slot>,
    bytes: usize,
    clock: u64,
}

impl State {
    fn remove(&mut self, directory: FileHandle) {
        if let Some(slot) = self.directories.remove(&directory) {
            self.bytes -= slot.bytes;
        }
    }

    /// Makes room for `bytes` more, in favour of `kept`.
    fn evict(&mut self, bytes: usize, kept: FileHandle, limit: usize) {
        while self.bytes + bytes > limit || self.directories.len() > DIRECTORIES_MAX {
            let others = self.directories.iter().filter(|(one, _)| **one != kept);
            let Some(oldest) = others.min_by_key(|(_, slot)| slot.used).map(|(one, _)| *one) else {
                return;
            };
            self.remove(oldest);
        }
    }
}

/// See the module.
pub(crate) struct CaseIndex {
    state: Mutex<State>,
    /// Keyed, so that nobody makes names of one hash on purpose.
    hasher: RandomState,
    bytes_max: usize,
    /// Threads that just missed a name in a directory that is too long to be asked for.
    long: Mutex<HashSet<(u32, u64)>>,
    questions: AtomicU64,
    listings: AtomicU64,
}

/// What the index says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There is one, written so.
    Is(Name),
    /// There is none.
    None,
    /// The directory is too large: it has to be listed.
    Unknown,
}

impl CaseIndex {
    pub(crate) fn new() -> Self {
        Self::with_room(BYTES_MAX)
    }

    fn with_room(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            hasher: RandomState::new(),
            bytes_max,
            long: Mutex::default(),
            questions: AtomicU64::new(0),
            listings: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn hash(&self, folded: &[u8]) -> u32 {
        (self.hasher.hash_one(folded) >> 32) as u32
    }

    /// Whether anything of a directory is known, so that its changes must be told.
    pub(crate) fn has(&self, directory: FileHandle) -> bool {
        self.state().directories.contains_key(&directory)
    }

    /// How it is used.
    pub(crate) fn counts(&self) -> CaseIndexCounts {
        let state = self.state();
        CaseIndexCounts {
            questions: self.questions.load(Ordering::Relaxed),
            listings: self.listings.load(Ordering::Relaxed),
            bytes: state.bytes as u64,
            directories: state.directories.len() as u64,
        }
    }

    /// Forgets a directory: nobody knows what was made in it.
    pub(crate) fn forget(&self, directory: FileHandle) {
        self.state().remove(directory);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        state.directories.clear();
        state.bytes = 0;
    }

    /// Notes that `name` may have been made in `directory`. To be called once it is there, before whoever made it is answered.
    pub(crate) fn touched(&self, directory: FileHandle, name: &Name) {
        let Some(known) = self
            .state()
            .directories
            .get(&directory)
            .map(|slot| slot.directory.clone())
        else {
            return;
        };
        let hash = self.hash(&fold(name.as_bytes()));
        let mut names = known.names();
        let limit = match &names.listed {
            Listed::TooLarge => return,
            Listed::No => usize::MAX,
            Listed::Yes(table) => TOUCHED_MIN.max(table.places.len() / 2),
        };
        let name = Bytes::copy_from_slice(name.as_bytes());
        let bytes = name.len() + TOUCHED_BYTES;
        if !names.touched.entry(hash).or_default().insert(name) {
            return;
        }
        names.touched_count += 1;
        let is_over = names.touched_count > limit;
        drop(names);
        let mut state = self.state();
        let slot = state.directories.get_mut(&directory);
        let Some(slot) = slot.filter(|slot| Arc::ptr_eq(&slot.directory, &known)) else {
            return;
        };
        slot.bytes += bytes;
        state.bytes += bytes;
        if is_over || state.bytes > self.bytes_max {
            // The next question lists it anew. While it is listed now, it is so for nothing, and who listed asks once more.
            state.remove(directory);
        }
    }

    /// How `name` is written in `directory`, in whatever case it is given.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) async fn find(
        &self,
        vfs: &dyn Vfs,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Answer, VfsError> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let folded = fold(name.as_bytes());
        let hash = self.hash(&folded);
        let known = self.known(directory);
        if !self.list(vfs, directory, &known).await? {
            return Ok(Answer::Unknown);
        }
        let candidates: BTreeSet<Bytes> = {
            let names = known.names();
            let touched = names.touched.get(&hash).into_iter().flatten().cloned();
            let listed = match &names.listed {
                Listed::Yes(table) => Some(table.of(hash).map(Bytes::copy_from_slice)),
                Listed::No | Listed::TooLarge => None,
            };
            let all = touched.chain(listed.into_iter().flatten());
            all.filter(|one| fold(one) == folded).collect()
        };
        let caller = Caller::new(Credentials::root());
        for candidate in candidates {
            let name = Name::new(candidate)?;
            match vfs.lookup(&caller, directory, &name).await {
                Ok(_) => return Ok(Answer::Is(name)),
                Err(VfsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Answer::None)
    }

    /// The directory's place in the index, made if it has none: from now on what is made in it is noted.
    fn known(&self, directory: FileHandle) -> Arc<Directory> {
        let mut state = self.state();
        state.clock += 1;
        let clock = state.clock;
        let slot = state.directories.entry(directory).or_insert_with(|| Slot {
            directory: Arc::new(Directory::new()),
            used: 0,
            bytes: 0,
        });
        slot.used = clock;
        let known = slot.directory.clone();
        state.evict(0, directory, self.bytes_max);
        known
    }

    /// Lists a directory unless it is listed. False: it is too large.
    async fn list(
        &self,
        vfs: &dyn Vfs,
        directory: FileHandle,
        known: &Arc<Directory>,
    ) -> Result<bool, VfsError> {
        let _one = known.listing.lock().await;
        match known.names().listed {
            Listed::Yes(_) => return Ok(true),
            Listed::TooLarge => return Ok(false),
            Listed::No => {}
        }
        self.listings.fetch_add(1, Ordering::Relaxed);
        let mut table = Table::default();
        let caller = Caller::new(Credentials::root());
        let mut cookie = 0;
        loop {
            let page = vfs
                .read_directory(&caller, directory, cookie, PAGE_ENTRIES, false)
                .await?;
            for entry in &page.entries {
                cookie = entry.cookie;
                if !matches!(&entry.name[..], b"." | b"..") {
                    table.push(self.hash(&fold(&entry.name)), &entry.name);
                }
            }
            // Growing takes up to twice what it ends at, for a moment.
            if table.names.len() + table.places.len() * size_of::<(u32, u32)>() > self.bytes_max {
                known.names().listed = Listed::TooLarge;
                return Ok(false);
            }
            if page.end || page.entries.is_empty() {
                break;
            }
        }
        table.finish();
        let bytes = table.bytes();
        known.names().listed = Listed::Yes(table);
        let mut state = self.state();
        state.evict(bytes, directory, self.bytes_max);
        // Dropped meanwhile, by a rescan or since too much was made: this question is answered, the next lists it anew.
        if let Some(slot) = state.directories.get_mut(&directory)
            && Arc::ptr_eq(&slot.directory, known)
        {
            slot.bytes += bytes;
            state.bytes += bytes;
        }
        Ok(true)
    }

    /// Notes that a thread missed a name that is too long to be asked for.
    pub(crate) fn missed_long(&self, thread: u32, directory: u64) {
        let mut long = self.long();
        if long.len() >= DIRECTORIES_MAX {
            long.clear();
        }
        long.insert((thread, directory));
    }

    /// Whether this thread did so last in this directory.
    pub(crate) fn take_long(&self, thread: u32, directory: u64) -> bool {
        self.long().remove(&(thread, directory))
    }

    fn long(&self) -> MutexGuard<'_, HashSet<(u32, u64)>> {
        self.long.lock().expect("no panic under this lock")
    }
}

#[cfg(test)]
mod tests;
