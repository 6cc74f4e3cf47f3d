//! Reading the spool in order, for those who deliver it.

use super::{Shared, Spool, file};
use crate::{BATCH_MAX_RECORDS, UsageBatch};
use firn_env::{DiskError, DiskFile};
use std::sync::Arc;

/// Where a reader stands: at the beginning of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    file_number: u64,
    /// Zero: at the file's header.
    offset: u64,
}

impl Spool {
    /// The next batch at `cursor` and where to go on after it: as many whole frames as follow each other and fit. `None`:
    /// nothing is waiting.
    pub(crate) async fn read(&self, cursor: Cursor) -> Result<Option<(UsageBatch, Cursor)>, DiskError> {
        let mut cursor = cursor;
        // Each round goes one file on; there are fewer files than this.
        let rounds = self.shared.index().files.len() + 1;
        for _ in 0..rounds {
            let Some((number, opened, end)) = locate(&self.shared, cursor) else {
                return Ok(None);
            };
            if number != cursor.file_number {
                cursor = Cursor {
                    file_number: number,
                    offset: 0,
                };
            }
            let bytes = opened
                .read_at(cursor.offset, (end - cursor.offset) as usize)
                .await?;
            let mut start = 0;
            if cursor.offset == 0 {
                start = file::header_bytes(&bytes).unwrap_or(bytes.len());
            }
            let (batch, used) = gather(&bytes[start..]);
            cursor.offset += (start + used) as u64;
            if let Some(batch) = batch {
                let batch = if firn_env::planted!("usage.incarnation_anew") {
                    renamed(&self.shared, &batch)
                } else {
                    batch
                };
                return Ok(Some((batch, cursor)));
            }
            if cursor.offset < end {
                tracing::error!(
                    path = self.shared.path(number),
                    offset = cursor.offset,
                    "usage records in the spool are damaged and skipped; the receiver will report the gap"
                );
                cursor.offset = end;
            }
        }
        Ok(None)
    }

    /// Notes that everything before `next_sequence` was received, and removes the files that held nothing else.
    pub(crate) async fn received(&self, next_sequence: u64) {
        let done: Vec<(u64, u64)> = {
            let mut index = self.shared.index();
            index.received_before = index.received_before.max(next_sequence);
            let mut done = Vec::new();
            while index.files.len() > 1
                && index
                    .files
                    .front()
                    .is_some_and(|oldest| oldest.next_sequence <= next_sequence)
            {
                let oldest = index.files.pop_front().expect("checked just now");
                index.used_bytes -= oldest.durable_bytes;
                done.push((oldest.number, oldest.durable_bytes));
            }
            done
        };
        for (number, _) in done {
            self.shared.env.fault_point("usage.spool.before_remove").await;
            let path = self.shared.path(number);
            if let Err(error) = self.shared.env.disk().remove(&path).await {
                // It will be sent again after the next start, and be known already.
                tracing::warn!(path, %error, "a received usage file could not be removed");
            }
        }
    }

    /// Takes note that a batch is being sent.
    pub(crate) async fn sending(&self, batch: &UsageBatch) {
        if firn_env::planted!("usage.remove_before_receipt") {
            self.received(batch.next_sequence()).await;
        }
    }
}

/// The file in which the next frame at or after `cursor` lies, and where its durable bytes end.
fn locate(shared: &Shared, cursor: Cursor) -> Option<(u64, Arc<dyn DiskFile>, u64)> {
    let index = shared.index();
    let entry = index.files.iter().find(|entry| {
        entry.number > cursor.file_number
            || (entry.number == cursor.file_number && cursor.offset < entry.durable_bytes)
    })?;
    Some((entry.number, entry.file.clone(), entry.durable_bytes))
}

/// What must not happen: old records under a new name.
fn renamed(shared: &Shared, batch: &UsageBatch) -> UsageBatch {
    UsageBatch::new(
        batch.source().clone(),
        shared.incarnation,
        batch.first_sequence(),
        batch.observations().to_vec(),
    )
    .unwrap_or_else(|_| batch.clone())
}

/// Joins the frames at the beginning of these bytes into one batch; returns how many bytes it took.
fn gather(bytes: &[u8]) -> (Option<UsageBatch>, usize) {
    let mut used = 0;
    let mut joined: Option<UsageBatch> = None;
    while let Some(next) = file::frame(&bytes[used..]) {
        let frame_bytes = file::frame_bytes(&bytes[used..]);
        joined = match joined {
            None => Some(next),
            Some(before) => match join(&before, &next) {
                Some(both) => Some(both),
                None => return (Some(before), used),
            },
        };
        used += frame_bytes;
    }
    (joined, used)
}

fn join(before: &UsageBatch, next: &UsageBatch) -> Option<UsageBatch> {
    let count = before.observations().len() + next.observations().len();
    if before.next_sequence() != next.first_sequence()
        || before.incarnation() != next.incarnation()
        || count > BATCH_MAX_RECORDS
    {
        return None;
    }
    let observations = [before.observations(), next.observations()].concat();
    if UsageBatch::fitting(&observations) < count {
        return None;
    }
    UsageBatch::new(
        before.source().clone(),
        before.incarnation(),
        before.first_sequence(),
        observations,
    )
    .ok()
}
