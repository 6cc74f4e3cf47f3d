//! `firn-connections`: see the library. `--server edge` (api, gateway, node) starts one; servers that run already are named:
//! `--target http://127.0.0.1:8080/healthz#PROCESS`.

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use firn_connections::{
    Protocol, Target,
    attack::{self, Part},
    check::{self, Outcome, Plan},
    servers::{Kind, Server},
};
use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, time::Duration};

#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    hold: Option<Hold>,
    #[command(flatten)]
    check: Check,
}

#[derive(Subcommand)]
enum Hold {
    /// Holds a part of the crowd until standard input ends; the check starts this itself.
    #[command(hide = true)]
    Hold {
        address: SocketAddr,
        protocol: Protocol,
        connections: usize,
        first_source: usize,
        sources: usize,
    },
}

#[derive(Args)]
struct Check {
    /// Checks a server that it starts, of the program built beside this one; may be said several times.
    #[arg(long)]
    server: Vec<Kind>,
    /// `nfs.connections` of an edge that it starts.
    #[arg(long, default_value = "1024")]
    edge_connections: usize,
    /// Checks a server that runs: PROTOCOL://HOST:PORT[/PATH][#PROCESS,…], with nfs, http, https or node as the protocol.
    #[arg(long)]
    target: Vec<Target>,
    /// Silent and slow connections.
    #[arg(long, default_value = "32000")]
    connections: usize,
    /// Loopback addresses they come from.
    #[arg(long, default_value = "12500")]
    sources: usize,
    /// Clients that work beside them.
    #[arg(long, default_value = "8")]
    clients: usize,
    /// Seconds of each phase.
    #[arg(long, default_value = "20")]
    seconds: u64,
    /// Phases without the crowd, each followed by one with it.
    #[arg(long, default_value = "3")]
    rounds: usize,
    /// The largest p99 beside the crowd, in terms of the one without.
    #[arg(long, default_value = "2.0")]
    ratio: f64,
    /// Writes what came of it as a page.
    #[arg(long)]
    page: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(Hold::Hold {
        address,
        protocol,
        connections,
        first_source,
        sources,
    }) = arguments.hold
    {
        return attack::hold(Part {
            address,
            protocol,
            connections,
            first_source,
            sources,
        })
        .await;
    }
    let check = arguments.check;
    ensure!(
        !check.server.is_empty() || !check.target.is_empty(),
        "nothing to check: --server, or --target"
    );
    let plan = Plan {
        program: std::env::current_exe()?,
        connections: check.connections,
        sources: check.sources,
        clients: check.clients,
        time: Duration::from_secs(check.seconds),
        rounds: check.rounds,
    };
    let (mut passed, mut failed) = (0, 0);
    let mut rows = String::new();
    let mut judge = |name: &str, outcome: Result<Outcome>, bound: Option<u64>| {
        let good = match &outcome {
            Ok(outcome) => {
                println!("{name}\n{outcome}");
                let resident = outcome.resident.map(|(_, beside)| beside);
                let small = bound
                    .zip(resident)
                    .is_none_or(|(bound, resident)| resident <= bound);
                outcome.ratio() <= check.ratio && small
            }
            Err(error) => {
                println!("{name}\n  {error:#}");
                false
            }
        };
        println!("  {}", if good { "passed" } else { "FAILED" });
        if good {
            passed += 1
        } else {
            failed += 1
        }
        let _ = writeln!(rows, "{}", row(name, &outcome, bound, good));
    };
    for kind in &check.server {
        let server = Server::start(*kind, check.edge_connections)
            .await
            .with_context(|| format!("starting {}", kind.name()))?;
        let outcome = check::check(&server.target, &plan).await;
        let stopped = server.stop().await;
        let bound = Some(kind.resident_bytes_max());
        judge(
            kind.name(),
            outcome.and_then(|outcome| stopped.map(|()| outcome)),
            bound,
        );
    }
    for target in &check.target {
        let name = format!("{} at {}", target.protocol, target.address);
        judge(&name, check::check(target, &plan).await, None);
    }
    if let Some(page) = &check.page {
        std::fs::write(page, text(&plan, &rows)).with_context(|| format!("writing {}", page.display()))?;
    }
    println!("{passed} passed, {failed} failed");
    ensure!(failed == 0, "a crowd of {} held clients up", plan.connections);
    Ok(())
}

/// A row of the page.
fn row(name: &str, outcome: &Result<Outcome>, bound: Option<u64>, good: bool) -> String {
    let verdict = if good { "" } else { " (MISSED)" };
    let Ok(outcome) = outcome else {
        return format!("| {name} | | | clients failed{verdict} | | | | |");
    };
    let millis = |latencies: &firn_connections::probe::Latencies, percent| {
        format!("{:.2}", latencies.percentile(percent).as_secs_f64() * 1e3)
    };
    let both = |percent| {
        format!(
            "{} / {}",
            millis(&outcome.without, percent),
            millis(&outcome.beside, percent)
        )
    };
    let mebibytes = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    let resident = outcome.resident.map_or_else(String::new, |(before, beside)| {
        let bound = bound.map_or_else(String::new, |bound| format!(" of {}", mebibytes(bound)));
        format!("{} / {}{bound}", mebibytes(before), mebibytes(beside))
    });
    let (without, beside) = outcome.server;
    let server = format!("{without:.2} / {beside:.2}");
    format!(
        "| {name} | {} | {} | {:.2}{verdict} | {server} | {resident} | {} | {} |",
        both(50),
        both(99),
        outcome.ratio(),
        outcome.crowd.open,
        outcome.crowd.opened
    )
}

fn text(plan: &Plan, rows: &str) -> String {
    let Plan {
        connections,
        sources,
        clients,
        time,
        rounds,
        ..
    } = plan;
    format!(
        "# A crowd that says nothing\n\n\
         What {connections} silent and slow connections from {sources} addresses cost those who work. {clients} clients work for \
         {} s without the crowd and {} s beside it, {rounds} times; what is closed or refused is opened again within a \
         minute. Goal: the 99th percentile beside the crowd is at most twice the one without it, no client's operation fails, and \
         memory stays within its bound. Written by `make check-flood`.\n\n\
         Operations: NFS: a 4 KiB file written, looked up, or read; HTTPS: a page, each on a connection of its own; a disk: a \
         durable write of 4 KiB (level 1: on the node's disk) and a read.\n\n\
         | server | p50 without / beside, ms | p99 without / beside, ms | ratio of p99 | processors busy for it | resident, MiB | of the crowd open at the end \
         | opened in the last round |\n|---|---|---|---|---|---|---|---|\n{rows}",
        time.as_secs(),
        time.as_secs()
    )
}
