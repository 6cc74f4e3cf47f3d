//! Errors of the journal, and what is safe when they come.

use firn_env::DiskError;
use std::time::Duration;

/// A failure of the journal.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refused an operation outside the write path (opening, reading, removing); nothing is lost.
    #[error("journal: {0}")]
    Disk(#[from] DiskError),
    /// There is no space for a journal file, without which nothing can be acknowledged. Nothing is lost; make room and start
    /// again.
    #[error(
        "no space for the journal file {path}: {needed_bytes} bytes are needed and {free_bytes} are free; make room on the \
         disk (the cache may be removed), nothing is lost"
    )]
    NoSpace {
        /// The file.
        path: String,
        /// Its size.
        needed_bytes: u64,
        /// What the disk has.
        free_bytes: u64,
    },
    /// A write or an fsync failed. The kernel may have dropped dirty pages, so memory and disk can no longer be told apart:
    /// nothing more is acknowledged, and only a restart, which reads what is really there, helps.
    #[error("the journal failed and acknowledges nothing more until a restart: {detail}")]
    Failed {
        /// The disk's words.
        detail: String,
    },
    /// The journal was closed; what was appended before is durable.
    #[error("the journal is closed")]
    Closed,
    /// A file is not readable with the keys at hand. Nothing was changed; start again with the right key ring.
    #[error("journal file {path} cannot be opened with this volume's keys: {detail}")]
    WrongKey {
        /// The file.
        path: String,
        /// Which key is missing, or what the seal said.
        detail: String,
    },
    /// A file belongs to another volume: the directory is not this volume's journal. Nothing was changed.
    #[error(
        "journal file {path} belongs to volume {found}, not to {expected}; is the state directory the right one?"
    )]
    ForeignVolume {
        /// The file.
        path: String,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// A file of an unknown format version, or not a journal file in spite of its name.
    #[error("journal file {path} is not readable by this build: {detail}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the decoder said.
        detail: String,
    },
    /// Bytes that had been durable are not what was written. What comes after them cannot be replayed.
    #[error("journal file {path} is damaged at byte {offset}: {detail}")]
    Damaged {
        /// The file.
        path: String,
        /// Where.
        offset: u64,
        /// What was found.
        detail: String,
    },
    /// Records that no committed root covers are not there: a file was removed, or the root was rolled back.
    #[error(
        "journal records {first} to {last} are missing before {path}; the committed root covers only up to {covered}"
    )]
    Missing {
        /// The file that starts too late.
        path: String,
        /// First missing sequence.
        first: u64,
        /// Last missing sequence.
        last: u64,
        /// The sequence the root covers.
        covered: u64,
    },
    /// The record was under a committed root and its file is gone; read the object from the log instead.
    #[error("journal record {sequence} was trimmed; its data is in the log")]
    Trimmed {
        /// The record.
        sequence: u64,
    },
    /// Sizes that cannot work together.
    #[error("journal configuration: {detail}")]
    Configuration {
        /// Which, and what would work.
        detail: String,
    },
}

/// No space in the journal within the time allowed; the client is to try again, nothing is lost.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the journal has no room for {needed_bytes} bytes after {} ms: {detail}", waited.as_millis())]
pub struct JournalFull {
    /// What was asked for.
    pub needed_bytes: u64,
    /// How long it was waited for.
    pub waited: Duration,
    /// Why there is none.
    pub detail: String,
}
