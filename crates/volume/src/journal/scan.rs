//! Reading a found journal file from its first record to where it ends.
//!
//! The file is read through a window of a few megabytes, so a restart holds neither a file nor a list of its records in
//! memory. The scan stops at the first thing that is not the next record, and says whether it was zeros or of an earlier use (the
//! file ends) or something else (a tail torn by a crash, or damage: the recovery can tell them apart, the scan cannot).

use super::{
    JournalError,
    file::JournalFile,
    layout::{FIRST_RECORD_OFFSET, FIRST_RECORD_SLOT},
    record::{RecordRef, Sequence},
};
use bytes::{Bytes, BytesMut};
use firn_format::{
    JOURNAL_HEADER_BYTES, MAX_RECORD_BYTES, RECORD_HEAD_BYTES, RECORD_OVERHEAD_BYTES, RecordScan,
};
use std::sync::Arc;

/// What is read at once: twice the largest record, so that most reads end between records.
const WINDOW_BYTES: usize = 2 * (MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES);

/// What the scan found next.
pub(super) enum Scanned {
    /// A whole record; its checksum is right, its seal not yet looked at.
    Record {
        /// Its place; the sequence is counted from the file's first.
        record: RecordRef,
        /// Its sealed payload.
        sealed: Bytes,
    },
    /// The file ends here.
    End(FileEnd),
}

/// Where a file ends, and how.
#[derive(Clone, Debug)]
pub(super) struct FileEnd {
    /// The first byte that belongs to no whole record.
    pub(super) offset: u64,
    /// The slot of the record that would stand there.
    pub(super) slot: u32,
    /// What stands there if it is no end, as zeros are and what an earlier use of the file left.
    pub(super) torn: Option<String>,
}

/// Goes through one file.
pub(super) struct Scanner {
    file: Arc<JournalFile>,
    window: Bytes,
    window_offset: u64,
    offset: u64,
    slot: u32,
    /// Sequence of the record in [`FIRST_RECORD_SLOT`].
    first: Sequence,
}

impl Scanner {
    /// Reads the opening record; `None` if it was never written whole, so that the file holds no record.
    pub(super) async fn start(
        file: Arc<JournalFile>,
    ) -> Result<(Option<Self>, Option<String>), JournalError> {
        let offset = JOURNAL_HEADER_BYTES as u64;
        let length = (FIRST_RECORD_OFFSET - offset) as usize;
        let bytes = file.handle.read_at(offset, length).await?;
        match file.framing().next(&bytes, 0) {
            RecordScan::Record { payload, total_bytes } if total_bytes == length => {
                let first = file.open_opening(bytes.slice(payload))?;
                let scanner = Self {
                    file,
                    window: Bytes::new(),
                    window_offset: FIRST_RECORD_OFFSET,
                    offset: FIRST_RECORD_OFFSET,
                    slot: FIRST_RECORD_SLOT,
                    first,
                };
                Ok((Some(scanner), None))
            }
            RecordScan::End if file.is_blank_from(offset, 0).await? => Ok((None, None)),
            RecordScan::Record { .. } | RecordScan::Torn | RecordScan::End => {
                Ok((None, Some("its opening record was not written whole".into())))
            }
        }
    }

    /// The sequence of the file's first record, whether that was written or not.
    pub(super) fn first(&self) -> Sequence {
        self.first
    }

    /// Where the next record begins, or would.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record, or how the file ends.
    pub(super) async fn next(&mut self) -> Result<Scanned, JournalError> {
        self.fill(RECORD_HEAD_BYTES).await?;
        let length = self
            .rest()
            .first_chunk::<4>()
            .map_or(0, |head| u32::from_le_bytes(*head) as usize);
        if length <= MAX_RECORD_BYTES {
            self.fill(length + RECORD_OVERHEAD_BYTES).await?;
        }
        let at = (self.offset - self.window_offset) as usize;
        match self.file.framing().next(&self.window[at..], self.slot) {
            RecordScan::Record { payload, total_bytes } => {
                let record = RecordRef {
                    sequence: Sequence(self.first.0 + u64::from(self.slot - FIRST_RECORD_SLOT)),
                    file: self.file.number,
                    offset: self.offset,
                    slot: self.slot,
                    sealed_bytes: payload.len() as u32,
                };
                let sealed = self.window.slice(at + payload.start..at + payload.end);
                self.offset += total_bytes as u64;
                self.slot += 1;
                Ok(Scanned::Record { record, sealed })
            }
            RecordScan::Torn => Ok(Scanned::End(FileEnd {
                offset: self.offset,
                slot: self.slot,
                torn: Some(format!(
                    "{}: the record at byte {} was not written whole",
                    self.file.path, self.offset
                )),
            })),
            RecordScan::End => Ok(Scanned::End(FileEnd {
                offset: self.offset,
                slot: self.slot,
                torn: None,
            })),
        }
    }

    fn rest(&self) -> &[u8] {
        &self.window[(self.offset - self.window_offset) as usize..]
    }

    /// Makes the window hold `length` bytes from the current offset on, or up to the file's end.
    async fn fill(&mut self, length: usize) -> Result<(), JournalError> {
        let have = self.rest().len();
        if have >= length {
            return Ok(());
        }
        let at = (self.offset - self.window_offset) as usize;
        let more = self
            .file
            .handle
            .read_at(self.offset + have as u64, WINDOW_BYTES.max(length) - have)
            .await?;
        self.window = if have == 0 {
            more
        } else {
            let mut joined = BytesMut::with_capacity(have + more.len());
            joined.extend_from_slice(&self.window[at..]);
            joined.extend_from_slice(&more);
            joined.freeze()
        };
        self.window_offset = self.offset;
        Ok(())
    }
}
