//! The chain of a volume's reports: where it is broken.

use crate::SignedReport;
use std::fmt;

/// A place at which reports do not follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// These are not there.
    Missing {
        /// The first that is not.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// What is there is not what the report after it followed when that was signed: one of the two was replaced.
    Replaced {
        /// The number of the first of the two.
        sequence: u64,
    },
    /// It was signed with the key of an ownership that had ended: another owner's report lies before it.
    Overtaken {
        /// Its number.
        sequence: u64,
    },
}

impl fmt::Display for Break {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { first, last } if first == last => write!(formatter, "report {first} is missing"),
            Self::Missing { first, last } => write!(formatter, "reports {first} to {last} are missing"),
            Self::Replaced { sequence } => write!(
                formatter,
                "report {sequence} is not the one that report {} followed when it was signed: one of them was replaced",
                sequence.saturating_add(1)
            ),
            Self::Overtaken { sequence } => write!(
                formatter,
                "report {sequence} was signed with the key of an owner that a report before it shows was one no more: do not rely on it"
            ),
        }
    }
}

/// The breaks of a chain between its first report that is there and its last. `None` stands for one that cannot be read, of which only the
/// number is known. In the order of the numbers, each once.
pub fn breaks<'a>(reports: impl IntoIterator<Item = (u64, Option<&'a SignedReport>)>) -> Vec<Break> {
    let mut breaks = Vec::new();
    let mut before: Option<(u64, Option<&SignedReport>)> = None;
    let mut newest_epoch = 0;
    for (sequence, report) in reports {
        if let Some((last, followed)) = before {
            if sequence > last.saturating_add(1) {
                breaks.push(Break::Missing {
                    first: last + 1,
                    last: sequence - 1,
                });
            } else if let (Some(followed), Some(report)) = (followed, report)
                && report.report().previous != Some(followed.hash())
            {
                breaks.push(Break::Replaced { sequence: last });
            }
        }
        if let Some(report) = report {
            let epoch = report.report().signer.epoch;
            if epoch < newest_epoch {
                breaks.push(Break::Overtaken { sequence });
            }
            newest_epoch = newest_epoch.max(epoch);
        }
        before = Some((sequence, report));
    }
    breaks
}
