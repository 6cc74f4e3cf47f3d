//! The commands about keys: `rekey start|status|stop`. All of them ask the running edge.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    config::Config,
    failure::Failure,
    report,
    snapshots::utc,
};
use clap::Subcommand;
use firn_env::{print, println};
use firn_quantity::Size;
use firn_volume::{REKEY_BYTES_PER_SECOND, RekeyEnd, RekeyStatus};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is asked about rekeying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "snake_case")]
pub enum RekeyCommand {
    /// Seals everything that older keys open anew under the newest one, in the background. Clients see nothing of it.
    Start {
        /// Bytes read and written a second, at most: for example "4 MiB". Start again to change it.
        #[arg(long, value_name = "SIZE", default_value = "4 MiB")]
        rate: String,
        /// Returns when it is over.
        #[arg(long)]
        #[serde(default)]
        wait: bool,
    },
    /// Shows how far it is, and what still needs older keys.
    Status {
        /// As one JSON object.
        #[arg(long)]
        #[serde(default)]
        json: bool,
    },
    /// Ends it; what it has done stays done.
    Stop,
}

/// A rekey that is under way. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWayPart {
    pub target_epoch: u32,
    pub bytes_per_second: u64,
    pub started_ms: i64,
    pub resealed_objects: u64,
    pub resealed_bytes: u64,
    pub left_bytes: u64,
    pub unreadable_objects: u64,
}

/// The rekey that ended last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPart {
    pub target_epoch: u32,
    pub ended_ms: i64,
    /// `done`, `stopped` or `unreadable`.
    pub end: String,
    pub resealed_objects: u64,
    pub resealed_bytes: u64,
    pub unreadable_objects: u64,
}

/// A snapshot that needs older keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldSnapshotPart {
    pub name: String,
    pub protected_until_ms: i64,
}

/// Which keys a volume needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RekeyPart {
    /// What is written now is sealed under this.
    pub newest_epoch: u32,
    /// Nothing in the volume as it is now is older; absent: not known before a rekey.
    pub oldest_epoch: Option<u32>,
    /// The same with its snapshots.
    pub oldest_epoch_needed: Option<u32>,
    /// Nothing that can be reached needs an older key than the newest.
    pub is_done: bool,
    pub under_way: Option<UnderWayPart>,
    pub last: Option<LastPart>,
    pub old_snapshots: Vec<OldSnapshotPart>,
}

impl From<RekeyStatus> for RekeyPart {
    fn from(status: RekeyStatus) -> Self {
        Self {
            newest_epoch: status.newest.0,
            oldest_epoch: status.oldest.map(|epoch| epoch.0),
            oldest_epoch_needed: status.oldest_needed().map(|epoch| epoch.0),
            is_done: status.is_done(),
            under_way: status.under_way.map(|under_way| UnderWayPart {
                target_epoch: under_way.target.0,
                bytes_per_second: under_way.bytes_per_second,
                started_ms: under_way.started_ms,
                resealed_objects: under_way.counts.resealed_objects,
                resealed_bytes: under_way.counts.resealed_bytes,
                left_bytes: status.left_bytes,
                unreadable_objects: under_way.counts.unreadable,
            }),
            last: status.last.map(|last| LastPart {
                target_epoch: last.target.0,
                ended_ms: last.ended_ms,
                end: match last.end {
                    RekeyEnd::Done => "done",
                    RekeyEnd::Stopped => "stopped",
                    RekeyEnd::Unreadable => "unreadable",
                }
                .into(),
                resealed_objects: last.counts.resealed_objects,
                resealed_bytes: last.counts.resealed_bytes,
                unreadable_objects: last.counts.unreadable,
            }),
            old_snapshots: status
                .snapshots
                .into_iter()
                .map(|snapshot| OldSnapshotPart {
                    name: snapshot.name,
                    protected_until_ms: snapshot.protected_until_ms,
                })
                .collect(),
        }
    }
}

impl RekeyPart {
    /// How far it is, in one line.
    pub fn progress(&self) -> String {
        match &self.under_way {
            Some(under_way) => format!(
                "under way to key epoch {}: {} sealed anew in {} objects, {} left to look at",
                under_way.target_epoch,
                report::size(under_way.resealed_bytes),
                under_way.resealed_objects,
                report::size(under_way.left_bytes)
            ),
            None => "no rekey is under way".into(),
        }
    }

    /// All of it, for people.
    pub fn text(&self) -> String {
        let mut text = format!("new data is sealed under key epoch {}\n", self.newest_epoch);
        let mut line = |said: String| {
            text.push_str(&said);
            text.push('\n');
        };
        line(self.progress());
        if let Some(last) = &self.last {
            line(format!(
                "the last rekey, to key epoch {}, ended at {} ({}): {} sealed anew in {} objects, {} could not be read",
                last.target_epoch,
                utc(last.ended_ms),
                last.end,
                report::size(last.resealed_bytes),
                last.resealed_objects,
                last.unreadable_objects
            ));
        }
        match self.oldest_epoch {
            Some(oldest) if oldest == self.newest_epoch => {
                line("the volume as it is now needs no older key".into());
            }
            Some(oldest) => line(format!(
                "the volume as it is now needs the keys from epoch {oldest} on"
            )),
            None => line("the volume as it is now may need every older key: start a rekey".into()),
        }
        for snapshot in &self.old_snapshots {
            let until = match snapshot.protected_until_ms {
                0 => String::new(),
                until_ms => format!(", and is protected until {}", utc(until_ms)),
            };
            line(format!(
                "snapshot {} needs older keys until it is deleted{until}",
                snapshot.name
            ));
        }
        if self.is_done {
            line("done: nothing that can be reached needs an older key than the newest".into());
        }
        text
    }
}

/// Reads a rate.
pub fn rate(text: &str) -> Result<u64, String> {
    let Size(bytes) = text.parse().map_err(|error| format!("rate: {error}"))?;
    // Slower than this a commit would cost more than it moves.
    if (16 << 10..=1 << 40).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!(
            "rate: from 16 KiB to 1 TiB a second; by default {}",
            report::size(REKEY_BYTES_PER_SECOND)
        ))
    }
}

/// `firn-edge rekey …`.
pub async fn rekey(config: &Config, command: RekeyCommand) -> Result<(), Failure> {
    let wants_json = command == RekeyCommand::Status { json: true };
    if let RekeyCommand::Start { rate: text, .. } = &command {
        rate(text).map_err(Failure::usage)?;
    }
    let request = Command::Rekey { what: command };
    let mut client = Client::ask(config, request).await?;
    match expect_end(&mut client, "rekeying").await? {
        Reply::Rekey { rekey } if wants_json => {
            println!("{}", serde_json::to_string_pretty(&rekey).map_err(Failure::new)?);
            Ok(())
        }
        Reply::Rekey { rekey } => {
            print!("{}", rekey.text());
            Ok(())
        }
        other => Err(Failure::new(format!(
            "the edge answered something else than it was asked: {other:?}"
        ))),
    }
}

/// Between two looks of who waits for the end.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
