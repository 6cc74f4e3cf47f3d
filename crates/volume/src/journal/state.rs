//! Shared state of the journal's callers and its writer: the queue, the files, the space, and who waits for what.
//!
//! A record's place (file, offset, slot) is fixed the moment it is appended, by a cursor that runs ahead of the writer: sizes
//! after sealing are known beforehand. So a [`RecordRef`] never changes, and whether a record fits is known before its
//! request is accepted.
//!
//! Space is promised by [`Reservation`]s and only out of files that exist, preallocated: a full disk shows as a refused
//! reservation, never as a failed append. Since a record is never split, each file may lose up to one largest record at its
//! end; the promise counts with that. Ordinary reservations leave the configured reserve untouched, and stop earlier, at
//! [`QUEUE_BYTES`] of memory waiting to be written.
//!
//! One short mutex guards it all; nothing is awaited and no system call is made under it.

use super::{
    JournalConfig, JournalError, JournalStatistics, ReserveClass,
    file::JournalFile,
    layout::{Cursor, FIRST_RECORD_OFFSET, framed, largest_framed},
    recent::RecentRecords,
    record::{Appended, RecordRef, Sequence},
    spares::Spares,
};
use bytes::Bytes;
use firn_env::{Env, LogLimiter, Monotonic, Wait};
use firn_seal::SEALED_OVERHEAD_BYTES;
use futures::channel::oneshot;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

/// Granted or queued bytes not yet handed to the kernel: four write batches. More would only move the wait from the client
/// to the server's memory.
pub(super) const QUEUE_BYTES: u64 = 32 << 20;

/// Queued bytes that are worth a write though nobody waits; a sixteenth of a file if that is less.
const BULK_BYTES: u64 = 1 << 20;

/// Cancelled waiters are swept once so many wait.
const SWEEP_WAITERS: usize = 64;

/// Shared by all handles and the writer.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) config: JournalConfig,
    pub(super) directory: String,
    /// Wakes the writer.
    pub(super) wake: Notify,
    /// Records up to here are with the kernel.
    pub(super) written: AtomicU64,
    /// Records up to here are durable.
    pub(super) durable: AtomicU64,
    pub(super) recent: Mutex<RecentRecords>,
    pub(super) spares: Spares,
    /// Held while a batch is sealed, in the order in which batches were taken off the queue.
    pub(super) sealing: tokio::sync::Mutex<()>,
    /// About a disk that is full.
    pub(super) complaints: LogLimiter,
    state: Mutex<State>,
}

/// A record between `append` and the kernel.
pub(super) struct Pending {
    pub(super) record: RecordRef,
    pub(super) parts: Vec<Bytes>,
    pub(super) appended_at: Monotonic,
}

/// A journal file as the accounting sees it.
pub(super) struct FileEntry {
    pub(super) file: Arc<JournalFile>,
    /// Allocated on the disk.
    pub(super) bytes: u64,
    /// Its last record, once the cursor has left it; `None` while it is in use or waits to be used.
    pub(super) last: Option<Sequence>,
}

type Waiters = BTreeMap<(u64, u64), oneshot::Sender<Result<(), JournalError>>>;

struct SpaceWaiter {
    framed_bytes: u64,
    granted: oneshot::Sender<Reservation>,
}

pub(super) struct State {
    /// The sequence the next record gets.
    pub(super) next: Sequence,
    pub(super) cursor: Cursor,
    pub(super) files: BTreeMap<u64, FileEntry>,
    /// The first sequence of each file the cursor has entered and the writer has not.
    pub(super) firsts: BTreeMap<u64, Sequence>,
    /// The file the writer is in; those below it are written and synced.
    pub(super) writing_file: u64,
    pub(super) queue: VecDeque<Pending>,
    pub(super) queued_bytes: u64,
    /// Queued, or taken by the writer and not yet with the kernel.
    unwritten_bytes: u64,
    granted_bytes: u64,
    pub(super) durable_waiters: Waiters,
    pub(super) written_waiters: Waiters,
    next_waiter: u64,
    space_waiters: [VecDeque<SpaceWaiter>; 2],
    /// Batches with the kernel and not yet durable: last sequence, and when their first record was appended.
    unsynced: VecDeque<(Sequence, Monotonic)>,
    pub(super) failed: Option<String>,
    pub(super) closing: bool,
    pub(super) closed: bool,
    /// Why the next file cannot be made, or the batch not be written, at the moment.
    pub(super) stalled: Option<String>,
    pub(super) counters: JournalStatistics,
}

