//! The meter of a node: requests and bytes that it served to disks' clients, by tenant and disk, until somebody takes them to the bill.
//!
//! A request counts when it was answered with success, to the holder of the disk's capability: what was refused, and what nodes copy from
//! each other, is nobody's. Counts are in memory: a node that dies loses those that were not taken, in the tenants' favour.

use firn_blockd_protocol::{DiskId, TenantId};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

/// Disks that are counted by themselves between two takings; what is beyond is added up under its tenant alone. A node holds some
/// thousand disks' tracts at most.
const DISKS_MAX: usize = 65_536;

/// What a client of a disk was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests.
    pub requests: u64,
    /// Bytes of blocks that were written or read by them.
    pub bytes: u64,
}

/// Whose disk; none: one of the tenant's that were too many.
pub type ServedDisk = (TenantId, Option<DiskId>);

/// Counts since they were last taken.
#[derive(Default)]
pub(crate) struct ServedCounts(Mutex<BTreeMap<ServedDisk, Served>>);

impl ServedCounts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServedDisk, Served>> {
        self.0.lock().expect("no panic under this lock")
    }

    pub(crate) fn add(&self, disk: ServedDisk, more: Served) {
        let mut counts = self.lock();
        let (tenant, _) = disk;
        let disk = match counts.len() {
            DISKS_MAX.. if !counts.contains_key(&disk) => (tenant, None),
            _ => disk,
        };
        let count = counts.entry(disk).or_default();
        count.requests = count.requests.saturating_add(more.requests);
        count.bytes = count.bytes.saturating_add(more.bytes);
    }

    pub(crate) fn take(&self) -> BTreeMap<ServedDisk, Served> {
        std::mem::take(&mut *self.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_counted_once_and_what_is_put_back_again() {
        let counts = ServedCounts::default();
        let disk = |number: u8| (TenantId([1; 16]), Some(DiskId([number; 16])));
        let one = Served {
            requests: 1,
            bytes: 4096,
        };
        for number in [7, 7, 8] {
            counts.add(disk(number), one);
        }
        let taken = counts.take();
        assert_eq!(taken[&disk(7)].requests, 2);
        assert_eq!(taken[&disk(8)], one);
        assert!(counts.take().is_empty());
        counts.add(disk(8), taken[&disk(8)]);
        assert_eq!(counts.take()[&disk(8)], one);
    }

    #[test]
    fn disks_beyond_the_bound_are_their_tenants() {
        let counts = ServedCounts::default();
        let one = Served {
            requests: 1,
            bytes: 1,
        };
        let tenant = TenantId([1; 16]);
        let disk = |number: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            (tenant, Some(DiskId(id)))
        };
        let most = u32::try_from(DISKS_MAX).expect("a number");
        for number in 0..most + 3 {
            counts.add(disk(number), one);
        }
        counts.add(disk(0), one);
        let taken = counts.take();
        assert_eq!(taken.len(), DISKS_MAX + 1);
        assert_eq!(
            (taken[&(tenant, None)].requests, taken[&disk(0)].requests),
            (3, 2)
        );
    }
}
