//! The list of revocations: tokens taken back before their time. The API signs it; every verifier keeps the newest it saw.
//!
//! An entry says "of this token, principal or tenant, nothing issued up to that moment". It is needed only as long as such
//! a token could still be valid, so the list forgets entries after six minutes and stays short by itself.
//!
//! Every tenant has a list of its own within it, so that none can push another's entries out. One that fills fails safe, for
//! that tenant: it becomes one entry that revokes all the tenant's tokens up to now, whose holders then ask for new ones. If
//! the whole fills, that happens to the tenant with the most entries; only when no tenant has more than one, which takes
//! [`MAX_REVOCATIONS`] tenants within six minutes, to everybody.

use crate::{
    CLOCK_SKEW_SECONDS, Claims, JwkSet, MAX_TOKEN_SECONDS, Principal, SigningKey, TenantId, TokenId,
    UnixTime, jws,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most entries: with at most 150 bytes each, a tenant's name before each included, the list fits one item of the table
/// (400 KiB) with room to spare.
pub const MAX_REVOCATIONS: usize = 2048;
/// The most entries of one tenant: logouts and removals of a busy day, not of six minutes.
pub const MAX_TENANT_REVOCATIONS: usize = 64;
/// The longest signed list read: base64 of that.
const MAX_REVOCATIONS_BYTES: usize = 1 << 20;
/// More revocations than are made in a second; 2^53, the largest number that every reader of JSON keeps, is reached in 2242.
const RESTORE_STEP: u64 = 1 << 20;
/// Version 2 has a list for each tenant; a verifier of version 1 must refuse it rather than find nothing revoked in it.
const KIND: &str = "firn-revocations-2+jwt";

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
    tenants: BTreeMap<TenantId, BTreeMap<Revoked, UnixTime>>,
    /// Of a stored list of version 1, which does not say whose an entry is: gone six minutes after the upgrade.
    unowned: BTreeMap<Revoked, UnixTime>,
}

type Entries = Vec<(Revoked, UnixTime)>;

#[derive(Serialize, Deserialize)]
struct Document {
    sequence: u64,
    everything_up_to: Option<UnixTime>,
    #[serde(default)]
    tenants: Vec<(TenantId, Entries)>,
    /// All there was in version 1.
    #[serde(default, rename = "up_to", skip_serializing_if = "Vec::is_empty")]
    unowned: Entries,
}

impl From<Document> for Revocations {
    fn from(document: Document) -> Self {
        Self {
            sequence: document.sequence,
            everything_up_to: document.everything_up_to,
            tenants: document
                .tenants
                .into_iter()
                .map(|(tenant, entries)| (tenant, entries.into_iter().collect()))
                .collect(),
            unowned: document.unowned.into_iter().collect(),
        }
    }
}

impl From<Revocations> for Document {
    fn from(list: Revocations) -> Self {
        Self {
            sequence: list.sequence,
            everything_up_to: list.everything_up_to,
            tenants: list
                .tenants
                .into_iter()
                .map(|(tenant, entries)| (tenant, entries.into_iter().collect()))
                .collect(),
            unowned: list.unowned.into_iter().collect(),
        }
    }
}

impl Revocations {
    /// Takes back what of a tenant was issued up to `now` included, and gives the list the next number.
    pub fn revoke(&mut self, tenant: TenantId, what: Revoked, now: UnixTime) {
        self.forget(now);
        self.sequence += 1;
        let entries = self.tenants.entry(tenant).or_default();
        if entries.len() >= MAX_TENANT_REVOCATIONS && !entries.contains_key(&what) {
            revoke_all(tenant, entries, now);
        } else {
            let up_to = entries.entry(what).or_insert(now);
            *up_to = now.max(*up_to);
        }
        if self.len() > MAX_REVOCATIONS {
            self.shorten(now);
        }
    }

    /// Gives room: the tenant with the most entries gets one for all its tokens, or, if nobody has two, everybody does.
    fn shorten(&mut self, now: UnixTime) {
        let most = self
            .tenants
            .iter_mut()
            .max_by_key(|(_, entries)| entries.len())
            .filter(|(_, entries)| entries.len() > 1);
        if let Some((tenant, entries)) = most {
            revoke_all(*tenant, entries, now);
            return;
        }
        self.everything_up_to = Some(now);
        self.tenants.clear();
        self.unowned.clear();
    }

    /// Takes back everything issued up to `now` included, under a number that no list before had, even if newer lists than this
    /// one were lost: lists are counted up by revocations, of which there are fewer than a million a second.
    pub fn revoke_everything_after_restore(&mut self, now: UnixTime) {
        self.sequence = self
            .sequence
            .saturating_add(1)
            .max(now.0.saturating_mul(RESTORE_STEP));
        self.everything_up_to = Some(now);
        self.tenants.clear();
        self.unowned.clear();
    }

    /// Drops what no valid token can match any more.
    pub fn forget(&mut self, now: UnixTime) {
        let oldest = now.minus(MAX_TOKEN_SECONDS + 2 * CLOCK_SKEW_SECONDS);
        for entries in self.tenants.values_mut() {
            entries.retain(|_, up_to| *up_to >= oldest);
        }
        self.tenants.retain(|_, entries| !entries.is_empty());
        self.unowned.retain(|_, up_to| *up_to >= oldest);
        self.everything_up_to = self.everything_up_to.filter(|up_to| *up_to >= oldest);
    }

    /// Whether a token is taken back.
    pub fn covers(&self, claims: &Claims) -> bool {
        let named = [
            Revoked::Token(claims.id),
            Revoked::Principal(claims.principal),
            Revoked::Tenant(claims.tenant),
        ];
        let theirs = self.tenants.get(&claims.tenant);
        self.everything_up_to.is_some_and(|up_to| claims.issued <= up_to)
            || [theirs, Some(&self.unowned)]
                .into_iter()
                .flatten()
                .flat_map(|entries| named.iter().filter_map(|what| entries.get(what)))
                .any(|up_to| claims.issued <= *up_to)
    }

    /// The list's number: each change raises it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.tenants.values().map(BTreeMap::len).sum::<usize>() + self.unowned.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.everything_up_to.is_none()
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
        let entries: usize = document.tenants.iter().map(|(_, entries)| entries.len()).sum();
        if entries + document.unowned.len() > 2 * MAX_REVOCATIONS {
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

/// One entry for all of a tenant's tokens in the place of all others, which it includes.
fn revoke_all(tenant: TenantId, entries: &mut BTreeMap<Revoked, UnixTime>, now: UnixTime) {
    let up_to = entries
        .values()
        .copied()
        .max()
        .map_or(now, |newest| newest.max(now));
    entries.clear();
    entries.insert(Revoked::Tenant(tenant), up_to);
}
