//! [`LockTable`]: the byte-range locks and share reservations of all protocols, in one table.
//!
//! A lock belongs to an owner (protocol, client, and what the client calls the process) and covers a range of a file,
//! shared or exclusive, with POSIX rules: an owner's new lock replaces what it held in the range, a lock conflicts with
//! every overlapping lock of another owner unless both are shared.
//!
//! A request that has to wait gets a [`LockWaiter`], a future. Waiters of a file are served in the order of arrival: a later
//! request that could be granted still queues behind an earlier one it conflicts with, so that a stream of readers cannot
//! starve a writer. That order gives way where it alone would make owners wait for each other in a circle. A circle of locks
//! that are held is a deadlock, and the request that would close it is refused.
//!
//! After a restart the table is empty and the server gives its clients a grace period: [`LockTable::start_grace`] admits only
//! reclaims of earlier locks, [`LockTable::end_grace`] admits everything else. The table does no I/O; who the clients were
//! is remembered by the protocol (NSM).
//!
//! Of a file system that several offices change ([`offices`]) only the office that has the volume, or the lease of locks, grants, and what clients of the
//! others hold stands in the table under their offices' names.
//!
//! Every quantity is bounded ([`LockLimits`]); at a bound requests are refused with `TooMany`, unlocking always works.

mod offices;
mod segments;
mod served;
mod table;

pub use offices::{BrokenLock, OFFICE_LOCKS, OFFICES, Office, OfficeLock, OfficeLocks, Reclaims};

use bytes::Bytes;
use firn_vfs::FileHandle;
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};
use table::Table;
use tokio::sync::oneshot;

/// Through which protocol a client speaks; a client's name means something only within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockProtocol {
    /// NFSv3's network lock manager.
    Nlm,
    /// NFSv4.
    Nfs4,
    /// SMB.
    Smb,
    /// A mount on this machine.
    Local,
    /// Another office of a shared volume, with all of its clients.
    Office,
}

/// A client machine: what is released as a whole when it restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockClient {
    /// The protocol.
    pub protocol: LockProtocol,
    /// The client's name in it.
    pub name: Bytes,
}

/// A process (or open file) on a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner {
    /// The machine.
    pub client: LockClient,
    /// What the client calls the process; opaque.
    pub owner: Bytes,
}

/// Bytes of a file, from `first` to `last` inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// The last byte; `u64::MAX`: to the end, however far the file grows.
    pub last: u64,
}

impl ByteRange {
    /// The whole file.
    pub const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// `length_bytes` from `first` on; 0: to the end. `None` if the range would end beyond the largest offset.
    pub fn of_length(first: u64, length_bytes: u64) -> Option<Self> {
        let last = match length_bytes {
            0 => u64::MAX,
            some => first.checked_add(some - 1)?,
        };
        Some(Self { first, last })
    }

    /// The length, 0 for a range to the end: the reverse of [`of_length`](Self::of_length).
    pub fn length_bytes(self) -> u64 {
        if self.last == u64::MAX {
            0
        } else {
            self.last - self.first + 1
        }
    }

    /// Whether a byte is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A lock asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The file.
    pub file: FileHandle,
    /// For whom.
    pub owner: LockOwner,
    /// Which bytes.
    pub range: ByteRange,
    /// For writing; else shared, for reading.
    pub exclusive: bool,
}

/// A lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Whose it is.
    pub owner: LockOwner,
    /// Which bytes.
    pub range: ByteRange,
    /// For writing.
    pub exclusive: bool,
}

/// A lock or a share reservation, as administrators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The file.
    pub file: FileHandle,
    /// Whose it is, and which bytes; of a reservation all, exclusive if it denies anything to others.
    pub holder: LockHolder,
    /// What it reserves, if it is a reservation.
    pub share: Option<ShareMode>,
    /// Requests that wait for locks of this file, whoever is in their way.
    pub waiting: usize,
}

