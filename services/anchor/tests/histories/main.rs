//! Random histories of edges that fight over volumes behind the service, on a network that loses, repeats, delays and reorders calls, with
//! instances that restart, over a table with faults of its own; and an hour without the service.
//!
//! A [`Model`](model::Model) sees each state of the tuples. A history is sound if every step is one that may be made (epochs rise by one,
//! versions rise, a commit is its owner's, happens once and is counted once); what a caller was told is so at that moment and for ever;
//! and at the end the ledger has each accepted commit once, and what cleaners noted.
//!
//! `make simulate-anchor HISTORIES=10000` runs more of them, `make simulate-anchor SEED=n` one. Each planted bug must be found
//! (`scripts/test mutants`), or the histories prove nothing.

mod history;
mod model;
mod outage;
mod wire;

use firn_env::mutants::planting;
use history::{Passed, history};

/// What each change does that must be found.
const MUTANTS: [&str; 13] = [
    // A change is made on whatever the tuple is now, not on the one that it was decided on.
    "anchor.change_on_any_version",
    // What is remembered of a tuple is taken for what it was at another version.
    "anchor.memory_without_versions",
    // A change whose ground is gone is answered as done, whosever mark the tuple carries.
    "anchor.any_mark_is_ours",
    // A commit is not counted in the transaction that makes it.
    "anchor.commits_uncounted",
    // A call that ended in doubt is answered as done.
    "anchor.doubt_is_done",
    // Neither owner nor epoch nor grant is compared at a commit.
    "anchor.commit_without_fence",
    // Versions are not compared at a commit.
    "anchor.versions_may_repeat",
    // The epoch is not raised at a takeover.
    "anchor.takeover_keeps_epoch",
    // The epoch is not raised when the owner itself comes back.
    "anchor.restart_keeps_epoch",
    // A heartbeat forgets who waits.
    "anchor.beat_clears_queue",
    // What a cleaner noted is noted again after a lost reply.
    "anchor.notes_counted_twice",
    // Usage records that may be in the ledger are decided anew when they are sent again.
    "anchor.records_decided_anew",
    // A batch that the ledger did not take counts as delivered.
    "anchor.settled_undelivered",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn whatever_the_network_does_each_accepted_call_has_one_effect_and_is_counted_once() {
    if let Some(seed) = number("FIRN_SEED") {
        match history(seed) {
            Ok(passed) => println!("seed {seed}: {passed:?}"),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        return;
    }
    let histories = number("FIRN_ANCHOR_HISTORIES").unwrap_or(300);
    let mut total = Passed::default();
    for seed in 0..histories {
        total.add(history(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}")));
    }
    println!("{histories} histories: {total:?}");
    for (what, count) in total.each() {
        assert!(
            count >= histories / 5,
            "only {count} {what} in {histories} histories"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 77, 4096] {
        assert_eq!(history(seed), history(seed));
    }
    assert_ne!(history(1), history(2));
}

#[test]
#[ignore = "takes long: scripts/test mutants"]
fn every_planted_bug_is_found() {
    for mutant in MUTANTS {
        let violated = |seed| history(seed).err().map(|violation| (seed, violation));
        let found = planting(Some(mutant), || (0..300).find_map(violated));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant} was not found"));
        let said = violation.lines().next().unwrap_or_default();
        println!("{mutant:<36} {seed:>4}  {said}");
    }
}
