//! Capabilities: what one holder may do with one disk, checked by a node without asking anybody.
//!
//! ```text
//! version u8 (1) | key id [8] | tenant [16] | disk [16] | rights u16 | fence u64 | not before u64 | expires u64
//!                | holder [32] | Ed25519 signature [64] over "firn 1 disk capability" and all before it      big-endian
//! ```
//!
//! The **fence** is the attachment's number: a disk has one client at a time (I11), and a node that has seen a higher fence
//! refuses a lower one, so an old capability dies with the next attachment even before it expires. The **holder** is the hash
//! of the name in the holder's certificate, so that a capability read from somebody's disk is worth nothing on another
//! connection; zeros mean anyone who holds it. Ed25519 signs without randomness, so a simulation repeats by its seed.

use crate::{DiskId, PeerIdentity, TenantId, UnixTime, secret::Secret, token::CLOCK_SKEW_SECONDS};
use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use data_encoding::HEXLOWER;
use firn_codec::{ByteOrder, Codec, Reader, Writer};
use std::{collections::BTreeMap, fmt};
use zeroize::ZeroizeOnDrop;

/// The length of every capability of version 1.
pub const CAPABILITY_BYTES: usize = SIGNED_BYTES + 64;
/// The longest life: an attachment renews it in the background, an unreachable API is survived this long.
pub const MAX_CAPABILITY_SECONDS: u64 = 24 * 3600;
const SIGNED_BYTES: usize = 1 + 8 + 16 + 16 + 2 + 8 + 8 + 8 + 32;
const VERSION: u8 = 1;
const CONTEXT: &[u8] = b"firn 1 disk capability";
const ANYONE: [u8; 32] = [0; 32];

/// What may be done with a disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights(u16);

impl Rights {
    /// Read blocks.
    pub const READ: Self = Self(1);
    /// Write blocks, flush, trim.
    pub const WRITE: Self = Self(2);
    /// Raise the fence: attach, which ends the attachment before.
    pub const ATTACH: Self = Self(4);
    /// Create, remove and copy tracts: what placement and repair do.
    pub const REPAIR: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `wanted` are among these.
    pub const fn include(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (Self::READ, "read"),
            (Self::WRITE, "write"),
            (Self::ATTACH, "attach"),
            (Self::REPAIR, "repair"),
        ];
        formatter
            .debug_set()
            .entries(
                named
                    .iter()
                    .filter(|(right, _)| self.include(*right))
                    .map(|(_, name)| *name),
            )
            .finish()
    }
}

/// Why a capability was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// Not a capability of a version this build reads.
    #[error("not a disk capability")]
    Malformed,
    /// Made with a key that is not among those at hand.
    #[error("the capability's key is unknown; ask the API for a new capability")]
    UnknownKey,
    /// The key it names did not sign it.
    #[error("the capability's signature is wrong")]
    BadSignature,
    /// Its time is over.
    #[error("the capability has expired; ask the API for a new one")]
    Expired,
    /// Its time has not come: a clock is wrong.
    #[error("the capability is not valid yet; check the clocks")]
    NotYetValid,
    /// For another disk or another tenant's.
    #[error("the capability is for another disk")]
    WrongDisk,
    /// Does not include what was asked for.
    #[error("the capability does not allow this")]
    MissingRight,
    /// A newer attachment exists.
    #[error("attachment {found} was ended by attachment {newest}; stop, and attach again only if told to")]
    Fenced {
        /// The capability's fence.
        found: u64,
        /// The newest fence seen.
        newest: u64,
    },
    /// Another peer presents it than it was made for.
    #[error("the capability was made for another holder")]
    WrongHolder,
}

/// What a capability says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Whose disk.
    pub tenant: TenantId,
    /// Which disk.
    pub disk: DiskId,
    /// What may be done.
    pub rights: Rights,
    /// The number of the attachment.
    pub fence: u64,
    /// From when it holds.
    pub not_before: UnixTime,
    /// From when it no longer holds; at most [`MAX_CAPABILITY_SECONDS`] later.
    pub expires: UnixTime,
    /// For whom; `None`: for anyone who holds it.
    pub holder: Option<HolderHash>,
}

/// The hash of a holder's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderHash([u8; 32]);

impl HolderHash {
    /// The hash of the name in a peer's certificate.
    pub fn of(peer: &PeerIdentity) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, peer.to_string().as_bytes()).as_ref());
        Self(hash)
    }
}

/// What capabilities are made with. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct CapabilityIssuer(Secret<32>);

impl CapabilityIssuer {
    /// Takes an Ed25519 seed.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(Secret::new(seed))
    }

    /// What verifiers need.
    pub fn public(&self) -> CapabilityKey {
        let mut public = [0; 32];
        public.copy_from_slice(self.pair().public_key().as_ref());
        CapabilityKey(public)
    }

    /// Makes a capability. A life longer than [`MAX_CAPABILITY_SECONDS`] is cut to it.
    pub fn issue(&self, capability: &Capability) -> [u8; CAPABILITY_BYTES] {
        let expires = capability
            .expires
            .min(capability.not_before.plus(MAX_CAPABILITY_SECONDS));
        let mut fields = Writer::big_endian(CAPABILITY_BYTES);
        fields.u8(VERSION);
        fields.raw(&self.public().id());
        fields.raw(&capability.tenant.0);
        fields.raw(&capability.disk.0);
        fields.u16(capability.rights.0);
        fields.u64(capability.fence);
        fields.u64(capability.not_before.0);
        fields.u64(expires.0);
        fields.raw(&capability.holder.map_or(ANYONE, |holder| holder.0));
        let signature = self.pair().sign(&signed_message(fields.as_slice()));
        fields.raw(signature.as_ref());
        let bytes = fields.finish();
        bytes.try_into().expect("the layout above is that long")
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(self.0.expose()).expect("any 32 bytes are a seed")
    }
}

