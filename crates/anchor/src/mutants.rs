//! Planted bugs: guards of the anchor that can be taken out on purpose, one at a time.
//!
//! The histories in this crate, and the simulation of whole edges, must notice each of them; otherwise they prove nothing.
//! Without the cargo feature `mutants` the question [`active`] is the constant `false`, and the broken branch is not in the
//! build. With it, the choice belongs to the thread, which is the world of one simulation.

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// After a failed condition, a root is committed over whatever stands there, whoever owns the volume now.
    CommitWithoutFence,
    /// A failed condition is taken for a fence, without looking whether it is the own commit whose reply was lost.
    LostReplyIsFailure,
    /// An unavailable table is taken for a success.
    LostReplyIsSuccess,
    /// The epoch is not raised at a takeover.
    TakeoverKeepsEpoch,
    /// The root is not retained at a takeover.
    TakeoverDropsRoot,
    /// The epoch is not raised when the owner itself comes back.
    RestartKeepsEpoch,
    /// A volume is given to whoever asks.
    AcquireFromOther,
    /// Versions are not compared at a commit.
    VersionsMayRepeat,
    /// A writer incarnation is handed out although the reply was lost and nothing was read back.
    WriterWithoutReply,
    /// A new tenure begins at every start, and a new owner continues the old one's.
    TenureFollowsNobody,
}

impl Mutant {
    /// Every mutant of this crate.
    pub const ALL: [Self; 10] = [
        Self::CommitWithoutFence,
        Self::LostReplyIsFailure,
        Self::LostReplyIsSuccess,
        Self::TakeoverKeepsEpoch,
        Self::TakeoverDropsRoot,
        Self::RestartKeepsEpoch,
        Self::AcquireFromOther,
        Self::VersionsMayRepeat,
        Self::WriterWithoutReply,
        Self::TenureFollowsNobody,
    ];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CommitWithoutFence => "commit_without_fence",
            Self::LostReplyIsFailure => "lost_reply_is_failure",
            Self::LostReplyIsSuccess => "lost_reply_is_success",
            Self::TakeoverKeepsEpoch => "takeover_keeps_epoch",
            Self::TakeoverDropsRoot => "takeover_drops_root",
            Self::RestartKeepsEpoch => "restart_keeps_epoch",
            Self::AcquireFromOther => "acquire_from_other",
            Self::VersionsMayRepeat => "versions_may_repeat",
            Self::WriterWithoutReply => "writer_without_reply",
            Self::TenureFollowsNobody => "tenure_follows_nobody",
        }
    }

    /// The mutant of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}

#[cfg(any(test, feature = "mutants"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Plants `mutant` in every anchor used on this thread from now on; `None` heals it.
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
