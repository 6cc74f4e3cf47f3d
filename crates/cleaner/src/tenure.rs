//! Which segments may be judged: whether what no root needs is left over, or about to be committed.
//!
//! The age of a segment says nothing; its writer's standing does (see `firn_anchor::WriterTenure`). What a writer that is
//! over left behind is judged by the roots alone. Of one that may still commit, only objects that are not newer than the
//! head are: by I4 a later root takes up nothing of that age any more.

use crate::{
    CleanError,
    branches::Branch,
    limits::Limits,
    mutants::{Mutant, active},
    objects::Objects,
};
use firn_anchor::WriterTenure;
use firn_format::{Version, WriterId};
use std::collections::BTreeMap;

/// What may be judged of a writer's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All of it: the writer is over.
    Over,
    /// What is not newer than this.
    UpTo(Version),
    /// Nothing: it may be about to be committed.
    MayCommit,
    /// Nothing: this number was never given to a writer.
    NeverDrawn,
    /// Nothing, for ever: its writer did not say what it is for.
    Unknown,
}

impl Standing {
    /// Whether a segment whose youngest object was born at `youngest` may be judged.
    pub fn allows(self, youngest: Option<Version>) -> bool {
        match self {
            Self::Over => true,
            Self::UpTo(head) => youngest.is_none_or(|youngest| youngest <= head),
            Self::MayCommit | Self::NeverDrawn | Self::Unknown => false,
        }
    }
}

/// Standings of writers met in one round.
#[derive(Default)]
pub(crate) struct Standings {
    known: BTreeMap<WriterId, Standing>,
    undrawn: Option<WriterId>,
}

impl Standings {
    /// The standing of a writer, given the branches of the same round.
    pub async fn of(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        branches: &[Branch],
        writer: WriterId,
    ) -> Result<Standing, CleanError> {
        if let Some(known) = self.known.get(&writer) {
            return Ok(*known);
        }
        let standing = self.look(objects, limits, branches, writer).await?;
        self.known.insert(writer, standing);
        Ok(standing)
    }

    async fn look(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        branches: &[Branch],
        writer: WriterId,
    ) -> Result<Standing, CleanError> {
        let anchor = &objects.anchor;
        let Some((registered, _)) = anchor.writer(writer).await? else {
            let undrawn = match self.undrawn {
                Some(undrawn) if writer < undrawn => undrawn,
                // One drawn since we looked has its item; this one has none.
                _ => *self.undrawn.insert(anchor.undrawn_writer().await?),
            };
            return Ok(if writer < undrawn {
                Standing::Over
            } else {
                Standing::NeverDrawn
            });
        };
        let branch_of = |volume| branches.iter().find(|branch| branch.volume == volume);
        let head_of = |branch: &Branch| branch.head.as_ref().map(|head| head.trees.version);
        Ok(match registered.tenure {
            WriterTenure::Unknown => Standing::Unknown,
            WriterTenure::Owner { volume, epoch } => match branch_of(volume) {
                Some(branch) if branch.tuple.epoch > epoch || branch.tuple.owner.is_none() => Standing::Over,
                Some(branch) if active(&objects.env, Mutant::JudgeUncommitted) && branch.head.is_some() => {
                    Standing::Over
                }
                Some(branch) => head_of(branch).map_or(Standing::MayCommit, Standing::UpTo),
                None => Standing::MayCommit,
            },
            WriterTenure::FirstRoot { volume } => match branch_of(volume) {
                Some(branch) if branch.tuple.root.is_some() => Standing::Over,
                Some(_) | None => Standing::MayCommit,
            },
            WriterTenure::Cleaner if registered.ended => Standing::Over,
            WriterTenure::Cleaner => {
                let age_ms = objects.env.wall().as_millis() - registered.drawn_at_ms;
                if i128::from(age_ms) > limits.cleaner_lease.as_millis() as i128 {
                    // It can retire nothing any more; what it left is judged from the next run on.
                    anchor.end_writer(writer).await?;
                }
                Standing::MayCommit
            }
        })
    }
}
