//! Edges: invited, joined once, renewed, removed.
//!
//! ```text
//! invite  put edge (invited) + put join/<look-up id> {authenticator hash, sealed content}
//! join    authenticator, in time, request signed ─► one transaction: delete join/… , edge (active)
//! remove  one transaction: edge (revoked), its tokens taken back, a saga that waits for its last cloud session to end
//! ```
//!
//! The sealed content leaves with the transaction that consumes it; there is no second copy, and no kept reply.

use super::{
    LimitsRecord, NameRecord, base64_field,
    edge_state::{EdgeStateRecord, with_observed},
    hex_field, name_entry, name_sort, require_free_name,
};
use crate::{
    app::AUDIENCE,
    cloud::{SESSION_SECONDS, START_SECONDS},
    endpoint::{Call, Endpoint, Reply},
    names::DisplayName,
    problem::{Code, Problem},
    saga::{SagaRecord, Work},
    secrets::unhex,
    store::Record,
    sweep::Expiring,
    types::{
        CertificateIssued, Edge, EdgeJoined, EdgeState, InUse, InviteEdge, JoinEdge, Listing, Nothing,
        RenewCertificate, TokenIssued,
    },
};
use axum::http::{Method, StatusCode};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use firn_identity::{
    Authenticator, AuthenticatorHash, EdgeId, Grant, LookupId, MAX_INVITATION_BYTES, MAX_TOKEN_SECONDS,
    PeerIdentity, PeerKind, Principal, Revoked, Role, UnixTime,
};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

/// How long a join secret is good.
pub(crate) const JOIN_SECONDS: u64 = 3600;
const MAX_VOLUMES: usize = 64;

/// An edge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EdgeRecord {
    pub(crate) edge: Edge,
    lookup: String,
    /// When the last session of the cloud that it was given, or may just be given, is over.
    #[serde(default)]
    pub(crate) sessions_until: Option<UnixTime>,
    /// When it joined; `None` of edges that joined before this was noted.
    #[serde(default)]
    pub(crate) joined: Option<UnixTime>,
}

impl Record for EdgeRecord {
    const KIND: &'static str = "edge";
}

impl EdgeRecord {
    pub(crate) fn sort(id: EdgeId) -> String {
        format!("edge/{id}")
    }

    /// Notes that a session of the cloud may be given now; until when it lasts is known before it is asked for.
    pub(crate) fn note_session(&mut self, now: UnixTime) {
        let until = now.plus(SESSION_SECONDS + START_SECONDS);
        self.sessions_until = self.sessions_until.max(Some(until));
    }

    /// As it is shown.
    fn shown(self) -> Edge {
        Edge {
            last_seen: self
                .sessions_until
                .map(|until| UnixTime(until.0.saturating_sub(SESSION_SECONDS + START_SECONDS))),
            ..self.edge
        }
    }
}

/// An invitation that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JoinRecord {
    edge: EdgeId,
    authenticator_hash: String,
    sealed: String,
    expires: UnixTime,
}

impl Record for JoinRecord {
    const KIND: &'static str = "join";
}

impl Expiring for JoinRecord {
    fn expires(&self) -> UnixTime {
        self.expires
    }
}

