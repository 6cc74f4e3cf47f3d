//! Counts and latencies per procedure, for metrics.
//!
//! Counters are relaxed atomics, written once per call; a snapshot is therefore not of one instant, which a metric need
//! not be.

use super::Program;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Bucket `i` counts calls that took less than 2^i µs (and at least half of it); the last one all longer ones: 2^24 µs
/// is 17 s, longer than any call that is not waiting for the cloud.
pub const LATENCY_BUCKETS: usize = 26;
/// No program here has a higher procedure number.
const PROCEDURE_MAX: u32 = 64;

/// The counters of one procedure.
#[derive(Debug, Default)]
pub(super) struct Counters {
    calls: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
    latency_sum_us: AtomicU64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Success,
    Failed,
    Refused,
}

impl Counters {
    pub(super) fn record(&self, ending: Ending, received_bytes: usize, sent_bytes: usize, took: Duration) {
        self.calls.fetch_add(1, Relaxed);
        match ending {
            Ending::Success => {}
            Ending::Failed => {
                self.failed.fetch_add(1, Relaxed);
            }
            Ending::Refused => {
                self.refused.fetch_add(1, Relaxed);
            }
        }
        self.received_bytes.fetch_add(received_bytes as u64, Relaxed);
        self.sent_bytes.fetch_add(sent_bytes as u64, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.latency_sum_us.fetch_add(micros, Relaxed);
    }
}

/// What was counted for one procedure since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureStatistics {
    /// The program's name.
    pub program: &'static str,
    /// The program's version.
    pub version: u32,
    /// The procedure's name.
    pub procedure: &'static str,
    /// Calls that ended, however they did.
    pub calls: u64,
    /// Of them, answered with an error of the protocol.
    pub failed: u64,
    /// Of them, refused by RPC (malformed, not authenticated) or dropped.
    pub refused: u64,
    /// Bytes of the calls.
    pub received_bytes: u64,
    /// Bytes of the replies.
    pub sent_bytes: u64,
    /// See [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// All latencies together.
    pub latency_sum_us: u64,
}

/// The counters of all procedures of a set of programs.
#[derive(Debug)]
pub(super) struct Statistics {
    /// By program, version and procedure number.
    procedures: BTreeMap<(u32, u32, u32), Procedure>,
}

#[derive(Debug)]
struct Procedure {
    program: &'static str,
    name: &'static str,
    counters: Arc<Counters>,
}

impl Statistics {
    pub(super) fn new<'a>(programs: impl Iterator<Item = &'a Arc<dyn Program>>) -> Self {
        let mut procedures = BTreeMap::new();
        for program in programs {
            for version in program.versions() {
                for number in 0..=PROCEDURE_MAX {
                    if let Some(name) = program.procedure_name(version, number) {
                        let procedure = Procedure {
                            program: program.name(),
                            name,
                            counters: Arc::default(),
                        };
                        procedures.insert((program.number(), version, number), procedure);
                    }
                }
            }
        }
        Self { procedures }
    }

    pub(super) fn counters(&self, program: u32, version: u32, procedure: u32) -> Option<&Arc<Counters>> {
        self.procedures
            .get(&(program, version, procedure))
            .map(|procedure| &procedure.counters)
    }

    pub(super) fn snapshot(&self) -> Vec<ProcedureStatistics> {
        self.procedures
            .iter()
            .map(|(&(_, version, _), procedure)| procedure.snapshot(version))
            .collect()
    }
}

impl Procedure {
    fn snapshot(&self, version: u32) -> ProcedureStatistics {
        let counters = &self.counters;
        ProcedureStatistics {
            program: self.program,
            version,
            procedure: self.name,
            calls: counters.calls.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            received_bytes: counters.received_bytes.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            latency: std::array::from_fn(|bucket| counters.latency[bucket].load(Relaxed)),
            latency_sum_us: counters.latency_sum_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_bucket_of_its_power_of_two() {
        let counters = Counters::default();
        for micros in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX / 1000] {
            counters.record(Ending::Success, 0, 0, Duration::from_micros(micros));
        }
        let latency: Vec<u64> = counters.latency.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!(&latency[..4], &[1, 1, 2, 1]);
        assert_eq!(
            (latency[10], latency[11], latency[LATENCY_BUCKETS - 1]),
            (1, 1, 1)
        );
        assert_eq!(counters.calls.load(Relaxed), 8);
    }
}
