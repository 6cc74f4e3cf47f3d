//! The leases that a call needs for its change: pinned without the state lock, and held until the change is applied.
//!
//! | planned | pinned by this call | then |
//! |---|---|---|
//! | a change | all that it needs, and valid | it is made |
//! | a change | not all | what it pinned is let go of, all is acquired in ascending order, and it is planned again |
//! | nothing, or a refusal | anything, or a root was read since it arrived | it is answered |
//! | nothing, or a refusal | nothing | the root is read and adopted, and it is planned again |
//!
//! Space in the journal is not kept meanwhile: who holds a lease may need it to publish.

use super::{ByInode, needs::needs};
use crate::{
    change::Planned,
    serving::BROKEN,
    state::{State, Stop},
    volume::Inner,
};
use firn_anchor::{AnchorError, SHAPE_LEASE};
use firn_env::Wait;
use firn_leases::{FromBroken, LastingPin, Member, MemberError, Pins};
use firn_vfs::VfsError;
use std::sync::Arc;

/// What a call has pinned, and whether what it sees is as new as its arrival.
#[derive(Default)]
pub(crate) struct Held<'a> {
    pins: Option<Pins<'a>>,
    inodes: Vec<u64>,
    is_fresh: bool,
    from_broken: FromBroken,
}

impl Held<'_> {
    /// Of what the call has pinned, the inodes whose first change since they were taken from a broken office this is. If another was broken before this one
    /// started, these are all that have no unpublished change: what was taken from that one is in nobody's memory.
    pub fn after_break(&self, state: &State) -> Vec<u64> {
        let is_first = |inode: &u64| {
            let is_pinned_inode = *inode != SHAPE_LEASE;
            let is_known = self.from_broken.inodes.contains(inode);
            is_pinned_inode && (is_known || (self.from_broken.any_may_be && !state.has_ground(*inode)))
        };
        self.inodes.iter().copied().filter(is_first).collect()
    }

    /// Whether the call holds the shape lease, which it does if it moves a directory.
    pub fn has_shape(&self) -> bool {
        self.inodes.contains(&SHAPE_LEASE)
    }

    /// What was pinned is changed.
    pub fn changed(&self) {
        if let Some(pins) = &self.pins
            && !self.from_broken.inodes.is_empty()
        {
            pins.changed(&self.from_broken.inodes);
        }
    }
}

impl Held<'_> {
    /// What is pinned, beyond the call.
    pub fn lasting(self, member: &Arc<Member>) -> Option<LastingPin> {
        self.pins.map(|pins| pins.lasting(member))
    }

    /// Whether a root was read since the call came.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh || firn_env::planted!("volume.handles_by_old_root")
    }
}

/// What a planned change waits for.
pub(crate) enum Unheld {
    /// These inodes.
    Leases(Vec<u64>),
    /// A root that is read from now on.
    Root,
}

/// Why a call did not get what it waited for.
enum NotHeld {
    Member(MemberError),
    Late,
}

const LAPSED: VfsError = VfsError::TryAgain {
    reason: "this office is not heard by the anchor, and others may have taken what it holds",
};

const WAITED: VfsError = VfsError::TryAgain {
    reason: "another office holds what is to be changed, and has not given it yet",
};

const BUSY: VfsError = VfsError::TryAgain {
    reason: "the anchor or the store does not answer",
};

