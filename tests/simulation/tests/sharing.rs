//! A fixed set of histories of several offices, and the bugs that they must notice.

use firn_simulation::sharing;
use std::collections::BTreeMap;

/// Histories that every build runs.
const SEEDS: u64 = 60;

#[test]
fn followers_of_an_owner_read_what_was_committed_and_never_go_back() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for seed in 0..SEEDS {
        let report = sharing::run(seed);
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
        failed.extend(report.failures.into_iter().map(|failure| (seed, failure)));
    }
    println!("{counts:#?}");
    assert!(failed.is_empty(), "{failed:#?}");
    for what in [
        "reads",
        "alarms",
        "takeovers",
        "drains",
        "power cuts of owners",
        "power cuts of followers",
        "segments deleted",
    ] {
        assert!(counts.contains_key(what), "no {what} in {counts:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    use firn_simulation::mutants::{OF_FOLLOWERS, caught_by_offices};
    for planted in OF_FOLLOWERS {
        let caught = caught_by_offices(planted);
        println!("{planted}: {caught:?}");
        assert!(caught.is_some(), "{planted} is not caught");
    }
}
