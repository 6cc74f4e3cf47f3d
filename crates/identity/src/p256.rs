//! P-256 keys: ES256 signatures of tokens, and the keys of certificates. A key is made of 32 bytes of entropy, so that it
//! can be derived from a master secret and need not be stored.

use crate::secret::Secret;
use aws_lc_rs::{
    agreement::{ECDH_P256, PrivateKey},
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
    },
};
use data_encoding::HEXLOWER;
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::fmt;
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// A signing key. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct SigningKey {
    scalar: Secret<32>,
    public: VerifyingKey,
}

impl SigningKey {
    /// Makes a key of 32 bytes of entropy. Entropy that is no scalar of the curve (one in 2^32) is hashed until it is.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let mut scalar = Secret::new(seed);
        loop {
            if let Ok(private) = PrivateKey::from_private_key(&ECDH_P256, scalar.expose())
                && let Ok(public) = private.compute_public_key()
            {
                let mut point = [0; 65];
                point.copy_from_slice(public.as_ref());
                return Self {
                    scalar,
                    public: VerifyingKey(point),
                };
            }
            let hashed = digest(&SHA256, scalar.expose());
            scalar = Secret::filled(|bytes| bytes.copy_from_slice(hashed.as_ref()));
        }
    }

    /// What its signatures are checked with.
    pub fn public(&self) -> VerifyingKey {
        self.public
    }

    /// Signs as JOSE's ES256 does: `r` and `s`, 32 bytes each.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        let signed = self
            .pair()
            .sign(&SystemRandom::new(), message)
            .expect("a valid key signs any message");
        signature.copy_from_slice(signed.as_ref());
        signature
    }

    /// The key as PKCS #8, to be stored where only its owner reads.
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        let document = self.pair().to_pkcs8v1().expect("a valid key has an encoding");
        Zeroizing::new(document.as_ref().to_vec())
    }

    pub(crate) fn key_der(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.to_pkcs8().to_vec())
    }

    /// The seed from which [`SigningKey::from_seed`] makes this key again.
    pub fn to_seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*self.scalar.expose())
    }

    fn pair(&self) -> EcdsaKeyPair {
        EcdsaKeyPair::from_private_key_and_public_key(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            self.scalar.expose(),
            &self.public.0,
        )
        .inspect(|pair| debug_assert_eq!(pair.public_key().as_ref(), self.public.0))
        .expect("checked when it was made")
    }
}

impl ZeroizeOnDrop for SigningKey {}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SigningKey(secret of {:?})", self.public)
    }
}

/// A public key: an uncompressed point. One that is no point only fails to verify.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerifyingKey(pub(crate) [u8; 65]);

impl VerifyingKey {
    /// Takes an uncompressed point as [`VerifyingKey::to_bytes`] gave it; `None` if it cannot be one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let point: [u8; 65] = bytes.try_into().ok()?;
        (point[0] == 4).then_some(Self(point))
    }

    /// The uncompressed point.
    pub fn to_bytes(&self) -> [u8; 65] {
        self.0
    }

    /// Whether this key made the signature.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "VerifyingKey({}…)",
            HEXLOWER.encode_display(&self.0[1..9])
        )
    }
}
