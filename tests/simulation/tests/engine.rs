//! A fixed set of histories of the engine. Many more: `make simulate SEEDS=n FIRST_SEED=s`.

use firn_env::sim::{Seeded, Simulation};
use firn_simulation::{
    engine::{Engine, FAULT_POINTS},
    history::run,
    runner::{Plan, run_many},
    system::System,
};
use std::{collections::BTreeSet, sync::Arc};

fn engine(simulation: &Simulation, random: &mut Seeded) -> Arc<dyn System> {
    Arc::new(Engine::new(simulation, random))
}

#[test]
fn three_hundred_histories_pass_and_meet_every_fault_point() {
    let summary = run_many(
        &engine,
        Plan {
            first: 0,
            count: 300,
            threads: 2,
            stop_at_failure: false,
            planted: None,
        },
    );
    for (seed, failures) in &summary.failed {
        println!("seed {seed}: {failures:#?}");
    }
    assert!(
        summary.failed.is_empty(),
        "repeat with: cargo run --release -p firn-simulation -- --trace SEED"
    );
    let met: BTreeSet<&str> = summary.points.keys().copied().collect();
    let missed: Vec<&&str> = FAULT_POINTS
        .iter()
        .filter(|point| !met.contains(**point))
        .collect();
    assert!(missed.is_empty(), "never reached: {missed:?}");
    assert!(met.len() >= 30, "only {} fault points: {met:?}", met.len());
    for what in [
        "takeovers",
        "salvages",
        "drains",
        "idle hours",
        "rekeys",
        "full disks",
        "starts without the cloud",
        "answered at level 2",
    ] {
        assert!(
            summary.counts.contains_key(what),
            "no {what} in {:?}",
            summary.counts
        );
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 1000..1010 {
        let (one, other) = (run(seed, &engine, false), run(seed, &engine, true));
        assert_eq!(
            (one.trace_hash, one.steps),
            (other.trace_hash, other.steps),
            "seed {seed}"
        );
    }
}
