//! The volume in memory: what is loaded, what is dirty, and the one function that changes it.
//!
//! `State` is synchronous and pure: it never waits and never does I/O. A request is planned (checked, turned into a
//! [`Record`]) and applied under one lock held for computation only; if something it needs is not in memory, it says what is
//! [`Missing`], the caller loads that and tries again. So requests are atomic and linearizable, and the order of records in
//! the journal is the order in which they were applied.
//!
//! What each entry knows, newest first (a read looks downwards until it finds the byte):
//!
//! | layer | where its data is | lives until |
//! |---|---|---|
//! | active | memory and journal | the next checkpoint freezes it |
//! | frozen | memory and journal | the checkpoint's root is committed |
//! | committed | cache and cloud | replaced by a later commit |

mod apply;
mod beside;
mod directory;
mod entry;
mod plan;
mod resident;
mod snapshots;

pub use apply::{Missing, directory_size_bytes};
pub use beside::{Beside, CountersChange, Grounds};
pub(crate) use directory::VERSION as DIRECTORY_VERSION;
pub use directory::{DirectoryPage, Entry as NamedInode, KEY_BITS, MAX_DEPTH, PagePlace, base_key};
pub use entry::{Content, Entry, FileLayer, FrozenEntry, FrozenPages};
pub use plan::{LINKS_MAX, NewKind, PlannedCreate, Stop, root_inode};
pub use resident::ResidentWrites;
pub use snapshots::{NAME_BYTES_MAX, Retained, SNAPSHOTS_MAX, Snapshot};

use crate::{inode::Inode, journal::Sequence};
use firn_format::{FIRST_FREE_INODE, TreeRoot};
use firn_vfs::{CompletedRequest, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

/// Requests remembered for retransmissions: a client gives up or reconnects long before this many others are done.
const COMPLETED_MAX: usize = 1024;
/// What a record is reckoned with of what is to be uploaded, besides data: a name, an inode, and their share of the nodes above.
const RECORD_BYTES: u64 = 256;

/// How long an answered request is remembered; Linux retransmits over TCP after 60 s.
const COMPLETED_SECONDS: i64 = 180;

/// A call that waited longer before it was answered is remembered from then on, and not from when it was carried out. Shorter waits stay well
/// within what is remembered.
pub const LONG_WAIT: Duration = Duration::from_secs(30);

/// Inodes in memory beyond which unchanged ones are dropped: about 40 MiB.
const INODES_MAX: usize = 40_000;

/// The same for a snapshot that is read: about 2 MiB of inodes and 2 MiB of pages.
const UNCHANGING_INODES_MAX: usize = 2000;
const UNCHANGING_PAGES_BETWEEN_SWEEPS: usize = 256;

/// Directory pages loaded between two sweeps: at 4 KiB a page and twice that in memory, about 16 MiB.
const PAGES_BETWEEN_SWEEPS: usize = 2048;

/// The volume's counters and names of things that live in the checkpoint's sealed payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCounters {
    /// The next inode number to give out; never goes back, so numbers are never reused.
    pub next_inode: u64,
    /// Inodes that exist.
    pub files: u64,
    /// Sum of `used_bytes`.
    pub used_bytes: u64,
    /// Keys the hash of names.
    pub directory_key: [u8; 32],
}

impl VolumeCounters {
    pub fn new(directory_key: [u8; 32]) -> Self {
        Self {
            next_inode: FIRST_FREE_INODE,
            files: 0,
            used_bytes: 0,
            directory_key,
        }
    }
}

/// The volume in memory.
pub struct State {
    /// Names the volume to protocols.
    pub file_system: u64,
    pub counters: VolumeCounters,
    /// Root of the committed inode map.
    pub inode_map: Option<TreeRoot>,
    /// Loaded inodes and tombstones of removed ones that the committed map still has. Never iterated where order matters.
    /// Boxed: the table doubles and never shrinks, and an entry is some hundred bytes.
    entries: HashMap<u64, Box<Entry>>,
    /// Numbers of the entries changed since the last freeze.
    dirty: BTreeSet<u64>,
    /// Unlinked inodes and how often each is retained.
    orphans: BTreeMap<u64, u64>,
    /// Retained inodes that still have a name.
    retained: BTreeMap<u64, u64>,
    completed: VecDeque<(Timestamp, CompletedRequest)>,
    /// Oldest first.
    snapshots: Vec<Snapshot>,
    snapshots_changed: bool,
    /// The last record applied.
    pub applied: Sequence,
    /// Records applied since the last freeze.
    records_since_freeze: u64,
    /// Bytes of file data written since the last freeze.
    dirty_bytes: u64,
    /// The same of what is frozen, records and data.
    frozen_bytes: u64,
    written_bytes: u64,
    resident: ResidentWrites,
    pages_loaded: usize,
    /// Inodes and pages kept before unchanged ones are dropped.
    inodes_max: usize,
    pages_between_sweeps: usize,
    /// Whether what would add data or names is refused; see `crate::quota`.
    pub quota_reached: bool,
    /// Of a volume that others write as well, each what it holds by a lease; `None`: whoever has this state writes alone.
    beside: Option<Box<Beside>>,
    /// A planted bug (`volume.forget_truncation`); always false in what ships.
    pub forgets_truncation: bool,
}

