//! The spool: what makes a usage record survive until it was received.
//!
//! An appended group of observations gets the next sequence numbers, is written as one checksummed frame and synced (level 1)
//! before the appender is answered. Appenders that wait at one moment share one sync. Files are numbered and appended to
//! until they hold [`FILE_BYTES`]; a file is removed once all of its records were received and a newer one stands.
//!
//! | found at the start        | what it means                              | what happens                                      |
//! |---------------------------|--------------------------------------------|---------------------------------------------------|
//! | no file                   | a new spool, or one that was lost          | a new incarnation, numbers from 1                 |
//! | files                     | stopped, killed or without power           | synced, read, kept; a new file continues          |
//! | a torn last frame         | an append that was never answered          | dropped: its numbers are given to what comes next |
//! | a last file without head  | a file that was never used                 | removed                                           |
//! | another source, or damage | a mistake of configuration, a failing disk | an error that says which file                     |
//! | a newer version           | an older build was installed               | an error; the file is as it was                   |
//!
//! Two rules keep a number from being given twice. Nothing is sent before it is durable. And what is found at the start is
//! synced before it is believed: after a kill it may lie in the page cache only, be sent, and be lost to a power cut.
//!
//! The spool is bounded. When it is full, [`SpoolError::Full`] tells the caller, who chooses: wait (usage observed at leisure,
//! such as a listing of the cleaner), or go on without ([`Spool::forgo`]): then the lost records take their numbers along,
//! and the receiver reports the gap.

mod file;
mod open;
mod reading;
mod writer;

pub use file::VERSION as SPOOL_VERSION;

use crate::{Incarnation, Observation, SourceId, record::ObservationError};
use bytes::Bytes;
use firn_env::{DiskError, DiskFile, Env};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, mpsc, oneshot};
use writer::Wish;

/// A file is closed at this size: small enough that little is sent again after a restart (what was received from a file that
/// still stands), large enough that making and removing files does not count.
pub const FILE_BYTES: u64 = 1 << 20;
/// Observations in one append: with names of the greatest length they still fit one frame.
pub const APPEND_MAX: usize = 1024;
/// Appends waiting for the disk; more wait in their callers.
const QUEUE: usize = 256;

/// How much a spool may take.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// Bytes of all files; at least four files' worth. 64 MiB hold some five million records of an ordinary stream.
    pub max_bytes: u64,
    /// A file is closed at this size.
    pub file_bytes: u64,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 20,
            file_bytes: FILE_BYTES,
        }
    }
}

/// Why something was not recorded, or the spool cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpoolError {
    /// The limit is reached because nothing was received for long. Nothing of this append was recorded; try again later, or
    /// go on without it by `forgo`.
    #[error(
        "the usage spool {directory} is full ({used_bytes} of {max_bytes} bytes wait to be received); nothing was recorded"
    )]
    Full {
        /// Where.
        directory: String,
        /// What is in it.
        used_bytes: u64,
        /// Its limit.
        max_bytes: u64,
    },
    /// An impossible observation; nothing of this append was recorded.
    #[error("an observation was not recorded: {0}")]
    Observation(#[from] ObservationError),
    /// More than `APPEND_MAX` at once, or none; nothing was recorded.
    #[error("{0} observations in one append, 1 to {APPEND_MAX} are allowed")]
    Count(usize),
    /// Another process has the spool open.
    #[error("the usage spool {0} is in use by another process")]
    InUse(String),
    /// The directory holds the records of another source.
    #[error(
        "the usage spool {directory} belongs to {found}, not to {wanted}: give each source a directory of its own"
    )]
    OtherSource {
        /// Where.
        directory: String,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// A file contradicts the others.
    #[error(
        "{path} is damaged: {what}; move the directory away, and the receiver will report what is missing"
    )]
    Damaged {
        /// Which.
        path: String,
        /// How.
        what: &'static str,
    },
    /// A newer build wrote it, and what it holds was not received yet.
    #[error(
        "{path} was written by a newer build (version {found}, which this build does not read). Nothing was changed, and no record is \
         lost: install that version or a newer one. If none ever ran here, the file is damaged: move the directory away, and the \
         receiver will report what is missing"
    )]
    Newer {
        /// Which.
        path: String,
        /// Its version.
        found: u8,
    },
    /// A write or a sync failed: memory and disk can no longer be told apart. Open the spool again; what was answered is
    /// kept, what was not may or may not be.
    #[error("the usage spool stopped after a failed write ({0}); open it again")]
    Broken(String),
    /// The disk refused; nothing was recorded.
    #[error("the usage spool's disk refuses: {0}")]
    Disk(#[from] DiskError),
}

/// What a spool holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolStatus {
    /// In which life it is.
    pub incarnation: Incarnation,
    /// The next record's number.
    pub next_sequence: u64,
    /// All records before this number were received.
    pub received_before: u64,
    /// Bytes of its files.
    pub used_bytes: u64,
    /// Records that were forgone since the start.
    pub forgone: u64,
}