impl ZeroizeOnDrop for CapabilityIssuer {}

impl fmt::Debug for CapabilityIssuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CapabilityIssuer(secret of {:?})", self.public())
    }
}

/// A public key of a [`CapabilityIssuer`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CapabilityKey([u8; 32]);

impl CapabilityKey {
    /// Takes a public key; a wrong one only fails to verify.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    fn id(&self) -> [u8; 8] {
        let mut id = [0; 8];
        id.copy_from_slice(&digest(&SHA256, &self.0).as_ref()[..8]);
        id
    }
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CapabilityKey({})", HEXLOWER.encode_display(&self.0))
    }
}

/// The keys a node accepts: the current one and, while keys change, the one before or after.
#[derive(Clone, Debug, Default)]
pub struct CapabilityVerifier {
    keys: BTreeMap<[u8; 8], CapabilityKey>,
}

impl CapabilityVerifier {
    /// Accepts what these keys made.
    pub fn new(keys: impl IntoIterator<Item = CapabilityKey>) -> Self {
        Self {
            keys: keys.into_iter().map(|key| (key.id(), key)).collect(),
        }
    }

    /// Checks who made it and whether its time has come and is not over.
    ///
    /// # Errors
    /// [`CapabilityError`] says what is wrong.
    pub fn verify(&self, bytes: &[u8], now: UnixTime) -> Result<VerifiedCapability, CapabilityError> {
        if bytes.len() != CAPABILITY_BYTES {
            return Err(CapabilityError::Malformed);
        }
        let mut fields = Reader::new(Layout, bytes);
        if fields.u8()? != VERSION {
            return Err(CapabilityError::Malformed);
        }
        let key = self
            .keys
            .get(&fields.array()?)
            .ok_or(CapabilityError::UnknownKey)?;
        let (signed, signature) = bytes.split_at(SIGNED_BYTES);
        UnparsedPublicKey::new(&ED25519, key.0)
            .verify(&signed_message(signed), signature)
            .map_err(|_| CapabilityError::BadSignature)?;
        let capability = read(&mut fields)?;
        if now >= capability.expires.plus(CLOCK_SKEW_SECONDS) {
            return Err(CapabilityError::Expired);
        }
        if capability.not_before > now.plus(CLOCK_SKEW_SECONDS) {
            return Err(CapabilityError::NotYetValid);
        }
        Ok(VerifiedCapability(capability))
    }
}

/// A capability that was checked. Only [`CapabilityVerifier::verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedCapability(Capability);

impl VerifiedCapability {
    /// What it says.
    pub fn capability(&self) -> &Capability {
        &self.0
    }

    /// Whether `peer` may do `wanted` with this tenant's disk, whose newest fence seen is `fence`.
    ///
    /// A capability with a higher fence than the one seen is of a newer attachment: with [`Rights::ATTACH`] the node makes it
    /// its own, durably, before it serves.
    ///
    /// # Errors
    /// [`CapabilityError`] says what is in the way.
    pub fn permit(
        &self,
        tenant: TenantId,
        disk: DiskId,
        wanted: Rights,
        fence: u64,
        peer: &PeerIdentity,
    ) -> Result<(), CapabilityError> {
        let capability = &self.0;
        if capability.tenant != tenant || capability.disk != disk {
            return Err(CapabilityError::WrongDisk);
        }
        if capability
            .holder
            .is_some_and(|holder| holder != HolderHash::of(peer))
        {
            return Err(CapabilityError::WrongHolder);
        }
        if !capability.rights.include(wanted) {
            return Err(CapabilityError::MissingRight);
        }
        if capability.fence < fence {
            return Err(CapabilityError::Fenced {
                found: capability.fence,
                newest: fence,
            });
        }
        Ok(())
    }
}

fn signed_message(signed: &[u8]) -> Vec<u8> {
    [CONTEXT, signed].concat()
}

/// The layout above, as its reader sees it.
struct Layout;

impl Codec for Layout {
    type Error = CapabilityError;
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> CapabilityError {
        CapabilityError::Malformed
    }
}

/// Reads what stands behind version and key.
fn read(fields: &mut Reader<&[u8], Layout>) -> Result<Capability, CapabilityError> {
    Ok(Capability {
        tenant: TenantId(fields.array()?),
        disk: DiskId(fields.array()?),
        rights: Rights(fields.u16()?),
        fence: fields.u64()?,
        not_before: UnixTime(fields.u64()?),
        expires: UnixTime(fields.u64()?),
        holder: Some(fields.array()?)
            .filter(|holder| *holder != ANYONE)
            .map(HolderHash),
    })
}
