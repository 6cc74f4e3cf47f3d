//! The bad line to store and table in all histories: fair ones are slow, rough ones lose, repeat and delay requests.

use firn_store::Faults;
use firn_table::FaultRates;
use std::time::Duration;

/// A store some way off, and nothing else.
pub(crate) fn fair_store() -> Faults {
    Faults {
        latency_ms: 8,
        jitter_ms: 4,
        ..Faults::default()
    }
}

/// A store that refuses, loses, delays and tears, and shows late what it has.
pub(crate) fn rough_store() -> Faults {
    Faults {
        unavailable: 0.1,
        lost_request: 0.03,
        late: 0.03,
        late_ms: 3_000,
        lost_reply: 0.05,
        timeout_ms: 1_000,
        torn: 0.03,
        invisible: 0.05,
        invisible_ms: 3_000,
        slow: 0.03,
        ..fair_store()
    }
}

/// A table that takes up to so many milliseconds to answer.
pub(crate) fn fair_table(most_ms: u64) -> FaultRates {
    FaultRates {
        delay: Duration::from_millis(1)..=Duration::from_millis(most_ms),
        ..FaultRates::default()
    }
}

/// The same, which also throttles, loses replies and applies late.
pub(crate) fn rough_table(most_ms: u64) -> FaultRates {
    FaultRates {
        throttle_per_mille: 80,
        lose_reply_per_mille: 60,
        late_per_mille: 40,
        late_requests: 6,
        ..fair_table(most_ms)
    }
}
