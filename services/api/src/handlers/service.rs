//! Public endpoints: that the service is alive, its keys, what is revoked.

use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::Problem,
};
use axum::http::{Method, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use std::net::Ipv4Addr;
use utoipa::ToSchema;

/// The service answers.
#[derive(Serialize, ToSchema)]
struct Health {
    /// Always `ok`: a service that is not does not answer.
    status: &'static str,
    /// Which build.
    version: &'static str,
    /// The installation's name in certificates; whoever joins needs it for its certificate request.
    trust_domain: String,
    /// Where edges, nodes and machines with disks call, if it is another address than this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_server: Option<String>,
}

/// Public keys (RFC 7517).
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "only its schema is used: the text comes from the key set itself"
)]
struct KeySet {
    /// The keys.
    #[schema(value_type = Vec<Object>)]
    keys: Vec<()>,
}

/// What is revoked, signed.
#[derive(Serialize, ToSchema)]
struct SignedRevocations {
    /// A JWS over the list; verifiers refuse one older than they have.
    list: String,
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/healthz",
            "health",
            "Says that the service answers",
            health,
        )
        .gives::<Health>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/.well-known/jwks.json",
            "keySet",
            "The keys tokens are checked with",
            key_set,
        )
        .gives::<KeySet>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/revocations",
            "revocations",
            "What verifiers must refuse",
            revocations,
        )
        .gives::<SignedRevocations>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/revocations/after/{sequence}",
            "nextRevocations",
            "The same, as soon as the list is newer than this number, or after ten seconds",
            next_revocations,
        )
        .gives::<SignedRevocations>(StatusCode::OK),
    ]
}

async fn health(call: Call) -> Result<Reply, Problem> {
    let health = Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
        trust_domain: call.app.trust_domain().to_owned(),
        machine_server: call.app.machine_server().map(str::to_owned),
    };
    Ok(Reply::json(StatusCode::OK, &health))
}

async fn key_set(call: Call) -> Result<Reply, Problem> {
    let keys = call.app.public_keys().to_json();
    let mut reply = Reply::nothing();
    reply.status = StatusCode::OK;
    reply.body = Bytes::from(keys);
    Ok(reply)
}

/// So that verifiers learn of a revocation when it happens: ask with the number of the list at hand, take the answer, ask again.
async fn next_revocations(call: Call) -> Result<Reply, Problem> {
    let sequence: u64 = call.param("sequence")?;
    let stranger = (!call.is_known).then(|| call.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()));
    call.app.newer_revocations(sequence, stranger).await;
    revocations(call).await
}

async fn revocations(call: Call) -> Result<Reply, Problem> {
    let list = call.app.signed_revocations().to_string();
    Ok(Reply::json(StatusCode::OK, &SignedRevocations { list }))
}
