//! The one task that writes: it turns the queue into sealed batches, writes them, and syncs when somebody waits.
//!
//! At most one write and one sync are under way, and one call may be both: a small batch somebody waits for is written and
//! synced in one hop to the disk's thread. While a sync runs, small records gather for the next one (group commit); once a
//! megabyte waits it is written beside the running sync, so that bulk data does not wait for the disk's flush.
//!
//! ```text
//!            queue        write under way   sync under way     then
//!            -            no                no                 somebody waits for written records: sync
//!            small        no                no                 somebody waits for one of them: write + sync
//!                                                              else linger, then write
//!            ≥ 1 MiB      no                any                write (somebody waits and no sync runs: write + sync)
//!            next file    no                no                 sync what is not durable, then go to the next file
//! ```
//!
//! A sync covers exactly what had been written when it began. The file before is durable before the next one is written to:
//! so whatever is found in a file proves that all before that file was durable (which tells damage from a torn tail).

use super::{
    JournalError, Sequence,
    file::JournalFile,
    state::{BatchNote, FileEntry, Pending, Shared, State},
};
use crate::mutants::{Mutant, active};
use bytes::{Bytes, BytesMut};
use firn_env::{DiskError, Env};
use firn_format::{JOURNAL_HEADER_BYTES, VolumeId, WriterId};
use firn_seal::Keys;
use futures::future::BoxFuture;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// Records in one write. More would raise the latency of the first; fewer would waste the disk's flush.
const BATCH_RECORDS: usize = 256;

/// Bytes in one write: about what a disk takes in the time of one flush.
const BATCH_BYTES: u64 = 4 << 20;

/// Batches up to this size are sealed on the writer's own thread (20 µs); larger ones where they hold nobody up.
const SEAL_INLINE_BYTES: u64 = 64 << 10;

/// And at most this part of a file, so that journals as small as those of the simulation are sealed on threads too.
const SEAL_INLINE_PART: u64 = 1024;

/// Written and unsynced bytes that start a sync though nobody waits, so that no later sync has much more than this to do;
/// a quarter of a file if that is less.
const SYNC_BYTES: u64 = 16 << 20;

/// How long a small record nobody waits for stays in memory: long enough for its COMMIT to come and share the write.
const LINGER: Duration = Duration::from_millis(5);

/// Between attempts while the disk is full.
const RETRY: Duration = Duration::from_millis(500);

/// What identifies new files.
#[derive(Clone)]
pub(super) struct FileMaker {
    pub(super) keys: Keys,
    pub(super) volume: VolumeId,
    pub(super) writer: WriterId,
}

impl FileMaker {
    pub(super) async fn make(
        &self,
        env: &Env,
        directory: &str,
        number: u64,
        file_bytes: u64,
    ) -> Result<JournalFile, JournalError> {
        JournalFile::create(
            env,
            &self.keys,
            (self.volume, self.writer),
            directory,
            number,
            file_bytes,
        )
        .await
    }
}

/// Records that are written together.
struct Batch {
    records: Vec<Pending>,
    /// Written before them if the file is new: its first sequence.
    opening: Option<Sequence>,
    framed_bytes: u64,
}

