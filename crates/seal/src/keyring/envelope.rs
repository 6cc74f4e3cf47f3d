//! One epoch key for one recipient: HPKE (RFC 9180), base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
//!
//! `info` binds the family and the epoch, so an envelope cannot stand in for another. Who made it is not authenticated
//! here; the ring's signature does that.

use super::Entropy;
use crate::{EpochKey, RecipientPublic, RecipientSecret};
use firn_format::{Cursor, FamilyId, FormatError, KeyEpoch};
use hpke::{
    Deserializable, OpModeR, OpModeS, Serializable,
    aead::AesGcm256,
    kdf::HkdfSha256,
    kem::X25519HkdfSha256,
    rand_core::{TryCryptoRng, TryRng},
};
use std::convert::Infallible;
use zeroize::Zeroizing;

const SEALED_KEY_BYTES: usize = 48;

/// A wrapped key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    encapsulated: [u8; 32],
    sealed: [u8; SEALED_KEY_BYTES],
}

impl Envelope {
    pub(super) const BYTES: usize = 32 + SEALED_KEY_BYTES;

    pub(super) fn seal(
        family: &FamilyId,
        epoch: KeyEpoch,
        key: &EpochKey,
        recipient: &RecipientPublic,
        entropy: Entropy<'_>,
    ) -> Self {
        let public = recipient.hpke().expect("checked when it was made");
        let (encapsulated, ciphertext) =
            hpke::single_shot_seal_with_rng::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
                &OpModeS::Base,
                &public,
                &info(family, epoch),
                key.expose(),
                &[],
                &mut Passed(entropy),
            )
            .expect("a valid public key and 32 bytes can be sealed");
        let mut sealed = [0; SEALED_KEY_BYTES];
        sealed.copy_from_slice(&ciphertext);
        Self {
            encapsulated: encapsulated.to_bytes().into(),
            sealed,
        }
    }

    /// The key, or `None` if the envelope is not for this secret, family and epoch.
    pub(super) fn open(
        &self,
        family: &FamilyId,
        epoch: KeyEpoch,
        secret: &RecipientSecret,
    ) -> Option<EpochKey> {
        let encapsulated = Deserializable::from_bytes(&self.encapsulated).ok()?;
        let opened = hpke::single_shot_open::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Base,
            &secret.hpke().ok()?,
            &encapsulated,
            &info(family, epoch),
            &self.sealed,
            &[],
        );
        let opened = Zeroizing::new(opened.ok()?);
        let bytes: &[u8; 32] = opened[..].try_into().ok()?;
        Some(EpochKey::filled(|key| key.copy_from_slice(bytes)))
    }

    pub(super) fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..32].copy_from_slice(&self.encapsulated);
        bytes[32..].copy_from_slice(&self.sealed);
        bytes
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            encapsulated: cursor.array()?,
            sealed: cursor.array()?,
        })
    }
}

fn info(family: &FamilyId, epoch: KeyEpoch) -> Vec<u8> {
    [&b"firn 1 key ring"[..], &family.0, &epoch.0.to_le_bytes()].concat()
}

/// The caller's entropy as a random number generator.
struct Passed<'a>(Entropy<'a>);

impl TryRng for Passed<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        (self.0)(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        (self.0)(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        (self.0)(bytes);
        Ok(())
    }
}

impl TryCryptoRng for Passed<'_> {}