impl State {
    pub fn new(file_system: u64, counters: VolumeCounters, inode_map: Option<TreeRoot>) -> Self {
        Self {
            file_system,
            counters,
            inode_map,
            entries: HashMap::new(),
            dirty: BTreeSet::new(),
            orphans: BTreeMap::new(),
            retained: BTreeMap::new(),
            completed: VecDeque::new(),
            snapshots: Vec::new(),
            snapshots_changed: false,
            applied: Sequence(0),
            records_since_freeze: 0,
            dirty_bytes: 0,
            frozen_bytes: 0,
            written_bytes: 0,
            resident: ResidentWrites::default(),
            pages_loaded: 0,
            inodes_max: INODES_MAX,
            pages_between_sweeps: PAGES_BETWEEN_SWEEPS,
            quota_reached: false,
            beside: None,
            forgets_truncation: false,
        }
    }

    /// The state of a tree that nobody changes, with little memory of its own.
    pub fn unchanging(file_system: u64, counters: VolumeCounters, inode_map: TreeRoot) -> Self {
        Self {
            inodes_max: UNCHANGING_INODES_MAX,
            pages_between_sweeps: UNCHANGING_PAGES_BETWEEN_SWEEPS,
            ..Self::new(file_system, counters, Some(inode_map))
        }
    }

    /// The inode, if it exists and is loaded.
    ///
    /// # Errors
    /// `Missing::Inode` if it is not loaded; `Ok(None)` if it is known not to exist.
    pub fn inode(&mut self, number: u64) -> Result<Option<&Inode>, Missing> {
        Ok(self.entry(number)?.and_then(|entry| entry.inode.as_ref()))
    }

    /// The entry of an inode; `Ok(None)` if the inode does not exist.
    pub fn entry(&mut self, number: u64) -> Result<Option<&mut Entry>, Missing> {
        if number >= self.counters.next_inode && self.gives_out(number) {
            return Ok(None);
        }
        match self.entries.get_mut(&number) {
            None => Err(Missing::Inode(number)),
            Some(entry) => {
                entry.referenced = true;
                Ok(entry.inode.is_some().then_some(entry))
            }
        }
    }

    /// The last record that changed an inode and is not under a committed root yet; zero if there is none.
    pub fn last_change(&self, number: u64) -> Sequence {
        match self.entries.get(&number) {
            Some(entry) if entry.dirty || entry.frozen.is_some() => entry.changed_by,
            Some(_) | None => Sequence(0),
        }
    }

    /// Finds a name in a directory whose inode is loaded.
    ///
    /// # Errors
    /// `Missing` what must be loaded first.
    pub fn find(&mut self, directory: u64, name: &[u8]) -> Result<Option<u64>, Missing> {
        let base = base_key(&self.counters.directory_key, name);
        let entry = self
            .entries
            .get_mut(&directory)
            .ok_or(Missing::Inode(directory))?;
        entry.pages.reference(base);
        let (_, page) = entry
            .pages
            .covering(base)
            .ok_or(Missing::Page { directory, key: base })?;
        Ok(page.find(base, name).map(|(_, inode)| inode))
    }

    /// Whether a new entry of this name finds a free key (sixteen names may share a hash).
    pub fn has_room_for(&mut self, directory: u64, name: &[u8]) -> Result<bool, Missing> {
        let base = base_key(&self.counters.directory_key, name);
        let entry = self.entries.get(&directory).ok_or(Missing::Inode(directory))?;
        let (_, page) = entry
            .pages
            .covering(base)
            .ok_or(Missing::Page { directory, key: base })?;
        Ok(page.free_key(base).is_some())
    }

    /// The entries of the page that covers `key`, and the first key behind the page.
    pub fn page(&mut self, directory: u64, key: u64) -> Result<(PagePlace, &DirectoryPage), Missing> {
        let entry = self
            .entries
            .get_mut(&directory)
            .ok_or(Missing::Inode(directory))?;
        entry.pages.reference(key);
        entry.pages.covering(key).ok_or(Missing::Page { directory, key })
    }

