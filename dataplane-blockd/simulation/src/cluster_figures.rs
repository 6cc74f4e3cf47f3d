//! Figures of whole clusters in virtual time, as Markdown.

use crate::{death::Death, neighbours::Neighbours, setting::MODEL};
use std::time::Duration;

/// Nodes of the clusters of which one dies.
const SIZES: [usize; 3] = [10, 30, 100];

/// What can be measured.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Figure {
    /// A node dies for good under load.
    Deaths,
    /// A tenant is at full blast beside others.
    Neighbours,
}

impl Figure {
    /// Measures it and prints it.
    ///
    /// # Errors
    /// If a disk does not do what it must.
    pub fn print(self) -> Result<(), String> {
        match self {
            Self::Deaths => deaths(),
            Self::Neighbours => neighbours(),
        }
    }
}

fn deaths() -> Result<(), String> {
    println!(
        "| nodes | copied, MB | noticed after, s | copied in, s | MB/s | MB/s of each node left | against 10 nodes | requests meanwhile | longest, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut first = None;
    for nodes in SIZES {
        let run = Death {
            nodes,
            model: MODEL,
            tracts_per_node: 100,
            data_bytes: 512 << 20,
            heartbeat: Duration::from_millis(200),
            writes_per_second: 100,
        };
        let found = run.run(1)?;
        let rate = found.megabytes_per_second();
        let times = rate / *first.get_or_insert(rate);
        println!(
            "| {nodes} | {:.0} | {:.1} | {:.2} | {rate:.0} | {:.1} | {times:.1} | {}, none failed | {:.1} |",
            found.copied_bytes as f64 / 1e6,
            found.noticed.as_secs_f64(),
            found.copied.as_secs_f64(),
            rate / (nodes - 1) as f64,
            found.requests,
            found.longest.as_secs_f64(),
        );
    }
    Ok(())
}

fn neighbours() -> Result<(), String> {
    println!(
        "| the eighth tenant | requests of the seven | median, ms | p99, ms | against silence | its own requests/s |\n|---|---|---|---|---|---|"
    );
    let run = Neighbours {
        nodes: 6,
        model: MODEL,
        tenants: 8,
        disks_each: 8,
        per_second: 2,
        time: Duration::from_secs(120),
    };
    let mut silence = None;
    for (name, is_loud) in [("silent", false), ("at full blast", true)] {
        let found = run.run(1, is_loud)?;
        let p99 = found.p99.as_secs_f64();
        let times = p99 / *silence.get_or_insert(p99);
        println!(
            "| {name} | {} | {:.1} | {:.1} | {times:.2} | {:.0} |",
            found.requests,
            found.median.as_secs_f64() * 1e3,
            p99 * 1e3,
            found.loud as f64 / run.time.as_secs_f64(),
        );
    }
    Ok(())
}
