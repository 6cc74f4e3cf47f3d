//! `firn-connections`: see the library. `--edge` starts an edge of its own; other servers are started by whoever runs this, and
//! named: `--target http://127.0.0.1:8080/healthz#PROCESS`.

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use firn_connections::{
    Protocol, Target,
    attack::{self, Part},
    check::{self, Plan},
};
use firn_rig::{EXPORT, Edge};
use std::{net::SocketAddr, time::Duration};

/// The default bound on what an edge may have resident.
const EDGE_BYTES: u64 = 512 << 20;

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
    /// Checks an edge, which it starts (the program is that of FIRN_EDGE, or built beside this one).
    #[arg(long)]
    edge: bool,
    /// `nfs.connections` of that edge.
    #[arg(long, default_value = "1024")]
    edge_connections: usize,
    /// Checks a server that runs: PROTOCOL://HOST:PORT[/PATH][#PROCESS], with nfs, http or tls as the protocol.
    #[arg(long)]
    target: Vec<Target>,
    /// What a client does at the targets instead of what the protocol says: a command, which must succeed.
    #[arg(long)]
    client: Option<String>,
    /// Silent and slow connections.
    #[arg(long, default_value = "32000")]
    connections: usize,
    /// Loopback addresses they come from.
    #[arg(long, default_value = "500")]
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
        check.edge || !check.target.is_empty(),
        "nothing to check: --edge, or --target"
    );
    let plan = Plan {
        program: std::env::current_exe()?,
        connections: check.connections,
        sources: check.sources,
        clients: check.clients,
        time: Duration::from_secs(check.seconds),
        rounds: check.rounds,
        client: check.client.clone(),
    };
    let (mut passed, mut failed) = (0, 0);
    let mut judge = |name: &str, outcome: &check::Outcome, bound: Option<u64>| {
        println!("{name}\n{outcome}");
        let resident = outcome.resident.map(|(_, beside)| beside);
        let fast = outcome.ratio() <= check.ratio;
        let small = bound
            .zip(resident)
            .is_none_or(|(bound, resident)| resident <= bound);
        println!("  {}", if fast && small { "passed" } else { "FAILED" });
        if fast && small { passed += 1 } else { failed += 1 }
    };
    if check.edge {
        let directory = std::env::temp_dir().join(format!("firn-connections-{}", std::process::id()));
        let (mut edge, target) = start(&directory, check.edge_connections).await?;
        let plan = Plan {
            client: None,
            ..plan.clone()
        };
        let outcome = check::check(&target, &plan).await;
        let stopped = edge.stop().await;
        std::fs::remove_dir_all(&directory)?;
        judge("edge (NFS)", &outcome?, Some(EDGE_BYTES));
        stopped?;
    }
    for target in &check.target {
        let outcome = check::check(target, &plan).await?;
        judge(
            &format!("{} at {}", target.protocol, target.address),
            &outcome,
            None,
        );
    }
    println!("{passed} passed, {failed} failed");
    ensure!(failed == 0, "a crowd of {} held clients up", plan.connections);
    Ok(())
}

async fn start(directory: &std::path::Path, connections: usize) -> Result<(Edge, Target)> {
    let mut edge = Edge::format_local(Edge::binary()?, directory, |settings| {
        settings.nfs = format!("connections = {connections}");
    })
    .await?;
    edge.start().await?;
    let target = Target {
        protocol: Protocol::Nfs,
        address: edge.address,
        path: EXPORT.to_owned(),
        process: Some(edge.process_id().context("the edge has ended")?),
    };
    Ok((edge, target))
}
