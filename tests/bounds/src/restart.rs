//! Restart time when the journal is full of what the cloud never took.
//!
//! The store refuses everything while a client writes, so every acknowledged byte is in the journal only. Then the edge is
//! killed, and started again with the store in reach.

use crate::{content::content, process, report::Report};
use anyhow::{Context, Result, ensure};
use firn_rig::{Client, EXPORT, Edge};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const BOUND: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 32;
/// When the store goes away: the start itself needs it.
const OUTAGE_FROM_MS: u64 = 3000;

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    // Half the files that may wait for the cloud, of 24 KiB each: many records, inodes and names to bring back, besides data.
    let (files, journal_bytes) = if small {
        (3_000, 64 << 20)
    } else {
        (45_000, 1 << 30)
    };
    let bytes = (journal_bytes / files) as usize;
    let place = directory.join("restart");
    let mut edge = Edge::format_local(Edge::binary_with_faults()?, &place, |_| {}).await?;
    let outage = place.join("outage.toml");
    std::fs::write(
        &outage,
        format!("seed = 1\n[[phases]]\nfrom_ms = {OUTAGE_FROM_MS}\nfaults = {{ outage = \"refuse\" }}\n"),
    )?;
    edge.start_with(&["--fault", &outage.to_string_lossy()]).await?;
    tokio::time::sleep(Duration::from_millis(OUTAGE_FROM_MS)).await;
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (next, address) = (next.clone(), edge.address);
            tokio::spawn(async move {
                let mut client = Client::mount(address, EXPORT).await?;
                let root = client.root.clone();
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= files {
                        return anyhow::Ok(());
                    }
                    let name = format!("file-{number:06}");
                    client
                        .write_file(&root, name.as_bytes(), 0o644, &content(number, bytes))
                        .await?;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let used = edge.status().await?;
    let used = used
        .pointer("/journal/used_bytes")
        .and_then(serde_json::Value::as_u64);
    let used = used.context("status has no journal")?;
    edge.kill().await?;

    let started = Instant::now();
    edge.start().await?;
    let took = started.elapsed();
    let memory = process::memory(edge.process_id().context("the edge has ended")?)?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    let listed = client.list(&client.root.clone()).await?;
    ensure!(
        listed.len() as u64 == files,
        "{} files came back, not {files}",
        listed.len()
    );
    let mut compared = 0;
    for entry in listed {
        let number: u64 = std::str::from_utf8(&entry.name)?
            .trim_start_matches("file-")
            .parse()?;
        let (checksum, _) = client.checksum(&entry.handle).await?;
        ensure!(
            checksum == blake3::hash(&content(number, bytes)),
            "file {number} differs"
        );
        compared += 1;
    }
    edge.stop().await?;

    let mut report = Report::new(
        "restart",
        "After a kill with 1 GiB in the journal, clients are served again within 10 seconds.",
        format!(
            "{files} files of {bytes} bytes written while the store refuses everything, then SIGKILL; the time from starting \
             the process to its serving, the store in reach."
        ),
    );
    let gibibytes = used as f64 / f64::from(1 << 30);
    report.bounded(
        "journal at the kill",
        format!("{gibibytes:.3} GiB"),
        &format!("at least {:.3} GiB", journal_bytes as f64 / f64::from(1 << 30)),
        used >= journal_bytes,
    );
    // A test may not depend on speed.
    report.bounded(
        "from start to serving",
        format!("{:.2} s", took.as_secs_f64()),
        if small { "" } else { "10 s" },
        small || took <= BOUND,
    );
    report.bounded(
        "peak of resident memory until then",
        format!("{:.1} MiB", memory.peak as f64 / f64::from(1 << 20)),
        "512 MiB",
        memory.peak <= 512 << 20,
    );
    report.bounded(
        "acknowledged files that came back, byte for byte",
        format!("{compared}"),
        &format!("{files}"),
        compared == files,
    );
    Ok(report)
}
