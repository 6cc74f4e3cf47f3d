//! Grants: another tenant's edge follows a volume by the owner's word, reaches nothing else of it, and nothing at all once it is revoked.

use crate::granting::{Scene, Side, recipient_key};
use crate::harness::{Call, Customer};
use axum::http::{Method, StatusCode};
use firn_api::{Roster, Since};
use firn_identity::EdgeId;
use firn_table::{MemoryTable, Table};
use serde_json::{Value, json};
use std::sync::Arc;

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

    let good = other.acceptance(owner, &scene.volume, &recipient_key(), (&other.customer, "read"));
    for (field, value, code) in [
        ("signature", json!("00".repeat(64)), "invalid_field"),
        (
            "signature",
            other.acceptance(owner, &scene.volume, &recipient_key(), (&owner.customer, "read"))["signature"]
                .clone(),
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
    assert_eq!(ask("take").await.code(), "not_allowed");
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
