//! The counters of one mount: requests, bytes and latencies.
//!
//! Relaxed atomics, written once a request; what is read of them is not of one instant, which a metric need not be.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Bucket `i` counts requests that took less than 2^i µs (and at least half of it), the last one all longer ones; as for procedures of NFS.
pub const LATENCY_BUCKETS: usize = 26;

/// What the kernel asked of a mount, since it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TrafficCounts {
    /// Requests answered.
    pub answered: u64,
    /// Of them with an error; a name that is not there is one.
    pub failed: u64,
    /// Bytes of requests, with what is written.
    pub received_bytes: u64,
    /// Bytes of replies, with what is read.
    pub sent_bytes: u64,
    /// See [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// All latencies together.
    pub latency_sum_us: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    requests: AtomicU64,
    failed: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
    latency_sum_us: AtomicU64,
}

impl Traffic {
    /// A request was read.
    pub(crate) fn read(&self, bytes: usize) {
        self.requests.fetch_add(1, Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// One was answered; `sent_bytes` with its header.
    pub(crate) fn answered(&self, failed: bool, sent_bytes: usize, took: Duration) {
        self.failed.fetch_add(u64::from(failed), Relaxed);
        self.sent_bytes.fetch_add(sent_bytes as u64, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.latency_sum_us.fetch_add(micros, Relaxed);
    }

    /// Requests that were read, answered or not: a FORGET has no answer.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(crate) fn counts(&self) -> TrafficCounts {
        let latency = array::from_fn(|bucket| self.latency[bucket].load(Relaxed));
        TrafficCounts {
            answered: latency.iter().sum(),
            failed: self.failed.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            latency,
            latency_sum_us: self.latency_sum_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_counted_by_its_latency() {
        let traffic = Traffic::default();
        traffic.read(100);
        traffic.read(50);
        traffic.answered(false, 16, Duration::from_micros(3));
        traffic.answered(true, 16, Duration::from_secs(1000));
        let counts = traffic.counts();
        assert_eq!((traffic.requests(), counts.answered, counts.failed), (2, 2, 1));
        assert_eq!((counts.received_bytes, counts.sent_bytes), (150, 32));
        assert_eq!((counts.latency[2], counts.latency[LATENCY_BUCKETS - 1]), (1, 1));
        assert_eq!(counts.latency_sum_us, 1_000_000_003);
    }
}
