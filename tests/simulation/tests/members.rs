//! A fixed set of histories of members that write one volume by turns, and the bugs that they must notice.

use firn_simulation::sharing::members;
use std::collections::BTreeMap;

/// Histories that every build runs.
const SEEDS: u64 = 50;

#[test]
fn members_write_by_turns_and_nothing_acknowledged_is_lost() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for seed in 0..SEEDS {
        let report = members::run(seed);
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
        failed.extend(report.failures.into_iter().map(|failure| (seed, failure)));
    }
    println!("{counts:#?}");
    assert!(failed.is_empty(), "{failed:#?}");
    for what in [
        "files",
        "reads",
        "handovers",
        "owners that were taken over",
        "salvage clones",
        "power cuts",
        "clock jumps",
        "commits of clients",
        "files at level 2",
    ] {
        assert!(counts.contains_key(what), "no {what} in {counts:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    use firn_simulation::mutants::{OF_MEMBERS, caught_by_members};
    for planted in OF_MEMBERS {
        let caught = caught_by_members(planted);
        println!("{planted}: {caught:?}");
        assert!(caught.is_some(), "{planted} is not caught");
    }
}
