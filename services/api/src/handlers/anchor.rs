//! The anchor of the volumes that edges serve, mounted: `crates/anchor`'s typed calls behind the service's own door.
//!
//! ```text
//! edge ── certificate ──▶ is it active, does it serve the volume or was it granted to it, is the volume active?
//!                           │ reads: answered
//!                           └ changes: together with checks that edge, grant and volume are still the versions that were looked at
//! stored in the partition   anchor/<owner>/<volume>
//! ```
//!
//! So no root is committed after the transaction that removes its edge (or deletes the volume, or revokes the grant), whatever the edge still holds and
//! whichever instance it asks: a commit that was under way meets the new version, and starts over in front of a closed door.
//! What a call may say, and what becomes of it, is `services/anchor`'s matter.
//!
//! A root's commit is not an audit entry: a tenant's entries form a chain, and its edges would wait for each other in it.

use super::{granted_calls, served::served};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
};
use axum::http::{Method, StatusCode};
use firn_anchor::{AnchorAnswer, AnchorCall, AnchorRole, EDGE_CALL_BYTES_MAX, PrincipalId};
use firn_anchor_service::{Admitted, GrantedCaller};
use firn_identity::{EdgeId, TenantVolume, VolumeId};
use firn_table::TableError;

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/anchor",
            "callAnchor",
            "Reads or changes the roots of a volume that the edge serves",
            call,
        )
        .takes::<AnchorCall>()
        // A cleaner's would be larger, and is refused here.
        .up_to(EDGE_CALL_BYTES_MAX)
        .gives::<AnchorAnswer>(StatusCode::OK),
    ]
}

async fn call(call: Call) -> Result<Reply, Problem> {
    let asked: AnchorCall = call.body()?;
    let (edge, volume): (EdgeId, VolumeId) = (call.param("edge")?, call.param("volume")?);
    if !AnchorRole::Edge.may(&asked) {
        let why =
            "an edge commits roots; retiring and deleting is a cleaner's work, which has a way of its own";
        return Err(Problem::new(Code::NotAllowed, why));
    }
    let served = served(&call, edge, volume).await?;
    let role = served.role();
    if !role.may(&asked) {
        return Err(Problem::new(
            Code::NotAllowed,
            "the volume was granted to be read: its roots are changed by those who may write",
        ));
    }
    granted_calls::check(&call, &served, &asked).await?;
    let admitted = Admitted {
        volume: TenantVolume {
            tenant: served.owner,
            volume,
        },
        role,
        principal: PrincipalId(edge.0),
        granted: served.access.map(|_| GrantedCaller {
            tenant: served.grantee,
            edge,
        }),
        guards: served.guards,
    };
    let answer = call
        .app
        .anchor()
        .answer(admitted, asked)
        .await
        .map_err(|error| match error {
            TableError::Limit(why) => Problem::new(Code::InvalidField, why),
            // Of the guards: everything is looked at again.
            TableError::ConditionFailed { .. }
            | TableError::Unavailable(_)
            | TableError::InvalidAnswer(_)
            | TableError::Refused(_) => error.into(),
        })?;
    Ok(Reply::json(StatusCode::OK, &answer))
}
