//! The cleaner beside the bucket: a log of which three tenths are garbage, in runs of at most a minute and within 256 MiB.
//!
//! The edge is off while `firn-cleaner` runs, once a process, until two runs in a row find nothing to do. What is left then is
//! what the files need. The store is a directory on this machine, so requests cost no waiting; they are counted and priced as
//! a bucket's.

use crate::{content::content, process, report::Report};
use anyhow::{Context, Result, bail, ensure};
use firn_rig::{Client, EXPORT, Edge, FileHandle};
use firn_store::{ProviderPrices, Route, Usage};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::process::Command;

const GIB: u64 = 1 << 30;
/// What a function is given.
const BOUND_BYTES: u64 = 256 << 20;
/// One run, from the start of the process to its end.
const RUN_MAX: Duration = Duration::from_secs(60);
/// What a run is told to take: ten seconds less, for the batch under way.
const RUN_SECONDS: u64 = 50;
/// Between two looks at the memory of a run.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Runs until there must be nothing left to do.
const RUNS_MAX: usize = 200;
const FILE_BYTES: u64 = 256 << 10;
const CONNECTIONS: u64 = 8;
/// Of the log, three tenths are written over: three of seven files, with the log's first seven tenths being all files.
const REWRITTEN: (u64, u64) = (3, 7);
/// Free disk beside the log and what is moved of it.
const SPARE_BYTES: u64 = 5 * GIB;

/// What a run says.
#[derive(Debug, Deserialize)]
struct Said {
    report: Ran,
}

#[derive(Debug, Deserialize)]
struct Ran {
    retired_segments: u64,
    retired_bytes: u64,
    written_bytes: u64,
    waiting_segments: u64,
    deleted_segments: u64,
    sweep_ended: bool,
    damaged: Vec<serde_json::Value>,
    usage: Usage,
}

struct Run {
    took: Duration,
    peak_bytes: u64,
    ran: Ran,
}

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    let place = directory.join("cleaning");
    fs::create_dir_all(&place)?;
    let wanted = if small { GIB / 16 } else { 10 * GIB };
    let scaled = scaled_to_the_disk(&place, wanted)?;
    let files = scaled / 10 * 7 / FILE_BYTES;
    let limits = |settings: &mut firn_rig::Settings| {
        settings.limits = "disk_cache = \"64 MiB\"\njournal = \"512 MiB\"\n".into();
    };
    let mut edge = Edge::format_local(Edge::binary()?, &place, limits).await?;
    edge.start().await?;
    let load = Load::new(&edge, files).await?;
    load.write(0, |_| true).await?;
    edge.sync().await?;
    load.write(1, Load::is_rewritten).await?;
    edge.sync().await?;
    edge.stop().await?;

    let store = place.join("store");
    let (family, before) = log_of(&store)?;
    let live = files * FILE_BYTES;
    let config = place.join("firn-cleaner.toml");
    let text = format!(
        "family = \"{family}\"\nstore = \"file://{}\"\ntable = \"redb:{}\"\n[limits]\ntime_seconds = {RUN_SECONDS}\n\
         grace_seconds = 0\ncold_after_seconds = 0\n",
        store.display(),
        place.join("table.redb").display()
    );
    fs::write(&config, text)?;
    let runs = clean(&config).await?;
    let after = log_of(&store)?.1;

    edge.wipe_cache()?;
    edge.start().await?;
    let verified = edge.command("verify", &[]).await?;
    edge.stop().await?;
    let measured = Measured {
        wanted,
        scaled,
        before,
        after,
        live,
        runs,
        verified,
    };
    Ok(measured.report(small))
}

/// What came out. Sizes in bytes.
struct Measured {
    /// The log that was to be made, and the one that the disk has room for.
    wanted: u64,
    scaled: u64,
    /// The log before and after.
    before: u64,
    after: u64,
    /// The files.
    live: u64,
    runs: Vec<Run>,
    /// What `firn-edge verify` said.
    verified: String,
}

