//! Versions of the files of a state directory, looked at before a start changes anything.
//!
//! Each file that outlives a process says in its first bytes what it is and of which version:
//!
//! ```text
//! file of                          first bytes               version     features
//! identity                         "FIRNEDGE"                byte 8      none
//! key-ring                         "FIRNKEYS"                byte 8      bytes 10, 11
//! state                            none                      byte 0      none
//! journal/<tenure>/*               "FIRNJRNL"                byte 8      bytes 10, 11
//! checkpoint/*                     "FOBJ"                    byte 8      bytes 10, 11
//! unconfirmed/*                    "FIRNSEGM"                byte 8      bytes 10, 11
//! usage/*                          "FSPL"                    byte 4      none
//! nsm/clients                      "FIRNNSM"                 byte 7      none                  an ASCII digit
//! ```
//!
//! Whoever reads a file later would refuse it too, but after the start has told the table, the bucket and other files of itself. And some
//! take what they do not know for damaged, and put it aside. So a newer version, or a required feature that this build does not know, ends
//! a start here, in one line. What has other first bytes is damaged or not ours: its reader says so. The disk cache is not looked at: what
//! it has is in the store, and what is not understood there is fetched anew.

use crate::{failure::Failure, formats::FormatSet};
use firn_format::Features;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// As far as versions and features reach.
const HEAD_BYTES: usize = 12;

/// A kind of file.
struct Kind {
    /// As messages and [`FormatSet`] name it.
    name: &'static str,
    magic: &'static [u8],
    version_at: usize,
    features_at: Option<usize>,
    /// The newest version, of what [`FormatSet`] does not list, or not up to its newest: it is no reason to judge an upgrade by.
    newest: Option<u8>,
}

impl Kind {
    const fn new(name: &'static str, magic: &'static [u8], version_at: usize) -> Self {
        Self {
            name,
            magic,
            version_at,
            features_at: None,
            newest: None,
        }
    }

    const fn with_features(self) -> Self {
        Self {
            features_at: Some(self.version_at + 2),
            ..self
        }
    }

    const fn up_to(self, newest: u8) -> Self {
        Self {
            newest: Some(newest),
            ..self
        }
    }
}

const IDENTITY: Kind = Kind::new("identity", b"FIRNEDGE", 8);
const KEY_RING: Kind = Kind::new("key ring", b"FIRNKEYS", 8).with_features();
const STATE: Kind = Kind::new("local state", b"", 0).up_to(firn_volume::LOCAL_STATE_VERSION);
const JOURNAL: Kind = Kind::new("journal file", b"FIRNJRNL", 8).with_features();
const CHECKPOINT: Kind = Kind::new("object", b"FOBJ", 8).with_features();
const SEGMENT: Kind = Kind::new("segment", b"FIRNSEGM", 8).with_features();
const SPOOL: Kind = Kind::new("usage spool", b"FSPL", 4).up_to(firn_usage::SPOOL_VERSION);
const LOCK_CLIENTS: Kind =
    Kind::new("list of lock clients", b"FIRNNSM", 7).up_to(firn_nfs::nsm::LIST_VERSION);

/// What is in the directory of a volume.
///
/// # Errors
/// [`Failure`] with the exit code of a refusal if a newer build wrote it. Nothing was changed.
pub fn volume(directory: &Path) -> Result<(), Failure> {
    let ours = FormatSet::of_this_build();
    let of = |kind, path: &str| judge(&ours, kind, &directory.join(path));
    let all_of =
        |kind, path: &str| entries(&directory.join(path)).try_for_each(|path| judge(&ours, kind, &path));
    of(&IDENTITY, "identity")?;
    of(&KEY_RING, "key-ring")?;
    of(&STATE, "state")?;
    for tenure in entries(&directory.join("journal")) {
        entries(&tenure).try_for_each(|path| judge(&ours, &JOURNAL, &path))?;
    }
    all_of(&CHECKPOINT, "checkpoint")?;
    all_of(&SEGMENT, "unconfirmed")?;
    all_of(&SPOOL, "usage")
}

/// What is in the directory of the edge itself.
///
/// # Errors
/// As of [`volume`].
pub fn edge(directory: &Path) -> Result<(), Failure> {
    judge(
        &FormatSet::of_this_build(),
        &LOCK_CLIENTS,
        &directory.join("nsm/clients"),
    )
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn judge(ours: &FormatSet, kind: &Kind, path: &Path) -> Result<(), Failure> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES as u64).read_to_end(&mut head));
    // Whoever needs the file says what is wrong with it.
    if read.is_err() || !head.starts_with(kind.magic) {
        return Ok(());
    }
    let Some(&found) = head.get(kind.version_at) else {
        return Ok(());
    };
    let listed = ours.formats.get(kind.name).map(|known| known.newest);
    let newest = kind
        .newest
        .or(listed)
        .expect("a list or the kind itself has its versions");
    if found > newest {
        let shown = |version: u8| match newest.is_ascii_digit() {
            true => char::from(version).to_string(),
            false => version.to_string(),
        };
        let (found, newest) = (shown(found), shown(newest));
        let unknown = format!(
            "has version {found}, and this build ({}) reads up to {newest}",
            ours.version
        );
        return Err(refusal(path, kind, &unknown));
    }
    let features = kind.features_at.and_then(|at| head.get(at..at + 2));
    let features = features.map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    match Features(features).unknown_required() {
        0 => Ok(()),
        unknown => {
            let unknown = format!(
                "needs features {unknown:#06x}, which this build ({}) does not know",
                ours.version
            );
            Err(refusal(path, kind, &unknown))
        }
    }
}

/// In one line: what is wrong, what is safe, what to do.
fn refusal(path: &Path, kind: &Kind, unknown: &str) -> Failure {
    Failure::usage(format!(
        "{}: this {} {unknown}: a newer firn-edge wrote it. Nothing was changed, and everything acknowledged is safe. Install that version \
         or a newer one. If none ever ran here, the file is damaged",
        path.display(),
        kind.name
    ))
}
