//! Runs histories of virtual disks from seeds, and prints what fails with the command that repeats it.

use clap::Parser;
use firn_blockd_disk::{FlushPolicy, LogConfig, Regions, StripedConfig, WritePolicy};
use firn_blockd_simulation::{cluster_figures, engine::Mode, exhaustive, figures, full, history, on_nodes};
use firn_env::mutants::planting;
use std::{collections::BTreeMap, process::ExitCode};

/// Virtual disks through crashes, against the model.
#[derive(Parser)]
struct Arguments {
    /// How many histories.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The seed of the first.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Of so many histories of engines, one is followed by a history of the whole cluster; 0: none is.
    #[arg(long, default_value_t = 50)]
    on_nodes_each: u64,
    /// Of so many histories of engines, one is followed by a history of a full cluster; 0: none is.
    #[arg(long, default_value_t = 50)]
    full_each: u64,
    /// Run the history of one seed on a full cluster.
    #[arg(long)]
    full: Option<u64>,
    /// Measure disks on slow nodes in virtual time, and print the figures as Markdown.
    #[arg(long)]
    figures: bool,
    /// The same of whole clusters: a node that dies for good, or a tenant at full blast beside others.
    #[arg(long, value_enum)]
    cluster_figures: Option<cluster_figures::Figure>,
    /// Measure one part of that: latencies, mail, throughput, network, crowds, losses or attaches.
    #[arg(long)]
    figure: Option<String>,
    /// Run the history of one seed on nodes.
    #[arg(long)]
    on_nodes: Option<u64>,
    /// Plant this bug in that history on nodes or on a full cluster (needs `--features mutants`).
    #[arg(long)]
    planted: Option<String>,
    /// Run one history and print all that happens in it.
    #[arg(long)]
    trace: Option<u64>,
    /// Failures printed at most.
    #[arg(long, default_value_t = 10)]
    show: usize,
    /// Try every crash point of every history of so many operations.
    #[arg(long)]
    exhaustive: Option<usize>,
    /// Plant each bug in turn and require that it is caught (needs `--features mutants`).
    #[arg(long)]
    mutants: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let figure = arguments.figure.as_deref();
    let failed = if arguments.figures || figure.is_some() || arguments.cluster_figures.is_some() {
        let printed = match arguments.cluster_figures {
            Some(part) => part.print(),
            None => figures::print(figure),
        };
        match printed {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                1
            }
        }
    } else if arguments.mutants {
        mutants()
    } else if let Some(operations) = arguments.exhaustive {
        all_crashes(operations)
    } else if let Some(seed) = arguments.on_nodes {
        let report = planting(arguments.planted.as_deref(), || on_nodes::run(seed));
        println!("{report:?}");
        report.failure.map_or(0, |_| 1)
    } else if let Some(seed) = arguments.full {
        let report = planting(arguments.planted.as_deref(), || full::run(seed));
        println!("{report:?}");
        report.failure.map_or(0, |_| 1)
    } else if let Some(seed) = arguments.trace {
        trace(seed)
    } else {
        histories(&arguments)
    };
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Default)]
struct Sum {
    histories: u64,
    crashes: u64,
    writes: u64,
    lost: u64,
    snapshots: u64,
    journaled: u64,
}

fn histories(arguments: &Arguments) -> u64 {
    let (mut passed, mut failed) = (0, 0);
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for seed in (arguments.first_seed..).take(arguments.seeds as usize) {
        let report = history::run(seed, false);
        let sum = sums.entry(report.mode).or_default();
        sum.histories += 1;
        sum.crashes += report.crashes;
        sum.writes += report.writes;
        sum.lost += report.lost;
        match report.failure {
            None => passed += 1,
            Some(failure) => {
                failed += 1;
                if failed <= arguments.show as u64 {
                    println!("seed {seed}: {failure}");
                    println!("    repeat with: firn-blockd-simulation --trace {seed}");
                }
            }
        }
        if arguments.full_each > 0 && seed % arguments.full_each == arguments.full_each / 2 {
            let report = full::run(seed);
            let sum = sums.entry("full clusters").or_default();
            sum.histories += 1;
            sum.crashes += report.faults;
            sum.writes += report.writes;
            match report.failure {
                None => passed += 1,
                Some(failure) => {
                    failed += 1;
                    println!("seed {seed}: {failure}");
                    println!("    repeat with: firn-blockd-simulation --full {seed}");
                }
            }
        }
        if arguments.on_nodes_each == 0 || !seed.is_multiple_of(arguments.on_nodes_each) {
            continue;
        }
        let report = on_nodes::run(seed);
        let sum = sums.entry(report.mode).or_default();
        sum.histories += 1;
        sum.crashes += report.attaches;
        sum.snapshots += report.snapshots;
        sum.journaled += report.journaled;
        sum.writes += report.writes;
        sum.lost += report.lost;
        match report.failure {
            None => passed += 1,
            Some(failure) => {
                failed += 1;
                println!("seed {seed}: {failure}");
                println!("    repeat with: firn-blockd-simulation --on-nodes {seed}");
            }
        }
    }
    println!(
        "{:<22} {:>10} {:>10} {:>12} {:>18} {:>10} {:>10}",
        "mode", "histories", "crashes", "writes", "lost behind each", "snapshots", "journaled"
    );
    for (mode, sum) in sums {
        let lost = sum.lost as f64 / sum.crashes.max(1) as f64;
        println!(
            "{mode:<22} {:>10} {:>10} {:>12} {lost:>18.2} {:>10} {:>10}",
            sum.histories, sum.crashes, sum.writes, sum.snapshots, sum.journaled
        );
    }
    println!("{passed} passed, {failed} failed");
    failed
}

