//! A customer's story, and what goes wrong: each request answered with the right code, nothing half done.

use crate::harness::{
    self, Call, Service,
    customer::{customer, volume},
};
use axum::http::{Method, StatusCode};
use firn_api::{
    drive_all,
    types::{AuditEntry, AuditHead},
    verify_chain, verify_head,
};
use firn_seal::RecipientSecret;
use serde_json::json;

const TRACT: u64 = 8 << 20;

#[tokio::test]
async fn signing_up_twice_looks_the_same_and_a_code_works_once() {
    let service = Service::new();
    let first = service.sign_up("ada@one.example").await;
    let second = service.sign_up("ada@one.example").await;
    assert_ne!(first.tenant, second.tenant);
    let wrong = json!({ "code": "guess", "tenant_key": "00".repeat(32), "recovery_key": "01".repeat(32) });
    let path = format!("/v1/signups/{}/confirm", "ab".repeat(16));
    let refused = service.send(Call::new(Method::POST, &path).json(wrong)).await;
    assert_eq!(refused.code(), "credential_refused");
}

#[tokio::test]
async fn a_confirmation_whose_reply_was_lost_finds_the_same_tenant_again() {
    let service = Service::new();
    let body = json!({ "email": "ada@one.example", "tenant_name": "Nord" });
    let noted = service
        .send(Call::new(Method::POST, "/v1/signups").json(body))
        .await;
    let path = format!("/v1/signups/{}/confirm", noted.text("signup"));
    let recovery = RecipientSecret::derive(&[1; 32]).public().to_string();
    let body =
        json!({ "code": service.mail.find("Code"), "tenant_key": "00".repeat(32), "recovery_key": recovery });
    let first = service
        .send(Call::new(Method::POST, &path).json(body.clone()))
        .await;
    assert_eq!(first.status, StatusCode::CREATED, "{:?}", first.body);
    let again = service.send(Call::new(Method::POST, &path).json(body)).await;
    assert_eq!(again.body, first.body);
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_reply_and_another_under_its_key_is_refused() {
    let (service, customer, token) = customer().await;
    let path = format!("{}/keys", customer.base);
    let ask = |name: &str| {
        Call::new(Method::POST, &path)
            .token(&token)
            .header("idempotency-key", "one")
            .json(json!({ "name": name, "role": "reader" }))
    };
    let first = service.send(ask("ci")).await;
    assert_eq!(first.status, StatusCode::CREATED, "{:?}", first.body);
    let again = service.send(ask("ci")).await;
    assert_eq!(
        again.body, first.body,
        "the secret is shown again to the same request"
    );
    let other = service.send(ask("cd")).await;
    assert_eq!(other.code(), "idempotency_key_reused");
    let listed = service.get(&token, &path).await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 2, "login and ci");
}

#[tokio::test]
async fn names_that_read_alike_are_taken_and_names_that_hide_something_refused() {
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    assert_eq!(
        service.post(&token, &volumes, volume("Café")).await.status,
        StatusCode::CREATED
    );
    for taken in ["Cafe\u{301}", "CAFÉ", "ｃafé"] {
        assert_eq!(
            service.post(&token, &volumes, volume(taken)).await.code(),
            "name_taken",
            "{taken}"
        );
    }
    for hidden in ["", "a\u{202e}b", " a", "a\u{0}", &"x".repeat(65)] {
        assert_eq!(
            service.post(&token, &volumes, volume(hidden)).await.code(),
            "malformed_body",
            "{hidden:?}"
        );
    }
}

#[tokio::test]
async fn an_entity_tag_that_is_no_longer_true_stops_the_change() {
    let (service, customer, token) = customer().await;
    let made = service
        .post(&token, &format!("{}/volumes", customer.base), volume("a"))
        .await;
    let path = format!("{}/volumes/{}", customer.base, made.text("id"));
    let seen = service.get(&token, &path).await;
    let tag = seen.headers["etag"].to_str().unwrap().to_owned();
    let rename = |name: &str| {
        let call = Call::new(Method::PATCH, &path)
            .token(&token)
            .header("if-match", &tag);
        call.json(json!({ "name": name }))
    };
    assert_eq!(service.send(rename("b")).await.text("name"), "b");
    assert_eq!(service.send(rename("c")).await.code(), "precondition_failed");
    assert_eq!(service.get(&token, &path).await.text("name"), "b");
}

