//! Planted bugs: guards of the spool that can be taken out on purpose, one at a time.
//!
//! The histories in this crate must notice each of them; otherwise they prove nothing. Without the cargo feature `mutants`
//! the question `active` is the constant `false`, and the broken branch is not in the build. With it, the choice belongs
//! to the thread, which is the world of one simulation.

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// Appended records are acknowledged before the sync.
    AcknowledgeBeforeSync,
    /// Records may be sent before the sync, so that a number is given twice after a crash.
    SendBeforeSync,
    /// What is found at the start is taken for durable.
    SkipSyncAtOpen,
    /// The name of a new file is not made durable.
    SkipDirectorySync,
    /// A file is removed once its records were sent, received or not.
    RemoveBeforeReceipt,
    /// An unavailable receiver is taken for a receipt.
    DoubtIsReceipt,
    /// Each start begins a new incarnation, under which old records are sent again.
    IncarnationAnew,
    /// The last file is removed too when all was delivered, and the numbers begin anew.
    ForgetSequence,
}

impl Mutant {
    /// Every mutant of this crate.
    pub const ALL: [Self; 8] = [
        Self::AcknowledgeBeforeSync,
        Self::SendBeforeSync,
        Self::SkipSyncAtOpen,
        Self::SkipDirectorySync,
        Self::RemoveBeforeReceipt,
        Self::DoubtIsReceipt,
        Self::IncarnationAnew,
        Self::ForgetSequence,
    ];
}

#[cfg(any(test, feature = "mutants"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Plants `mutant` in every spool used on this thread from now on; `None` heals it.
#[cfg(any(test, feature = "mutants"))]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// Whether `mutant` is planted on this thread.
#[cfg(any(test, feature = "mutants"))]
pub fn active(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// Whether `mutant` is planted: never, in this build.
#[cfg(not(any(test, feature = "mutants")))]
#[inline(always)]
pub const fn active(_mutant: Mutant) -> bool {
    false
}
