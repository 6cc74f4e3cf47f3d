//! Short-lived credentials of the cloud, for an edge and one of the volumes it serves ([`crate::cloud`]).

use super::{
    EdgeRecord,
    rings::{keep_newest, place_of},
    served::served,
};
use crate::{
    cloud::{CloudCredential, CloudError, SESSION_SECONDS, SessionRequest},
    endpoint::{Call, Endpoint, Reply},
    handlers::tenants::TenantRecord,
    problem::{Code, Problem},
    store::Loaded,
    types::{CloudSessionStarted, EdgeState, GrantAccess, Nothing, Volume},
};
use axum::http::{Method, StatusCode};
use firn_anchor_service::GrantedCaller;
use firn_identity::{EdgeId, TenantId, TenantVolume, VolumeId};

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/session",
            "startCloudSession",
            "Gives an edge credentials of the cloud, for a quarter of an hour and one volume's prefix",
            start,
        )
        .takes::<Nothing>()
        .gives::<CloudSessionStarted>(StatusCode::CREATED),
    ]
}

/// Refuses an edge that was removed.
pub(super) fn require_active(edge: &Loaded<EdgeRecord>) -> Result<(), Problem> {
    if edge.record.edge.state == EdgeState::Active {
        return Ok(());
    }
    Err(Problem::new(Code::CertificateRefused, "the edge was removed"))
}

/// The logs of the writers that an edge drew by a grant, as names below the volume's place. What it draws after this is in its next session.
async fn logs_of(
    call: &Call,
    edge: EdgeId,
    owner: TenantId,
    volume: &Volume,
) -> Result<Vec<String>, Problem> {
    let Some(family) = &volume.family else {
        return Ok(Vec::new());
    };
    let caller = GrantedCaller {
        tenant: call.context()?.tenant(),
        edge,
    };
    let place = TenantVolume {
        tenant: owner,
        volume: volume.id,
    };
    let writers = call.app.anchor().drawn_writers(place, caller).await?;
    let logs = writers
        .iter()
        .map(|writer| format!("{family}/log/{:016x}/", writer.0));
    Ok(logs.collect())
}

/// Not kept for a repetition: each request starts a session of its own, and a secret that is not stored cannot leak.
async fn start(call: Call) -> Result<Reply, Problem> {
    let _: Nothing = call.body()?;
    let (edge, id): (EdgeId, VolumeId) = (call.param("edge")?, call.param("volume")?);
    let opened = served(&call, edge, id).await?;
    let (tenant, access) = (opened.owner, opened.access);
    let volume = opened.volume.record.volume.clone();
    let owner = opened
        .store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    let nowhere = |why: String| Problem::new(Code::WrongState, why);
    let (place, role) = place_of(&call, tenant, &volume)?;
    let held_to = match access {
        Some(GrantAccess::Write) => Some(logs_of(&call, edge, tenant, &volume).await?),
        Some(GrantAccess::Read) | None => None,
    };
    let is_held_to_its_logs = held_to.is_some();
    let request = SessionRequest {
        tenant,
        edge,
        volume: volume.id,
        role,
        external_id: owner.record.tenant.external_id.clone(),
        place: place.clone(),
        is_read_only: access == Some(GrantAccess::Read),
        held_to,
        seconds: SESSION_SECONDS,
    };
    // Noted first: a session that nobody knows of is worse than a note of one that did not start. Whoever removes the edge
    // knows by the note how long to wait.
    let loaded = opened.edge;
    let mut record = loaded.record.clone();
    record.note_session(call.app.now());
    call.change("cloud-session.start", edge)?
        .detail(volume.id.to_string())
        .update(&loaded, &record)
        .commit(call.app.env(), None)
        .await?;
    keep_newest(&call, &opened.store, tenant, &volume).await;
    let session = call
        .app
        .cloud()
        .start(&request)
        .await
        .map_err(|error| match error {
            CloudError::Refused(_) => nowhere(error.to_string()),
            CloudError::Unavailable(_) => Problem::new(Code::StorageUnavailable, error.to_string()),
        })?;
    // Removed or revoked while the cloud was asked: what it gave stays here, so that all that an edge holds was given before that.
    served(&call, edge, id).await?;
    let mut started = CloudSessionStarted {
        bucket: place.bucket,
        prefix: place.prefix,
        access_key_id: String::new(),
        secret_access_key: String::new(),
        session_token: String::new(),
        azure_account: place.account.unwrap_or_default(),
        azure_signature: String::new(),
        is_held_to_its_logs,
        expires: session.expires,
    };
    match session.credential {
        CloudCredential::Aws(session) => {
            started.access_key_id = session.access_key_id;
            started.secret_access_key = session.secret_access_key;
            started.session_token = session.session_token;
        }
        CloudCredential::AzureSas(signature) => started.azure_signature = signature,
    }
    Ok(Reply::json(StatusCode::CREATED, &started))
}
