//! Grants: another tenant's edge follows a volume by the owner's word, reaches nothing else of it, and nothing at all once it is revoked.

mod harness;

use axum::http::{Method, StatusCode};
use firn_api::{Roster, Since};
use firn_identity::{EdgeId, PeerIdentity};
use firn_seal::{GrantAcceptance, RecipientSecret};
use firn_table::{MemoryTable, Table};
use harness::{
    Answer, Call, Customer, Service,
    cloud::Cloud,
    customer::{rings, volume},
    hex,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Of every edge that joins in these tests.
fn recipient_key() -> String {
    RecipientSecret::derive(&[9; 32]).public().to_string()
}

/// One of the tenants.
struct Side {
    customer: Customer,
    token: String,
    edge: EdgeId,
    peer: PeerIdentity,
}

impl Side {
    async fn new(service: &Service, email: &str, volumes: &[&str]) -> Self {
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

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.customer.base)
    }

    fn key(&self) -> String {
        hex(&self.customer.phrase.signing_key().public().to_bytes())
    }

    async fn post(&self, service: &Service, path: &str, body: Value) -> Answer {
        service.post(&self.token, &self.at(path), body).await
    }

    /// What the edge asks of a volume: a call of the anchor, credentials, keys.
    async fn asks(&self, service: &Service, volume: &str, what: &str) -> Answer {
        let edge = self.edge;
        let call = match what {
            "root" => Call::new(
                Method::POST,
                &self.at(&format!("edges/{edge}/volumes/{volume}/anchor")),
            )
            .json(json!({ "volumes": { "limit": 10 } })),
            "commit" => Call::new(
                Method::POST,
                &self.at(&format!("edges/{edge}/volumes/{volume}/anchor")),
            )
            .json(json!({ "create_family": { "created_at_ms": 7, "change_id": "00".repeat(16) } })),
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
    fn acceptance(&self, owner: &Side, volume: &str, key: &str, signer: &Customer) -> Value {
        let public = RecipientSecret::derive(&[9; 32]).public();
        let edges = [(self.edge.to_string(), public)];
        let acceptance = GrantAcceptance {
            owner: &owner.customer.tenant.to_string(),
            volume,
            grantee: &self.customer.tenant.to_string(),
            access: "read",
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
struct Scene {
    service: Service,
    volume: String,
    owner: Side,
    other: Side,
}

impl Scene {
    async fn set() -> Self {
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
        }
    }

    fn grant(&self) -> String {
        format!("volumes/{}/grants/{}", self.volume, self.other.customer.tenant)
    }

    async fn offer(&self) -> Answer {
        let body = json!({
            "grantee": self.other.customer.tenant, "grantee_key": self.other.key(), "access": "read",
        });
        let path = format!("volumes/{}/grants", self.volume);
        self.owner.post(&self.service, &path, body).await
    }

    async fn accept(&self) -> Answer {
        let body = self
            .other
            .acceptance(&self.owner, &self.volume, &recipient_key(), &self.other.customer);
        self.other.post(&self.service, "granted", body).await
    }

    async fn approve(&self) -> Answer {
        let body = json!({ "edges": [{ "edge": self.other.edge, "recipient_key": recipient_key() }] });
        let path = format!("{}/approve", self.grant());
        self.owner.post(&self.service, &path, body).await
    }

    async fn state(&self) -> String {
        let shown = self
            .service
            .get(&self.owner.token, &self.owner.at(&self.grant()))
            .await;
        shown.text("state")
    }

    async fn revoke(&self) -> Answer {
        let call = Call::new(Method::DELETE, &self.owner.at(&self.grant())).token(&self.owner.token);
        self.service.send(call).await
    }

    /// What becomes of each thing that the other tenant's edge may ask.
    async fn asked(&self) -> Vec<String> {
        let mut codes = Vec::new();
        for what in ["root", "commit", "session", "keys"] {
            let answer = self.other.asks(&self.service, &self.volume, what).await;
            codes.push(match answer.code() {
                "" => "ok".to_owned(),
                code => code.to_owned(),
            });
        }
        codes
    }
}

#[tokio::test]
async fn another_tenants_edge_reads_by_a_grant_in_three_steps_and_nothing_once_it_is_revoked() {
    let scene = Scene::set().await;
    let nothing = ["not_found"; 4];
    assert_eq!(scene.asked().await, nothing);
    assert_eq!(scene.accept().await.code(), "not_found", "nothing was offered");

    let offered = scene.offer().await;
    assert_eq!(offered.status, StatusCode::CREATED, "{:?}", offered.body);
    assert_eq!(offered.text("state"), "offered");
    assert_eq!(scene.asked().await, nothing);
    assert_eq!(scene.approve().await.code(), "invalid_field", "nobody accepted");

    let accepted = scene.accept().await;
    assert_eq!(accepted.status, StatusCode::OK, "{:?}", accepted.body);
    assert_eq!(
        (accepted.text("name"), accepted.text("state")),
        ("files".into(), "accepted".into())
    );
    assert_eq!(scene.state().await, "accepted");
    assert_eq!(scene.asked().await, ["wrong_state"; 4]);

    let approved = scene.approve().await;
    assert_eq!(approved.text("state"), "active", "{:?}", approved.body);
    // It reads roots and keys and has credentials that only read; what changes a root is refused.
    assert_eq!(scene.asked().await, ["ok", "not_allowed", "ok", "ok"]);
    let session = scene.other.asks(&scene.service, &scene.volume, "session").await;
    let (place, policy) = (session.text("prefix"), session.text("session_token"));
    assert_eq!(place, format!("{}/{}", scene.owner.customer.tenant, scene.volume));
    assert!(
        policy.contains("s3:GetObject") && !policy.contains("\"s3:PutObject\""),
        "{policy}"
    );
    // The volume's own edge is nobody's guest, and the other tenant's people see nothing of the volume.
    let own = scene.owner.asks(&scene.service, &scene.volume, "session").await;
    assert!(own.text("session_token").contains("\"s3:PutObject\""));
    for path in [
        format!("volumes/{}", scene.volume),
        format!("volumes/{}/keyring", scene.volume),
    ] {
        let seen = scene
            .service
            .get(&scene.other.token, &scene.other.at(&path))
            .await;
        assert_eq!(seen.code(), "not_found", "{path}");
    }
    // Another edge of that tenant was not named.
    let (stranger, peer, _) = scene
        .service
        .join_edge(&scene.other.customer, &scene.other.token, "second")
        .await;
    let path = scene
        .other
        .at(&format!("edges/{stranger}/volumes/{}/anchor", scene.volume));
    let call = Call::new(Method::POST, &path).json(json!({ "volumes": { "limit": 10 } }));
    assert_eq!(scene.service.send(call.peer(&peer)).await.code(), "wrong_state");

    let revoked = scene.revoke().await;
    assert_eq!(revoked.text("state"), "revoked", "{:?}", revoked.body);
    assert!(revoked.body["credentials_end"].as_u64() > revoked.body["revoked"].as_u64());
    assert_eq!(scene.asked().await, ["grant_revoked"; 4]);
    assert_eq!(scene.revoke().await.text("state"), "revoked", "again is no error");
    assert_eq!(scene.approve().await.code(), "wrong_state");
    let listed = scene
        .service
        .get(&scene.other.token, &scene.other.at("granted"))
        .await;
    assert_eq!(listed.body["items"][0]["state"], "revoked", "{:?}", listed.body);
    assert!(listed.body["items"][0]["name"] == "" && listed.body["items"][0]["store"].is_null());

    // Each step stands in the log of whoever took it.
    let log = async |side: &Side| {
        let log = scene.service.get(&side.token, &side.at("audit?limit=100")).await;
        let entries = log.body["items"].as_array().unwrap().clone();
        let actions = entries
            .iter()
            .map(|entry| entry["action"].as_str().unwrap().to_owned());
        actions
            .filter(|action| action.starts_with("grant."))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        log(&scene.owner).await,
        ["grant.create", "grant.approve", "grant.revoke"]
    );
    assert_eq!(log(&scene.other).await, ["grant.accept"]);

    // Granted anew it is to be approved anew.
    assert_eq!(scene.offer().await.status, StatusCode::CREATED);
    assert_eq!(scene.asked().await, ["wrong_state"; 4]);
}

#[tokio::test]
async fn what_the_other_tenant_did_not_sign_lets_nobody_in() {
    let scene = Scene::set().await;
    let accept = async |body: Value| scene.other.post(&scene.service, "granted", body).await;
    let (owner, other) = (&scene.owner, &scene.other);
    // Offered to a tenant of that id, and another key.
    let body = json!({ "grantee": other.customer.tenant, "grantee_key": owner.key(), "access": "read" });
    let path = format!("volumes/{}/grants", scene.volume);
    owner.post(&scene.service, &path, body).await;
    assert_eq!(scene.accept().await.code(), "wrong_state");
    scene.revoke().await;
    assert_eq!(scene.offer().await.status, StatusCode::CREATED);
    assert_eq!(scene.offer().await.code(), "name_taken");

    let good = other.acceptance(owner, &scene.volume, &recipient_key(), &other.customer);
    for (field, value, code) in [
        ("signature", json!("00".repeat(64)), "invalid_field"),
        (
            "signature",
            other.acceptance(owner, &scene.volume, &recipient_key(), &owner.customer)["signature"].clone(),
            "invalid_field",
        ),
        ("edges", json!([]), "invalid_field"),
        (
            "edges",
            json!([{ "edge": other.edge, "recipient_key": "11".repeat(32) }]),
            "invalid_field",
        ),
        (
            "edges",
            json!([{ "edge": owner.edge, "recipient_key": recipient_key() }]),
            "invalid_field",
        ),
        ("volume", json!(format!("vol_{}", "0".repeat(32))), "not_found"),
        ("owner", json!(other.customer.tenant), "not_found"),
    ] {
        let mut body = good.clone();
        body[field] = value.clone();
        assert_eq!(accept(body).await.code(), code, "{field}: {value}");
    }
    assert_eq!(accept(good).await.status, StatusCode::OK);
    let path = format!("{}/approve", scene.grant());
    let body = json!({ "edges": [{ "edge": owner.edge, "recipient_key": recipient_key() }] });
    assert_eq!(
        owner.post(&scene.service, &path, body).await.code(),
        "invalid_field"
    );
    // The owner is the volume's tenant: nobody else grants it.
    let path = format!("volumes/{}/grants", scene.volume);
    let body = json!({ "grantee": owner.customer.tenant, "grantee_key": owner.key(), "access": "read" });
    assert_eq!(
        other.post(&scene.service, &path, body.clone()).await.code(),
        "not_found"
    );
    assert_eq!(
        owner.post(&scene.service, &path, body).await.code(),
        "invalid_field"
    );
}

#[tokio::test]
async fn an_edge_of_the_same_tenant_follows_at_once_by_a_grant() {
    let scene = Scene::set().await;
    let (edge, peer, _) = scene
        .service
        .join_edge(&scene.owner.customer, &scene.owner.token, "branch")
        .await;
    let branch = Side {
        customer: scene.service.sign_up("unused@x.example").await,
        token: scene.owner.token.clone(),
        edge,
        peer,
    };
    let branch = Side {
        customer: Customer {
            base: scene.owner.customer.base.clone(),
            ..branch.customer
        },
        ..branch
    };
    let ask = async |what: &str| branch.asks(&scene.service, &scene.volume, what).await;
    assert_eq!(ask("root").await.code(), "not_found");
    let path = format!("volumes/{}/grants", scene.volume);
    let grant = async |edge: EdgeId| {
        let body = json!({ "grantee": edge, "access": "read" });
        scene.owner.post(&scene.service, &path, body).await
    };
    let granted = grant(edge).await;
    assert_eq!(granted.text("state"), "active", "{:?}", granted.body);
    assert_eq!(granted.body["edges"][0]["recipient_key"], recipient_key());
    assert_eq!(ask("root").await.code(), "");
    assert_eq!(ask("commit").await.code(), "not_allowed");
    // Who was invited needs none, and who is no edge of this tenant's gets none.
    assert_eq!(grant(scene.owner.edge).await.code(), "invalid_field");
    assert_eq!(grant(scene.other.edge).await.code(), "invalid_field");
    let revoke =
        Call::new(Method::DELETE, &scene.owner.at(&format!("{path}/{edge}"))).token(&scene.owner.token);
    assert_eq!(scene.service.send(revoke).await.text("state"), "revoked");
    for what in ["root", "session", "keys"] {
        assert_eq!(ask(what).await.code(), "grant_revoked", "{what}");
    }
}

#[tokio::test]
async fn a_restored_backup_brings_no_revoked_grant_back() {
    let scene = Scene::set().await;
    scene.offer().await;
    scene.accept().await;
    assert_eq!(scene.approve().await.text("state"), "active");
    let env = &scene.service.env;
    let table: Arc<dyn Table> = scene.service.table.connect(env);
    let mut file = Vec::new();
    firn_api::backup(env, &table, &mut file).await.unwrap();
    let with = async |since: &Since| {
        scene.service.table.restore(&MemoryTable::new().image());
        let told = firn_api::restore(env, &table, &mut &file[..], since, None)
            .await
            .unwrap();
        told.told
    };
    // Nothing ended since: it lives on.
    let living = Since::Roster(Roster::of_table(env, &table).await.unwrap());
    with(&living).await;
    assert_eq!(
        scene
            .other
            .asks(&scene.service, &scene.volume, "keys")
            .await
            .code(),
        ""
    );
    assert_eq!(scene.revoke().await.text("state"), "revoked");
    let since = Since::Roster(Roster::of_table(env, &table).await.unwrap());
    let told = with(&since).await;
    assert!(
        told.iter()
            .any(|line| line.contains("revoked") && line.contains(" to ten_")),
        "{told:?}"
    );
    assert_eq!(
        scene
            .other
            .asks(&scene.service, &scene.volume, "keys")
            .await
            .code(),
        "grant_revoked"
    );
}
