//! Locks of a file system that several offices change: granted by the one that has the volume, handed over with it. Where offices write at the same moment "has the volume" is "has the lease of locks".
//!
//! | | open: this office has the volume | closed: another has it, or nobody |
//! |---|---|---|
//! | a request | decided, against what clients of other offices hold too | refused at once if a client here is in its way; else `Away`, and the volume is wanted |
//! | one that may wait | granted or queued | queued; the volume is wanted once nothing known is in its way |
//! | an unlock | at once, and serves who waits | at once, and serves nobody |
//! | a reclaim | if the locks of before the restart are still this office's | the same |
//!
//! **Other offices stand in the table as owners**, one each ([`LockProtocol::Office`]): what they hold, and behind the clients of this office what
//! they wait for. A wait of theirs that comes to its turn is *reserved*: nobody here gets in between while that office fetches the volume.
//!
//! **The lease** decides at each grant: who has not been heard for long may have lost the volume, and what it granted would be nobody's.
//!
//! What an office has of locks is bounded ([`OFFICE_LOCKS`]), since it travels with each handover.

use super::{
    ByteRange, LockClient, LockError, LockOwner, LockProtocol, LockRequest, LockTable, segments::Segments,
    table::Table,
};
use bytes::Bytes;
use firn_vfs::FileHandle;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::Notify;

/// Locks and waits of one office in a shared file system.
pub const OFFICE_LOCKS: usize = 256;
/// Offices that have some, besides this one.
pub const OFFICES: usize = 15;
/// Of an office's identity.
const ID_BYTES: usize = 16;

/// A lock of an office's clients, or what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfficeLock {
    /// Of which file.
    pub inode: u64,
    /// Which bytes.
    pub range: ByteRange,
    /// For writing.
    pub exclusive: bool,
    /// It is not held but waited for.
    pub waits: bool,
}

/// What another office has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Office {
    /// Which.
    pub id: [u8; ID_BYTES],
    /// What people call it.
    pub name: String,
    /// All of it.
    pub locks: Vec<OfficeLock>,
}

impl Office {
    fn client(&self) -> LockClient {
        let mut name = self.id.to_vec();
        name.extend_from_slice(self.name.as_bytes());
        LockClient {
            protocol: LockProtocol::Office,
            name: name.into(),
        }
    }
}

impl LockClient {
    /// The identity and the name of another office; `None` of any other client.
    pub fn as_office(&self) -> Option<([u8; ID_BYTES], String)> {
        let (id, name) = self.name.split_first_chunk::<ID_BYTES>()?;
        (self.protocol == LockProtocol::Office).then(|| (*id, String::from_utf8_lossy(name).into_owned()))
    }
}

/// A lock that was taken from its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLock {
    /// Of which file.
    pub file: FileHandle,
    /// Whose it was.
    pub owner: LockOwner,
}

/// Which locks clients may take again that held them before the edge was restarted.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Reclaims {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Whatever they say: nobody else has had the volume since.
    All,
    /// What other offices still respect.
    Covered(Vec<OfficeLock>),
}

type Lease = Arc<dyn Fn() -> bool + Send + Sync>;

/// The table's side of a shared file system.
#[derive(Default)]
pub(super) struct Shared {
    /// Whether this office may grant at a moment; `None`: it does not have the volume.
    lease: Option<Lease>,
    offices: Vec<Office>,
    /// Waits of other offices that came to their turn.
    reserved: BTreeSet<(LockClient, LockWanted)>,
    /// Other offices that are in somebody's way who would not wait.
    in_the_way: BTreeSet<LockClient>,
    /// Somebody here was refused for want of the volume.
    is_wanted: bool,
    reclaims: Reclaims,
    changed: Arc<Notify>,
}

type LockWanted = (FileHandle, ByteRange, bool);

fn wanted(request: &LockRequest) -> LockWanted {
    (request.file, request.range, request.exclusive)
}

/// The locks of one shared file system; cheap to clone.
#[derive(Clone)]
pub struct OfficeLocks {
    table: LockTable,
    file_system: u64,
    changed: Arc<Notify>,
}

