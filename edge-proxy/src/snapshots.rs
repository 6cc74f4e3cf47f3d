//! The commands about snapshots: `snapshot create|list|delete|protect`, `restore`, `clone`.
//!
//! All of them ask the running edge; nothing here touches store or table. Times are shown and taken in universal time.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    config::Config,
    failure::Failure,
    report,
};
use clap::Subcommand;
use firn_env::{print, println};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is asked about snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotCommand {
    /// Keeps the present state under a name; done when it is in the cloud.
    Create {
        /// 1 to 255 bytes, as a directory's name; clients find it at .snapshots/NAME.
        name: String,
        /// Nobody can delete it for so long, not even with this program: for example "30 d", "12 h".
        #[arg(long, value_name = "TIME")]
        protect: Option<String>,
    },
    /// Lists all snapshots.
    List {
        /// Also finds out what each costs, which reads what differs between neighbours.
        #[arg(long)]
        space: bool,
    },
    /// Stops keeping a state; the cleaner frees what only it held.
    Delete {
        /// The snapshot.
        name: String,
    },
    /// Protects a snapshot from being deleted for so long from now. A protection can be made longer, never shorter.
    Protect {
        /// The snapshot.
        name: String,
        /// For example "30 d", "12 h".
        time: String,
    },
}

/// A snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotLine {
    pub name: String,
    pub id: u64,
    pub created_ms: i64,
    pub protected_until_ms: i64,
    pub files: u64,
    pub used_bytes: u64,
    /// Bytes of the bucket that only this snapshot keeps, and whether all of them were counted.
    pub unique: Option<(u64, bool)>,
}

/// Reads "30 d", "12 h", "90 min".
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write for example \"30 d\", \"12 h\" or \"90 min\"");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // A thousand years are enough, and no sum of times overflows below.
    number
        .checked_mul(seconds)
        .filter(|seconds| *seconds <= 1000 * 366 * 86_400)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// `firn-edge snapshot …`.
pub async fn snapshot(config: &Config, command: SnapshotCommand) -> Result<(), Failure> {
    match &command {
        SnapshotCommand::Create {
            protect: Some(time), ..
        }
        | SnapshotCommand::Protect { time, .. } => {
            span(time).map_err(Failure::usage)?;
        }
        _ => {}
    }
    let request = Command::Snapshot { what: command };
    ask(config, request, "snapshot").await
}

/// `firn-edge restore` and `firn-edge clone`.
pub async fn ask(config: &Config, request: Command, what: &str) -> Result<(), Failure> {
    let mut client = Client::ask(config, request).await?;
    match expect_end(&mut client, what).await? {
        Reply::Done { text } => println!("{text}"),
        Reply::Snapshots { snapshots } => print!("{}", table(&snapshots)),
        other => {
            return Err(Failure::new(format!(
                "the edge answered something else than it was asked: {other:?}"
            )));
        }
    }
    Ok(())
}

fn table(snapshots: &[SnapshotLine]) -> String {
    if snapshots.is_empty() {
        return "no snapshots; make one with: firn-edge snapshot create NAME\n".into();
    }
    let mut text = format!(
        "{:<32} {:>24} {:>10} {:>12} {:>14}  {}\n",
        "NAME", "TAKEN (UTC)", "FILES", "DATA", "ONLY HERE", "PROTECTED UNTIL"
    );
    for one in snapshots {
        let unique = match one.unique {
            None => "-".into(),
            Some((bytes, true)) => report::size(bytes),
            Some((bytes, false)) => format!("≥ {}", report::size(bytes)),
        };
        let protected = match one.protected_until_ms {
            0 => "-".into(),
            until => utc(until),
        };
        // Names may have any bytes; a terminal may not be told what to do by them.
        let name: String = one
            .name
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        text += &format!(
            "{name:<32} {:>24} {:>10} {:>12} {unique:>14}  {protected}\n",
            utc(one.created_ms),
            one.files,
            report::size(one.used_bytes),
        );
    }
    text
}

/// A time in milliseconds since 1970 as people read it.
pub fn utc(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| format!("{ms} ms since 1970"), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit_and_stay_within_a_thousand_years() {
        assert_eq!(span("30 d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(span("90min"), Ok(Duration::from_secs(5400)));
        for wrong in ["30", "d", "-1 d", "400000 d", "99999999999999999999 d", "1 month"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_table_shows_names_without_what_a_terminal_would_obey() {
        let line = SnapshotLine {
            name: "a\u{1b}[2J".into(),
            id: 1,
            created_ms: 1_774_000_000_000,
            protected_until_ms: 0,
            files: 3,
            used_bytes: 1 << 20,
            unique: Some((5, false)),
        };
        let text = table(&[line]);
        assert!(
            text.contains("a?[2J") && text.contains("2026-03-20T09:46:40Z") && text.contains("≥ "),
            "{text}"
        );
    }
}
