//! The join secret: 256 random bits, carried by a person from whoever may add an edge to the machine that becomes one.
//!
//! ```text
//!                      ┌─► look-up id       the API finds the invitation by it; says nothing of the rest
//! secret ─HKDF-SHA256──┼─► authenticator    shown to the API once; it stored the hash
//!                      ├─► wrapping key     seals the invitation's content: the API holds only ciphertext
//!                      └─► binding key      authenticates the edge's public keys to whoever made the secret
//! ```
//!
//! The API learns look-up id and authenticator, from which neither key can be had. So it can refuse a join, but not read the
//! invitation, nor put keys of its own in the place of the edge's: the inviter checks the tag before it wraps anything.

use crate::{
    EdgeId,
    derive::derive,
    secret::{Entropy, Secret, equal_in_constant_time},
};
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{Context, SHA256, digest},
    hmac,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use std::fmt;
use zeroize::{ZeroizeOnDrop, Zeroizing};

const PREFIX: &str = "firnjoin_";
const SALT: &str = "firn 1 join secret";
/// The longest content of an invitation.
pub const MAX_INVITATION_BYTES: usize = 64 << 10;

/// Why a join cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The text is no join secret. It is not repeated.
    #[error("not a join secret; was it copied whole?")]
    Malformed,
    /// The invitation was not sealed with this secret, or was changed.
    #[error("the invitation does not open with this join secret; do not use it, ask for a new one")]
    BadInvitation,
    /// Larger than any invitation.
    #[error("an invitation holds at most {MAX_INVITATION_BYTES} bytes")]
    TooLarge,
}

/// A join secret. Wiped when dropped, never printed unless asked for.
#[derive(Clone)]
pub struct JoinSecret(Secret<32>);

/// Finds the invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupId(pub [u8; 16]);

/// Shows the API that the caller holds the secret. Wiped when dropped.
#[derive(Clone)]
pub struct Authenticator(Secret<32>);

/// What the API stores of an authenticator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticatorHash(pub [u8; 32]);

impl JoinSecret {
    /// Makes a new secret.
    pub fn generate(entropy: Entropy<'_>) -> Self {
        Self(Secret::filled(|secret| entropy(secret)))
    }

    /// Reads a secret as a person pasted it.
    ///
    /// # Errors
    /// [`JoinError::Malformed`] if it is none.
    pub fn parse(text: &str) -> Result<Self, JoinError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(JoinError::Malformed)?;
        let bytes = Zeroizing::new(
            URL_SAFE_NO_PAD
                .decode(encoded)
                .map_err(|_| JoinError::Malformed)?,
        );
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| JoinError::Malformed)?;
        Ok(Self(Secret::filled(|secret| secret.copy_from_slice(bytes))))
    }

    /// The secret as text, to be shown once.
    pub fn expose(&self) -> Zeroizing<String> {
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.0.expose()));
        Zeroizing::new(format!("{PREFIX}{}", *encoded))
    }

    /// Where the API finds the invitation.
    pub fn lookup_id(&self) -> LookupId {
        LookupId(*derive(self.0.expose(), SALT, &[b"look-up id"]).expose())
    }

    /// What the API is shown.
    pub fn authenticator(&self) -> Authenticator {
        Authenticator(derive(self.0.expose(), SALT, &[b"authenticator"]))
    }

    /// Seals an invitation's content. The nonce is random: a secret seals one invitation, or a few.
    ///
    /// # Errors
    /// [`JoinError::TooLarge`].
    pub fn seal(&self, content: &[u8], entropy: Entropy<'_>) -> Result<Vec<u8>, JoinError> {
        if content.len() > MAX_INVITATION_BYTES {
            return Err(JoinError::TooLarge);
        }
        let mut nonce = [0; NONCE_LEN];
        entropy(&mut nonce);
        let mut sealed = content.to_vec();
        self.wrapping_key()
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), self.aad(), &mut sealed)
            .expect("an invitation is far below what AES-GCM can seal");
        sealed.splice(0..0, nonce);
        Ok(sealed)
    }

    /// Opens an invitation's content.
    ///
    /// # Errors
    /// [`JoinError::BadInvitation`] if it was not sealed with this secret.
    pub fn open(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, JoinError> {
        let (nonce, ciphertext) = sealed
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(JoinError::BadInvitation)?;
        if ciphertext.len() > MAX_INVITATION_BYTES + AES_256_GCM.tag_len() {
            return Err(JoinError::TooLarge);
        }
        let mut buffer = Zeroizing::new(ciphertext.to_vec());
        let opened_bytes = self
            .wrapping_key()
            .open_in_place(Nonce::assume_unique_for_key(*nonce), self.aad(), &mut buffer)
            .map_err(|_| JoinError::BadInvitation)?
            .len();
        buffer.truncate(opened_bytes);
        Ok(buffer)
    }

    /// Binds the edge's public keys to this secret; `public_keys` is their encoding as the edge sends it.
    pub fn bind(&self, public_keys: &[u8]) -> [u8; 32] {
        let mut tag = [0; 32];
        tag.copy_from_slice(hmac::sign(&self.binding_key(), public_keys).as_ref());
        tag
    }

    /// Whether a holder of this secret sent these public keys.
    pub fn binds(&self, public_keys: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.binding_key(), public_keys, tag).is_ok()
    }

    fn wrapping_key(&self) -> LessSafeKey {
        let key: Secret<32> = derive(self.0.expose(), SALT, &[b"wrapping key"]);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.expose()).expect("32 bytes are a key"))
    }

    fn binding_key(&self) -> hmac::Key {
        let key: Secret<32> = derive(self.0.expose(), SALT, &[b"binding key"]);
        hmac::Key::new(hmac::HMAC_SHA256, key.expose())
    }

    fn aad(&self) -> Aad<[u8; 16]> {
        Aad::from(self.lookup_id().0)
    }
}

impl LookupId {
    /// The id of the edge that joins with this secret: known to the inviter and to the edge before the API says anything, so
    /// that the edge can ask for its certificate in the same request.
    pub fn edge_id(&self) -> EdgeId {
        let mut hasher = Context::new(&SHA256);
        hasher.update(b"firn 1 edge id");
        hasher.update(&self.0);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finish().as_ref()[..16]);
        EdgeId(id)
    }

    /// Its text, as it stands in requests.
    pub fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, JoinError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| JoinError::Malformed)?;
        Ok(Self(
            bytes.as_slice().try_into().map_err(|_| JoinError::Malformed)?,
        ))
    }
}

impl Authenticator {
    /// Its text, sent to the API once, over TLS.
    pub fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(self.0.expose()))
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, JoinError> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).map_err(|_| JoinError::Malformed)?);
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| JoinError::Malformed)?;
        Ok(Self(Secret::filled(|secret| secret.copy_from_slice(bytes))))
    }

    /// What the API stores.
    pub fn hash(&self) -> AuthenticatorHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, self.0.expose()).as_ref());
        AuthenticatorHash(hash)
    }
}

impl AuthenticatorHash {
    /// Whether this is the hash of `shown`; takes the same time whatever the answer.
    pub fn matches(&self, shown: &Authenticator) -> bool {
        equal_in_constant_time(&self.0, &shown.hash().0)
    }
}

impl ZeroizeOnDrop for JoinSecret {}
impl ZeroizeOnDrop for Authenticator {}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JoinSecret(secret)")
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Authenticator(secret)")
    }
}
