//! Grants as the other tenant has them: what it accepted, declined or left, in its own records ([`super::grants`]).

use super::{
    EdgeRecord, VolumeRecord,
    grants::{GrantRecord, MAX_EDGES},
    hex_field,
    served::records_of,
    tenants::TenantRecord,
    volumes,
};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::{Record, TenantStore},
    types::{
        AcceptGrant, Acceptance, AcceptedGrant, EdgeState, GrantAccess, GrantState, Grantee, LeaveGrant,
        Listing,
    },
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_identity::{TenantId, UnixTime, VolumeId};
use firn_seal::{GrantAcceptance, RecipientPublic, TenantPublic};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

/// Grants that one tenant answered.
const MAX_ANSWERED: usize = 100;

/// What a tenant accepted of another's, in its own records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AcceptedRecord {
    pub(super) owner: TenantId,
    volume: VolumeId,
    pub(super) access: GrantAccess,
    /// Without edges, if it was declined.
    pub(super) acceptance: Acceptance,
    accepted: UnixTime,
    /// Since when this tenant does not want it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left: Option<UnixTime>,
}

impl Record for AcceptedRecord {
    const KIND: &'static str = "granted";
}

impl AcceptedRecord {
    pub(super) const PREFIX: &'static str = "granted/";

    pub(super) fn sort(volume: VolumeId) -> String {
        format!("{}{volume}", Self::PREFIX)
    }

    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    pub(super) fn is_left(&self) -> bool {
        self.left.is_some()
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const GRANTED: &str = "/v1/tenants/{tenant}/granted";
    vec![
        Endpoint::new(
            Method::GET,
            GRANTED,
            "listGranted",
            "Lists what other tenants granted to this one, and it accepted",
            list_accepted,
        )
        .lists::<AcceptedGrant>(),
        Endpoint::new(
            Method::POST,
            GRANTED,
            "acceptGrant",
            "Accepts a grant of another tenant's volume, for edges of this tenant",
            accept,
        )
        .takes::<AcceptGrant>()
        .gives::<AcceptedGrant>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/granted/leave",
            "leaveGrant",
            "Declines a grant of another tenant's volume, or leaves it: this tenant's edges are refused from now on",
            leave,
        )
        .takes::<LeaveGrant>()
        .gives::<AcceptedGrant>(StatusCode::OK),
    ]
}

/// A grant as the tenant sees it that accepted it.
async fn shown_accepted(call: &Call, accepted: &AcceptedRecord) -> Result<AcceptedGrant, Problem> {
    let tenant = call.context()?.tenant();
    let owners = records_of(call, accepted.owner);
    let sort = GrantRecord::sort(accepted.volume, Grantee::Tenant(tenant));
    let grant = owners.get::<GrantRecord>(&sort).await?;
    let grant = grant.filter(|grant| grant.record.access == accepted.access);
    let edges = accepted.acceptance.edges.clone();
    let state = grant.map_or(GrantState::Revoked, |grant| grant.record.state(Some(accepted)));
    let volume = match state {
        GrantState::Revoked | GrantState::Left => None,
        GrantState::Offered | GrantState::Accepted | GrantState::Active => {
            owners
                .get::<VolumeRecord>(&VolumeRecord::sort(accepted.volume))
                .await?
        }
    };
    let volume = volume.map(|volume| volumes::shown(call.app.cloud(), accepted.owner, volume.record.volume));
    Ok(AcceptedGrant {
        owner: accepted.owner,
        volume: accepted.volume,
        name: volume
            .as_ref()
            .map(|volume| volume.name.as_str().to_owned())
            .unwrap_or_default(),
        store: volume.and_then(|volume| volume.store),
        access: accepted.access,
        state,
        edges,
        accepted: accepted.accepted,
    })
}