fn join_sort(lookup: &LookupId) -> String {
    format!("join/{}", crate::secrets::hex(&lookup.0))
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const EDGES: &str = "/v1/tenants/{tenant}/edges";
    const EDGE: &str = "/v1/tenants/{tenant}/edges/{edge}";
    // The sealed invitation in base64 is the largest field.
    const INVITATION_BODY_BYTES: usize = 128 << 10;
    vec![
        Endpoint::new(Method::GET, EDGES, "listEdges", "Lists edges", list).lists::<Edge>(),
        Endpoint::new(
            Method::POST,
            EDGES,
            "inviteEdge",
            "Invites an edge with a join secret made by the client",
            invite,
        )
        .takes::<InviteEdge>()
        .up_to(INVITATION_BODY_BYTES)
        .gives::<Edge>(StatusCode::CREATED),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/joins/{lookup}",
            "joinEdge",
            "Joins as an edge: once, by whoever holds the secret",
            join,
        )
        .takes::<JoinEdge>()
        .gives::<EdgeJoined>(StatusCode::OK),
        Endpoint::new(Method::GET, EDGE, "getEdge", "Shows an edge", get)
            .gives::<Edge>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::DELETE,
            EDGE,
            "removeEdge",
            "Removes an edge: it is refused from now on, and its last cloud session ends by itself",
            remove,
        )
        .gives::<Edge>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/certificate",
            "renewEdgeCertificate",
            "Gives an edge its next certificate",
            renew,
        )
        .takes::<RenewCertificate>()
        .gives::<CertificateIssued>(StatusCode::CREATED),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/token",
            "edgeToken",
            "Gives an edge a token, for where its certificate does not reach",
            token,
        )
        .takes::<Nothing>()
        .gives::<TokenIssued>(StatusCode::CREATED),
    ]
}

/// An edge's place in the index of names.
pub(crate) fn edge_name_sort(name: &DisplayName) -> String {
    name_sort("edge", &name.folded())
}

/// Makes a certificate out of a request for `kind`.
pub(super) fn certificate(call: &Call, field: &str, kind: PeerKind) -> Result<CertificateIssued, Problem> {
    let request = base64_field("certificate_request", field, 1024)?;
    let name = PeerIdentity {
        trust_domain: call.app.trust_domain().to_owned(),
        kind,
    };
    let authority = call.app.authority();
    let issued = authority
        .issue(&request, &name, &[], call.app.now(), &mut call.app.entropy())
        .map_err(|error| Problem::field("certificate_request", error))?;
    Ok(CertificateIssued {
        certificate: STANDARD_NO_PAD.encode(&issued.certificate),
        authority: STANDARD_NO_PAD.encode(authority.certificate()),
        expires: issued.expires,
        renew_after: issued.renew_after,
    })
}

/// What renews credentials needs the certificate itself: else a token stolen once, good for minutes, could be turned into
/// certificates and tokens for ever.
pub(super) fn require_certificate(call: &Call, holder: &Principal) -> Result<(), Problem> {
    let shown = call.peer.as_ref().map(|peer| &peer.kind);
    let is_holders = match (holder, shown) {
        (Principal::Edge(edge), Some(PeerKind::Edge { edge: shown, .. })) => edge == shown,
        (Principal::Node(node), Some(shown)) => shown.node() == Some(*node),
        (_, Some(_) | None) => false,
    };
    if is_holders {
        return Ok(());
    }
    Err(Problem::new(
        Code::CertificateRefused,
        "new credentials are given to the holder of the present certificate only",
    ))
}

/// Checks a shown authenticator against the hash stored for an invitation.
pub(super) fn check_authenticator(
    stored: &str,
    shown: &str,
    expires: UnixTime,
    now: UnixTime,
) -> Result<(), Problem> {
    let hash = unhex(stored)
        .map(AuthenticatorHash)
        .ok_or_else(|| Problem::internal("an authenticator's hash is not hex"))?;
    let shown = Authenticator::parse(shown).map_err(|_| join_refused())?;
    if hash.matches(&shown) && now <= expires {
        Ok(())
    } else {
        Err(join_refused())
    }
}

pub(super) fn join_refused() -> Problem {
    Problem::new(
        Code::CredentialRefused,
        "the join secret is wrong, used or expired; ask for a new invitation",
    )
}

