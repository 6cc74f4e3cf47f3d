//! Usage changes of one checkpoint: live bytes that it adds to segments and takes from them.

use firn_format::{
    INODE_MAP, Location, MANIFEST, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot, USAGE_MAP, UsageLeaf,
};
use std::collections::BTreeMap;

/// Segments whose changes wait in memory (1 MB); those that changed least are forgotten first.
const WAITING_MAX: usize = 16_384;

/// Dropped maps that wait to be read.
const DROPPED_MAX: usize = 4096;

/// Places released by the latest commits that are remembered (700 KB), for a proposal whose base is older.
pub(super) const RELEASED_MAX: usize = 16_384;

/// Part of a tree that the head no longer has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    pub(super) place: Place,
    pub(super) pointer: Pointer,
}

/// What a checkpoint adds to segments and takes from them.
#[derive(Clone, Debug, Default)]
pub struct UsageChanges {
    pub(super) bytes: BTreeMap<SegmentId, i64>,
    pub(super) released: Vec<Location>,
    pub(super) dropped: Vec<Dropped>,
}

impl UsageChanges {
    pub(super) fn change(&mut self, segment: SegmentId, bytes: i64) {
        let sum = self.bytes.entry(segment).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// The head has an object here.
    pub fn add(&mut self, place: Place, location: Location) {
        if UsageLeaf::counts(place) {
            self.change(location.segment, i64::from(location.length));
        }
    }

    /// The head no longer has this object here; what is below it is not meant.
    pub fn release(&mut self, place: Place, location: Location) {
        if UsageLeaf::counts(place) {
            self.change(location.segment, -i64::from(location.length));
            if self.released.len() < RELEASED_MAX {
                self.released.push(location);
            }
        }
    }

    /// The head no longer has this node (or inode) nor anything below it.
    pub fn release_below(&mut self, place: Place, pointer: Pointer) {
        if matches!(place.inode, USAGE_MAP | MANIFEST) {
            return;
        }
        if place.level == 0 && !matches!(place.inode, INODE_MAP | ORPHAN_MAP) {
            self.release(place, pointer.location);
        } else if self.dropped.len() < DROPPED_MAX {
            self.dropped.push(Dropped { place, pointer });
        }
    }

    /// The head no longer has the map of a file in which `used_bytes` were.
    pub fn release_map(&mut self, inode: u64, root: &TreeRoot, used_bytes: u64) {
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        if self.dropped.len() < DROPPED_MAX || root.level > 1 {
            self.dropped.push(Dropped {
                place,
                pointer: root.pointer,
            });
        } else {
            // Small files are packed with their maps.
            let bytes = i64::try_from(used_bytes).unwrap_or(i64::MAX);
            self.release(place, root.pointer.location);
            self.change(root.pointer.location.segment, -bytes);
        }
    }

    /// Takes over what `other` noted.
    pub fn absorb(&mut self, other: Self) {
        for (segment, bytes) in other.bytes {
            self.change(segment, bytes);
        }
        let room = RELEASED_MAX.saturating_sub(self.released.len());
        self.released.extend(other.released.into_iter().take(room));
        let room = DROPPED_MAX.saturating_sub(self.dropped.len());
        self.dropped.extend(other.dropped.into_iter().take(room));
    }

    /// Forgets the smallest changes beyond what may wait.
    pub(super) fn forget_smallest(&mut self) {
        if self.bytes.len() <= WAITING_MAX {
            return;
        }
        let mut sizes: Vec<u64> = self.bytes.values().map(|bytes| bytes.unsigned_abs()).collect();
        let at = sizes.len() - WAITING_MAX / 2;
        let (_, smallest_kept, _) = sizes.select_nth_unstable(at);
        let smallest_kept = *smallest_kept;
        self.bytes
            .retain(|_, bytes| bytes.unsigned_abs() >= smallest_kept);
        while self.bytes.len() > WAITING_MAX {
            self.bytes.pop_first();
        }
    }
}
