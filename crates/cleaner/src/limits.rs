//! How much one run may do, and how eager it is.

use std::time::Duration;

/// Bounds of one run. The defaults fit a function of 256 MB and a minute.
#[derive(Clone, Debug)]
pub struct Limits {
    /// After this no new batch is begun and no more is deleted. A batch under way ends within seconds more.
    pub time: Duration,
    /// Pages of the log's listing a run looks at, a thousand segments each; the next run goes on behind them.
    pub list_pages: usize,
    /// Segments whose index a run reads at most.
    pub judged_segments: usize,
    /// Bytes of live objects that are moved together, held in memory while they are.
    pub batch_bytes: u64,
    /// Batches of one run.
    pub batches: usize,
    /// Bytes of nodes, inodes and checkpoints kept in memory, verified.
    pub cache_bytes: usize,
    /// A segment is worth moving out of only if so much of it is free, in thousandths. Below, moving the rest costs more
    /// than the space brings.
    pub free_per_mille: u64,
    /// How large the cleaner's own segments grow.
    pub segment_bytes: usize,
    /// How long a segment stays after its retirement. Readers with old pointers are led on by forwarding records either way;
    /// this spares those who are just reading, and covers a listing that lags behind.
    pub grace: Duration,
    /// Segments and records deleted in one run.
    pub deletes: usize,
    /// A cleaner that has not ended after this long is taken for dead and ended. If it is alive, its batch is refused and
    /// its copies are garbage; nothing else depends on it.
    pub cleaner_lease: Duration,
    /// A proposal that was not merged while the volume committed this many versions is given up for a new one.
    pub give_up_versions: u64,
    /// Retired segments whose forwarding records are looked at in one run.
    pub pruned_records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            list_pages: 4,
            judged_segments: 512,
            batch_bytes: 48 << 20,
            batches: 16,
            cache_bytes: 64 << 20,
            free_per_mille: 200,
            segment_bytes: 4 << 20,
            grace: Duration::from_secs(3600),
            deletes: 2000,
            cleaner_lease: Duration::from_secs(900),
            give_up_versions: 64,
            pruned_records: 100,
        }
    }
}