    /// A name of the inode and its directory, as far as that is in memory.
    pub fn named_in_memory(&self, inode: u64) -> Option<(u64, Box<[u8]>)> {
        let named = self.entries.iter().filter_map(|(directory, entry)| {
            let name = entry.pages.name_of(inode)?;
            Some((*directory, name))
        });
        // The same in every run.
        named.min_by_key(|(directory, _)| *directory)
    }

    /// Where the committed content of each loaded inode is that has a map.
    pub fn contents(&self) -> Vec<(u64, Content)> {
        let mut found: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.content, Content::Map(_)))
            .map(|(number, entry)| (*number, entry.content.clone()))
            .collect();
        // Whoever goes through them must do so in an order that does not change from run to run.
        found.sort_by_key(|(number, _)| *number);
        found
    }

    /// The same content at another place.
    pub fn replace_content(&mut self, number: u64, before: &Content, content: Content) {
        if let Some(entry) = self.entries.get_mut(&number)
            && entry.content == *before
            && entry.frozen.is_none()
        {
            entry.content = content;
        }
    }

    /// The committed map of an inode is another one, of the same bytes; the checkpoint that has it was just installed.
    pub fn set_content(&mut self, number: u64, map: TreeRoot) {
        if let Some(entry) = self.entries.get_mut(&number)
            && matches!(entry.content, Content::Map(_))
        {
            entry.content = Content::Map(map);
        }
    }

    /// Bytes of file data written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Adds a committed inode, unless it was loaded or removed meanwhile.
    pub fn install_inode(&mut self, number: u64, inode: Inode, content: Content) {
        self.entries
            .entry(number)
            .or_insert_with(|| Box::new(Entry::committed(inode, content)));
        if self.entries.len() > self.inodes_max {
            self.sweep();
        }
    }

    /// Adds a committed directory page, if the directory is still at `content` and the page not loaded.
    pub fn install_page(&mut self, directory: u64, content: &Content, place: PagePlace, page: DirectoryPage) {
        if let Some(entry) = self.entries.get_mut(&directory)
            && entry.content == *content
        {
            entry.pages.install(place, page);
            self.pages_loaded += 1;
            if self.pages_loaded > self.pages_between_sweeps {
                self.sweep();
            }
        }
    }

    /// Drops what is unchanged and was not used since the last sweep (second chance).
    pub fn sweep(&mut self) {
        self.pages_loaded = 0;
        let (orphans, retained) = (&self.orphans, &self.retained);
        self.entries.retain(|number, entry| {
            // What is frozen is not in the committed content yet, so its pages could not be loaded again.
            if entry.frozen.is_some() {
                return true;
            }
            entry.pages.sweep();
            entry.dirty
                || std::mem::take(&mut entry.referenced)
                || !entry.pages.is_empty()
                || orphans.contains_key(number)
                || retained.contains_key(number)
        });
    }

    /// Drops everything that is unchanged.
    pub fn drop_clean(&mut self) {
        self.sweep();
        self.sweep();
    }

    /// The numbers of the entries in memory.
    pub fn known_numbers(&self) -> BTreeSet<u64> {
        self.entries.keys().copied().collect()
    }

    /// Takes another root's tree in the place of this one, of which nothing was changed here; `keeps` says which entries are in both. How
    /// many were dropped.
    pub fn adopt(
        &mut self,
        counters: VolumeCounters,
        inode_map: Option<TreeRoot>,
        snapshots: Vec<Snapshot>,
        keeps: impl Fn(u64) -> bool,
    ) -> usize {
        assert!(self.dirty.is_empty(), "who adopts roots changes nothing");
        let before = self.entries.len();
        self.entries.retain(|number, _| keeps(*number));
        self.counters = counters;
        self.inode_map = inode_map;
        self.snapshots = snapshots;
        before - self.entries.len()
    }

    /// Written data in memory.
    pub fn resident(&self) -> &ResidentWrites {
        &self.resident
    }

    /// The same, to add to it.
    pub fn resident_mut(&mut self) -> &mut ResidentWrites {
        &mut self.resident
    }

    /// Whether anything changed since the last freeze.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.snapshots_changed
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// About how much is in no root: data that was written, frozen or not, and a flat size for each record.
    pub fn unpublished_bytes(&self) -> u64 {
        self.frozen_bytes + self.changed_bytes()
    }

    /// Of what changed since the last freeze.
    fn changed_bytes(&self) -> u64 {
        self.dirty_bytes + self.records_since_freeze * RECORD_BYTES
    }

    pub fn dirty_inodes(&self) -> usize {
        self.dirty.len()
    }

    pub fn records_since_freeze(&self) -> u64 {
        self.records_since_freeze
    }

    pub fn loaded_inodes(&self) -> usize {
        self.entries.len()
    }

    /// Requests that were answered lately, oldest first.
    pub fn completed(&self) -> Vec<CompletedRequest> {
        self.completed.iter().map(|(_, request)| *request).collect()
    }

    /// The same with their times, for the checkpoint.
    pub fn completed_with_times(&self) -> Vec<(Timestamp, CompletedRequest)> {
        self.completed.iter().copied().collect()
    }

    /// Takes over what a checkpoint remembered.
    pub fn restore_completed(&mut self, completed: Vec<(Timestamp, CompletedRequest)>) {
        self.completed = completed.into();
    }

    fn remember(&mut self, now: Timestamp, request: CompletedRequest) {
        if self.completed.len() >= COMPLETED_MAX {
            self.completed.pop_front();
        }
        self.completed.push_back((now, request));
    }

    /// Forgets requests that are older than what is remembered, so that checkpoints of quiet volumes stay small. What is not yet answered has no
    /// age: `waited` is how long the call waits that waits longest for its answer.
    pub fn forget_completed(&mut self, now: Timestamp, waited: Duration) {
        let since = now
            .seconds
            .saturating_sub(COMPLETED_SECONDS)
            .saturating_sub_unsigned(waited.as_secs());
        while self
            .completed
            .front()
            .is_some_and(|(time, _)| time.seconds < since)
        {
            self.completed.pop_front();
        }
    }

    /// Remembers all requests from now on: after a start, whose clients could not come before, and when one is answered that waited for long.
    pub fn renew_completed(&mut self, now: Timestamp) {
        self.completed.iter_mut().for_each(|(time, _)| *time = now);
    }

    /// One more user of an inode that may be unlinked while used.
    pub fn retain(&mut self, number: u64) {
        let users = if let Some(users) = self.orphans.get_mut(&number) {
            users
        } else {
            self.retained.entry(number).or_default()
        };
        *users += 1;
    }

    /// One user less; true if the inode is unlinked and this was the last.
    pub fn release(&mut self, number: u64) -> bool {
        if let Some(users) = self.orphans.get_mut(&number) {
            *users = users.saturating_sub(1);
            return *users == 0;
        }
        if let Some(users) = self.retained.get_mut(&number) {
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.retained.remove(&number);
            }
        }
        false
    }

    /// Whether an inode that loses its last name must be kept.
    pub fn is_retained(&self, number: u64) -> bool {
        self.retained.contains_key(&number)
    }

    /// Unlinked inodes that are kept.
    pub fn orphans(&self) -> Vec<u64> {
        self.orphans.keys().copied().collect()
    }

    /// Adds an orphan found in the committed state; nobody uses it after a restart.
    pub fn install_orphan(&mut self, inode: Inode, content: Content) {
        self.orphans.insert(inode.number, 0);
        self.entries
            .insert(inode.number, Box::new(Entry::committed(inode, content)));
    }

    /// Takes everything that changed since the last freeze, for a checkpoint. Until [`State::install`], reads find it in the
    /// frozen layer.
    pub fn freeze(&mut self) -> Vec<FrozenEntry> {
        self.frozen_bytes += self.changed_bytes();
        if let Some(beside) = &mut self.beside {
            beside.freeze();
        }
        self.records_since_freeze = 0;
        self.dirty_bytes = 0;
        let dirty = std::mem::take(&mut self.dirty);
        dirty
            .into_iter()
            .map(|number| {
                let orphan = self.orphans.contains_key(&number);
                let entry = self
                    .entries
                    .get_mut(&number)
                    .expect("a dirty entry is never dropped");
                entry.freeze(number, orphan)
            })
            .collect()
    }

    /// Takes over what a committed checkpoint built from the entries it had frozen: (inode, new content, bytes used).
    pub fn install(&mut self, inode_map: Option<TreeRoot>, built: Vec<(u64, Content, u64)>) {
        self.inode_map = inode_map;
        self.frozen_bytes = 0;
        for (number, content, used_bytes) in built {
            let entry = self
                .entries
                .get_mut(&number)
                .expect("a frozen entry is never dropped");
            let frozen = entry.frozen.take().expect("it was frozen by this checkpoint");
            entry.content = content;
            entry.committed_used_bytes = used_bytes;
            if let Some(inode) = entry.inode.as_mut() {
                // Writes since the freeze were added to the frozen estimate; replace that estimate by what was built.
                let corrected = (inode.used_bytes + used_bytes).saturating_sub(frozen.used_bytes);
                let corrected = corrected.min(inode.size_bytes.next_multiple_of(crate::BLOCK_BYTES_MIN));
                self.counters.used_bytes =
                    (self.counters.used_bytes + corrected).saturating_sub(inode.used_bytes);
                inode.used_bytes = corrected;
            } else if !entry.dirty {
                self.entries.remove(&number);
            }
        }
        self.resident.release();
        self.sweep();
    }
}
