//! What a customer does, and what goes wrong: each request answered with the right code, nothing half done.

mod harness;

use axum::http::{Method, StatusCode};
use firn_api::{
    types::{AuditEntry, AuditHead},
    verify_chain, verify_head,
};
use firn_identity::{JoinSecret, PeerIdentity, PeerKind};
use firn_seal::{KeyRing, Recipient, RecipientKind, RecipientSecret};
use firn_table::Table;
use harness::{Call, Customer, Service, base64};
use serde_json::{Value, json};
use std::{io::BufReader, sync::Arc};

const TRACT: u64 = 8 << 20;

async fn customer() -> (Service, Customer, String) {
    let service = Service::new();
    let customer = service.sign_up("ada@one.example").await;
    let token = service.log_in(&customer).await;
    (service, customer, token)
}

fn volume(name: &str) -> Value {
    json!({ "name": name, "bucket": { "kind": "managed", "region": "eu-central-1" } })
}

/// The first ring of a family, and its successor.
fn rings(service: &Service, customer: &Customer) -> (String, String) {
    let signer = customer.phrase.signing_key();
    let env = service.env.clone();
    let mut entropy = move |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            chunk.copy_from_slice(&env.random_bytes::<32>()[..chunk.len()]);
        }
    };
    let recovery = Recipient {
        name: "recovery".into(),
        kind: RecipientKind::Recovery,
        public: customer.phrase.recovery_secret().public(),
    };
    let family = firn_format::FamilyId([5; 16]);
    let (first, keys) = KeyRing::create(family, vec![recovery], &signer, &mut entropy).unwrap();
    let first = first.verify(&signer.public()).unwrap();
    let (second, _) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    (base64(&first.ring().encode()), base64(&second.encode()))
}

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
async fn no_secret_that_was_shown_lies_in_the_table() {
    let (service, customer, token) = customer().await;
    let body = json!({ "name": "ci", "role": "reader" });
    let call = Call::new(Method::POST, &format!("{}/keys", customer.base))
        .token(&token)
        .header("idempotency-key", "one");
    let key = service.send(call.json(body)).await.text("api_key");
    let (_, _, join) = service.join_edge(&customer, &token, "edge").await;
    let table: Arc<dyn Table> = service.table.connect(&service.env);
    let mut stored = Vec::new();
    firn_api::backup(&table, &mut stored).await.unwrap();
    let mut everything = Vec::new();
    for line in stored
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line: Value = serde_json::from_slice(line).unwrap();
        if let Some(value) = line["value"].as_str() {
            use base64::Engine as _;
            everything.extend(
                base64::engine::general_purpose::STANDARD_NO_PAD
                    .decode(value)
                    .unwrap(),
            );
        }
        everything.extend(line.to_string().into_bytes());
    }
    let holds = |secret: &str| {
        everything
            .windows(secret.len())
            .any(|window| window == secret.as_bytes())
    };
    assert!(
        holds(&customer.tenant.to_string()),
        "the search finds what is there"
    );
    for secret in [
        &key[38..],
        &customer.api_key[38..],
        &token,
        &*join.expose(),
        &*join.authenticator().expose(),
    ] {
        assert!(!holds(secret), "{secret}");
    }
    assert!(!holds(&base64(b"what the edge must know")));
}

