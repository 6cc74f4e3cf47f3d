//! The journal: the volume's write-ahead log, which makes an acknowledged write survive.
//!
//! Requests become records, numbered without gaps in the order they were appended. Records are sealed into numbered,
//! preallocated files; whoever waits for durability at one moment shares one fsync (group commit), so its cost falls as load
//! grows. A record is never split over two files.
//!
//! ```text
//! file      = header | opening record | record* | zeros, or an earlier use   (framing: firn_format; sealing: firn_seal)
//! opening   = sequence of the file's first record
//! ```
//!
//! **Appending** never waits and never fails: space was reserved before, in files that exist. **Recovery** reads the files in
//! order and keeps every record up to the first that is not whole. It never resumes a file it found (a torn record's slot must
//! not be sealed twice, I5): each start opens a new one, and its opening record says which sequence it continues from. So a
//! torn tail in any file is legitimate exactly if the next file continues where the whole records end; otherwise durable
//! records are missing, which is damage and stops the start (I6). What recovery keeps it first makes durable: records that a
//! killed process left in the kernel's memory may be built upon only after that.
//!
//! **Trimming** takes files that lie wholly under a committed root, oldest first: a few become spare files that are used again under
//! another number and salt ([`spares`]), the others are removed. No file is ever made longer.
//!
//! A failed write or fsync is a crash, not a retry: the kernel may have dropped the pages. From then on nothing is
//! acknowledged. The directory belongs to one process at a time; whoever opens the journal holds the state directory's lock.

mod batch;
mod config;
mod error;
mod file;
mod layout;
mod recent;
mod reclaim;
mod record;
mod recovery;
mod replay;
mod scan;
mod seal_buffers;
mod spares;
mod state;
mod statistics;
#[cfg(test)]
mod tests;
mod writer;
mod zeroing;

pub use config::{JournalConfig, ReserveClass};
pub use error::{JournalError, JournalFull};
pub use reclaim::{Reclaim, Reclaimer};
pub use record::{Appended, RecordRef, Sequence};
pub use replay::{Replay, ReplayRecord};
pub use state::Reservation;
pub use statistics::JournalStatistics;

use bytes::Bytes;
use firn_env::{Env, Monotonic, Task};
use firn_format::{VolumeId, WriterId};
use firn_seal::Keys;
use layout::{Cursor, RECORD_ADDED_BYTES, largest_framed};
use recovery::Survey;
use spares::Spares;
use state::{FileEntry, Shared};
use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};
use writer::{FileMaker, Writer};

/// A volume's journal; cheap to clone. When the last clone is dropped, what was appended is written, synced and closed.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
    writer: Mutex<Option<Task<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
    }
}

impl Journal {
    /// Opens a directory (made if absent), finds every record after `covered` for the returned [`Replay`], and starts a new
    /// file. `covered` is what the volume's committed root contains.
    ///
    /// # Errors
    /// If the directory holds another volume's journal, damage, or files the keys do not open, or the disk refuses. Nothing
    /// acknowledged is changed by a failed open.
    pub async fn open(
        env: &Env,
        keys: &Keys,
        volume: VolumeId,
        writer: WriterId,
        directory: &str,
        covered: Sequence,
        config: JournalConfig,
    ) -> Result<(Self, Replay), JournalError> {
        config.check()?;
        env.fault_point("journal.open").await;
        make_directory(env, directory).await?;
        let survey = Survey::take(env, keys, volume, directory, covered, recovery::Purpose::Serve).await?;
        survey.make_durable(env, directory).await?;
        let spares = survey.retire_useless(env, directory, &config).await?;
        env.fault_point("journal.after_recovery").await;

        let last = survey.last;
        let number = if firn_env::planted!("volume.reuse_found_journal_file") {
            survey.highest_number.max(1)
        } else {
            survey.highest_number + 1
        };
        let maker = FileMaker {
            keys: keys.clone(),
            volume,
            writer,
        };
        let file = Arc::new(maker.make(env, directory, number, &config, &spares).await?);
        let shared = Arc::new(Shared::new(
            env.clone(),
            directory.to_owned(),
            config,
            last,
            Cursor::start_of(number),
            spares,
        ));
        {
            let mut state = shared.lock();
            for found in survey.files.iter().filter(|found| found.last > covered) {
                let entry = FileEntry {
                    file: found.file.clone(),
                    bytes: found.bytes,
                    last: Some(found.last),
                };
                state.files.insert(found.file.number, entry);
            }
            let entry = FileEntry {
                file: file.clone(),
                bytes: shared.config.file_bytes,
                last: None,
            };
            state.files.insert(number, entry);
        }
        let task = Writer::new(shared.clone(), maker, file, last);
        let task = env.spawn("journal writer", task.run());
        let owner = Arc::new(Owner {
            shared: shared.clone(),
            writer: Mutex::new(Some(task)),
        });
        Ok((Self { shared, owner }, Replay::new(survey, covered)))
    }

