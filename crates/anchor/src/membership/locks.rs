//! Locks of files in a volume that many write at the same moment: what each member's clients have, in the handover record.
//!
//! ```text
//!  change   by whom                          the record afterwards
//!  keep     a member that is present         its entry: of what it covers what is left, and waits
//!  record   who holds the lease of locks     its entry: whatever it has granted
//!  break    who holds the lease of locks     without another's entry, or its locks of a file, if its count is the one that was seen
//! ```
//!
//! Each is conditional on the record as it was read, and on the caller's own record, as all that a member changes: a process that ended, or an office that was broken, records nothing later.
//! Whoever gives the lease of locks has recorded before, and been answered.

use super::Membership;
use crate::{
    Anchor, AnchorCall, AnchorError, HandoverRecord, MemberCall, MemberTuple, OwnerId, RecordedLock, Unfit,
    handover::handover_sort, retry, text,
};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MemberLocksChange {
    /// What a member still has of what was recorded, and what it waits for.
    Keep {
        /// All of them.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        locks: Vec<RecordedLock>,
    },
    /// What the clients of who decides have, instead of what was recorded.
    Record {
        /// All of them.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        locks: Vec<RecordedLock>,
    },
    /// Who decides takes away what another member has.
    Break {
        /// Whose locks: the edge of that member.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        edge: OwnerId,
        /// Its count as it was seen.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        beats: u64,
        /// Only those of this file.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        inode: Option<u64>,
    },
}

impl MemberLocksChange {
    /// Whether only who holds the lease of locks may make it.
    pub(crate) fn decides(&self) -> bool {
        match self {
            Self::Keep { .. } => false,
            Self::Record { .. } | Self::Break { .. } => true,
        }
    }

    /// The record after the change by this member.
    ///
    /// # Errors
    /// [`Unfit`]: it cannot be made of this record.
    pub(crate) fn apply(
        &self,
        record: &HandoverRecord,
        by: &MemberTuple,
        change_id: [u8; 16],
    ) -> Result<HandoverRecord, Unfit> {
        let mut changed = HandoverRecord {
            change_id,
            ..record.clone()
        };
        match self {
            Self::Keep { locks } => changed.set_locks(by.edge, &by.name, locks, false)?,
            Self::Record { locks } => changed.set_locks(by.edge, &by.name, locks, true)?,
            Self::Break { edge, beats, inode } => changed.break_locks(*edge, *beats, *inode)?,
        }
        Ok(changed)
    }
}

impl Anchor {
    /// Changes what members have of locks. The record as this left it.
    ///
    /// # Errors
    /// [`AnchorError::Contended`] also if the rule forbids it: more than the record covers or takes, or a count that has risen. [`AnchorError::MemberBroken`],
    /// [`AnchorError::MemberAway`], or what the table says, also of who records or breaks without the lease. After a transient error it may be made.
    pub async fn change_member_locks(
        &self,
        membership: &mut Membership,
        change: &MemberLocksChange,
    ) -> Result<HandoverRecord, AnchorError> {
        let volume = membership.volume;
        let (sort, change_id) = (handover_sort(volume), self.env.random_bytes());
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            self.is_there(membership)?;
            let (record, seen) = match self.handover(volume).await {
                Ok(found) => found,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if record.change_id == change_id {
                return Ok(record);
            }
            let Ok(changed) = change.apply(&record, &membership.tuple, change_id) else {
                return Err(self.gave_up(&sort, None));
            };
            let call = MemberCall::Locks {
                by: membership.seen(),
                seen,
                change: change.clone(),
                change_id,
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(_)) => return Ok(changed),
                Ok(Err(obstacle)) => {
                    self.after(membership, obstacle).await?;
                    last = None;
                }
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&sort, last))
    }
}
