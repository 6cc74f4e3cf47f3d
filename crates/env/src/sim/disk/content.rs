//! The content of one simulated file: what programs read now, and what a crash may leave of it.
//!
//! Beside the current pages, every 512-byte sector written since the last successful sync keeps the contents it had
//! before, oldest (the durable one) first. A crash picks one of them for each sector; a sync forgets those older than
//! itself. The length is kept in the same way.

use super::image::{FileImage, PAGE_BYTES, Page, Survival, read_pages};
use crate::sim::seeded::Seeded;
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// The unit of loss: what disks promise to write whole.
pub(super) const SECTOR_BYTES: usize = 512;
const SECTORS_PER_PAGE: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;
/// Contents remembered per sector; the durable one is always among them.
const VERSIONS_MAX: usize = 4;

type Sector = [u8; SECTOR_BYTES];

/// A sector whose current content is not known to be durable.
#[derive(Clone)]
struct Dirty {
    /// Earlier contents with the sequence of the write that made them; the first is the durable one. `None` is zeros.
    older: Vec<(u64, Option<Box<Sector>>)>,
    /// The write that made the current content.
    last: u64,
    /// A sync of this content failed: the kernel thinks it clean, so that a later sync does not write it.
    abandoned: bool,
}

/// A file's content.
#[derive(Clone, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    length: u64,
    /// Pages below this were reserved by `allocate`.
    reserved_pages: u64,
    durable_length: u64,
    /// Lengths set since, with their sequences.
    lengths: Vec<(u64, u64)>,
    dirty: BTreeMap<u64, Dirty>,
}

impl Content {
    pub(super) fn from_image(image: &FileImage) -> Self {
        Self {
            pages: image.pages.clone(),
            length: image.length,
            durable_length: image.length,
            ..Self::default()
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Space it takes on the disk.
    pub(super) fn charged_bytes(&self) -> u64 {
        let beyond = self.pages.range(self.reserved_pages..).count() as u64;
        (self.reserved_pages + beyond) * PAGE_BYTES as u64
    }

    /// Space a write or reservation up to `end` would add.
    pub(super) fn needed_bytes(&self, offset: u64, end: u64) -> u64 {
        if end <= offset {
            return 0;
        }
        let first = (offset / PAGE_BYTES as u64).max(self.reserved_pages);
        let last = end.div_ceil(PAGE_BYTES as u64);
        if last <= first {
            return 0;
        }
        let present = self.pages.range(first..last).count() as u64;
        (last - first - present) * PAGE_BYTES as u64
    }

    pub(super) fn read(&self, offset: u64, length: usize) -> Bytes {
        let end = self.length.min(offset.saturating_add(length as u64));
        read_pages(&self.pages, offset, end)
    }

    pub(super) fn write(&mut self, mut offset: u64, parts: &[Bytes], sequence: u64) {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let within = (offset % PAGE_BYTES as u64) as usize;
                let count = rest.len().min(PAGE_BYTES - within);
                let number = offset / PAGE_BYTES as u64;
                self.remember(offset, count as u64, sequence);
                let page = self
                    .pages
                    .entry(number)
                    .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
                Arc::make_mut(page)[within..within + count].copy_from_slice(&rest[..count]);
                offset += count as u64;
                rest = &rest[count..];
            }
        }
        if offset > self.length {
            self.set_length(offset, sequence);
        }
    }

    pub(super) fn truncate(&mut self, length: u64, sequence: u64) {
        if length < self.length {
            let first = length / PAGE_BYTES as u64;
            let numbers: Vec<u64> = self.pages.range(first..).map(|(number, _)| *number).collect();
            for number in numbers {
                let page_start = number * PAGE_BYTES as u64;
                let from = length.max(page_start);
                self.remember(from, page_start + PAGE_BYTES as u64 - from, sequence);
                if from == page_start {
                    self.pages.remove(&number);
                } else if let Some(page) = self.pages.get_mut(&number) {
                    Arc::make_mut(page)[(from - page_start) as usize..].fill(0);
                }
            }
            self.reserved_pages = self.reserved_pages.min(length.div_ceil(PAGE_BYTES as u64));
        }
        self.set_length(length, sequence);
    }

    pub(super) fn allocate(&mut self, length: u64, sequence: u64) {
        self.reserved_pages = self.reserved_pages.max(length.div_ceil(PAGE_BYTES as u64));
        if length > self.length {
            self.set_length(length, sequence);
        }
    }

