//! Volume configuration: what an administrator may set, with defaults that suit a branch office.

use crate::{
    cloud_durability::OnDisconnect,
    objects::{FetchPolicy, FetchPrices},
    state::State,
};
use firn_seal::Compression;
use std::time::Duration;

/// How a volume uses memory, disk and cloud. All limits are hard.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// ReadView to whoever wants to know which edge owns the volume.
    pub owner_name: String,
    /// A segment is closed at this size. Larger ones cost fewer requests, smaller ones less when a checkpoint is small.
    pub segment_bytes: u64,
    /// Segments being uploaded at one time; each holds its bytes in memory.
    pub uploads_max: usize,
    /// Compression before sealing.
    pub compression: Compression,
    /// Opened objects in memory.
    pub memory_cache_bytes: u64,
    /// Sealed objects on the local disk.
    pub disk_cache_bytes: u64,
    /// All journal files together: how far the cloud may fall behind before writers are slowed.
    pub journal_bytes: u64,
    /// One journal file.
    pub journal_file_bytes: u64,
    /// Written data kept in memory; beyond it the oldest is read back from the journal when needed.
    pub dirty_memory_bytes: u64,
    /// When the next checkpoint starts.
    pub cadence: Cadence,
    /// What `df` shows as the size of the volume.
    pub quota_bytes: u64,
    /// How much of a segment is fetched at once.
    pub fetch: FetchPolicy,
    /// What the adaptive policy reckons with.
    pub fetch_prices: FetchPrices,
    /// How long a request waits for journal space or the store before the client is told to try again.
    pub wait_limit: Duration,
    /// What becomes of calls that are to be answered at level 2 while the cloud does not take anything.
    pub on_disconnect: OnDisconnect,
    /// Of a volume that many write at the same moment: what is unpublished takes the measured uplink so long at most, and so long do others wait for a lease.
    pub recall_within: Duration,
    /// How often a volume that commits asks whether the cleaner proposes anything: one read of the table.
    pub merge_every: Duration,
}

/// When a checkpoint starts: it costs money, and the journal already holds the data, so a trickle waits longer.
#[derive(Clone, Copy, Debug)]
pub struct Cadence {
    /// At most this long after the first change, when busy.
    pub busy: Duration,
    /// At once, when this much data waits.
    pub busy_bytes: u64,
    /// At most this long after the first change, when not busy.
    pub trickle: Duration,
}

impl Default for Cadence {
    fn default() -> Self {
        Self {
            busy: Duration::from_secs(5),
            busy_bytes: 32 << 20,
            trickle: Duration::from_secs(30),
        }
    }
}

impl Cadence {
    /// Changes below this much data and this many records are a trickle.
    pub const TRICKLE_BYTES: u64 = 1 << 20;
    /// See [`Cadence::TRICKLE_BYTES`].
    pub const TRICKLE_RECORDS: u64 = 256;
    /// A checkpoint starts at once beyond this many changed inodes, of about 1 KiB of memory each.
    pub const INODES_SOFT: usize = 20_000;
    /// Writers wait beyond this many.
    pub const INODES_HARD: usize = 60_000;
    /// A checkpoint starts at once beyond this many records, of about 200 bytes of memory each besides their data.
    pub const RECORDS_SOFT: u64 = 200_000;
    /// Writers wait beyond this many.
    pub const RECORDS_HARD: u64 = 600_000;
}

impl Cadence {
    /// Whether memory is meant for one more change.
    pub(crate) fn has_room(state: &State) -> bool {
        state.records_since_freeze() < Self::RECORDS_HARD && state.dirty_inodes() < Self::INODES_HARD
    }

    /// Whether so much has changed that the next checkpoint starts at once.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        state.dirty_bytes() >= self.busy_bytes
            || state.records_since_freeze() >= Self::RECORDS_SOFT
            || state.dirty_inodes() >= Self::INODES_SOFT
    }

    /// How long the first change may wait, by how much has changed since.
    pub(crate) fn limit(&self, state: &State) -> Duration {
        let trickle =
            state.dirty_bytes() < Self::TRICKLE_BYTES && state.records_since_freeze() < Self::TRICKLE_RECORDS;
        if trickle { self.trickle } else { self.busy }
    }
}

impl Default for VolumeConfig {
    fn default() -> Self {
        Self {
            owner_name: "edge".into(),
            segment_bytes: 4 << 20,
            uploads_max: 4,
            compression: Compression::Lz4,
            memory_cache_bytes: 48 << 20,
            disk_cache_bytes: 10 << 30,
            journal_bytes: 4 << 30,
            journal_file_bytes: 64 << 20,
            dirty_memory_bytes: 96 << 20,
            cadence: Cadence::default(),
            quota_bytes: 1 << 50,
            fetch: FetchPolicy::Adaptive,
            fetch_prices: FetchPrices::default(),
            wait_limit: Duration::from_secs(10),
            on_disconnect: OnDisconnect::Wait,
            recall_within: Duration::from_secs(60),
            // 43,800 reads a month, a cent, if it never stops.
            merge_every: Duration::from_secs(60),
        }
    }
}
