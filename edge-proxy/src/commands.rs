//! The commands that ask a running edge: `status`, `top`, `sync`, `drain`, `clean`, `verify`.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    config::Config,
    failure::Failure,
    report,
    snapshot::Snapshot,
};
use std::{io::IsTerminal, time::Duration};

/// How `status` is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table for people.
    Text,
    /// One JSON object.
    Json,
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::new(format!(
        "the edge answered something else than it was asked: {reply:?}"
    ))
}

async fn snapshot(config: &Config) -> Result<Box<Snapshot>, Failure> {
    let mut client = Client::ask(&config.volume.state_directory, Command::Status).await?;
    match client.next().await? {
        Reply::Status { snapshot } => Ok(snapshot),
        other => Err(unexpected(&other)),
    }
}

/// `firn-edge status`.
pub async fn status(config: &Config, output: Output) -> Result<(), Failure> {
    let snapshot = snapshot(config).await?;
    match output {
        Output::Text => print!("{}", report::status(&snapshot)),
        Output::Json => println!(
            "{}",
            serde_json::to_string_pretty(&snapshot).map_err(Failure::new)?
        ),
    }
    Ok(())
}

/// `firn-edge top`: until it is interrupted, or `count` times.
pub async fn top(config: &Config, every: Duration, count: Option<u64>) -> Result<(), Failure> {
    let env = firn_env::real(&config.volume.state_directory).map_err(Failure::new)?;
    let mut before = snapshot(config).await?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        env.sleep(every).await;
        let after = snapshot(config).await?;
        if std::io::stdout().is_terminal() {
            // To the upper left corner, and clear what was there.
            print!("\x1b[H\x1b[2J");
        }
        println!("{}", report::top(&before, &after));
        before = after;
        shown += 1;
    }
    Ok(())
}

/// `firn-edge sync`, `firn-edge drain` and `firn-edge clean`.
pub async fn until_done(config: &Config, command: Command, what: &str) -> Result<(), Failure> {
    let mut client = Client::ask(&config.volume.state_directory, command).await?;
    match expect_end(&mut client, what).await? {
        Reply::Done { text } => {
            println!("{text}");
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// `firn-edge verify`.
pub async fn verify(config: &Config) -> Result<(), Failure> {
    let mut client = Client::ask(&config.volume.state_directory, Command::Verify).await?;
    loop {
        match expect_end(&mut client, "verifying").await? {
            Reply::Damage { inode, path, detail } => {
                let path = path.unwrap_or_else(|| format!("(inode {inode}, whose path cannot be read)"));
                println!("damaged: {path}: {detail}");
            }
            Reply::Verified {
                inodes,
                blocks,
                bytes,
                damages: 0,
            } => {
                println!(
                    "whole: {inodes} files, {blocks} blocks, {} read from the store and checked",
                    report::size(bytes)
                );
                return Ok(());
            }
            Reply::Verified { inodes, damages, .. } => {
                return Err(Failure::damaged(format!(
                    "{damages} damages in {inodes} files that could be read; the rest of the volume is whole and served. \
                     Restore the files named above from a backup, or the store's objects from its versions"
                )));
            }
            other => return Err(unexpected(&other)),
        }
    }
}
