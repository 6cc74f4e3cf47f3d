//! Grants: a volume opened to an edge of its tenant, or to another tenant.
//!
//! ```text
//! owner A   offer    put grant/<volume>/<B> {B's key as A was told it, access}
//! other B   accept   B's signature over owner, volume, access, edges, keys ─► put granted/<volume> in B's own records
//! other B   leave    granted/<volume>: left (or declined); its edges are refused from this transaction on
//! owner A   approve  signature checked by A's client, keys wrapped to the edges in the next ring ─► grant: these edges are let in
//! owner A   revoke   grant: revoked; every call of its edges is refused from this transaction on
//! ```
//!
//! An edge of the same tenant is let in by the grant itself. Each tenant writes its own records only, so nobody fills another's; what one reads
//! of the other's is the grant that names them both. The volume stays its owner's: bucket, payer, key rings, end.

use super::{
    EdgeRecord,
    granted::AcceptedRecord,
    hex_field,
    served::records_of,
    volumes::{self, require_state},
};
use crate::{
    cloud::{SESSION_SECONDS, START_SECONDS},
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::{Loaded, Record, TenantStore},
    types::{
        ApproveGrant, CreateGrant, EdgeState, GrantAccess, GrantState, GrantedEdge, Grantee, Listing,
        VolumeGrant, VolumeLeases, VolumeState,
    },
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

/// Grants of one volume, revoked ones included. A key ring has room for some hundred recipients.
const MAX_GRANTS: usize = 100;
/// Edges of one grant.
pub(super) const MAX_EDGES: usize = 64;

/// What the sort keys of all grants of a tenant begin with.
pub(crate) const GRANTS: &str = "grant/";

/// A grant, in the records of the volume's owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GrantRecord {
    volume: VolumeId,
    grantee: Grantee,
    pub(super) grantee_key: Option<String>,
    pub(super) access: GrantAccess,
    edges: Vec<GrantedEdge>,
    created: UnixTime,
    revoked: Option<UnixTime>,
}

impl Record for GrantRecord {
    const KIND: &'static str = "grant";
}

impl GrantRecord {
    pub(super) fn sort(volume: VolumeId, grantee: Grantee) -> String {
        format!("{}{grantee}", Self::prefix(volume))
    }

    fn prefix(volume: VolumeId) -> String {
        format!("{GRANTS}{volume}/")
    }

    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    pub(super) fn grantee(&self) -> Grantee {
        self.grantee
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.is_some()
    }

    /// What is granted, and who is let in by it, in words.
    pub(crate) fn told(&self) -> String {
        let edges: Vec<String> = self.edges.iter().map(|edge| edge.edge.to_string()).collect();
        format!(
            "{} to {}, {}: {}",
            self.volume,
            self.grantee,
            self.access.as_str(),
            edges.join(", ")
        )
    }

    /// The same, revoked.
    pub(crate) fn revoked_at(self, at: UnixTime) -> Self {
        Self {
            revoked: Some(at),
            ..self
        }
    }

    /// Whether the owner let this edge in.
    pub(super) fn admits(&self, edge: EdgeId) -> bool {
        !self.is_revoked() && self.edges.iter().any(|granted| granted.edge == edge)
    }

    /// What it has come to, by what the other tenant answered. An answer to an earlier offer is none to this one.
    pub(super) fn state(&self, answered: Option<&AcceptedRecord>) -> GrantState {
        let accepted = answered.map_or(&[][..], |answered| &answered.acceptance.edges);
        if self.is_revoked() {
            GrantState::Revoked
        } else if answered.and_then(|answered| answered.left) >= Some(self.created) {
            GrantState::Left
        } else if accepted.iter().any(|edge| !self.edges.contains(edge)) {
            GrantState::Accepted
        } else if self.edges.is_empty() {
            GrantState::Offered
        } else {
            GrantState::Active
        }
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const GRANTS: &str = "/v1/tenants/{tenant}/volumes/{volume}/grants";
    const GRANT: &str = "/v1/tenants/{tenant}/volumes/{volume}/grants/{grantee}";
    vec![
        Endpoint::new(
            Method::GET,
            GRANTS,
            "listGrants",
            "Lists who else may open a volume",
            list,
        )
        .lists::<VolumeGrant>(),
        Endpoint::new(
            Method::POST,
            GRANTS,
            "createGrant",
            "Grants a volume to an edge of this tenant, or offers it to another tenant",
            create,
        )
        .takes::<CreateGrant>()
        .gives::<VolumeGrant>(StatusCode::CREATED),
        Endpoint::new(Method::GET, GRANT, "getGrant", "Shows a grant", get)
            .gives::<VolumeGrant>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/volumes/{volume}/grants/{grantee}/approve",
            "approveGrant",
            "Lets edges of the other tenant in, once the volume's keys are wrapped to them",
            approve,
        )
        .takes::<ApproveGrant>()
        .gives::<VolumeGrant>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::DELETE,
            GRANT,
            "revokeGrant",
            "Revokes a grant: its edges are refused from now on",
            revoke,
        )
        .gives::<VolumeGrant>(StatusCode::OK)
        .if_match(),
    ]
}