/// Space promised for one record; given back when dropped.
#[must_use]
pub struct Reservation {
    shared: Option<Arc<Shared>>,
    framed_bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let grants = {
                let mut state = shared.lock();
                state.granted_bytes -= self.framed_bytes;
                shared.grant(&mut state)
            };
            send_grants(grants);
        }
    }
}

/// Must not be called under the lock: a waiter that is gone gives its reservation back.
pub(super) fn send_grants(grants: Grants) {
    for (sender, reservation) in grants {
        let _ = sender.send(reservation);
    }
}

/// Reservations on their way to those who waited.
pub(super) type Grants = Vec<(oneshot::Sender<Reservation>, Reservation)>;

impl Shared {
    pub(super) fn new(
        env: Env,
        directory: String,
        config: JournalConfig,
        last: Sequence,
        cursor: Cursor,
        spares: Spares,
    ) -> Self {
        Self {
            env,
            config,
            directory,
            wake: Notify::new(),
            written: AtomicU64::new(last.0),
            durable: AtomicU64::new(last.0),
            recent: Mutex::default(),
            spares,
            sealing: tokio::sync::Mutex::default(),
            complaints: LogLimiter::default(),
            state: Mutex::new(State {
                next: Sequence(last.0 + 1),
                cursor,
                files: BTreeMap::new(),
                firsts: BTreeMap::from([(cursor.file, Sequence(last.0 + 1))]),
                writing_file: cursor.file,
                queue: VecDeque::new(),
                queued_bytes: 0,
                unwritten_bytes: 0,
                granted_bytes: 0,
                durable_waiters: Waiters::new(),
                written_waiters: Waiters::new(),
                next_waiter: 0,
                space_waiters: [VecDeque::new(), VecDeque::new()],
                unsynced: VecDeque::new(),
                failed: None,
                closing: false,
                closed: false,
                stalled: None,
                counters: JournalStatistics::default(),
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the journal's lock")
    }

    /// Queued bytes that are worth a write though nobody waits.
    pub(super) fn bulk_bytes(&self) -> u64 {
        BULK_BYTES.min(self.config.file_bytes / 16)
    }

    pub(super) fn reserve(self: &Arc<Self>, payload: u64, class: ReserveClass) -> Option<Reservation> {
        let framed_bytes = framed(payload);
        let mut state = self.lock();
        // First come, first served: nobody overtakes one who waits, or a large record would wait for ever.
        if !state.space_waiters[class as usize].is_empty() || !self.fits(&state, framed_bytes, class) {
            return None;
        }
        state.granted_bytes += framed_bytes;
        drop(state);
        Some(self.reservation(framed_bytes))
    }

    fn reservation(self: &Arc<Self>, framed_bytes: u64) -> Reservation {
        Reservation {
            shared: Some(self.clone()),
            framed_bytes,
        }
    }

    /// Queues for space; the receiver's sender is dropped when the journal fails or ends.
    pub(super) fn queue_for_space(
        self: &Arc<Self>,
        payload: u64,
        class: ReserveClass,
    ) -> Option<oneshot::Receiver<Reservation>> {
        let framed_bytes = framed(payload);
        if framed_bytes > largest_framed(self.config.file_bytes) {
            return None;
        }
        let (granted, receiver) = oneshot::channel();
        let grants = {
            let mut state = self.lock();
            if state.failed.is_some() || state.closing {
                return None;
            }
            let waiters = &mut state.space_waiters[class as usize];
            if waiters.len() >= SWEEP_WAITERS {
                waiters.retain(|waiter| !waiter.granted.is_canceled());
            }
            waiters.push_back(SpaceWaiter {
                framed_bytes,
                granted,
            });
            state.counters.space_waits += 1;
            // Space may have come back since the caller was refused.
            self.grant(&mut state)
        };
        send_grants(grants);
        Some(receiver)
    }

    /// Takes reservations for whoever waits and now fits, the reserved class first.
    pub(super) fn grant(self: &Arc<Self>, state: &mut State) -> Grants {
        let mut grants = Grants::new();
        for class in [ReserveClass::Reserved, ReserveClass::Ordinary] {
            while let Some(waiter) = state.space_waiters[class as usize].front() {
                let framed_bytes = waiter.framed_bytes;
                let gone = waiter.granted.is_canceled();
                if !gone && !self.fits(state, framed_bytes, class) {
                    break;
                }
                let waiter = state.space_waiters[class as usize].pop_front();
                if let Some(waiter) = waiter.filter(|_| !gone) {
                    state.granted_bytes += framed_bytes;
                    grants.push((waiter.granted, self.reservation(framed_bytes)));
                }
            }
        }
        grants
    }

    fn fits(&self, state: &State, framed_bytes: u64, class: ReserveClass) -> bool {
        if state.failed.is_some() || state.closing || framed_bytes > largest_framed(self.config.file_bytes) {
            return false;
        }
        let promised = state.granted_bytes + framed_bytes;
        let room = self.room(state);
        match class {
            ReserveClass::Reserved => promised <= room,
            ReserveClass::Ordinary => {
                // One record is always let in, or a queue limit below its size would stop the journal.
                let idle = state.unwritten_bytes + state.granted_bytes == 0;
                promised + self.config.reserve_bytes <= room
                    && (idle || promised + state.unwritten_bytes <= QUEUE_BYTES)
            }
        }
    }

    pub(super) fn is_full(&self, payload: u64, class: ReserveClass) -> bool {
        let state = self.lock();
        let waiting: u64 = state
            .space_waiters
            .iter()
            .flatten()
            .filter(|waiter| !waiter.granted.is_canceled())
            .map(|waiter| waiter.framed_bytes)
            .sum();
        let kept = match class {
            ReserveClass::Reserved => 0,
            ReserveClass::Ordinary => self.config.reserve_bytes,
        };
        let allocated: u64 = state.files.values().map(|entry| entry.bytes).sum();
        let more_files = self.config.capacity_bytes.saturating_sub(allocated) / self.config.file_bytes;
        let file_holds =
            self.config.file_bytes - FIRST_RECORD_OFFSET - largest_framed(self.config.file_bytes);
        let room = self.room(&state) + more_files * file_holds;
        state.stalled.is_some() || state.granted_bytes + waiting + framed(payload) + kept > room
    }

    /// Bytes of records that surely fit in the files that exist, wherever the file borders fall.
    fn room(&self, state: &State) -> u64 {
        let last_ready = state.files.last_key_value().map_or(0, |(number, _)| *number);
        let Some(files_after) = last_ready.checked_sub(state.cursor.file) else {
            return 0;
        };
        let rest = self.config.file_bytes.saturating_sub(state.cursor.offset);
        if files_after == 0 {
            return rest;
        }
        let lost = largest_framed(self.config.file_bytes);
        let blank = self.config.file_bytes - FIRST_RECORD_OFFSET;
        rest.saturating_sub(lost) + (files_after - 1) * (blank - lost) + blank
    }

    /// The number of the next file to make, if one is needed and allowed.
    pub(super) fn file_to_make(&self, state: &State) -> Option<u64> {
        let last_ready = state.files.last_key_value().map_or(0, |(number, _)| *number);
        let overrun = state.cursor.file > last_ready;
        let wanted = self.room(state) < self.config.reserve_bytes + self.config.file_bytes;
        let allocated: u64 = state.files.values().map(|entry| entry.bytes).sum();
        let allowed = allocated + self.config.file_bytes <= self.config.capacity_bytes;
        (overrun || (wanted && allowed && !state.closing)).then(|| last_ready.max(state.writing_file) + 1)
    }

    pub(super) fn append(&self, mut reservation: Reservation, parts: Vec<Bytes>) -> Appended {
        let payload: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let framed_bytes = framed(payload);
        assert!(
            framed_bytes <= largest_framed(self.config.file_bytes),
            "a record of {payload} bytes was never reserved"
        );
        debug_assert!(
            framed_bytes <= reservation.framed_bytes,
            "a record of {payload} bytes for a reservation of {}",
            reservation.framed_bytes
        );
        let appended_at = self.env.now();
        reservation.shared = None;
        let mut state = self.lock();
        state.granted_bytes -= reservation.framed_bytes;
        let sequence = state.next;
        state.next = Sequence(sequence.0 + 1);
        if state.cursor.offset + framed_bytes > self.config.file_bytes {
            let left = state.cursor.file;
            if let Some(entry) = state.files.get_mut(&left) {
                entry.last = Some(Sequence(sequence.0 - 1));
            }
            state.cursor = Cursor::start_of(left + 1);
            state.firsts.insert(left + 1, sequence);
        }
        let record = RecordRef {
            sequence,
            file: state.cursor.file,
            offset: state.cursor.offset,
            slot: state.cursor.slot,
            sealed_bytes: payload as u32 + SEALED_OVERHEAD_BYTES as u32,
        };
        state.cursor.offset += framed_bytes;
        state.cursor.slot += 1;
        let appended = Appended {
            sequence,
            record: record.clone(),
        };
        if state.failed.is_some() || state.closed {
            // It will never be durable, which is what its caller is told; its memory must not pile up.
            return appended;
        }
        state.counters.records += 1;
        state.counters.record_bytes += payload;
        let before = state.queued_bytes;
        state.queued_bytes += framed_bytes;
        state.unwritten_bytes += framed_bytes;
        state.queue.push_back(Pending {
            record,
            parts,
            appended_at,
        });
        let wake = before == 0 || (before < self.bulk_bytes() && state.queued_bytes >= self.bulk_bytes());
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        appended
    }

    /// Waits until `sequence` is durable, or only with the kernel.
    pub(super) async fn wait_for(&self, sequence: Sequence, durable: bool) -> Result<(), JournalError> {
        let reached = if durable { &self.durable } else { &self.written };
        if reached.load(Ordering::Acquire) >= sequence.0 {
            return Ok(());
        }
        let receiver = {
            let mut state = self.lock();
            if reached.load(Ordering::Acquire) >= sequence.0 {
                return Ok(());
            }
            if let Some(detail) = &state.failed {
                return Err(JournalError::Failed {
                    detail: detail.clone(),
                });
            }
            if state.closed {
                return Err(JournalError::Closed);
            }
            assert!(
                sequence < state.next,
                "nobody waits for a record that was not appended"
            );
            let (sender, receiver) = oneshot::channel();
            let key = (sequence.0, state.next_waiter);
            state.next_waiter += 1;
            let waiters = if durable {
                &mut state.durable_waiters
            } else {
                &mut state.written_waiters
            };
            waiters.insert(key, sender);
            receiver
        };
        self.wake.notify_one();
        let _waiting = self.env.waits_for(Wait::Journal);
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// The writer has handed everything up to `last` to the kernel.
    pub(super) fn note_written(self: &Arc<Self>, last: Sequence, batch: BatchNote) {
        self.written.store(last.0, Ordering::Release);
        let (ready, grants) = {
            let mut state = self.lock();
            state.unwritten_bytes -= batch.framed_bytes;
            state.counters.writes += 1;
            state.unsynced.push_back((last, batch.first_appended_at));
            (
                take_up_to(&mut state.written_waiters, last),
                self.grant(&mut state),
            )
        };
        for sender in ready {
            let _ = sender.send(Ok(()));
        }
        send_grants(grants);
    }

    /// Everything up to `last` is durable.
    pub(super) fn note_durable(&self, last: Sequence) {
        self.durable.store(last.0, Ordering::Release);
        let ready = {
            let mut state = self.lock();
            state.counters.syncs += 1;
            while state.unsynced.front().is_some_and(|(batch, _)| *batch <= last) {
                state.unsynced.pop_front();
            }
            take_up_to(&mut state.durable_waiters, last)
        };
        for sender in ready {
            let _ = sender.send(Ok(()));
        }
    }

    /// Nothing is acknowledged any more; everybody who waits is told.
    pub(super) fn fail(&self, detail: &str) {
        tracing::error!(
            directory = self.directory,
            detail,
            "the journal failed; only a restart helps"
        );
        self.end(Some(detail));
    }

    /// The disk is too full for what is to be written: said in `status` until it is over, and in the log once a minute.
    pub(super) fn stall(&self, error: &dyn fmt::Display) {
        if self.complaints.count(self.env.now()).is_some() {
            tracing::warn!(%error, "the journal waits for its disk; clients wait when the present file is full");
        }
        self.lock().stalled = Some(error.to_string());
    }

    /// The disk took what it had refused.
    pub(super) fn unstall(&self) {
        let stalled = self.lock().stalled.take();
        if stalled.is_some() {
            tracing::info!(directory = self.directory, "the journal's disk has room again");
        }
    }

    /// No writer is there any more: whoever waits is answered, whatever is queued is dropped.
    pub(super) fn end(&self, failure: Option<&str>) {
        let (waiting, dropped) = {
            let mut state = self.lock();
            if let Some(detail) = failure {
                state.failed.get_or_insert_with(|| detail.to_owned());
            }
            state.closing = true;
            state.closed = true;
            let mut waiting = std::mem::take(&mut state.durable_waiters);
            waiting.append(&mut std::mem::take(&mut state.written_waiters));
            let queue = std::mem::take(&mut state.queue);
            state.queued_bytes = 0;
            (waiting, (queue, std::mem::take(&mut state.space_waiters)))
        };
        drop(dropped);
        for sender in waiting.into_values() {
            let _ = sender.send(Err(match failure {
                Some(detail) => JournalError::Failed {
                    detail: detail.to_owned(),
                },
                None => JournalError::Closed,
            }));
        }
    }

    /// When the oldest record that is not durable was appended.
    pub(super) fn oldest_unsynced(&self) -> Option<Monotonic> {
        let state = self.lock();
        let queued = state.queue.front().map(|pending| pending.appended_at);
        state.unsynced.front().map(|(_, at)| *at).or(queued)
    }

    /// Takes the oldest file that lies wholly under `covered`, out of the accounting but not yet off the disk.
    pub(super) fn take_covered_file(&self, covered: Sequence) -> Option<FileEntry> {
        let mut state = self.lock();
        let (number, entry) = state.files.first_key_value()?;
        let last = entry.last?.0;
        let last = if firn_env::planted!("volume.trim_one_record_early") {
            last.saturating_sub(1)
        } else {
            last
        };
        let number = *number;
        // A file the writer has not left is not wholly written, whatever is covered.
        (number < state.writing_file && last <= covered.0)
            .then(|| state.files.remove(&number))
            .flatten()
    }

    /// Keeps a file that was taken out of the accounting as a spare, or removes it.
    pub(super) async fn retire(&self, entry: &FileEntry) -> Result<(), JournalError> {
        let others_bytes = self.lock().files.values().map(|other| other.bytes).sum();
        let (number, bytes) = (entry.file.number, (entry.bytes, others_bytes));
        self.spares
            .retire(&self.env, &self.directory, &self.config, number, bytes)
            .await
    }

    pub(super) fn put_back(&self, entry: FileEntry) {
        self.lock().files.insert(entry.file.number, entry);
    }

    /// Space came back or a file was made: grants are handed on and the writer looks again.
    pub(super) fn space_changed(self: &Arc<Self>) {
        let grants = {
            let mut state = self.lock();
            self.grant(&mut state)
        };
        send_grants(grants);
        self.wake.notify_one();
    }

    pub(super) fn used_bytes(&self, state: &State) -> u64 {
        let left: u64 = state
            .files
            .range(..state.cursor.file)
            .map(|(_, entry)| entry.bytes)
            .sum();
        left + state.cursor.offset
    }
}

/// What the accounting needs to know of a written batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNote {
    pub(super) framed_bytes: u64,
    pub(super) first_appended_at: Monotonic,
}

fn take_up_to(waiters: &mut Waiters, last: Sequence) -> Vec<oneshot::Sender<Result<(), JournalError>>> {
    let later = waiters.split_off(&(last.0 + 1, 0));
    std::mem::replace(waiters, later).into_values().collect()
}
