//! `firn-blockd journal`: what a local journal holds, for people: to look at, to take out, to write to a disk.
//!
//! An attach goes on with the journal of the attach right before it by itself. These commands are for what an attach put aside,
//! because another had the disk in between: nobody but its owner can say what of it is still wanted.

use crate::{
    cluster::{Outside, environment},
    config::Config,
    failure::Failure,
    security::Secret,
};
use clap::{Args, Subcommand};
use firn_blockd_client::{Attachable, DiskSettings, attach, key_check};
use firn_blockd_disk::{
    Change,
    journal::{JournalOptions, JournalReader},
};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, Durability};
use firn_env::{Env, println};
use firn_quantity::Size;
use std::{fs, ops::Range, os::unix::fs::FileExt, path::PathBuf};

/// Below the directory that `attach --journal` names.
const DISKS: &str = "disks";
/// Ranges that `show` prints.
const RANGES_SHOWN: usize = 20;
/// Zeroes written to a file at once.
const ZEROES_BYTES: usize = 1 << 20;

/// What is to be done with a journal.
#[derive(Subcommand)]
pub enum JournalCommand {
    /// Says what a disk's journal holds, and which ones were put aside.
    Show(Of),
    /// Writes what it holds into a file as long as the disk, each block at its place; prints which ranges are written.
    Export {
        #[command(flatten)]
        of: Of,
        /// The new file.
        #[arg(long, value_name = "FILE")]
        into: PathBuf,
    },
    /// Writes what it holds to a disk, in its order: a new one, one that was restored from a snapshot, or the disk itself.
    Apply {
        #[command(flatten)]
        of: Of,
        /// The disk, which nobody has attached.
        #[arg(long, value_name = "NAME")]
        into: String,
        /// The file with that disk's key, if it is another.
        #[arg(long, value_name = "FILE")]
        into_key: Option<PathBuf>,
    },
}

/// Which journal.
#[derive(Args)]
pub struct Of {
    /// The disk's name.
    name: String,
    /// The file with the disk's key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The directory that was given to `attach --journal`.
    #[arg(long, value_name = "DIRECTORY")]
    journal: PathBuf,
    /// One that was put aside, as `show` names it.
    #[arg(long, value_name = "NAME")]
    aside: Option<String>,
}

/// Where `attach` keeps journals below a directory.
pub fn options(directory: &std::path::Path, bytes_max: u64) -> Result<JournalOptions, Failure> {
    Ok(JournalOptions::new(environment(directory)?, DISKS, bytes_max))
}

struct Opened {
    env: Env,
    directory: String,
    reader: JournalReader,
    size_bytes: u64,
    block_bytes: u64,
}

impl Of {
    async fn open(&self, outside: &Outside, config: &Config) -> Result<Opened, Failure> {
        let record = outside.disk(config.client()?.tenant, &self.name).await?;
        let settings = DiskSettings::parse(&record.settings).map_err(Failure::new)?;
        let key = Secret::read(&self.key)?;
        if settings
            .key_check
            .is_some_and(|check| check != key_check(key.expose()))
        {
            return Err(Failure::usage(format!(
                "{} is not the disk's key",
                self.key.display()
            )));
        }
        let options = options(&self.journal, 0)?;
        let mut directory = options.directory_of(record.disk.0);
        if let Some(aside) = &self.aside {
            if aside.is_empty() || aside.contains(['/', '.']) {
                return Err(Failure::usage(format!(
                    "--aside {aside}: use a name that show prints"
                )));
            }
            directory = format!("{directory}/{aside}");
        }
        let reader = JournalReader::open(&options.env, &directory, record.disk.0, key.expose())
            .await
            .map_err(Failure::new)?;
        Ok(Opened {
            env: options.env,
            directory,
            reader,
            size_bytes: record.size_bytes,
            block_bytes: settings.shape.block_bytes().into(),
        })
    }
}

/// Bytes of the disk that a change is about.
fn bytes_of(change: &Change, block_bytes: u64) -> Range<u64> {
    match change {
        Change::Data { first, data } => {
            let from = first * block_bytes;
            from..from + data.len() as u64
        }
        Change::Zero { blocks } => blocks.start * block_bytes..blocks.end * block_bytes,
        Change::Flush => 0..0,
    }
}

/// Joins ranges that touch or overlap.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(_) | None => joined.push(range),
        }
    }
    joined
}

/// `firn-blockd journal`.
pub async fn journal(config: &Config, command: &JournalCommand) -> Result<(), Failure> {
    let outside = Outside::open(config, &config.client()?.state_directory).await?;
    match command {
        JournalCommand::Show(of) => show_journal(of.open(&outside, config).await?).await,
        JournalCommand::Export { of, into } => export(of.open(&outside, config).await?, into).await,
        JournalCommand::Apply { of, into, into_key } => {
            let key = Secret::read(into_key.as_ref().unwrap_or(&of.key))?;
            let opened = of.open(&outside, config).await?;
            apply(config, &outside, opened, into, *key.expose()).await
        }
    }
}