impl Batch {
    fn last(&self) -> Sequence {
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

    fn seal(&self, file: &JournalFile) -> Result<Bytes, JournalError> {
        let mut group = BytesMut::with_capacity(self.framed_bytes as usize + 64);
        if let Some(first) = self.opening {
            file.seal_opening(first, &mut group)?;
        }
        for pending in &self.records {
            file.seal(pending.record.slot, &pending.parts, &mut group)?;
        }
        Ok(group.freeze())
    }
}

type Operation<T> = Option<BoxFuture<'static, Result<T, String>>>;

/// A finished sync, alone or with a write before it.
struct Synced {
    covers: Sequence,
    /// The batch written in the same call.
    batch: Option<BatchNote>,
}

/// The writer task's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    maker: FileMaker,
    current: Arc<JournalFile>,
    /// Whether the current file's opening record was sealed already.
    opened: bool,
    write: Operation<(Sequence, BatchNote)>,
    sync: Operation<Synced>,
    prepare: Option<BoxFuture<'static, Result<JournalFile, JournalError>>>,
    /// The sync under way writes a batch first.
    sync_writes: bool,
    /// A batch that was written beside such a sync and counts only after it.
    ahead: Option<(Sequence, BatchNote)>,
    written: Sequence,
    durable: Sequence,
    /// Written since the last sync began.
    unsynced_bytes: u64,
    linger_over: bool,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        maker: FileMaker,
        current: Arc<JournalFile>,
        last: Sequence,
    ) -> Self {
        Self {
            shared,
            maker,
            current,
            opened: false,
            write: None,
            sync: None,
            prepare: None,
            sync_writes: false,
            ahead: None,
            written: last,
            durable: last,
            unsynced_bytes: 0,
            linger_over: false,
        }
    }

    /// Runs until the journal is closed or fails.
    pub(super) async fn run(mut self) {
        let failure = self.work().await.err();
        match &failure {
            Some(detail) => self.shared.fail(detail),
            None => self.shared.end(None),
        }
    }

    async fn work(&mut self) -> Result<(), String> {
        loop {
            let linger = match self.start() {
                Next::Done => return Ok(()),
                Next::Wait { linger } => linger,
            };
            match self.event(linger).await {
                Event::Synced(synced) => {
                    self.note_synced(synced?);
                    // Those who waited run first and append their next records, which then share one sync with what has
                    // gathered meanwhile. If nothing has, there is nothing to do before they wake this task anyway.
                    let gathered = !self.shared.lock().queue.is_empty();
                    if gathered {
                        self.shared.env.yield_now().await;
                    }
                }
                Event::Written(written) => {
                    let (last, batch) = written?;
                    self.unsynced_bytes += batch.framed_bytes;
                    if self.sync_writes {
                        self.ahead = Some((last, batch));
                    } else {
                        self.note_written(last, batch);
                    }
                }
                Event::Made(made) => self.note_made(made),
                Event::Woken => {}
                Event::Lingered => self.linger_over = true,
            }
        }
    }

    /// Waits for whatever happens first; of what happened at once, in the order of [`Event`].
    async fn event(&mut self, linger: bool) -> Event {
        let shared = self.shared.clone();
        let woken = shared.wake.notified();
        let lingered = async {
            if !linger {
                std::future::pending::<()>().await;
            }
            shared.env.sleep(LINGER).await;
        };
        futures::pin_mut!(woken, lingered);
        std::future::poll_fn(|context| {
            if let Some(synced) = poll_operation(&mut self.sync, context) {
                return Poll::Ready(Event::Synced(synced));
            }
            if let Some(written) = poll_operation(&mut self.write, context) {
                return Poll::Ready(Event::Written(written));
            }
            if let Some(made) = poll_operation(&mut self.prepare, context) {
                return Poll::Ready(Event::Made(made));
            }
            if woken.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Woken);
            }
            lingered.as_mut().poll(context).map(|()| Event::Lingered)
        })
        .await
    }

    /// Starts whatever can be started.
    fn start(&mut self) -> Next {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if self.prepare.is_none()
            && let Some(number) = shared.file_to_make(&state)
        {
            self.prepare = Some(self.preparation(number, Duration::ZERO));
        }
        let mut linger = false;
        if self.write.is_none() {
            linger = self.start_write(&mut state);
        }
        let asked = first_waiter(&state).is_some_and(|first| first <= self.written);
        let unsynced = self.written > self.durable;
        let ending = state.closing && state.queue.is_empty();
        if self.sync.is_none()
            && unsynced
            && (asked || ending || self.unsynced_bytes >= SYNC_BYTES.min(shared.config.file_bytes / 4))
        {
            self.start_sync();
        }
        if ending && !unsynced && self.write.is_none() && self.sync.is_none() {
            return Next::Done;
        }
        Next::Wait { linger }
    }

    /// Starts a write if one is due; says whether to look again after lingering.
    fn start_write(&mut self, state: &mut State) -> bool {
        loop {
            let Some(front) = state.queue.front() else {
                self.linger_over = false;
                return false;
            };
            if front.record.file == self.current.number {
                break;
            }
            if self.sync.is_some() {
                return false;
            }
            if self.written > self.durable && !active(&self.shared.env, Mutant::SkipSyncBeforeRotation) {
                self.start_sync();
                return false;
            }
            let number = front.record.file;
            let Some(entry) = state.files.get(&number) else {
                return false;
            };
            self.current = entry.file.clone();
            self.opened = false;
            state.writing_file = number;
            state.counters.rotations += 1;
        }
        let last_waiter = state.durable_waiters.last_key_value().map(|((last, _), _)| *last);
        let asked =
            last_waiter.is_some_and(|last| last > self.written.0) || !state.written_waiters.is_empty();
        let bulk = state.queued_bytes >= self.shared.bulk_bytes();
        if self.sync.is_some() {
            if bulk {
                self.start_plain_write(state);
            }
            return false;
        }
        if !(asked || bulk || self.linger_over || state.closing) {
            return true;
        }
        let first_waiter = first_waiter(state);
        // Who waits for what is written already is served at once, beside the write of much else.
        if bulk && first_waiter.is_some_and(|first| first <= self.written) {
            self.start_sync();
            self.start_plain_write(state);
            return false;
        }
        let batch = self.take_batch(state);
        if state.closing || first_waiter.is_some_and(|first| first <= batch.last()) {
            self.start_write_and_sync(batch);
        } else {
            self.write = Some(Box::pin(write(self.shared.clone(), self.current.clone(), batch)));
        }
        false
    }

    fn start_plain_write(&mut self, state: &mut State) {
        let batch = self.take_batch(state);
        self.write = Some(Box::pin(write(self.shared.clone(), self.current.clone(), batch)));
    }

    fn start_write_and_sync(&mut self, batch: Batch) {
        self.sync_writes = true;
        self.unsynced_bytes = 0;
        self.sync = Some(Box::pin(write_and_sync(
            self.shared.clone(),
            self.current.clone(),
            batch,
        )));
    }

    fn start_sync(&mut self) {
        self.sync_writes = false;
        self.unsynced_bytes = 0;
        self.sync = Some(Box::pin(sync(
            self.shared.clone(),
            self.current.clone(),
            self.written,
        )));
    }

    /// Takes records of the current file off the queue; there is at least one.
    fn take_batch(&mut self, state: &mut State) -> Batch {
        let opening = if self.opened {
            None
        } else {
            self.opened = true;
            state.firsts.remove(&self.current.number)
        };
        let mut records = Vec::new();
        let mut framed_bytes = 0;
        while records.len() < BATCH_RECORDS
            && framed_bytes < BATCH_BYTES
            && let Some(pending) = state
                .queue
                .pop_front_if(|next| next.record.file == self.current.number)
        {
            framed_bytes += pending.record.framed_bytes();
            records.push(pending);
        }
        state.queued_bytes -= framed_bytes;
        self.linger_over = false;
        Batch {
            records,
            opening,
            framed_bytes,
        }
    }

    fn note_written(&mut self, last: Sequence, batch: BatchNote) {
        self.written = last;
        self.shared.note_written(last, batch);
    }

    fn note_synced(&mut self, synced: Synced) {
        if let Some(batch) = synced.batch {
            self.note_written(synced.covers, batch);
        }
        self.sync_writes = false;
        if let Some((last, batch)) = self.ahead.take() {
            self.note_written(last, batch);
        }
        self.durable = if active(&self.shared.env, Mutant::FsyncCoversLaterWrites) {
            self.written
        } else {
            synced.covers
        };
        self.shared.note_durable(self.durable);
    }

    fn note_made(&mut self, made: Result<JournalFile, JournalError>) {
        match made {
            Ok(file) => {
                let mut state = self.shared.lock();
                state.stalled = None;
                state.files.insert(
                    file.number,
                    FileEntry {
                        file: Arc::new(file),
                        bytes: self.shared.config.file_bytes,
                        last: None,
                    },
                );
                drop(state);
                self.shared.space_changed();
            }
            Err(error) => {
                tracing::warn!(%error, "the next journal file cannot be made; clients wait when the present one is full");
                let mut state = self.shared.lock();
                state.stalled = Some(error.to_string());
                if let Some(number) = self.shared.file_to_make(&state) {
                    self.prepare = Some(self.preparation(number, RETRY));
                }
            }
        }
    }

    fn preparation(
        &self,
        number: u64,
        after: Duration,
    ) -> BoxFuture<'static, Result<JournalFile, JournalError>> {
        let shared = self.shared.clone();
        let maker = self.maker.clone();
        Box::pin(async move {
            if !after.is_zero() {
                shared.env.sleep(after).await;
            }
            maker
                .make(&shared.env, &shared.directory, number, shared.config.file_bytes)
                .await
        })
    }
}