    /// Makes every write up to `sequence` durable.
    pub(super) fn sync(&mut self, sequence: u64) {
        self.dirty.retain(|_, dirty| {
            if dirty.abandoned {
                return true;
            }
            if dirty.last <= sequence {
                return false;
            }
            let keep = dirty.older.iter().rposition(|(written, _)| *written <= sequence);
            if let Some(keep) = keep {
                dirty.older.drain(..keep);
            }
            true
        });
        let done = self.lengths.partition_point(|(set, _)| *set <= sequence);
        if let Some((_, length)) = self.lengths.drain(..done).next_back() {
            self.durable_length = length;
        }
    }

    /// A sync of every write up to `sequence` failed.
    pub(super) fn abandon(&mut self, sequence: u64) {
        for dirty in self.dirty.values_mut() {
            if dirty.last <= sequence {
                dirty.abandoned = true;
            }
        }
    }

    /// Flips one bit, durably, as a decaying disk does.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        if let Some(page) = self.pages.get_mut(&(offset / PAGE_BYTES as u64)) {
            Arc::make_mut(page)[(offset % PAGE_BYTES as u64) as usize] ^= 1 << (bit % 8);
        }
    }

    /// What a crash leaves.
    pub(super) fn survivor(&self, survival: &Survival, random: &mut Seeded) -> FileImage {
        let mut pages = self.pages.clone();
        for (sector, dirty) in &self.dirty {
            let chosen = survival.choose(
                dirty.older.len(),
                |index| dirty.older[index].0,
                dirty.last,
                random,
            );
            let Some(index) = chosen else { continue };
            let number = sector / SECTORS_PER_PAGE;
            let within = (sector % SECTORS_PER_PAGE) as usize * SECTOR_BYTES;
            let old = dirty.older[index].1.as_deref().unwrap_or(&[0; SECTOR_BYTES]);
            let page = pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[within..within + SECTOR_BYTES].copy_from_slice(old);
        }
        let length = match self.lengths.split_last() {
            None => self.durable_length,
            Some((last, earlier)) => {
                let chosen = survival.choose(
                    earlier.len() + 1,
                    |index| index.checked_sub(1).map_or(0, |index| earlier[index].0),
                    last.0,
                    random,
                );
                match chosen {
                    None => last.1,
                    Some(0) => self.durable_length,
                    Some(index) => earlier[index - 1].1,
                }
            }
        };
        let end_page = length.div_ceil(PAGE_BYTES as u64);
        pages.split_off(&end_page);
        if let Some(page) = pages.get_mut(&(length / PAGE_BYTES as u64)) {
            Arc::make_mut(page)[(length % PAGE_BYTES as u64) as usize..].fill(0);
        }
        FileImage { pages, length }
    }

    fn set_length(&mut self, length: u64, sequence: u64) {
        if self.length != length {
            self.length = length;
            self.lengths.push((sequence, length));
            // A long unsynced append needs no more than a few of its lengths.
            if self.lengths.len() > 2 * VERSIONS_MAX {
                self.lengths.remove(VERSIONS_MAX);
            }
        }
    }

    /// Keeps the present content of the sectors of a range that is about to change.
    fn remember(&mut self, offset: u64, length: u64, sequence: u64) {
        let first = offset / SECTOR_BYTES as u64;
        let last = (offset + length - 1) / SECTOR_BYTES as u64;
        for sector in first..=last {
            let present = || {
                self.pages.get(&(sector / SECTORS_PER_PAGE)).map(|page| {
                    let within = (sector % SECTORS_PER_PAGE) as usize * SECTOR_BYTES;
                    let mut copy = Box::new([0; SECTOR_BYTES]);
                    copy.copy_from_slice(&page[within..within + SECTOR_BYTES]);
                    copy
                })
            };
            match self.dirty.get_mut(&sector) {
                None => {
                    let older = vec![(0, present())];
                    self.dirty.insert(
                        sector,
                        Dirty {
                            older,
                            last: sequence,
                            abandoned: false,
                        },
                    );
                }
                Some(dirty) if dirty.last == sequence => {}
                Some(dirty) => {
                    dirty.older.push((dirty.last, present()));
                    if dirty.older.len() > VERSIONS_MAX {
                        dirty.older.remove(1);
                    }
                    dirty.last = sequence;
                    dirty.abandoned = false;
                }
            }
        }
    }
}
