//! Past audits, kept in the volume's state directory.
//!
//! ```text
//! audits/<sequence, 16 digits>.report                 a signed report, as the bucket has it; the newest [`KEPT`]
//! audits/<milliseconds since 1970, 16 digits>.json    an audit of which no report was signed; the newest [`KEPT`]
//! audits/rounds                                       where the next one goes on (`rounds.rs`)
//! ```
//!
//! Each file is replaced whole. They are for people, for the calendar and for whoever wants proof: nothing is lost with them but knowledge,
//! so one that cannot be read is told and left out.

use super::{LastAudit, rounds::Rounds};
use crate::replace::replace;
use firn_audit_report::{AskedBy, MAX_REPORT_BYTES, Outcome, Report, SignedReport};
use firn_cleaner::{AuditReport, CleanError};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

const SIGNED: &str = "report";
const UNSIGNED: &str = "json";

/// A daily one for more than a year. Some kilobytes each.
pub const KEPT: usize = 400;

/// What is longer was not written by us.
const BYTES_MAX: u64 = 1 << 20;

const DIRECTORY: &str = "audits";

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
                let mut of_second = report.volumes.iter().filter_map(|volume| volume.second.as_ref());
                let detail = match of_second.find_map(|second| second.error.as_ref()) {
                    Some(error) => format!("the second store could not be audited: {error}"),
                    None => incomplete(report),
                };
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

/// Why something was left out, though nothing wrong was found.
fn incomplete(report: &AuditReport) -> String {
    let volumes = &report.volumes;
    let went_on = volumes.iter().any(|volume| volume.began_at.is_some());
    let is_cut = volumes.iter().any(|volume| volume.goes_on_at.is_some());
    match (went_on, is_cut) {
        (false, true) => "the budget was not enough for everything in one audit: it was cut off, and the next one by calendar goes on there, or one asked for with --continue",
        (true, true) => "it went on where the one before was cut off, and the budget ended again: the next one by calendar goes on there, or one asked for with --continue",
        (true, false) => "it went on where the one before was cut off, and came to the end",
        (false, false) => "the budget was not enough for everything",
    }
    .to_owned()
        + "; what was asked is right"
}

fn damage(report: &AuditReport) -> String {
    let mut of_second = report.volumes.iter().filter_map(|volume| volume.second.as_ref());
    let second = of_second.find(|second| !second.is_intact()).map(|second| {
        let first = second.named.first();
        format!(
            "in the second store {} segments missing, {} objects altered{}",
            second.missing,
            second.altered,
            first.map_or_else(String::new, |first| format!(", the first {}", first.key))
        )
    });
    match (report.is_first_intact(), second) {
        (true, Some(second)) => second,
        (false, Some(second)) => format!("{}; {second}", first_damage(report)),
        (_, None) => first_damage(report),
    }
}

fn first_damage(report: &AuditReport) -> String {
    let volumes = &report.volumes;
    let sum = |of: fn(&firn_cleaner::VolumeAudit) -> u64| volumes.iter().map(of).sum::<u64>();
    let first = volumes.iter().flat_map(|volume| &volume.damaged).next();
    let manifests = volumes.iter().filter_map(|volume| volume.manifest.as_ref());
    let segments: u64 = manifests.map(|manifest| manifest.lost + manifest.altered).sum();
    let of_manifests = match segments {
        0 => String::new(),
        segments => format!(", {segments} segments of the manifest lost or altered"),
    };
    format!(
        "{} nodes and {} draws of data lost or damaged{}{of_manifests}",
        sum(|volume| volume.damaged_nodes),
        sum(|volume| volume.damaged_draws),
        first.map_or_else(String::new, |file| format!(", the first of inode {}", file.inode))
    )
}

/// One that is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    Signed(Box<SignedReport>),
    /// It failed, or was made by a build that did not sign.
    Unsigned(Box<KeptAudit>),
}

