//! Planted bugs: guards of billing that can be taken out on purpose, one at a time.
//!
//! The histories in this crate must notice each of them; otherwise they prove nothing. Without the cargo feature `mutants`
//! the question `active` is the constant `false`, and the broken branch is not in the build. With it, the choice belongs
//! to the thread, which is the world of one simulation.

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A batch that partly overlaps what was received is taken as wholly new.
    OverlapIsNew,
    /// What was overtaken counts as received.
    ReorderedIsLost,
    /// The sender is told that its batch is received before it is.
    AcknowledgeFirst,
    /// A table that does not answer is taken for one that did.
    DoubtIsSuccess,
    /// Two records under one name are not noticed.
    NothingContradicts,
    /// A gap is never reported.
    GapsAreForgotten,
    /// Anybody may report as anybody, of anybody.
    AnySource,
    /// A chunk's marker stays, now and then, when it was added to the hours.
    MarkerStays,
    /// Quantities are cut to 32 bits.
    QuantityIs32Bits,
    /// An edge's own counts are charged.
    AdvisoryIsCharged,
    /// The fold does not check whether a month was closed meanwhile.
    CloseIsNotChecked,
    /// Late usage is added to the month it belongs to, closed or not.
    LateEditsThePast,
    /// A credit that is granted twice counts twice.
    CreditsRepeat,
    /// Each hour is priced and rounded by itself.
    RoundEachHour,
}

impl Mutant {
    /// Every mutant of this crate.
    pub const ALL: [Self; 14] = [
        Self::OverlapIsNew,
        Self::ReorderedIsLost,
        Self::AcknowledgeFirst,
        Self::DoubtIsSuccess,
        Self::NothingContradicts,
        Self::GapsAreForgotten,
        Self::AnySource,
        Self::MarkerStays,
        Self::QuantityIs32Bits,
        Self::AdvisoryIsCharged,
        Self::CloseIsNotChecked,
        Self::LateEditsThePast,
        Self::CreditsRepeat,
        Self::RoundEachHour,
    ];
}

#[cfg(any(test, feature = "mutants"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Plants `mutant` in all billing done on this thread from now on; `None` heals it.
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