#[tokio::test]
async fn members_are_invited_confirmed_and_removed_and_an_owner_stays() {
    let (service, customer, token) = customer().await;
    let members = format!("{}/members", customer.base);
    let owner = format!("{members}/{}", customer.owner);
    let last = service
        .send(Call::new(Method::DELETE, &owner).token(&token))
        .await;
    assert_eq!(last.code(), "wrong_state");
    let invited = service
        .post(
            &token,
            &members,
            json!({ "email": "bob@one.example", "role": "operator" }),
        )
        .await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    let twice = service
        .post(
            &token,
            &members,
            json!({ "email": "BOB@one.example", "role": "reader" }),
        )
        .await;
    assert_eq!(twice.code(), "name_taken");
    let bob = format!("{members}/{}", invited.text("id"));
    let confirm =
        |code: String| Call::new(Method::POST, &format!("{bob}/confirm")).json(json!({ "code": code }));
    assert_eq!(
        service.send(confirm("guess".into())).await.code(),
        "credential_refused"
    );
    let code = service.mail.find("Code");
    let welcome = service.send(confirm(code.clone())).await;
    assert_eq!(welcome.status, StatusCode::OK, "{:?}", welcome.body);
    assert_eq!(
        service.send(confirm(code)).await.code(),
        "credential_refused",
        "a code works once"
    );

    let exchange = |key: String| {
        Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(json!({ "api_key": key }))
    };
    let issued = service.send(exchange(welcome.text("api_key"))).await;
    let bobs = issued.text("token");
    assert_eq!(service.get(&bobs, &members).await.status, StatusCode::OK);
    let invite = json!({ "email": "eve@one.example", "role": "owner" });
    assert_eq!(service.post(&bobs, &members, invite).await.code(), "not_allowed");
    let grab = json!({ "name": "k", "role": "admin" });
    assert_eq!(
        service
            .post(&bobs, &format!("{}/keys", customer.base), grab)
            .await
            .code(),
        "not_allowed"
    );

    let removed = service.send(Call::new(Method::DELETE, &bob).token(&token)).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT);
    assert_eq!(service.get(&bobs, &members).await.code(), "token_refused");
    assert_eq!(
        service.send(exchange(welcome.text("api_key"))).await.code(),
        "credential_refused"
    );
}

#[tokio::test]
async fn a_revoked_key_and_what_it_gave_are_refused() {
    let (service, customer, token) = customer().await;
    let keys = format!("{}/keys", customer.base);
    let made = service
        .post(
            &token,
            &keys,
            json!({ "name": "ci", "role": "reader", "lifetime_seconds": 3600 }),
        )
        .await;
    let exchange = || {
        let body = json!({ "api_key": made.text("api_key") });
        service.send(Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(body))
    };
    let issued = exchange().await.text("token");
    assert_eq!(service.get(&issued, &customer.base).await.status, StatusCode::OK);
    let key = format!("{keys}/{}", made.body["key"]["id"].as_str().unwrap());
    assert_eq!(
        service
            .send(Call::new(Method::DELETE, &key).token(&token))
            .await
            .status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(service.get(&issued, &customer.base).await.code(), "token_refused");
    assert_eq!(exchange().await.code(), "credential_refused");
    // Another instance learns it when it next looks.
    let other = service.under(harness::rego());
    assert_eq!(other.get(&issued, &customer.base).await.status, StatusCode::OK);
    other.app.refresh().await.unwrap();
    assert_eq!(other.get(&issued, &customer.base).await.code(), "token_refused");
}

#[tokio::test]
async fn quotas_hold_under_a_storm_and_sizes_cannot_overflow() {
    let (service, customer, token) = customer().await;
    let disks = format!("{}/disks", customer.base);
    for size in [
        0,
        1,
        TRACT - 1,
        TRACT + 1,
        u64::MAX,
        u64::MAX - (u64::MAX % TRACT),
    ] {
        let refused = service
            .post(&token, &disks, json!({ "name": "d", "size_bytes": size }))
            .await;
        assert_eq!(refused.code(), "invalid_field", "{size}");
    }
    let negative = service
        .post(&token, &disks, json!({ "name": "d", "size_bytes": -8_388_608 }))
        .await;
    assert_eq!(negative.code(), "malformed_body");
    let huge = 60_u64 << 40;
    let calls = (0..4).map(|number| {
        service.post(
            &token,
            &disks,
            json!({ "name": format!("d{number}"), "size_bytes": huge }),
        )
    });
    let answers = futures::future::join_all(calls).await;
    let made = answers
        .iter()
        .filter(|answer| answer.status == StatusCode::ACCEPTED)
        .count();
    assert_eq!(made, 1, "100 TiB hold one disk of 60");
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.code(), "" | "quota_exceeded"))
    );
}

