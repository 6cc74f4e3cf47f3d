//! Records that are written together, and the three calls of the disk that make them stay: each seals what it writes.

use super::{
    JournalError,
    file::JournalFile,
    record::Sequence,
    seal_buffers::{SealBuffer, SealedBatch},
    state::{BatchNote, Pending, Shared},
    zeroing::zeros,
};
use firn_env::{DiskError, Env};
use firn_format::JOURNAL_HEADER_BYTES;
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

/// Batches up to this size are sealed on the writer's own thread (20 µs); larger ones where they hold nobody up.
const SEAL_INLINE_BYTES: u64 = 64 << 10;

/// And at most this part of a file, so that journals as small as those of the simulation are sealed on threads too.
const SEAL_INLINE_PART: u64 = 1024;

/// Between attempts while the disk is full.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// What is reclaimed for a batch that the disk refused: two of the largest.
const BATCH_ROOM_BYTES: u64 = 8 << 20;

/// Records that are written together.
pub(super) struct Batch {
    pub(super) records: Vec<Pending>,
    /// Written before them if the file is new: its first sequence.
    pub(super) opening: Option<Sequence>,
    pub(super) framed_bytes: u64,
}

impl Batch {
    pub(super) fn last(&self) -> Sequence {
        self.records
            .last()
            .map_or(Sequence(0), |pending| pending.record.sequence)
    }

    fn note(&self, env: &Env) -> BatchNote {
        BatchNote {
            framed_bytes: self.framed_bytes,
            first_appended_at: self
                .records
                .first()
                .map_or_else(|| env.now(), |pending| pending.appended_at),
        }
    }

    fn offset(&self) -> u64 {
        match self.opening {
            Some(_) => JOURNAL_HEADER_BYTES as u64,
            None => self.records.first().map_or(0, |pending| pending.record.offset),
        }
    }

    /// Where the last record ends in the file.
    pub(super) fn end(&self) -> u64 {
        self.records
            .last()
            .map_or(0, |pending| pending.record.offset + pending.record.framed_bytes())
    }

    fn seal(&self, file: &JournalFile) -> Result<SealedBatch, JournalError> {
        let mut group = SealBuffer::new(self.framed_bytes as usize + 64, self.offset());
        if let Some(first) = self.opening {
            file.seal_opening(first, &mut group)?;
        }
        for pending in &self.records {
            file.seal(pending.record.slot, &pending.parts, &mut group)?;
        }
        Ok(group.freeze())
    }
}

/// A finished sync, alone or with a write before it.
pub(super) struct Synced {
    pub(super) covers: Sequence,
    /// The batch written in the same call.
    pub(super) batch: Option<BatchNote>,
}

/// Seals a batch after the one taken before it: slots only rise, and large batches are sealed on threads that run in any
/// order. The batch before was polled first, and the lock is fair.
async fn seal(
    shared: &Shared,
    file: &Arc<JournalFile>,
    batch: Batch,
) -> Result<(SealedBatch, Batch), String> {
    let _guard = if firn_env::planted!("volume.seal_in_any_order") {
        None
    } else {
        Some(shared.sealing.lock().await)
    };
    let inline_bytes = SEAL_INLINE_BYTES.min(shared.config.file_bytes / SEAL_INLINE_PART);
    let sealed = if batch.framed_bytes <= inline_bytes {
        batch.seal(file).map(|sealed| (sealed, batch))
    } else {
        let file = file.clone();
        shared
            .env
            .compute(move || batch.seal(&file).map(|sealed| (sealed, batch)))
            .await
    };
    sealed.map_err(|error| error.to_string())
}

pub(super) async fn write(
    shared: Arc<Shared>,
    file: Arc<JournalFile>,
    batch: Batch,
) -> Result<(Sequence, BatchNote), String> {
    let (last, note) = (batch.last(), batch.note(&shared.env));
    let (sealed, batch) = seal(&shared, &file, batch).await?;
    shared.env.fault_point("journal.before_write").await;
    repeat_while_full(&shared, || {
        file.handle
            .write_uncached_at(batch.offset(), vec![sealed.bytes()])
    })
    .await?;
    shared.env.fault_point("journal.after_write").await;
    Ok((last, note))
}

pub(super) async fn write_and_sync(
    shared: Arc<Shared>,
    file: Arc<JournalFile>,
    batch: Batch,
    zero_bytes: u64,
) -> Result<Synced, String> {
    let synced = Synced {
        covers: batch.last(),
        batch: Some(batch.note(&shared.env)),
    };
    let (sealed, batch) = seal(&shared, &file, batch).await?;
    shared.env.fault_point("journal.before_write_and_sync").await;
    repeat_while_full(&shared, || {
        let parts = std::iter::once(sealed.bytes()).chain(zeros(zero_bytes));
        file.handle.write_and_sync(batch.offset(), parts.collect())
    })
    .await?;
    shared.env.fault_point("journal.after_write_and_sync").await;
    Ok(synced)
}

pub(super) async fn sync(
    shared: Arc<Shared>,
    file: Arc<JournalFile>,
    covers: Sequence,
) -> Result<Synced, String> {
    shared.env.fault_point("journal.before_fsync").await;
    file.handle.sync_data().await.map_err(|error| error.to_string())?;
    shared.env.fault_point("journal.after_fsync").await;
    Ok(Synced { covers, batch: None })
}

/// A full disk is waited out: only a file system that does not keep preallocated space for us says so here, and the same
/// bytes at the same place are the same record.
async fn repeat_while_full<'f>(
    shared: &Shared,
    mut attempt: impl FnMut() -> Pin<Box<dyn Future<Output = Result<(), DiskError>> + Send + 'f>>,
) -> Result<(), String> {
    let mut stalled = false;
    loop {
        match attempt().await {
            Ok(()) => {
                if stalled {
                    shared.unstall();
                }
                return Ok(());
            }
            Err(error @ DiskError::Full { .. }) => {
                shared.stall(&error);
                stalled = true;
                shared.config.reclaimer.reclaim(BATCH_ROOM_BYTES).await;
                shared.env.sleep(RETRY).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
