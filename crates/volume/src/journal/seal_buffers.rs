//! Memory in which large batches are sealed and from which they are written: used again, and placed so that the disk can take it as it
//! is.
//!
//! A buffer of mebibytes that is allocated for each batch is faulted in, page by page, as it is filled. And what is written past the
//! page cache has to be aligned in memory as in the file ([`firn_env::DiskFile::write_uncached_at`]): records are not, so the
//! first of a batch begins as far behind a page as its place in the file does.

use bytes::{Bytes, BytesMut};
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// What the disk wants offsets and addresses to be a multiple of.
const PAGE_BYTES: usize = 4096;

/// Smaller batches are not worth it.
const LEAST_BYTES: usize = 64 << 10;

/// What a buffer has at least: a batch and its last record as a rule, so that one fits all.
const BUFFER_BYTES: usize = 5 << 20;

/// Kept for all journals of this process: one is written while the next is sealed.
const KEPT: usize = 2;

static BUFFERS: Mutex<Vec<BytesMut>> = Mutex::new(Vec::new());

/// A kept buffer that is large enough, or a new one. All of its memory has a content, so that nothing has to be cleared before it is
/// sealed into.
fn take(kept: &mut Vec<BytesMut>, needed: usize) -> BytesMut {
    match kept.iter().position(|buffer| buffer.len() >= needed) {
        Some(found) => kept.swap_remove(found),
        None => BytesMut::zeroed(needed.max(BUFFER_BYTES)),
    }
}

/// Keeps a buffer, unless there are enough or it is much larger than others.
fn give_back(kept: &mut Vec<BytesMut>, bytes: BytesMut) {
    if kept.len() < KEPT && bytes.len() <= 2 * BUFFER_BYTES {
        kept.push(bytes);
    }
}

/// Memory for one batch.
pub(super) struct SealBuffer {
    bytes: BytesMut,
    /// Before the batch, so that it is aligned as in the file.
    padding: usize,
    /// Where the batch ends, as far as it is sealed.
    end: usize,
}

impl SealBuffer {
    /// For a batch of so many bytes, at `offset` of its file.
    pub(super) fn new(batch_bytes: usize, offset: u64) -> Self {
        if batch_bytes < LEAST_BYTES {
            return Self {
                bytes: BytesMut::zeroed(batch_bytes),
                padding: 0,
                end: 0,
            };
        }
        let needed = batch_bytes + 2 * PAGE_BYTES;
        let bytes = take(
            &mut BUFFERS.lock().unwrap_or_else(PoisonError::into_inner),
            needed,
        );
        let page_start = bytes.as_ptr().align_offset(PAGE_BYTES);
        let padding = page_start + (offset % PAGE_BYTES as u64) as usize;
        Self {
            bytes,
            padding,
            end: padding,
        }
    }

    /// Room for what is appended to the batch; its content is anything.
    ///
    /// # Panics
    /// If the batch becomes larger than was said.
    pub(super) fn room(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.end;
        self.end += bytes;
        &mut self.bytes[start..self.end]
    }

    /// The batch as it is written.
    pub(super) fn freeze(self) -> SealedBatch {
        SealedBatch {
            whole: self.bytes.freeze(),
            batch: self.padding..self.end,
        }
    }
}

/// One sealed batch; its memory is used again once it is dropped.
pub(super) struct SealedBatch {
    whole: Bytes,
    batch: Range<usize>,
}

impl SealedBatch {
    pub(super) fn bytes(&self) -> Bytes {
        self.whole.slice(self.batch.clone())
    }
}

impl Drop for SealedBatch {
    fn drop(&mut self) {
        if self.whole.len() < LEAST_BYTES {
            return;
        }
        // Unless a write that nobody waits for any more still has it.
        if let Ok(bytes) = std::mem::take(&mut self.whole).try_into_mut() {
            give_back(&mut BUFFERS.lock().unwrap_or_else(PoisonError::into_inner), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_BYTES, KEPT, LEAST_BYTES, PAGE_BYTES, SealBuffer, give_back, take};
    use bytes::BytesMut;

    fn sealed(bytes: usize, offset: u64) -> super::SealedBatch {
        let mut buffer = SealBuffer::new(bytes, offset);
        buffer.room(bytes).fill(7);
        buffer.freeze()
    }

    #[test]
    fn a_large_batch_lies_in_memory_as_in_its_file() {
        for (bytes, offset) in [
            (LEAST_BYTES, 0),
            (LEAST_BYTES + 1, 84),
            (6 << 20, 4095),
            (1 << 20, 4096),
        ] {
            let batch = sealed(bytes, offset);
            let address = batch.bytes().as_ptr() as u64;
            assert_eq!((address - offset) % PAGE_BYTES as u64, 0, "{bytes} at {offset}");
            assert_eq!(batch.bytes(), vec![7; bytes]);
        }
        assert_eq!(sealed(100, 84).bytes().len(), 100);
    }

    #[test]
    fn what_a_write_under_way_still_has_is_not_used_again() {
        let first = sealed(1 << 20, 1);
        let held = first.bytes();
        drop(first);
        let again = sealed(1 << 20, 1);
        assert_ne!(again.bytes().as_ptr(), held.as_ptr());
        assert_eq!(held, vec![7; 1 << 20]);
    }

    #[test]
    fn memory_is_used_again_and_no_more_is_kept_than_is_written_at_a_time() {
        let mut kept = Vec::new();
        let first = take(&mut kept, 1 << 20);
        let place = first.as_ptr();
        // As a batch leaves it: frozen, written and taken back.
        let first = first.freeze().try_into_mut().unwrap();
        give_back(&mut kept, first);
        let again = take(&mut kept, BUFFER_BYTES);
        assert_eq!((again.as_ptr(), kept.len()), (place, 0));
        assert!(take(&mut kept, 2 * BUFFER_BYTES).len() >= 2 * BUFFER_BYTES);
        for _ in 0..KEPT + 2 {
            give_back(&mut kept, BytesMut::zeroed(BUFFER_BYTES));
        }
        assert_eq!(kept.len(), KEPT);
        kept.clear();
        give_back(&mut kept, BytesMut::zeroed(4 * BUFFER_BYTES));
        assert!(kept.is_empty());
    }
}