async fn list_accepted(call: Call) -> Result<Reply, Problem> {
    const PREFIX: &str = AcceptedRecord::PREFIX;
    let (limit, after) = call.page(PREFIX)?;
    let (all, next) = call
        .store()?
        .page::<AcceptedRecord>(PREFIX, after.as_deref(), limit)
        .await?;
    let items = try_join_all(all.iter().map(|accepted| shown_accepted(&call, &accepted.record))).await?;
    let listing = Listing {
        items,
        next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

/// Safe to repeat; again with other edges it replaces what was accepted.
async fn accept(call: Call) -> Result<Reply, Problem> {
    let body: AcceptGrant = call.body()?;
    let tenant = call.context()?.tenant();
    let store = call.store()?;
    if body.edges.is_empty() || body.edges.len() > MAX_EDGES {
        return Err(Problem::field("edges", format!("1 to {MAX_EDGES}")));
    }
    let owners = records_of(&call, body.owner);
    let sort = GrantRecord::sort(body.volume, Grantee::Tenant(tenant));
    let grant = owners.get::<GrantRecord>(&sort).await?;
    let grant = grant
        .filter(|grant| !grant.record.is_revoked())
        .ok_or_else(|| no_grant(&body.volume, &body.owner))?;
    check_acceptance(&store, &body, tenant, &grant.record).await?;
    let record = AcceptedRecord {
        owner: body.owner,
        volume: body.volume,
        access: grant.record.access,
        acceptance: Acceptance {
            edges: body.edges,
            signature: body.signature,
        },
        accepted: call.app.now(),
        left: None,
    };
    let sort = AcceptedRecord::sort(body.volume);
    let names: Vec<String> = record
        .acceptance
        .edges
        .iter()
        .map(|edge| edge.edge.to_string())
        .collect();
    let change = call.change("grant.accept", body.volume)?.detail(format!(
        "{}, of {}: {}",
        record.access.as_str(),
        record.owner,
        names.join(", ")
    ));
    let change = match store.get::<AcceptedRecord>(&sort).await? {
        Some(before) => change.update(&before, &record),
        None => {
            require_room(&store).await?;
            change.create(&sort, &record)
        }
    };
    let reply = Reply::json(StatusCode::OK, &shown_accepted(&call, &record).await?);
    call.commit(change, reply).await
}

/// Declines what was offered, or leaves what was accepted. Safe to repeat.
async fn leave(call: Call) -> Result<Reply, Problem> {
    let body: LeaveGrant = call.body()?;
    let tenant = call.context()?.tenant();
    let store = call.store()?;
    let sort = AcceptedRecord::sort(body.volume);
    let before = store.get::<AcceptedRecord>(&sort).await?;
    let before = before.filter(|before| before.record.owner == body.owner);
    if let Some(before) = before.as_ref().filter(|before| before.record.is_left()) {
        return Ok(Reply::json(
            StatusCode::OK,
            &shown_accepted(&call, &before.record).await?,
        ));
    }
    let now = call.app.now();
    let change = call
        .change("grant.leave", body.volume)?
        .detail(format!("of {}", body.owner));
    let (record, change) = match before {
        Some(before) => {
            let record = AcceptedRecord {
                left: Some(now),
                ..before.record.clone()
            };
            let change = change.update(&before, &record);
            (record, change)
        }
        None => {
            let owners = records_of(&call, body.owner);
            let offered = GrantRecord::sort(body.volume, Grantee::Tenant(tenant));
            let grant = owners.get::<GrantRecord>(&offered).await?;
            let grant = grant.filter(|grant| !grant.record.is_revoked());
            let grant = grant.ok_or_else(|| no_grant(&body.volume, &body.owner))?;
            require_room(&store).await?;
            let record = AcceptedRecord {
                owner: body.owner,
                volume: body.volume,
                access: grant.record.access,
                acceptance: Acceptance {
                    edges: Vec::new(),
                    signature: String::new(),
                },
                accepted: now,
                left: Some(now),
            };
            let change = change.create(&sort, &record);
            (record, change)
        }
    };
    let reply = Reply::json(StatusCode::OK, &shown_accepted(&call, &record).await?);
    call.commit(change, reply).await
}

/// That there is none and that it is another's look alike.
fn no_grant(volume: &VolumeId, owner: &TenantId) -> Problem {
    Problem::not_found(format!("a grant of {volume} by {owner} to this tenant"))
}

async fn require_room(store: &TenantStore) -> Result<(), Problem> {
    let (there, _) = store
        .page::<AcceptedRecord>(AcceptedRecord::PREFIX, None, MAX_ANSWERED)
        .await?;
    match there.len() >= MAX_ANSWERED {
        true => Err(Problem::new(
            Code::QuotaExceeded,
            format!("at most {MAX_ANSWERED} grants are answered by one tenant"),
        )),
        false => Ok(()),
    }
}

/// So that no nonsense is stored; the owner's client checks it again, against the key that it was told.
async fn check_acceptance(
    store: &TenantStore,
    body: &AcceptGrant,
    tenant: TenantId,
    grant: &GrantRecord,
) -> Result<(), Problem> {
    let own = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    let key = &own.record.tenant.tenant_key;
    if grant.grantee_key.as_ref() != Some(key) {
        return Err(Problem::new(
            Code::WrongState,
            "the owner named another key for this tenant than it has; tell them the one that firn whoami shows",
        ));
    }
    let mut edges = Vec::new();
    for granted in &body.edges {
        let id = granted.edge;
        let found = store.get::<EdgeRecord>(&EdgeRecord::sort(id)).await?;
        let is_its = found.is_some_and(|found| {
            found.record.edge.state == EdgeState::Active
                && found.record.edge.recipient_key.as_ref() == Some(&granted.recipient_key)
        });
        if !is_its {
            return Err(Problem::field(
                "edges",
                format!("{id} is no edge that joined with this key"),
            ));
        }
        let public: [u8; 32] = hex_field("edges", &granted.recipient_key)?;
        let public = RecipientPublic::from_bytes(&public).map_err(|error| Problem::field("edges", error))?;
        edges.push((id.to_string(), public));
    }
    let signature: [u8; 64] = hex_field("signature", &body.signature)?;
    let acceptance = GrantAcceptance {
        owner: &body.owner.to_string(),
        volume: &body.volume.to_string(),
        grantee: &tenant.to_string(),
        access: grant.access.as_str(),
        edges: &edges,
    };
    let key: [u8; 32] = hex_field("tenant_key", key)?;
    if acceptance.is_of(&TenantPublic::from_bytes(key), &signature) {
        return Ok(());
    }
    Err(Problem::field(
        "signature",
        "it is not this tenant's for this grant and these edges",
    ))
}
