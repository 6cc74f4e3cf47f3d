//! Tokens: who acts, for which tenant, in which role, towards whom, for at most five minutes.
//!
//! A token is a JWT signed with ES256. The issuer (the API) makes one from an API key, a login or a client certificate; a
//! verifier (the API, the gateway, a node) needs only the key set and the list of revocations. Short life does most of the
//! work: what is not revoked within seconds by the pushed list dies within minutes by itself.
//!
//! ```text
//! text ── size, shape ── key id ── signature ── issuer, audience ── times ± skew ── revocations ──► VerifiedToken
//! ```

use crate::{
    JwkSet, KeySchedule, Principal, Revocations, Role, TenantId, TokenId, UnixTime,
    jws::{self, JwsError},
    secret::Entropy,
};
use serde::{Deserialize, Serialize};

/// The longest life of a token: a stolen one is worth no more than this.
pub const MAX_TOKEN_SECONDS: u64 = 300;
/// How far clocks may disagree. NTP keeps servers within milliseconds; a virtual machine that slept needs some seconds.
pub const CLOCK_SKEW_SECONDS: u64 = 30;
/// The longest text read as a token; ours take some 600 bytes.
pub const MAX_TOKEN_BYTES: usize = 4096;
/// The most scopes of a token or an API key.
pub const MAX_SCOPES: usize = 32;
/// The longest scope.
pub const MAX_SCOPE_BYTES: usize = 64;
/// The header's `typ` (RFC 9068), so that no other signed text of ours passes for a token.
const KIND: &str = "at+jwt";

/// Why a token was refused. Nothing of the token is repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token of ours by its form.
    #[error("not a token; ask for a new one")]
    Malformed,
    /// Signed with a key that the set at hand does not hold: too old, forged, or the set is stale.
    #[error("the token's key is unknown; refresh the key set once, then ask for a new token")]
    UnknownKey,
    /// The key it names did not sign it.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// From another service.
    #[error("the token was issued by another service")]
    WrongIssuer,
    /// Meant for another service.
    #[error("the token is meant for another service")]
    WrongAudience,
    /// Its time is over.
    #[error("the token has expired; ask for a new one")]
    Expired,
    /// Its time has not come: a clock is wrong.
    #[error("the token is not valid yet; check the clocks")]
    NotYetValid,
    /// It would live longer than any token may.
    #[error("the token would live longer than {MAX_TOKEN_SECONDS} s")]
    LivesTooLong,
    /// Taken back.
    #[error("the token was revoked")]
    Revoked,
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Who issued it: the service's address.
    #[serde(rename = "iss")]
    pub issuer: String,
    /// For whom: one service.
    #[serde(rename = "aud")]
    pub audience: String,
    /// Who acts.
    #[serde(rename = "sub")]
    pub principal: Principal,
    /// Within which tenant.
    #[serde(rename = "tid")]
    pub tenant: TenantId,
    /// In which role.
    pub role: Role,
    /// What of the role's rights it is limited to; empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// When it was made.
    #[serde(rename = "iat")]
    pub issued: UnixTime,
    /// From when it holds.
    #[serde(rename = "nbf")]
    pub not_before: UnixTime,
    /// From when it no longer holds.
    #[serde(rename = "exp")]
    pub expires: UnixTime,
    /// Its name.
    #[serde(rename = "jti")]
    pub id: TokenId,
}

/// What a token is asked for with.
#[derive(Clone, Debug)]
pub struct Grant {
    /// For whom.
    pub audience: String,
    /// Who acts.
    pub principal: Principal,
    /// Within which tenant.
    pub tenant: TenantId,
    /// In which role.
    pub role: Role,
    /// What of the role's rights; empty: all.
    pub scopes: Vec<String>,
    /// For how long; more than [`MAX_TOKEN_SECONDS`] is cut to it.
    pub lifetime_seconds: u64,
}

/// The side that makes tokens.
#[derive(Clone, Debug)]
pub struct TokenIssuer {
    name: String,
    keys: KeySchedule,
}

impl TokenIssuer {
    /// An issuer known as `name`.
    pub fn new(name: impl Into<String>, keys: KeySchedule) -> Self {
        Self {
            name: name.into(),
            keys,
        }
    }

    /// Makes a token, and says what is in it.
    pub fn issue(&self, grant: &Grant, now: UnixTime, entropy: Entropy<'_>) -> (String, Claims) {
        let claims = Claims {
            issuer: self.name.clone(),
            audience: grant.audience.clone(),
            principal: grant.principal,
            tenant: grant.tenant,
            role: grant.role,
            scopes: grant.scopes.clone(),
            issued: now,
            not_before: now,
            expires: now.plus(grant.lifetime_seconds.min(MAX_TOKEN_SECONDS)),
            id: TokenId::random(entropy),
        };
        let payload = serde_json::to_vec(&claims).expect("claims have a JSON form");
        (jws::sign(&self.keys.signing_key(now), KIND, &payload), claims)
    }

    /// Signs a list of revocations for all verifiers.
    pub fn sign_revocations(&self, list: &Revocations, now: UnixTime) -> String {
        list.sign(&self.keys.signing_key(now))
    }

    /// The keys verifiers need about `now`.
    pub fn public_keys(&self, now: UnixTime) -> JwkSet {
        self.keys.public_keys(now)
    }
}

/// A token that was checked. Only [`TokenVerifier::verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedToken(Claims);

impl VerifiedToken {
    /// What it says.
    pub fn claims(&self) -> &Claims {
        &self.0
    }
}

/// The side that checks tokens. A value: whoever holds it swaps keys and revocations when newer ones come.
#[derive(Clone, Debug)]
pub struct TokenVerifier {
    issuer: String,
    audience: String,
    /// The issuer's keys.
    pub keys: JwkSet,
    /// What was taken back.
    pub revocations: Revocations,
}

impl TokenVerifier {
    /// Accepts tokens of `issuer` meant for `audience`.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>, keys: JwkSet) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into(),
            keys,
            revocations: Revocations::default(),
        }
    }

    /// Checks a token.
    ///
    /// # Errors
    /// [`TokenError`] says what is wrong. On [`TokenError::UnknownKey`] refresh the key set, at most once in some seconds.
    pub fn verify(&self, text: &str, now: UnixTime) -> Result<VerifiedToken, TokenError> {
        let payload = jws::open(text, KIND, &self.keys, MAX_TOKEN_BYTES).map_err(|error| match error {
            JwsError::Malformed => TokenError::Malformed,
            JwsError::UnknownKey => TokenError::UnknownKey,
            JwsError::BadSignature => TokenError::BadSignature,
        })?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| TokenError::Malformed)?;
        if claims.issuer != self.issuer {
            return Err(TokenError::WrongIssuer);
        }
        if claims.audience != self.audience {
            return Err(TokenError::WrongAudience);
        }
        if claims.scopes.len() > MAX_SCOPES || claims.expires <= claims.issued {
            return Err(TokenError::Malformed);
        }
        if claims.expires.minus(MAX_TOKEN_SECONDS) > claims.issued {
            return Err(TokenError::LivesTooLong);
        }
        if now >= claims.expires.plus(CLOCK_SKEW_SECONDS) {
            return Err(TokenError::Expired);
        }
        let earliest = now.plus(CLOCK_SKEW_SECONDS);
        if claims.not_before > earliest || claims.issued > earliest {
            return Err(TokenError::NotYetValid);
        }
        if self.revocations.covers(&claims) {
            return Err(TokenError::Revoked);
        }
        Ok(VerifiedToken(claims))
    }
}
