//! `[cleaner]`: the bounds of the cleaner inside an edge.

use firn_cleaner::Limits;
use firn_quantity::{Size, Span};
use serde::Deserialize;
use std::time::Duration;

/// What the cleaner inside this edge may do, and when.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CleanerSection {
    pub every: Option<Span>,
    pub run: Span,
    pub memory: Size,
    pub grace: Span,
    pub free_percent: u64,
    pub cold_free_percent: u64,
    pub cold_after: Span,
}

impl Default for CleanerSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            every: None,
            run: Span(limits.time),
            // Half of what the other hosts take: an edge is to stay within its own bound with it.
            memory: Size(64 << 20),
            grace: Span(limits.grace),
            free_percent: limits.free_per_mille / 10,
            cold_free_percent: limits.cold_free_per_mille / 10,
            cold_after: Span(limits.cold_after),
        }
    }
}

impl CleanerSection {
    /// As the cleaner wants it. Of the memory three eighths hold what is being moved and half the nodes that were looked at; the
    /// rest is for listings, indices and the segment under construction.
    pub fn limits(&self) -> Limits {
        let limits = Limits::default();
        Limits {
            time: self.run.0,
            batch_bytes: self.memory.0 / 8 * 3,
            cache_bytes: usize::try_from(self.memory.0 / 2).unwrap_or(usize::MAX),
            free_per_mille: self.free_percent * 10,
            cold_free_per_mille: self.cold_free_percent * 10,
            cold_after: self.cold_after.0,
            grace: self.grace.0,
            cleaner_lease: limits.cleaner_lease.max(2 * self.run.0),
            ..limits
        }
    }

    pub fn check(&self) -> Result<(), String> {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        if self.every.is_some_and(|every| every.0 < second) {
            return Err("cleaner.every must be at least 1 s".into());
        }
        if !(second..=hour).contains(&self.run.0) {
            return Err("cleaner.run must be between 1 s and 1 h".into());
        }
        if !(16 << 20..=16 << 30).contains(&self.memory.0) {
            return Err("cleaner.memory must be between 16 MiB and 16 GiB".into());
        }
        for (name, percent) in [
            ("free_percent", self.free_percent),
            ("cold_free_percent", self.cold_free_percent),
        ] {
            if !(1..=100).contains(&percent) {
                return Err(format!("cleaner.{name} must be between 1 and 100"));
            }
        }
        Ok(())
    }
}
