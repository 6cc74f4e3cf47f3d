//! A fixed set of histories of locks of members that have one volume by turns, and the bugs that they must notice.

use firn_simulation::sharing::members::locking;
use std::collections::BTreeMap;

/// Histories that every build runs.
const SEEDS: u64 = 60;

#[test]
fn a_lock_of_one_office_excludes_the_clients_of_all() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for seed in 0..SEEDS {
        let report = locking::run(seed);
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
        failed.extend(report.failures.into_iter().map(|failure| (seed, failure)));
    }
    println!("{counts:#?}");
    assert!(failed.is_empty(), "{failed:#?}");
    for what in [
        "counters raised",
        "handovers",
        "locks lost",
        "locks of silent offices broken",
        "owners that were taken over",
        "power cuts",
        "tries granted",
        "tries refused",
        "waits granted",
    ] {
        assert!(counts.contains_key(what), "no {what} in {counts:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    use firn_simulation::mutants::{OF_LOCKS, caught_by_locks};
    for planted in OF_LOCKS {
        let caught = caught_by_locks(planted);
        println!("{planted}: {caught:?}");
        assert!(caught.is_some(), "{planted} is not caught");
    }
}
