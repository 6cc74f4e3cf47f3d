//! Durability in the cloud: what the configuration says of it, and how the calls stand that wait for it.

use crate::{config::Config, report::span};
use firn_vfs::Durability;
use firn_volume::{CloudWaitStatus, OnDisconnect};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How durable what is stable is when it is answered.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WrittenDurability {
    Journal,
    Cloud,
}

impl From<WrittenDurability> for Durability {
    fn from(written: WrittenDurability) -> Self {
        match written {
            WrittenDurability::Journal => Self::Journal,
            WrittenDurability::Cloud => Self::Cloud,
        }
    }
}

/// What becomes of clients while the cloud is away, of whom something must be in it: who is to be answered at level 2, and all of an owner's
/// that gives no sign of life any more.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WrittenOnDisconnect {
    /// They wait.
    Wait,
    /// Calls that are to be answered at level 2 fail.
    Fail,
    /// They go on: at level 1, and of a shared volume at the risk that what they write ends in a salvage clone, and what they read is old.
    Accept,
}

impl From<WrittenOnDisconnect> for OnDisconnect {
    fn from(written: WrittenOnDisconnect) -> Self {
        match written {
            WrittenOnDisconnect::Wait => Self::Wait,
            WrittenOnDisconnect::Fail => Self::Fail,
            WrittenOnDisconnect::Accept => Self::Accept,
        }
    }
}

impl Config {
    /// That of a part of it, which may say otherwise than the volume.
    pub(crate) fn durability(&self, own: Option<WrittenDurability>) -> Durability {
        own.map_or(self.volume.durability, Durability::from)
    }

    /// Of what is shared over SMB.
    pub(crate) fn smb_durability(&self) -> Durability {
        let shares = self.exports.iter().filter(|export| export.smb.is_some());
        let of_shares = shares.map(|export| self.durability(export.durability));
        of_shares.max().unwrap_or(self.volume.durability)
    }

    fn has_level_two(&self) -> bool {
        let exports = self.exports.iter().map(|export| export.durability);
        let mounts = self.mounts.iter().map(|mount| mount.durability);
        exports
            .chain(mounts)
            .any(|own| self.durability(own) == Durability::Cloud)
    }
}

/// What can be wrong with what is said of it.
pub fn check(config: &Config) -> Result<(), String> {
    let volume = &config.volume;
    if volume.follow.is_some() && config.has_level_two() {
        return Err("durability: nothing is written to a volume that is followed; leave it out".into());
    }
    if !config.has_level_two() {
        match volume.on_disconnect {
            Some(_) if volume.shared.is_none() && volume.by_inode.is_none() => {
                return Err(
                    "volume.on_disconnect is of volumes with shared = true or durability = \"cloud\"".into(),
                );
            }
            Some(WrittenOnDisconnect::Fail) => {
                return Err(
                    "volume.on_disconnect: \"fail\" is of volumes with durability = \"cloud\"; clients of a shared volume wait, or go on \
                     (\"accept\")"
                        .into(),
                );
            }
            Some(WrittenOnDisconnect::Wait | WrittenOnDisconnect::Accept) | None => {}
        }
    }
    let mut shares = config.exports.iter().filter(|export| export.smb.is_some());
    if shares.any(|export| config.durability(export.durability) != config.smb_durability()) {
        return Err(
            "[[export]] durability: all shares of SMB are served from one mount; give those exports one durability".into(),
        );
    }
    Ok(())
}

/// Calls that are answered at level 2, as `status` and `/metrics` show them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelTwoPart {
    /// What becomes of them while the cloud is away: `wait`, `fail` or `accept`.
    pub on_disconnect: String,
    /// Calls that wait now.
    pub waiting: u64,
    /// Calls that waited and were answered, and the commits that answered them.
    pub answered: u64,
    pub commits: u64,
    /// The most that one commit answered.
    pub largest_group: u64,
    pub waited_ms: u64,
    pub longest_ms: u64,
    /// Calls that were told to try again, or failed, since the cloud was away.
    pub refused: u64,
    /// Calls that were answered at level 1, since the cloud was away.
    pub accepted: u64,
    /// Since the cloud is known to be away.
    pub away_ms: Option<u64>,
}

impl LevelTwoPart {
    /// Of a volume of which something is answered at level 2.
    pub fn new(config: &Config, status: CloudWaitStatus) -> Option<Self> {
        let CloudWaitStatus {
            waiting,
            answered,
            commits,
            largest_group,
            waited,
            longest,
            refused,
            accepted,
            away,
        } = status;
        config.has_level_two().then(|| Self {
            on_disconnect: match config.volume.on_disconnect {
                None | Some(WrittenOnDisconnect::Wait) => "wait",
                Some(WrittenOnDisconnect::Fail) => "fail",
                Some(WrittenOnDisconnect::Accept) => "accept",
            }
            .into(),
            waiting,
            answered,
            commits,
            largest_group,
            waited_ms: millis(waited),
            longest_ms: millis(longest),
            refused,
            accepted,
            away_ms: away.map(millis),
        })
    }

    /// Of a status page.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut line = "answers at level 2 (cloud)".to_owned();
        if self.answered > 0 {
            line += &format!(
                "; {} calls waited {} each (the longest {}) for {} commits, which answered {} at most",
                self.answered,
                span(self.waited_ms / self.answered),
                span(self.longest_ms),
                self.commits,
                self.largest_group
            );
        }
        if self.waiting > 0 {
            line += &format!("; {} wait now", self.waiting);
        }
        let mut rows = vec![("Durability", line)];
        if let Some(away) = self.away_ms {
            let then = match self.on_disconnect.as_str() {
                "accept" => "calls are answered at level 1 (journal)",
                "fail" => "calls fail with an input/output error",
                _ => "calls that change something wait",
            };
            rows.push((
                "",
                format!("the cloud has taken nothing for {}: {then}", span(away)),
            ));
        }
        if self.refused + self.accepted > 0 {
            rows.push((
                "",
                format!(
                    "while the cloud was away {} calls were refused, and {} answered at level 1",
                    self.refused, self.accepted
                ),
            ));
        }
        rows
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