impl Kept {
    /// In short.
    pub fn last(&self) -> LastAudit {
        match self {
            Self::Signed(signed) => LastAudit::of_report(signed.report()),
            Self::Unsigned(audit) => LastAudit::of(audit),
        }
    }

    pub fn ended_at_ms(&self) -> i64 {
        match self {
            Self::Signed(signed) => signed.report().ended_at_ms,
            Self::Unsigned(audit) => audit.ended_at_ms,
        }
    }

    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Signed(signed) => signed.report().outcome,
            Self::Unsigned(audit) => audit.outcome,
        }
    }
}

/// A file that is no audit.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Of a signed report: the number in its name.
    pub sequence: Option<u64>,
    pub path: PathBuf,
    pub why: String,
}

/// See the module; oldest first.
pub struct KeptAudits {
    directory: PathBuf,
    audits: Vec<Kept>,
    unreadable: Vec<Unreadable>,
    rounds: Rounds,
}

impl KeptAudits {
    /// Reads what is kept.
    pub fn open(state_directory: &Path) -> Self {
        let directory = state_directory.join(DIRECTORY);
        let (mut audits, mut unreadable) = (Vec::new(), Vec::new());
        for path in paths(&directory, UNSIGNED) {
            match read(&path) {
                Ok(audit) => audits.push(Kept::Unsigned(Box::new(audit))),
                Err(error) => unreadable.push(Unreadable {
                    sequence: None,
                    path,
                    why: error.to_string(),
                }),
            }
        }
        for path in paths(&directory, SIGNED) {
            let sequence = sequence_of(&path);
            match read_signed(&path, sequence) {
                Ok(report) => audits.push(Kept::Signed(Box::new(report))),
                Err(why) => unreadable.push(Unreadable { sequence, path, why }),
            }
        }
        // By what they say: a name may have been copied.
        audits.sort_by_key(Kept::ended_at_ms);
        let rounds = Rounds::read(&directory);
        Self {
            directory,
            audits,
            unreadable,
            rounds,
        }
    }

    pub fn last(&self) -> Option<&Kept> {
        self.audits.last()
    }

    /// Oldest first.
    pub fn audits(&self) -> &[Kept] {
        &self.audits
    }

    /// What was there when they were read, and is no audit.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// Signed reports, by their numbers.
    pub fn reports(&self) -> impl Iterator<Item = &SignedReport> {
        let mut reports: Vec<_> = self
            .audits
            .iter()
            .filter_map(|kept| match kept {
                Kept::Signed(signed) => Some(&**signed),
                Kept::Unsigned(_) => None,
            })
            .collect();
        reports.sort_by_key(|signed| signed.report().sequence);
        reports.into_iter()
    }

    /// What the next report follows, as far as this machine knows: the highest number, and the hash of the newest that can be read.
    pub fn end_of_chain(&self) -> (u64, Option<[u8; 32]>) {
        let unreadable = self.unreadable.iter().filter_map(|file| file.sequence).max();
        let newest = self.reports().last();
        let (last, hash) = newest.map_or((0, None), SignedReport::link);
        (last.max(unreadable.unwrap_or(0)), hash)
    }

