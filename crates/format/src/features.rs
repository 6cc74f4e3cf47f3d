//! Feature flags: how a format grows without a new version.
//!
//! ```text
//! bits 0–7   required: a reader that does not know a set bit must refuse
//! bits 8–15  optional: a reader that does not know a set bit may ignore it, and keeps it when it copies
//! ```
//!
//! Two bits are assigned, of a checkpoint's plain section: 0 ([`Features::MANIFEST`]) and 1 ([`Features::GATHERING`]). In all else writers set
//! none.

/// The feature flags of one encoded thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Features(pub u16);

impl Features {
    /// What this build writes where no bit is assigned.
    pub const NONE: Self = Self(0);

    /// Of a checkpoint: it has a manifest. Required, since the manifest's tree hangs on it: who does not know it would take the tree for
    /// garbage.
    pub const MANIFEST: Self = Self(1);

    /// Of a checkpoint with a manifest: it does not have all segments yet. Required, since who does not know it would take it for whole. Only with
    /// [`Features::MANIFEST`].
    pub const GATHERING: Self = Self(2);

    /// These flags and those.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags that are not among `known`.
    pub const fn without(self, known: Self) -> Self {
        Self(self.0 & !known.0)
    }

    /// Flags a reader must know.
    const REQUIRED: u16 = 0x00ff;

    /// The required flags that this build does not know; zero means it may read on.
    pub const fn unknown_required(self) -> u16 {
        self.0 & Self::REQUIRED
    }
}
