//! Identities: who may read (recipients, X25519) and who may say so (the tenant's signing key, Ed25519).

use crate::secret::Secret;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use data_encoding::HEXLOWER;
use hpke::{Deserializable, Kem as _, Serializable, kem::X25519HkdfSha256};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A key that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The bytes cannot be a recipient's key.
    #[error("not a recipient key")]
    NotARecipientKey,
}

/// What a recipient opens its envelopes with. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct RecipientSecret(Secret);

impl RecipientSecret {
    /// Derives a secret from 32 bytes of fresh entropy (RFC 9180, DeriveKeyPair).
    pub fn derive(entropy: &[u8; 32]) -> Self {
        let (secret, _) = X25519HkdfSha256::derive_keypair(entropy);
        let mut bytes = secret.to_bytes();
        let secret = Secret::filled(|secret| secret.copy_from_slice(&bytes));
        bytes.as_mut_slice().zeroize();
        Self(secret)
    }

    /// Takes a secret as [`RecipientSecret::to_bytes`] gave it.
    ///
    /// # Errors
    /// If the bytes are no key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, IdentityError> {
        let secret = Self(Secret::new(*bytes));
        secret.hpke().map(|_| secret)
    }

    /// The secret itself, to be stored where only its owner reads.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*self.0.expose())
    }

    /// The public key to list in a key ring.
    pub fn public(&self) -> RecipientPublic {
        let secret = self.hpke().expect("checked when it was made");
        RecipientPublic(X25519HkdfSha256::sk_to_pk(&secret).to_bytes().into())
    }

    pub(crate) fn hpke(&self) -> Result<<X25519HkdfSha256 as hpke::Kem>::PrivateKey, IdentityError> {
        Deserializable::from_bytes(self.0.expose()).map_err(|_| IdentityError::NotARecipientKey)
    }
}

impl ZeroizeOnDrop for RecipientSecret {}

impl fmt::Debug for RecipientSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RecipientSecret(secret of {})", self.public())
    }
}

/// What envelopes for a recipient are made with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecipientPublic([u8; 32]);

impl RecipientPublic {
    /// Takes a public key.
    ///
    /// # Errors
    /// If the bytes are no key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, IdentityError> {
        let public = Self(*bytes);
        public.hpke().map(|_| public)
    }

    /// The key's bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn hpke(&self) -> Result<<X25519HkdfSha256 as hpke::Kem>::PublicKey, IdentityError> {
        Deserializable::from_bytes(&self.0).map_err(|_| IdentityError::NotARecipientKey)
    }
}

/// What the tenant vouches with for its recipients. Made from the recovery phrase; wiped when dropped, never printed.
#[derive(Clone)]
pub struct TenantSigningKey(Secret);

impl TenantSigningKey {
    /// Takes an Ed25519 seed.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(Secret::new(seed))
    }

    /// The public key that signatures are checked with.
    pub fn public(&self) -> TenantPublic {
        let mut public = [0; 32];
        public.copy_from_slice(self.key_pair().public_key().as_ref());
        TenantPublic(public)
    }

    /// Signs; what is signed begins with a label of its purpose.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.key_pair().sign(message).as_ref());
        signature
    }

    fn key_pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(self.0.expose()).expect("any 32 bytes are a seed")
    }
}

impl ZeroizeOnDrop for TenantSigningKey {}

impl fmt::Debug for TenantSigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TenantSigningKey(secret of {})", self.public())
    }
}

/// What a tenant's signatures are checked with; an edge learns it when it is enrolled and never changes it by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantPublic([u8; 32]);

impl TenantPublic {
    /// Takes a public key; a wrong one only fails to verify.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

macro_rules! prints_as_hex {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}", HEXLOWER.encode_display(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
prints_as_hex!(RecipientPublic);
prints_as_hex!(TenantPublic);
