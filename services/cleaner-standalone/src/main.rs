//! `firn-cleaner`: gets the space of what nobody needs back, without keys; for those who have no functions beside their bucket.
//!
//! Each run prints one line of JSON: the report, what it cost and what it saves. Any number may run at once.

#![recursion_limit = "256"]

mod audit;
mod config;
mod metrics;
mod mirror;

use audit::AuditArguments;
use axum::{Router, routing::get};
use clap::{CommandFactory as _, Parser, Subcommand};
use config::Config;
use firn_cleaner::Report;
use firn_cleaner_host::{Cleaned, Host, HostError, Target, Work};
use firn_env::{Env, eprintln, println};
use firn_metrics::Served;
use firn_mirror::{AliasError, MirrorError};
use firn_quantity::{Dollars, Money};
use firn_store::ProviderPrices;
use metrics::Figures;
use serde_json::json;
use std::{net::SocketAddr, path::Path, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

/// What a run may take beyond its own limit before it is given up: nobody waits for this program but its own loop.
const BEYOND_THE_LIMIT: Duration = Duration::from_secs(3600);

/// Cleans the log of a Firn family, without keys.
#[derive(Parser)]
#[command(
    name = "firn-cleaner",
    version,
    after_help = "Exit codes: 0 done; 1 failed, safe to run again; 2 the command line or the configuration is wrong; \
                  6 damaged objects were found, or segments are missing"
)]
struct Arguments {
    /// The configuration file.
    #[arg(long, short, global = true, default_value = "/etc/firn/firn-cleaner.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cleans: once, or again and again until it is interrupted.
    Run {
        /// Seconds between the end of a run and the next; without it, one run.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        every: Option<u64>,
    },
    /// Prints what would be moved and freed, and what that costs; changes nothing.
    Plan,
    /// Reads a random sample of what the bucket should have and checks it; tells with which probability damage would have been
    /// found. Changes nothing, and needs no more than to read the bucket and the table.
    Audit(AuditArguments),
    /// Makes the second store have what the bucket has, writes anew what the bucket lost, and deletes what it retired long ago.
    Mirror,
    #[command(flatten)]
    Manual(firn_manual::ManualCommand),
}

struct Failure {
    message: String,
    code: u8,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure {
        message: error.to_string(),
        code: 1,
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure {
        message: error.to_string(),
        code: 2,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match execute(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("firn-cleaner: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

async fn execute(arguments: Arguments) -> Result<(), Failure> {
    // Packages are built where there is no configuration.
    if let Command::Manual(manual) = arguments.command {
        return manual.run(Arguments::command()).map_err(failed);
    }
    let config = Config::load(&arguments.config).map_err(usage)?;
    let prices = config.price_book().map_err(usage)?;
    let env = firn_env::real(Path::new(".")).map_err(failed)?;
    let target = config.target().map_err(usage)?;
    let left = config.limits().time + BEYOND_THE_LIMIT;
    let host = Host::new(env, config.settings(prices).map_err(usage)?);
    let run = async |plan: bool| host.clean(Work { target, plan }, left).await.map_err(failure);
    match arguments.command {
        Command::Mirror => mirror::mirror(&host, target, prices, &config).await,
        Command::Audit(arguments) => audit::audit(&host, target, prices, &config, &arguments).await,
        Command::Plan => {
            let cleaned = run(true).await?;
            let Some(plan) = &cleaned.plan else {
                return Err(no_root(target));
            };
            println!("{}", priced("plan", json!(plan), &cleaned, prices));
            Ok(())
        }
        Command::Run { every: None } => {
            let cleaned = run(false).await?;
            let Some(report) = &cleaned.report else {
                return Err(no_root(target));
            };
            println!("{}", priced("report", json!(report), &cleaned, prices));
            whole(report)
        }
        Command::Run { every: Some(every) } => {
            let figures = Arc::<Figures>::default();
            let _served = match config.metrics {
                Some(address) => Some(serve(host.env(), address, figures.clone()).await?),
                None => None,
            };
            let mut due = mirror::Due::new(&host, &config);
            loop {
                let outcome = run(false).await;
                figures.count(outcome.as_ref().ok(), host.env().wall().as_millis());
                match outcome {
                    Ok(cleaned) => match &cleaned.report {
                        Some(report) => println!("{}", priced("report", json!(report), &cleaned, prices)),
                        None => eprintln!("firn-cleaner: {}", no_root(target).message),
                    },
                    Err(failure) => eprintln!("firn-cleaner: {}", failure.message),
                }
                due.mirror(&host, target, prices, &config, &figures).await;
                host.env().sleep(Duration::from_secs(every)).await;
            }
        }
        Command::Manual(_) => unreachable!("done before the configuration was read"),
    }
}

/// Serves the figures to Prometheus, and says where.
async fn serve(env: &Env, address: SocketAddr, figures: Arc<Figures>) -> Result<Served, Failure> {
    let health = Router::new().route("/healthz", get(|| async { "serving\n" }));
    let served = firn_metrics::serve(env, &address.to_string(), figures.metrics(), health)
        .await
        .map_err(|error| usage(format!("metrics: cannot listen on {address}: {error}")))?;
    // Standard output is one line of JSON a run.
    eprintln!("metrics at http://{}/metrics", served.address);
    Ok(served)
}

/// A wrong place is the configuration's fault; everything else may go away by itself.
fn failure(error: HostError) -> Failure {
    match error {
        HostError::Mirror { ref error, .. } if matches!(**error, MirrorError::Alias(AliasError::Alias)) => {
            usage(format!("second.store: {error}"))
        }
        HostError::Store(_) | HostError::Foreign { .. } | HostError::Place(_) | HostError::NotOurs { .. } => {
            usage(error)
        }
        HostError::Disk(_)
        | HostError::Table(_)
        | HostError::Families(_)
        | HostError::Clean { .. }
        | HostError::Mirror { .. }
        | HostError::NoTime { .. }
        | HostError::Busy => failed(error),
    }
}

fn no_root(target: Target) -> Failure {
    failed(format!(
        "{target} has no root yet: there is nothing to clean, or `roots` names another volume"
    ))
}

fn priced(
    what: &str,
    outcome: serde_json::Value,
    cleaned: &Cleaned,
    prices: &ProviderPrices,
) -> serde_json::Value {
    json!({
        what: outcome,
        "prices": prices.name,
        "cost": Dollars(Money::of_nanos(cleaned.cost_nanodollars)).to_string(),
        "saved_a_month": Dollars(Money::of_nanos(cleaned.saved_a_month_nanodollars)).to_string(),
    })
}

fn whole(report: &Report) -> Result<(), Failure> {
    if report.missing.count > 0 {
        return Err(Failure {
            message: format!("missing: {}", report.missing.first.join("; ")),
            code: 6,
        });
    }
    if report.damaged.is_empty() {
        return Ok(());
    }
    let inodes: Vec<String> = report.damaged.iter().map(|file| file.inode.to_string()).collect();
    Err(Failure {
        message: format!("damaged objects of inodes {}", inodes.join(", ")),
        code: 6,
    })
}