#[tokio::test]
async fn lists_come_in_pages_and_a_foreign_cursor_is_refused() {
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    for number in 0..7 {
        service
            .post(&token, &volumes, volume(&format!("v{number}")))
            .await;
    }
    let mut names = Vec::new();
    let mut path = format!("{volumes}?limit=3");
    loop {
        let page = service.get(&token, &path).await;
        let items = page.body["items"].as_array().unwrap();
        assert!(items.len() <= 3);
        names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        match page.body["next_cursor"].as_str() {
            Some(cursor) => path = format!("{volumes}?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    names.sort();
    assert_eq!(
        names,
        (0..7).map(|number| format!("v{number}")).collect::<Vec<_>>()
    );
    use base64::Engine as _;
    let foreign = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode("key/");
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "cursor=!",
        "page=2",
        "limit=1&limit=2",
        &format!("cursor={foreign}"),
    ] {
        assert_eq!(
            service.get(&token, &format!("{volumes}?{query}")).await.code(),
            "malformed_parameter",
            "{query}"
        );
    }
}

#[tokio::test]
async fn bodies_are_read_strictly_and_bounded() {
    let (service, customer, token) = customer().await;
    let path = format!("{}/volumes", customer.base);
    let send = |call: Call| service.send(call.token(&token));
    let post = || Call::new(Method::POST, &path);
    let mut unknown = volume("a");
    unknown["colour"] = "red".into();
    assert_eq!(send(post().json(unknown)).await.code(), "malformed_body");
    assert_eq!(
        send(post().raw("application/json", b"{".to_vec())).await.code(),
        "malformed_body"
    );
    assert_eq!(
        send(post().raw("text/plain", b"{}".to_vec())).await.code(),
        "wrong_media_type"
    );
    assert_eq!(
        send(post().raw("application/json", vec![b' '; 1 << 20]))
            .await
            .code(),
        "body_too_large"
    );
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(
        send(post().raw("application/json", deep.into_bytes()))
            .await
            .code(),
        "malformed_body"
    );
    assert_eq!(
        send(Call::new(Method::GET, &path).json(json!({}))).await.code(),
        "malformed_body"
    );
    assert_eq!(
        send(Call::new(Method::PUT, &path)).await.code(),
        "method_not_allowed"
    );
    assert_eq!(
        send(Call::new(Method::GET, "/v2/nothing")).await.code(),
        "no_such_operation"
    );
    let twice = Call::new(Method::GET, &path).token(&token);
    assert_eq!(
        send(twice).await.code(),
        "token_refused",
        "two Authorization headers"
    );
    let key = post()
        .header("idempotency-key", &"k".repeat(129))
        .json(volume("a"));
    assert_eq!(send(key).await.code(), "malformed_header");
}

#[tokio::test]
async fn every_change_is_in_the_audit_log_and_a_changed_log_is_noticed() {
    let (service, customer, token) = customer().await;
    service
        .post(&token, &format!("{}/volumes", customer.base), volume("a"))
        .await;
    service
        .post(
            &token,
            &format!("{}/members", customer.base),
            json!({ "email": "b@c.example", "role": "reader" }),
        )
        .await;
    let page = service.get(&token, &format!("{}/audit", customer.base)).await;
    let entries: Vec<AuditEntry> = serde_json::from_value(page.body["items"].clone()).unwrap();
    let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["tenant.create", "volume.create", "member.invite"]);
    let (sequence, hash) = verify_chain(&entries).unwrap();
    let head = service
        .get(&token, &format!("{}/audit/head", customer.base))
        .await;
    assert_eq!(
        (head.body["sequence"].as_u64().unwrap(), head.text("hash")),
        (sequence, hash)
    );

    let mut signed: AuditHead = serde_json::from_value(head.body).unwrap();
    assert!(verify_head(&signed));
    signed.sequence += 1;
    assert!(!verify_head(&signed));

    let mut changed = entries.clone();
    changed[1].target = "vol_other".into();
    assert!(verify_chain(&changed).unwrap_err().contains("entry 2"));
    changed[1].hash = changed[1].computed_hash();
    assert!(verify_chain(&changed).unwrap_err().contains("entry 3"));
    let mut shorter = entries.clone();
    shorter.remove(1);
    assert!(verify_chain(&shorter).is_err());
}

#[tokio::test]
async fn a_closed_tenant_is_empty_and_refuses_its_keys() {
    let (service, customer, token) = customer().await;
    let made = service
        .post(&token, &format!("{}/volumes", customer.base), volume("a"))
        .await;
    let close = || service.send(Call::new(Method::DELETE, &customer.base).token(&token));
    assert_eq!(close().await.code(), "wrong_state");
    let path = format!("{}/volumes/{}", customer.base, made.text("id"));
    service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    service.post(&token, &format!("{path}/erase"), json!({})).await;
    assert_eq!(close().await.code(), "wrong_state", "while it is being erased");
    assert_eq!(drive_all(&service.app).await.unwrap(), 0);
    assert_eq!(close().await.status, StatusCode::NO_CONTENT);
    assert_eq!(close().await.code(), "token_refused");
    let body = json!({ "api_key": customer.api_key });
    let refused = service
        .send(Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(body))
        .await;
    assert_eq!(refused.code(), "credential_refused");
}

#[tokio::test]
async fn a_spent_budget_stops_provisioning_and_nothing_else() {
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    let made = service.post(&token, &volumes, volume("a")).await;
    for _ in 0..2 {
        firn_api::set_capped(&service.app, customer.tenant, true)
            .await
            .unwrap();
    }
    assert_eq!(
        service.post(&token, &volumes, volume("b")).await.code(),
        "budget_exhausted"
    );
    let disk = json!({ "name": "d", "size_bytes": TRACT });
    assert_eq!(
        service
            .post(&token, &format!("{}/disks", customer.base), disk)
            .await
            .code(),
        "budget_exhausted"
    );
    let path = format!("{volumes}/{}", made.text("id"));
    assert_eq!(service.get(&token, &path).await.status, StatusCode::OK);
    assert_eq!(
        service
            .send(Call::new(Method::DELETE, &path).token(&token))
            .await
            .text("state"),
        "deleted"
    );
    let raised = json!({ "hard_cap_nano_dollars": 100_000_000_000_u64 });
    let raised = Call::new(Method::PUT, &format!("{}/budget", customer.base))
        .token(&token)
        .json(raised);
    assert_eq!(service.send(raised).await.status, StatusCode::OK);
    firn_api::set_capped(&service.app, customer.tenant, false)
        .await
        .unwrap();
    assert_eq!(
        service.post(&token, &volumes, volume("b")).await.status,
        StatusCode::CREATED
    );
}
