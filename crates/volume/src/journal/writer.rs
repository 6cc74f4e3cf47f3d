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
//! A small batch that is synced may take zeros along for those that follow ([`super::zeroing`]); until it is written, nothing
//! else is, for what is behind it would be overwritten.
//!
//! A sync covers exactly what had been written when it began. The file before is durable before the next one is written to:
//! so whatever is found in a file proves that all before that file was durable (which tells damage from a torn tail).

use super::{
    JournalConfig, JournalError,
    batch::{Batch, RETRY, Synced, sync, write, write_and_sync},
    file::{JournalFile, spare_path_of},
    record::Sequence,
    spares::Spares,
    state::{BatchNote, FileEntry, Shared, State},
    zeroing::ZeroAhead,
};
use firn_env::Env;
use firn_format::{VolumeId, WriterId};
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

/// Written and unsynced bytes that start a sync though nobody waits, so that no later sync has much more than this to do;
/// a quarter of a file if that is less.
const SYNC_BYTES: u64 = 16 << 20;

/// How long a small record nobody waits for stays in memory: long enough for its COMMIT to come and share the write.
const LINGER: Duration = Duration::from_millis(5);

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
        config: &JournalConfig,
        spares: &Spares,
    ) -> Result<JournalFile, JournalError> {
        let owner = (self.volume, self.writer);
        if let Some(spare) = spares.take() {
            let numbers = (spare, number);
            match JournalFile::recycle(env, &self.keys, owner, directory, numbers, config.file_bytes).await {
                Ok(file) => return Ok(file),
                Err(error) => {
                    tracing::warn!(%error, "a spare journal file cannot be used again; a new one is made");
                    // Under whichever name it is; if even that fails, the next start looks for it.
                    let _ = env.disk().remove(&spare_path_of(directory, spare)).await;
                }
            }
        }
        let attempt = || JournalFile::create(env, &self.keys, owner, directory, number, config.file_bytes);
        match attempt().await {
            Err(JournalError::NoSpace { .. }) if config.reclaimer.0.is_some() => {
                // With as much again for the file system's own needs, so that the attempt does not fail for a block.
                config
                    .reclaimer
                    .reclaim(config.file_bytes + config.file_bytes / 8)
                    .await;
                attempt().await
            }
            other => other,
        }
    }
}

type Operation<T> = Option<BoxFuture<'static, Result<T, String>>>;

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
    /// And zeros behind it: nothing may be written there before it is done.
    sync_zeroes: bool,
    zero_ahead: ZeroAhead,
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
        let zero_ahead = ZeroAhead::new(shared.config.file_bytes, current.is_recycled());
        Self {
            shared,
            maker,
            current,
            opened: false,
            write: None,
            sync: None,
            prepare: None,
            sync_writes: false,
            sync_zeroes: false,
            zero_ahead,
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
            if self.written > self.durable && !firn_env::planted!("volume.skip_sync_before_rotation") {
                self.start_sync();
                return false;
            }
            let number = front.record.file;
            let Some(entry) = state.files.get(&number) else {
                return false;
            };
            self.current = entry.file.clone();
            self.opened = false;
            self.zero_ahead.begin_file(self.current.is_recycled());
            state.writing_file = number;
            state.counters.rotations += 1;
        }
        let last_waiter = state.durable_waiters.last_key_value().map(|((last, _), _)| *last);
        let asked =
            last_waiter.is_some_and(|last| last > self.written.0) || !state.written_waiters.is_empty();
        let bulk = state.queued_bytes >= self.shared.bulk_bytes();
        if self.sync.is_some() {
            if bulk && (!self.sync_zeroes || firn_env::planted!("volume.write_beside_zeros")) {
                let batch = self.take_batch(state);
                self.start_plain_write(batch);
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
            let batch = self.take_batch(state);
            self.start_plain_write(batch);
            return false;
        }
        let batch = self.take_batch(state);
        if state.closing || first_waiter.is_some_and(|first| first <= batch.last()) {
            let is_alone = state.queue.is_empty();
            self.start_write_and_sync(batch, is_alone);
        } else {
            self.start_plain_write(batch);
        }
        false
    }

    fn start_plain_write(&mut self, batch: Batch) {
        self.zero_ahead.passed(batch.end());
        self.write = Some(Box::pin(write(self.shared.clone(), self.current.clone(), batch)));
    }

    fn start_write_and_sync(&mut self, batch: Batch, is_alone: bool) {
        let zero_bytes = self.zero_ahead.take(batch.framed_bytes, batch.end(), is_alone);
        self.sync_writes = true;
        self.sync_zeroes = zero_bytes > 0;
        self.unsynced_bytes = 0;
        self.sync = Some(Box::pin(write_and_sync(
            self.shared.clone(),
            self.current.clone(),
            batch,
            zero_bytes,
        )));
    }

    fn start_sync(&mut self) {
        self.sync_writes = false;
        self.sync_zeroes = false;
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
        self.sync_zeroes = false;
        if let Some((last, batch)) = self.ahead.take() {
            self.note_written(last, batch);
        }
        self.durable = if firn_env::planted!("volume.fsync_covers_later_writes") {
            self.written
        } else {
            synced.covers
        };
        self.shared.note_durable(self.durable);
    }

    fn note_made(&mut self, made: Result<JournalFile, JournalError>) {
        match made {
            Ok(file) => {
                self.shared.unstall();
                let mut state = self.shared.lock();
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
                self.shared.stall(&error);
                let state = self.shared.lock();
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
                .make(
                    &shared.env,
                    &shared.directory,
                    number,
                    &shared.config,
                    &shared.spares,
                )
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
