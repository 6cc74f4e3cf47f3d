//! The compact serialisation of RFC 7515, for exactly one algorithm: ES256. The header's `alg` is compared, never obeyed.

use crate::{JwkSet, SigningKey, jwks::key_id};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

/// Why a signed text was refused, before its content was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JwsError {
    Malformed,
    UnknownKey,
    BadSignature,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
    /// Extensions that must be understood: we understand none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crit: Option<serde_json::Value>,
}

pub(crate) fn sign(key: &SigningKey, kind: &str, payload: &[u8]) -> String {
    let header = Header {
        alg: "ES256".into(),
        typ: kind.into(),
        kid: key_id(&key.public()),
        crit: None,
    };
    let header = serde_json::to_vec(&header).expect("strings have a JSON form");
    let mut text = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(payload)
    );
    let signature = key.sign(text.as_bytes());
    text.push('.');
    text.push_str(&URL_SAFE_NO_PAD.encode(signature));
    text
}

pub(crate) fn open(text: &str, kind: &str, keys: &JwkSet, limit_bytes: usize) -> Result<Vec<u8>, JwsError> {
    if text.len() > limit_bytes {
        return Err(JwsError::Malformed);
    }
    let (signed, signature) = text.rsplit_once('.').ok_or(JwsError::Malformed)?;
    let (header, payload) = signed.split_once('.').ok_or(JwsError::Malformed)?;
    let header: Header = decode(header)
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or(JwsError::Malformed)?;
    if header.alg != "ES256" || header.typ != kind || header.crit.is_some() {
        return Err(JwsError::Malformed);
    }
    let key = keys.get(&header.kid).ok_or(JwsError::UnknownKey)?;
    let signature = decode(signature).ok_or(JwsError::Malformed)?;
    if !key.verifies(signed.as_bytes(), &signature) {
        return Err(JwsError::BadSignature);
    }
    decode(payload).ok_or(JwsError::Malformed)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
