//! `make bounds`: what Firn promises never to exceed, measured on the real thing.
//!
//! Each subcommand measures one promise, prints its figures and fails if a bound is exceeded. With `--small` it does the same
//! at a size that a test can wait for; bounds that depend on size are then held in proportion, and none depends on speed.
//! Full runs leave a report, and `page` makes `docs/bounds.md` of all of them.

#![allow(
    clippy::disallowed_methods,
    reason = "a program for people: real time, real network, real processes"
)]

mod cleaning;
mod content;
mod directory;
mod idle;
mod memory;
mod month;
mod outage;
mod process;
mod report;
mod restart;
mod simulated;
mod snapshots;
mod world;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use report::Report;
use std::{fs, path::PathBuf, process::ExitCode};

/// In the order of the page.
const NAMES: &[&str] = &[
    "memory",
    "directory",
    "restart",
    "idle",
    "month",
    "outage",
    "cleaning",
    "snapshots",
];

/// Measures what Firn promises never to exceed.
#[derive(Parser)]
struct Arguments {
    /// Where volumes are made and reports kept.
    #[arg(long, global = true, default_value = "target/bounds")]
    directory: PathBuf,
    /// At the size of a test; leaves no report.
    #[arg(long, global = true)]
    small: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Subcommand)]
enum Command {
    /// Resident memory of an edge by default, while 4 GiB and 200,000 files are written and read.
    Memory,
    /// A million files in one directory: the rate of the last to that of the first; what listing it takes.
    Directory,
    /// How long a start takes with 1 GiB in the journal.
    Restart,
    /// Requests of an idle volume.
    Idle,
    /// What a client costs that appends 4 KiB a second for a month.
    Month,
    /// An hour without the store.
    Outage,
    /// Memory, time and money of cleaning 10 GiB with 30 % garbage.
    Cleaning,
    /// What a snapshot of a million files takes, and what 500 of them cost writers.
    Snapshots,
    /// Writes the page of all reports.
    Page,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bounds: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let directory = &directory.canonicalize()?;
    let small = arguments.small;
    let report = match arguments.command {
        Command::Memory => real(memory::measure(directory, small))?,
        Command::Directory => real(directory::measure(directory, small))?,
        Command::Restart => real(restart::measure(directory, small))?,
        Command::Idle => real(idle::measure(directory, small))?,
        Command::Month => month::measure(small)?,
        Command::Outage => real(outage::measure(directory, small))?,
        Command::Cleaning => real(cleaning::measure(directory, small))?,
        Command::Snapshots => real(snapshots::measure(directory, small))?,
        Command::Page => {
            print!("{}", report::page(directory, NAMES, &process::machine())?);
            return Ok(true);
        }
    };
    report.print();
    if !small {
        report.save(directory)?;
    }
    Ok(report.held())
}

fn real(measurement: impl Future<Output = Result<Report>>) -> Result<Report> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measurement)
}
