//! Ownership of a volume: who may replace its root.
//!
//! ```text
//!  state \ event    acquire by X     takeover by X        drain by owner   commit by owner   commit by anybody else
//!  unowned          X, epoch + 1     X, epoch + 1         -                -                 fenced
//!  owned by X       X, epoch + 1     X, epoch + 1         unowned          new root          fenced
//!  owned by Y       refused          X, epoch + 1, kept   unowned          new root          fenced
//! ```
//!
//! ("kept": the root found there is retained for the fenced owner's journal.) No event is a time: ownership ends by drain or
//! takeover only. Every giving of ownership raises the epoch and draws a new grant, the owner's own restart included, so an
//! epoch belongs to one incarnation of one owner and what a dead or cloned one still sends is refused.
//!
//! **The fence** is the version of the tuple: every commit is conditional on the version that the ownership saw last, and
//! taking the volume away changes it. So a writer that was stalled for an hour between deciding and sending fails, wherever
//! its request was held up.
//!
//! **A lost reply** leaves a commit in doubt. It is read back: if the root (or, after a takeover, a retained root) carries
//! our commit id, it happened. If the tuple is unchanged, the same put under the same condition is sent again; of the two at
//! most one can succeed, and both say the same. If the doubt outlasts the tries, the ownership remembers the root and takes
//! no other one before it is resolved.

use crate::{
    Anchor, AnchorCall, AnchorError, Fenced, MAX_RETAINED_ROOTS, Owner, OwnerId, RetainedRoot, Root,
    TupleVersion, VolumeChange, VolumeTuple,
    anchor::{nonsense, volume_sort},
    retry,
    transition::follows,
    tuple::check_name,
};
use firn_format::{Location, OwnershipEpoch, Uid, Version, VolumeId};
use firn_table::TableError;

/// The right to commit roots of a volume. Not `Clone`: there is one committer.
#[derive(Debug)]
pub struct Ownership {
    volume: VolumeId,
    owner: Owner,
    tuple: VolumeTuple,
    version: TupleVersion,
    epoch: OwnershipEpoch,
    grant: [u8; 16],
    unresolved: Option<Root>,
}

/// What a takeover found and made.
#[derive(Debug)]
pub struct Takeover {
    /// The new ownership.
    pub ownership: Ownership,
    /// Who was fenced; `None`: nobody owned the volume.
    pub previous_owner: Option<Owner>,
    /// The last commit of anybody, milliseconds since 1970: what was written after it is not in the volume.
    pub last_committed_ms: Option<i64>,
    /// The root kept for the fenced owner's journal.
    pub retained: Option<RetainedRoot>,
}

impl Ownership {
    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Who owns it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The epoch to commit under; no other ownership ever has it.
    pub fn epoch(&self) -> OwnershipEpoch {
        self.epoch
    }

    /// Since which epoch this owner has held the volume with nobody in between. An edge writes it to its disk before it
    /// acknowledges anything; a journal found at start is replayed into the volume only if this is still the same.
    pub fn tenure(&self) -> OwnershipEpoch {
        self.tuple.tenure
    }

    /// The tuple as this ownership last saw it.
    pub fn tuple(&self) -> &VolumeTuple {
        &self.tuple
    }

    /// The newest root known to be committed.
    pub fn root(&self) -> Option<&Root> {
        self.tuple.root.as_ref()
    }

    /// The root whose commit ended as unavailable; it must be committed again before any other.
    pub fn unresolved(&self) -> Option<&Root> {
        self.unresolved.as_ref()
    }

    /// A root of this owner under this epoch.
    pub fn next_root(
        &self,
        uid: Uid,
        location: Location,
        version: Version,
        commit_id: [u8; 16],
        committed_at_ms: i64,
    ) -> Root {
        Root {
            uid,
            location,
            version,
            epoch: self.epoch,
            owner: self.owner.id,
            owner_name: self.owner.name.clone(),
            commit_id,
            committed_at_ms,
            signature: None,
        }
    }

    /// Random, drawn for this ownership; no other has it.
    pub fn grant(&self) -> [u8; 16] {
        self.grant
    }

    fn is_held_in(&self, tuple: &VolumeTuple) -> bool {
        tuple.epoch == self.epoch
            && tuple.grant == self.grant
            && tuple
                .owner
                .as_ref()
                .is_some_and(|owner| owner.id == self.owner.id)
    }

    fn fenced_by(&self, tuple: &VolumeTuple) -> Fenced {
        Fenced {
            volume: self.volume,
            our_epoch: self.epoch,
            epoch: tuple.epoch,
            owner: tuple.owner.clone(),
            taken_at_ms: tuple.taken_at_ms,
        }
    }

