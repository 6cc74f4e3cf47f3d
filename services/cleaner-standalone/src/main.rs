//! `firn-cleaner`: gets the space of what nobody needs back, without keys; for those who have no functions beside their bucket.
//!
//! Each run prints one line of JSON: the report, what it cost and what it saves. Any number may run at once.

mod config;

use clap::{Parser, Subcommand};
use config::Config;
use firn_anchor::Anchor;
use firn_cleaner::{CleanError, Cleaner, Report, plan};
use firn_env::{Env, eprintln, println};
use firn_store::{Stack, StackConfig, Store};
use firn_store_cloud::Credentials;
use firn_table::{RedbTable, Table, TableUrl};
use firn_table_dynamodb::DynamoDbTable;
use std::{path::Path, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

/// Cleans the log of a Firn family, without keys.
#[derive(Parser)]
#[command(
    name = "firn-cleaner",
    version,
    after_help = "Exit codes: 0 done; 1 failed, safe to run again; 2 the command line or the configuration is wrong; \
                  6 damaged objects were found"
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
    let config = Config::load(&arguments.config).map_err(usage)?;
    let env = firn_env::real(Path::new(".")).map_err(failed)?;
    let (store, anchor) = open(&env, &config).await?;
    let book = config.price_book().map_err(usage)?;
    match arguments.command {
        Command::Plan => {
            let plan = plan(&env, store, &anchor, &config.limits())
                .await
                .map_err(failed)?;
            let priced = serde_json::json!({
                "plan": plan,
                "prices": book.name,
                "cost": plan.cost(book).to_string(),
                "saved_a_month": plan.saved_a_month(book).to_string(),
            });
            println!("{priced}");
            Ok(())
        }
        Command::Run { every } => {
            let mut cleaner = Cleaner::new(&env, store, &anchor, config.limits());
            loop {
                let ran = cleaner.run().await;
                match (ran, every) {
                    (Ok(report), None) => return finished(&report, book),
                    (Err(error), None) => return Err(failed(error)),
                    (Ok(report), Some(_)) => print(&report, book),
                    (Err(error), Some(_)) => eprintln!("firn-cleaner: {error}"),
                }
                env.sleep(Duration::from_secs(every.unwrap_or(1))).await;
            }
        }
    }
}

fn print(report: &Report, book: &firn_store::PriceBook) {
    let priced = serde_json::json!({
        "report": report,
        "prices": book.name,
        "cost": report.cost(book).to_string(),
        "saved_a_month": report.saved_a_month(book).to_string(),
    });
    println!("{priced}");
}

fn finished(report: &Report, book: &firn_store::PriceBook) -> Result<(), Failure> {
    print(report, book);
    if report.damaged.is_empty() {
        return Ok(());
    }
    let inodes: Vec<String> = report.damaged.iter().map(|file| file.inode.to_string()).collect();
    Err(Failure {
        message: format!("damaged objects of inodes {}", inodes.join(", ")),
        code: 6,
    })
}

async fn open(env: &Env, config: &Config) -> Result<(Arc<dyn Store>, Anchor), Failure> {
    let backend = firn_store_cloud::open(env, &config.store, &Credentials::Environment)
        .await
        .map_err(usage)?;
    let stack = Stack::new(env, backend, StackConfig::default()).map_err(usage)?;
    let table: Arc<dyn Table> = match &config.table {
        TableUrl::Redb { path } => Arc::new(RedbTable::open(env, path).await.map_err(failed)?),
        TableUrl::DynamoDb(url) => Arc::new(DynamoDbTable::open(env, url).await.map_err(failed)?),
    };
    let Some(volume) = config.roots else {
        return Ok((stack.store, Anchor::new(table, env.clone(), config.family)));
    };
    let kept = volume.roots_partition();
    let anchor = Anchor::for_cleaner_within(table, env.clone(), config.family, &kept);
    // What the service keeps does not say of which family it is.
    match firn_cleaner::has_head(env, stack.store.clone(), &anchor).await {
        Ok(true) => Ok((stack.store, anchor)),
        Ok(false) => Err(failed(format!(
            "{volume} has no root yet: there is nothing to clean, or `roots` names another volume"
        ))),
        Err(CleanError::Damaged(damage)) => Err(usage(format!(
            "the root of {volume} is not in this log ({damage}); `store`, `roots` and `family` do not belong together, or the head \
             is damaged. Nothing was changed"
        ))),
        Err(error) => Err(failed(error)),
    }
}
