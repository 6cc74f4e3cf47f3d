//! Formats of this build, and the record that a served state directory keeps of the build that served it last.
//!
//! ```text
//! served-by = JSON { "served": { "version", "formats": { name: { "oldest", "newest" } } }, "before": the same of the build before it, if any }
//! ```
//!
//! The record is replaced, synced, at each start of `run` whose formats differ from it. A build that does not read what the last one writes
//! refuses to start, in one line, before it touches anything; without a record, as before there was one, the formats' own version bytes do.

use crate::{failure::Failure, identity, joined};
use firn_format::FormatVersions;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

const FILE: &str = "served-by";
const NEW_FILE: &str = "served-by.new";
/// Far above what any build would list.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The release before this one, as its own `firn-edge upgrade --formats` said.
const PREVIOUS_RELEASE: &str = include_str!("../../packaging/previous-release.json");

/// The versions of one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub oldest: u8,
    pub newest: u8,
}

/// What a build reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatSet {
    pub version: String,
    pub formats: BTreeMap<String, Versions>,
}

/// A format that one build writes and another does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    pub format: String,
    pub written: u8,
    /// `None`: it knows no such format.
    pub read: Option<Versions>,
}

impl fmt::Display for Unread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            format,
            written,
            read,
        } = self;
        match read {
            Some(read) => write!(
                formatter,
                "{format} {written} (read: {} to {})",
                read.oldest, read.newest
            ),
            None => write!(formatter, "{format} {written} (unknown)"),
        }
    }
}

impl FormatSet {
    pub fn of_this_build() -> Self {
        let own = [
            FormatVersions::new("identity", identity::VERSION, identity::VERSION),
            FormatVersions::new("enrolment", joined::OLDEST_VERSION as u8, joined::VERSION as u8),
        ];
        let all = firn_format::FORMATS
            .iter()
            .chain(&firn_seal::FORMATS)
            .chain(&firn_anchor::FORMATS)
            .chain(&firn_volume::FORMATS)
            .chain(&own);
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            formats: all
                .map(|format| {
                    let versions = Versions {
                        oldest: format.oldest,
                        newest: format.newest,
                    };
                    (format.name.to_owned(), versions)
                })
                .collect(),
        }
    }

    /// The release before this build's.
    pub fn of_previous_release() -> Self {
        serde_json::from_str(PREVIOUS_RELEASE).expect("packaging/previous-release.json is what a build said")
    }

    /// What `other` writes and this does not read.
    pub fn unread_of(&self, other: &Self) -> Vec<Unread> {
        let written = other.formats.iter();
        written
            .filter_map(|(format, of_other)| {
                let read = self.formats.get(format).copied();
                let is_read = read.is_some_and(|read| (read.oldest..=read.newest).contains(&of_other.newest));
                (!is_read).then(|| Unread {
                    format: format.clone(),
                    written: of_other.newest,
                    read,
                })
            })
            .collect()
    }
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedBy {
    pub served: FormatSet,
    #[serde(default)]
    pub before: Option<FormatSet>,
}

impl ServedBy {
    /// Reads it; `None` if no build that keeps one has served here.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = path(directory);
        let failed = |error: &dyn fmt::Display| {
            Failure::usage(format!(
                "{}: {error}. Restore it from a backup of the state directory, or remove it: it only tells which build served here last",
                path.display()
            ))
        };
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
            Ok(found) if found.len() > FILE_BYTES_MAX => return Err(failed(&"it is too long")),
            Ok(_) => {}
        }
        let bytes = std::fs::read(&path).map_err(|error| failed(&error))?;
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| failed(&error))
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Before a start: refuses data of a newer build, and records that this one serves.
///
/// # Errors
/// If this build does not read what the last one writes. A record that cannot be written keeps nobody from serving.
pub fn start(directory: &Path) -> Result<(), Failure> {
    let ours = FormatSet::of_this_build();
    let known = ServedBy::load(directory)?;
    let before = match known {
        Some(known) if known.served == ours => return Ok(()),
        Some(known) => {
            let unread = ours.unread_of(&known.served);
            if !unread.is_empty() {
                return Err(Failure::usage(refusal(directory, &ours, &known.served, &unread)));
            }
            Some(known.served)
        }
        None => None,
    };
    let record = ServedBy { served: ours, before };
    if let Err(error) = save(directory, &record) {
        tracing::warn!(%error, "which build serves here is not recorded: firn-edge upgrade --check will know less");
    }
    Ok(())
}

