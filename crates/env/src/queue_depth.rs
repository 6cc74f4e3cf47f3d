//! Queue depth of the process: the requests from outside that are in flight, of all protocols, and whether they come one at a time.
//!
//! At queue depth 1 nobody but the one client waits while its request is carried out, and a worker thread of the executor may wait for the
//! disk itself, which spares two wake-ups of other threads (decision 0228). As soon as two requests are in flight at a moment, or they come
//! from two sources, others may be held up by that:
//!
//! ```text
//! request begins: none in flight, from the same source as the one before ──> one more of the run
//!                 another in flight, or from another source ──────────────> the run begins anew
//! depth 1:        one request in flight, and the run is long enough
//! ```
//!
//! A connection of a client, or a mount, is a source. Requests are counted until their reply has left: a second one that has come in while
//! a worker waited is read before that, and so is seen to be in flight beside it. This is a hint, nothing to be exact about: all counts are relaxed.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Requests one at a time from one source before it counts as alone. A second client is held up by a wait at most once for so many
/// requests of the first.
const RUN: u32 = 32;

/// Requests in flight, and how many have come one at a time.
#[derive(Debug, Default)]
pub struct QueueDepth {
    in_flight: AtomicUsize,
    /// Sources so far, for their numbers: the first is 1.
    sources: AtomicU64,
    /// Of the request that began last.
    last_source: AtomicU64,
    run: AtomicU32,
}

/// Where requests come from one after the other if nothing else goes on: a connection of a client, a mount.
#[derive(Debug)]
pub struct RequestSource {
    depth: Arc<QueueDepth>,
    number: u64,
}

/// A request in flight; it ends when this is dropped, which should be after its reply has left.
#[derive(Debug)]
#[must_use = "the request ends when this is dropped"]
pub struct RequestInFlight(Arc<QueueDepth>);

impl QueueDepth {
    /// A new source of requests.
    pub fn source(self: &Arc<Self>) -> RequestSource {
        RequestSource {
            depth: self.clone(),
            number: self.sources.fetch_add(1, Relaxed) + 1,
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Whether one request is in flight, from the one source that there has lately been.
    pub fn is_one(&self) -> bool {
        self.in_flight() == 1 && self.run.load(Relaxed) >= RUN
    }

    fn begin(&self, source: u64) {
        let others = self.in_flight.fetch_add(1, Relaxed);
        let last = self.last_source.load(Relaxed);
        let run = self.run.load(Relaxed);
        let next = match others == 0 && last == source {
            true => run.saturating_add(1).min(RUN),
            false => 0,
        };
        // Written only if they change, so that with many in flight processors do not take them from each other.
        if last != source {
            self.last_source.store(source, Relaxed);
        }
        if next != run {
            self.run.store(next, Relaxed);
        }
    }
}

impl RequestSource {
    /// A request begins.
    pub fn request(&self) -> RequestInFlight {
        self.depth.begin(self.number);
        RequestInFlight(self.depth.clone())
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{QueueDepth, RUN, RequestSource};
    use std::sync::Arc;

    /// Requests one after the other.
    fn alone(source: &RequestSource, requests: u32) {
        for _ in 0..requests {
            drop(source.request());
        }
    }

    #[test]
    fn a_newcomer_has_to_be_alone_for_a_run_of_requests() {
        let depth = Arc::new(QueueDepth::default());
        let source = depth.source();
        for _ in 0..RUN {
            let request = source.request();
            assert!(!depth.is_one());
            drop(request);
        }
        let request = source.request();
        assert!(depth.is_one());
        drop(request);
        assert!(!depth.is_one(), "none is in flight");
    }

    #[test]
    fn two_in_flight_at_a_moment_begin_the_run_anew() {
        let depth = Arc::new(QueueDepth::default());
        let source = depth.source();
        alone(&source, 2 * RUN);
        let request = source.request();
        assert!(depth.is_one());
        let beside = source.request();
        assert_eq!(depth.in_flight(), 2);
        assert!(!depth.is_one());
        drop(beside);
        assert!(!depth.is_one(), "there were two a moment ago");
        drop(request);
        alone(&source, RUN);
        let request = source.request();
        assert!(depth.is_one(), "and not for a run of requests");
        drop(request);
        assert_eq!(depth.in_flight(), 0);
    }

    #[test]
    fn two_sources_are_two_though_never_in_flight_at_one_moment() {
        let depth = Arc::new(QueueDepth::default());
        let [often, seldom] = [depth.source(), depth.source()];
        alone(&often, 2 * RUN);
        for _ in 0..3 {
            alone(&seldom, 1);
            for _ in 0..RUN {
                let request = often.request();
                assert!(!depth.is_one());
                drop(request);
            }
        }
        let _request = often.request();
        assert!(depth.is_one(), "it has been alone for a run");
    }
}
