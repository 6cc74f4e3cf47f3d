//! Counters of a journal.

/// Counters since the start, and the present state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStatistics {
    /// Records appended.
    pub records: u64,
    /// Bytes of their payloads.
    pub record_bytes: u64,
    /// Writes to the disk; a write holds one record or many.
    pub writes: u64,
    /// Syncs of the disk; fewer than records where clients share them.
    pub syncs: u64,
    /// Changes to a new file.
    pub rotations: u64,
    /// Requests that had to wait for space.
    pub space_waits: u64,
    /// Bytes of the files in use, up to the next record.
    pub used_bytes: u64,
    /// Bytes that all files may take.
    pub capacity_bytes: u64,
    /// Bytes appended and not yet with the kernel.
    pub queued_bytes: u64,
    /// Files on the disk, the prepared and the spare ones included.
    pub files: u64,
    /// Why writing waits at the moment, if it does.
    pub stalled: Option<String>,
}
