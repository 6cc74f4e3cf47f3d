//! A tenant with a volume, another tenant with an edge, and the steps of a grant between them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use super::harness::{
    Answer, Call, Customer, Service,
    cloud::Cloud,
    customer::{rings, volume},
    hex,
};
use axum::http::{Method, StatusCode};
use firn_identity::{EdgeId, PeerIdentity};
use firn_seal::{GrantAcceptance, RecipientSecret};
use serde_json::{Value, json};
use std::sync::Arc;

/// Of every edge that joins in these tests.
pub fn recipient_key() -> String {
    RecipientSecret::derive(&[9; 32]).public().to_string()
}

/// One of the tenants.
pub struct Side {
    pub customer: Customer,
    pub token: String,
    pub edge: EdgeId,
    pub peer: PeerIdentity,
}

impl Side {
    pub async fn new(service: &Service, email: &str, volumes: &[&str]) -> Self {
        let customer = service.sign_up(email).await;
        let token = service.log_in(&customer).await;
        let (edge, peer, _) = service.join_edge_of(&customer, &token, "office", volumes).await;
        Self {
            customer,
            token,
            edge,
            peer,
        }
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.customer.base)
    }

    pub fn key(&self) -> String {
        hex(&self.customer.phrase.signing_key().public().to_bytes())
    }

    pub async fn post(&self, service: &Service, path: &str, body: Value) -> Answer {
        service.post(&self.token, &self.at(path), body).await
    }

    /// What the edge asks of a volume: a call of the anchor, credentials, keys.
    pub async fn asks(&self, service: &Service, volume: &str, what: &str) -> Answer {
        let edge = self.edge;
        let call = match what {
            "root" => Call::new(
                Method::POST,
                &self.at(&format!("edges/{edge}/volumes/{volume}/anchor")),
            )
            .json(json!({ "volumes": { "limit": 10 } })),
            "take" => Call::new(
                Method::POST,
                &self.at(&format!("edges/{edge}/volumes/{volume}/anchor")),
            )
            .json(json!({ "change_volume": { "volume": volume, "seen": "1", "change": { "take": {
                    "owner": "08".repeat(16), "owner_name": "office", "force": false, "grant": "09".repeat(16), "taken_at_ms": 7,
                } } } })),
            "session" => Call::new(
                Method::POST,
                &self.at(&format!("edges/{edge}/volumes/{volume}/session")),
            )
            .json(json!({})),
            "keys" => Call::new(Method::GET, &self.at(&format!("volumes/{volume}/keyring"))),
            other => panic!("{other}"),
        };
        service.send(call.peer(&self.peer)).await
    }

    /// An acceptance of the grant, for this edge and key, signed with `signer`'s phrase.
    pub fn acceptance(
        &self,
        owner: &Side,
        volume: &str,
        key: &str,
        (signer, access): (&Customer, &str),
    ) -> Value {
        let public = RecipientSecret::derive(&[9; 32]).public();
        let edges = [(self.edge.to_string(), public)];
        let acceptance = GrantAcceptance {
            owner: &owner.customer.tenant.to_string(),
            volume,
            grantee: &self.customer.tenant.to_string(),
            access,
            edges: &edges,
        };
        json!({
            "owner": owner.customer.tenant, "volume": volume,
            "edges": [{ "edge": self.edge, "recipient_key": key }],
            "signature": hex(&acceptance.sign(&signer.phrase.signing_key())),
        })
    }
}

/// An owner with a volume that its edge serves, and another tenant with an edge.
pub struct Scene {
    pub service: Service,
    pub volume: String,
    pub owner: Side,
    pub other: Side,
    /// What is granted.
    pub access: &'static str,
}

impl Scene {
    pub async fn set() -> Self {
        Self::to("read").await
    }

    /// The same for a grant of this access.
    pub async fn to(access: &'static str) -> Self {
        let service = Service::new().with_cloud(Arc::new(Cloud));
        let mut owner = Side::new(&service, "ada@one.example", &[]).await;
        let made = owner.post(&service, "volumes", volume("files")).await;
        let id = made.text("id");
        let serving = service
            .join_edge_of(&owner.customer, &owner.token, "head", &[&id])
            .await;
        (owner.edge, owner.peer) = (serving.0, serving.1);
        let (ring, _) = rings(&service, &owner.customer, &id);
        let put = Call::new(Method::PUT, &owner.at(&format!("volumes/{id}/keyring")))
            .token(&owner.token)
            .json(json!({ "key_ring": ring }));
        assert_eq!(service.send(put).await.status, StatusCode::OK);
        let other = Side::new(&service, "bob@two.example", &[]).await;
        Self {
            service,
            volume: id,
            owner,
            other,
            access,
        }
    }

    pub fn grant(&self) -> String {
        format!("volumes/{}/grants/{}", self.volume, self.other.customer.tenant)
    }

    pub async fn offer(&self) -> Answer {
        let body = json!({
            "grantee": self.other.customer.tenant, "grantee_key": self.other.key(), "access": self.access,
        });
        let path = format!("volumes/{}/grants", self.volume);
        self.owner.post(&self.service, &path, body).await
    }

    pub async fn accept(&self) -> Answer {
        let body = self.other.acceptance(
            &self.owner,
            &self.volume,
            &recipient_key(),
            (&self.other.customer, self.access),
        );
        self.other.post(&self.service, "granted", body).await
    }

    pub async fn approve(&self) -> Answer {
        let body = json!({ "edges": [{ "edge": self.other.edge, "recipient_key": recipient_key() }] });
        let path = format!("{}/approve", self.grant());
        self.owner.post(&self.service, &path, body).await
    }

    pub async fn state(&self) -> String {
        let shown = self
            .service
            .get(&self.owner.token, &self.owner.at(&self.grant()))
            .await;
        shown.text("state")
    }

    pub async fn revoke(&self) -> Answer {
        let call = Call::new(Method::DELETE, &self.owner.at(&self.grant())).token(&self.owner.token);
        self.service.send(call).await
    }

    /// What becomes of each thing that the other tenant's edge may ask.
    pub async fn asked(&self) -> Vec<String> {
        let mut codes = Vec::new();
        for what in ["root", "take", "session", "keys"] {
            let answer = self.other.asks(&self.service, &self.volume, what).await;
            codes.push(match answer.code() {
                "" => "ok".to_owned(),
                code => code.to_owned(),
            });
        }
        codes
    }
}
