//! Session state: what clients keep on the server between calls, which no single call on a file system has (locks, opens).
//!
//! It stands beside the volume, one for all protocols, so that what one client holds is seen by every other, through
//! whatever protocol it came:
//!
//! - [`LockTable`]: byte-range locks and share reservations; [`OfficeLocks`]: those of a volume that several offices lock by turns;
//! - [`OpenFiles`]: who has which file open; an unlinked file stays until its last close;
//! - [`Changes`]: tells those who cache (a mount on this machine) what others changed, before the others are answered;
//!   [`AnnouncingVfs`] is the volume as a protocol sees it when there are such caches.
//!
//! Nothing here does I/O of its own, and every quantity is bounded.

mod announcing;
mod changes;
#[cfg(test)]
mod histories;
mod locks;
mod open_files;

pub use announcing::AnnouncingVfs;
pub use changes::{Change, ChangeKind, Changes, Delivery, Origin, WatchCounts, Watcher};
pub use locks::{
    BrokenLock, ByteRange, HeldLock, LockClient, LockCounts, LockError, LockHolder, LockLimits, LockOwner,
    LockProtocol, LockRequest, LockTable, LockWaiter, Locked, OFFICE_LOCKS, OFFICES, Office, OfficeLock,
    OfficeLocks, Reclaims, ShareMode,
};
pub use open_files::{OpenAccess, OpenCounts, OpenError, OpenFile, OpenFiles, OpenId, OpenLimits};