impl LockTable {
    /// From now on locks of `file_system` are granted only while this office has the volume: it is closed.
    pub fn between_offices(&self, file_system: u64) -> OfficeLocks {
        let mut table = self.table();
        let changed = table.shared.entry(file_system).or_default().changed.clone();
        drop(table);
        OfficeLocks {
            table: self.clone(),
            file_system,
            changed,
        }
    }
}

impl OfficeLocks {
    fn with<T>(&self, work: impl FnOnce(&mut Table, u64) -> T) -> T {
        work(&mut self.table.table(), self.file_system)
    }

    fn shared<T>(&self, work: impl FnOnce(&mut Shared) -> T) -> T {
        self.with(|table, at| work(table.shared.get_mut(&at).expect("it stays shared")))
    }

    /// Grants from now on, while `lease` holds. What other offices have is to be known before ([`Self::set_others`]).
    pub fn open(&self, lease: Lease) {
        self.with(|table, at| {
            let shared = table.shared.get_mut(&at).expect("it stays shared");
            shared.lease = Some(lease);
            shared.is_wanted = false;
            table.place_offices(at);
            table.serve_file_system(at);
        });
    }

    /// Grants nothing any more.
    pub fn close(&self) {
        if firn_env::planted!("session.grants_in_a_closed_table") {
            return;
        }
        self.with(|table, at| {
            let shared = table.shared.get_mut(&at).expect("it stays shared");
            (shared.lease, shared.is_wanted) = (None, false);
            table.place_offices(at);
        });
    }

    /// The lease holds again: serves who waits.
    pub fn serve(&self) {
        self.with(Table::serve_file_system);
    }

    /// What other offices have, instead of what was known.
    pub fn set_others(&self, offices: Vec<Office>) {
        self.with(|table, at| {
            let shared = table.shared.get_mut(&at).expect("it stays shared");
            if shared.offices == offices {
                return;
            }
            let before = std::mem::replace(&mut shared.offices, offices);
            let gone: Vec<_> = before.iter().map(Office::client).collect();
            for client in gone {
                let shared = &table.shared[&at];
                if !shared.offices.iter().any(|office| office.client() == client) {
                    table.remove_office(at, &client);
                }
            }
            table.place_offices(at);
            table.serve_file_system(at);
        });
    }

    /// What clients here hold and wait for: no more entries than travel, if need be with more bytes than are held.
    pub fn own(&self) -> Vec<OfficeLock> {
        self.with(|table, at| table.own_locks(at))
    }

    /// Breaks what clients here hold and is not `kept`. All that one owner holds in a file goes with a part of it.
    pub fn keep_only(&self, kept: impl Fn(&OfficeLock) -> bool) -> Vec<BrokenLock> {
        self.with(|table, at| table.break_unless(at, kept))
    }

    /// Whether somebody here waits for this office to have the volume: was refused lately, or waits and nothing known is in the way.
    pub fn is_wanted(&self) -> bool {
        self.with(|table, at| {
            let shared = table.shared.get_mut(&at).expect("it stays shared");
            let was_refused = std::mem::take(&mut shared.is_wanted);
            was_refused || table.has_free_waiter(at)
        })
    }

    /// Other offices that are in the way of somebody here, or were when they would not wait, since this was asked last.
    pub fn take_in_the_way(&self) -> BTreeSet<[u8; ID_BYTES]> {
        self.with(|table, at| {
            let shared = table.shared.get_mut(&at).expect("it stays shared");
            let mut clients = std::mem::take(&mut shared.in_the_way);
            clients.extend(table.offices_waited_for(at));
            clients
                .iter()
                .filter_map(LockClient::as_office)
                .map(|(id, _)| id)
                .collect()
        })
    }

    /// What may be reclaimed.
    pub fn set_reclaims(&self, reclaims: Reclaims) {
        self.shared(|shared| shared.reclaims = reclaims);
    }

    /// Whether nobody has said yet what may be reclaimed.
    pub fn reclaims_are_unknown(&self) -> bool {
        self.shared(|shared| shared.reclaims == Reclaims::Unknown)
    }

