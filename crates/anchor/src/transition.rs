//! State transitions of a volume's tuple: pure, and the same for who asks and who answers.
//!
//! ```text
//!  change            needs                                                          the tuple afterwards
//!  take              nobody owns it, or the taker, or force                         owner, epoch + 1, new grant; a fenced
//!                                                                                   owner's root is retained
//!  commit            owner, epoch and grant are the committer's; the version rises   root, commits + 1
//!  drain             epoch and grant are the owner's                                no owner
//!  forget retained   -                                                              without the root retained for that epoch
//!  share by inode    nobody owns it, and it has a root                              epoch + 1, for all members and for ever
//! ```
//!
//! A volume that is shared by inode is neither taken nor drained, and its roots are committed by members ([`crate::MemberCall`]).

use crate::{
    MAX_RETAINED_ROOTS, MemberNumber, Owner, OwnerId, RetainedRoot, Root, VolumeTuple, text,
    tuple::check_name,
};
use firn_format::{OwnershipEpoch, Version};
use serde::{Deserialize, Serialize};

/// How far a version may rise at once. Replaying a journal gives a version to each snapshot in it, and commits once; a caller that goes
/// further is at fault, and numbers that are used up never come back.
pub const MAX_VERSION_STEP: u64 = 65_536;

/// A change of a volume's tuple.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VolumeChange {
    /// Gives the volume to an owner.
    Take {
        /// To which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        owner: OwnerId,
        /// What people call it.
        owner_name: String,
        /// Whether it is taken from another owner, too.
        force: bool,
        /// Random, drawn for this ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// By the taker's wall clock, milliseconds since 1970.
        taken_at_ms: i64,
    },
    /// Replaces the root.
    Commit {
        /// That of the ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// The new root.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        root: Root,
    },
    /// Gives the volume up.
    Drain {
        /// Of the ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        epoch: OwnershipEpoch,
        /// Of the ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// By the owner's wall clock, milliseconds since 1970.
        drained_at_ms: i64,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
    /// Has many write it from now on, each what it holds by a lease of an inode.
    ShareByInode {
        /// Random, in the place of an ownership's; the change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// By the caller's wall clock, milliseconds since 1970.
        shared_at_ms: i64,
    },
    /// Forgets a root that a takeover retained.
    ForgetRetained {
        /// The epoch that the takeover ended.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        fenced: OwnershipEpoch,
        /// The change's mark.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        change_id: [u8; 16],
    },
}

/// Why a change cannot be made on this tuple: a fault of who asked, who saw the same tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub(crate) &'static str);

impl VolumeChange {
    /// What the tuple is recognised by after the change.
    pub fn change_id(&self) -> [u8; 16] {
        match self {
            Self::Take { grant, .. } | Self::ShareByInode { grant, .. } => *grant,
            Self::Commit { root, .. } => root.commit_id,
            Self::Drain { change_id, .. } | Self::ForgetRetained { change_id, .. } => *change_id,
        }
    }

    /// The tuple after the change.
    ///
    /// # Errors
    /// [`Unfit`] if it cannot be made on this one.
    pub fn apply(&self, tuple: &VolumeTuple) -> Result<VolumeTuple, Unfit> {
        let is_members = tuple.by_inode && !matches!(self, Self::ForgetRetained { .. });
        if is_members && !firn_env::planted!("anchor.owner_of_members_volume") {
            return Err(Unfit("the volume is shared by inode, and its members commit"));
        }
        let mut changed = match self {
            Self::Take {
                owner,
                owner_name,
                force,
                grant,
                taken_at_ms,
            } => take(tuple, *owner, owner_name, *force, *grant, *taken_at_ms)?,
            Self::Commit { grant, root } => commit(tuple, *grant, root)?,
            Self::Drain {
                epoch,
                grant,
                drained_at_ms,
                ..
            } => {
                if (tuple.epoch, tuple.grant) != (*epoch, *grant) {
                    return Err(Unfit("the volume is drained under another ownership"));
                }
                VolumeTuple {
                    owner: None,
                    drained: true,
                    taken_at_ms: *drained_at_ms,
                    ..tuple.clone()
                }
            }
            Self::ShareByInode { grant, shared_at_ms } => share(tuple, *grant, *shared_at_ms)?,
            Self::ForgetRetained { fenced, .. } => {
                let mut changed = tuple.clone();
                changed
                    .retained
                    .retain(|retained| retained.member.is_some() || retained.fenced_epoch != *fenced);
                changed
            }
        };
        changed.change_id = self.change_id();
        Ok(changed)
    }
}

