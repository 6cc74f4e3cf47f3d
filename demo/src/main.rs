//! `make demo`: Firn from an empty directory to a table of figures, on this machine alone.
//!
//! An edge on a directory store is given a tree of real files over NFS, by a client library that is not ours. In the middle
//! of the writing it is killed; what it had acknowledged must be there after a restart. Then the rest is copied, everything
//! goes to the store, the cache is wiped, and all is read back from the store and compared. One differing byte, a missing
//! name or one too many, and the demonstration fails.

#![allow(
    clippy::disallowed_methods,
    reason = "a program for people: real time, real network, real processes"
)]

mod table;
mod tree;
mod verify;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use firn_rig::{Client, Counters, EXPORT, Edge, FileHandle};
use std::{
    io::Write,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use table::{Row, show};
use tree::{Content, Tree};
use verify::verify;

/// Connections that copy at the same time: clients share the syncs of the journal.
const CONNECTIONS: usize = 16;

/// The edge is killed when this much of the bytes is acknowledged.
const KILL_AT_PERCENT: u64 = 60;

/// How long replies that were sent before the kill may take to be read.
const LAST_REPLIES: Duration = Duration::from_millis(500);

/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Shows Firn on this machine.
#[derive(Parser)]
struct Arguments {
    /// The edge's program; by default the one beside this.
    #[arg(long)]
    edge: Option<PathBuf>,
    /// Where the volume is made; what a demonstration before left there is replaced.
    #[arg(long)]
    directory: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demonstration failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where everything is, shared by the connections.
struct Copying {
    tree: Tree,
    /// Handles of the tree's directories.
    directories: Vec<FileHandle>,
    /// The checksum of each item at the time it was read from this machine; set when the edge has acknowledged it.
    acknowledged: Vec<Mutex<Option<blake3::Hash>>>,
    acknowledged_bytes: AtomicU64,
    acknowledged_items: AtomicUsize,
    stop: AtomicBool,
}

async fn run(arguments: Arguments) -> Result<()> {
    let binary = match arguments.edge {
        Some(binary) => binary,
        None => Edge::binary()?,
    };
    let directory = arguments.directory.map_or_else(default_directory, Ok)?;
    say("Looking for a tree of real files on this machine");
    let tree = Tree::gather()?;
    let sources: Vec<_> = tree
        .sources
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    say(&format!(
        "The tree: {} files and {} links in {} directories, {:.1} MB, from {}{}",
        tree.files(),
        tree.items.len() - tree.files(),
        tree.directories.len(),
        megabytes(tree.bytes),
        sources.join(", "),
        if tree.made_up > 0 {
            format!(" ({} files made up, since there were too few)", tree.made_up)
        } else {
            String::new()
        }
    ));
    let mut edge = Edge::format_local(binary, &directory, |settings| {
        settings.volume = "demo".into();
        settings.name = "demo-edge".into();
    })
    .await?;
    let mut rows = Vec::new();
    edge.start().await?;
    say(&format!("An edge serves a new volume on {}", edge.address));

    let mut first = Client::mount(edge.address, EXPORT).await?;
    let started = Instant::now();
    let directories = make_directories(&mut first, &tree).await?;
    let root = first.root.clone();
    drop(first);
    let items = tree.items.len();
    let copying = Arc::new(Copying {
        acknowledged: (0..items).map(|_| Mutex::new(None)).collect(),
        tree,
        directories,
        acknowledged_bytes: AtomicU64::new(0),
        acknowledged_items: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });

    // 1. Copy, and kill the edge in the middle.
    let (killed, took) = copy_and_kill(&copying, &mut edge, started).await?;
    let (mut acked_items, mut acked_bytes) = copying.done();
    rows.push(Row {
        phase: "copy until SIGKILL",
        took,
        bytes: acked_bytes,
        files: acked_items,
        counters: killed,
        level: "1 journal",
    });
    say(&format!(
        "SIGKILL with {CONNECTIONS} writes under way; {acked_items} files, {:.1} MB were acknowledged",
        megabytes(acked_bytes)
    ));

    // 2. Start again, and check that everything acknowledged is there.
    let started = Instant::now();
    edge.start().await?;
    let again = Client::mount(edge.address, EXPORT).await?;
    ensure!(
        again.root.data == root.data,
        "the root's file handle changed with the restart"
    );
    drop(again);
    let mut seen = edge.counters().await?;
    rows.push(Row {
        phase: "restart, recover",
        took: started.elapsed(),
        bytes: 0,
        files: 0,
        counters: seen,
        level: "1 journal",
    });
    let started = Instant::now();
    let checked = verify(&copying, edge.address, false).await?;
    ensure!(
        checked.0 == acked_items,
        "{} of {acked_items} acknowledged files were found",
        checked.0
    );
    rows.push(
        row(
            "verify acknowledged",
            started,
            checked,
            &mut edge,
            &mut seen,
            "1 journal",
        )
        .await?,
    );
    say(&format!(
        "All {acked_items} acknowledged files survived, byte for byte"
    ));

    // 3. Copy the rest.
    let started = Instant::now();
    copy(&copying, edge.address).await?;
    let (items_now, bytes_now) = copying.done();
    (acked_items, acked_bytes) = (items_now - acked_items, bytes_now - acked_bytes);
    ensure!(
        items_now == items as u64,
        "{items_now} of {items} files were copied"
    );
    let copied = (acked_items, acked_bytes);
    rows.push(
        row(
            "copy the rest",
            started,
            copied,
            &mut edge,
            &mut seen,
            "1 journal",
        )
        .await?,
    );

    // 4. Into the cloud.
    say("Waiting until everything is in the cloud");
    let started = Instant::now();
    edge.sync().await?;
    rows.push(
        row(
            "reach the cloud",
            started,
            (0, 0),
            &mut edge,
            &mut seen,
            "2 cloud",
        )
        .await?,
    );

    // 5. Forget everything that is not in the cloud, and read it all.
    edge.stop().await?;
    edge.wipe_cache()?;
    let started = Instant::now();
    edge.start().await?;
    seen = edge.counters().await?;
    rows.push(Row {
        phase: "restart, cache wiped",
        took: started.elapsed(),
        bytes: 0,
        files: 0,
        counters: seen,
        level: "2 cloud",
    });
    say("Reading everything back from the cloud");
    let started = Instant::now();
    let read = verify(&copying, edge.address, true).await?;
    ensure!(
        read == (items as u64, copying.tree.bytes),
        "{} files with {} bytes came back, not {items} with {}",
        read.0,
        read.1,
        copying.tree.bytes
    );
    rows.push(
        row(
            "read all back, cold",
            started,
            read,
            &mut edge,
            &mut seen,
            "2 cloud",
        )
        .await?,
    );
    edge.stop().await?;

    show(&rows, &edge.prices);
    println!(
        "\n{items} files and links, {:.1} MB: every byte that came back is the byte that went in.\n",
        megabytes(copying.tree.bytes)
    );
    println!(
        "The volume is kept in {}. To serve it again:",
        directory.display()
    );
    println!(
        "    {} --config {} run",
        std::env::current_exe()?.with_file_name("firn-edge").display(),
        edge.config.display()
    );
    println!("and to mount it, as root on this machine:");
    let port = edge.address.port();
    println!(
        "    mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock 127.0.0.1:{EXPORT} /mnt"
    );
    Ok(())
}

fn default_directory() -> Result<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = variable("FIRN_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("firn")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/firn")));
    let cache = cache.context("neither FIRN_CACHE nor HOME is set; name a place with --directory")?;
    Ok(cache.join("demo"))
}

