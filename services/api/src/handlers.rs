//! The operations, by what they are about. A handler reads what it decides on, decides, and commits one [`Change`]; it may be
//! run again from the start when somebody else was faster, so it does nothing outside the change that must not happen twice.
//!
//! [`Change`]: crate::store::Change

mod anchor;
mod attachments;
mod audit;
mod audit_reports;
mod bills;
mod disks;
mod edge_state;
mod edges;
mod granted;
mod granted_calls;
mod grants;
mod keys;
mod limits;
mod members;
mod nodes;
mod recoveries;
mod rings;
mod served;
mod service;
mod sessions;
mod shared_costs;
mod signup;
mod staff;
mod tenants;
mod usage;
mod volume_members;
mod volumes;

pub use audit::{verify_chain, verify_head};
pub(crate) use audit_reports::AuditReportRecord;
pub(crate) use bills::refused;
pub(crate) use disks::{DiskRecord, disk_name_sort};
pub(crate) use edges::{EdgeRecord, JOIN_SECONDS, JoinRecord, edge_name_sort};
pub(crate) use grants::{GRANTS, GrantRecord};
pub(crate) use keys::{KeyRecord, key_name_sort};
pub(crate) use limits::LimitsRecord;
pub use limits::set_capped;
pub(crate) use members::{MemberRecord, email_sort};
pub use nodes::find_lost_nodes;
pub(crate) use nodes::{NodeRecord, node_name_sort};
pub(crate) use recoveries::{RecoveryRecord, TENANT_KEYS};
pub(crate) use rings::{RingRecord, verified_ring, volumes_that_list};
pub(crate) use signup::SignUpRecord;
pub(crate) use tenants::{CLOSED, TenantRecord};
pub(crate) use volumes::{VolumeRecord, volume_name_sort};

use crate::{endpoint::Endpoint, problem::Problem, secrets::hex};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

/// Operations of a tenant's at which nobody is authenticated yet: each checks a secret first.
pub(crate) const DOORS: [&str; 6] = [
    "exchangeKey",
    "confirmMember",
    "confirmRecovery",
    "joinEdge",
    "joinNode",
    "callDisk",
];

pub(crate) fn endpoints() -> Vec<Endpoint> {
    [
        service::endpoints(),
        signup::endpoints(),
        recoveries::endpoints(),
        tenants::endpoints(),
        members::endpoints(),
        keys::endpoints(),
        volumes::endpoints(),
        volume_members::endpoints(),
        rings::endpoints(),
        grants::endpoints(),
        granted::endpoints(),
        edges::endpoints(),
        sessions::endpoints(),
        anchor::endpoints(),
        disks::endpoints(),
        attachments::endpoints(),
        nodes::endpoints(),
        limits::endpoints(),
        usage::endpoints(),
        bills::endpoints(),
        shared_costs::endpoints(),
        staff::endpoints(),
        audit::endpoints(),
        audit_reports::endpoints(),
    ]
    .concat()
}

/// A name's place in an index: hashed, because folding can make a name many times longer.
fn name_sort(kind: &str, folded: &str) -> String {
    format!("name/{kind}/{}", hex(blake3::hash(folded.as_bytes()).as_bytes()))
}

/// Decodes a field of base64.
fn base64_field(field: &str, text: &str, limit_bytes: usize) -> Result<Vec<u8>, Problem> {
    let bytes = STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| Problem::field(field, "not base64 without padding"))?;
    if bytes.len() > limit_bytes {
        return Err(Problem::field(field, format!("more than {limit_bytes} bytes")));
    }
    Ok(bytes)
}

/// Decodes a field of hex digits.
fn hex_field<const N: usize>(field: &str, text: &str) -> Result<[u8; N], Problem> {
    crate::secrets::unhex(text)
        .ok_or_else(|| Problem::field(field, format!("not {} lower-case hex digits", 2 * N)))
}

/// An entry of an index of names: what has this name.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct NameRecord {
    pub(crate) owner: String,
}

impl crate::store::Record for NameRecord {
    const KIND: &'static str = "name";
}

/// The entry of a name that `owner` has, to be deleted when that ends. What was made before names of its kind were taken has none.
pub(crate) async fn name_entry(
    store: &crate::store::TenantStore,
    sort: &str,
    owner: impl ToString,
) -> Result<Option<crate::store::Loaded<NameRecord>>, Problem> {
    let entry = store.get::<NameRecord>(sort).await?;
    Ok(entry.filter(|entry| entry.record.owner == owner.to_string()))
}

/// Refuses a name that something else has.
async fn require_free_name(store: &crate::store::TenantStore, sort: &str) -> Result<(), Problem> {
    match store.get::<NameRecord>(sort).await? {
        None => Ok(()),
        Some(taken) => Err(name_taken(&taken.record)),
    }
}

fn name_taken(by: &NameRecord) -> Problem {
    Problem::new(
        crate::problem::Code::NameTaken,
        format!("{} has it, or one that reads alike; choose another", by.owner),
    )
}
