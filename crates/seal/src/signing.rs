//! Signing keys of ownerships: Ed25519 (RFC 8032), drawn at each start of an edge and never stored.
//!
//! An edge names the public key in its ownership statement, which the family's key authenticates, and signs every root it commits
//! under that ownership. Who has only the statement and the table can tell its roots from all others. The secret lives as long as
//! the process: nobody finds it on a disk later.

use crate::secret::Secret;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use data_encoding::HEXLOWER;
use std::fmt;
use zeroize::ZeroizeOnDrop;

/// What an edge signs roots with. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct RootSigningKey(Secret);

impl RootSigningKey {
    /// Takes an Ed25519 seed, drawn for one ownership.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(Secret::new(seed))
    }

    /// What signatures are checked with.
    pub fn public(&self) -> RootPublic {
        let mut public = [0; 32];
        public.copy_from_slice(self.key_pair().public_key().as_ref());
        RootPublic(public)
    }

    /// Signs; the same message has the same signature.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.key_pair().sign(message).as_ref());
        signature
    }

    fn key_pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(self.0.expose()).expect("any 32 bytes are a seed")
    }
}

impl ZeroizeOnDrop for RootSigningKey {}

impl fmt::Debug for RootSigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RootSigningKey(secret of {})", self.public())
    }
}

/// What signatures of roots are checked with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootPublic([u8; 32]);

impl RootPublic {
    /// Takes a public key; a wrong one only fails to verify.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Whether this key's owner signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

impl fmt::Display for RootPublic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", HEXLOWER.encode_display(&self.0))
    }
}

impl fmt::Debug for RootPublic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RootPublic({self})")
    }
}
