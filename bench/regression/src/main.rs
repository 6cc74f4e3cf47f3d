//! `make bench-regression`: what a fixed set of operations costs, beside the committed figures of `bench/regression.json`.
//!
//! A row is a load that never changes: so many bytes or calls. Its figures are the processor's time and what the kernel counted
//! (page faults, calls that read and write, bytes), and the requests to the store, each for one unit of the load. None is a time
//! by the clock, so a machine that is busy with something else spoils none; what it does spoil, the speed of the processor
//! itself, is taken out by a loop of known work around each row (`calibration`). Of several rounds the lowest figure counts.
//!
//! More than [`figures::TOLERANCE`] above what is committed fails; `--write` commits what came out.

#![allow(
    clippy::disallowed_methods,
    reason = "a program for people: real network, real processes"
)]

mod calibration;
mod edge;
mod engine;
mod figures;
mod latency;
mod process;
mod protocol;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use figures::Figures;
use std::{path::PathBuf, process::ExitCode};

/// Measures what operations cost and compares that with the committed figures.
#[derive(Parser)]
struct Arguments {
    /// The committed figures.
    #[arg(long, default_value = "bench/regression.json")]
    figures: PathBuf,
    /// Commits what comes out instead of comparing.
    #[arg(long)]
    write: bool,
    /// How often each set is measured; the lowest figures count.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only these sets: edge, engine, protocol; and latency, which is measured only if it is named.
    #[arg(long)]
    only: Vec<String>,
    /// Where volumes are made; it should be on a real disk.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Serves an empty file system in memory and prints its address: the server of the set `protocol`.
    #[arg(long, hide = true)]
    serve_memory: bool,
}

fn main() -> ExitCode {
    // The engine is measured in this process: with the allocator as the edge sets it.
    firn_edge::allocator::keep_little();
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-regression: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if arguments.serve_memory {
        runtime.block_on(protocol::serve())?;
        return Ok(true);
    }
    let place = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory),
        None => tempfile::tempdir(),
    }
    .context("a directory to work in")?;
    let wanted = |set: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == set);
    let mut measured = Figures::default();
    for round in 1..=arguments.rounds {
        eprintln!("bench-regression: round {round} of {}", arguments.rounds);
        let directory = place.path().join(format!("round-{round}"));
        std::fs::create_dir_all(&directory)?;
        if wanted("edge") {
            measured.merge(runtime.block_on(edge::measure(&directory))?);
        }
        if arguments.only.iter().any(|only| only == "latency") {
            measured.merge(runtime.block_on(latency::measure(&directory))?);
        }
        if wanted("engine") {
            measured.merge(runtime.block_on(engine::measure(&directory))?);
        }
        if wanted("protocol") {
            measured.merge(runtime.block_on(protocol::measure())?);
        }
        std::fs::remove_dir_all(&directory)?;
    }
    ensure!(!measured.is_empty(), "no set has that name");
    if arguments.write {
        let mut committed = Figures::load(&arguments.figures).unwrap_or_default();
        committed.replace(measured.clone());
        measured.print(None);
        committed.save(&arguments.figures)?;
        return Ok(true);
    }
    let committed = Figures::load(&arguments.figures)?;
    Ok(measured.print(Some(&committed)))
}

/// `bytes` bytes that follow from a number and cannot be compressed.
fn content(number: u64, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    blake3::Hasher::new()
        .update(&number.to_le_bytes())
        .finalize_xof()
        .fill(&mut content);
    content.into()
}