    /// Whether the ownership still stands in `tuple`, with the root that we left.
    fn stands_in(&self, tuple: &VolumeTuple) -> Result<(), AnchorError> {
        if !self.is_held_in(tuple) {
            return Err(self.fenced_by(tuple).into());
        }
        if tuple.root != self.tuple.root {
            return Err(AnchorError::Diverged {
                volume: self.volume,
                epoch: self.epoch,
                expected: self.tuple.root.as_ref().map(|root| root.version),
                found: tuple.root.as_ref().map(|root| root.version),
            });
        }
        Ok(())
    }
}

impl Anchor {
    /// Takes a volume that nobody owns, or that is ours already (after a restart). What an earlier incarnation of ours may
    /// still send is fenced.
    ///
    /// # Errors
    /// [`AnchorError::OwnedByOther`]; otherwise as [`Anchor::load`], or [`AnchorError::Contended`]. After a transient error
    /// the volume may be ours: call again.
    pub async fn acquire(
        &self,
        volume: VolumeId,
        owner: OwnerId,
        name: &str,
    ) -> Result<Ownership, AnchorError> {
        check_name(name)?;
        let owner = Owner {
            id: owner,
            name: name.to_owned(),
        };
        let grant = self.env.random_bytes();
        let (tuple, version) = self
            .change_volume(volume, grant, |tuple| {
                if let Some(other) = &tuple.owner
                    && other.id != owner.id
                    && !firn_env::planted!("anchor.acquire_from_other")
                {
                    return Err(AnchorError::OwnedByOther {
                        volume,
                        owner: other.clone(),
                        since_ms: tuple.taken_at_ms,
                        last_committed_ms: tuple.last_committed_ms(),
                    });
                }
                self.take(volume, tuple, &owner, grant, false)
            })
            .await?;
        Ok(self.held(volume, owner, tuple, version))
    }

    /// [`Anchor::takeover`] of the ownership with this grant and no other, whose owner was seen to be gone.
    ///
    /// # Errors
    /// As [`Anchor::takeover`]; [`AnchorError::Contended`] also if the volume was given to anybody since.
    pub async fn takeover_from(
        &self,
        volume: VolumeId,
        owner: OwnerId,
        name: &str,
        gone: [u8; 16],
    ) -> Result<Takeover, AnchorError> {
        self.take_over(volume, owner, name, Some(gone)).await
    }

    /// Takes a volume whoever owns it. The fenced owner can never commit again; the root found here is retained, so that its
    /// journal can be salvaged. (Our own volume is taken as by [`Anchor::acquire`]: our journal still continues it.)
    ///
    /// # Errors
    /// [`AnchorError::TooManyRetained`]; [`AnchorError::Contended`] if ownership changed hands meanwhile (look again who has
    /// it); otherwise as [`Anchor::load`]. After a transient error the volume may be ours: call again.
    pub async fn takeover(
        &self,
        volume: VolumeId,
        owner: OwnerId,
        name: &str,
    ) -> Result<Takeover, AnchorError> {
        self.take_over(volume, owner, name, None).await
    }

    async fn take_over(
        &self,
        volume: VolumeId,
        owner: OwnerId,
        name: &str,
        gone: Option<[u8; 16]>,
    ) -> Result<Takeover, AnchorError> {
        check_name(name)?;
        let owner = Owner {
            id: owner,
            name: name.to_owned(),
        };
        let grant = self.env.random_bytes();
        let mut taken_from: Option<VolumeTuple> = None;
        let (tuple, version) = self
            .change_volume(volume, grant, |tuple| {
                let expected = taken_from.as_ref().map(|first| first.grant).or(gone);
                if expected.is_some_and(|expected| expected != tuple.grant) {
                    // The operator decided on what stood there before; a newer owner is another decision.
                    return Err(self.gave_up(&volume_sort(volume), None));
                }
                let retains =
                    tuple.root.is_some() && tuple.owner.as_ref().is_some_and(|fenced| fenced.id != owner.id);
                if retains && tuple.retained.len() >= MAX_RETAINED_ROOTS {
                    return Err(AnchorError::TooManyRetained {
                        volume,
                        retained: tuple.retained.len(),
                    });
                }
                taken_from = Some(tuple.clone());
                self.take(volume, tuple, &owner, grant, true)
            })
            .await?;
        // Set by the last decision, which is the one that was written.
        let previous_owner = taken_from.and_then(|tuple| tuple.owner);
        let retained = match &previous_owner {
            Some(fenced) if fenced.id != owner.id && tuple.root.is_some() => tuple.retained.last().cloned(),
            _ => None,
        };
        Ok(Takeover {
            previous_owner,
            last_committed_ms: tuple.last_committed_ms(),
            retained,
            ownership: self.held(volume, owner, tuple, version),
        })
    }