    /// Rounds of audits.
    pub fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// Keeps how far rounds are by now. It counts for this process even if it cannot be written.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep_rounds(&mut self, rounds: Rounds) -> io::Result<()> {
        if self.rounds == rounds {
            return Ok(());
        }
        self.rounds = rounds;
        rounds.write(&self.directory)
    }

    /// When the newest ended that found everything as it should be.
    pub fn last_intact_at_ms(&self) -> Option<i64> {
        let mut newest_first = self.audits.iter().rev();
        newest_first
            .find(|kept| kept.outcome() == Outcome::Intact)
            .map(Kept::ended_at_ms)
    }

    /// Keeps one more, and forgets the oldest beyond [`KEPT`]. It counts for this process even if it cannot be written.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep(&mut self, kept: Kept) -> io::Result<()> {
        let written = match &kept {
            // An unused volume would say so each hour.
            Kept::Unsigned(audit) if audit.outcome == Outcome::Empty => Ok(()),
            Kept::Unsigned(audit) => serde_json::to_vec_pretty(audit)
                .map_err(io::Error::other)
                .and_then(|bytes| self.write(audit.ended_at_ms.max(0).unsigned_abs(), UNSIGNED, &bytes)),
            Kept::Signed(signed) => self.write(signed.report().sequence, SIGNED, signed.text().as_bytes()),
        };
        self.audits.push(kept);
        let superfluous = self.audits.len().saturating_sub(2 * KEPT);
        self.audits.drain(..superfluous);
        written
    }

    fn write(&self, number: u64, extension: &str, bytes: &[u8]) -> io::Result<()> {
        let made = fs::create_dir(&self.directory);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let name = format!("{number:016}.{extension}");
        replace(&self.directory.join(name), bytes)?;
        let paths = paths(&self.directory, extension);
        for oldest in &paths[..paths.len().saturating_sub(KEPT)] {
            fs::remove_file(oldest)?;
        }
        Ok(())
    }
}

/// By name, hence by time or number; none if there is no directory.
fn paths(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths
}

fn sequence_of(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

fn read(path: &Path) -> io::Result<KeptAudit> {
    serde_json::from_slice(&read_bytes(path, BYTES_MAX)?).map_err(io::Error::other)
}

fn read_signed(path: &Path, sequence: Option<u64>) -> Result<SignedReport, String> {
    let bytes = read_bytes(path, MAX_REPORT_BYTES as u64).map_err(|error| error.to_string())?;
    let signed = SignedReport::open(&bytes).map_err(|error| error.to_string())?;
    let Report { sequence: said, .. } = signed.report();
    match sequence {
        Some(sequence) if sequence == *said => Ok(signed),
        _ => Err(format!("it is report {said} under another's name")),
    }
}

fn read_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other("longer than what is written here"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(ended_at_ms: i64, outcome: Outcome) -> Kept {
        Kept::Unsigned(Box::new(KeptAudit {
            ended_at_ms,
            asked_by: AskedBy::Calendar,
            outcome,
            detail: None,
            report: None,
        }))
    }

    #[test]
    fn the_newest_are_kept_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = KeptAudits::open(directory.path());
        assert!(kept.last().is_none() && kept.unreadable().is_empty());
        let more = KEPT as i64 + 3;
        for number in 0..more {
            let outcome = if number == more - 2 {
                Outcome::Intact
            } else {
                Outcome::Failed
            };
            kept.keep(audit(number, outcome)).unwrap();
        }
        let again = KeptAudits::open(directory.path());
        assert!(again.unreadable().is_empty());
        assert_eq!((again.audits().len(), again.audits()[0].ended_at_ms()), (KEPT, 3));
        assert_eq!(again.audits(), &kept.audits()[3..]);
        assert_eq!(again.last_intact_at_ms(), Some(more - 2));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = KeptAudits::open(directory.path());
        kept.keep(audit(5, Outcome::Intact)).unwrap();
        let place = directory.path().join(DIRECTORY);
        fs::write(place.join("0000000000000007.json"), b"{\"ended_at_ms\": 7").unwrap();
        fs::write(
            place.join("0000000000000008.json"),
            vec![b' '; BYTES_MAX as usize + 1],
        )
        .unwrap();
        fs::write(place.join("0000000000000009.new"), b"half").unwrap();
        let again = KeptAudits::open(directory.path());
        assert_eq!(again.last(), Some(&audit(5, Outcome::Intact)));
        assert_eq!(again.unreadable().len(), 2, "{:?}", again.unreadable());
    }

    #[test]
    fn one_that_cannot_be_written_counts_for_this_process() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = KeptAudits::open(&directory.path().join("is not there"));
        kept.keep(audit(5, Outcome::Intact)).unwrap_err();
        assert_eq!(kept.last_intact_at_ms(), Some(5));
    }
}
