//! The sealed bytes fetched last, still in memory: what was fetched together is mostly asked for together, and the trip to
//! the disk cache is saved. Nothing here is verified.

use bytes::Bytes;
use firn_format::{Location, SegmentId};
use std::{collections::VecDeque, ops::Range};

/// Bounds the walk through the list.
const WINDOWS_MAX: usize = 64;

/// Fetched ranges, the newest first.
pub(super) struct Windows {
    windows: VecDeque<(SegmentId, u32, Bytes)>,
    bytes: usize,
    capacity_bytes: usize,
}

impl Windows {
    pub(super) fn new(capacity_bytes: usize) -> Self {
        Self {
            windows: VecDeque::new(),
            bytes: 0,
            capacity_bytes,
        }
    }

    pub(super) fn get(&self, location: &Location) -> Option<Bytes> {
        self.windows
            .iter()
            .filter(|(segment, ..)| *segment == location.segment)
            .find_map(|(_, offset, bytes)| slice_of(*offset, bytes, location))
    }

    pub(super) fn insert(&mut self, segment: SegmentId, offset: u32, bytes: Bytes) {
        if bytes.len() > self.capacity_bytes {
            return;
        }
        self.bytes += bytes.len();
        self.windows.push_front((segment, offset, bytes));
        while self.bytes > self.capacity_bytes || self.windows.len() > WINDOWS_MAX {
            match self.windows.pop_back() {
                Some((_, _, bytes)) => self.bytes -= bytes.len(),
                None => break,
            }
        }
    }

    /// The ranges of a segment that are here.
    pub(super) fn ranges(&self, segment: SegmentId) -> impl Iterator<Item = Range<u32>> {
        self.windows
            .iter()
            .filter(move |(held, ..)| *held == segment)
            .map(|(_, offset, bytes)| *offset..offset.saturating_add(bytes.len() as u32))
    }

    pub(super) fn clear(&mut self) {
        self.windows.clear();
        self.bytes = 0;
    }
}

/// The object at `location`, if it lies wholly within `bytes`, which were read at `offset` of its segment.
pub(super) fn slice_of(offset: u32, bytes: &Bytes, location: &Location) -> Option<Bytes> {
    let start = location.offset.checked_sub(offset)? as usize;
    let end = start.checked_add(location.length as usize)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}
