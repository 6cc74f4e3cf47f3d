//! From a request's credentials to a [`Caller`].
//!
//! | token | client certificate | outcome |
//! |---|---|---|
//! | none | none | nobody: only doors are open |
//! | valid | none, or the same edge's or node's | the token's caller |
//! | an edge's or node's | another's | refused |
//! | none | an edge's or node's | that edge or node |
//! | none | an attached machine's | nobody: the door to its disk looks at the certificate |
//! | refused for any reason | any | refused: a bad token is never ignored |
//!
//! Edges and nodes are looked up at every request, so that a removed one is refused at once.

use crate::{
    app::App,
    context::{Caller, TenantContext},
    handlers::{EdgeRecord, NodeRecord},
    problem::{Code, Problem},
    store::TenantStore,
    types::{EdgeState, NodeState},
};
use axum::http::{HeaderMap, header};
use firn_identity::{PeerIdentity, PeerKind, Principal, Role, TenantId};

pub(crate) async fn caller(
    app: &App,
    headers: &HeaderMap,
    peer: Option<&PeerIdentity>,
    tenant: Option<TenantId>,
) -> Result<Option<Caller>, Problem> {
    let from_token = bearer(headers)?.map(|token| verified(app, token)).transpose()?;
    let from_certificate = match peer {
        Some(peer) => certified(app, peer, tenant)?,
        None => None,
    };
    let caller = match (from_token, from_certificate) {
        (Some(token), Some(certificate)) => {
            let machine = matches!(token.principal, Principal::Edge(_) | Principal::Node(_));
            if machine && token.principal != certificate.principal {
                return Err(certificate_refused("the token is another's"));
            }
            Some(token)
        }
        (Some(caller), None) | (None, Some(caller)) => Some(caller),
        (None, None) => None,
    };
    if let Some(caller) = &caller {
        still_there(app, caller).await?;
    }
    Ok(caller)
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let refused = || {
        Problem::new(
            Code::TokenRefused,
            "Authorization must be, once: Bearer and a token",
        )
    };
    if values.next().is_some() {
        return Err(refused());
    }
    let text = value.to_str().map_err(|_| refused())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(refused)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused());
    }
    Ok(Some(token))
}

fn verified(app: &App, token: &str) -> Result<Caller, Problem> {
    let verified = app
        .verify_token(token)
        .map_err(|error| Problem::new(Code::TokenRefused, error.to_string()))?;
    let claims = verified.claims();
    Ok(Caller {
        tenant: claims.tenant,
        principal: claims.principal,
        role: claims.role,
        scopes: claims.scopes.clone(),
        token: Some(claims.id),
    })
}

/// Who a certificate stands for. A fleet node's names no tenant, so it stands for a node of the tenant that the path names, if
/// that is one whose nodes are the fleet's (that the tenant's records hold it is checked below), and for nobody where the path
/// names none.
fn certified(app: &App, peer: &PeerIdentity, tenant: Option<TenantId>) -> Result<Option<Caller>, Problem> {
    if peer.trust_domain != app.trust_domain() {
        return Err(certificate_refused("it is of another installation"));
    }
    let (tenant, principal, role) = match (&peer.kind, tenant) {
        (PeerKind::Edge { tenant, edge }, _) => (*tenant, Principal::Edge(*edge), Role::Edge),
        (PeerKind::TenantNode { tenant, node }, _) => (*tenant, Principal::Node(*node), Role::Node),
        (PeerKind::Node(node), Some(tenant)) if app.is_fleets(tenant) => {
            (tenant, Principal::Node(*node), Role::Node)
        }
        (PeerKind::Node(_), Some(_)) => {
            return Err(certificate_refused(
                "it is a fleet node's, and this tenant's nodes are its own; invite the node again and let it join anew",
            ));
        }
        // What an attached machine may, is behind a door that looks at its certificate.
        (PeerKind::Attachment { .. }, _) | (PeerKind::Node(_) | PeerKind::Service(_), None) => {
            return Ok(None);
        }
        (PeerKind::Service(_), Some(_)) => return Err(certificate_refused("services act in no tenant")),
    };
    Ok(Some(Caller {
        tenant,
        principal,
        role,
        scopes: Vec::new(),
        token: None,
    }))
}

async fn still_there(app: &App, caller: &Caller) -> Result<(), Problem> {
    let context = TenantContext::enter(caller.clone(), caller.tenant, None, None)?;
    let store = TenantStore::of(app.table(), &context);
    let known = match caller.principal {
        Principal::Edge(edge) => {
            let edge = store.get::<EdgeRecord>(&EdgeRecord::sort(edge)).await?;
            edge.is_some_and(|edge| edge.record.edge.state == EdgeState::Active)
        }
        Principal::Node(node) => {
            let node = store.get::<NodeRecord>(&NodeRecord::sort(node)).await?;
            node.is_some_and(|node| node.record.node.state != NodeState::Invited)
        }
        Principal::Member(_) | Principal::Key(_) => true,
    };
    if known {
        Ok(())
    } else {
        Err(certificate_refused(
            "its holder was removed or is not of this tenant",
        ))
    }
}

fn certificate_refused(why: &str) -> Problem {
    Problem::new(Code::CertificateRefused, why)
}
