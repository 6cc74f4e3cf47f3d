//! Zeros written ahead of small batches, so that the syncs after them need not wait for the file system's own journal.
//!
//! A preallocated file is made of *unwritten* extents on ext4, XFS and others: the first write to each block also changes
//! the file's extent tree, and a sync must commit that change to the file system's journal, two or three more writes and a
//! flush. A block that holds written zeros has no such change left to make, and its sync is one write and one flush: about
//! half the time. So a small batch that is synced takes zeros along for those that will follow it. What is read behind the
//! last record is no record either way: the format does not know of this.
//!
//! A stretch is long enough to go past the page cache, and what is written of a page that the kernel does not have in memory is written
//! only after the rest of it was read: a second trip to the device. So a small batch that needs no stretch takes zeros up to the end of its
//! page. A file that is used again has no unwritten blocks: there that is all.
//!
//! The stretch begins small and doubles while small batches use it up; a batch that is large, and pays for its own extents
//! easily, starts it anew. No more zeros are written than records that profit from them, but for the last stretch.

use bytes::Bytes;
use firn_format::JOURNAL_HEADER_BYTES;

/// Batches above this size take the change of the extent tree along: their own bytes take longer.
const SMALL_BYTES: u64 = 128 << 10;

/// The first stretch of zeros.
const STRETCH_BYTES_MIN: u64 = 64 << 10;

/// No stretch is longer: about a millisecond of a disk's time, once for hundreds of small batches.
const STRETCH_BYTES_MAX: u64 = 1 << 20;

/// Whole stretches are made of pieces of one page of constant zeros each.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// What the kernel reads and writes at a time.
const PAGE_BYTES: u64 = 4096;

/// Where zeros stand in the file written to, and how many to write next.
pub(super) struct ZeroAhead {
    file_bytes: u64,
    is_recycled: bool,
    /// All before it needs no change of the extent tree.
    until: u64,
    stretch_bytes: u64,
}

impl ZeroAhead {
    /// For files of `file_bytes`. Small files, as simulations have them, get stretches in proportion.
    pub(super) fn new(file_bytes: u64, is_recycled: bool) -> Self {
        let mut ahead = Self {
            file_bytes,
            is_recycled,
            until: 0,
            stretch_bytes: 0,
        };
        ahead.begin_file(is_recycled);
        ahead
    }

    /// A new file is written to from now on.
    pub(super) fn begin_file(&mut self, is_recycled: bool) {
        self.is_recycled = is_recycled;
        self.until = JOURNAL_HEADER_BYTES as u64;
        self.stretch_bytes = STRETCH_BYTES_MIN.min(self.file_bytes / 16);
    }

    /// A batch up to `end` was written without zeros behind it.
    pub(super) fn passed(&mut self, end: u64) {
        if end > self.until {
            self.until = end;
            self.stretch_bytes = STRETCH_BYTES_MIN.min(self.file_bytes / 16);
        }
    }

    /// How many zeros to write behind a batch of `batch_bytes` that ends at `end` and is synced: 0 if enough stand there.
    /// `is_alone`: nothing waits to be written behind it, which zeros would hold up.
    pub(super) fn take(&mut self, batch_bytes: u64, end: u64, is_alone: bool) -> u64 {
        debug_assert!(end <= self.file_bytes, "records are placed inside the file");
        if batch_bytes > SMALL_BYTES.min(self.file_bytes / 8) {
            self.passed(end);
            return 0;
        }
        if self.is_recycled || end <= self.until {
            let page_end = end.next_multiple_of(PAGE_BYTES).min(self.file_bytes);
            return if is_alone { page_end - end } else { 0 };
        }
        let zero_bytes = self.stretch_bytes.min(self.file_bytes.saturating_sub(end));
        self.until = end + zero_bytes;
        self.stretch_bytes = (self.stretch_bytes * 2).min(STRETCH_BYTES_MAX.min(self.file_bytes / 8));
        zero_bytes
    }
}

/// `zero_bytes` of zeros, in pieces that take no memory.
pub(super) fn zeros(zero_bytes: u64) -> impl Iterator<Item = Bytes> {
    let piece = ZEROS.len() as u64;
    (0..zero_bytes.div_ceil(piece)).map(move |index| {
        let length = (zero_bytes - index * piece).min(piece) as usize;
        Bytes::from_static(&ZEROS[..length])
    })
}

#[cfg(test)]
mod tests {
    use super::{STRETCH_BYTES_MAX, STRETCH_BYTES_MIN, ZeroAhead, zeros};

    const FILE_BYTES: u64 = 64 << 20;