#[tokio::test]
async fn a_volume_lives_is_deleted_comes_back_and_is_erased() {
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    let (first, second) = rings(&service, &customer);
    let mut body = volume("Akten");
    body["key_ring"] = first.clone().into();
    let made = service.post(&token, &volumes, body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    let path = format!("{volumes}/{}", made.text("id"));
    let put = |ring: &str| {
        Call::new(Method::PUT, &format!("{path}/keyring"))
            .token(&token)
            .json(json!({ "key_ring": ring }))
    };
    let next = service.send(put(&second)).await;
    assert_eq!(next.body["key_ring_generation"], 2, "{:?}", next.body);
    // The same again is no error, the one before is, and so is one that somebody else signed.
    assert_eq!(service.send(put(&second)).await.status, StatusCode::OK);
    assert_eq!(service.send(put(&first)).await.code(), "key_ring_refused");
    let stranger = service.sign_up("eve@two.example").await;
    assert_eq!(
        service.send(put(&rings(&service, &stranger).1)).await.code(),
        "key_ring_refused"
    );
    assert_eq!(
        service
            .get(&token, &format!("{path}/keyring"))
            .await
            .text("key_ring"),
        second
    );

    let erase = async |verb: &str| service.post(&token, &format!("{path}/{verb}"), json!({})).await;
    assert_eq!(
        erase("erase").await.code(),
        "wrong_state",
        "only a deleted volume is erased"
    );
    let deleted = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(deleted.text("state"), "deleted");
    assert_eq!(erase("undelete").await.text("state"), "active");
    service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(erase("erase").await.text("state"), "erased");
    assert_eq!(erase("erase").await.text("state"), "erased");
    assert_eq!(
        service.get(&token, &format!("{path}/keyring")).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(erase("undelete").await.code(), "wrong_state");
    let quota = service.get(&token, &format!("{}/quota", customer.base)).await;
    assert_eq!(quota.body["in_use"]["volumes"], 0);
    assert_eq!(
        service.post(&token, &volumes, volume("Akten")).await.status,
        StatusCode::CREATED,
        "the name is free"
    );
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
async fn a_join_secret_works_once_and_only_for_its_holder() {
    let (service, customer, token) = customer().await;
    let mut draw = |bytes: &mut [u8]| bytes.copy_from_slice(&service.env.random_bytes::<32>()[..bytes.len()]);
    let secret = JoinSecret::generate(&mut draw);
    let sealed = secret.seal(b"content", &mut draw).unwrap();
    let edges = format!("{}/edges", customer.base);
    let invited = service
        .post(&token, &edges, harness::invitation("e", &secret, &sealed))
        .await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    let again = service
        .post(&token, &edges, harness::invitation("f", &secret, &sealed))
        .await;
    assert_eq!(again.code(), "name_taken", "a secret is for one invitation");

    let edge = secret.lookup_id().edge_id();
    let peer = PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: customer.tenant,
            edge,
        },
    };
    let path = format!("{}/joins/{}", customer.base, secret.lookup_id().to_text());
    let join = |body: Value| {
        service.send(
            Call::new(Method::POST, &path)
                .json(body)
                .header("idempotency-key", "replay"),
        )
    };
    let mut stranger = harness::join_body(&secret, &peer);
    stranger["authenticator"] = JoinSecret::generate(&mut draw)
        .authenticator()
        .expose()
        .to_string()
        .into();
    assert_eq!(join(stranger).await.code(), "credential_refused");
    let body = harness::join_body(&secret, &peer);
    let joined = join(body.clone()).await;
    assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
    let content = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(joined.text("sealed"))
            .unwrap()
    };
    assert_eq!(secret.open(&content).unwrap().as_slice(), b"content");
    assert_eq!(join(body).await.code(), "credential_refused", "a replayed join");

    // The inviter checks that the keys the service shows are the edge's own.
    let shown = service.get(&token, &format!("{edges}/{edge}")).await.body;
    let bound = [
        unhex(&shown["recipient_key"]),
        unbase64(&shown["certificate_request"]),
    ]
    .concat();
    assert!(secret.binds(&bound, &unhex(&shown["binding"])));
    let swapped = [vec![8; 32], unbase64(&shown["certificate_request"])].concat();
    assert!(!secret.binds(&swapped, &unhex(&shown["binding"])));
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn unbase64(text: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text.as_str().unwrap())
        .unwrap()
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
async fn an_attachment_ends_the_one_before() {
    let (service, customer, token) = customer().await;
    let made = service
        .post(
            &token,
            &format!("{}/disks", customer.base),
            json!({ "name": "d", "size_bytes": TRACT }),
        )
        .await;
    let disk = format!(
        "{}/disks/{}",
        customer.base,
        made.body["disk"]["id"].as_str().unwrap()
    );
    let early = service.post(&token, &format!("{disk}/attach"), json!({})).await;
    assert_eq!(early.code(), "wrong_state", "not before it is placed");
    assert_eq!(firn_api::drive_all(&service.app).await.unwrap(), 0);
    let first = service.post(&token, &format!("{disk}/attach"), json!({})).await;
    let second = service.post(&token, &format!("{disk}/attach"), json!({})).await;
    assert_eq!(
        (&first.body["fence"], &second.body["fence"]),
        (&json!(1), &json!(2))
    );
    let reader = service
        .post(&token, &format!("{disk}/attach"), json!({ "read_only": true }))
        .await;
    assert_eq!(reader.body["fence"], 2);
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
async fn a_node_that_lies_about_its_size_is_told_so() {
    let (service, customer, token) = customer().await;
    let (node, peer) = service.join_node(&customer, &token, "n").await;
    let path = format!("{}/nodes/{node}/heartbeat", customer.base);
    let beat = |free: u64| {
        service.send(
            Call::new(Method::POST, &path)
                .peer(&peer)
                .json(json!({ "free_bytes": free })),
        )
    };
    assert_eq!(beat(1 << 30).await.body["free_bytes"], 1 << 30);
    assert_eq!(beat((1 << 40) + 1).await.code(), "invalid_field");
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
async fn a_backup_restored_elsewhere_is_the_same_service() {
    let (service, customer, token) = customer().await;
    service
        .post(&token, &format!("{}/volumes", customer.base), volume("a"))
        .await;
    let table: Arc<dyn Table> = service.table.connect(&service.env);
    let mut file = Vec::new();
    let items = firn_api::backup(&table, &mut file).await.unwrap();

    let elsewhere = Service::new();
    let empty: Arc<dyn Table> = elsewhere.table.connect(&elsewhere.env);
    for cut in [0, 1, file.len() / 2, file.len() - 2] {
        let scratch = Service::new();
        let scratch: Arc<dyn Table> = scratch.table.connect(&scratch.env);
        let restored = firn_api::restore(&scratch, &mut BufReader::new(&file[..cut])).await;
        assert!(restored.is_err(), "a file cut at {cut} is refused");
    }
    assert_eq!(
        firn_api::restore(&empty, &mut BufReader::new(&*file))
            .await
            .unwrap(),
        items
    );
    assert!(
        firn_api::restore(&empty, &mut BufReader::new(&*file))
            .await
            .is_err(),
        "not into a full table"
    );
    let token = elsewhere.log_in(&customer).await;
    let volumes = elsewhere.get(&token, &format!("{}/volumes", customer.base)).await;
    assert_eq!(volumes.body["items"][0]["name"], "a");
    let page = elsewhere.get(&token, &format!("{}/audit", customer.base)).await;
    let entries: Vec<AuditEntry> = serde_json::from_value(page.body["items"].clone()).unwrap();
    verify_chain(&entries).unwrap();
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
    assert_eq!(close().await.status, StatusCode::NO_CONTENT);
    assert_eq!(close().await.code(), "token_refused");
    let body = json!({ "api_key": customer.api_key });
    let refused = service
        .send(Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(body))
        .await;
    assert_eq!(refused.code(), "credential_refused");
}

#[tokio::test]
async fn an_edges_token_does_not_turn_into_new_credentials() {
    let (service, customer, token) = customer().await;
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let path = format!("{}/edges/{edge}", customer.base);
    let ask = || Call::new(Method::POST, &format!("{path}/token")).json(json!({}));
    let issued = service.send(ask().peer(&peer)).await;
    assert_eq!(issued.status, StatusCode::CREATED, "{:?}", issued.body);
    let stolen = issued.text("token");
    assert_eq!(
        service.get(&stolen, &path).await.status,
        StatusCode::OK,
        "it is good where a token suffices"
    );
    assert_eq!(
        service.send(ask().token(&stolen)).await.code(),
        "certificate_refused"
    );
    let request = firn_identity::certificate_request(&firn_identity::SigningKey::from_seed([1; 32]), &peer);
    let renew = || {
        let body = json!({ "certificate_request": base64(&request) });
        Call::new(Method::POST, &format!("{path}/certificate")).json(body)
    };
    assert_eq!(
        service.send(renew().token(&stolen)).await.code(),
        "certificate_refused"
    );
    assert_eq!(
        service.send(renew().peer(&peer)).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_nodes_certificate_does_not_hinder_it_from_reading_what_everybody_may() {
    let (service, customer, token) = customer().await;
    let (_, peer) = service.join_node(&customer, &token, "n").await;
    for path in ["/.well-known/jwks.json", "/v1/revocations", "/healthz"] {
        assert_eq!(
            service
                .send(Call::new(Method::GET, path).peer(&peer))
                .await
                .status,
            StatusCode::OK
        );
    }
}