    /// Gives the volume up. Everything must be committed; afterwards this ownership is over.
    ///
    /// # Errors
    /// [`AnchorError::Unresolved`] if a commit is in doubt, [`AnchorError::Fenced`], [`AnchorError::Diverged`], or as
    /// [`Anchor::load`]. After a transient error the volume may be given up: call again.
    pub async fn drain(&self, ownership: &mut Ownership) -> Result<(), AnchorError> {
        if let Some(root) = &ownership.unresolved {
            return Err(AnchorError::Unresolved {
                volume: ownership.volume,
                version: root.version,
            });
        }
        let change_id = self.env.random_bytes();
        let now_ms = self.env.wall().as_millis();
        let volume = ownership.volume;
        let held = &*ownership;
        let (tuple, version) = self
            .change_volume(volume, change_id, |tuple| {
                // An earlier call whose reply never came may have done it; then it is done once more.
                let drained_by_us =
                    tuple.epoch == held.epoch && tuple.grant == held.grant && tuple.owner.is_none();
                if !drained_by_us {
                    held.stands_in(tuple)?;
                }
                Ok(VolumeChange::Drain {
                    epoch: held.epoch,
                    grant: held.grant,
                    drained_at_ms: now_ms,
                    change_id,
                })
            })
            .await?;
        ownership.tuple = tuple;
        ownership.version = version;
        Ok(())
    }