/// Why a lock was not given. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another owner holds a lock that conflicts.
    #[error("conflicts with a lock of another owner")]
    Conflict(Box<LockHolder>),
    /// Only reclaims are served until the grace period ends.
    #[error("the server restarted and waits for its clients to reclaim their locks")]
    Grace,
    /// A reclaim after the grace period: the lock may have been given to another in between.
    #[error("the time to reclaim locks is over")]
    GraceOver,
    /// Waiting would close this circle of owners who each wait for a lock of the next.
    #[error("{} owners would wait for each other for ever", .circle.len())]
    Deadlock {
        /// Each waits for the next, the last for the first; the first is who asked.
        circle: Vec<LockOwner>,
    },
    /// A limit of the table or of the client is reached.
    #[error("too many locks")]
    TooMany,
    /// Another office grants locks of this file system at the moment: to be asked again, until this one does.
    #[error("another office decides about locks of the volume, and gives that")]
    Away,
    /// The waiting was ended by [`LockTable::cancel`] or by the release of its client.
    #[error("the request was cancelled")]
    Cancelled,
}

/// What a blocking request got.
#[derive(Debug)]
pub enum Locked {
    /// The lock.
    Now,
    /// A place in the queue. Dropping the waiter leaves the queue (or gives back the lock).
    Later(LockWaiter),
    /// The very same request is waiting already (a retransmission); its waiter stays the only one.
    AlreadyWaiting,
}

/// What a share reservation allows its owner and denies to others (DOS sharing, NLM SHARE and SMB open).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ShareMode {
    /// Its owner reads.
    pub read: bool,
    /// Its owner writes.
    pub write: bool,
    /// Nobody else may read.
    pub deny_read: bool,
    /// Nobody else may write.
    pub deny_write: bool,
}

impl ShareMode {
    fn conflicts_with(self, other: Self) -> bool {
        self.read && other.deny_read
            || self.write && other.deny_write
            || self.deny_read && other.read
            || self.deny_write && other.write
    }
}

/// Bounds of a [`LockTable`].
#[derive(Clone, Copy, Debug)]
pub struct LockLimits {
    /// Locked ranges and shares in all. At some 200 bytes each the default stays under 32 MiB.
    pub locks: usize,
    /// Locked ranges and shares of one client.
    pub locks_per_client: usize,
    /// Waiting requests in all.
    pub waiters: usize,
    /// Waiting requests of one client.
    pub waiters_per_client: usize,
    /// Waiting requests for one file: each release looks at all of them.
    pub waiters_per_file: usize,
}

impl Default for LockLimits {
    fn default() -> Self {
        Self {
            locks: 131_072,
            locks_per_client: 65_536,
            waiters: 16_384,
            waiters_per_client: 4096,
            waiters_per_file: 1024,
        }
    }
}

/// Counts for the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LockCounts {
    /// Locked ranges and shares.
    pub locks: usize,
    /// Waiting requests.
    pub waiters: usize,
    /// Clients that hold something.
    pub clients: usize,
}

/// The table; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct LockTable {
    table: Arc<Mutex<Table>>,
}

