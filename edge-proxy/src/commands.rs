//! The commands that ask a running edge: `status`, `top`, `sync`, `drain`, `clean`, `verify`.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    config::{Config, EdgeConfig},
    failure::Failure,
    report,
    snapshot::{FORMAT, Snapshot, VolumeState},
};
use firn_env::{print, println};
use serde_json::json;
use std::{fmt::Write, io::IsTerminal, time::Duration};

/// How `status` is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table for people.
    Text,
    /// One JSON object.
    Json,
}

pub fn unexpected(reply: &Reply) -> Failure {
    Failure::new(format!(
        "the edge answered something else than it was asked: {reply:?}"
    ))
}

async fn snapshot(config: &Config) -> Result<Box<Snapshot>, Failure> {
    let mut client = Client::ask(config, Command::Status).await?;
    match client.next().await? {
        Reply::Status { snapshot } => Ok(snapshot),
        other => Err(unexpected(&other)),
    }
}

/// How all volumes of the running edge stand.
async fn all(edge: &EdgeConfig) -> Result<Vec<VolumeState>, Failure> {
    let mut client = Client::ask_edge(edge.directory(), None, Command::Status).await?;
    let mut volumes = Vec::new();
    loop {
        match client.next().await? {
            Reply::Volume { volume } => volumes.push(volume),
            Reply::Done { .. } => return Ok(volumes),
            other => return Err(unexpected(&other)),
        }
    }
}

/// Whether all volumes are meant.
fn are_all(edge: &EdgeConfig, volume: Option<&str>) -> bool {
    edge.has_names() && volume.is_none()
}

/// `firn-edge status`: of the named volume, or of all.
pub async fn status(edge: &EdgeConfig, volume: Option<&str>, output: Output) -> Result<(), Failure> {
    if are_all(edge, volume) {
        let volumes = all(edge).await?;
        match output {
            Output::Text => print!("{}", report::all(&volumes)),
            Output::Json => {
                let whole =
                    json!({ "format": FORMAT, "version": env!("CARGO_PKG_VERSION"), "volumes": volumes });
                println!("{}", serde_json::to_string_pretty(&whole).map_err(Failure::new)?);
            }
        }
        return Ok(());
    }
    let snapshot = snapshot(edge.one(volume)?).await?;
    match output {
        Output::Text => print!("{}", report::status(&snapshot)),
        Output::Json => println!(
            "{}",
            serde_json::to_string_pretty(&snapshot).map_err(Failure::new)?
        ),
    }
    Ok(())
}

/// `firn-edge top`: until it is interrupted, or `count` times; of the named volume, or of all that are open.
pub async fn top(
    edge: &EdgeConfig,
    volume: Option<&str>,
    every: Duration,
    count: Option<u64>,
) -> Result<(), Failure> {
    let env = firn_env::real(edge.directory()).map_err(Failure::new)?;
    let now = async || match are_all(edge, volume) {
        true => all(edge).await,
        false => {
            let config = edge.one(volume)?;
            Ok(vec![VolumeState {
                name: config.volume.name.clone(),
                state: String::new(),
                reason: None,
                snapshot: Some(snapshot(config).await?),
            }])
        }
    };
    let mut before = now().await?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        env.sleep(every).await;
        let after = now().await?;
        if std::io::stdout().is_terminal() {
            // To the upper left corner, and clear what was there.
            print!("\x1b[H\x1b[2J");
        }
        for (before, after) in before.iter().zip(&after) {
            match (&before.snapshot, &after.snapshot) {
                (Some(before), Some(after)) => println!("{}", report::top(before, after)),
                _ => println!("{}", report::not_open(after)),
            }
        }
        before = after;
        shown += 1;
    }
    Ok(())
}

/// `firn-edge sync`, `firn-edge drain` and `firn-edge clean`.
pub async fn until_done(config: &Config, command: Command, what: &str) -> Result<(), Failure> {
    let mut client = Client::ask(config, command).await?;
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
    let mut client = Client::ask(config, Command::Verify).await?;
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
                snapshots,
                epochs,
                ..
            } => {
                println!(
                    "whole: {inodes} files, {blocks} blocks, {} read from the store and checked, in the volume and {snapshots} snapshots{}",
                    report::size(bytes),
                    sealed_under(&epochs)
                );
                return Ok(());
            }
            Reply::Verified {
                inodes,
                damages,
                missing_segments,
                unreachable,
                lost_directories,
                ..
            } => {
                let mut text = format!("{damages} damages in {inodes} files that could be read");
                if missing_segments > 0 {
                    let _ = write!(text, "; {missing_segments} segments are not in the store");
                }
                let _ = match (unreachable, lost_directories) {
                    (0, 0) => write!(text, "; the rest of the volume is whole and served"),
                    (0, lost) => write!(
                        text,
                        "; of {lost} directories names are lost: what is only in them can be opened by no path. What could be read is \
                         served"
                    ),
                    (unreachable, _) => write!(
                        text,
                        "; {unreachable} files cannot be reached: the way to them, a part of the inode map, is lost. Only what could be \
                         read is served"
                    ),
                };
                let _ = write!(
                    text,
                    ". Bring the store's objects back from its versions, or the files named above from a snapshot or a backup"
                );
                return Err(Failure::damaged(text));
            }
            other => return Err(unexpected(&other)),
        }
    }
}

/// By which keys what was verified is opened.
fn sealed_under(epochs: &[u32]) -> String {
    match epochs {
        [] => String::new(),
        [only] => format!("; sealed under key epoch {only} only"),
        several => {
            let several: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("; sealed under key epochs {}", several.join(", "))
        }
    }
}
