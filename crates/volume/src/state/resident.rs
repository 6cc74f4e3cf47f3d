//! Written data in memory: which of it stays there until a checkpoint has packed it.
//!
//! What was written first is packed first. So beyond the limit the newest goes: would the oldest go, each checkpoint of more
//! than the limit would find nothing in memory and read everything back from the journal. What was packed is let go of by
//! the checkpoint itself, which makes room for what comes in meanwhile.
//!
//! What leaves stays in memory until the journal has written it, for only then can it be read back; that is bounded by the
//! journal's queue, which holds the same bytes.

use crate::extents::WriteBuffer;
use std::{collections::VecDeque, sync::Arc};

/// See the module.
#[derive(Default)]
pub struct ResidentWrites {
    /// Oldest first.
    kept: VecDeque<Arc<WriteBuffer>>,
    kept_bytes: u64,
    /// To be dropped from memory once written.
    leaving: VecDeque<Arc<WriteBuffer>>,
    leaving_bytes: u64,
}

/// Whether an extent uses the buffer (besides the queue here) and its bytes are in memory.
fn counts(buffer: &Arc<WriteBuffer>) -> bool {
    Arc::strong_count(buffer) > 1 && buffer.is_in_memory()
}

impl ResidentWrites {
    /// Remembers the bytes of a write as being in memory, and drops the newest ones beyond `limit_bytes`.
    ///
    /// `is_written` tells whether the record can be read back from the journal.
    pub fn keep(
        &mut self,
        buffer: Arc<WriteBuffer>,
        limit_bytes: u64,
        is_written: impl Fn(&WriteBuffer) -> bool,
    ) {
        while let Some(oldest) = self.kept.pop_front_if(|oldest| !counts(oldest)) {
            self.kept_bytes -= oldest.length as u64;
        }
        if self.bytes() + buffer.length as u64 <= limit_bytes {
            self.kept_bytes += buffer.length as u64;
            self.kept.push_back(buffer);
        } else {
            self.leaving_bytes += buffer.length as u64;
            self.leaving.push_back(buffer);
        }
        // In the order in which the journal writes them.
        while let Some(first) = self
            .leaving
            .pop_front_if(|first| !counts(first) || is_written(first))
        {
            first.drop_memory();
            self.leaving_bytes -= first.length as u64;
        }
        // What leaves and is not written yet counts as well: until it is, the newest that can be read back goes in its place. The journal
        // writes in this order, so those that can be are the first ones.
        while self.bytes() > limit_bytes {
            let written = self.kept.partition_point(|buffer| is_written(buffer));
            let Some(newest) = written.checked_sub(1).and_then(|at| self.kept.remove(at)) else {
                break;
            };
            newest.drop_memory();
            self.kept_bytes -= newest.length as u64;
        }
    }

    /// Forgets buffers that no extent uses any more.
    pub fn release(&mut self) {
        for (buffers, bytes) in [
            (&mut self.kept, &mut self.kept_bytes),
            (&mut self.leaving, &mut self.leaving_bytes),
        ] {
            buffers.retain(counts);
            *bytes = buffers.iter().map(|buffer| buffer.length as u64).sum();
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.kept_bytes + self.leaving_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::ResidentWrites;
    use crate::{extents::WriteBuffer, journal::RecordRef};
    use bytes::Bytes;
    use std::sync::Arc;

    fn buffers(count: usize) -> Vec<Arc<WriteBuffer>> {
        (0..count)
            .map(|_| WriteBuffer::new(Bytes::from_static(&[1; 10]), 0, RecordRef::default()))
            .collect()
    }

    fn in_memory(buffers: &[Arc<WriteBuffer>]) -> Vec<usize> {
        (0..buffers.len())
            .filter(|index| buffers[*index].is_in_memory())
            .collect()
    }

    #[test]
    fn beyond_the_limit_the_newest_leave_once_they_are_written() {
        let mut resident = ResidentWrites::default();
        let all = buffers(6);
        for buffer in &all[..5] {
            resident.keep(buffer.clone(), 30, |_| false);
        }
        assert_eq!((in_memory(&all).len(), resident.bytes()), (6, 50));
        resident.keep(all[5].clone(), 30, |_| true);
        assert_eq!((in_memory(&all), resident.bytes()), (vec![0, 1, 2], 30));
    }

    #[test]
    fn the_newest_that_is_written_goes_though_newer_ones_are_not() {
        let mut resident = ResidentWrites::default();
        let all = buffers(4);
        for buffer in &all[..3] {
            resident.keep(buffer.clone(), 30, |_| false);
        }
        // The journal has written the first two of them.
        let is_written = |buffer: &WriteBuffer| all[..2].iter().any(|one| std::ptr::eq(&**one, buffer));
        resident.keep(all[3].clone(), 30, is_written);
        assert_eq!((in_memory(&all), resident.bytes()), (vec![0, 2, 3], 30));
    }

    #[test]
    fn what_waits_for_the_journal_takes_the_place_of_what_is_written() {
        let mut resident = ResidentWrites::default();
        let all = buffers(5);
        for buffer in &all[..3] {
            resident.keep(buffer.clone(), 30, |_| true);
        }
        let late = [all[3].clone(), all[4].clone()];
        for buffer in &late {
            resident.keep(buffer.clone(), 30, |asked| {
                !late.iter().any(|late| std::ptr::eq(&**late, asked))
            });
        }
        assert_eq!((in_memory(&all), resident.bytes()), (vec![0, 3, 4], 30));
    }

    #[test]
    fn what_was_packed_makes_room() {
        let mut resident = ResidentWrites::default();
        let all = buffers(6);
        for buffer in &all[..3] {
            resident.keep(buffer.clone(), 30, |_| true);
        }
        all[0].drop_memory();
        all[1].drop_memory();
        for buffer in &all[3..] {
            resident.keep(buffer.clone(), 30, |_| true);
        }
        assert_eq!((in_memory(&all), resident.bytes()), (vec![2, 3, 4], 30));
        drop(all);
        resident.release();
        assert_eq!(resident.bytes(), 0);
    }
}