/// What the writer waits for.
enum Event {
    Synced(Result<Synced, String>),
    Written(Result<(Sequence, BatchNote), String>),
    Made(Result<JournalFile, JournalError>),
    Woken,
    Lingered,
}

enum Next {
    Wait { linger: bool },
    Done,
}

/// The first sequence somebody waits to be durable.
fn first_waiter(state: &State) -> Option<Sequence> {
    state
        .durable_waiters
        .first_key_value()
        .map(|((sequence, _), _)| Sequence(*sequence))
}

/// Polls an operation under way; one that is done is taken out.
fn poll_operation<F: Future + Unpin>(
    operation: &mut Option<F>,
    context: &mut Context<'_>,
) -> Option<F::Output> {
    match Pin::new(operation.as_mut()?).poll(context) {
        Poll::Ready(output) => {
            *operation = None;
            Some(output)
        }
        Poll::Pending => None,
    }
}

/// Seals a batch after the one taken before it: slots only rise, and large batches are sealed on threads that run in any
/// order. The batch before was polled first, and the lock is fair.
async fn seal(shared: &Shared, file: &Arc<JournalFile>, batch: Batch) -> Result<(Bytes, Batch), String> {
    let _turn = if active(&shared.env, Mutant::SealInAnyOrder) {
        None
    } else {
        Some(shared.sealing.lock().await)
    };
    let inline_bytes = SEAL_INLINE_BYTES.min(shared.config.file_bytes / SEAL_INLINE_PART);
    let sealed = if batch.framed_bytes <= inline_bytes {
        batch.seal(file).map(|bytes| (bytes, batch))
    } else {
        let file = file.clone();
        shared
            .env
            .compute(move || batch.seal(&file).map(|bytes| (bytes, batch)))
            .await
    };
    sealed.map_err(|error| error.to_string())
}

