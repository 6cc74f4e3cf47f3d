//! The commands about the manifest of segments: `manifest begin|status`. Both ask the running edge.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    config::Config,
    failure::Failure,
    rekey::rate,
    report,
};
use clap::Subcommand;
use firn_env::println;
use firn_volume::{Gathering, GatheringStage, ManifestStatus};
use serde::{Deserialize, Serialize};

/// What is asked about the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "snake_case")]
pub enum ManifestCommand {
    /// Gathers the manifest of a volume that was made without one from its trees, in the background. Clients see nothing of it. Services and
    /// cleaners must be of this release.
    Begin {
        /// Bytes read a second, at most: for example "1 MiB". Begin again to change it.
        #[arg(long, value_name = "SIZE", default_value = "1 MiB")]
        rate: String,
        /// Returns when it is over.
        #[arg(long)]
        #[serde(default)]
        wait: bool,
    },
    /// Shows whether the volume has one, and how far it is gathered.
    Status {
        /// As one JSON object.
        #[arg(long)]
        #[serde(default)]
        json: bool,
    },
}

/// Whether the volume has a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPart {
    /// `without`, `waiting`, `head`, `retained`, `gaps` or `whole`.
    pub state: String,
    pub bytes_per_second: u64,
    /// Segments entered from the trees.
    pub gathered_segments: u64,
    /// Those of them that the store had lost or altered.
    pub lost_segments: u64,
    /// Nodes and inodes that could not be read.
    pub unreadable_objects: u64,
    /// Bytes of the volume's data that were passed, of those that it uses.
    pub passed_bytes: u64,
    pub used_bytes: u64,
    /// How often a cleaner that told no round made it begin anew.
    pub begun_anew: u64,
}

impl ManifestPart {
    /// The state of a volume with so many bytes in use.
    pub fn of(status: ManifestStatus, used_bytes: u64) -> Self {
        let gathering = match status {
            ManifestStatus::Gathering(gathering) => gathering,
            ManifestStatus::Without | ManifestStatus::Whole => Gathering::default(),
        };
        let state = match status {
            ManifestStatus::Without => "without",
            ManifestStatus::Whole => "whole",
            ManifestStatus::Gathering(gathering) => match gathering.stage {
                GatheringStage::Waiting => "waiting",
                GatheringStage::Head => "head",
                GatheringStage::Retained => "retained",
                GatheringStage::Gaps => "gaps",
                GatheringStage::Settled => "whole",
            },
        };
        Self {
            state: state.to_owned(),
            bytes_per_second: gathering.bytes_per_second,
            gathered_segments: gathering.segments,
            lost_segments: gathering.lost,
            unreadable_objects: gathering.unreadable,
            passed_bytes: gathering.data_bytes,
            used_bytes,
            begun_anew: gathering.run,
        }
    }

    /// Whether it is under way.
    pub fn is_gathered(&self) -> bool {
        matches!(self.state.as_str(), "waiting" | "head" | "retained")
    }

    /// In one line.
    pub fn line(&self) -> String {
        let at = match self.state.as_str() {
            "whole" => return "whole: it says of every segment that must exist".to_owned(),
            "waiting" => "waits until what the cleaner moved before is taken over".to_owned(),
            "head" => format!(
                "is gathered from the volume as it is now, {} of about {} passed",
                report::size(self.passed_bytes),
                report::size(self.used_bytes)
            ),
            "retained" => "is gathered from snapshots and other retained roots".to_owned(),
            "gaps" => {
                return format!(
                    "ended with gaps: {} nodes could not be read, what only they lead to is not in it; {} segments are, {} of them lost or altered. Bring back \
                     what `firn-edge verify` names, and begin again",
                    self.unreadable_objects, self.gathered_segments, self.lost_segments
                );
            }
            _ => return "none: `firn-edge manifest begin` gathers it".to_owned(),
        };
        let anew = match self.begun_anew {
            0 => String::new(),
            times => format!("; begun anew {times} times, since a cleaner did not tell what it retired"),
        };
        format!(
            "{at}; {} segments entered, {} of them lost or altered, {} a second at most{anew}",
            self.gathered_segments,
            self.lost_segments,
            report::size(self.bytes_per_second)
        )
    }
}

/// `firn-edge manifest …`.
pub async fn manifest(config: &Config, command: ManifestCommand) -> Result<(), Failure> {
    let wants_json = command == ManifestCommand::Status { json: true };
    if let ManifestCommand::Begin { rate: text, .. } = &command {
        rate(text).map_err(Failure::usage)?;
    }
    let mut client = Client::ask(config, Command::Manifest { what: command }).await?;
    match expect_end(&mut client, "gathering the manifest").await? {
        Reply::Manifest { manifest } if wants_json => {
            println!(
                "{}",
                serde_json::to_string_pretty(&manifest).map_err(Failure::new)?
            );
            Ok(())
        }
        Reply::Manifest { manifest } => {
            println!("manifest: {}", manifest.line());
            Ok(())
        }
        other => Err(Failure::new(format!(
            "the edge answered something else than it was asked: {other:?}"
        ))),
    }
}
