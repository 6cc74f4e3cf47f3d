//! The roots of the volumes that edges serve: the anchor's table, behind the service's own door.
//!
//! ```text
//! edge ── certificate ──▶ is it active, does it serve the volume, is the volume active?
//!                           │ reads: answered
//!                           └ transactions: together with checks that edge and volume are still the versions that were looked at
//! stored in the partition   anchor/<tenant>/<volume>
//! ```
//!
//! So no root is committed after the transaction that removes its edge (or deletes the volume), whatever the edge still holds and
//! whichever instance it asks: a commit that was under way meets the new version, and starts over in front of a closed door.
//! What the items say is the edge's matter (`crates/anchor`): they hold hashes and places, no names and no keys.
//!
//! A root's commit is not an audit entry: a tenant's entries form a chain, and its edges would wait for each other in it.

use super::{EdgeRecord, sessions::require_active, volumes};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::Loaded,
};
use axum::http::{Method, StatusCode};
use firn_identity::{EdgeId, VolumeId};
use firn_table::{Condition, TableAnswer, TableCall, TableError, Write};

/// What the gateway lets through as well. A volume's tuple has a few KiB; the largest transactions of an anchor are the cleaner's,
/// and its own credentials reach the table without this door.
const CALL_BODY_BYTES: usize = 512 << 10;

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/roots",
            "callRoots",
            "Reads or changes the roots of a volume that the edge serves",
            call,
        )
        .takes::<TableCall>()
        .up_to(CALL_BODY_BYTES)
        .gives::<TableAnswer>(StatusCode::OK),
    ]
}

fn unchanged<T>(loaded: &Loaded<T>) -> Write {
    Write::Check {
        key: loaded.key.clone(),
        condition: Condition::Version(loaded.version),
    }
}

async fn call(call: Call) -> Result<Reply, Problem> {
    let asked: TableCall = call.body()?;
    let (edge, volume): (EdgeId, VolumeId) = (call.param("edge")?, call.param("volume")?);
    let store = call.store()?;
    let edge = store.require::<EdgeRecord>(&EdgeRecord::sort(edge), edge).await?;
    require_active(&edge)?;
    let known = volumes::active_served(&call).await?;
    let guards = vec![unchanged(&edge), unchanged(&known)];
    let answer = asked
        .perform(&**store.table(), &store.roots(volume), guards)
        .await
        .map_err(|error| match error {
            TableError::Limit(why) => Problem::new(Code::InvalidField, why),
            // Of the guards: everything is looked at again.
            TableError::ConditionFailed { .. } | TableError::Unavailable(_) | TableError::Refused(_) => {
                error.into()
            }
        })?;
    Ok(Reply::json(StatusCode::OK, &answer))
}
