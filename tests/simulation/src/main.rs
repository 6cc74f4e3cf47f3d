//! Runs random histories from seeds, and prints what fails with the command that repeats it.

use clap::Parser;
use firn_env::sim::{Seeded, Simulation};
use firn_simulation::{
    engine::Engine,
    history,
    runner::{Plan, Summary, run_many},
    sharing,
    system::System,
    toy::Toy,
};
use std::{collections::BTreeMap, process::ExitCode, sync::Arc};

/// Random histories with crashes and faults against an executable model.
#[derive(Parser)]
struct Arguments {
    /// How many histories.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The seed of the first.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Run one history and print all that happens in it.
    #[arg(long)]
    trace: Option<u64>,
    /// Threads; each runs histories of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Failures printed at most.
    #[arg(long, default_value_t = 10)]
    show: usize,
    /// Plant each bug in turn and require that it is caught (needs `--features mutants`).
    #[arg(long)]
    mutants: bool,
    /// With `--mutants`: only those whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Histories of an owner and its followers.
    #[arg(long)]
    followers: bool,
    /// Histories of members that write one volume by turns.
    #[arg(long)]
    members: bool,
    /// Run histories of locks of members.
    #[arg(long, conflicts_with_all = ["members", "followers"])]
    locks: bool,
    /// Test the toy that tests the tests.
    #[arg(long)]
    toy: bool,
}

type Builder = Box<dyn Fn(&Simulation, &mut Seeded) -> Arc<dyn System> + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let build: Builder = if arguments.toy {
        Box::new(|simulation, _| Arc::new(Toy::new(simulation, None)))
    } else {
        Box::new(|simulation, random| Arc::new(Engine::new(simulation, random)))
    };
    if arguments.mutants {
        return mutants(&arguments);
    }
    if arguments.followers {
        return offices(&arguments, "--followers", sharing::run);
    }
    if arguments.members {
        return offices(&arguments, "--members", sharing::members::run);
    }
    if arguments.locks {
        return offices(&arguments, "--locks", sharing::members::locking::run);
    }
    if let Some(seed) = arguments.trace {
        return trace(&build, seed);
    }
    let plan = Plan {
        first: arguments.first_seed,
        count: arguments.seeds,
        threads: arguments.threads,
        stop_at_failure: false,
        planted: None,
    };
    let summary = run_many(&build, plan);
    print(&summary, &arguments);
    println!("{} passed, {} failed", summary.passed, summary.failed.len());
    if summary.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn offices(arguments: &Arguments, option: &str, run: fn(u64) -> sharing::Report) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let mut counts = BTreeMap::<_, u64>::new();
    for seed in arguments.first_seed..arguments.first_seed.saturating_add(arguments.seeds) {
        let report = run(seed);
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
        if report.failures.is_empty() {
            passed += 1;
            continue;
        }
        failed += 1;
        if failed <= arguments.show {
            println!("seed {seed}: {}", report.failures.join("\n    "));
            println!("    repeat with: firn-simulation {option} --seeds 1 --first-seed {seed}");
        }
    }
    for (what, count) in &counts {
        println!("{what:<40} {count:>10}");
    }
    println!("{passed} passed, {failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(not(feature = "mutants"))]
fn mutants(_: &Arguments) -> ExitCode {
    eprintln!("this build has no planted bugs: build with --features mutants");
    ExitCode::FAILURE
}

/// Which histories must catch a planted bug.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy)]
enum Histories {
    Edges,
    Followers,
    Members,
    Locks,
}

#[cfg(feature = "mutants")]
fn mutants(arguments: &Arguments) -> ExitCode {
    use firn_simulation::mutants::{
        MUTANTS, OF_FOLLOWERS, OF_LOCKS, OF_MEMBERS, SEEDS_MAX, caught, caught_by_locks, caught_by_members,
        caught_by_offices,
    };
    let (mut passed, mut missed) = (0, 0);
    println!("{:<44} {:>6}  caught by", "planted bug", "seed");
    let threads = arguments.threads;
    let of_edges = MUTANTS.map(|planted| (planted, Histories::Edges));
    let of_followers = OF_FOLLOWERS.map(|planted| (planted, Histories::Followers));
    let of_members = OF_MEMBERS.map(|planted| (planted, Histories::Members));
    let of_locks = OF_LOCKS.map(|planted| (planted, Histories::Locks));
    let of_offices = of_followers.into_iter().chain(of_members).chain(of_locks);
    for (planted, histories) in of_edges.into_iter().chain(of_offices) {
        if !planted.contains(&arguments.only) {
            continue;
        }
        let found = match histories {
            Histories::Edges => caught(planted, threads),
            Histories::Followers => caught_by_offices(planted),
            Histories::Members => caught_by_members(planted),
            Histories::Locks => caught_by_locks(planted),
        };
        match found {
            Some((seed, failure)) => {
                passed += 1;
                let line: String = failure
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .chars()
                    .take(150)
                    .collect();
                println!("{:<44} {seed:>6}  {line}", planted);
            }
            None => {
                missed += 1;
                println!("{:<44} {:>6}  not within {SEEDS_MAX} seeds", planted, "-");
            }
        }
    }
    println!("{passed} passed, {missed} failed");
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn trace(build: &Builder, seed: u64) -> ExitCode {
    let report = history::run(seed, build, true);
    for line in &report.log {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} steps, {:?} of virtual time, trace hash {:016x}",
        report.steps, report.elapsed, report.trace_hash
    );
    for failure in &report.failures {
        println!("FAILED: {failure}");
    }
    if report.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(summary: &Summary, arguments: &Arguments) {
    println!("{:<40} {:>10} {:>10}", "fault point", "arrivals", "crashes");
    for (name, (hits, crashes)) in &summary.points {
        println!("{name:<40} {hits:>10} {crashes:>10}");
    }
    for (what, count) in &summary.counts {
        println!("{what:<40} {count:>10}");
    }
    println!("{:<40} {:>10}", "steps", summary.steps);
    for (seed, failures) in summary.failed.iter().take(arguments.show) {
        for failure in failures.iter().take(3) {
            println!("seed {seed}: {failure}");
        }
        println!("    repeat with: firn-simulation --trace {seed}");
    }
}
