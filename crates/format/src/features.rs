//! Feature flags: how a format grows without a new version.
//!
//! ```text
//! bits 0–7   required: a reader that does not know a set bit must refuse
//! bits 8–15  optional: a reader that does not know a set bit may ignore it, and keeps it when it copies
//! ```
//!
//! No bit is assigned in version 1 of any format, so writers set none.

/// The feature flags of one encoded thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Features(pub u16);

impl Features {
    /// What this build writes.
    pub const NONE: Self = Self(0);

    /// Flags a reader must know.
    const REQUIRED: u16 = 0x00ff;

    /// The required flags that this build does not know; zero means it may read on.
    pub const fn unknown_required(self) -> u16 {
        self.0 & Self::REQUIRED
    }
}
