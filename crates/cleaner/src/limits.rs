//! Limits of one cleaning run, and its thresholds of cost and benefit.

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
    /// Segments looked at in a run although the usage maps say that little of them is free: these may be wrong. Drawn by lot.
    pub audited_segments: usize,
    /// Bytes of live objects that are moved together, held in memory while they are.
    pub batch_bytes: u64,
    /// Batches of one run.
    pub batches: usize,
    /// Bytes of nodes, inodes and checkpoints kept in memory, verified.
    pub cache_bytes: usize,
    /// A segment is worth moving out of only if so much of it is free, in thousandths: moving the rest then writes at most
    /// a thousand over this for each byte that becomes free. Waiting makes it cheaper, as more of a young segment dies.
    pub free_per_mille: u64,
    /// The same for segments older than [`Limits::cold_after`]: what lives in them is likely to live on, so that waiting
    /// brings nothing, and moving it is seldom.
    pub cold_free_per_mille: u64,
    /// From which age on a segment is cold.
    pub cold_after: Duration,
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
    /// Retired segments whose forwarding records are looked at in one run, to shorten chains; at least 1.
    pub tidied_records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            list_pages: 4,
            judged_segments: 512,
            audited_segments: 4,
            batch_bytes: 48 << 20,
            batches: 16,
            cache_bytes: 64 << 20,
            free_per_mille: 400,
            cold_free_per_mille: 100,
            cold_after: Duration::from_secs(3600),
            segment_bytes: 4 << 20,
            grace: Duration::from_secs(3600),
            deletes: 2000,
            cleaner_lease: Duration::from_secs(900),
            give_up_versions: 64,
            tidied_records: 100,
        }
    }
}

impl Limits {
    /// Whether so many free bytes of a segment of this size and age are worth moving the rest.
    pub(crate) fn is_worth_moving(&self, free_bytes: u64, size_bytes: u64, age_ms: i64) -> bool {
        let cold = i128::from(age_ms) >= self.cold_after.as_millis() as i128;
        let wanted = if cold {
            self.cold_free_per_mille
        } else {
            self.free_per_mille
        };
        free_bytes.saturating_mul(1000) >= size_bytes.saturating_mul(wanted)
    }
}