fn say(text: &str) {
    println!("demo: {text}");
    let _ = std::io::stdout().flush();
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

async fn row(
    phase: &'static str,
    started: Instant,
    (files, bytes): (u64, u64),
    edge: &mut Edge,
    seen: &mut Counters,
    level: &'static str,
) -> Result<Row> {
    let took = started.elapsed();
    let now = edge.counters().await?;
    let counters = now.since(*seen);
    *seen = now;
    Ok(Row {
        phase,
        took,
        bytes,
        files,
        counters,
        level,
    })
}

impl Copying {
    fn done(&self) -> (u64, u64) {
        (
            self.acknowledged_items.load(Relaxed) as u64,
            self.acknowledged_bytes.load(Relaxed),
        )
    }

    fn checksum_of(&self, item: usize) -> Option<blake3::Hash> {
        *self.acknowledged[item].lock().expect("no panic under this lock")
    }

    fn acknowledge(&self, item: usize, checksum: blake3::Hash) {
        *self.acknowledged[item].lock().expect("no panic under this lock") = Some(checksum);
        self.acknowledged_bytes
            .fetch_add(self.tree.items[item].bytes, Relaxed);
        self.acknowledged_items.fetch_add(1, Relaxed);
    }
}

async fn make_directories(client: &mut Client, tree: &Tree) -> Result<Vec<FileHandle>> {
    let mut handles = vec![client.root.clone()];
    for directory in &tree.directories[1..] {
        let parent = handles[directory.parent].clone();
        handles.push(client.make_directory(&parent, &directory.name).await?);
    }
    Ok(handles)
}

/// Copies what is not acknowledged yet, from `next` on, until the end or until the edge is gone.
async fn copy_some(copying: &Copying, address: std::net::SocketAddr, next: &AtomicUsize) -> Result<()> {
    let mut client = Client::mount(address, EXPORT).await?;
    loop {
        let index = next.fetch_add(1, Relaxed);
        let Some(item) = copying.tree.items.get(index) else {
            return Ok(());
        };
        if copying.checksum_of(index).is_some() {
            continue;
        }
        if copying.stop.load(Relaxed) {
            return Ok(());
        }
        let data = item.read()?;
        ensure!(
            data.len() as u64 == item.bytes || matches!(item.content, Content::Link(_)),
            "{} changed while it was copied",
            copying.tree.path(item)
        );
        let directory = copying.directories[item.directory].clone();
        let copied = match item.content {
            Content::Link(_) => client.make_link(&directory, &item.name, &data).await,
            Content::File(_) | Content::MadeUp(_) => {
                client.write_file(&directory, &item.name, item.mode, &data).await
            }
        };
        copied.with_context(|| format!("copying {}", copying.tree.path(item)))?;
        copying.acknowledge(index, blake3::hash(&data));
    }
}

async fn copy_and_kill(
    copying: &Arc<Copying>,
    edge: &mut Edge,
    started: Instant,
) -> Result<(Counters, Duration)> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let (copying, next, address) = (copying.clone(), next.clone(), edge.address);
        tasks.push(tokio::spawn(
            async move { copy_some(&copying, address, &next).await },
        ));
    }
    let limit = copying.tree.bytes / 100 * KILL_AT_PERCENT;
    let mut told = Instant::now();
    while copying.done().1 < limit {
        ensure!(
            !tasks.iter().all(tokio::task::JoinHandle::is_finished),
            "the copy ended before the edge was killed"
        );
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            progress("copied", copying.done(), copying);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The edge counts in memory: this is the last chance to ask.
    let counters = edge.counters().await?;
    let before = copying.done();
    edge.kill().await?;
    copying.stop.store(true, Relaxed);
    let took = started.elapsed();
    // Replies that were on their way still count; who waits for one that never comes is not kept waiting.
    tokio::time::sleep(LAST_REPLIES).await;
    let mut cut_off = 0;
    for task in tasks {
        task.abort();
        cut_off += usize::from(!matches!(task.await, Ok(Ok(()))));
    }
    ensure!(
        cut_off > 0 && before.0 < copying.tree.items.len() as u64,
        "the edge was not killed in the middle of the writing"
    );
    copying.stop.store(false, Relaxed);
    Ok((counters, took))
}

async fn copy(copying: &Arc<Copying>, address: std::net::SocketAddr) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks = (0..CONNECTIONS).map(|_| {
        let (copying, next) = (copying.clone(), next.clone());
        tokio::spawn(async move { copy_some(&copying, address, &next).await })
    });
    let tasks: Vec<_> = tasks.collect();
    with_progress("copied", copying, || copying.done(), tasks).await
}

/// Waits for all tasks, telling how far they are.
async fn with_progress(
    what: &str,
    copying: &Copying,
    done: impl Fn() -> (u64, u64),
    tasks: Vec<tokio::task::JoinHandle<Result<()>>>,
) -> Result<()> {
    let mut told = Instant::now();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            progress(what, done(), copying);
        }
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

fn progress(what: &str, (files, bytes): (u64, u64), copying: &Copying) {
    say(&format!(
        "  {what} {files} of {} files, {:.1} of {:.1} MB",
        copying.tree.items.len(),
        megabytes(bytes),
        megabytes(copying.tree.bytes)
    ));
}