/// In one line: what is wrong, what is safe, what to do.
pub fn refusal(directory: &Path, ours: &FormatSet, theirs: &FormatSet, unread: &[Unread]) -> String {
    format!(
        "{} was served by firn-edge {}, which writes what this build ({}) does not read: {}. Nothing was changed: install that version or a \
         newer one",
        directory.display(),
        theirs.version,
        ours.version,
        list(unread)
    )
}

pub fn list(unread: &[Unread]) -> String {
    let unread: Vec<_> = unread.iter().map(Unread::to_string).collect();
    unread.join(", ")
}

/// Atomic and durable.
fn save(directory: &Path, record: &ServedBy) -> std::io::Result<()> {
    let newer = directory.join(NEW_FILE);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&newer)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    file.sync_all()?;
    std::fs::rename(&newer, path(directory))?;
    std::fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(version: &str, formats: &[(&str, u8, u8)]) -> FormatSet {
        FormatSet {
            version: version.into(),
            formats: formats
                .iter()
                .map(|(name, oldest, newest)| {
                    let versions = Versions {
                        oldest: *oldest,
                        newest: *newest,
                    };
                    ((*name).to_owned(), versions)
                })
                .collect(),
        }
    }

    /// The promise of `docs/formats.md`: a build reads the versions of the one before.
    #[test]
    fn this_build_reads_what_the_release_before_it_writes() {
        let unread = FormatSet::of_this_build().unread_of(&FormatSet::of_previous_release());
        assert_eq!(unread, []);
    }

    #[test]
    fn what_is_newer_or_unknown_is_not_read() {
        let old = set("1", &[("journal file", 1, 2), ("object", 1, 1)]);
        let new = set(
            "2",
            &[("journal file", 2, 3), ("object", 1, 1), ("manifest", 1, 1)],
        );
        assert_eq!(new.unread_of(&old), []);
        let unread = list(&old.unread_of(&new));
        assert_eq!(unread, "journal file 3 (read: 1 to 2), manifest 1 (unknown)");
        let newest = set("3", &[("journal file", 3, 4)]);
        assert_eq!(
            list(&newest.unread_of(&old)),
            "journal file 2 (read: 3 to 4), object 1 (unknown)"
        );
    }

    #[test]
    fn a_build_that_reads_too_little_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        start(directory.path()).expect("nobody served here");
        let ours = ServedBy::load(directory.path())
            .expect("a record")
            .expect("a record");
        assert_eq!(
            (ours.served.clone(), ours.before.clone()),
            (FormatSet::of_this_build(), None)
        );

        let older = set("0.0.1", &[("object", 1, 1)]);
        let record = ServedBy {
            served: older.clone(),
            before: None,
        };
        save(directory.path(), &record).expect("saved");
        start(directory.path()).expect("an upgrade");
        let after = ServedBy::load(directory.path())
            .expect("a record")
            .expect("a record");
        assert_eq!((after.served, after.before), (ours.served, Some(older)));

        let newer = ServedBy {
            served: set("9.0.0", &[("object", 7, 8)]),
            before: None,
        };
        save(directory.path(), &newer).expect("saved");
        let said = start(directory.path()).expect_err("refused").to_string();
        assert!(
            said.contains("served by firn-edge 9.0.0") && said.contains("object 8"),
            "{said}"
        );
        assert_eq!(ServedBy::load(directory.path()).expect("a record"), Some(newer));

        std::fs::write(path(directory.path()), "torn").expect("written");
        let said = start(directory.path()).expect_err("refused").to_string();
        assert!(said.contains("or remove it"), "{said}");
    }
}
