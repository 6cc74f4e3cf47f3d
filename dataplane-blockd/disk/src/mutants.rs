//! Planted bugs: named ways to break a disk on purpose.
//!
//! Each [`Mutant`] takes out one guard on which I10 or I11 rests; the simulation must catch every one. Without the cargo
//! feature `mutants` the question [`Planted::is`] is the constant `false` and the broken branch is not compiled in.

/// One guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// Writes of an epoch are issued before the epoch before is durable.
    IssueNextEpochEarly,
    /// A flush is answered although earlier writes are not durable.
    AnswerFlushEarly,
    /// A write counts as durable when one replica has it.
    DurableOnOneReplica,
    /// A write replaces a waiting one of an earlier epoch.
    CoalesceAcrossEpochs,
    /// An unclean attach does not reconcile.
    SkipReconciliation,
    /// Reconciliation takes the first replica's version, not the newest.
    ReconcileFromFirstReplica,
    /// A write is issued before the mark of its region is durable.
    IssueBeforeMark,
    /// A read goes to the replicas although a newer version waits in memory.
    ReadPastPending,
    /// An attach does not fence the replicas, so writes of its predecessor still arrive.
    SkipFence,
    /// Roll-forward accepts entries of any incarnation: disavowed blocks come back (the paper's rule).
    AcceptAnyIncarnation,
    /// One replica without a valid copy ends roll-forward (the paper's rule).
    OneBadReplicaEndsRollForward,
    /// Which blocks are skipped depends on what has become durable so far (the paper's rule).
    SkipDependsOnRetirement,
    /// Roll-forward goes on behind a missing entry.
    AcceptGaps,
    /// What one replica had is accepted without bringing it to the others.
    SkipReReplication,
    /// Recovery goes on under the incarnation that it found.
    ReuseIncarnation,
    /// A block is reused as soon as it is overwritten.
    SkipQuarantine,
    /// Both checkpoints are written to the same place.
    CheckpointInPlace,
    /// A checkpoint is written before what it refers to is durable.
    CheckpointBeforePrefix,
    /// An entry counts as durable before the entries ahead of it are.
    RetireOutOfOrder,
    /// TRIM and WRITE_ZEROES change memory but write no log record.
    TrimWithoutRecord,
    /// A log zeroes a range and goes on reading what was written there before and is not durable yet.
    ZeroesLeaveTheOverlay,
    /// A read goes to the replicas although its block lies in a range that is being zeroed.
    ReadPastZeroes,
    /// A range is zeroed when its first region is marked.
    MarkFirstRegionOnly,
    /// A region that is written again while its mark is about to be dropped loses it.
    DropBusyMarks,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Self; 24] = [
        Self::IssueNextEpochEarly,
        Self::AnswerFlushEarly,
        Self::DurableOnOneReplica,
        Self::CoalesceAcrossEpochs,
        Self::SkipReconciliation,
        Self::ReconcileFromFirstReplica,
        Self::IssueBeforeMark,
        Self::ReadPastPending,
        Self::SkipFence,
        Self::AcceptAnyIncarnation,
        Self::OneBadReplicaEndsRollForward,
        Self::SkipDependsOnRetirement,
        Self::AcceptGaps,
        Self::SkipReReplication,
        Self::ReuseIncarnation,
        Self::SkipQuarantine,
        Self::CheckpointInPlace,
        Self::CheckpointBeforePrefix,
        Self::RetireOutOfOrder,
        Self::TrimWithoutRecord,
        Self::ZeroesLeaveTheOverlay,
        Self::ReadPastZeroes,
        Self::MarkFirstRegionOnly,
        Self::DropBusyMarks,
    ];
}

/// The bug planted in one disk, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Planted {
    /// This one.
    #[cfg(feature = "mutants")]
    pub fn new(mutant: Option<Mutant>) -> Self {
        Self { mutant }
    }

    /// Whether `mutant` is planted.
    #[inline]
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }
}
