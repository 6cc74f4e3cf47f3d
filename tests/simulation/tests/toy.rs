//! The tests are tested on a file system that is right, and on the same with bugs.

use firn_env::sim::{Seeded, Simulation};
use firn_simulation::{
    history::run,
    runner::{Plan, run_many},
    system::System,
    toy::{Toy, ToyBug},
};
use std::sync::Arc;

fn toy(bug: Option<ToyBug>) -> impl Fn(&Simulation, &mut Seeded) -> Arc<dyn System> + Sync {
    move |simulation, _| Arc::new(Toy::new(simulation, bug))
}

fn plan(count: u64, stop_at_failure: bool) -> Plan {
    Plan {
        first: 0,
        count,
        threads: 2,
        stop_at_failure,
        planted: None,
    }
}

#[test]
fn a_right_system_passes() {
    let summary = run_many(&toy(None), plan(300, false));
    assert!(summary.failed.is_empty(), "{:#?}", summary.failed);
    assert!(summary.counts["answered"] > 20_000, "{:?}", summary.counts);
}

#[test]
fn every_planted_bug_is_caught() {
    for bug in ToyBug::ALL {
        let summary = run_many(&toy(Some(bug)), plan(5000, true));
        assert!(!summary.failed.is_empty(), "{bug:?} was not caught");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..20 {
        let (one, other) = (run(seed, &toy(None), false), run(seed, &toy(None), true));
        assert_eq!(
            (one.trace_hash, one.steps),
            (other.trace_hash, other.steps),
            "seed {seed}"
        );
    }
}
