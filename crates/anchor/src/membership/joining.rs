//! Joining: a volume is shared by inode, once and for ever, and members get their numbers.

use crate::{
    Anchor, AnchorCall, AnchorError, MemberCall, MemberNumber, OwnerId, TupleError, VolumeChange,
    VolumeTuple, anchor::volume_sort, retry, tuple::check_name,
};
use firn_format::VolumeId;

impl Anchor {
    /// Has many write a volume from now on, which nobody may own at the moment. It stays so; edges that know no members refuse it.
    ///
    /// # Errors
    /// [`AnchorError::OwnedByOther`]; a [limit](TableError::Limit) if it has no root; otherwise as [`Anchor::load`].
    pub async fn share_by_inode(&self, volume: VolumeId) -> Result<VolumeTuple, AnchorError> {
        let grant = self.env.random_bytes();
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
            if tuple.by_inode {
                return Ok(tuple);
            }
            if let Some(owner) = &tuple.owner {
                return Err(AnchorError::OwnedByOther {
                    volume,
                    owner: owner.clone(),
                    since_ms: tuple.taken_at_ms,
                    last_committed_ms: tuple.last_committed_ms(),
                });
            }
            let change = VolumeChange::ShareByInode {
                grant,
                shared_at_ms: self.env.wall().as_millis(),
            };
            let call = AnchorCall::ChangeVolume { volume, seen, change };
            match self.change(call).await {
                Ok(_) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&volume_sort(volume), last))
    }

    /// Joins a volume that is shared by inode: the member's number, for ever, whose home it is. One whose answer was lost stays unused.
    ///
    /// # Errors
    /// [`AnchorError::NotSharedByInode`], [`AnchorError::Contended`], [`AnchorError::Name`], or what the table says.
    pub async fn join_volume(
        &self,
        volume: VolumeId,
        edge: OwnerId,
        name: &str,
    ) -> Result<MemberNumber, AnchorError> {
        check_name(name)?;
        if !self.load(volume).await?.0.by_inode {
            return Err(AnchorError::NotSharedByInode { volume });
        }
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (family, seen) = match self.load_family().await {
                Ok(loaded) => loaded,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let number = u32::try_from(family.next_writer.0).map_err(|_| AnchorError::Damaged {
                what: "family".to_owned(),
                why: TupleError::Malformed {
                    what: "a writer count beyond the numbers of members",
                    offset: 3,
                },
            })?;
            let member = MemberNumber(number);
            let call = MemberCall::Join {
                seen,
                member,
                edge,
                name: name.to_owned(),
                drawn_at_ms: self.env.wall().as_millis(),
                change_id: self.env.random_bytes(),
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(_)) => return Ok(member),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up("family", last))
    }
}