    /// Follows small batches of 4 KiB from `end` on; the zeros written and how often.
    fn small_batches(ahead: &mut ZeroAhead, end: &mut u64, count: u64) -> (u64, u64) {
        let (mut bytes, mut times) = (0, 0);
        for _ in 0..count {
            *end += 4 << 10;
            let zero_bytes = ahead.take(4 << 10, *end, true);
            assert!(*end + zero_bytes <= FILE_BYTES);
            bytes += zero_bytes;
            times += u64::from(zero_bytes > 0);
        }
        (bytes, times)
    }

    #[test]
    fn stretches_double_and_stay_in_proportion_to_what_used_them() {
        let mut ahead = ZeroAhead::new(FILE_BYTES, false);
        let mut end = 4 << 10;
        assert_eq!(
            small_batches(&mut ahead, &mut end, 1),
            (STRETCH_BYTES_MIN, 1),
            "one batch pays for the first stretch only"
        );
        let (zero_bytes, times) = small_batches(&mut ahead, &mut end, 4096);
        assert!(times < 30, "16 MiB in 4,096 batches need few stretches: {times}");
        assert!(
            zero_bytes <= (16 << 20) + STRETCH_BYTES_MAX,
            "no more zeros than records and one stretch: {zero_bytes}"
        );
    }

    #[test]
    fn a_large_batch_needs_no_zeros_and_starts_the_stretches_anew() {
        let mut ahead = ZeroAhead::new(FILE_BYTES, false);
        let mut end = 4 << 10;
        small_batches(&mut ahead, &mut end, 1000);
        end += 8 << 20;
        assert_eq!(ahead.take(4 << 20, end, true), 0);
        assert_eq!(small_batches(&mut ahead, &mut end, 1).0, STRETCH_BYTES_MIN);
        // One that was written without a sync counts the same.
        small_batches(&mut ahead, &mut end, 1000);
        end += 8 << 20;
        ahead.passed(end);
        assert_eq!(small_batches(&mut ahead, &mut end, 1).0, STRETCH_BYTES_MIN);
    }

    #[test]
    fn what_is_written_over_a_stretch_takes_zeros_to_the_end_of_its_page() {
        let mut ahead = ZeroAhead::new(FILE_BYTES, false);
        assert_eq!(ahead.take(100, 1000, true), STRETCH_BYTES_MIN);
        assert_eq!(ahead.take(100, 1100, true), 4096 - 1100);
        assert_eq!(ahead.take(4159, 1100 + 4159, true), 8192 - 5259);
        assert_eq!(ahead.take(100, 8192, true), 0, "the page is full");
        assert_eq!(ahead.take(100, 8292, false), 0, "others wait to be written there");
        assert_eq!(
            ahead.take(100, 1000 + STRETCH_BYTES_MIN, true),
            (1000_u64 + STRETCH_BYTES_MIN).next_multiple_of(4096) - (1000 + STRETCH_BYTES_MIN),
            "the last of the stretch"
        );
        assert_eq!(
            ahead.take(100, 1100 + STRETCH_BYTES_MIN, true),
            2 * STRETCH_BYTES_MIN,
            "the next stretch"
        );
    }

    #[test]
    fn zeros_end_with_the_file() {
        let mut ahead = ZeroAhead::new(FILE_BYTES, false);
        assert_eq!(ahead.take(100, FILE_BYTES - 100, true), 100);
        assert_eq!(ahead.take(100, FILE_BYTES, true), 0, "nothing is left to write");
        ahead.begin_file(false);
        assert_eq!(
            ahead.take(100, 8 << 10, true),
            STRETCH_BYTES_MIN,
            "the next file has none yet"
        );
    }

    #[test]
    fn a_file_that_is_used_again_takes_zeros_to_the_end_of_a_page_only() {
        let mut ahead = ZeroAhead::new(FILE_BYTES, true);
        assert_eq!(ahead.take(4 << 10, (4 << 10) + 100, true), (4 << 10) - 100);
        assert_eq!(ahead.take(4 << 10, 8 << 10, true), 0, "the page is full");
        assert_eq!(
            ahead.take(4 << 10, 100, false),
            0,
            "others wait to be written there"
        );
        assert_eq!(
            ahead.take(4 << 20, (4 << 20) + 1, true),
            0,
            "a large batch has few pages of parts"
        );
        assert_eq!(ahead.take(100, FILE_BYTES, true), 0);
        let mut ahead = ZeroAhead::new(1000, true);
        assert_eq!(ahead.take(100, 900, true), 100, "no page reaches beyond the file");
    }

    #[test]
    fn pieces_add_up() {
        for zero_bytes in [0, 1, 16 << 10, (16 << 10) + 1, 1 << 20] {
            assert_eq!(
                zeros(zero_bytes).map(|piece| piece.len() as u64).sum::<u64>(),
                zero_bytes
            );
        }
    }
}
