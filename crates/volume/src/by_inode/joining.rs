//! The number of this machine's member: found among those of the volume by the identity of its state directory, or drawn.
//!
//! Nothing is kept here: the member's record has the identity, so that a machine which stopped after it had joined, and before anything else, finds its number again.
//! A state directory that was lost is another identity, and gets another member; what the earlier one held is taken from it as from any that is silent.

use crate::{error::VolumeError, local::LocalState, parts::Parts, volume::Volume};
use firn_anchor::{AnchorError, MemberNumber, OwnerId};
use firn_env::Env;

impl Volume {
    /// Whether a member that was broken was started by another process since: one that has a copy of its state directory, since this one has started nothing. Of a member that
    /// others broke because it was not heard the record names this incarnation still. One read; `false` if that is not answered.
    pub async fn is_started_elsewhere(&self) -> bool {
        let inner = &self.inner;
        let Some(member) = self.member_by_inode() else {
            return false;
        };
        match inner.anchor.member(inner.volume, member.number()).await {
            Ok((tuple, _)) => tuple
                .record
                .newest()
                .is_some_and(|newest| newest != member.incarnation()),
            Err(error) => {
                tracing::debug!(%error, "the member's record cannot be read");
                false
            }
        }
    }

    /// By which a member's record is known to be this state directory's; `None` if nothing was started in it yet.
    ///
    /// # Errors
    /// If the state directory cannot be read.
    pub async fn edge_identity(env: &Env) -> Result<Option<OwnerId>, VolumeError> {
        Ok(LocalState::find(env).await?.map(|local| local.owner))
    }

    /// The member of this state directory in a volume that is shared by inode; joins as `name` if there is none yet. A query, and the first time a transaction.
    ///
    /// # Errors
    /// [`AnchorError::NotSharedByInode`], as an error of the anchor; or what the anchor says. Call again after a transient one.
    pub async fn join_by_inode(parts: &Parts, name: &str) -> Result<MemberNumber, VolumeError> {
        let local = LocalState::load(&parts.env).await?;
        let volume = parts.volume;
        if !parts.anchor.load(volume).await?.0.by_inode {
            return Err(AnchorError::NotSharedByInode { volume }.into());
        }
        let members = parts.anchor.members(volume).await?;
        let own = members.iter().find(|entry| entry.tuple.edge == local.owner);
        match own {
            Some(entry) if !firn_env::planted!("volume.joins_at_each_start") => Ok(entry.member),
            Some(_) | None => {
                let joined = parts.anchor.join_volume(volume, local.owner, name).await?;
                tracing::info!(member = joined.0, "this office is a member of the volume now");
                Ok(joined)
            }
        }
    }
}
