//! The rules of the protocol, each of which can be left out: what is left is a planted bug that the search must find.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A lease is used as soon as it is seen in the arena.
    UseBeforeAdoption,
    /// The root by which a lease is used was read before the lease was had.
    RootReadBeforeLease,
    /// A lease is given while changes under it are not published.
    GiveBeforePublish,
    /// Changed leaves are not compared with what they were built on.
    NoLeafCheck,
    /// After a lost race the root's version is read, and what is in memory goes on top of it.
    RebaseWithoutAdoption,
    /// Directories are renamed without the shape lease.
    RenameWithoutShape,
    /// A lost reply is looked up in the head root, not in the member's own record.
    CommitIdOnlyInRoot,
    /// A lost reply is looked up without a beat before, and the request comes later.
    DoubtWithoutFence,
    /// A gift is conditional on the arena alone, not on the giver's own record.
    GiftWithoutOwnRecord,
    /// A gift whose reply was lost is looked up without a beat before, and the request comes later.
    GiftInDoubtWithoutFence,
    /// A heartbeat counts from its acknowledgement.
    BeatCountsFromReply,
    /// Reads do not ask whether the lease lapsed.
    ReadsByLapsedLease,
    /// A break is not conditional on the version of the holder's record.
    BreakOnAnyVersion,
    /// A break does not retain the head for the holder's journal.
    BreakWithoutRetaining,
    /// The lease of an absent member is taken without a condition on its record.
    TakeOnAnyVersion,
    /// A home without a member is taken without a condition on the absence of its record.
    TakeFromNobodyOnAnyRecord,
    /// A member that comes back asks the arenas before it says that it is present.
    ArenasBeforePresence,
    /// A broken member goes on with the records that touch no lost inode, whatever they stand on.
    TaintedReplayedAlone,
    /// What a broken member lost is judged by who holds it now, not by what became of it.
    LostByArenasAlone,
    /// A broken member that lost the shape lease goes on with its renames.
    ShapeNeverLost,
    /// A broken member keeps the verifier of unstable writes.
    VerifierKept,
    /// Several inodes are pinned in the order of the call.
    PinsInAnyOrder,
    /// The cleaner's proposal is merged below inodes that others hold.
    MergeBelowUnheld,
    /// A strict read is answered by a root read that began before it.
    ReadJoinsEarlier,
}

/// Each with its name, which is what `--bug` takes.
pub const BUGS: [(Bug, &str); 24] = [
    (Bug::UseBeforeAdoption, "lease-used-before-adoption"),
    (Bug::RootReadBeforeLease, "root-read-before-lease"),
    (Bug::GiveBeforePublish, "give-before-publish"),
    (Bug::NoLeafCheck, "no-leaf-check"),
    (Bug::RebaseWithoutAdoption, "rebase-without-adoption"),
    (Bug::RenameWithoutShape, "rename-without-shape"),
    (Bug::CommitIdOnlyInRoot, "commit-id-only-in-root"),
    (Bug::DoubtWithoutFence, "doubt-without-fence"),
    (Bug::GiftWithoutOwnRecord, "gift-without-own-record"),
    (Bug::GiftInDoubtWithoutFence, "gift-in-doubt-without-fence"),
    (Bug::BeatCountsFromReply, "beat-counts-from-reply"),
    (Bug::ReadsByLapsedLease, "reads-by-lapsed-lease"),
    (Bug::BreakOnAnyVersion, "break-on-any-version"),
    (Bug::BreakWithoutRetaining, "break-without-retaining"),
    (Bug::TakeOnAnyVersion, "take-on-any-version"),
    (Bug::TakeFromNobodyOnAnyRecord, "take-from-nobody-on-any-record"),
    (Bug::ArenasBeforePresence, "arenas-before-presence"),
    (Bug::TaintedReplayedAlone, "tainted-replayed-alone"),
    (Bug::LostByArenasAlone, "lost-by-arenas-alone"),
    (Bug::ShapeNeverLost, "shape-never-lost"),
    (Bug::VerifierKept, "verifier-kept"),
    (Bug::PinsInAnyOrder, "pins-in-any-order"),
    (Bug::MergeBelowUnheld, "merge-below-unheld"),
    (Bug::ReadJoinsEarlier, "read-joins-earlier"),
];
