//! Runs the search, and prints what it went through, or the history that breaks a promise.

use clap::{Parser, ValueEnum};
use firn_lease_model::{BUGS, Bounds, Bug, Explored, LARGE, Protocol, SMALL, explore, hunt};
use std::{process::ExitCode, time::Instant};

/// All histories of the lease and commit protocol, breadth first.
#[derive(Parser)]
struct Arguments {
    /// Which bounds.
    #[arg(long, value_enum, default_value_t = Extent::Small)]
    bounds: Extent,
    /// Only those whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out each rule in turn and require that it is found.
    #[arg(long)]
    mutants: bool,
    /// With `--mutants`: print every history that was found.
    #[arg(long)]
    traces: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Extent {
    /// What every change runs.
    Small,
    /// What every week runs.
    Large,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (passed, failed) = if arguments.mutants {
        mutants(&arguments)
    } else {
        promises(&arguments)
    };
    println!("{passed} passed, {failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn promises(arguments: &Arguments) -> (usize, usize) {
    let all = match arguments.bounds {
        Extent::Small => SMALL,
        Extent::Large => LARGE,
    };
    let (mut passed, mut failed) = (0, 0);
    println!(
        "{:<24} {:>10} {:>11} {:>5} {:>8}  result",
        "bounds", "states", "steps", "depth", "seconds"
    );
    for bounds in all.iter().filter(|bounds| bounds.name.contains(&arguments.only)) {
        let (explored, seconds) = run(*bounds, None);
        let result = match (&explored.broken, explored.is_whole) {
            (Some(_), _) => "BROKEN",
            (None, true) => "all states; every promise holds",
            (None, false) => "every promise holds as far as it went",
        };
        report(bounds.name, &explored, seconds, result);
        match explored.broken {
            None => passed += 1,
            Some(broken) => {
                println!("{broken}");
                failed += 1;
            }
        }
    }
    (passed, failed)
}

fn mutants(arguments: &Arguments) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    println!(
        "{:<24} {:>10} {:>11} {:>5} {:>8}  found",
        "rule left out", "states", "steps", "depth", "seconds"
    );
    for (bug, name) in BUGS.iter().filter(|(_, name)| name.contains(&arguments.only)) {
        let (explored, seconds) = run(hunt(*bug), Some(*bug));
        let result = explored
            .broken
            .as_ref()
            .map_or("NOT FOUND", |broken| &broken.promise);
        report(name, &explored, seconds, result);
        match &explored.broken {
            Some(broken) if arguments.traces => println!("{broken}"),
            _ => {}
        }
        match explored.broken {
            Some(_) => passed += 1,
            None => failed += 1,
        }
    }
    (passed, failed)
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a search takes is a figure, and no part of it"
)]
fn run(bounds: Bounds, bug: Option<Bug>) -> (Explored, f64) {
    let begun = Instant::now();
    let explored = explore(&Protocol { bounds, bug }, bounds.limits);
    (explored, begun.elapsed().as_secs_f64())
}

fn report(name: &str, explored: &Explored, seconds: f64, result: &str) {
    println!(
        "{name:<24} {:>10} {:>11} {:>5} {seconds:>8.1}  {result}",
        explored.states, explored.edges, explored.depth
    );
}
