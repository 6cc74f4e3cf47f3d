//! Bugs to plant, one at a time: tests that find none of them prove nothing. Only built for tests.

/// A guard that is taken out.
#[cfg(any(test, feature = "planted-bugs"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// After a failed condition, commit over whatever stands there, whoever owns the volume now.
    CommitWithoutFence,
    /// Take a failed condition for a fence, without looking whether it is the own commit whose reply was lost.
    LostReplyIsFailure,
    /// Take "unavailable" for success.
    LostReplyIsSuccess,
    /// Do not raise the epoch at a takeover.
    TakeoverKeepsEpoch,
    /// Do not retain the root at a takeover.
    TakeoverDropsRoot,
    /// Do not raise the epoch when the owner itself comes back.
    RestartKeepsEpoch,
    /// Give a volume to whoever asks.
    AcquireFromOther,
    /// Do not compare versions at a commit.
    VersionsMayRepeat,
    /// Hand out a writer incarnation although the reply was lost and nothing was read back.
    WriterWithoutCondition,
    /// Start a new tenure at every start, or keep the old one for a new owner.
    TenureFollowsNobody,
}

macro_rules! guards_taken_out {
    ($($predicate:ident = $bug:ident),* $(,)?) => {
        impl crate::Anchor {
            $(
                /// Whether this bug is planted; the compiler removes the question from a production build.
                pub(crate) fn $predicate(&self) -> bool {
                    #[cfg(any(test, feature = "planted-bugs"))]
                    return self.bug(PlantedBug::$bug);
                    #[cfg(not(any(test, feature = "planted-bugs")))]
                    return false;
                }
            )*
        }
    };
}

guards_taken_out! {
    commits_without_fence = CommitWithoutFence,
    takes_failure_for_fence = LostReplyIsFailure,
    takes_silence_for_success = LostReplyIsSuccess,
    takeover_keeps_epoch = TakeoverKeepsEpoch,
    takeover_drops_root = TakeoverDropsRoot,
    restart_keeps_epoch = RestartKeepsEpoch,
    acquires_from_other = AcquireFromOther,
    versions_may_repeat = VersionsMayRepeat,
    takes_writer_unconfirmed = WriterWithoutCondition,
    tenure_follows_nobody = TenureFollowsNobody,
}