    /// Whether clients may reclaim what is not in the table yet.
    pub fn in_grace(&self) -> bool {
        self.table.in_grace()
    }

    /// Waits until something changed here: a lock, a wait, or that the volume is wanted. A change before the call counts.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Table {
    /// Whether locks are granted there at the moment.
    pub(super) fn grants(&self, file_system: u64) -> bool {
        match self.shared.get(&file_system) {
            None => true,
            Some(shared) => shared.lease.as_ref().is_some_and(|lease| lease()),
        }
    }

    /// Whether a request that does not wait can be decided.
    pub(super) fn check_granting(&mut self, request: &LockRequest) -> Result<(), LockError> {
        let file_system = request.file.file_system;
        if self.grants(file_system) {
            return Ok(());
        }
        let of_here = self
            .in_the_way(request)
            .find(|holder| holder.owner.client.protocol != LockProtocol::Office);
        if let Some(holder) = of_here {
            return Err(LockError::Conflict(Box::new(holder)));
        }
        if let Some(shared) = self.shared.get_mut(&file_system) {
            shared.is_wanted = true;
            shared.changed.notify_one();
        }
        Err(LockError::Away)
    }

    /// Whether a lock that was held before a restart may be taken again.
    pub(super) fn check_reclaim(&self, request: &LockRequest) -> Result<(), LockError> {
        let Some(shared) = self.shared.get(&request.file.file_system) else {
            return Ok(());
        };
        match &shared.reclaims {
            Reclaims::All => Ok(()),
            Reclaims::Unknown => Err(LockError::Away),
            Reclaims::Covered(locks) => {
                let mut kept = Segments::default();
                let of_file = locks
                    .iter()
                    .filter(|lock| !lock.waits && lock.inode == request.file.inode);
                // What is held for writing last, so that it stays.
                let mut of_file: Vec<_> = of_file.collect();
                of_file.sort_by_key(|lock| lock.exclusive);
                for lock in of_file {
                    kept.set(lock.range, Some(lock.exclusive));
                }
                match kept.covers(request.range, request.exclusive) {
                    true => Ok(()),
                    false => Err(LockError::GraceOver),
                }
            }
        }
    }

    /// Whether the owner has what it asks for.
    pub(super) fn holds(&self, request: &LockRequest) -> bool {
        let held = self.files.get(&request.file).map(|file| &file.held);
        let held = held.and_then(|held| held.get(&request.owner));
        held.is_some_and(|held| held.covers(request.range, request.exclusive))
    }

    pub(super) fn check_office_limits(&self, file_system: u64) -> Result<(), LockError> {
        let Some(shared) = self.shared.get(&file_system) else {
            return Ok(());
        };
        // As for one client: an operation adds two ranges at most.
        let used: usize = self.files_of(file_system).map(|file| self.uses_of(file)).sum();
        match used + 2 > OFFICE_LOCKS || shared.offices.len() > OFFICES {
            true => Err(LockError::TooMany),
            false => Ok(()),
        }
    }

    /// Something of a client here has changed.
    pub(super) fn note_change(&self, file_system: u64, client: &LockClient) {
        if let Some(shared) = self.shared.get(&file_system)
            && client.protocol != LockProtocol::Office
        {
            shared.changed.notify_one();
        }
    }

    /// A client is in the way of somebody who does not wait.
    pub(super) fn note_in_the_way(&mut self, file_system: u64, client: &LockClient) {
        if let Some(shared) = self.shared.get_mut(&file_system)
            && client.protocol == LockProtocol::Office
        {
            shared.in_the_way.insert(client.clone());
        }
    }

    /// A request came to its turn.
    pub(super) fn note_served(&mut self, request: &LockRequest) {
        let LockRequest { file, owner, .. } = request;
        let Some(shared) = self.shared.get_mut(&file.file_system) else {
            return;
        };
        if is_here(owner) {
            return;
        }
        shared.reserved.insert((owner.client.clone(), wanted(request)));
        // It is one owner here and many there: what another client of it has for writing stays so.
        let offices = shared
            .offices
            .iter()
            .filter(|office| office.client() == owner.client);
        let held = offices
            .flat_map(|office| &office.locks)
            .filter(|lock| !lock.waits);
        let held = held
            .filter(|lock| lock.inode == file.inode && lock.exclusive)
            .map(|lock| lock.range);
        let reserved = shared
            .reserved
            .iter()
            .filter(|(of, (at, _, exclusive))| *of == owner.client && at == file && *exclusive);
        let reserved = reserved.map(|(_, (_, range, _))| *range);
        let exclusive: Vec<ByteRange> = held.chain(reserved).collect();
        for range in exclusive {
            self.set(*file, owner, range, Some(true));
        }
    }

