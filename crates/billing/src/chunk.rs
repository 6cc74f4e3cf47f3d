//! A chunk: records as they were received, with by whom and when.
//!
//! ```text
//! chunk   = version u8 = 1 | role u8 (0 observed, 1 advisory) | received_ms u64
//!         | bound tenant text (empty: none) | usage batch
//! ```

use crate::{BillingError, Reporter, ReporterRole};
use bytes::Bytes;
use firn_table::{Item, ItemKey};
use firn_usage::{TenantName, UsageBatch};

const VERSION: u8 = 1;
/// Before the tenant's text.
const FIXED_BYTES: usize = 11;

pub(crate) struct Chunk {
    pub(crate) role: ReporterRole,
    pub(crate) received_ms: u64,
    /// The tenant to which an edge's reports are bound.
    pub(crate) bound: Option<TenantName>,
    pub(crate) batch: UsageBatch,
}

pub(crate) fn encode(
    reporter: &Reporter,
    received_ms: u64,
    batch: &UsageBatch,
) -> Result<Bytes, BillingError> {
    let batch = batch.encode()?;
    let tenant = reporter.tenant().map_or("", |tenant| tenant.as_str());
    let mut bytes = Vec::with_capacity(FIXED_BYTES + tenant.len() + batch.len());
    bytes.push(VERSION);
    bytes.push(match reporter.role() {
        ReporterRole::Observed => 0,
        ReporterRole::Advisory => 1,
    });
    bytes.extend_from_slice(&received_ms.to_le_bytes());
    bytes.push(tenant.len() as u8);
    bytes.extend_from_slice(tenant.as_bytes());
    bytes.extend_from_slice(&batch);
    Ok(bytes.into())
}

pub(crate) fn decode(item: &Item) -> Result<Chunk, BillingError> {
    parse(&item.value).map_err(|what| wrong(&item.key, what))
}

fn wrong(key: &ItemKey, what: String) -> BillingError {
    BillingError::Item {
        key: format!("{}/{}", key.partition, key.sort),
        what,
    }
}

fn parse(bytes: &[u8]) -> Result<Chunk, String> {
    let short = || "it is cut short".to_owned();
    let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>().ok_or_else(short)?;
    let [VERSION, role, received @ .., tenant_bytes] = fixed else {
        return Err(format!("it has version {}, this build reads {VERSION}", fixed[0]));
    };
    let role = match role {
        0 => ReporterRole::Observed,
        1 => ReporterRole::Advisory,
        other => return Err(format!("role {other}")),
    };
    let received_ms = u64::from_le_bytes(*received);
    let (tenant, batch) = rest
        .split_at_checked(usize::from(*tenant_bytes))
        .ok_or_else(short)?;
    let bound = match std::str::from_utf8(tenant) {
        Ok("") => None,
        Ok(name) => Some(TenantName::new(name).map_err(|error| error.to_string())?),
        Err(error) => return Err(error.to_string()),
    };
    Ok(Chunk {
        role,
        received_ms,
        bound,
        batch: UsageBatch::decode(batch).map_err(|error| error.to_string())?,
    })
}