impl Measured {
    fn report(&self, small: bool) -> Report {
        let Self {
            wanted,
            scaled,
            before,
            after,
            live,
            ref runs,
            ref verified,
        } = *self;
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / GIB as f64);
        let smaller = if scaled < wanted {
            format!(
                " Less than {} because the disk has no room for more.",
                gib(wanted)
            )
        } else {
            String::new()
        };
        let mut report = Report::new(
            "cleaning",
            "Cleaning a log of 10 GiB with 30 % garbage takes at most 256 MiB of memory, in runs of at most 60 s, and leaves no waste.",
            format!(
                "{} files of {} KiB that cannot be compressed, three of seven of them written a second time; then `firn-cleaner run`, a \
             process each, with the edge off and the store a directory, until two in a row find nothing to do.{smaller}",
                live / FILE_BYTES,
                FILE_BYTES >> 10
            ),
        );
        let sum = |of: fn(&Ran) -> u64| runs.iter().map(|run| of(&run.ran)).sum::<u64>();
        let usage = runs
            .iter()
            .fold(Usage::default(), |sum, run| sum.plus(&run.ran.usage));
        let book = &ProviderPrices::all()[0];
        let cost = book.cost(&usage, Route::SameRegion).total();
        let (retired, written) = (sum(|ran| ran.retired_bytes), sum(|ran| ran.written_bytes));
        let freed = retired.saturating_sub(written).max(1);
        let peak = runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0);
        let longest = runs.iter().map(|run| run.took).max().unwrap_or_default();
        report.told(
            "log before, and the files' bytes in it",
            format!("{}, {}", gib(before), gib(live)),
        );
        report.told(
            "runs, seconds in all",
            format!(
                "{}, {:.0}",
                runs.len(),
                runs.iter().map(|run| run.took.as_secs_f64()).sum::<f64>()
            ),
        );
        report.bounded(
            "peak of resident memory",
            format!("{:.1} MiB", peak as f64 / f64::from(1 << 20)),
            "256 MiB",
            peak <= BOUND_BYTES,
        );
        // A test may not depend on speed.
        report.bounded(
            "longest run",
            format!("{:.1} s", longest.as_secs_f64()),
            if small { "" } else { "60 s" },
            small || longest <= RUN_MAX,
        );
        // A segment is moved out of if a tenth of it is garbage; indices and nodes are a hundredth.
        report.bounded(
            "log afterwards, to the files' bytes",
            format!("{}: {:.3}", gib(after), after as f64 / live as f64),
            "at most 1.05",
            after * 100 <= live * 105,
        );
        report.told("segments deleted", sum(|ran| ran.deleted_segments).to_string());
        report.told(
            "written for each byte that became free",
            format!("{:.2}", written as f64 / freed as f64),
        );
        report.told(
            "requests: PUT, GET, LIST, DELETE",
            format!(
                "{}, {}, {}, {}",
                usage.puts,
                usage.gets + usage.ranged_gets,
                usage.lists,
                usage.deletes
            ),
        );
        let per_gib = cost.0 * i128::from(GIB) / i128::from(freed);
        report.told(
            &format!("money for each GiB reclaimed, {} of {}", book.name, book.as_of),
            format!("${:.6} (in all ${cost})", per_gib as f64 / 1e9),
        );
        report.bounded(
            "verified afterwards, without a cache",
            verified.trim().into(),
            "whole",
            verified.starts_with("whole"),
        );
        report
    }
}

/// Runs the program until two runs in a row find nothing to do.
async fn clean(config: &Path) -> Result<Vec<Run>> {
    let program = std::env::current_exe()?.with_file_name("firn-cleaner");
    let (mut runs, mut idle) = (Vec::new(), 0);
    while idle < 2 {
        ensure!(
            runs.len() < RUNS_MAX,
            "after {RUNS_MAX} runs there is still something to do"
        );
        let run = one_run(&program, config).await?;
        ensure!(run.ran.damaged.is_empty(), "damaged: {:?}", run.ran.damaged);
        println!(
            "bounds: run {}: {:.1} s, peak {:.1} MiB, {} segments retired, {} deleted",
            runs.len() + 1,
            run.took.as_secs_f64(),
            run.peak_bytes as f64 / f64::from(1 << 20),
            run.ran.retired_segments,
            run.ran.deleted_segments
        );
        let left = run.ran.retired_segments + run.ran.waiting_segments + run.ran.deleted_segments;
        idle = if left == 0 && run.ran.sweep_ended {
            idle + 1
        } else {
            0
        };
        runs.push(run);
    }
    Ok(runs)
}

