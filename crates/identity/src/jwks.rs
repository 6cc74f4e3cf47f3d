//! The public keys that tokens are checked with, as RFC 7517 writes them, and the schedule on which they change.
//!
//! A day's key is derived from the service's master secret, the generation and the day's number, so no token key is stored
//! anywhere, and all instances of the API agree without talking to each other. The set served holds yesterday's, today's
//! and tomorrow's: a verifier that fetches it once an hour always has the key it needs, whichever clock is ahead.
//!
//! ```text
//! master ─HKDF("token key", generation, day)─► SigningKey        kid = SHA-256 thumbprint (RFC 7638)
//! ```
//!
//! Raising the generation makes all earlier tokens worthless at once: the answer to a leaked token key.

use crate::{SigningKey, UnixTime, VerifyingKey, derive::derive, secret::Secret};
use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};
use zeroize::ZeroizeOnDrop;

/// How long a key signs: a day bounds what a leaked one is worth, and leaves caches an hour's slack many times over.
pub const KEY_PERIOD_SECONDS: u64 = 24 * 3600;
/// The most keys a set may hold. Ours holds three.
pub const MAX_KEYS: usize = 16;
/// The longest text a set is read from.
pub const MAX_JWKS_BYTES: usize = 16 << 10;

/// Why a key set was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// Not a key set, or too large to be one of ours.
    #[error("not a key set of at most {MAX_KEYS} P-256 keys; keep the one at hand")]
    Malformed,
}

/// The secret from which the service's token keys are derived. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct KeySchedule {
    master: Secret<32>,
    generation: u32,
}

impl KeySchedule {
    /// Takes the master secret; every instance of the service is given the same.
    pub fn new(master: [u8; 32], generation: u32) -> Self {
        Self {
            master: Secret::new(master),
            generation,
        }
    }

    /// The key that signs at `now`.
    pub fn signing_key(&self, now: UnixTime) -> SigningKey {
        self.key(now.0 / KEY_PERIOD_SECONDS)
    }

    /// The keys that may have signed what is valid about `now`: the period's, the one before and the one after.
    pub fn public_keys(&self, now: UnixTime) -> JwkSet {
        let period = now.0 / KEY_PERIOD_SECONDS;
        JwkSet::new(
            (period.saturating_sub(1)..=period.saturating_add(1)).map(|period| self.key(period).public()),
        )
    }

    fn key(&self, period: u64) -> SigningKey {
        let seed: Secret<32> = derive(
            self.master.expose(),
            "firn 1 token key",
            &[&self.generation.to_be_bytes(), &period.to_be_bytes()],
        );
        SigningKey::from_seed(*seed.expose())
    }
}

impl ZeroizeOnDrop for KeySchedule {}

impl fmt::Debug for KeySchedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeySchedule(secret, generation {})", self.generation)
    }
}

/// Public keys by their id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwkSet {
    keys: BTreeMap<String, VerifyingKey>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    keys: Vec<Jwk>,
}

/// Members as RFC 7517 and 7518 name them; others are ignored, as they ask.
#[derive(Serialize, Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
    #[serde(default, rename = "use")]
    usage: String,
    #[serde(default)]
    alg: String,
    #[serde(default)]
    kid: String,
}

impl JwkSet {
    /// A set of these keys.
    pub fn new(keys: impl IntoIterator<Item = VerifyingKey>) -> Self {
        Self {
            keys: keys.into_iter().map(|key| (key_id(&key), key)).collect(),
        }
    }

    /// Reads a set; keys that are not P-256 signature keys are passed over, as RFC 7517 asks.
    ///
    /// # Errors
    /// [`JwksError::Malformed`] if the text is no set.
    pub fn from_json(text: &str) -> Result<Self, JwksError> {
        if text.len() > MAX_JWKS_BYTES {
            return Err(JwksError::Malformed);
        }
        let document: Document = serde_json::from_str(text).map_err(|_| JwksError::Malformed)?;
        if document.keys.len() > MAX_KEYS {
            return Err(JwksError::Malformed);
        }
        let mut keys = BTreeMap::new();
        for jwk in document.keys {
            if jwk.kty != "EC" || jwk.crv != "P-256" || jwk.alg != "ES256" || jwk.usage != "sig" {
                continue;
            }
            let key = point(&jwk.x, &jwk.y).ok_or(JwksError::Malformed)?;
            // The id is the thumbprint, so a set cannot give one key the name of another.
            if key_id(&key) != jwk.kid {
                return Err(JwksError::Malformed);
            }
            keys.insert(jwk.kid, key);
        }
        Ok(Self { keys })
    }

    /// The set as served at `/.well-known/jwks.json`.
    pub fn to_json(&self) -> String {
        let keys = self
            .keys
            .iter()
            .map(|(kid, key)| Jwk {
                kty: "EC".into(),
                crv: "P-256".into(),
                x: URL_SAFE_NO_PAD.encode(&key.0[1..33]),
                y: URL_SAFE_NO_PAD.encode(&key.0[33..]),
                usage: "sig".into(),
                alg: "ES256".into(),
                kid: kid.clone(),
            })
            .collect();
        serde_json::to_string(&Document { keys }).expect("strings have a JSON form")
    }

    pub(crate) fn get(&self, key_id: &str) -> Option<&VerifyingKey> {
        self.keys.get(key_id)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The thumbprint of RFC 7638.
pub(crate) fn key_id(key: &VerifyingKey) -> String {
    let x = URL_SAFE_NO_PAD.encode(&key.0[1..33]);
    let y = URL_SAFE_NO_PAD.encode(&key.0[33..]);
    let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    URL_SAFE_NO_PAD.encode(digest(&SHA256, canonical.as_bytes()))
}

fn point(x: &str, y: &str) -> Option<VerifyingKey> {
    let mut point = [4; 65];
    for (half, text) in point[1..].chunks_exact_mut(32).zip([x, y]) {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        half.copy_from_slice(<&[u8; 32]>::try_from(bytes.as_slice()).ok()?);
    }
    Some(VerifyingKey(point))
}