async fn list(call: Call) -> Result<Reply, Problem> {
    const PREFIX: &str = "edge/";
    let (limit, after) = call.page(PREFIX)?;
    let store = call.store()?;
    let (records, next) = store.page::<EdgeRecord>(PREFIX, after.as_deref(), limit).await?;
    // Side by side: each is one read, and a page has a hundred.
    let shown = records
        .into_iter()
        .map(|loaded| with_observed(&store, loaded.record.shown()));
    let listing = Listing {
        items: try_join_all(shown).await?,
        next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let id: EdgeId = call.param("edge")?;
    let store = call.store()?;
    let edge = store.require::<EdgeRecord>(&EdgeRecord::sort(id), id).await?;
    let shown = with_observed(&store, edge.record.clone().shown()).await?;
    Ok(Reply::json(StatusCode::OK, &shown).tagged(&edge))
}

async fn invite(call: Call) -> Result<Reply, Problem> {
    let body: InviteEdge = call.body()?;
    let lookup = LookupId::parse(&body.lookup).map_err(|_| Problem::field("lookup", "not a look-up id"))?;
    let _: [u8; 32] = hex_field("authenticator_hash", &body.authenticator_hash)?;
    base64_field("sealed", &body.sealed, MAX_INVITATION_BYTES + 64)?;
    if body.volumes.len() > MAX_VOLUMES {
        return Err(Problem::field("volumes", format!("at most {MAX_VOLUMES}")));
    }
    let store = call.store()?;
    let name = edge_name_sort(&body.name);
    require_free_name(&store, &name).await?;
    for volume in &body.volumes {
        store
            .get::<super::VolumeRecord>(&super::VolumeRecord::sort(*volume))
            .await?
            .ok_or_else(|| Problem::field("volumes", format!("{volume} does not exist")))?;
    }
    let id = lookup.edge_id();
    if store.get::<EdgeRecord>(&EdgeRecord::sort(id)).await?.is_some() {
        return Err(Problem::new(
            Code::NameTaken,
            "this join secret was used in an invitation before; make a new one",
        ));
    }
    let limits = LimitsRecord::load(&store).await?;
    let taken = limits.record.take(
        "edges",
        InUse {
            edges: 1,
            ..InUse::default()
        },
    )?;
    let now = call.app.now();
    let expires = now.plus(JOIN_SECONDS);
    let edge = Edge {
        id,
        name: body.name,
        state: EdgeState::Invited,
        volumes: body.volumes,
        invitation_expires: expires,
        recipient_key: None,
        certificate_request: None,
        binding: None,
        operation: None,
        last_seen: None,
        observed: None,
        desired_generation: None,
        created: now,
    };
    let join = JoinRecord {
        edge: id,
        authenticator_hash: body.authenticator_hash,
        sealed: body.sealed,
        expires,
    };
    let change = call
        .change("edge.invite", id)?
        .create(
            &EdgeRecord::sort(id),
            &EdgeRecord {
                edge: edge.clone(),
                lookup: body.lookup,
                sessions_until: None,
                joined: None,
            },
        )
        .create(&join_sort(&lookup), &join)
        .create(
            &name,
            &NameRecord {
                owner: id.to_string(),
            },
        )
        .update(&limits, &taken);
    call.commit(change, Reply::json(StatusCode::CREATED, &edge)).await
}

async fn join(call: Call) -> Result<Reply, Problem> {
    let body: JoinEdge = call.body()?;
    let lookup: String = call.param("lookup")?;
    let lookup = LookupId::parse(&lookup).map_err(|_| join_refused())?;
    let store = call.store()?;
    let join = store
        .get::<JoinRecord>(&join_sort(&lookup))
        .await?
        .ok_or_else(join_refused)?;
    check_authenticator(
        &join.record.authenticator_hash,
        &body.authenticator,
        join.record.expires,
        call.app.now(),
    )?;
    let recipient: [u8; 32] = hex_field("recipient_key", &body.recipient_key)?;
    firn_seal::RecipientPublic::from_bytes(&recipient)
        .map_err(|error| Problem::field("recipient_key", error))?;
    let _: [u8; 32] = hex_field("binding", &body.binding)?;
    let id = join.record.edge;
    let tenant = call.context()?.tenant();
    let certificate = certificate(
        &call,
        &body.certificate_request,
        PeerKind::Edge { tenant, edge: id },
    )?;
    let loaded = store.require::<EdgeRecord>(&EdgeRecord::sort(id), id).await?;
    let mut record = loaded.record.clone();
    record.edge.state = EdgeState::Active;
    record.joined = Some(call.app.now());
    record.edge.recipient_key = Some(body.recipient_key);
    record.edge.certificate_request = Some(body.certificate_request);
    record.edge.binding = Some(body.binding);
    let change = call
        .change("edge.join", id)?
        .by(Principal::Edge(id))
        .delete(&join)
        .update(&loaded, &record);
    change.commit(call.app.env(), None).await?;
    let joined = EdgeJoined {
        edge: record.edge,
        certificate,
        sealed: join.record.sealed,
    };
    Ok(Reply::json(StatusCode::OK, &joined))
}

async fn remove(call: Call) -> Result<Reply, Problem> {
    let id: EdgeId = call.param("edge")?;
    let store = call.store()?;
    let loaded = store.require::<EdgeRecord>(&EdgeRecord::sort(id), id).await?;
    call.check_if_match(&loaded)?;
    if loaded.record.edge.state == EdgeState::Revoked {
        return Ok(Reply::json(StatusCode::OK, &loaded.record.edge));
    }
    let limits = LimitsRecord::load(&store).await?;
    let given = limits.record.give_back(InUse {
        edges: 1,
        ..InUse::default()
    });
    let context = call.context()?;
    let principal = context.caller().map(|caller| caller.principal);
    let cut_off = loaded.record.sessions_until.unwrap_or(UnixTime(0));
    let saga = SagaRecord::new(call.app.env(), principal, Work::RemoveEdge { edge: id, cut_off });
    let mut record = loaded.record.clone();
    record.edge.state = EdgeState::Revoked;
    record.edge.operation = Some(saga.id.clone());
    let mut change = call
        .change("edge.remove", id)?
        .detail("rotate the key epoch: what it could read it may have kept")
        .update(&loaded, &record)
        .update(&limits, &given);
    if let Ok(lookup) = LookupId::parse(&loaded.record.lookup)
        && let Some(join) = store.get::<JoinRecord>(&join_sort(&lookup)).await?
    {
        change = change.delete(&join);
    }
    if let Some(entry) = name_entry(&store, &edge_name_sort(&record.edge.name), id).await? {
        change = change.delete(&entry);
    }
    if let Some(state) = store.get::<EdgeStateRecord>(&EdgeStateRecord::sort(id)).await? {
        change = change.delete(&state);
    }
    let change = saga.begin(context.tenant(), change);
    let reply = Reply::json(StatusCode::OK, &record.edge);
    let reply = call
        .commit_revoking(change, &[Revoked::Principal(Principal::Edge(id))], reply)
        .await?;
    call.app.wake_sagas();
    Ok(reply)
}

async fn renew(call: Call) -> Result<Reply, Problem> {
    let body: RenewCertificate = call.body()?;
    let edge: EdgeId = call.param("edge")?;
    require_certificate(&call, &Principal::Edge(edge))?;
    let tenant = call.context()?.tenant();
    let issued = certificate(&call, &body.certificate_request, PeerKind::Edge { tenant, edge })?;
    let change = call.change("edge.certificate", edge)?;
    change.commit(call.app.env(), None).await?;
    Ok(Reply::json(StatusCode::CREATED, &issued))
}

async fn token(call: Call) -> Result<Reply, Problem> {
    let _: Nothing = call.body()?;
    let edge: EdgeId = call.param("edge")?;
    require_certificate(&call, &Principal::Edge(edge))?;
    let grant = Grant {
        audience: AUDIENCE.to_owned(),
        principal: Principal::Edge(edge),
        tenant: call.context()?.tenant(),
        role: Role::Edge,
        scopes: Vec::new(),
        lifetime_seconds: MAX_TOKEN_SECONDS,
    };
    let (token, claims) = call
        .app
        .issuer()
        .issue(&grant, call.app.now(), &mut call.app.entropy());
    Ok(Reply::json(
        StatusCode::CREATED,
        &TokenIssued {
            token,
            expires: claims.expires,
            principal: grant.principal,
            role: grant.role,
        },
    ))
}
