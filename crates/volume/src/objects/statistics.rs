//! The counters of the caches and fetches, for `status` and `/metrics`.

use super::DamageCounters;

/// Counters since the start, and the present sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectsStatistics {
    /// Served from memory, opened.
    pub memory_hits: u64,
    /// Waited for a load that was under way.
    pub shared_loads: u64,
    /// Opened from bytes that had been fetched a moment before.
    pub window_hits: u64,
    /// Opened from the disk cache.
    pub disk_hits: u64,
    /// Of these, opened by the tag that their uid was known to have, and not hashed again.
    pub known_hits: u64,
    /// Moved by a cleaner, and had from where they lay before.
    pub relocated_hits: u64,
    /// Had to ask the store.
    pub misses: u64,
    /// Bytes of the objects that were opened from anywhere but memory.
    pub asked_bytes: u64,
    /// GETs sent.
    pub gets: u64,
    /// Bytes they returned.
    pub fetched_bytes: u64,
    /// Misses that shared a GET with others.
    pub shared_gets: u64,
    /// Damaged bytes found in the disk cache.
    pub cache_damages: u64,
    /// What the store gave back wrong or not at all, by what came of it.
    pub damages: DamageCounters,
    /// Objects found where a forwarding record led.
    pub forwarded: u64,
    /// Forwarding records that led to something else.
    pub false_forwards: u64,
    /// Objects in memory.
    pub memory_objects: u64,
    /// What they take.
    pub memory_bytes: u64,
    /// Segments in the disk cache, those that are pinned included.
    pub disk_segments: u64,
    /// What they take of its capacity; what is pinned takes half of it at most.
    pub disk_bytes: u64,
    /// Cache writes the disk refused.
    pub disk_failures: u64,
    /// Evicted from the disk cache because the disk was full: the journal goes first.
    pub disk_given_up_bytes: u64,
}
