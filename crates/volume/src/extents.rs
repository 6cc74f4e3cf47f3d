//! Data written since the last checkpoint, by file range.
//!
//! An extent is a slice of one journal record. Its bytes are usually in memory; when dirty data outgrows its memory, the
//! oldest copies are dropped and read back from the journal, so memory is bounded by configuration, not by how far the
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

    /// Forgets the memory copy; returns how many bytes that frees.
    pub fn drop_memory(&self) -> u64 {
        let dropped = self.memory.lock().expect("no panic under this lock").take();
        dropped.map_or(0, |bytes| bytes.len() as u64)
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

    /// The extents that touch `from..to`, clipped to it, in order.
    pub fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, Extent)> {
        let mut found = Vec::new();
        if from >= to {
            return found;
        }
        let first = self
            .extents
            .range(..=from)
            .next_back()
            .map_or(from, |(start, _)| *start);
        for (&start, extent) in self.extents.range(first..to) {
            let end = start + extent.length;
            let (clipped_start, clipped_end) = (start.max(from), end.min(to));
            if clipped_start < clipped_end {
                let skip = extent.skip + (clipped_start - start) as usize;
                found.push((
                    clipped_start,
                    Extent {
                        length: clipped_end - clipped_start,
                        skip,
                        buffer: extent.buffer.clone(),
                    },
                ));
            }
        }
        found
    }
}
