//! A member's commit: the volume's root and the commit's id in the own record, in one transaction.

use super::{MemberEntry, Membership, member_sort};
use crate::{
    Anchor, AnchorCall, AnchorError, MemberCall, MemberChange, MemberCommit, Obstacle, Root, SeenMember,
    TupleVersion,
    anchor::{nonsense, volume_sort},
    retry,
};

/// What became of a member's commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberCommitEnd {
    /// It is the root, or was it.
    Committed,
    /// Others committed meanwhile: their root is to be adopted, and the own changes put on it.
    RootMoved,
}

impl Anchor {
    /// Replaces the root that `seen` is the version of. One transaction: the root, and this commit's id in the own record.
    ///
    /// # Errors
    /// [`AnchorError::MemberBroken`]: it is not committed and never will be. [In doubt](TableError::is_in_doubt): ask
    /// [`Anchor::settle_member_commit`] before anything else is committed.
    pub async fn commit_member(
        &self,
        membership: &mut Membership,
        seen: TupleVersion,
        root: &Root,
        sequence: u64,
    ) -> Result<MemberCommitEnd, AnchorError> {
        let volume = membership.volume;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let sent_at = self.env.now();
            let call = MemberCall::Commit {
                by: membership.seen(),
                incarnation: membership.incarnation,
                seen,
                root: root.clone(),
                sequence,
            };
            match self.change(AnchorCall::Members { volume, call }).await? {
                Ok(Some(version)) => {
                    membership.version = version;
                    let commit = MemberCommit {
                        commit_id: root.commit_id,
                        version: root.version,
                        sequence,
                    };
                    let change = MemberChange::Commit {
                        incarnation: membership.incarnation,
                        commit,
                    };
                    // What the table has may be newer, if this was sent twice: then the next call looks.
                    if let Ok(record) = change.apply(&membership.tuple.record) {
                        membership.tuple.record = record;
                        membership.tuple.change_id = root.commit_id;
                    }
                    membership.heard_at = sent_at;
                    return Ok(MemberCommitEnd::Committed);
                }
                Ok(None) => return Err(nonsense().into()),
                Err(Obstacle::Member) => {
                    self.look_at(membership).await?;
                    if membership.tuple.record.records_commit(&root.commit_id) {
                        return Ok(MemberCommitEnd::Committed);
                    }
                    if membership.tuple.record.incarnation != Some(membership.incarnation) {
                        return Err(membership.broken());
                    }
                }
                Err(Obstacle::Principal) => return Err(membership.others()),
                Err(Obstacle::Tuple | Obstacle::Name | Obstacle::Holder) => {
                    return Ok(MemberCommitEnd::RootMoved);
                }
            }
        }
        Err(self.gave_up(&member_sort(volume, membership.member), None))
    }

    /// Whether a commit in doubt happened: after a beat, so that it will not happen later. `false`: the root is read, by a read that begins
    /// now, and the changes are committed anew.
    ///
    /// # Errors
    /// [`AnchorError::MemberBroken`]: what was retained by the break says whether it happened. Otherwise as [`Anchor::beat_member`].
    pub async fn settle_member_commit(
        &self,
        membership: &mut Membership,
        commit_id: [u8; 16],
    ) -> Result<bool, AnchorError> {
        if !firn_env::planted!("anchor.doubt_without_beat") {
            self.beat_member(membership).await?;
        }
        self.look_at(membership).await?;
        if membership.tuple.record.incarnation != Some(membership.incarnation) {
            return Err(membership.broken());
        }
        Ok(membership.tuple.record.records_commit(&commit_id))
    }

    /// Gives up the root that is retained for a member that was broken and has not come back, as `broken` was read: what its journal has and no root does can be judged
    /// no more, and its record says since when. A place for another is free then. `false`: it has come back meanwhile, or the root is gone already.
    ///
    /// # Errors
    /// As [`Anchor::beat_member`].
    pub async fn give_up(
        &self,
        membership: &mut Membership,
        broken: &MemberEntry,
    ) -> Result<bool, AnchorError> {
        let volume = membership.volume;
        let change_id = self.env.random_bytes();
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (tuple, seen) = match self.load(volume).await {
                Ok(loaded) => loaded,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if tuple.change_id == change_id {
                return Ok(true);
            }
            let is_back = broken.tuple.record.incarnation.is_some();
            if is_back || tuple.retained_for_member(broken.member).is_none() {
                return Ok(false);
            }
            let call = MemberCall::GiveUp {
                by: membership.seen(),
                broken: SeenMember {
                    member: broken.member,
                    seen: broken.version,
                },
                seen,
                given_up_at_ms: self.env.wall().as_millis(),
                change_id,
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(_)) => return Ok(true),
                Ok(Err(Obstacle::Holder)) => return Ok(false),
                Ok(Err(obstacle)) => {
                    self.after(membership, obstacle).await?;
                    last = None;
                }
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&volume_sort(volume), last))
    }

    /// Forgets the root that a break retained for this member, once its journal is judged. One that is not there is fine.
    ///
    /// # Errors
    /// As [`Anchor::beat_member`].
    pub async fn forget_retained_for(&self, membership: &mut Membership) -> Result<(), AnchorError> {
        let volume = membership.volume;
        let change_id = self.env.random_bytes();
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (tuple, seen) = match self.load(volume).await {
                Ok(loaded) => loaded,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if tuple.retained_for_member(membership.member).is_none() {
                return Ok(());
            }
            let call = MemberCall::ForgetRetained {
                by: membership.seen(),
                seen,
                change_id,
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(obstacle)) => {
                    self.after(membership, obstacle).await?;
                    last = None;
                }
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&volume_sort(volume), last))
    }
}