/// What the tenant of a grant answered, if it did and to this access.
async fn answered(
    call: &Call,
    owner: TenantId,
    grant: &GrantRecord,
) -> Result<Option<AcceptedRecord>, Problem> {
    let Grantee::Tenant(tenant) = grant.grantee else {
        return Ok(None);
    };
    let sort = AcceptedRecord::sort(grant.volume);
    let found = records_of(call, tenant).get::<AcceptedRecord>(&sort).await?;
    let found = found.map(|found| found.record);
    Ok(found.filter(|found| found.owner == owner && found.access == grant.access))
}

/// A grant as its owner sees it.
async fn shown(call: &Call, grant: &GrantRecord) -> Result<VolumeGrant, Problem> {
    let owner = call.context()?.tenant();
    let answered = match grant.is_revoked() {
        true => None,
        false => answered(call, owner, grant).await?,
    };
    Ok(VolumeGrant {
        volume: grant.volume,
        grantee: grant.grantee,
        grantee_key: grant.grantee_key.clone(),
        access: grant.access,
        state: grant.state(answered.as_ref()),
        edges: grant.edges.clone(),
        created: grant.created,
        revoked: grant.revoked,
        credentials_end: grant.revoked.map(|at| at.plus(SESSION_SECONDS + START_SECONDS)),
        accepted: answered
            .filter(|answered| !answered.is_left())
            .map(|answered| answered.acceptance),
    })
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let (store, id, _) = volumes::load(&call).await?;
    let prefix = GrantRecord::prefix(id);
    let (limit, after) = call.page(&prefix)?;
    let (grants, next) = store
        .page::<GrantRecord>(&prefix, after.as_deref(), limit)
        .await?;
    let items = try_join_all(grants.iter().map(|grant| shown(&call, &grant.record))).await?;
    let listing = Listing {
        items,
        next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

async fn load(call: &Call) -> Result<(TenantStore, Loaded<GrantRecord>), Problem> {
    let (store, id, _) = volumes::load(call).await?;
    let grantee: Grantee = call.param("grantee")?;
    let what = format!("a grant of {id} to {grantee}");
    let grant = store
        .require::<GrantRecord>(&GrantRecord::sort(id, grantee), what)
        .await?;
    Ok((store, grant))
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let (_, grant) = load(&call).await?;
    Ok(Reply::json(StatusCode::OK, &shown(&call, &grant.record).await?).tagged(&grant))
}

/// Grants anew what was revoked; one that stands is not changed.
async fn create(call: Call) -> Result<Reply, Problem> {
    let body: CreateGrant = call.body()?;
    let (store, id, volume) = volumes::load(&call).await?;
    require_state(&volume, VolumeState::Active, "granted")?;
    if (body.access, volume.record.volume.leases) == (GrantAccess::Write, VolumeLeases::Inode) {
        return Err(Problem::new(
            Code::NotAllowed,
            "several offices write this volume at the same moment, and what one of another tenant would commit cannot be checked yet: grant it to be read. An edge of \
             your own that is to write it is invited to it: firn edge create NAME --volume VOLUME",
        ));
    }
    let edges = match (body.grantee, &body.grantee_key) {
        (Grantee::Edge(edge), None) => vec![granted_edge(&store, edge, id).await?],
        (Grantee::Edge(_), Some(_)) => {
            return Err(Problem::field(
                "grantee_key",
                "only other tenants are named by a key",
            ));
        }
        (Grantee::Tenant(tenant), Some(key)) => {
            if tenant == call.context()?.tenant() {
                return Err(Problem::field(
                    "grantee",
                    "it is the volume's own tenant; name an edge",
                ));
            }
            let _: [u8; 32] = hex_field("grantee_key", key)?;
            Vec::new()
        }
        (Grantee::Tenant(_), None) => {
            return Err(Problem::field(
                "grantee_key",
                "the other tenant's public key is needed, as its people tell it",
            ));
        }
    };
    let sort = GrantRecord::sort(id, body.grantee);
    let before = store.get::<GrantRecord>(&sort).await?;
    let record = GrantRecord {
        volume: id,
        grantee: body.grantee,
        grantee_key: body.grantee_key,
        access: body.access,
        edges,
        created: call.app.now(),
        revoked: None,
    };
    let change = call
        .change("grant.create", id)?
        .detail(format!("{}, to {}", record.access.as_str(), record.grantee))
        .check(&volume);
    let change = match &before {
        Some(before) if !before.record.is_revoked() => {
            return Err(Problem::new(
                Code::NameTaken,
                format!("{id} is granted to {} already; revoke that first", body.grantee),
            ));
        }
        Some(before) => change.update(before, &record),
        None => {
            let prefix = GrantRecord::prefix(id);
            let (there, _) = store.page::<GrantRecord>(&prefix, None, MAX_GRANTS).await?;
            if there.len() >= MAX_GRANTS {
                return Err(too_many("grants of one volume"));
            }
            change.create(&sort, &record)
        }
    };
    let reply = Reply::json(StatusCode::CREATED, &shown(&call, &record).await?);
    call.commit(change, reply).await
}

fn too_many(what: &str) -> Problem {
    Problem::new(Code::QuotaExceeded, format!("at most {MAX_GRANTS} {what}"))
}

/// An edge of the tenant that may be given a volume beside those that it was invited to.
async fn granted_edge(store: &TenantStore, edge: EdgeId, volume: VolumeId) -> Result<GrantedEdge, Problem> {
    let found = store.get::<EdgeRecord>(&EdgeRecord::sort(edge)).await?;
    let found = found.filter(|found| found.record.edge.state == EdgeState::Active);
    let found = found.ok_or_else(|| Problem::field("grantee", format!("{edge} is no edge that joined")))?;
    if found.record.edge.volumes.contains(&volume) {
        let why = format!("{edge} was invited to {volume}: it serves it without a grant");
        return Err(Problem::field("grantee", why));
    }
    let key = found.record.edge.recipient_key.clone();
    let recipient_key = key.ok_or_else(|| Problem::internal("an edge that joined has no key"))?;
    Ok(GrantedEdge { edge, recipient_key })
}

async fn approve(call: Call) -> Result<Reply, Problem> {
    let body: ApproveGrant = call.body()?;
    let (_, loaded) = load(&call).await?;
    call.check_if_match(&loaded)?;
    if loaded.record.is_revoked() {
        return Err(Problem::new(
            Code::WrongState,
            "the grant was revoked; grant it anew, and it is to be accepted anew",
        ));
    }
    let answered = answered(&call, call.context()?.tenant(), &loaded.record).await?;
    let accepted = answered.filter(|answered| !answered.is_left());
    let accepted = accepted
        .map(|accepted| accepted.acceptance.edges)
        .unwrap_or_default();
    if let Some(other) = body.edges.iter().find(|edge| !accepted.contains(edge)) {
        let why = format!("the other tenant did not name {} with this key", other.edge);
        return Err(Problem::field("edges", why));
    }
    let mut record = loaded.record.clone();
    record.edges = body.edges;
    let names: Vec<String> = record.edges.iter().map(|edge| edge.edge.to_string()).collect();
    let change = call
        .change("grant.approve", record.volume)?
        .detail(format!("{}: {}", record.grantee, names.join(", ")))
        .update(&loaded, &record);
    let reply = Reply::json(StatusCode::OK, &shown(&call, &record).await?);
    call.commit(change, reply).await
}

async fn revoke(call: Call) -> Result<Reply, Problem> {
    let (_, loaded) = load(&call).await?;
    call.check_if_match(&loaded)?;
    if loaded.record.is_revoked() {
        return Ok(Reply::json(StatusCode::OK, &shown(&call, &loaded.record).await?));
    }
    let record = loaded.record.clone().revoked_at(call.app.now());
    let change = call
        .change("grant.revoke", record.volume)?
        .detail(format!(
            "{}; start a new key epoch: what it could read it may have kept",
            record.grantee
        ))
        .update(&loaded, &record);
    let reply = Reply::json(StatusCode::OK, &shown(&call, &record).await?);
    call.commit(change, reply).await
}
