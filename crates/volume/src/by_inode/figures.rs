//! A member by inode, as status pages show it.

use super::locking::{ByInodeLocks, Locking};
use crate::volume::{Inner, Volume};
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// A moment of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByInodeStatus {
    /// Its number, for ever.
    pub member: u32,
    /// The writer of this start.
    pub incarnation: u64,
    /// The root in memory.
    pub version: u64,
    /// Whether its leases may be used: the anchor has heard it within 40 s.
    pub lease_holds: bool,
    /// Since the root was read for clients last; `None`: not yet.
    pub root_read_ago: Option<Duration>,
    /// How often that was.
    pub root_reads: u64,
    /// Leases that it holds beside its home, by the arenas as it saw them last.
    pub leases_held: u64,
    /// Of what it holds, that for which others wait.
    pub leases_wanted: u64,
    /// Changes that had to get a lease first, from the anchor or from another member.
    pub lease_waits: u64,
    /// How long they did, all together.
    pub waited: Duration,
    /// How long the longest did.
    pub longest_wait: Duration,
    /// About how much of what was changed here is in no root.
    pub unpublished_bytes: u64,
    /// How much may be: what the uplink takes in [`recall_within`](crate::VolumeConfig::recall_within).
    pub unpublished_limit_bytes: u64,
    /// What the uplink takes, as measured; 2 Mbit/s before anything was.
    pub uplink_bytes_per_second: u64,
    /// Changes that waited for it.
    pub uplink_waits: u64,
    /// Of a volume that was opened with a table of locks.
    pub locks: Option<ByInodeLocks>,
}

/// Waits for leases.
#[derive(Default)]
pub(super) struct LeaseWaits(Mutex<Waits>);

#[derive(Clone, Copy, Default)]
struct Waits {
    count: u64,
    waited: Duration,
    longest: Duration,
}

impl LeaseWaits {
    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().expect("no panic under this lock")
    }

    /// One took so long.
    pub fn note(&self, took: Duration) {
        let mut waits = self.lock();
        waits.count += 1;
        waits.waited += took;
        waits.longest = waits.longest.max(took);
    }
}

impl Volume {
    /// A moment of the member; `None` of a volume that is not shared by inode. Takes no request.
    pub fn by_inode_status(&self) -> Option<ByInodeStatus> {
        let inner: &Inner = &self.inner;
        let by_inode = inner.by_inode.as_ref()?;
        let member = by_inode.member();
        let waits = *by_inode.lease_waits.lock();
        let began = by_inode.root_reads.began();
        let (held, wanted) = member.lease_counts();
        Some(ByInodeStatus {
            member: member.number().0,
            incarnation: member.incarnation().0,
            version: by_inode.adopted_version(),
            lease_holds: member.is_valid(),
            root_read_ago: began.map(|began| inner.env.now().since(began)),
            root_reads: by_inode.root_reads.count(),
            leases_held: held as u64,
            leases_wanted: wanted as u64,
            lease_waits: waits.count,
            waited: waits.waited,
            longest_wait: waits.longest,
            unpublished_bytes: inner.lock().unpublished_bytes(),
            unpublished_limit_bytes: inner.unpublished_limit_bytes(),
            uplink_bytes_per_second: inner.checkpointer.packer.progress.uplink.bytes_per_second(),
            uplink_waits: by_inode.uplink_waits(),
            locks: by_inode.locking.get().map(Locking::figures),
        })
    }
}
