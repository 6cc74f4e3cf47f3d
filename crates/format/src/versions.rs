//! Versions of the byte formats: which a build reads, and which it writes.
//!
//! Each crate that writes something which outlives a process lists it, so that an upgrade can be judged before it is made.

/// A format. A build reads its versions from `oldest` to `newest`, and writes the newest, or an older one while nothing of the newest is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatVersions {
    /// What it is called in files and messages, such as `journal file`.
    pub name: &'static str,
    /// The oldest version that is read.
    pub oldest: u8,
    /// The newest that is read, and written.
    pub newest: u8,
}

impl FormatVersions {
    /// A format by its name and versions.
    ///
    /// # Panics
    /// If the oldest is newer than the newest.
    pub const fn new(name: &'static str, oldest: u8, newest: u8) -> Self {
        assert!(oldest <= newest, "what is written is read");
        Self { name, oldest, newest }
    }
}

/// Those of this crate. Not the manifest's: a build that does not know it refuses the checkpoint that has one, and in all other volumes nobody
/// writes one.
pub const FORMATS: [FormatVersions; 6] = [
    FormatVersions::new(
        "object",
        crate::object::OLDEST_VERSION,
        crate::object::OBJECT_VERSION,
    ),
    FormatVersions::new(
        "segment",
        crate::segment::OLDEST_VERSION,
        crate::segment::SEGMENT_VERSION,
    ),
    FormatVersions::new(
        "checkpoint",
        crate::checkpoint::OLDEST_VERSION,
        crate::checkpoint::CHECKPOINT_VERSION,
    ),
    FormatVersions::new(
        "journal file",
        crate::journal::OLDEST_VERSION,
        crate::journal::JOURNAL_VERSION,
    ),
    FormatVersions::new(
        "usage map",
        crate::usage::OLDEST_VERSION,
        crate::usage::USAGE_VERSION,
    ),
    FormatVersions::new(
        "forwarding record",
        crate::forwarding::OLDEST_VERSION,
        crate::forwarding::FORWARDING_VERSION,
    ),
];
