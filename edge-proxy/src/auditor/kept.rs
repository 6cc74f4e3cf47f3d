//! Past audits, kept in the volume's state directory.
//!
//! `audits/<milliseconds since 1970, 16 digits>.json`: one file for each, replaced whole, the newest [`KEPT`] of them. They are for people and for the
//! calendar: nothing is lost with them but knowledge, so one that cannot be read is left out.

use crate::replace::replace;
use firn_cleaner::{AuditReport, CleanError};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// A daily one for more than a year. Some kilobytes each, 64 damages and their names at most.
pub const KEPT: usize = 400;

/// What is longer was not written by us.
const BYTES_MAX: u64 = 1 << 20;

const DIRECTORY: &str = "audits";

/// Who wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    Calendar,
    Administrator,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All was asked, all was there and right.
    Intact,
    /// Something is lost or altered.
    Damaged,
    /// The budget ended before everything was asked; what was asked was right.
    Incomplete,
    /// The store or the table could not be asked.
    Failed,
    /// Nothing was committed yet.
    Empty,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Intact => "intact",
            Self::Damaged => "damaged",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Empty => "empty",
        }
    }
}

/// One audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptAudit {
    /// Milliseconds since 1970.
    pub ended_at_ms: i64,
    pub asked_by: AskedBy,
    pub outcome: Outcome,
    /// What is wrong, or why it failed; nothing if all is well.
    pub detail: Option<String>,
    /// Absent if it failed.
    pub report: Option<AuditReport>,
}

impl KeptAudit {
    pub fn of(ended_at_ms: i64, asked_by: AskedBy, ended: &Result<AuditReport, CleanError>) -> Self {
        let (outcome, detail) = match ended {
            Ok(report) if !report.is_intact() => (Outcome::Damaged, Some(damage(report))),
            Ok(report) if report.volumes.is_empty() => (Outcome::Empty, None),
            Ok(report) if !report.is_complete() => {
                let detail = "the budget was not enough for everything; what was asked is right".to_owned();
                (Outcome::Incomplete, Some(detail))
            }
            Ok(_) => (Outcome::Intact, None),
            Err(CleanError::Damaged(damage)) => {
                let detail = format!("the volume's root itself is lost or damaged: {damage}");
                (Outcome::Damaged, Some(detail))
            }
            Err(error) => (Outcome::Failed, Some(error.to_string())),
        };
        Self {
            ended_at_ms,
            asked_by,
            outcome,
            detail,
            report: ended.as_ref().ok().cloned(),
        }
    }
}

fn damage(report: &AuditReport) -> String {
    let volumes = &report.volumes;
    let sum = |of: fn(&firn_cleaner::VolumeAudit) -> u64| volumes.iter().map(of).sum::<u64>();
    let first = volumes.iter().flat_map(|volume| &volume.damaged).next();
    format!(
        "{} nodes and {} draws of data lost or damaged{}",
        sum(|volume| volume.damaged_nodes),
        sum(|volume| volume.damaged_draws),
        first.map_or_else(String::new, |file| format!(", the first of inode {}", file.inode))
    )
}

/// See the module; oldest first.
pub struct KeptAudits {
    directory: PathBuf,
    audits: Vec<KeptAudit>,
}

impl KeptAudits {
    /// Reads what is kept, and tells of what cannot be read.
    pub fn open(state_directory: &Path) -> (Self, Vec<String>) {
        let directory = state_directory.join(DIRECTORY);
        let (mut audits, mut damaged) = (Vec::new(), Vec::new());
        for path in paths(&directory) {
            match read(&path) {
                Ok(audit) => audits.push(audit),
                Err(error) => damaged.push(format!("{}: {error}", path.display())),
            }
        }
        // By what they say: a name may have been copied.
        audits.sort_by_key(|audit: &KeptAudit| audit.ended_at_ms);
        (Self { directory, audits }, damaged)
    }

    pub fn last(&self) -> Option<&KeptAudit> {
        self.audits.last()
    }

    /// Oldest first.
    pub fn audits(&self) -> &[KeptAudit] {
        &self.audits
    }

    /// When the newest ended that found everything as it should be.
    pub fn last_intact_at_ms(&self) -> Option<i64> {
        let intact = self
            .audits
            .iter()
            .rev()
            .find(|audit| audit.outcome == Outcome::Intact);
        intact.map(|audit| audit.ended_at_ms)
    }

    /// Keeps one more, and forgets the oldest beyond [`KEPT`]. It counts for this process even if it cannot be written.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep(&mut self, audit: KeptAudit) -> io::Result<()> {
        let written = match audit.outcome {
            // An unused volume would say so each hour.
            Outcome::Empty => Ok(()),
            _ => self.write(&audit),
        };
        self.audits.push(audit);
        let superfluous = self.audits.len().saturating_sub(KEPT);
        self.audits.drain(..superfluous);
        written
    }

    fn write(&self, audit: &KeptAudit) -> io::Result<()> {
        let made = fs::create_dir(&self.directory);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let name = format!("{:016}.json", audit.ended_at_ms.max(0));
        let bytes = serde_json::to_vec_pretty(audit).map_err(io::Error::other)?;
        replace(&self.directory.join(name), &bytes)?;
        let paths = paths(&self.directory);
        for oldest in &paths[..paths.len().saturating_sub(KEPT)] {
            fs::remove_file(oldest)?;
        }
        Ok(())
    }
}

/// By name, hence by time; none if there is no directory.
fn paths(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> io::Result<KeptAudit> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("longer than what is written here"));
    }
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(ended_at_ms: i64, outcome: Outcome) -> KeptAudit {
        KeptAudit {
            ended_at_ms,
            asked_by: AskedBy::Calendar,
            outcome,
            detail: None,
            report: None,
        }
    }

    #[test]
    fn the_newest_are_kept_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let (mut kept, damaged) = KeptAudits::open(directory.path());
        assert!(kept.last().is_none() && damaged.is_empty());
        let more = KEPT as i64 + 3;
        for number in 0..more {
            let outcome = if number == more - 2 {
                Outcome::Intact
            } else {
                Outcome::Failed
            };
            kept.keep(audit(number, outcome)).unwrap();
        }
        let (again, damaged) = KeptAudits::open(directory.path());
        assert!(damaged.is_empty());
        assert_eq!(again.audits(), kept.audits());
        assert_eq!((again.audits().len(), again.audits()[0].ended_at_ms), (KEPT, 3));
        assert_eq!(again.last_intact_at_ms(), Some(more - 2));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let (mut kept, _) = KeptAudits::open(directory.path());
        kept.keep(audit(5, Outcome::Intact)).unwrap();
        let place = directory.path().join(DIRECTORY);
        fs::write(place.join("0000000000000007.json"), b"{\"ended_at_ms\": 7").unwrap();
        fs::write(
            place.join("0000000000000008.json"),
            vec![b' '; BYTES_MAX as usize + 1],
        )
        .unwrap();
        fs::write(place.join("0000000000000009.new"), b"half").unwrap();
        let (again, damaged) = KeptAudits::open(directory.path());
        assert_eq!(again.last(), Some(&audit(5, Outcome::Intact)));
        assert_eq!(damaged.len(), 2, "{damaged:?}");
    }

    #[test]
    fn one_that_cannot_be_written_counts_for_this_process() {
        let directory = tempfile::tempdir().unwrap();
        let (mut kept, _) = KeptAudits::open(&directory.path().join("is not there"));
        kept.keep(audit(5, Outcome::Intact)).unwrap_err();
        assert_eq!(kept.last_intact_at_ms(), Some(5));
    }
}
