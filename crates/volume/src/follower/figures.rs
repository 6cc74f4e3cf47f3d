//! Figures of a follower, for `status` and `/metrics`, and what its reads decide by.

use super::FollowOptions;
use firn_anchor::Root;
use firn_env::Monotonic;
use firn_format::Version;
use std::time::Duration;

/// A moment of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStatus {
    /// How it follows.
    pub options: FollowOptions,
    /// The version of the tree in memory.
    pub version: u64,
    /// When it was committed, milliseconds since 1970 by its committer's clock.
    pub committed_at_ms: i64,
    /// Since the newest read of the root began that was answered.
    pub root_read_ago: Duration,
    /// Since a root was adopted.
    pub adopted_ago: Duration,
    /// Roots adopted since the start.
    pub adoptions: u64,
    /// Reads of the root since the start.
    pub root_reads: u64,
    /// Entries that adoptions dropped.
    pub dropped_entries: u64,
    /// Reads of the root since an object was missing.
    pub refreshes: u64,
    /// Answers by a root that was older than the freshness, since the newest could not be read.
    pub stale_answers: u64,
    /// Roots that contradicted what was seen.
    pub alarms: u64,
    /// Why the newest root cannot be read, if it cannot.
    pub away: Option<String>,
    /// Why the anchor refuses this edge, if it does: nothing is served meanwhile.
    pub denied: Option<String>,
    /// Newer roots that were sealed under a key that was not at hand.
    pub key_misses: u64,
    /// Who owned the volume when the root was read last.
    pub owner: Option<String>,
}

pub(super) struct Figures {
    pub version: Version,
    committed_at_ms: i64,
    adopted_at: Monotonic,
    adoptions: u64,
    /// Reads of the root that have begun.
    pub begun: u64,
    /// The newest of them that was answered, and whose root is in memory.
    pub ended: u64,
    /// When that one began.
    pub read_at: Monotonic,
    /// The root is not read before this.
    pub ask_after: Monotonic,
    /// Failed reads in a row.
    pub failures: u32,
    pub away: Option<String>,
    /// Why what the anchor says cannot be gone by.
    pub refused: Option<String>,
    /// Why the anchor refuses this edge.
    pub denied: Option<String>,
    pub dropped_entries: u64,
    pub refreshes: u64,
    pub stale_answers: u64,
    pub alarms: u64,
    pub key_misses: u64,
    pub owner: Option<String>,
}

impl Figures {
    /// Of a root that was read from `began` on.
    pub fn new(began: Monotonic, root: &Root) -> Self {
        Self {
            version: root.version,
            committed_at_ms: root.committed_at_ms,
            adopted_at: began,
            adoptions: 0,
            begun: 0,
            ended: 0,
            read_at: began,
            ask_after: began,
            failures: 0,
            away: None,
            refused: None,
            denied: None,
            dropped_entries: 0,
            refreshes: 0,
            stale_answers: 0,
            alarms: 0,
            key_misses: 0,
            owner: None,
        }
    }

    pub fn adopted(&mut self, now: Monotonic, root: &Root) {
        self.version = root.version;
        self.committed_at_ms = root.committed_at_ms;
        self.adopted_at = now;
        self.adoptions += 1;
    }

    pub fn status(&self, now: Monotonic, options: &FollowOptions) -> FollowStatus {
        FollowStatus {
            options: *options,
            version: self.version.0,
            committed_at_ms: self.committed_at_ms,
            root_read_ago: now.since(self.read_at),
            adopted_ago: now.since(self.adopted_at),
            adoptions: self.adoptions,
            root_reads: self.begun,
            dropped_entries: self.dropped_entries,
            refreshes: self.refreshes,
            stale_answers: self.stale_answers,
            alarms: self.alarms,
            away: self.away.clone(),
            denied: self.denied.clone(),
            key_misses: self.key_misses,
            owner: self.owner.clone(),
        }
    }
}
