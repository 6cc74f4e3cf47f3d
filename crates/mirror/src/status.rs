//! The state of a mirror, as people are told of it.

use crate::Comparison;

/// Whether copies are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorState {
    /// Whether the second store is another than the first was not found out yet.
    #[default]
    Unchecked,
    /// It is the first under another name: nothing is copied.
    Alias,
    /// Copies are made as members come.
    Copying,
    /// The second store does not take what is put: it is away, full, or read-only. Members wait, and are tried again.
    Refusing,
}

/// What was done since the start, and what waits.
#[derive(Clone, Debug, Default)]
pub struct MirrorStatus {
    /// Whether copies are made.
    pub state: MirrorState,
    /// In the second store's words.
    pub last_error: Option<String>,
    /// Members that were put into the first store and are not in the second, as far as is known.
    pub backlog_objects: u64,
    /// Bytes of them.
    pub backlog_bytes: u64,
    /// Since when the copy is not whole: when the first of them was put. Milliseconds since 1970.
    pub behind_since_ms: Option<i64>,
    /// Members copied.
    pub copied_objects: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Bytes of them that had to be read from the first store.
    pub read_back_bytes: u64,
    /// Whether a comparison is under way.
    pub is_comparing: bool,
    /// When the last comparison ended that asked for everything. Milliseconds since 1970; `None`: whether what was there before this start was
    /// copied is not known yet.
    pub compared_at_ms: Option<i64>,
    /// What it found.
    pub comparison: Comparison,
    /// How much this machine's clock was ahead of the second store's when ages were judged last, in milliseconds, if that was minutes; negative
    /// if it was behind. Deletions wait for whichever is later.
    pub clock_ahead_ms: Option<i64>,
    /// Deleted since the start.
    pub deleted_objects: u64,
}