/// One file of the spool.
struct FileEntry {
    number: u64,
    file: Arc<dyn DiskFile>,
    /// After its last record.
    next_sequence: u64,
    /// What may be read and sent.
    durable_bytes: u64,
}

struct Index {
    /// Oldest first; never empty, the last one grows.
    files: VecDeque<FileEntry>,
    used_bytes: u64,
    next_sequence: u64,
    received_before: u64,
    /// Numbers to leave out before the next record.
    forgo_next: u64,
    forgone: u64,
    broken: Option<String>,
}

pub(crate) struct Shared {
    env: Env,
    directory: String,
    config: SpoolConfig,
    source: SourceId,
    incarnation: Incarnation,
    /// Owned by the writer's task, but for `received_before` and removals, which are the delivery's.
    index: Mutex<Index>,
    /// Told when there is more to send.
    grown: Notify,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("no panic under this lock")
    }

    fn path(&self, number: u64) -> String {
        file::path(&self.directory, number)
    }
}

/// An open spool; cheap to clone. When the last clone is dropped, the spool is closed.
#[derive(Clone)]
pub struct Spool {
    shared: Arc<Shared>,
    wishes: mpsc::Sender<Wish>,
}

impl Spool {
    /// Opens the spool in `directory` of the environment's disk, or makes it.
    ///
    /// # Errors
    /// [`SpoolError`]; the files are as they were.
    pub async fn open(
        env: &Env,
        directory: &str,
        source: SourceId,
        config: SpoolConfig,
    ) -> Result<Self, SpoolError> {
        let (shared, current_bytes, lock) = open::open(env, directory, source, config).await?;
        let shared = Arc::new(shared);
        let (wishes, queue) = mpsc::channel(QUEUE);
        env.spawn(
            "usage spool writer",
            writer::run(shared.clone(), queue, current_bytes, lock),
        );
        Ok(Self { shared, wishes })
    }

    /// Makes observations durable (level 1) and returns their sequence numbers.
    ///
    /// All or nothing. Cancel-safe: dropped, it may or may not have happened.
    ///
    /// # Errors
    /// [`SpoolError`]; but for [`SpoolError::Broken`], nothing of it is recorded.
    pub async fn append(&self, observations: Vec<Observation>) -> Result<Range<u64>, SpoolError> {
        if observations.is_empty() || observations.len() > APPEND_MAX {
            return Err(SpoolError::Count(observations.len()));
        }
        for observation in &observations {
            observation.check()?;
        }
        let count = observations.len() as u64;
        let (done, answer) = oneshot::channel();
        let wish = Wish { observations, done };
        if self.wishes.send(wish).await.is_err() {
            return Err(self.broken());
        }
        let first = answer.await.map_err(|_| self.broken())??;
        Ok(first..first + count)
    }

    /// Goes on without `records` that found no room: their numbers are left out, so that the receiver sees a gap. Kept in
    /// memory until the next append.
    pub fn forgo(&self, records: u64) {
        let mut index = self.shared.index();
        index.forgo_next = index.forgo_next.saturating_add(records);
        index.forgone = index.forgone.saturating_add(records);
    }

    /// Who observes.
    pub fn source(&self) -> &SourceId {
        &self.shared.source
    }

    /// What it holds.
    pub fn status(&self) -> SpoolStatus {
        let index = self.shared.index();
        SpoolStatus {
            incarnation: self.shared.incarnation,
            next_sequence: index.next_sequence,
            received_before: index.received_before,
            used_bytes: index.used_bytes,
            forgone: index.forgone,
        }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.shared.env
    }

    /// Completes when there may be more to send.
    pub(crate) async fn grown(&self) {
        self.shared.grown.notified().await;
    }

    fn broken(&self) -> SpoolError {
        let why = self.shared.index().broken.clone();
        SpoolError::Broken(why.unwrap_or_else(|| "its writer has ended".into()))
    }
}

pub(crate) use reading::Cursor;

/// A file's first bytes.
struct NewFile {
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

/// Makes file `number` with its header, durably, name and all.
async fn create(
    env: &Env,
    directory: &str,
    number: u64,
    header: &file::Header,
) -> Result<NewFile, DiskError> {
    let path = file::path(directory, number);
    let file = env.disk().open(&path, firn_env::OpenMode::CreateNew).await?;
    env.fault_point("usage.spool.file_created").await;
    let bytes = Bytes::from(header.encode());
    let length = bytes.len() as u64;
    file.write_and_sync(0, vec![bytes]).await?;
    env.fault_point("usage.spool.header_synced").await;
    if !firn_env::planted!("usage.skip_directory_sync") {
        env.disk().sync_directory(directory).await?;
    }
    Ok(NewFile { file, bytes: length })
}