    /// The journal of who changes nothing: it has no file and takes no record.
    pub fn absent(env: &Env, file_bytes: u64) -> Self {
        let config = JournalConfig {
            file_bytes,
            capacity_bytes: 0,
            reserve_bytes: 0,
            reclaimer: Reclaimer::default(),
        };
        let (last, cursor) = (Sequence(0), Cursor::start_of(0));
        let directory = String::new();
        let shared = Shared::new(env.clone(), directory, config, last, cursor, Spares::default());
        {
            let mut state = shared.lock();
            (state.closing, state.closed) = (true, true);
        }
        let shared = Arc::new(shared);
        let owner = Arc::new(Owner {
            shared: shared.clone(),
            writer: Mutex::default(),
        });
        Self { shared, owner }
    }

    /// Reads a directory without changing anything in it, for salvage and inspection.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub async fn read_only(
        env: &Env,
        keys: &Keys,
        volume: VolumeId,
        directory: &str,
        covered: Sequence,
    ) -> Result<Replay, JournalError> {
        let survey = Survey::take(env, keys, volume, directory, covered, recovery::Purpose::Inspect).await?;
        Ok(Replay::new(survey, covered))
    }

    /// Queues a record, the concatenation of `parts`, after all before it. Never waits, so it may be called under a lock.
    ///
    /// # Panics
    /// If the record is larger than any reservation can be.
    pub fn append(&self, reservation: Reservation, parts: Vec<Bytes>) -> Appended {
        self.shared.append(reservation, parts)
    }

    /// Promises space for a record of `bytes`; `None` if there is none for this class now.
    pub fn reserve(&self, bytes: u64, class: ReserveClass) -> Option<Reservation> {
        self.shared.reserve(bytes, class)
    }

    /// Whether only a trim makes space for all who were promised some or wait for it, and for one more record: the files that
    /// there are and those that may still be made do not hold them, or no file can be made at the moment. A refused
    /// reservation does not mean that: mostly the disk just takes what is queued.
    pub fn is_full(&self, bytes: u64, class: ReserveClass) -> bool {
        self.shared.is_full(bytes, class)
    }

    /// Waits for space, at most for `limit`, in the order of asking. Cancel-safe.
    ///
    /// # Errors
    /// [`JournalFull`] if there was none in time; the client is to be told to come again.
    pub async fn wait_for_space(
        &self,
        bytes: u64,
        class: ReserveClass,
        limit: Duration,
    ) -> Result<Reservation, JournalFull> {
        if let Some(reservation) = self.reserve(bytes, class) {
            return Ok(reservation);
        }
        let started = self.shared.env.now();
        let granted = match self.shared.queue_for_space(bytes, class) {
            Some(receiver) => self.shared.env.timeout(limit, receiver).await,
            None => Ok(Err(futures::channel::oneshot::Canceled)),
        };
        if let Ok(Ok(reservation)) = granted {
            return Ok(reservation);
        }
        let state = self.shared.lock();
        let detail = if let Some(detail) = &state.failed {
            format!("it failed: {detail}")
        } else if state.closing {
            "it is closed".into()
        } else if bytes > self.largest_record_bytes() {
            format!("one record holds at most {} bytes", self.largest_record_bytes())
        } else if let Some(stalled) = &state.stalled {
            stalled.clone()
        } else {
            "it waits for the cloud to take what it holds".into()
        };
        Err(JournalFull {
            needed_bytes: bytes,
            waited: self.shared.env.now().since(started),
            detail,
        })
    }

    /// The largest payload of one record.
    pub fn largest_record_bytes(&self) -> u64 {
        largest_framed(self.shared.config.file_bytes) - RECORD_ADDED_BYTES
    }

    /// Waits until the record and all before it are durable (level 1). Cancel-safe.
    ///
    /// # Errors
    /// If the journal failed or was closed first: then nobody may be told that it is.
    ///
    /// # Panics
    /// If no record with that number was appended.
    pub async fn durable(&self, sequence: Sequence) -> Result<(), JournalError> {
        if firn_env::planted!("volume.acknowledge_before_fsync") {
            return Ok(());
        }
        self.shared.wait_for(sequence, true).await
    }

    /// Whether the record is with the kernel, so that it can be read back and its memory copy be dropped.
    pub fn is_written(&self, record: &RecordRef) -> bool {
        record.sequence.0 <= self.shared.written.load(Ordering::Acquire)
    }

    /// Reads a whole record back and opens it; waits for it to be written first. The last few are kept opened.
    ///
    /// # Errors
    /// [`JournalError::Trimmed`] if it is under a committed root and gone; otherwise if the disk or the seal say so.
    pub async fn read(&self, record: &RecordRef) -> Result<Bytes, JournalError> {
        let recent = || self.shared.recent.lock().expect("no panic under this lock");
        if let Some(payload) = recent().get(record.sequence) {
            return Ok(payload);
        }
        self.shared.wait_for(record.sequence, false).await?;
        let trimmed = || JournalError::Trimmed {
            sequence: record.sequence.0,
        };
        let file = self
            .shared
            .lock()
            .files
            .get(&record.file)
            .map(|entry| entry.file.clone())
            .ok_or_else(trimmed)?;
        let payload = match file.read(record).await {
            // Trimmed meanwhile, and its file used again: what was there is under a committed root.
            Err(JournalError::Damaged { .. }) if !self.shared.lock().files.contains_key(&record.file) => {
                return Err(trimmed());
            }
            read => read?,
        };
        recent().insert(record.sequence, payload.clone());
        Ok(payload)
    }

    /// Everything up to `covered` is under a committed root: files wholly below are retired, their space returns.
    ///
    /// # Errors
    /// If the disk refuses; the file stays and the next trim tries again.
    pub async fn trim(&self, covered: Sequence) -> Result<(), JournalError> {
        let env = &self.shared.env;
        while let Some(entry) = self.shared.take_covered_file(covered) {
            env.fault_point("journal.before_trim").await;
            if let Err(error) = self.shared.retire(&entry).await {
                self.shared.put_back(entry);
                return Err(error);
            }
            env.fault_point("journal.after_trim_remove").await;
            self.shared.space_changed();
        }
        Ok(())
    }

    /// The number of the last record appended.
    pub fn last(&self) -> Sequence {
        Sequence(self.shared.lock().next.0 - 1)
    }

    /// Records up to here are durable (level 1).
    pub fn durable_to(&self) -> Sequence {
        Sequence(self.shared.durable.load(Ordering::Acquire))
    }

    /// Bytes of the files in use, up to the next record.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes(&self.shared.lock())
    }

    /// When the oldest record that is not durable yet was appended.
    pub fn oldest_unsynced(&self) -> Option<Monotonic> {
        self.shared.oldest_unsynced()
    }

    /// Counters and the present state.
    pub fn statistics(&self) -> JournalStatistics {
        let state = self.shared.lock();
        JournalStatistics {
            used_bytes: self.shared.used_bytes(&state),
            capacity_bytes: self.shared.config.capacity_bytes,
            queued_bytes: state.queued_bytes,
            files: (state.files.len() + self.shared.spares.count()) as u64,
            stalled: state.stalled.clone(),
            ..state.counters.clone()
        }
    }

    /// Why nothing is acknowledged any more, if so.
    pub fn failed(&self) -> Option<String> {
        self.shared.lock().failed.clone()
    }

    /// Writes and syncs everything appended, and stops the writer. What is appended later is never durable.
    pub async fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
        let task = self.owner.writer.lock().expect("no panic under this lock").take();
        if let Some(task) = task {
            // A writer that was aborted has nothing more to say.
            let _ = task.await;
        }
    }
}

/// Makes a directory with its parents, all of their names durable: a durable file in a directory that is gone is gone too.
async fn make_directory(env: &Env, directory: &str) -> Result<(), JournalError> {
    env.disk().create_directory(directory).await?;
    let mut path = directory;
    loop {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        env.disk().sync_directory(parent).await?;
        if parent.is_empty() {
            return Ok(());
        }
        path = parent;
    }
}