async fn write(
    shared: Arc<Shared>,
    file: Arc<JournalFile>,
    batch: Batch,
) -> Result<(Sequence, BatchNote), String> {
    let (last, note) = (batch.last(), batch.note(&shared.env));
    let (bytes, batch) = seal(&shared, &file, batch).await?;
    shared.env.fault_point("journal.before_write").await;
    repeat_while_full(&shared, || {
        file.handle.write_at(batch.offset(), vec![bytes.clone()])
    })
    .await?;
    shared.env.fault_point("journal.after_write").await;
    Ok((last, note))
}

async fn write_and_sync(shared: Arc<Shared>, file: Arc<JournalFile>, batch: Batch) -> Result<Synced, String> {
    let synced = Synced {
        covers: batch.last(),
        batch: Some(batch.note(&shared.env)),
    };
    let (bytes, batch) = seal(&shared, &file, batch).await?;
    shared.env.fault_point("journal.before_write_and_sync").await;
    repeat_while_full(&shared, || {
        file.handle.write_and_sync(batch.offset(), vec![bytes.clone()])
    })
    .await?;
    shared.env.fault_point("journal.after_write_and_sync").await;
    Ok(synced)
}

async fn sync(shared: Arc<Shared>, file: Arc<JournalFile>, covers: Sequence) -> Result<Synced, String> {
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
                    shared.lock().stalled = None;
                }
                return Ok(());
            }
            Err(error @ DiskError::Full { .. }) => {
                tracing::warn!(%error, "journal writes wait for the disk");
                shared.lock().stalled = Some(error.to_string());
                stalled = true;
                shared.env.sleep(RETRY).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
