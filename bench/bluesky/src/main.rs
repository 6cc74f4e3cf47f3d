//! The tables and figures of the BlueSky paper (FAST 2012, sections 6.3 to 6.7) over again, and those of the SCFS paper (ATC 2014, section 4).
//!
//! What runs is the production engine behind the production NFS server; bucket, network and disks are simulated, in virtual
//! time, because the paper's cold rows wait for hours and because this way the figures do not depend on how busy the machine
//! is that makes them. Each cell's result is a file, so a run that was stopped goes on; `--redo` measures again.

#![allow(
    clippy::disallowed_methods,
    reason = "a program for people: it measures this machine's own disk in real time"
)]

mod cells;
mod compile;
mod figure11;
mod figure7;
mod figure8;
mod fileset;
mod mount;
mod office;
mod plot;
mod report;
mod sharing;
mod table1;
mod table2;
mod tree;

use anyhow::Result;
use cells::Cells;
use clap::Parser;
use compile::Build;
use figure7::Figure7;
use figure8::Figure8;
use figure11::Figure11;
use report::Report;
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use table1::Table1;
use table2::Table2;
use tree::Tree;

/// Measures what was not measured yet and writes the page.
#[derive(Parser)]
struct Arguments {
    /// The unpacked source tree.
    #[arg(long)]
    source: PathBuf,
    /// The recorded build (see bench/bluesky/record-build).
    #[arg(long)]
    recording: PathBuf,
    /// The small version, for `make bench`: the files of the tree that the build reads, at least 3,000, and less of the rest.
    #[arg(long)]
    small: bool,
    /// Where the cells' results are kept.
    #[arg(long)]
    cells: PathBuf,
    /// The commit of this build: cells remember it, and those of another are refused.
    #[arg(long)]
    build: String,
    /// Keep cells of other builds beside those of this one; the page names all builds.
    #[arg(long)]
    mix: bool,
    /// Measure these cells again: beginnings of their names.
    #[arg(long)]
    redo: Vec<String>,
    /// Measure only these: table1, table2, figure7, figure8, figure11, real-figure11; `page` measures none.
    #[arg(long)]
    only: Vec<String>,
    /// Print the part of the page of cleaning that is Figure 11, with its charts into this directory, and nothing else.
    #[arg(long)]
    figure11: Option<PathBuf>,
    /// Measure what of the SCFS paper was not measured yet, write that page here, and do nothing else.
    #[arg(long)]
    sharing: Option<PathBuf>,
    /// Write the page here, and its charts into `figures` beside it; without, it is printed.
    #[arg(long)]
    page: Option<PathBuf>,
}

/// How much of everything.
struct Scale {
    name: &'static str,
    files_max: usize,
    table2: Table2,
    figure7: Figure7,
    figure8: Figure8,
}

impl Scale {
    fn small() -> Self {
        Self {
            name: "the small version: the files that the build needs, and less of everything else",
            // Those that the build reads are taken in any case.
            files_max: 3000,
            table2: Table2 {
                files: 1500,
                warm_up: 5000,
                operations: 10_000,
            },
            figure7: Figure7 {
                files: 16,
                file_bytes: 4 << 20,
                requests: 200,
            },
            figure8: Figure8 {
                files: 64,
                burst: Duration::from_secs(30),
                divide_buffers_by: 2,
            },
        }
    }

    fn full() -> Self {
        Self {
            name: "the full version",
            // As many as the paper's tree has.
            files_max: 35_000,
            table2: Table2 {
                files: 4000,
                warm_up: 15_000,
                operations: 40_000,
            },
            figure7: Figure7 {
                files: 64,
                file_bytes: 16 << 20,
                requests: 1000,
            },
            figure8: Figure8 {
                files: 256,
                burst: Duration::from_secs(120),
                divide_buffers_by: 1,
            },
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bluesky: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let cells = Cells::open(&arguments.cells, &arguments.build, &arguments.redo, arguments.mix)?;
    if let Some(page) = &arguments.sharing {
        return sharing::write(&cells, page);
    }
    let scale = if arguments.small {
        Scale::small()
    } else {
        Scale::full()
    };
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    if wanted("table1") {
        let build = Build::read(&arguments.recording)?;
        let tree = Tree::read(&arguments.source, scale.files_max, &build.sources())?;
        let table = Table1 {
            tree: Arc::new(tree),
            build: Arc::new(build),
        };
        table.measure(&cells, &arguments.cells)?;
    }
    if wanted("table2") {
        scale.table2.measure(&cells)?;
    }
    if wanted("figure7") {
        scale.figure7.measure(&cells)?;
    }
    if wanted("figure8") {
        scale.figure8.measure(&cells)?;
    }
    // Figure 11 is on the page of cleaning: only where it is asked for.
    let asked = |name: &str| arguments.only.iter().any(|only| only == name);
    if asked("figure11") {
        Figure11::measure(&cells)?;
    }
    // Needs servers beside it, and a quarter of an hour.
    if asked("real-figure11") {
        Figure11::measure_in_real_time(&cells, &arguments.cells)?;
    }
    if let Some(directory) = &arguments.figure11 {
        return report::figure11(&cells, directory);
    }
    let report = Report::new(&cells, scale.name)?;
    match arguments.page {
        Some(page) => report.write(&page, &page.with_file_name("figures")),
        None => {
            println!("{}", report.text());
            Ok(())
        }
    }
}
