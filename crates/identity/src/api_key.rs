//! API keys: what a program logs in with. Shown once, stored only as a hash.
//!
//! ```text
//! firn_<32 hex digits: the key's name>_<43 characters: 256 random bits><6 characters: checksum>
//! ```
//!
//! The checksum lets a typing error be told from a revoked key without asking anybody, and lets a scanner find leaked keys.
//! The secret has 256 bits, so there is nothing to guess and a plain hash suffices; it covers the name, so that one key's hash
//! cannot be stored under another's.

use crate::{
    KeyId,
    secret::{Entropy, Secret, equal_in_constant_time},
};
use aws_lc_rs::digest::{Context, SHA256};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::{ZeroizeOnDrop, Zeroizing};

const SECRET_CHARACTERS: usize = 43;
const CHECK_CHARACTERS: usize = 6;

/// A text that is no API key. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key; was it copied whole?")]
pub struct BadApiKey;

/// An API key. Wiped when dropped, never printed unless asked for.
#[derive(Clone)]
pub struct ApiKey {
    id: KeyId,
    secret: Secret<32>,
}

/// What the service stores of an API key.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyHash([u8; 32]);

impl ApiKey {
    /// Makes a new key.
    pub fn generate(entropy: Entropy<'_>) -> Self {
        Self {
            id: KeyId::random(entropy),
            secret: Secret::filled(|secret| entropy(secret)),
        }
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`BadApiKey`] if the form or the checksum is wrong.
    pub fn parse(text: &str) -> Result<Self, BadApiKey> {
        let (name, rest) = text
            .strip_prefix("firn_")
            .and_then(|rest| rest.split_at_checked(32))
            .ok_or(BadApiKey)?;
        let id: KeyId = format!("{}_{name}", KeyId::PREFIX)
            .parse()
            .map_err(|_| BadApiKey)?;
        let rest = rest.strip_prefix('_').ok_or(BadApiKey)?;
        if rest.len() != SECRET_CHARACTERS + CHECK_CHARACTERS {
            return Err(BadApiKey);
        }
        let (encoded, check) = rest.split_at_checked(SECRET_CHARACTERS).ok_or(BadApiKey)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(|_| BadApiKey)?);
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| BadApiKey)?;
        let key = Self {
            id,
            secret: Secret::filled(|secret| secret.copy_from_slice(bytes)),
        };
        if equal_in_constant_time(key.checksum().as_bytes(), check.as_bytes()) {
            Ok(key)
        } else {
            Err(BadApiKey)
        }
    }

    /// The key's name: no secret.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key as text, to be shown once to the person it is made for.
    pub fn expose(&self) -> Zeroizing<String> {
        let id = self.id.to_string();
        let digits = &id[KeyId::PREFIX.len() + 1..];
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.secret.expose()));
        Zeroizing::new(format!("firn_{digits}_{}{}", *secret, self.checksum()))
    }

    /// What the service stores.
    pub fn hash(&self) -> ApiKeyHash {
        ApiKeyHash(self.digest("firn 1 api key"))
    }

    fn checksum(&self) -> String {
        let mut check = URL_SAFE_NO_PAD.encode(self.digest("firn 1 api key checksum"));
        check.truncate(CHECK_CHARACTERS);
        check
    }

    fn digest(&self, label: &str) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(label.as_bytes());
        context.update(&self.id.0);
        context.update(self.secret.expose());
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        hash
    }
}

impl ApiKeyHash {
    /// Whether this is the hash of `key`; takes the same time whatever the answer.
    pub fn matches(&self, key: &ApiKey) -> bool {
        equal_in_constant_time(&self.0, &key.hash().0)
    }
}

impl ZeroizeOnDrop for ApiKey {}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey(secret of {})", self.id)
    }
}

impl fmt::Debug for ApiKeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKeyHash(…)")
    }
}
