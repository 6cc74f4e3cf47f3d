//! Data written since the last checkpoint, by file range.
//!
//! An extent is a slice of one journal record. Its bytes are usually in memory; when dirty data outgrows its memory, the
//! newest copies are dropped and read back from the journal, so memory is bounded by configuration, not by how far the
//! cloud has fallen behind.

use crate::journal::RecordRef;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// The data of one write: in memory, in the journal, or both.
pub struct WriteBuffer {
    memory: Mutex<Option<Bytes>>,
    /// Where in the record's payload the data starts.
    pub payload_offset: usize,
    pub length: usize,
    pub record: RecordRef,
}

impl WriteBuffer {
    pub fn new(data: Bytes, payload_offset: usize, record: RecordRef) -> Arc<Self> {
        Arc::new(Self {
            length: data.len(),
            memory: Mutex::new(Some(data)),
            payload_offset,
            record,
        })
    }

    /// A buffer whose bytes are only in the journal, as after a restart.
    pub fn on_disk(length: usize, payload_offset: usize, record: RecordRef) -> Arc<Self> {
        Arc::new(Self {
            length,
            memory: Mutex::new(None),
            payload_offset,
            record,
        })
    }

    pub fn bytes(&self) -> Option<Bytes> {
        self.memory.lock().expect("no panic under this lock").clone()
    }

    /// Whether the bytes are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.memory.lock().expect("no panic under this lock").is_some()
    }

    /// Forgets the memory copy; from here on the bytes are only in the journal.
    pub fn drop_memory(&self) {
        self.memory.lock().expect("no panic under this lock").take();
    }
}

/// A slice of a [`WriteBuffer`].
#[derive(Clone)]
pub struct Extent {
    pub length: u64,
    /// Where in the buffer's data it starts.
    pub skip: usize,
    pub buffer: Arc<WriteBuffer>,
}

/// Extents of one file: disjoint, by start offset.
#[derive(Clone, Default)]
pub struct ExtentMap {
    extents: BTreeMap<u64, Extent>,
    bytes: u64,
}

impl ExtentMap {
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes covered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Extent)> {
        self.extents.iter().map(|(start, extent)| (*start, extent))
    }

    /// Covers `start..start + extent.length` with `extent`, replacing what was there.
    pub fn insert(&mut self, start: u64, extent: Extent) {
        assert!(extent.length > 0, "an empty write makes no extent");
        self.remove(start, start + extent.length);
        self.bytes += extent.length;
        self.extents.insert(start, extent);
    }

    /// Uncovers `from..to`.
    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        if let Some((&start, extent)) = self.extents.range(..from).next_back()
            && start + extent.length > from
        {
            let end = start + extent.length;
            let extent = extent.clone();
            let kept = Extent {
                length: from - start,
                ..extent.clone()
            };
            self.extents.insert(start, kept);
            self.bytes -= end - from;
            if end > to {
                let tail = Extent {
                    length: end - to,
                    skip: extent.skip + (to - start) as usize,
                    buffer: extent.buffer,
                };
                self.bytes += tail.length;
                self.extents.insert(to, tail);
                return;
            }
        }
        while let Some((&start, extent)) = self.extents.range(from..to).next() {
            let end = start + extent.length;
            let extent = self.extents.remove(&start).expect("just found");
            self.bytes -= extent.length;
            if end > to {
                let skip = extent.skip + (to - start) as usize;
                self.bytes += end - to;
                self.extents.insert(
                    to,
                    Extent {
                        length: end - to,
                        skip,
                        buffer: extent.buffer,
                    },
                );
            }
        }
    }

    /// The extents that touch `from..to`, as they are, in order.
    pub fn touching(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Extent)> {
        let first = self
            .extents
            .range(..=from)
            .next_back()
            .map_or(from, |(start, _)| *start);
        self.extents
            .range(first.min(to)..to)
            .map(|(start, extent)| (*start, extent))
            .filter(move |(start, extent)| start + extent.length > from)
    }

    /// The extents that touch `from..to`, clipped to it, in order.
    pub fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, Extent)> {
        if from >= to {
            return Vec::new();
        }
        let clipped = |(start, extent): (u64, &Extent)| {
            let (clipped_start, clipped_end) = (start.max(from), (start + extent.length).min(to));
            let clipped = Extent {
                length: clipped_end - clipped_start,
                skip: extent.skip + (clipped_start - start) as usize,
                buffer: extent.buffer.clone(),
            };
            (clipped_start, clipped)
        };
        self.touching(from, to).map(clipped).collect()
    }
}