    fn files_of(&self, file_system: u64) -> impl Iterator<Item = FileHandle> + '_ {
        let of = move |inode| FileHandle { file_system, inode };
        self.files.range(of(0)..=of(u64::MAX)).map(|(file, _)| *file)
    }

    /// Ranges and waits of clients here in a file.
    fn uses_of(&self, file: FileHandle) -> usize {
        let locks = &self.files[&file];
        let held = locks.held.iter().filter(|(owner, _)| is_here(owner));
        let waits = locks
            .queue
            .iter()
            .filter(|number| is_here(&self.waiting[number].request.owner));
        held.map(|(_, segments)| segments.len()).sum::<usize>() + waits.count()
    }

    fn serve_file_system(&mut self, file_system: u64) {
        let files = self.files_of(file_system).collect();
        self.serve(files);
    }

    /// Takes an office out of the table.
    fn remove_office(&mut self, file_system: u64, client: &LockClient) {
        let files: Vec<_> = self.files_of(file_system).collect();
        let owner = owner_of(client);
        for file in files {
            self.dequeue_office(file, &owner, |_| false);
            if self.files.contains_key(&file) {
                self.set(file, &owner, ByteRange::ALL, None);
            }
        }
        let shared = self.shared.get_mut(&file_system).expect("it stays shared");
        shared.reserved.retain(|(of, _)| of != client);
    }

    /// Takes those requests of an office out of a file's queue that are not kept.
    fn dequeue_office(&mut self, file: FileHandle, owner: &LockOwner, is_kept: impl Fn(&LockWanted) -> bool) {
        let queue = self.files.get(&file).map(|file| file.queue.clone());
        for number in queue.into_iter().flatten() {
            let request = &self.waiting[&number].request;
            if request.owner == *owner && !is_kept(&wanted(request)) {
                self.dequeue(number);
            }
        }
    }

    /// Has the table hold what other offices have; what they wait for only where it grants.
    fn place_offices(&mut self, file_system: u64) {
        let offices = self.shared[&file_system].offices.clone();
        let is_open = self.shared[&file_system].lease.is_some();
        for office in &offices {
            let client = office.client();
            let owner = owner_of(&client);
            let at = |lock: &OfficeLock| FileHandle {
                file_system,
                inode: lock.inode,
            };
            let waits: BTreeSet<LockWanted> = office
                .locks
                .iter()
                .filter(|lock| is_open && lock.waits)
                .map(|lock| (at(lock), lock.range, lock.exclusive))
                .collect();
            let files: Vec<_> = self.files_of(file_system).collect();
            for file in files {
                self.dequeue_office(file, &owner, |request| waits.contains(request));
                if self.files.contains_key(&file) {
                    self.set(file, &owner, ByteRange::ALL, None);
                }
            }
            let shared = self.shared.get_mut(&file_system).expect("it stays shared");
            shared
                .reserved
                .retain(|(of, request)| *of != client || waits.contains(request));
            let reserved: BTreeSet<LockWanted> = shared
                .reserved
                .iter()
                .filter(|(of, _)| *of == client)
                .map(|(_, request)| *request)
                .collect();
            // What is held for writing last, so that it stays where it meets what is held for reading.
            let mut held: Vec<LockWanted> = office
                .locks
                .iter()
                .filter(|lock| !lock.waits)
                .map(|lock| (at(lock), lock.range, lock.exclusive))
                .chain(reserved.iter().copied())
                .collect();
            held.sort_by_key(|(.., exclusive)| *exclusive);
            for (file, range, exclusive) in held {
                self.set(file, &owner, range, Some(exclusive));
            }
            for (file, range, exclusive) in waits {
                let request = LockRequest {
                    file,
                    owner: owner.clone(),
                    range,
                    exclusive,
                };
                if !reserved.contains(&(file, range, exclusive)) && !self.is_waiting(&request) {
                    self.enqueue_of_office(request);
                }
            }
        }
    }

    fn own_locks(&self, file_system: u64) -> Vec<OfficeLock> {
        let mut locks = BTreeSet::new();
        for file in self.files_of(file_system) {
            let at = &self.files[&file];
            for (_, segments) in at.held.iter().filter(|(owner, _)| is_here(owner)) {
                locks.extend(segments.iter().map(|segment| OfficeLock {
                    inode: file.inode,
                    range: segment.range,
                    exclusive: segment.exclusive,
                    waits: false,
                }));
            }
            let waits = at.queue.iter().map(|number| &self.waiting[number].request);
            locks.extend(
                waits
                    .filter(|request| is_here(&request.owner))
                    .map(|request| OfficeLock {
                        inode: file.inode,
                        range: request.range,
                        exclusive: request.exclusive,
                        waits: true,
                    }),
            );
        }
        bounded(locks.into_iter().collect())
    }

    fn break_unless(&mut self, file_system: u64, kept: impl Fn(&OfficeLock) -> bool) -> Vec<BrokenLock> {
        let mut broken = Vec::new();
        let files: Vec<_> = self.files_of(file_system).collect();
        for file in files {
            let held = &self.files[&file].held;
            let is_kept = |segments: &Segments| {
                segments.iter().all(|segment| {
                    kept(&OfficeLock {
                        inode: file.inode,
                        range: segment.range,
                        exclusive: segment.exclusive,
                        waits: false,
                    })
                })
            };
            let lost = held
                .iter()
                .filter(|(owner, segments)| is_here(owner) && !is_kept(segments));
            let lost: Vec<LockOwner> = lost.map(|(owner, _)| owner.clone()).collect();
            for owner in lost {
                self.set(file, &owner, ByteRange::ALL, None);
                broken.push(BrokenLock { file, owner });
            }
        }
        self.serve_file_system(file_system);
        broken
    }

    /// Whether somebody here waits whom nothing known keeps from the lock.
    fn has_free_waiter(&self, file_system: u64) -> bool {
        self.files_of(file_system).any(|file| {
            let waits = self.files[&file]
                .queue
                .iter()
                .map(|number| &self.waiting[number].request);
            waits
                .filter(|request| is_here(&request.owner))
                .any(|request| self.in_the_way(request).next().is_none())
        })
    }

    fn offices_waited_for(&self, file_system: u64) -> BTreeSet<LockClient> {
        let queues = self
            .files_of(file_system)
            .flat_map(|file| self.files[&file].queue.iter());
        queues
            .flat_map(|number| self.in_the_way(&self.waiting[number].request))
            .map(|holder| holder.owner.client)
            .filter(|client| client.protocol == LockProtocol::Office)
            .collect()
    }
}

fn owner_of(client: &LockClient) -> LockOwner {
    LockOwner {
        client: client.clone(),
        owner: Bytes::new(),
    }
}

fn is_here(owner: &LockOwner) -> bool {
    owner.client.protocol != LockProtocol::Office
}

/// Unlocking in the midst of a lock makes two of it, and is never refused: where that was too much, the locks of a file are said to be one.
fn bounded(mut locks: Vec<OfficeLock>) -> Vec<OfficeLock> {
    if locks.len() > OFFICE_LOCKS {
        let mut files: BTreeMap<u64, OfficeLock> = BTreeMap::new();
        for lock in locks.iter().filter(|lock| !lock.waits) {
            let whole = files.entry(lock.inode).or_insert(*lock);
            whole.range.first = whole.range.first.min(lock.range.first);
            whole.range.last = whole.range.last.max(lock.range.last);
            whole.exclusive |= lock.exclusive;
        }
        locks.retain(|lock| lock.waits);
        locks = files.into_values().chain(locks).collect();
        locks.truncate(OFFICE_LOCKS);
    }
    locks
}
