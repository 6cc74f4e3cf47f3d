//! The audit log: read by page, its head signed.

use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::Problem,
    secrets::{hex, unhex},
    store::{AUDIT_TAIL, AuditTail},
    types::{AuditEntry, AuditHead},
};
use axum::http::{Method, StatusCode};
use firn_identity::VerifyingKey;

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/audit",
            "listAudit",
            "Lists the audit log, oldest first",
            list,
        )
        .lists::<AuditEntry>(),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/audit/head",
            "auditHead",
            "Signs the newest entry's hash; keep it where the service cannot reach it",
            head,
        )
        .gives::<AuditHead>(StatusCode::OK),
    ]
}

/// What a head's signature covers.
fn head_message(head: &AuditHead) -> Vec<u8> {
    format!(
        "firn 1 audit head\n{}\n{}\n{}\n{}",
        head.tenant, head.sequence, head.hash, head.at.0
    )
    .into_bytes()
}

/// Whether a head was signed by the key that it names. Compare that key with the one seen before: it never changes.
pub fn verify_head(head: &AuditHead) -> bool {
    let key = unhex::<65>(&head.public_key).and_then(|point| VerifyingKey::from_bytes(&point));
    match (key, unhex::<64>(&head.signature)) {
        (Some(key), Some(signature)) => key.verifies(&head_message(head), &signature),
        (None, _) | (_, None) => false,
    }
}

/// Checks that `entries`, which start with a tenant's first, form one unbroken chain; gives the last hash.
///
/// # Errors
/// Which entry breaks it, and how.
pub fn verify_chain<'a>(entries: impl IntoIterator<Item = &'a AuditEntry>) -> Result<(u64, String), String> {
    let (mut sequence, mut hash) = (0, hex(&[0; 32]));
    for entry in entries {
        if entry.sequence != sequence + 1 {
            return Err(format!(
                "entry {} follows entry {sequence}: entries are missing or doubled",
                entry.sequence
            ));
        }
        if entry.previous != hash {
            return Err(format!(
                "entry {} does not name the hash of the entry before it",
                entry.sequence
            ));
        }
        if entry.computed_hash() != entry.hash {
            return Err(format!(
                "entry {} was changed after it was written",
                entry.sequence
            ));
        }
        (sequence, hash) = (entry.sequence, entry.hash.clone());
    }
    Ok((sequence, hash))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    call.list::<AuditEntry, _>("audit/", |entry| entry).await
}

async fn head(call: Call) -> Result<Reply, Problem> {
    let tail = call
        .store()?
        .require::<AuditTail>(AUDIT_TAIL, "the tenant")
        .await?
        .record;
    let key = call.app.audit_key();
    let mut head = AuditHead {
        tenant: call.context()?.tenant(),
        sequence: tail.sequence,
        hash: tail.hash,
        at: call.app.now(),
        signature: String::new(),
        public_key: hex(&key.public().to_bytes()),
    };
    head.signature = hex(&key.sign(&head_message(&head)));
    Ok(Reply::json(StatusCode::OK, &head))
}
