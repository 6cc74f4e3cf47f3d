//! The records a start has to apply again, one after the other.

use super::{
    JournalError,
    record::{RecordRef, Sequence},
    recovery::{FoundFile, Survey},
    scan::{Scanned, Scanner},
};
use bytes::Bytes;
use std::collections::VecDeque;

/// A record found at the start.
#[derive(Clone, Debug)]
pub struct ReplayRecord {
    /// Its number.
    pub sequence: Sequence,
    /// What was appended.
    pub payload: Bytes,
    /// Its place, for reading it again.
    pub record: RecordRef,
}

/// The records after what the root covers, in order. Holds one window of one file in memory.
pub struct Replay {
    files: VecDeque<FoundFile>,
    current: Option<(Scanner, FoundFile)>,
    covered: Sequence,
    last: Sequence,
    torn_tail: Option<String>,
}

impl Replay {
    pub(super) fn new(survey: Survey, covered: Sequence) -> Self {
        Self {
            files: survey
                .files
                .into_iter()
                .filter(|found| found.last > covered)
                .collect(),
            current: None,
            covered,
            last: survey.last,
            torn_tail: survey.torn_tail,
        }
    }

    /// The next record; `None` after the last.
    ///
    /// # Errors
    /// If the disk refuses, or a record's seal is not right although its checksum is: somebody altered it.
    pub async fn next(&mut self) -> Result<Option<ReplayRecord>, JournalError> {
        loop {
            let Some((scanner, found)) = &mut self.current else {
                let Some(found) = self.files.pop_front() else {
                    return Ok(None);
                };
                let (scanner, _) = Scanner::start(found.file.clone()).await?;
                self.current = scanner.map(|scanner| (scanner, found));
                continue;
            };
            match scanner.next().await? {
                Scanned::Record { record, sealed } if record.offset < found.end.offset => {
                    if record.sequence <= self.covered {
                        continue;
                    }
                    let payload = found.file.open(record.slot, record.offset, sealed)?;
                    return Ok(Some(ReplayRecord {
                        sequence: record.sequence,
                        payload,
                        record,
                    }));
                }
                Scanned::Record { .. } | Scanned::End(_) => {
                    // The survey counted the records; fewer now means that the disk does not give back what it gave.
                    let offset = found.end.offset;
                    if scanner.offset() < offset {
                        return Err(JournalError::Damaged {
                            path: found.file.path.clone(),
                            offset: scanner.offset(),
                            detail: "a record that was whole a moment ago is not any more".into(),
                        });
                    }
                    self.current = None;
                }
            }
        }
    }

    /// The last record there is to replay, or what is covered if there is none.
    pub fn last(&self) -> Sequence {
        self.last
    }

    /// How the last file ends, if a crash tore its tail. Nothing acknowledged was in it.
    pub fn torn_tail(&self) -> Option<String> {
        self.torn_tail.clone()
    }
}
