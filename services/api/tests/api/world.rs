//! Two tenants with something of everything, and callers of both.
#![allow(dead_code, reason = "each test file uses a part of it")]

use super::harness::{Answer, Call, Customer, Service};
use axum::http::{Method, StatusCode};
use firn_api::{AUDIENCE, Endpoint};
use firn_identity::{EdgeId, MemberId, NodeId, PeerIdentity, Principal, Role, TenantId};
use serde_json::json;

/// Two tenants with something of everything, and callers of both.
pub struct World {
    pub service: Service,
    pub ours: Tenant,
    pub theirs: Tenant,
}

pub struct Tenant {
    pub customer: Customer,
    pub volume: String,
    pub disk: String,
    pub operation: String,
    pub key: String,
    pub edge: (EdgeId, PeerIdentity),
    pub other_edge: (EdgeId, PeerIdentity),
    pub node: (NodeId, PeerIdentity),
    pub other_node: (NodeId, PeerIdentity),
}

impl Tenant {
    pub async fn new(service: &Service, email: &str) -> Self {
        let customer = service.sign_up(email).await;
        let token = service.log_in(&customer).await;
        let base = &customer.base;
        let bucket = json!({ "kind": "managed", "region": "eu-central-1" });
        let volume = service
            .post(
                &token,
                &format!("{base}/volumes"),
                json!({ "name": "v", "bucket": bucket }),
            )
            .await;
        let disk = service
            .post(
                &token,
                &format!("{base}/disks"),
                json!({ "name": "d", "size_bytes": 8 << 20 }),
            )
            .await;
        assert_eq!(disk.status, StatusCode::ACCEPTED, "{:?}", disk.body);
        assert_eq!(firn_api::drive_all(&service.app).await.unwrap(), 0);
        let key = service
            .post(
                &token,
                &format!("{base}/keys"),
                json!({ "name": "k", "role": "reader" }),
            )
            .await;
        let (edge, edge_peer, _) = service.join_edge(&customer, &token, "e1").await;
        let (other_edge, other_edge_peer, _) = service.join_edge(&customer, &token, "e2").await;
        let node = service.join_node(&customer, &token, "n1").await;
        let other_node = service.join_node(&customer, &token, "n2").await;
        Self {
            volume: volume.text("id"),
            disk: disk.body["disk"]["id"].as_str().unwrap().to_owned(),
            operation: disk.body["operation"]["id"].as_str().unwrap().to_owned(),
            key: key.body["key"]["id"].as_str().unwrap().to_owned(),
            edge: (edge, edge_peer),
            other_edge: (other_edge, other_edge_peer),
            node,
            other_node,
            customer,
        }
    }

    pub fn id(&self) -> TenantId {
        self.customer.tenant
    }

    /// The operation's path on this tenant's things. A parameter nobody gave a value fails the test.
    pub fn path(&self, endpoint: &Endpoint) -> String {
        let values = [
            ("{tenant}", self.id().to_string()),
            ("{member}", self.customer.owner.to_string()),
            ("{key}", self.key.clone()),
            ("{volume}", self.volume.clone()),
            ("{edge}", self.edge.0.to_string()),
            ("{disk}", self.disk.clone()),
            ("{node}", self.node.0.to_string()),
            ("{operation}", self.operation.clone()),
            ("{lookup}", "AAAAAAAAAAAAAAAAAAAAAA".into()),
            ("{signup}", "00".repeat(16)),
            ("{recovery}", "00".repeat(16)),
            ("{grantee}", self.other_edge.0.to_string()),
            ("{month}", "2026-11".into()),
            ("{book}", "firn-standard".into()),
            // A number would have to wait for the next revocation.
            ("{sequence}", "next".into()),
        ];
        let path = values
            .iter()
            .fold(endpoint.path().to_owned(), |path, (name, value)| {
                path.replace(name, value)
            });
        assert!(!path.contains('{'), "{path}: give the new parameter a value here");
        path
    }

    pub fn principal(&self, role: Role) -> Principal {
        match role {
            Role::Edge => Principal::Edge(self.edge.0),
            Role::Node => Principal::Node(self.node.0),
            Role::Owner | Role::Admin | Role::Operator | Role::Billing | Role::Reader => {
                Principal::Member(MemberId([role as u8; 16]))
            }
        }
    }

    pub fn peer(&self, role: Role) -> Option<&PeerIdentity> {
        match role {
            Role::Edge => Some(&self.edge.1),
            Role::Node => Some(&self.node.1),
            Role::Owner | Role::Admin | Role::Operator | Role::Billing | Role::Reader => None,
        }
    }
}

impl World {
    pub async fn new() -> Self {
        Self::over(Service::new()).await
    }

    pub async fn over(service: Service) -> Self {
        let ours = Tenant::new(&service, "ada@one.example").await;
        let theirs = Tenant::new(&service, "bob@two.example").await;
        Self {
            service,
            ours,
            theirs,
        }
    }

    pub fn token(&self, tenant: &Tenant, role: Role) -> String {
        let now = self.service.now();
        self.service
            .token(tenant.id(), tenant.principal(role), role, AUDIENCE, now)
    }
}

/// A request that changes nothing when it is let through: an If-Match that never matches, a body that says nothing.
pub fn harmless(endpoint: &Endpoint, path: &str) -> Call {
    let call = Call::new(endpoint.method().clone(), path);
    match *endpoint.method() {
        Method::GET => call,
        Method::DELETE => call.header("if-match", "\"never\""),
        _ if endpoint.path().ends_with("/tokens/revoke") => call,
        _ => call.json(json!({})),
    }
}

/// Whether authentication and authorisation let the request through to its handler.
pub fn let_through(answer: &Answer) -> bool {
    assert!(!answer.status.is_server_error(), "{:?}", answer.body);
    !matches!(
        answer.code(),
        "not_authenticated" | "token_refused" | "certificate_refused" | "not_allowed"
    )
}

pub fn is_tenants(endpoint: &Endpoint) -> bool {
    endpoint.path().contains("{tenant}")
}