fn take(
    tuple: &VolumeTuple,
    owner: OwnerId,
    name: &str,
    force: bool,
    grant: [u8; 16],
    now_ms: i64,
) -> Result<VolumeTuple, Unfit> {
    check_name(name).map_err(|_| Unfit("the owner's name is no name"))?;
    if grant == tuple.grant {
        return Err(Unfit("the grant is the present one's"));
    }
    let fenced = tuple.owner.as_ref().filter(|present| present.id != owner);
    if fenced.is_some() && !force && !firn_env::planted!("anchor.acquire_from_other") {
        return Err(Unfit("another owns the volume, and it is not taken by force"));
    }
    let epoch = tuple
        .epoch
        .0
        .checked_add(1)
        .ok_or(Unfit("the epoch is at its end"))?;
    let same_tenure = tuple.tenure_owner == owner && tuple.tenure.0 > 0;
    let mut taken = VolumeTuple {
        epoch: OwnershipEpoch(epoch),
        tenure: if same_tenure != firn_env::planted!("anchor.tenure_follows_nobody") {
            tuple.tenure
        } else {
            OwnershipEpoch(epoch)
        },
        tenure_owner: owner,
        grant,
        owner: Some(Owner {
            id: owner,
            name: name.to_owned(),
        }),
        taken_at_ms: now_ms,
        drained: false,
        ..tuple.clone()
    };
    if let (Some(_), true, Some(root)) = (fenced, force, &tuple.root)
        && !firn_env::planted!("anchor.takeover_drops_root")
    {
        if taken.retained.len() >= MAX_RETAINED_ROOTS {
            return Err(Unfit("the most roots that there can be are retained already"));
        }
        taken.retained.push(RetainedRoot {
            fenced_epoch: tuple.epoch,
            tenure: tuple.tenure,
            retained_at_ms: now_ms,
            root: root.clone(),
            member: None,
        });
    }
    let restarts = !force && tuple.owner.is_some() && firn_env::planted!("anchor.restart_keeps_epoch");
    if restarts || (force && firn_env::planted!("anchor.takeover_keeps_epoch")) {
        taken.epoch = tuple.epoch;
    }
    Ok(taken)
}

fn commit(tuple: &VolumeTuple, grant: [u8; 16], root: &Root) -> Result<VolumeTuple, Unfit> {
    check_name(&root.owner_name).map_err(|_| Unfit("the owner's name is no name"))?;
    let is_owner = tuple.owner.as_ref().is_some_and(|owner| owner.id == root.owner);
    let is_held = is_owner && tuple.grant == grant && tuple.epoch == root.epoch;
    if !is_held && !firn_env::planted!("anchor.commit_without_fence") {
        return Err(Unfit(
            "the root names another owner, epoch or grant than the volume's",
        ));
    }
    if !follows(tuple.root.as_ref(), root) && !firn_env::planted!("anchor.versions_may_repeat") {
        return Err(Unfit("versions rise, by 65,536 at most"));
    }
    Ok(VolumeTuple {
        root: Some(root.clone()),
        commits: tuple
            .commits
            .saturating_add(u64::from(!firn_env::planted!("anchor.commits_uncounted"))),
        ..tuple.clone()
    })
}

fn share(tuple: &VolumeTuple, grant: [u8; 16], now_ms: i64) -> Result<VolumeTuple, Unfit> {
    if tuple.owner.is_some() {
        return Err(Unfit(
            "an edge owns the volume: it is drained before it is shared by inode",
        ));
    }
    let Some(root) = &tuple.root else {
        return Err(Unfit("the volume has no root yet: its first owner makes it"));
    };
    if root.version > Version(1) && !firn_env::planted!("anchor.shares_what_was_written") {
        return Err(Unfit(
            "the volume was written by an owner: a volume is shared by inode when it is made",
        ));
    }
    if grant == tuple.grant {
        return Err(Unfit("the grant is the present one's"));
    }
    let epoch = tuple
        .epoch
        .0
        .checked_add(1)
        .map(OwnershipEpoch)
        .ok_or(Unfit("the epoch is at its end"))?;
    // A tenure of nobody: a journal that is still somewhere is salvaged, never replayed.
    Ok(VolumeTuple {
        epoch,
        tenure: epoch,
        tenure_owner: OwnerId([0; 16]),
        grant,
        taken_at_ms: now_ms,
        by_inode: true,
        ..tuple.clone()
    })
}