async fn one_run(program: &PathBuf, config: &Path) -> Result<Run> {
    let started = Instant::now();
    let child = Command::new(program)
        .arg("--config")
        .arg(config)
        .arg("run")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let id = child.id().context("it has ended already")?;
    let ended = child.wait_with_output();
    tokio::pin!(ended);
    // The kernel keeps the peak for as long as the process lives, so the last look sees nearly all of it.
    let mut peak_bytes = 0;
    let output = loop {
        match tokio::time::timeout(LOOK_EVERY, &mut ended).await {
            Ok(output) => break output?,
            Err(_) => {
                peak_bytes = process::memory(id).map_or(peak_bytes, |memory| memory.peak.max(peak_bytes));
            }
        }
    };
    if !output.status.success() {
        bail!("firn-cleaner: {}", output.status);
    }
    let said: Said = serde_json::from_slice(&output.stdout).context("the report of a run")?;
    Ok(Run {
        took: started.elapsed(),
        peak_bytes,
        ran: said.report,
    })
}

/// The only family whose log lies in the store, and the bytes of its segments.
fn log_of(store: &Path) -> Result<(String, u64)> {
    for entry in fs::read_dir(store)? {
        let family = entry?.path();
        if !family.join("log").is_dir() {
            continue;
        }
        let mut bytes = 0;
        for writer in fs::read_dir(family.join("log"))? {
            for segment in fs::read_dir(writer?.path())? {
                bytes += segment?.metadata()?.len();
            }
        }
        let name = family.file_name().context("a name")?.to_string_lossy();
        return Ok((name.into_owned(), bytes));
    }
    bail!("no family in {}", store.display())
}

/// What of `wanted` bytes the disk has room for, with everything that is moved before the first segment is deleted.
fn scaled_to_the_disk(place: &Path, wanted: u64) -> Result<u64> {
    let output = std::process::Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(place)
        .output()
        .context("df")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let free: u64 = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok())
        .context("df says how much is free")?;
    Ok(wanted.min(free.saturating_sub(SPARE_BYTES) / 2))
}

/// Files that are written by several clients.
struct Load {
    address: std::net::SocketAddr,
    directory: FileHandle,
    files: u64,
    next: AtomicU64,
}

impl Load {
    async fn new(edge: &Edge, files: u64) -> Result<Arc<Self>> {
        let mut client = Client::mount(edge.address, EXPORT).await?;
        let directory = client.make_directory(&client.root.clone(), b"files").await?;
        Ok(Arc::new(Self {
            address: edge.address,
            directory,
            files,
            next: AtomicU64::new(0),
        }))
    }

    /// Which files are written a second time: scattered, so that every segment has some.
    fn is_rewritten(file: u64) -> bool {
        file.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33 < (u64::MAX >> 33) / REWRITTEN.1 * REWRITTEN.0
    }

    /// Writes the chosen files, other bytes in each round.
    async fn write(self: &Arc<Self>, round: u64, chosen: fn(u64) -> bool) -> Result<()> {
        self.next.store(0, Relaxed);
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let load = self.clone();
                tokio::spawn(async move {
                    let mut client = Client::mount(load.address, EXPORT).await?;
                    loop {
                        let file = load.next.fetch_add(1, Relaxed);
                        if file >= load.files {
                            return anyhow::Ok(());
                        }
                        if chosen(file) {
                            let data = content(round * load.files + file, FILE_BYTES as usize);
                            let name = format!("file-{file:06}");
                            client
                                .write_file(&load.directory, name.as_bytes(), 0o644, &data)
                                .await?;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(())
    }
}
