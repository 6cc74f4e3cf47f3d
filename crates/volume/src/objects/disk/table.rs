//! The table of cached segments: what each one lies in and which of its ranges are there, in the order of their last use.

use crate::objects::ranges::RangeSet;
use firn_env::DiskFile;
use firn_format::SegmentId;
use std::{collections::BTreeMap, sync::Arc};

/// Files held open at a time: enough for all that is read at once, far below the usual limit of 1,024 descriptors.
const OPEN_FILES_MAX: usize = 128;

pub(super) struct CachedSegment {
    /// It lies in its pin: whole, counted with the pins, neither written nor evicted.
    pub(super) is_pinned: bool,
    pub(super) used_at: u64,
    /// What is known to be present.
    pub(super) ranges: RangeSet,
    /// Found at the start: more may be present than is known.
    pub(super) probe: bool,
    /// Counted against the capacity, unless it is pinned.
    pub(super) bytes: u64,
    pub(super) file: Option<Arc<dyn DiskFile>>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) segments: BTreeMap<SegmentId, CachedSegment>,
    /// What may be evicted, by time of last use.
    pub(super) order: BTreeMap<u64, SegmentId>,
    /// Those whose file is open, by time of last use.
    pub(super) open: BTreeMap<u64, SegmentId>,
    pub(super) uses: u64,
    pub(super) bytes: u64,
    pub(super) write_failures: u64,
    /// Written since the disk's free space was last looked at.
    pub(super) unlooked_bytes: u64,
    /// Evicted because the disk, not the cache, was full.
    pub(super) given_up_bytes: u64,
}

impl Table {
    pub(super) fn touch(&mut self, segment: SegmentId) {
        self.uses += 1;
        let now = self.uses;
        if let Some(cached) = self.segments.get_mut(&segment) {
            let before = std::mem::replace(&mut cached.used_at, now);
            if self.order.remove(&before).is_some() {
                self.order.insert(now, segment);
            }
            if self.open.remove(&before).is_some() {
                self.open.insert(now, segment);
            }
        }
    }

    pub(super) fn is_pinned(&self, segment: SegmentId) -> bool {
        let cached = self.segments.get(&segment);
        cached.is_some_and(|cached| cached.is_pinned)
    }

    /// A segment of this length that is pinned; `false` if there is something of it already.
    pub(super) fn insert_pinned(&mut self, segment: SegmentId, length: u32) -> bool {
        if self.segments.contains_key(&segment) {
            return false;
        }
        self.uses += 1;
        let mut ranges = RangeSet::default();
        ranges.insert(0..length);
        let pinned = CachedSegment {
            is_pinned: true,
            used_at: self.uses,
            ranges,
            probe: false,
            bytes: u64::from(length),
            file: None,
        };
        self.segments.insert(segment, pinned);
        true
    }

    /// What was pinned is the cache's now; `false` if it was forgotten.
    pub(super) fn unpin(&mut self, segment: SegmentId) -> bool {
        let cached = self.segments.get_mut(&segment);
        let Some(cached) = cached.filter(|cached| cached.is_pinned) else {
            return false;
        };
        cached.is_pinned = false;
        // Opened for reading only.
        cached.file = None;
        self.open.remove(&cached.used_at);
        self.bytes += cached.bytes;
        self.order.insert(cached.used_at, segment);
        true
    }

    /// The segment's entry, made if there is none.
    pub(super) fn entry(&mut self, segment: SegmentId) -> &mut CachedSegment {
        if !self.segments.contains_key(&segment) {
            self.uses += 1;
            self.order.insert(self.uses, segment);
        }
        let used_at = self.uses;
        self.segments.entry(segment).or_insert_with(|| CachedSegment {
            is_pinned: false,
            used_at,
            ranges: RangeSet::default(),
            probe: false,
            bytes: 0,
            file: None,
        })
    }

    pub(super) fn hold_open(&mut self, segment: SegmentId, file: Arc<dyn DiskFile>) {
        let Some(cached) = self.segments.get_mut(&segment) else {
            return;
        };
        cached.file = Some(file);
        self.open.insert(cached.used_at, segment);
        while self.open.len() > OPEN_FILES_MAX
            && let Some((_, oldest)) = self.open.pop_first()
        {
            if let Some(cached) = self.segments.get_mut(&oldest) {
                cached.file = None;
            }
        }
    }

    pub(super) fn forget(&mut self, segment: SegmentId) {
        if let Some(cached) = self.segments.remove(&segment) {
            self.open.remove(&cached.used_at);
            if self.order.remove(&cached.used_at).is_some() {
                self.bytes -= cached.bytes;
            }
        }
    }
}
