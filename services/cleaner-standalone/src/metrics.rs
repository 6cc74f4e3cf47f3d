//! The figures of runs that follow each other, for Prometheus: under the names that the cleaner inside an edge has, so that one alert is for both.

use firn_cleaner::Report;
use firn_cleaner_host::{Cleaned, Grouped, Mirrored};
use firn_metrics::{Exposition, Metrics};
use std::sync::{Arc, Mutex};

const NANOS: f64 = 1e9;

/// What all runs of this process did, and what the last one found.
#[derive(Debug, Default)]
pub struct Figures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    runs: u64,
    failures: u64,
    last_ended_at_ms: i64,
    last_success_at_ms: i64,
    retired_bytes: u64,
    written_bytes: u64,
    deleted_bytes: u64,
    cost_nanodollars: u64,
    /// What the last run that came to its end found.
    listed_bytes: u64,
    waiting_segments: u64,
    held_segments: u64,
    hold_segments: u64,
    hold_since_ms: i64,
    damaged_objects: u64,
    missing_segments: u64,
    second: SecondCounts,
}

/// Of the second store; as of the last comparison that came to its end.
#[derive(Debug, Default)]
struct SecondCounts {
    failures: u64,
    compared_at_ms: i64,
    lost_segments: u64,
    damaged: u64,
    held: u64,
    copied_bytes: u64,
    parity: Grouped,
}

impl Counts {
    fn add(&mut self, report: &Report) {
        self.retired_bytes += report.retired_bytes;
        self.written_bytes += report.written_bytes;
        self.deleted_bytes += report.deleted_bytes;
        self.listed_bytes = report.listed_bytes;
        self.waiting_segments = report.waiting_segments;
        self.held_segments = report.held.count;
        self.hold_segments = report.hold_segments;
        self.hold_since_ms = report.hold_since_ms.unwrap_or(0);
        self.damaged_objects = report.damaged.len() as u64 + report.damaged_more;
        self.missing_segments = report.missing.count;
    }
}

impl Figures {
    /// A run ended; none: it failed. One that found no root yet has no report.
    pub fn count(&self, cleaned: Option<&Cleaned>, now_ms: i64) {
        let counts = &mut *self.0.lock().expect("no panic under this lock");
        counts.runs += 1;
        counts.last_ended_at_ms = now_ms;
        let Some(cleaned) = cleaned else {
            counts.failures += 1;
            return;
        };
        counts.last_success_at_ms = now_ms;
        counts.cost_nanodollars += cleaned.cost_nanodollars;
        if let Some(report) = &cleaned.report {
            counts.add(report);
        }
    }

    /// The second store was compared; none: it could not be.
    pub fn count_mirror(&self, mirrored: Option<&Mirrored>, now_ms: i64) {
        let counts = &mut *self.0.lock().expect("no panic under this lock");
        let second = &mut counts.second;
        let Some(mirrored) = mirrored else {
            second.failures += 1;
            return;
        };
        second.compared_at_ms = now_ms;
        second.lost_segments = mirrored.waiting + mirrored.beyond.len() as u64;
        second.damaged = mirrored.damaged + mirrored.lost_others;
        second.held = mirrored.held;
        second.copied_bytes += mirrored.copied_bytes;
        second.parity = mirrored.parity.clone().unwrap_or_default();
        counts.cost_nanodollars += mirrored.cost_nanodollars;
    }

    /// As Prometheus reads them.
    pub fn metrics(self: Arc<Self>) -> Metrics {
        Metrics::new("firn_cleaner", move |out| {
            expose(out, &self.0.lock().expect("no panic under this lock"));
        })
    }
}

/// A table of metrics: kind, name, value, help.
macro_rules! figures {
    ($out:ident: $($kind:ident $name:ident = $value:expr, $help:literal;)*) => {
        $($out.$kind(stringify!($name), $help, $value);)*
    };
}

fn expose(out: &mut Exposition<'_>, counts: &Counts) {
    let seconds = |ms: i64| ms as f64 / 1e3;
    figures! { out:
        counter runs_total                     = counts.runs,                                "Runs that ended.";
        counter failures_total                 = counts.failures,                            "Of them, those that failed.";
        gauge   last_run_timestamp_seconds     = seconds(counts.last_ended_at_ms),           "When the last run ended; 0 if none did.";
        gauge   last_success_timestamp_seconds = seconds(counts.last_success_at_ms),         "When the last run that did not fail ended; 0 if none did.";
        counter retired_bytes_total            = counts.retired_bytes,                       "Segments that nothing leads to any more.";
        counter written_bytes_total            = counts.written_bytes,                       "What was moved, and what leads there.";
        counter deleted_bytes_total            = counts.deleted_bytes,                       "Segments that were deleted.";
        gauge   listed_bytes                   = counts.listed_bytes,                        "Segments in the part of the log that the last run listed.";
        gauge   waiting_segments               = counts.waiting_segments,                    "Retired segments whose grace is not over.";
        gauge   held_segments                  = counts.held_segments,                       "Segments that the store does not let the cleaner delete.";
        gauge   hold_segments                  = counts.hold_segments,                       "Retired segments that wait until the parity groups in the second store are written without them.";
        gauge   hold_since_timestamp_seconds   = seconds(counts.hold_since_ms),              "Since when the oldest of them waits; 0 if none does.";
        gauge   damaged_objects                = counts.damaged_objects,                     "Damaged objects that the last run met.";
        gauge   missing_segments               = counts.missing_segments,                    "Segments that the last run found neither in the bucket nor retired.";
        counter second_store_failures_total    = counts.second.failures,                     "Comparisons with the second store that came to no end.";
        gauge   second_store_compared_timestamp_seconds = seconds(counts.second.compared_at_ms), "When both stores were last compared; 0 if not since the start, or there is no second.";
        gauge   second_store_lost_segments     = counts.second.lost_segments,                "Segments that the first store lost and that are not written anew: they wait, or are beyond repair.";
        gauge   second_store_damaged           = counts.second.damaged,                      "Members that are damaged in the second store, or lost from the first and no segments.";
        gauge   second_store_held              = counts.second.held,                         "Members that the second store does not let the cleaner delete.";
        gauge   second_store_parity_members    = counts.second.parity.members,               "Segments in parity groups of the second store.";
        gauge   second_store_parity_broken     = counts.second.parity.broken,                "Parity groups that cannot be changed.";
        gauge   second_store_parity_without_copy = counts.second.parity.without_copy,        "Members of parity groups that the first store alone has.";
        counter second_store_copied_bytes_total = counts.second.copied_bytes,                "Bytes copied into the second store.";
        counter dollars_total                  = counts.cost_nanodollars as f64 / NANOS,     "What its requests and transfers cost at list prices.";
    }
}