async fn show_journal(mut opened: Opened) -> Result<(), Failure> {
    let (mut writes, mut zeroed, mut flushes) = ((0_u64, 0_u64), (0_u64, 0_u64), 0_u64);
    let mut ranges = Vec::new();
    while let Some(change) = opened.reader.next().await.map_err(Failure::new)? {
        let range = bytes_of(&change, opened.block_bytes);
        let bytes = range.end - range.start;
        match change {
            Change::Data { .. } => writes = (writes.0 + 1, writes.1 + bytes),
            Change::Zero { .. } => zeroed = (zeroed.0 + 1, zeroed.1 + bytes),
            Change::Flush => flushes += 1,
        }
        if bytes > 0 {
            ranges.push(range);
        }
    }
    println!(
        "{}: {} writes ({}), {} zeroed ranges ({}), {flushes} flushes",
        opened.directory,
        writes.0,
        Size(writes.1),
        zeroed.0,
        Size(zeroed.1)
    );
    let ranges = joined(ranges);
    for range in ranges.iter().take(RANGES_SHOWN) {
        println!("  bytes {} to {}", range.start, range.end);
    }
    if ranges.len() > RANGES_SHOWN {
        println!("  and {} more ranges", ranges.len() - RANGES_SHOWN);
    }
    let entries = opened
        .env
        .disk()
        .entries(&opened.directory)
        .await
        .map_err(Failure::new)?;
    for aside in entries.iter().filter(|entry| entry.name.starts_with("salvage-")) {
        println!("put aside: {}", aside.name);
    }
    Ok(())
}

async fn export(mut opened: Opened, into: &std::path::Path) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| Failure::new(format!("{}: {error}", into.display()));
    let file = fs::File::create_new(into).map_err(wrong)?;
    file.set_len(opened.size_bytes).map_err(wrong)?;
    let mut ranges = Vec::new();
    while let Some(change) = opened.reader.next().await.map_err(Failure::new)? {
        let range = bytes_of(&change, opened.block_bytes);
        if range.end > opened.size_bytes {
            return Err(Failure::new(format!(
                "the journal has bytes up to {}, behind the disk's end",
                range.end
            )));
        }
        match &change {
            Change::Data { data, .. } => file.write_all_at(data, range.start).map_err(wrong)?,
            Change::Zero { .. } => {
                let zeroes = vec![0; ZEROES_BYTES];
                let mut at = range.start;
                while at < range.end {
                    let part = usize::try_from(range.end - at)
                        .unwrap_or(usize::MAX)
                        .min(ZEROES_BYTES);
                    file.write_all_at(&zeroes[..part], at).map_err(wrong)?;
                    at += part as u64;
                }
            }
            Change::Flush => continue,
        }
        ranges.push(range);
    }
    file.sync_all().map_err(wrong)?;
    for range in joined(ranges) {
        println!("{} {}", range.start, range.end - range.start);
    }
    Ok(())
}

async fn apply(
    config: &Config,
    outside: &Outside,
    mut opened: Opened,
    into: &str,
    key: [u8; 32],
) -> Result<(), Failure> {
    let client = config.client()?;
    let record = outside.disk(client.tenant, into).await?;
    let access = outside.operator.client(client.capability_seconds)?;
    let wanted = Attachable::new(record.disk, key, "a journal that is applied");
    let attached = attach(&outside.env, &outside.placement, &access, wanted).await?;
    let outcome = write_all(&mut opened, attached.device.clone()).await;
    attached.detach().await?;
    println!("{} changes are on disk {into}, durably", outcome?);
    Ok(())
}

async fn write_all(opened: &mut Opened, device: impl BlockDevice) -> Result<u64, Failure> {
    let (device, mut changes) = (AnyAlignment::new(device), 0);
    while let Some(change) = opened.reader.next().await.map_err(Failure::new)? {
        let range = bytes_of(&change, opened.block_bytes);
        let size_bytes = device.geometry().size_bytes;
        if range.end > size_bytes {
            return Err(Failure::usage(format!(
                "the journal has bytes up to {}, the disk only {size_bytes}; grow it first",
                range.end
            )));
        }
        match change {
            Change::Data { data, .. } => device.write(range.start, data, Durability::Acknowledged).await,
            Change::Zero { .. } => {
                let length = range.end - range.start;
                device
                    .write_zeroes(range.start, length, true, Durability::Acknowledged)
                    .await
            }
            Change::Flush => device.flush().await,
        }
        .map_err(Failure::new)?;
        changes += 1;
    }
    device.flush().await.map_err(Failure::new)?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let ranges = vec![8..12, 0..4, 4..6, 10..11, 20..24];
        assert_eq!(joined(ranges), [0..6, 8..12, 20..24]);
    }
}
