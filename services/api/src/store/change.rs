//! One change: what it writes, the audit entry that tells of it, and the reply kept for a repetition, in one transaction.
//!
//! So there is no change without its audit entry, no entry without its change, and a request repeated under its idempotency
//! key finds either nothing done or the first reply. Audit entries form a chain: each names the hash of the one before, and
//! the head is an item that every change replaces under its version; two changes of a tenant at once means that one of them
//! starts over.
//!
//! ```text
//! transaction = the change's puts, deletes, checks
//!             + audit/<sequence>  absent → entry          + audit-head  version → sequence, hash
//!             + kept-reply/<hash of idempotency key>      absent → sealed reply
//! ```

use super::{Loaded, Record, TenantStore, encode, load};
use crate::{problem::Problem, secrets::hex, types::AuditEntry};
use firn_env::Env;
use firn_identity::{Principal, UnixTime};
use firn_table::{Condition, ItemKey, ItemVersion, TableError, Write};
use serde::{Deserialize, Serialize};

impl Record for AuditEntry {
    const KIND: &'static str = "audit-entry";
}

/// The newest entry of a tenant's audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditTail {
    pub(crate) sequence: u64,
    pub(crate) hash: String,
}

impl Record for AuditTail {
    const KIND: &'static str = "audit-tail";
}

/// The reply to a request with an idempotency key, sealed: it may hold a secret that is shown once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptReply {
    pub(crate) request_hash: String,
    pub(crate) sealed: String,
    pub(crate) expires: UnixTime,
}

impl Record for KeptReply {
    const KIND: &'static str = "kept-reply";
}

pub(crate) const AUDIT_TAIL: &str = "audit-tail";

pub(crate) fn audit_sort(sequence: u64) -> String {
    format!("audit/{sequence:016x}")
}

impl AuditEntry {
    /// The hash the entry should carry: over every other field, each with its length before it.
    pub fn computed_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("firn-api 1 audit entry");
        let principal = self
            .principal
            .map(|principal| principal.to_string())
            .unwrap_or_default();
        let (sequence, at) = (self.sequence.to_string(), self.at.0.to_string());
        for part in [
            &sequence,
            &at,
            &principal,
            &self.action,
            &self.target,
            &self.detail,
            &self.nonce,
            &self.previous,
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hex(hasher.finalize().as_bytes())
    }
}

/// A change under construction.
pub(crate) struct Change {
    store: TenantStore,
    principal: Option<Principal>,
    action: &'static str,
    target: String,
    detail: String,
    writes: Vec<Write>,
}

impl Change {
    pub(crate) fn new(
        store: &TenantStore,
        principal: Option<Principal>,
        action: &'static str,
        target: impl ToString,
    ) -> Self {
        Self {
            store: store.clone(),
            principal,
            action,
            target: target.to_string(),
            detail: String::new(),
            writes: Vec::new(),
        }
    }

    /// What the audit entry says beside.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Who the audit entry names, when that is known only now.
    pub(crate) fn by(mut self, principal: Principal) -> Self {
        self.principal = Some(principal);
        self
    }

    pub(crate) fn create<T: Record>(mut self, sort: &str, record: &T) -> Self {
        let key = self.store.key(sort);
        self.writes.push(Write::Put {
            key,
            value: encode(record),
            condition: Condition::Absent,
        });
        self
    }

    pub(crate) fn update<T: Record>(mut self, loaded: &Loaded<T>, record: &T) -> Self {
        self.writes.push(Write::Put {
            key: loaded.key.clone(),
            value: encode(record),
            condition: Condition::Version(loaded.version),
        });
        self
    }

    pub(crate) fn delete<T>(mut self, loaded: &Loaded<T>) -> Self {
        self.writes.push(Write::Delete {
            key: loaded.key.clone(),
            version: loaded.version,
        });
        self
    }

    pub(crate) fn check<T>(mut self, loaded: &Loaded<T>) -> Self {
        let condition = Condition::Version(loaded.version);
        self.writes.push(Write::Check {
            key: loaded.key.clone(),
            condition,
        });
        self
    }

    /// Puts an item of a partition that belongs to no tenant.
    pub(crate) fn create_outside<T: Record>(mut self, key: ItemKey, record: &T) -> Self {
        self.writes.push(Write::Put {
            key,
            value: encode(record),
            condition: Condition::Absent,
        });
        self
    }

    /// Puts an item of a partition that belongs to no tenant in the place of the version that was read, or of nothing.
    pub(crate) fn replace_outside<T: Record>(
        mut self,
        key: ItemKey,
        read: Option<ItemVersion>,
        record: &T,
    ) -> Self {
        self.writes.push(Write::Put {
            key,
            value: encode(record),
            condition: read.map_or(Condition::Absent, Condition::Version),
        });
        self
    }

    /// Makes the change, all of it or nothing, and keeps `reply` for a repetition.
    pub(crate) async fn commit(
        self,
        env: &Env,
        kept: Option<(String, KeptReply)>,
    ) -> Result<Vec<Option<firn_table::ItemVersion>>, Problem> {
        let Self {
            store,
            principal,
            action,
            target,
            detail,
            mut writes,
        } = self;
        let own_writes = writes.len();
        let tail: Option<Loaded<AuditTail>> = store.get(AUDIT_TAIL).await?;
        let (sequence, previous) = match &tail {
            Some(tail) => (tail.record.sequence + 1, tail.record.hash.clone()),
            None => (1, hex(&[0; 32])),
        };
        let mut entry = AuditEntry {
            sequence,
            at: UnixTime::from_wall(env.wall()),
            principal,
            action: action.to_owned(),
            target,
            detail,
            nonce: hex(&env.random_bytes::<16>()),
            previous,
            hash: String::new(),
        };
        entry.hash = entry.computed_hash();
        let entry_key = store.key(&audit_sort(sequence));
        writes.push(Write::Put {
            key: entry_key.clone(),
            value: encode(&entry),
            condition: Condition::Absent,
        });
        writes.push(Write::Put {
            key: store.key(AUDIT_TAIL),
            value: encode(&AuditTail {
                sequence,
                hash: entry.hash.clone(),
            }),
            condition: tail.map_or(Condition::Absent, |tail| Condition::Version(tail.version)),
        });
        if let Some((sort, reply)) = kept {
            writes.push(Write::Put {
                key: store.key(&sort),
                value: encode(&reply),
                condition: Condition::Absent,
            });
        }
        match store.table().transact(writes).await {
            Ok(mut versions) => {
                versions.truncate(own_writes);
                Ok(versions)
            }
            Err(TableError::Unavailable(why)) => {
                // The reply may be what was lost: the entry with our nonce then tells that all of it happened.
                let found: Option<Loaded<AuditEntry>> = load(store.table(), &entry_key).await?;
                if found.is_some_and(|found| found.record == entry) {
                    Ok(Vec::new())
                } else {
                    Err(TableError::Unavailable(why).into())
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}