fn trace(seed: u64) -> u64 {
    let report = history::run(seed, true);
    for line in &report.log {
        println!("{line}");
    }
    match report.failure {
        Some(failure) => {
            println!("FAILED: {failure}");
            1
        }
        None => 0,
    }
}

fn all_crashes(operations: usize) -> u64 {
    let (mut passed, mut failed) = (0, 0);
    for mode in short_modes() {
        match exhaustive::run(mode, operations) {
            Ok(tried) => {
                passed += 1;
                println!(
                    "{:<22} {} histories, {} moments, {} crashes recovered and checked",
                    mode.name(),
                    tried.histories,
                    tried.moments,
                    tried.crashes
                );
            }
            Err(failure) => {
                failed += 1;
                println!("{:<22} FAILED: {failure}", mode.name());
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    failed
}

/// Every mode, with dirty-region pages and checkpoints frequent enough to matter in a few operations.
fn short_modes() -> Vec<Mode> {
    let ordered = FlushPolicy::Ordered { lag_ms_max: 1000 };
    let striped = |write, flush| {
        Mode::Striped(StripedConfig {
            blocks: exhaustive::BLOCKS,
            write,
            flush,
            dirty_bytes_max: 1 << 20,
            regions: Regions {
                blocks: exhaustive::BLOCKS,
                ..Regions::default()
            },
        })
    };
    let log = |flush| {
        let config = LogConfig {
            flush,
            dirty_bytes_max: 1 << 20,
            checkpoint_entries: 3,
        };
        Mode::Log(config, exhaustive::BLOCKS, exhaustive::BLOCKS + 4)
    };
    vec![
        striped(WritePolicy::Durable, FlushPolicy::Durable),
        striped(WritePolicy::Memory, FlushPolicy::Durable),
        striped(WritePolicy::Memory, ordered),
        log(FlushPolicy::Durable),
        log(ordered),
    ]
}

#[cfg(not(feature = "mutants"))]
fn mutants() -> u64 {
    eprintln!("this build has no planted bugs: build with --features mutants");
    1
}

#[cfg(feature = "mutants")]
fn mutants() -> u64 {
    use firn_blockd_simulation::mutants::{
        OF_ENGINES, ON_FULL_CLUSTERS, ON_FULL_CLUSTERS_SEEDS_MAX, ON_NODES, ON_NODES_SEEDS_MAX, SEEDS_MAX,
        caught, caught_on_full_clusters, caught_on_nodes,
    };
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut failed) = (0, 0);
    println!("{:<36} {:>6}  caught by", "planted bug", "seed");
    let mut print = |bug: &str, found: Option<(u64, String)>, histories: u64| match found {
        Some((seed, failure)) => {
            passed += 1;
            let line: String = failure.chars().take(150).collect();
            println!("{bug:<36} {seed:>6}  {line}");
        }
        None => {
            failed += 1;
            println!("{bug:<36} {:>6}  not within {histories} histories", "-");
        }
    };
    for bug in OF_ENGINES {
        print(bug, caught(bug), SEEDS_MAX);
    }
    for bug in ON_NODES {
        print(bug, caught_on_nodes(bug), ON_NODES_SEEDS_MAX);
    }
    for bug in ON_FULL_CLUSTERS {
        print(bug, caught_on_full_clusters(bug), ON_FULL_CLUSTERS_SEEDS_MAX);
    }
    println!("{passed} passed, {failed} failed");
    failed
}