impl LockTable {
    /// An empty table, outside any grace period.
    pub fn new(limits: LockLimits) -> Self {
        Self {
            table: Arc::new(Mutex::new(Table::new(limits))),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic under this lock")
    }

    /// From now on only reclaims are served.
    pub fn start_grace(&self) {
        self.table().in_grace = true;
    }

    /// From now on everything but reclaims is served, who waits already first.
    pub fn end_grace(&self) {
        let mut table = self.table();
        table.in_grace = false;
        let waits = table.files_with_waiters();
        table.serve(waits);
    }

    /// Whether only reclaims are served.
    pub fn in_grace(&self) -> bool {
        self.table().in_grace
    }

    /// Finds out whether the lock could be had now, without taking it.
    ///
    /// # Errors
    /// `Conflict` with the lock in the way; `Grace`, `Away`.
    pub fn test(&self, request: &LockRequest) -> Result<(), LockError> {
        self.table().test(request)
    }

    /// Takes the lock if it can be had now. Waiting requests of others do not count against it, since POSIX lets a
    /// non-blocking request fail only for a lock that is held.
    ///
    /// # Errors
    /// `Conflict`, `Grace`, `TooMany`, `Away`.
    pub fn lock(&self, request: &LockRequest) -> Result<(), LockError> {
        self.table().lock(request)
    }

    /// Takes the lock again that the client held before the server restarted.
    ///
    /// # Errors
    /// `GraceOver`, `Conflict` (two clients claim the same), `TooMany`, `Away`.
    pub fn reclaim(&self, request: &LockRequest) -> Result<(), LockError> {
        self.table().reclaim(request)
    }

    /// Takes the lock, or a place in the queue for it.
    ///
    /// # Errors
    /// `Deadlock`, `Grace`, `TooMany`.
    pub fn lock_or_wait(&self, request: &LockRequest) -> Result<Locked, LockError> {
        let (sender, granted) = oneshot::channel();
        let place = self.table().lock_or_wait(request, sender)?;
        Ok(match place {
            table::Place::Granted => Locked::Now,
            table::Place::AlreadyWaiting => Locked::AlreadyWaiting,
            table::Place::Queued(number) => Locked::Later(LockWaiter {
                table: self.clone(),
                request: request.clone(),
                number,
                granted,
                done: false,
            }),
        })
    }

    /// Ends the waiting of exactly this request; false if it does not wait (any more).
    pub fn cancel(&self, request: &LockRequest) -> bool {
        self.table().cancel(request)
    }

    /// Whether exactly this request waits.
    pub fn is_waiting(&self, request: &LockRequest) -> bool {
        self.table().is_waiting(request)
    }

    /// Unlocks what `owner` holds of `range`, and serves those who waited for it. Works for files that are gone, too.
    pub fn unlock(&self, file: FileHandle, owner: &LockOwner, range: ByteRange) {
        self.table().unlock(file, owner, range);
    }

    /// Reserves `file` for `mode`, or changes the reservation that `owner` has.
    ///
    /// # Errors
    /// `Conflict` with the reservation in the way (its range is the whole file); `Grace`, `TooMany`.
    pub fn share(&self, file: FileHandle, owner: &LockOwner, mode: ShareMode) -> Result<(), LockError> {
        self.table().share(file, owner, mode, false)
    }

    /// Reserves again what was reserved before the server restarted.
    ///
    /// # Errors
    /// `GraceOver`, `Conflict`, `TooMany`.
    pub fn reclaim_share(
        &self,
        file: FileHandle,
        owner: &LockOwner,
        mode: ShareMode,
    ) -> Result<(), LockError> {
        self.table().share(file, owner, mode, true)
    }

    /// Ends the reservation `owner` has on `file`; false if it has none.
    pub fn unshare(&self, file: FileHandle, owner: &LockOwner) -> bool {
        self.table().unshare(file, owner)
    }

    /// Releases everything a client holds, reserved or waits for: it restarted or left.
    pub fn release_client(&self, client: &LockClient) {
        self.table().release_client(client);
    }

    /// Whether the client holds, has reserved or waits for anything.
    pub fn is_used_by(&self, client: &LockClient) -> bool {
        self.table().is_used_by(client)
    }

    /// The locks held in a file, by owner and position.
    pub fn holders(&self, file: FileHandle) -> Vec<LockHolder> {
        self.table().holders(file)
    }

    /// Locks and reservations in files of `file_system`, by file and owner: the first `limit` of them, and how many there are.
    pub fn held_in(&self, file_system: u64, limit: usize) -> (Vec<HeldLock>, usize) {
        self.table().held_in(file_system, limit)
    }

    /// Takes away what `client` holds and has reserved in a file, and serves those who wait for it. Who held it is not told.
    /// Gives the owners.
    pub fn break_locks(&self, file: FileHandle, client: &LockClient) -> Vec<LockOwner> {
        self.table().break_locks(file, client)
    }

    /// Counts.
    pub fn counts(&self) -> LockCounts {
        self.table().counts()
    }

    /// Locked ranges and shares of the clients of one protocol.
    pub fn held_by(&self, protocol: LockProtocol) -> usize {
        self.table().held_by(protocol)
    }
}

/// A place in the queue for a lock; awaiting it gives the lock, or says why not ([`LockError::Cancelled`]).
///
/// Dropped before that, it leaves the queue; if the lock was granted meanwhile, its range is unlocked.
pub struct LockWaiter {
    table: LockTable,
    request: LockRequest,
    number: u64,
    granted: oneshot::Receiver<()>,
    done: bool,
}

impl LockWaiter {
    /// What is waited for.
    pub fn request(&self) -> &LockRequest {
        &self.request
    }
}

impl std::fmt::Debug for LockWaiter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LockWaiter")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

impl Future for LockWaiter {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.granted).poll(context).map(|result| {
            self.done = true;
            result.map_err(|_| LockError::Cancelled)
        })
    }
}

impl Drop for LockWaiter {
    fn drop(&mut self) {
        if !self.done {
            let granted = || self.granted.try_recv().is_ok();
            self.table.table().abandon(self.number, &self.request, granted);
        }
    }
}

#[cfg(test)]
mod tests;
