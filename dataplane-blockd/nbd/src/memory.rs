//! A device in memory: what the protocol is tested on, and a scratch disk.

use crate::device::{BlockDevice, DeviceError, Durability, Extent, Geometry, Piece};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

/// Storage is held in pages of this size; small enough that a hole shows, large enough that the map stays small.
const PAGE_BYTES: u64 = 64 << 10;

/// Bytes in memory; pages never written take no room.
pub struct MemoryDevice {
    size_bytes: AtomicU64,
    block_bytes: u32,
    read_only: bool,
    pages: Mutex<BTreeMap<u64, Box<[u8]>>>,
    flushes: AtomicU64,
}

impl MemoryDevice {
    /// An empty device that takes any offset and length.
    pub fn new(size_bytes: u64) -> Self {
        Self::with_block(size_bytes, 1)
    }

    /// An empty device of whole blocks.
    pub fn with_block(size_bytes: u64, block_bytes: u32) -> Self {
        assert!(block_bytes.is_power_of_two() && block_bytes <= 1 << 16);
        Self {
            size_bytes: AtomicU64::new(size_bytes),
            block_bytes,
            read_only: false,
            pages: Mutex::new(BTreeMap::new()),
            flushes: AtomicU64::new(0),
        }
    }

    /// The same device, refusing writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Makes it larger.
    pub fn grow(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::SeqCst);
    }

    /// Flushes and durable writes so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        self.pages.lock().expect("no panic under this lock")
    }

    fn clear(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        self.check_writable()?;
        let mut pages = self.pages();
        for (page, from, to) in split(offset, length) {
            if to - from == PAGE_BYTES as usize {
                pages.remove(&page);
            } else if let Some(bytes) = pages.get_mut(&page) {
                bytes[from..to].fill(0);
            }
        }
        self.count(durability);
        Ok(())
    }

    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.read_only {
            Err(DeviceError::ReadOnly)
        } else {
            Ok(())
        }
    }

    fn count(&self, durability: Durability) {
        if durability == Durability::Durable {
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A range as (page, from, to).
fn split(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        let from = offset.saturating_sub(start) as usize;
        (page, from, (end - start).min(PAGE_BYTES) as usize)
    })
}

#[async_trait]
impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes.load(Ordering::SeqCst),
            block_bytes: self.block_bytes,
            preferred_bytes: 4096.max(self.block_bytes),
            payload_bytes_max: 32 << 20,
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        let pages = self.pages();
        let mut pieces = Vec::new();
        for (page, from, to) in split(offset, length.into()) {
            match (pages.get(&page), pieces.last_mut()) {
                (Some(bytes), _) => pieces.push(Piece::Data(Bytes::copy_from_slice(&bytes[from..to]))),
                (None, Some(Piece::Zeroes(length))) => *length += (to - from) as u64,
                (None, _) => pieces.push(Piece::Zeroes((to - from) as u64)),
            }
        }
        Ok(pieces)
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        self.check_writable()?;
        let mut pages = self.pages();
        let mut rest = data.as_ref();
        for (page, from, to) in split(offset, data.len() as u64) {
            let (now, later) = rest.split_at(to - from);
            let bytes = pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE_BYTES as usize].into());
            bytes[from..to].copy_from_slice(now);
            rest = later;
        }
        self.count(durability);
        Ok(())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.count(Durability::Durable);
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        if allow_hole {
            return self.clear(offset, length, durability);
        }
        self.check_writable()?;
        let mut pages = self.pages();
        for (page, from, to) in split(offset, length) {
            let bytes = pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE_BYTES as usize].into());
            bytes[from..to].fill(0);
        }
        self.count(durability);
        Ok(())
    }

    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        allow_hole
    }

    async fn extents(
        &self,
        offset: u64,
        length: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let pages = self.pages();
        let mut extents: Vec<Extent> = Vec::new();
        for (page, from, to) in split(offset, length) {
            let hole = !pages.contains_key(&page);
            let length_bytes = (to - from) as u64;
            let full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length_bytes += length_bytes,
                _ if full => break,
                _ => extents.push(Extent {
                    length_bytes,
                    hole,
                    zero: hole,
                }),
            }
        }
        Ok(extents)
    }
}
