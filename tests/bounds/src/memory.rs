//! Resident memory of an edge with the default configuration, while a client writes and reads more than fits.
//!
//! What is written cannot be compressed, comes over many connections at once, and is made of both kinds of load that fill
//! memory: very many small files (inodes, directory pages, journal records) and large ones (data on its way to the cloud).
//! Each phase has its peak as the kernel counts it, so none falls between two samples.

use crate::{content::content, process, report::Report};
use anyhow::{Context, Result, ensure};
use firn_rig::{Client, EXPORT, Edge, FileHandle};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// What the edge may have resident at any moment.
const BOUND_BYTES: u64 = 512 << 20;
/// Clients at one time.
const CONNECTIONS: usize = 32;
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
struct Size {
    directories: u64,
    files_a_directory: u64,
    large_files: u64,
    large_bytes: usize,
}

const FULL: Size = Size {
    directories: 200,
    files_a_directory: 1000,
    large_files: 8,
    large_bytes: 128 << 20,
};

const SMALL: Size = Size {
    directories: 10,
    files_a_directory: 500,
    large_files: 4,
    large_bytes: 64 << 20,
};

impl Size {
    fn files(self) -> u64 {
        self.directories * self.files_a_directory + self.large_files
    }

    /// Directory, name and length of a file. Large ones come at even distances between the small ones.
    fn file(self, number: u64) -> (usize, String, usize) {
        let every = self.files() / self.large_files;
        let directory = number % self.directories;
        let bytes = if number % every == every / 2 && number / every < self.large_files {
            self.large_bytes
        } else {
            // 1 to 32,767 bytes, 16 KiB on average.
            1 + (number.wrapping_mul(2_654_435_761) % 32_767) as usize
        };
        (directory as usize, format!("file-{number:06}"), bytes)
    }
}

struct Load {
    size: Size,
    address: std::net::SocketAddr,
    directories: Vec<FileHandle>,
    next: AtomicU64,
    bytes: AtomicU64,
}

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    let size = if small { SMALL } else { FULL };
    let place = directory.join("memory");
    let mut edge = Edge::format_local(Edge::binary()?, &place, |_| {}).await?;
    edge.start().await?;
    let mut report = Report::new(
        "memory",
        "An edge with the default configuration has at most 512 MiB resident.",
        String::new(),
    );
    let mut client = Client::mount(edge.address, EXPORT).await?;
    let mut directories = Vec::new();
    for number in 0..size.directories {
        let name = format!("directory-{number:03}");
        directories.push(
            client
                .make_directory(&client.root.clone(), name.as_bytes())
                .await?,
        );
    }
    let load = Arc::new(Load {
        size,
        address: edge.address,
        directories,
        next: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    });
    let mut worst = 0;
    let mut phases = Vec::new();
    let mut bytes = 0;
    for phase in ["write", "sync", "read", "restart and read"] {
        let id = edge.process_id().context("the edge has ended")?;
        process::forget_peak(id)?;
        let started = Instant::now();
        match phase {
            "write" => {
                load.run("written", |load, client, number| {
                    Box::pin(load.write(client, number))
                })
                .await?;
                bytes = load.bytes.load(Relaxed);
            }
            "sync" => edge.sync().await?,
            _ => {
                if phase != "read" {
                    edge.stop().await?;
                    edge.start().await?;
                }
                load.run("read", |load, client, number| Box::pin(load.read(client, number)))
                    .await?;
                ensure!(
                    load.bytes.load(Relaxed) == bytes,
                    "{phase}: not all bytes came back"
                );
            }
        }
        let memory = process::memory(edge.process_id().context("the edge has ended")?)?;
        println!(
            "bounds: {phase}: {:.0} s, peak {:.1} MiB, then {:.1} MiB",
            started.elapsed().as_secs_f64(),
            mebibytes(memory.peak),
            mebibytes(memory.resident)
        );
        worst = worst.max(memory.peak);
        phases.push((phase, memory));
    }
    edge.stop().await?;
    report.how = format!(
        "{} files, {:.2} GiB of bytes that cannot be compressed, written and read by {CONNECTIONS} connections of a foreign \
         client, listed with READDIRPLUS; the kernel's count of the most that was resident (VmHWM), by phase.",
        size.files(),
        bytes as f64 / f64::from(1 << 30)
    );
    for (phase, memory) in phases {
        report.bounded(
            &format!("peak, phase {phase}"),
            format!("{:.1} MiB", mebibytes(memory.peak)),
            "512 MiB",
            memory.peak <= BOUND_BYTES,
        );
    }
    Ok(report)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

type Step<'a> = std::pin::Pin<Box<dyn Future<Output = Result<u64>> + Send + 'a>>;

impl Load {
    /// Does a step for every file, on many connections.
    async fn run(
        self: &Arc<Self>,
        what: &str,
        step: for<'a> fn(&'a Load, &'a mut Client, u64) -> Step<'a>,
    ) -> Result<()> {
        self.next.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let load = self.clone();
                tokio::spawn(async move {
                    let mut client = Client::mount(load.address, EXPORT).await?;
                    loop {
                        let number = load.next.fetch_add(1, Relaxed);
                        if number >= load.size.files() {
                            return anyhow::Ok(());
                        }
                        let bytes = step(&load, &mut client, number).await;
                        let bytes = bytes.with_context(|| format!("file {number}"))?;
                        load.bytes.fetch_add(bytes, Relaxed);
                    }
                })
            })
            .collect();
        let mut told = Instant::now();
        while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if told.elapsed() > PROGRESS_EVERY {
                told = Instant::now();
                println!(
                    "bounds:   {what} {} of {} files, {:.0} MiB",
                    self.next.load(Relaxed).min(self.size.files()),
                    self.size.files(),
                    mebibytes(self.bytes.load(Relaxed))
                );
            }
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    async fn write(&self, client: &mut Client, number: u64) -> Result<u64> {
        let (directory, name, bytes) = self.size.file(number);
        let data = content(number, bytes);
        client
            .write_file(&self.directories[directory], name.as_bytes(), 0o644, &data)
            .await?;
        Ok(bytes as u64)
    }

    /// Reads a file back; the first of each directory lists it, too.
    async fn read(&self, client: &mut Client, number: u64) -> Result<u64> {
        let (directory, name, bytes) = self.size.file(number);
        let directory = &self.directories[directory];
        if number < self.size.directories {
            let listed = client.list(directory).await?.len() as u64;
            let beyond = self.size.files() % self.size.directories;
            let expected = self.size.files() / self.size.directories + u64::from(number < beyond);
            ensure!(
                listed == expected,
                "its directory lists {listed} names, not {expected}"
            );
        }
        let file = client.lookup(directory, name.as_bytes()).await?;
        let (checksum, length) = client.checksum(&file).await?;
        ensure!(length == bytes as u64, "{length} bytes came back, not {bytes}");
        ensure!(
            checksum == blake3::hash(&content(number, bytes)),
            "other bytes came back"
        );
        Ok(length)
    }
}