    /// Replaces the root. On success it is the volume's root, or was it when a takeover came (which the next call tells).
    ///
    /// # Errors
    /// [`AnchorError::Fenced`]: the ownership is over, and this root is not committed and never will be.
    /// [`AnchorError::Diverged`]: the table was tampered with. [`AnchorError::UnfitRoot`]: nothing was tried. After a
    /// transient error, commit the same root again. After a refusal of the table nothing is in doubt that was not before: any root may be
    /// committed.
    pub async fn commit(&self, ownership: &mut Ownership, root: Root) -> Result<(), AnchorError> {
        if !self.examine(ownership, &root)? {
            return Ok(());
        }
        let mut last = None;
        // Sent by an earlier call, or another try of this one, whose answer never came.
        let mut in_doubt = ownership.unresolved.is_some();
        let mut read_back = in_doubt;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            if read_back {
                match self.load(ownership.volume).await {
                    Ok((tuple, version)) => {
                        if self.resolve(ownership, &root, tuple, version)? {
                            return Ok(());
                        }
                    }
                    Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                        last = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let change = VolumeChange::Commit {
                grant: ownership.grant,
                root: root.clone(),
            };
            let changed = change
                .apply(&ownership.tuple)
                .map_err(|why| unfit(ownership, &root, why.0))?;
            // Set before the request leaves: if this future is dropped meanwhile, the doubt stays known.
            ownership.unresolved = Some(root.clone());
            match self.put(ownership.volume, change, ownership.version).await {
                Ok(Some(version)) => {
                    ownership.tuple = changed;
                    ownership.version = version;
                    ownership.unresolved = None;
                    return Ok(());
                }
                Ok(None) => {
                    if firn_env::planted!("anchor.lost_reply_is_failure") {
                        return Err(ownership.fenced_by(&ownership.tuple).into());
                    }
                    last = None;
                }
                Err(error) if error.is_in_doubt() => {
                    if firn_env::planted!("anchor.lost_reply_is_success") {
                        ownership.unresolved = None;
                        return Ok(());
                    }
                    in_doubt = true;
                    last = Some(error);
                }
                Err(error) => {
                    if !in_doubt {
                        ownership.unresolved = None;
                    }
                    return Err(error.into());
                }
            }
            read_back = true;
        }
        Err(self.gave_up(&volume_sort(ownership.volume), last))
    }

    /// Looks whether the ownership still stands. One read; nothing is kept alive by it.
    ///
    /// # Errors
    /// [`AnchorError::Fenced`], or as [`Anchor::load`].
    pub async fn check(&self, ownership: &Ownership) -> Result<(), AnchorError> {
        let (tuple, _) = self.load(ownership.volume).await?;
        if ownership.is_held_in(&tuple) {
            Ok(())
        } else {
            Err(ownership.fenced_by(&tuple).into())
        }
    }

    /// Forgets the root retained for a fenced ownership, once its journal was salvaged or given up. One that is not there is
    /// fine.
    ///
    /// # Errors
    /// As [`Anchor::load`], or [`AnchorError::Contended`].
    pub async fn forget_retained(&self, volume: VolumeId, fenced: OwnershipEpoch) -> Result<(), AnchorError> {
        let change_id = self.env.random_bytes();
        let change = VolumeChange::ForgetRetained { fenced, change_id };
        self.change_volume(volume, change_id, |_| Ok(change.clone()))
            .await?;
        Ok(())
    }

    /// Whether the commit has to be tried: `false` if this very root is committed already.
    fn examine(&self, ownership: &Ownership, root: &Root) -> Result<bool, AnchorError> {
        if ownership.root() == Some(root) {
            return Ok(false);
        }
        if !ownership.is_held_in(&ownership.tuple) {
            return Err(ownership.fenced_by(&ownership.tuple).into());
        }
        if root.epoch != ownership.epoch || root.owner != ownership.owner.id {
            return Err(unfit(ownership, root, "it names another owner or epoch"));
        }
        check_name(&root.owner_name)?;
        if let Some(unresolved) = &ownership.unresolved
            && unresolved != root
        {
            return Err(AnchorError::Unresolved {
                volume: ownership.volume,
                version: unresolved.version,
            });
        }
        if !follows(ownership.root(), root) && !firn_env::planted!("anchor.versions_may_repeat") {
            return Err(unfit(ownership, root, "versions rise, by 65,536 at most"));
        }
        Ok(true)
    }

    /// Settles a commit in doubt by what the table holds: `true` if it happened, `false` if it has to be sent again.
    fn resolve(
        &self,
        ownership: &mut Ownership,
        root: &Root,
        tuple: VolumeTuple,
        version: TupleVersion,
    ) -> Result<bool, AnchorError> {
        if tuple.records_commit(&root.commit_id) {
            ownership.tuple = tuple;
            ownership.version = version;
            ownership.unresolved = None;
            return Ok(true);
        }
        if !firn_env::planted!("anchor.commit_without_fence") {
            ownership.stands_in(&tuple)?;
        }
        ownership.tuple = tuple;
        ownership.version = version;
        Ok(false)
    }

    fn take(
        &self,
        volume: VolumeId,
        tuple: &VolumeTuple,
        owner: &Owner,
        grant: [u8; 16],
        force: bool,
    ) -> Result<VolumeChange, AnchorError> {
        if tuple.by_inode {
            return Err(AnchorError::SharedByInode { volume });
        }
        if tuple.epoch.0 == u64::MAX {
            return Err(AnchorError::Damaged {
                what: volume_sort(volume),
                why: crate::TupleError::Malformed {
                    what: "an epoch at its end",
                    offset: 3,
                },
            });
        }
        Ok(VolumeChange::Take {
            owner: owner.id,
            owner_name: owner.name.clone(),
            force,
            grant,
            taken_at_ms: self.env.wall().as_millis(),
        })
    }

    fn held(&self, volume: VolumeId, owner: Owner, tuple: VolumeTuple, version: TupleVersion) -> Ownership {
        Ownership {
            volume,
            owner,
            epoch: tuple.epoch,
            grant: tuple.grant,
            tuple,
            version,
            unresolved: None,
        }
    }

    /// Makes a change on the tuple at a version; `None` if that stands no more.
    async fn put(
        &self,
        volume: VolumeId,
        change: VolumeChange,
        seen: TupleVersion,
    ) -> Result<Option<TupleVersion>, TableError> {
        let call = AnchorCall::ChangeVolume { volume, seen, change };
        match self.change(call).await? {
            Ok(Some(version)) => Ok(Some(version)),
            // A volume's tuple is never deleted.
            Ok(None) => Err(nonsense()),
            Err(_) => Ok(None),
        }
    }

    /// Changes a volume's tuple as `decide` says, which sees the tuple of each try and may refuse. After a lost reply the
    /// tuple is recognised by `change_id`.
    async fn change_volume(
        &self,
        volume: VolumeId,
        change_id: [u8; 16],
        mut decide: impl FnMut(&VolumeTuple) -> Result<VolumeChange, AnchorError>,
    ) -> Result<(VolumeTuple, TupleVersion), AnchorError> {
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (tuple, version) = match self.load(volume).await {
                Ok(loaded) => loaded,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if tuple.change_id == change_id {
                return Ok((tuple, version));
            }
            let change = decide(&tuple)?;
            let changed = change
                .apply(&tuple)
                .map_err(|why| TableError::Limit(format!("volume {volume}: {why}")))?;
            match self.put(volume, change, version).await {
                Ok(Some(version)) => return Ok((changed, version)),
                Ok(None) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&volume_sort(volume), last))
    }
}

fn unfit(ownership: &Ownership, root: &Root, why: &'static str) -> AnchorError {
    AnchorError::UnfitRoot {
        volume: ownership.volume,
        offered: root.version,
        current: ownership.root().map(|root| root.version),
        why,
    }
}
