//! Tokens taken back before their time. The API signs the list; every verifier keeps the newest it saw.
//!
//! An entry says "of this token, principal or tenant, nothing issued up to that moment". It is needed only as long as such
//! a token could still be valid, so the list forgets entries after five and a half minutes and stays short by itself. If it
//! fills all the same, it fails safe: it revokes everybody's tokens up to now, who then ask for new ones.

use crate::{
    CLOCK_SKEW_SECONDS, Claims, JwkSet, MAX_TOKEN_SECONDS, Principal, SigningKey, TenantId, TokenId,
    UnixTime, jws,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most entries: with some 80 bytes each, the list fits one item of the table.
pub const MAX_REVOCATIONS: usize = 4096;
/// The longest signed list read: base64 of that.
const MAX_REVOCATIONS_BYTES: usize = 1 << 20;
/// More revocations than are made in a second; 2^53, the largest number that every reader of JSON keeps, is reached in 2242.
const RESTORE_STEP: u64 = 1 << 20;
const KIND: &str = "firn-revocations+jwt";

/// What is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Revoked {
    /// One token.
    Token(TokenId),
    /// All tokens of somebody.
    Principal(Principal),
    /// All tokens of a tenant.
    Tenant(TenantId),
}

/// Why a pushed list was refused; the one at hand stays in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RevocationsError {
    /// Not signed by the service, or no list.
    #[error("not a list of revocations signed by the service")]
    NotAuthentic,
    /// Older than the one at hand.
    #[error("list {found} of revocations is older than list {newest}, which was seen before")]
    Stale {
        /// Its number.
        found: u64,
        /// The number of the newest seen.
        newest: u64,
    },
}

/// A list of revocations; lists are numbered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct Revocations {
    sequence: u64,
    everything_up_to: Option<UnixTime>,
    up_to: BTreeMap<Revoked, UnixTime>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    sequence: u64,
    everything_up_to: Option<UnixTime>,
    up_to: Vec<(Revoked, UnixTime)>,
}

impl From<Document> for Revocations {
    fn from(document: Document) -> Self {
        Self {
            sequence: document.sequence,
            everything_up_to: document.everything_up_to,
            up_to: document.up_to.into_iter().collect(),
        }
    }
}

impl From<Revocations> for Document {
    fn from(list: Revocations) -> Self {
        Self {
            sequence: list.sequence,
            everything_up_to: list.everything_up_to,
            up_to: list.up_to.into_iter().collect(),
        }
    }
}

impl Revocations {
    /// Takes back what was issued up to `now` included, and gives the list the next number.
    pub fn revoke(&mut self, what: Revoked, now: UnixTime) {
        self.forget(now);
        self.sequence += 1;
        if self.up_to.len() >= MAX_REVOCATIONS && !self.up_to.contains_key(&what) {
            self.everything_up_to = Some(now);
            self.up_to.clear();
            return;
        }
        let up_to = self.up_to.entry(what).or_insert(now);
        *up_to = now.max(*up_to);
    }

    /// Takes back everything issued up to `now` included, under a number that no list before had, even if newer lists than this
    /// one were lost: lists are counted up by revocations, of which there are fewer than a million a second.
    pub fn revoke_everything_after_restore(&mut self, now: UnixTime) {
        self.sequence = self
            .sequence
            .saturating_add(1)
            .max(now.0.saturating_mul(RESTORE_STEP));
        self.everything_up_to = Some(now);
        self.up_to.clear();
    }

    /// Drops what no valid token can match any more.
    pub fn forget(&mut self, now: UnixTime) {
        let oldest = now.minus(MAX_TOKEN_SECONDS + 2 * CLOCK_SKEW_SECONDS);
        self.up_to.retain(|_, up_to| *up_to >= oldest);
        self.everything_up_to = self.everything_up_to.filter(|up_to| *up_to >= oldest);
    }

    /// Whether a token is taken back.
    pub fn covers(&self, claims: &Claims) -> bool {
        let named = [
            Revoked::Token(claims.id),
            Revoked::Principal(claims.principal),
            Revoked::Tenant(claims.tenant),
        ];
        self.everything_up_to.is_some_and(|up_to| claims.issued <= up_to)
            || named
                .iter()
                .filter_map(|what| self.up_to.get(what))
                .any(|up_to| claims.issued <= *up_to)
    }

    /// The list's number: each change raises it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.up_to.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.up_to.is_empty() && self.everything_up_to.is_none()
    }

    pub(crate) fn sign(&self, key: &SigningKey) -> String {
        let payload = serde_json::to_vec(self).expect("names and numbers have a JSON form");
        jws::sign(key, KIND, &payload)
    }

    /// Takes over a pushed list if the service signed it and it is not older than this one.
    ///
    /// # Errors
    /// [`RevocationsError`]; this list is then unchanged.
    pub fn accept(&mut self, text: &str, keys: &JwkSet) -> Result<(), RevocationsError> {
        let payload =
            jws::open(text, KIND, keys, MAX_REVOCATIONS_BYTES).map_err(|_| RevocationsError::NotAuthentic)?;
        let document: Document =
            serde_json::from_slice(&payload).map_err(|_| RevocationsError::NotAuthentic)?;
        if document.up_to.len() > MAX_REVOCATIONS {
            return Err(RevocationsError::NotAuthentic);
        }
        if document.sequence < self.sequence {
            return Err(RevocationsError::Stale {
                found: document.sequence,
                newest: self.sequence,
            });
        }
        *self = document.into();
        Ok(())
    }
}
