//! The planted bugs that the histories must find; without them they prove nothing.

/// Each by its name, with what it does.
pub(super) const MUTANTS: [&str; 10] = [
    // After a failed condition, a root is committed over whatever stands there, whoever owns the volume now.
    "anchor.commit_without_fence",
    // A failed condition is taken for a fence, without looking whether it is the own commit whose reply was lost.
    "anchor.lost_reply_is_failure",
    // An unavailable table is taken for a success.
    "anchor.lost_reply_is_success",
    // The epoch is not raised at a takeover.
    "anchor.takeover_keeps_epoch",
    // The root is not retained at a takeover.
    "anchor.takeover_drops_root",
    // The epoch is not raised when the owner itself comes back.
    "anchor.restart_keeps_epoch",
    // A volume is given to whoever asks.
    "anchor.acquire_from_other",
    // Versions are not compared at a commit.
    "anchor.versions_may_repeat",
    // A writer incarnation is handed out although the reply was lost and nothing was read back.
    "anchor.writer_without_reply",
    // A new tenure begins at every start, and a new owner continues the old one's.
    "anchor.tenure_follows_nobody",
];

/// Those of whoever answers calls for others.
pub(super) const SERVICE_MUTANTS: [&str; 5] = [
    // A change is made on whatever the tuple is now, not on the one that it was decided on.
    "anchor.change_on_any_version",
    // What is remembered of a tuple is taken for what it was at another version.
    "anchor.memory_without_versions",
    // A change whose ground is gone is answered as done, whosever mark the tuple carries.
    "anchor.any_mark_is_ours",
    // A commit is not counted in the transaction that makes it.
    "anchor.commits_uncounted",
    // A call that ended in doubt is answered as done.
    "anchor.doubt_is_done",
];
