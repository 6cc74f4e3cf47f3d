//! `firn-anchor`: the anchor as a process of its own.

use anyhow::{Context as _, Result};
use axum::{Router, routing::get};
use clap::{CommandFactory as _, Parser};
use firn_anchor_service::host::{HostFigures, HostOptions, serve};
use firn_table::TableUrl;
use futures::future::{Either, select};
use std::{net::SocketAddr, path::PathBuf, pin::pin, process::ExitCode};
use tokio::net::TcpListener;

/// Keeps the roots of volumes for edges and cleaners that come with certificates (docs/anchor.md).
#[derive(Parser)]
#[command(
    name = "firn-anchor",
    version,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(flatten)]
    serve: Option<Serve>,
    #[command(subcommand)]
    manual: Option<firn_manual::ManualCommand>,
}

#[derive(clap::Args)]
struct Serve {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8447")]
    listen: SocketAddr,
    /// The table: redb:/path, dynamodb://name?region=… or azure-table://name?account=…
    #[arg(long)]
    table: TableUrl,
    /// The service's private key and certificate, PEM; read again when it is replaced.
    #[arg(long)]
    identity: PathBuf,
    /// The authority that callers' certificates come from, PEM.
    #[arg(long)]
    authority: PathBuf,
    /// Who may reach which volume as what, TOML; read again when it is replaced.
    #[arg(long)]
    grants: PathBuf,
    /// Connections at once.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Where to serve /metrics and /healthz, over plain HTTP.
    #[arg(long)]
    listen_metrics: Option<SocketAddr>,
    /// Where the process may keep files of its own.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .init();
    let arguments = Arguments::parse();
    let outcome = match arguments {
        Arguments {
            manual: Some(manual), ..
        } => {
            let written = manual.run(Arguments::command());
            written.context("the manual cannot be written")
        }
        Arguments {
            serve: Some(serve), ..
        } => start(&serve),
        Arguments {
            serve: None,
            manual: None,
        } => unreachable!("then the help is shown"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            firn_env::eprintln!("firn-anchor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Serve) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let outcome = runtime.block_on(run(options));
    // What is being answered ends with the process; callers ask again.
    runtime.shutdown_background();
    outcome
}

#[allow(
    clippy::disallowed_methods,
    reason = "a real listener, for a real process: TLS and HTTP speak to it directly"
)]
async fn run(arguments: &Serve) -> Result<()> {
    let env = firn_env::real(&arguments.directory)?;
    let (table, _) = firn_table_cloud::open(&env, &arguments.table)
        .await
        .with_context(|| arguments.table.to_string())?;
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let options = HostOptions {
        identity: arguments.identity.clone(),
        authority: arguments.authority.clone(),
        grants: arguments.grants.clone(),
    };
    let figures = HostFigures::new(usize::from(arguments.connections));
    let metrics = match arguments.listen_metrics {
        None => None,
        Some(address) => {
            let health = Router::new().route("/healthz", get(|| async { "serving\n" }));
            let served = firn_metrics::serve(&env, &address.to_string(), figures.clone().metrics(), health)
                .await
                .with_context(|| format!("metrics: cannot listen on {address}"))?;
            Some(served)
        }
    };
    firn_env::println!("firn-anchor listens on {}", listener.local_addr()?);
    if let Some(served) = &metrics {
        firn_env::println!("metrics at http://{}/metrics", served.address);
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let signalled = pin!(async {
        select(pin!(tokio::signal::ctrl_c()), pin!(terminate.recv())).await;
    });
    match select(signalled, pin!(serve(&env, &options, figures, table, listener))).await {
        Either::Left(((), _)) => Ok(()),
        Either::Right((served, _)) => Ok(served?),
    }
}
