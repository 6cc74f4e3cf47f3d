//! Configuration of the caches of objects.

use super::{FetchPolicy, FetchPrices};
use firn_store::Store;
use std::{fmt, sync::Arc};

/// Sizes and policy of the caches.
#[derive(Clone)]
pub struct ObjectsConfig {
    /// Opened objects in memory.
    pub memory_cache_bytes: u64,
    /// Sealed ranges of segments on the local disk.
    pub disk_cache_bytes: u64,
    /// Left free on the disk, whatever the cache may take: for the journal, which comes first.
    pub disk_headroom_bytes: u64,
    /// How much a miss fetches.
    pub fetch: FetchPolicy,
    /// What the adaptive policy reckons with.
    pub prices: FetchPrices,
    /// A segment that the store does not have counts as out of reach, not as lost: the pointers may be older than what the cleaner
    /// did since, and what answers may be half a store.
    pub absent_is_away: bool,
    /// Where the same objects lie once more, for what the store has lost.
    pub second: Option<Arc<dyn Store>>,
}

impl fmt::Debug for ObjectsConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = formatter.debug_struct("ObjectsConfig");
        out.field("memory_cache_bytes", &self.memory_cache_bytes);
        out.field("disk_cache_bytes", &self.disk_cache_bytes);
        out.finish_non_exhaustive()
    }
}

impl Default for ObjectsConfig {
    fn default() -> Self {
        Self {
            memory_cache_bytes: 128 << 20,
            disk_cache_bytes: 32 << 30,
            disk_headroom_bytes: 0,
            fetch: FetchPolicy::default(),
            prices: FetchPrices::default(),
            absent_is_away: false,
            second: None,
        }
    }
}
