//! The bytes of a sparse file: pages that hold data, and holes that hold nothing.

use crate::SeekTo;
use bytes::{Bytes, BytesMut};
use std::{collections::BTreeMap, sync::Arc};

/// The unit of allocation. Small, so that tests see holes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Shared pages: a copy of a file costs a pointer per page.
#[derive(Clone, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
    size_bytes: u64,
}

impl Content {
    pub(super) fn hole(size_bytes: u64) -> Self {
        Self {
            pages: BTreeMap::new(),
            size_bytes,
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// What writing `length` bytes at `offset` adds to [`used_bytes`](Self::used_bytes).
    pub(super) fn used_bytes_added(&self, offset: u64, length: u64) -> u64 {
        if length == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE_BYTES, (offset + length - 1) / PAGE_BYTES);
        let present = self.pages.range(first..=last).count() as u64;
        (last - first + 1 - present) * PAGE_BYTES
    }

    pub(super) fn read(&self, offset: u64, length: u64) -> Bytes {
        let end = offset.saturating_add(length).min(self.size_bytes);
        let mut bytes = BytesMut::new();
        let mut position = offset;
        while position < end {
            let within = (position % PAGE_BYTES) as usize;
            let part = (PAGE_BYTES - position % PAGE_BYTES).min(end - position) as usize;
            match self.pages.get(&(position / PAGE_BYTES)) {
                Some(page) => bytes.extend_from_slice(&page[within..within + part]),
                None => bytes.resize(bytes.len() + part, 0),
            }
            position += part as u64;
        }
        bytes.freeze()
    }

    /// Holes are whatever reads as zeros.
    pub(super) fn seek(&self, offset: u64, to: SeekTo) -> Option<u64> {
        let mut at = offset;
        while at < self.size_bytes {
            let index = at / PAGE_BYTES;
            let Some(page) = self.pages.get(&index) else {
                match to {
                    SeekTo::Hole => return Some(at),
                    SeekTo::Data => {
                        let (next, _) = self.pages.range(index..).next()?;
                        at = next * PAGE_BYTES;
                        continue;
                    }
                }
            };
            let within = (at % PAGE_BYTES) as usize;
            let is_wanted = |byte: &u8| (*byte == 0) == (to == SeekTo::Hole);
            if let Some(found) = page[within..].iter().position(is_wanted) {
                at += found as u64;
                break;
            }
            at = (index + 1) * PAGE_BYTES;
        }
        match to {
            SeekTo::Data => (at < self.size_bytes).then_some(at),
            SeekTo::Hole => (offset < self.size_bytes).then_some(at.min(self.size_bytes)),
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut position = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (position % PAGE_BYTES) as usize;
            let part = rest.len().min(PAGE_BYTES as usize - within);
            let page = self
                .pages
                .entry(position / PAGE_BYTES)
                .or_insert_with(|| Arc::new(vec![0; PAGE_BYTES as usize]));
            Arc::make_mut(page)[within..within + part].copy_from_slice(&rest[..part]);
            position += part as u64;
            rest = &rest[part..];
        }
        self.size_bytes = self.size_bytes.max(position);
    }

    pub(super) fn resize(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.pages.split_off(&size_bytes.div_ceil(PAGE_BYTES));
            if let Some(page) = self.pages.get_mut(&(size_bytes / PAGE_BYTES)) {
                Arc::make_mut(page)[(size_bytes % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sparse_file_reads_as_the_flat_array_it_stands_for(
            changes in prop::collection::vec((0_u64..20_000, prop::option::of(prop::collection::vec(1_u8.., 0..9000))), 0..20),
            offset in 0_u64..30_000,
            length in 0_u64..30_000,
        ) {
            let mut content = Content::default();
            let mut flat: Vec<u8> = Vec::new();
            for (at, data) in changes {
                match data {
                    Some(data) => {
                        content.write(at, &data);
                        if !data.is_empty() {
                            let end = at as usize + data.len();
                            flat.resize(flat.len().max(end), 0);
                            flat[at as usize..end].copy_from_slice(&data);
                        }
                    }
                    None => {
                        content.resize(at);
                        flat.resize(at as usize, 0);
                    }
                }
            }
            prop_assert_eq!(content.size_bytes(), flat.len() as u64);
            let start = flat.len().min(offset as usize);
            let end = flat.len().min((offset + length) as usize);
            prop_assert_eq!(&content.read(offset, length)[..], &flat[start..end]);
        }
    }
}
