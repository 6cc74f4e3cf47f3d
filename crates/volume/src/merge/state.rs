//! State of a merge with a cleaner's proposal, between steps.

use super::moves::Moves;
use crate::usage::ProposedUsage;
use firn_anchor::UsageChange;
use firn_env::Monotonic;
use firn_format::Checkpoint;

/// Where taking over stands; kept by the checkpointer.
#[derive(Default)]
pub(crate) struct MergeState {
    /// The newest proposal that is merged.
    pub merged: u64,
    pub(super) looked: Option<Monotonic>,
    pub(super) under_way: Option<UnderWay>,
    /// A proposal that cannot be merged.
    pub(super) refused: u64,
}

impl MergeState {
    /// After a start: everything up to proposal `merged` is in the tree.
    pub fn new(merged: u64) -> Self {
        Self {
            merged,
            ..Self::default()
        }
    }
}

impl MergeState {
    /// What the cleaner says of segments: taken over with the last step.
    pub fn proposed_usage(&mut self, step: Option<&Step>) -> Option<ProposedUsage<'_>> {
        match (&mut self.under_way, step) {
            (Some(under_way), Some(Step { next_inode: None, .. })) => Some(ProposedUsage {
                changes: &under_way.proposed,
                base: under_way.theirs.version,
                moves: &mut under_way.moves,
            }),
            (_, _) => None,
        }
    }
}

/// A proposal that is being merged.
pub(super) struct UnderWay {
    pub(super) sequence: u64,
    /// The relocated base.
    pub(super) theirs: Checkpoint,
    /// Inodes below are done.
    pub(super) next_inode: u64,
    /// What the cleaner says of the segments it touched.
    pub(super) proposed: Vec<UsageChange>,
    /// Where it put what lay in those it retired.
    pub(super) moves: Moves,
}

/// What a step found out, to be kept once it is committed.
pub(crate) struct Step {
    pub(super) sequence: u64,
    /// `None`: all is merged.
    pub(super) next_inode: Option<u64>,
}

/// Counts for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeStatus {
    /// Subtrees and leaves whose new place was taken over, since the start.
    pub adopted: u64,
    /// Nodes and inodes written anew for it.
    pub rewritten: u64,
    /// Proposals merged.
    pub merged: u64,
    /// Why the last refused proposal was refused.
    pub refused: Option<String>,
}

impl Step {
    /// What the checkpoint says to be merged.
    pub fn merged(&self, before: u64) -> u64 {
        if self.next_inode.is_none() {
            self.sequence
        } else {
            before
        }
    }
}