impl VolumeTuple {
    /// The tuple of a volume that is shared by inode, after a member's commit.
    ///
    /// # Errors
    /// [`Unfit`]: the root does not come next, or is not of this edge under the volume's epoch.
    pub(crate) fn committed_by_member(&self, root: &Root, edge: OwnerId) -> Result<Self, Unfit> {
        check_name(&root.owner_name).map_err(|_| Unfit("the member's name is no name"))?;
        self.is_shared()?;
        let is_members = root.owner == edge && root.epoch == self.epoch;
        if !is_members && !firn_env::planted!("anchor.commit_of_anothers_root") {
            return Err(Unfit(
                "the root names another edge than the member's, or another epoch",
            ));
        }
        if !follows(self.root.as_ref(), root) && !firn_env::planted!("anchor.versions_may_repeat") {
            return Err(Unfit("versions rise, by 65,536 at most"));
        }
        Ok(Self {
            root: Some(root.clone()),
            change_id: root.commit_id,
            commits: self
                .commits
                .saturating_add(u64::from(!firn_env::planted!("anchor.commits_uncounted"))),
            ..self.clone()
        })
    }

    /// The same after the break of a member, with the head kept for its journal; one that is kept for it already goes on being kept, from
    /// this break on.
    ///
    /// # Errors
    /// [`Unfit`]: there is no root, or the most are retained already.
    pub(crate) fn retaining_for(
        &self,
        member: MemberNumber,
        retained_at_ms: i64,
        change_id: [u8; 16],
    ) -> Result<Self, Unfit> {
        self.is_shared()?;
        let mut changed = Self {
            change_id,
            ..self.clone()
        };
        match self.retained_for_member(member) {
            Some(_) if firn_env::planted!("anchor.retained_since_the_first_break") => {}
            // Its journal still stands on that root. But the member was there since, so its time begins anew, behind all others.
            Some(retained) => {
                let again = RetainedRoot {
                    retained_at_ms: retained_at_ms.max(retained.retained_at_ms),
                    ..retained.clone()
                };
                let is_other = |retained: &RetainedRoot| retained.member != Some(member);
                changed.retained.retain(is_other);
                changed.retained.push(again);
            }
            None if firn_env::planted!("anchor.break_retains_nothing") => {}
            None => {
                let root = self.root.clone().ok_or(Unfit("the volume has no root"))?;
                if self.retained.len() >= MAX_RETAINED_ROOTS {
                    return Err(Unfit("the most roots that there can be are retained already"));
                }
                changed.retained.push(RetainedRoot {
                    fenced_epoch: self.epoch,
                    tenure: self.tenure,
                    retained_at_ms,
                    root,
                    member: Some(member),
                });
            }
        }
        Ok(changed)
    }

    /// The same once the member's journal was judged.
    ///
    /// # Errors
    /// [`Unfit`]: it is another kind of volume.
    pub(crate) fn forgetting_for(&self, member: MemberNumber, change_id: [u8; 16]) -> Result<Self, Unfit> {
        self.is_shared()?;
        let mut changed = Self {
            change_id,
            ..self.clone()
        };
        changed
            .retained
            .retain(|retained| retained.member != Some(member));
        Ok(changed)
    }

    fn is_shared(&self) -> Result<(), Unfit> {
        match self.by_inode {
            true => Ok(()),
            false => Err(Unfit("the volume is not shared by inode")),
        }
    }
}

/// Whether a root comes after the current one. Of the first one any version does: a clone goes on from where it branched off.
pub(crate) fn follows(current: Option<&Root>, next: &Root) -> bool {
    current.is_none_or(|current| {
        let step = next.version.0.checked_sub(current.version.0);
        step.is_some_and(|step| (1..=MAX_VERSION_STEP).contains(&step))
    })
}
