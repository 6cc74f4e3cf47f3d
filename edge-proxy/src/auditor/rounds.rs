//! Rounds of audits that the money is not enough for in one go: where the last one was cut off, and when everything was gone through.
//!
//! Kept beside the audits. Who has lost it, or took the volume over, begins a round anew.

use crate::replace::replace;
use firn_cleaner::{AuditPlace, VolumeAudit};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const NAME: &str = "rounds";

/// What is longer was not written by us.
const BYTES_MAX: u64 = 4096;

/// One that is not at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRound {
    /// Milliseconds since 1970.
    pub began_at_ms: i64,
    /// Audits that were made for it.
    pub audits: u32,
    /// With what the next one begins.
    pub goes_on_at: AuditPlace,
}

/// One in which everything was gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRound {
    /// Milliseconds since 1970.
    pub began_at_ms: i64,
    /// The same.
    pub ended_at_ms: i64,
    /// Over how many audits.
    pub audits: u32,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// The one under way.
    pub open: Option<OpenRound>,
    /// The last that came to its end over more than one audit.
    pub last: Option<EndedRound>,
}

impl Rounds {
    /// What an audit makes of them. One that began at the beginning while a round is under way is none of that round's.
    pub fn after(self, began_at_ms: i64, ended_at_ms: i64, audit: &VolumeAudit) -> Self {
        let Self { open, last } = self;
        let own = open.filter(|_| audit.began_at.is_some());
        let audits = own.map_or(0, |open| open.audits).saturating_add(1);
        let began_at_ms = own.map_or(began_at_ms, |open| open.began_at_ms);
        match (audit.goes_on_at, own) {
            (Some(_), None) if open.is_some() => self,
            (Some(goes_on_at), _) => Self {
                open: Some(OpenRound {
                    began_at_ms,
                    audits,
                    goes_on_at,
                }),
                last,
            },
            (None, Some(_)) if audit.ends_a_round() => Self {
                open: None,
                last: Some(EndedRound {
                    began_at_ms,
                    ended_at_ms,
                    audits,
                }),
            },
            (None, _) => Self { open: None, last },
        }
    }

    /// Reads them from the directory of the audits; none if there are none, or what is there is something else.
    pub fn read(directory: &Path) -> Self {
        let path = path(directory);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() <= BYTES_MAX => {}
            Ok(_) | Err(_) => return Self::default(),
        }
        let read = fs::read(&path).map_err(|error| error.to_string());
        let read = read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        read.unwrap_or_else(|why| {
            let path = path.display();
            tracing::warn!(%path, why, "where audits go on cannot be read; the next one begins at the beginning");
            Self::default()
        })
    }

    /// Writes them there.
    ///
    /// # Errors
    /// The disk's.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        replace(
            &path(directory),
            &serde_json::to_vec(self).map_err(io::Error::other)?,
        )
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_cleaner::ManifestAudit;

    const MANIFEST: AuditPlace = AuditPlace::Manifest;

    fn audit(began_at: Option<AuditPlace>, goes_on_at: Option<AuditPlace>) -> VolumeAudit {
        VolumeAudit {
            began_at,
            goes_on_at,
            manifest: Some(ManifestAudit {
                is_complete: true,
                ..ManifestAudit::default()
            }),
            ..VolumeAudit::default()
        }
    }

    #[test]
    fn a_round_is_as_many_audits_as_it_takes() {
        let rounds = Rounds::default().after(10, 20, &audit(None, Some(MANIFEST)));
        let open = rounds.open.expect("it was cut off");
        assert_eq!(
            (open.began_at_ms, open.audits, open.goes_on_at),
            (10, 1, MANIFEST)
        );
        let rounds = rounds.after(30, 40, &audit(Some(MANIFEST), Some(MANIFEST)));
        assert_eq!(
            rounds.open.map(|open| (open.began_at_ms, open.audits)),
            Some((10, 2))
        );
        // By the way somebody looks at what a small budget buys, from the beginning.
        let rounds = rounds.after(41, 42, &audit(None, Some(MANIFEST)));
        assert_eq!(rounds.open.map(|open| open.audits), Some(2));
        let rounds = rounds.after(50, 60, &audit(Some(MANIFEST), None));
        let ended = EndedRound {
            began_at_ms: 10,
            ended_at_ms: 60,
            audits: 3,
        };
        assert_eq!((rounds.open, rounds.last), (None, Some(ended)));
        // A whole one needs no round.
        assert_eq!(rounds.after(70, 80, &audit(None, None)), rounds);
    }

    #[test]
    fn a_round_without_the_manifest_did_not_go_through_everything() {
        let open = Rounds::default().after(10, 20, &audit(None, Some(MANIFEST)));
        let mut cut = audit(Some(MANIFEST), None);
        cut.manifest = Some(ManifestAudit::default());
        assert_eq!(open.after(30, 40, &cut), Rounds::default());
    }

    #[test]
    fn they_are_read_back_and_nonsense_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let audits = directory.path().join("audits");
        assert_eq!(Rounds::read(&audits), Rounds::default());
        let rounds = Rounds::default().after(10, 20, &audit(None, Some(MANIFEST)));
        rounds.write(&audits).unwrap();
        assert_eq!(Rounds::read(&audits), rounds);
        fs::write(audits.join(NAME), "{").unwrap();
        assert_eq!(Rounds::read(&audits), Rounds::default());
        fs::write(audits.join(NAME), vec![b' '; 5000]).unwrap();
        assert_eq!(Rounds::read(&audits), Rounds::default());
    }
}
