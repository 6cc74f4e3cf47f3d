//! Signatures of a volume's owner under what is no root, such as the report of an audit; and whose key a signature was made with.
//!
//! The key is that of the ownership's roots, drawn at each start and never stored. The ownership statement in the bucket names it, sealed
//! under the family's key, so who has the keys of the family can tell the owner's signatures from all others as long as the
//! statement's key epoch is in the ring.

use crate::{
    checkpointer::CheckpointerState,
    ownership_statement::{MAX_STATEMENT_BYTES, NoStatement, OwnershipStatement, RootSigner},
};
use firn_anchor::Owner;
use firn_format::{FamilyId, OwnershipEpoch, VolumeId};
use firn_seal::{Keys, RootPublic};
use firn_store::{Store, StoreError};

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OwnerSigner {
    signer: RootSigner,
    owner: Owner,
    epoch: OwnershipEpoch,
}

impl OwnerSigner {
    pub(crate) fn of(own: &CheckpointerState) -> Self {
        Self {
            signer: own.signer.clone(),
            owner: own.ownership.owner().clone(),
            epoch: own.ownership.epoch(),
        }
    }

    /// Whose volume's.
    pub fn family(&self) -> FamilyId {
        self.signer.family()
    }

    /// Of which volume.
    pub fn volume(&self) -> VolumeId {
        self.signer.volume()
    }

    /// Who owns it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Since which giving of ownership.
    pub fn epoch(&self) -> OwnershipEpoch {
        self.epoch
    }

    /// What was drawn for that.
    pub fn grant(&self) -> [u8; 16] {
        self.signer.grant()
    }

    /// What signatures are checked with; the ownership statement names it.
    pub fn public(&self) -> RootPublic {
        self.signer.public()
    }

    /// Signs. A message begins with a label of its kind, which no other kind of message begins with.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signer.sign_message(message)
    }
}

/// What a bucket says of the key of an ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncedKey {
    /// The statement names it.
    Named {
        /// The key.
        key: RootPublic,
        /// Whose it is.
        owner: Owner,
    },
    /// There is no statement of that ownership, or none that the family's keys open.
    NotThere,
    /// The statement is sealed under a key that was dropped from the ring.
    KeyDropped,
}

/// The key with which the owner of `volume` in this `epoch` and under this `grant` signs.
///
/// # Errors
/// If the store does not answer.
pub async fn announced_key(
    store: &dyn Store,
    keys: &Keys,
    volume: VolumeId,
    (epoch, grant): (OwnershipEpoch, [u8; 16]),
) -> Result<AnnouncedKey, StoreError> {
    let key = OwnershipStatement::key_of(&keys.family(), &volume, epoch, grant);
    let bytes = match store.get_range(&key, 0, MAX_STATEMENT_BYTES).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return Ok(AnnouncedKey::NotThere),
        Err(error) => return Err(error),
    };
    Ok(match OwnershipStatement::open(&bytes, keys) {
        Ok(found) if (found.volume, found.epoch, found.grant) == (volume, epoch, grant) => {
            AnnouncedKey::Named {
                key: found.signer,
                owner: found.owner,
            }
        }
        Err(NoStatement::KeyDropped(_)) => AnnouncedKey::KeyDropped,
        Ok(_) | Err(NoStatement::Other(_)) => AnnouncedKey::NotThere,
    })
}