impl ByInode {
    /// Whether what was planned may be done, or answered; asked under the state's lock, which `state` is.
    pub fn allow<T>(
        &self,
        state: &mut State,
        planned: &Result<Planned<T>, Stop>,
        held: &Held<'_>,
    ) -> Result<(), Result<Unheld, VfsError>> {
        let operation = match planned {
            Err(Stop::Missing(_)) => return Ok(()),
            Ok(Planned::Unchanged(_)) | Err(Stop::Refused(_)) => {
                let is_answered = held.is_fresh || firn_env::planted!("volume.refuses_by_old_root");
                return is_answered.then_some(()).ok_or(Ok(Unheld::Root));
            }
            Ok(Planned::Change { operation, .. }) => operation,
        };
        let needs = match needs(state, operation) {
            Ok(needs) => needs,
            Err(missing) => unreachable!("planned with everything in memory, yet {missing:?}"),
        };
        if !needs.iter().all(|inode| held.inodes.contains(inode)) {
            return Err(Ok(Unheld::Leases(needs)));
        }
        match &held.pins {
            Some(pins) if pins.are_valid() => {}
            Some(_) | None => return Err(Err(LAPSED)),
        }
        match state.has_numbers() {
            true => Ok(()),
            false => Err(Err(VfsError::NoSpace)),
        }
    }
}

impl Inner {
    /// Gets what a change waits for; `held` is let go of before.
    ///
    /// # Errors
    /// `TryAgain` if that takes too long; nothing was changed.
    pub(crate) async fn hold<'a>(&'a self, held: Held<'a>, wanted: Unheld) -> Result<Held<'a>, VfsError> {
        drop(held);
        self.by_inode().last_call.note(self.env.now());
        let _waiting = self.env.waits_for(Wait::Cloud);
        let mut got = self.get(&wanted).await;
        if let Err(NotHeld::Member(refusal)) = &got
            && self.is_back(refusal).await?
        {
            got = self.get(&wanted).await;
        }
        let pins = got.map_err(|why| match why {
            NotHeld::Member(error) => self.refused_by_member(&error),
            NotHeld::Late => WAITED,
        })?;
        let inodes = match wanted {
            Unheld::Leases(inodes) => inodes,
            Unheld::Root => Vec::new(),
        };
        let from_broken = pins.as_ref().map(Pins::from_broken).unwrap_or_default();
        Ok(Held {
            from_broken,
            pins,
            inodes,
            is_fresh: true,
        })
    }

    /// One try.
    async fn get<'a>(&'a self, wanted: &Unheld) -> Result<Option<Pins<'a>>, NotHeld> {
        let member = self.by_inode().member();
        let inodes = match wanted {
            Unheld::Root => {
                member.catch_up().await.map_err(NotHeld::Member)?;
                return Ok(None);
            }
            Unheld::Leases(inodes) => inodes,
        };
        let is_at_hand = inodes.iter().all(|inode| member.is_usable(*inode));
        let began = self.env.now();
        let acquired = self
            .env
            .timeout(self.config.wait_limit, member.acquire(inodes))
            .await;
        if !is_at_hand {
            self.by_inode().lease_waits.note(self.env.now().since(began));
        }
        match acquired {
            Ok(pins) => pins.map(Some).map_err(NotHeld::Member),
            Err(_) => Err(NotHeld::Late),
        }
    }

    /// Before an answer: leases lapse while a call waits.
    ///
    /// # Errors
    /// `TryAgain`; what was changed is in the journal, and nobody was told.
    pub(crate) fn still_valid(&self) -> Result<(), VfsError> {
        match &self.by_inode {
            Some(by_inode) if !by_inode.member().is_valid() => Err(LAPSED),
            Some(_) | None => Ok(()),
        }
    }

    /// What a client is told. A member that was broken, or whose leaf was changed, serves no more.
    pub(crate) fn refused_by_member(&self, error: &MemberError) -> VfsError {
        match error {
            MemberError::Lapsed | MemberError::Away => LAPSED,
            // The volume is opened again in a moment, and answers then; what this call would have changed was not.
            MemberError::Anchor(AnchorError::MemberBroken { .. }) | MemberError::LeafChanged { .. } => {
                self.end_member(error);
                BROKEN
            }
            MemberError::Anchor(_) | MemberError::Content(_) => {
                tracing::debug!(%error, "a client is told to try again");
                BUSY
            }
        }
    }
}
