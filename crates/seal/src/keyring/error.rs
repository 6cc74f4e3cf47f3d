//! Refusals of key rings.

use crate::{RecipientPublic, TenantPublic};
use firn_format::{FamilyId, FormatError, KeyEpoch, VolumeId};

/// Why a key ring is refused. No key was handed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// The bytes are no key ring this build can read.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// The tenant did not sign this.
    #[error("key ring of generation {generation} is not signed by tenant {tenant}; do not use it")]
    BadSignature {
        /// What the ring says of itself.
        generation: u64,
        /// Who should have signed.
        tenant: TenantPublic,
    },

    /// The ring of another family.
    #[error("key ring belongs to family {found}, not {expected}")]
    WrongFamily {
        /// The family wanted.
        expected: FamilyId,
        /// The family of the ring.
        found: FamilyId,
    },

    /// The ring of another volume.
    #[error("key ring is signed for volume {found}, not {expected}")]
    WrongVolume {
        /// The volume wanted.
        expected: VolumeId,
        /// The volume of the ring.
        found: VolumeId,
    },

    /// An older ring than one seen before: someone holds back the current one.
    #[error(
        "key ring of generation {found} is stale, generation {newest_seen} was seen before; fetch the current one"
    )]
    Stale {
        /// The generation of the ring.
        found: u64,
        /// The newest generation seen.
        newest_seen: u64,
    },

    /// A ring that does not follow the one it should.
    #[error(
        "key ring of generation {generation} does not follow the ring of generation {previous}: they were forked"
    )]
    Forked {
        /// The generation of the ring.
        generation: u64,
        /// The generation it should follow.
        previous: u64,
    },

    /// The secret is none of the recipients'.
    #[error("{public} is not a recipient of the key ring (generation {generation}); ask for it to be added")]
    NotARecipient {
        /// The public key of the secret.
        public: RecipientPublic,
        /// The ring's generation.
        generation: u64,
    },

    /// An envelope does not hold the key the ring promises.
    #[error("the key of epoch {epoch} for {recipient:?} does not open, or is not the one the ring names")]
    BadEnvelope {
        /// The epoch.
        epoch: KeyEpoch,
        /// Whose envelope it is.
        recipient: String,
    },

    /// The keys at hand are not those of the ring.
    #[error("the opened keys are not those of this key ring; open it first")]
    WrongKeys,

    /// A recipient that cannot be listed.
    #[error("recipient {name:?} cannot be added: {reason}")]
    BadRecipient {
        /// Its name.
        name: String,
        /// Why not.
        reason: &'static str,
    },

    /// No recipient has that name.
    #[error("the key ring lists no recipient {name:?}")]
    UnknownRecipient {
        /// The name.
        name: String,
    },

    /// A ring from which nothing could be recovered once all edges are gone.
    #[error("a key ring must list a recovery recipient, or losing every edge would lose the data")]
    NoRecovery,

    /// A bound is reached.
    #[error("a key ring holds at most {limit} {what}")]
    Full {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}
