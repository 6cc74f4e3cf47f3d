//! Writer states, by which a segment may be judged or not: what no root needs is left over, or about to be committed.
//!
//! The age of a segment says nothing; its writer's state does (see `firn_anchor::WriterTenure`). What a writer that is
//! over left behind is judged by the roots alone. Of one that may still commit, only objects that are not newer than the
//! head are: by I4 a later root takes up nothing of that age any more. Copies of old objects, which an engine writes when it
//! takes a proposal over, are as old as their originals; they are told by their segment, which was begun after the one that
//! the head's checkpoint lies in.
//!
//! **Members** of a volume that is shared by inode commit by turns on each other's roots, each into its own log, so the head says nothing of
//! most of them; their records do ([`MemberWriter`]), which were read before it. A member builds one root at a time, and one that lost to
//! another's commit is built anew, whole, in further segments. So once a member has committed, its segments up to the one that the record names are
//! committed or left over, and everything behind it may be about to be committed, however long that takes.

use crate::{CleanError, branches::Branch, limits::Limits, objects::Objects};
use firn_anchor::{MemberWriter, WriterTenure};
use firn_format::{Version, WriterId};
use std::collections::BTreeMap;

/// What may be judged of a writer's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterState {
    /// All of it: the writer is over.
    Over,
    /// What is not newer than the head, in segments begun before the writer's last checkpoint was packed.
    UpTo {
        /// The head's version.
        head: Version,
        /// The sequence of the segment that the last checkpoint of the writer was committed in.
        sequence: u64,
    },
    /// Nothing: it may be about to be committed.
    MayCommit,
    /// Nothing: this number was never given to a writer.
    NeverDrawn,
    /// Nothing, for ever: its writer did not say what it is for.
    Unknown,
}

impl WriterState {
    /// Whether a segment with this sequence, whose youngest object (if it is known) was born at `youngest`, may be judged.
    pub fn allows(self, segment: u64, youngest: Option<Version>) -> bool {
        match self {
            Self::Over => true,
            Self::UpTo { head, sequence } => {
                segment <= sequence && youngest.is_none_or(|youngest| youngest <= head)
            }
            Self::MayCommit | Self::NeverDrawn | Self::Unknown => false,
        }
    }
}

/// WriterStates of writers met in one round.
#[derive(Default)]
pub(crate) struct WriterStates {
    known: BTreeMap<WriterId, WriterState>,
    undrawn: Option<WriterId>,
}

impl WriterStates {
    /// The writer_state of a writer, given the branches of the same round.
    pub async fn of(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        branches: &[Branch],
        writer: WriterId,
    ) -> Result<WriterState, CleanError> {
        if let Some(known) = self.known.get(&writer) {
            return Ok(*known);
        }
        let writer_state = self.look(objects, limits, branches, writer).await?;
        self.known.insert(writer, writer_state);
        Ok(writer_state)
    }

    async fn look(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        branches: &[Branch],
        writer: WriterId,
    ) -> Result<WriterState, CleanError> {
        let anchor = &objects.anchor;
        let Some((registered, _)) = anchor.writer(writer).await? else {
            let undrawn = match self.undrawn {
                Some(undrawn) if writer < undrawn => undrawn,
                // One drawn since we looked has its item; this one has none.
                _ => *self.undrawn.insert(anchor.undrawn_writer().await?),
            };
            return Ok(if writer < undrawn {
                WriterState::Over
            } else {
                WriterState::NeverDrawn
            });
        };
        let branch_of = |volume| branches.iter().find(|branch| branch.volume == volume);
        // A writer that has not committed yet has no part in the head.
        let up_to_head = |branch: &Branch| {
            let root = branch.tuple.root.as_ref()?;
            (root.location.segment.writer == writer).then_some(WriterState::UpTo {
                head: root.version,
                sequence: root.location.segment.sequence,
            })
        };
        Ok(match registered.tenure {
            WriterTenure::Unknown => WriterState::Unknown,
            WriterTenure::Member { volume, member } => branch_of(volume)
                .and_then(|branch| {
                    let state = branch.members.get(&member)?.writer(writer);
                    Some(of_member(state, branch.tuple.root.as_ref()?.version))
                })
                .unwrap_or(WriterState::MayCommit),
            WriterTenure::Owner { volume, epoch } => match branch_of(volume) {
                Some(branch) if branch.tuple.epoch > epoch || branch.tuple.owner.is_none() => {
                    WriterState::Over
                }
                Some(branch) if firn_env::planted!("cleaner.judge_uncommitted") && branch.head.is_some() => {
                    WriterState::Over
                }
                Some(branch) => up_to_head(branch).unwrap_or(WriterState::MayCommit),
                None => WriterState::MayCommit,
            },
            WriterTenure::FirstRoot { volume } => match branch_of(volume) {
                Some(branch) if branch.tuple.root.is_some() => WriterState::Over,
                Some(_) | None => WriterState::MayCommit,
            },
            WriterTenure::Cleaner if registered.ended => WriterState::Over,
            WriterTenure::Cleaner => {
                let age_ms = objects.env.wall().as_millis() - registered.drawn_at_ms;
                if i128::from(age_ms) > limits.cleaner_lease.as_millis() as i128 {
                    // It can retire nothing any more; what it left is judged from the next run on.
                    anchor.end_writer(writer).await?;
                }
                WriterState::MayCommit
            }
        })
    }
}

/// What a member's record says, with the head that was read after it.
fn of_member(writer: MemberWriter, head: Version) -> WriterState {
    if firn_env::planted!("cleaner.judge_members_uncommitted") {
        return WriterState::Over;
    }
    match writer {
        MemberWriter::Over => WriterState::Over,
        MemberWriter::Commits {
            up_to: Some(sequence),
        } => WriterState::UpTo { head, sequence },
        MemberWriter::Commits { up_to: None } | MemberWriter::NotStarted => WriterState::MayCommit,
    }
}
