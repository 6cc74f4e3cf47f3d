//! Expiry, and clocks that are wrong.

use crate::harness::{self, Call, Service, customer::customer};
use axum::http::{Method, StatusCode};
use firn_identity::{CLOCK_SKEW_SECONDS, JoinSecret, MAX_TOKEN_SECONDS, PeerIdentity, PeerKind};
use serde_json::{Value, json};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

#[tokio::test]
async fn a_token_is_good_on_instances_whose_clocks_differ_a_little_and_no_longer() {
    let (service, customer, token) = customer().await;
    let life = i64::try_from(MAX_TOKEN_SECONDS).unwrap();
    let skew = i64::try_from(CLOCK_SKEW_SECONDS).unwrap();
    for (seconds, good) in [
        (0, true),
        (-skew + 5, true),
        (life + skew - 5, true),
        (life + skew + 5, false),
        (-skew - 5, false),
    ] {
        let answer = service.after(seconds).get(&token, &customer.base).await;
        assert_eq!(
            answer.status == StatusCode::OK,
            good,
            "{seconds} s: {:?}",
            answer.body
        );
    }
    // The keys of tokens change at midnight: one issued before is good after.
    let until_midnight = DAY - i64::try_from(service.now().0).unwrap() % DAY;
    let evening = service.after(until_midnight - 60);
    let token = evening.log_in(&customer).await;
    assert_eq!(
        service
            .after(until_midnight + 60)
            .get(&token, &customer.base)
            .await
            .status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn keys_codes_and_join_secrets_expire() {
    let (service, customer, token) = customer().await;
    let body = json!({ "name": "ci", "role": "reader", "lifetime_seconds": 3600 });
    let key = service
        .post(&token, &format!("{}/keys", customer.base), body)
        .await
        .text("api_key");
    let exchange =
        || Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(json!({ "api_key": key }));
    assert_eq!(
        service.after(HOUR - 10).send(exchange()).await.status,
        StatusCode::CREATED
    );
    assert_eq!(
        service.after(HOUR + 1).send(exchange()).await.code(),
        "credential_refused"
    );
    // A token of an expiring key does not outlive it.
    let last = service.after(HOUR - 10).send(exchange()).await;
    assert!(last.body["expires"].as_u64().unwrap() <= service.now().0 + 3600);

    let body = json!({ "email": "bob@one.example", "role": "reader" });
    let bob = service
        .post(&token, &format!("{}/members", customer.base), body)
        .await
        .text("id");
    let confirm = Call::new(Method::POST, &format!("{}/members/{bob}/confirm", customer.base));
    let confirm = confirm.json(json!({ "code": service.mail.find("Code") }));
    assert_eq!(
        service.after(DAY + 1).send(confirm.clone()).await.code(),
        "credential_refused"
    );
    assert_eq!(service.after(DAY - 10).send(confirm).await.status, StatusCode::OK);

    let (invited, join) = invite(&service, &customer, &token).await;
    assert_eq!(invited, StatusCode::CREATED);
    assert_eq!(
        service.after(HOUR + 1).send(join.clone()).await.code(),
        "credential_refused"
    );
    assert_eq!(service.after(HOUR - 10).send(join).await.status, StatusCode::OK);
}

async fn invite(service: &Service, customer: &harness::Customer, token: &str) -> (StatusCode, Call) {
    let mut draw = |bytes: &mut [u8]| bytes.copy_from_slice(&service.env.random_bytes::<32>()[..bytes.len()]);
    let secret = JoinSecret::generate(&mut draw);
    let sealed = secret.seal(b"content", &mut draw).unwrap();
    let body = harness::invitation("e", &secret, &sealed);
    let invited = service
        .post(token, &format!("{}/edges", customer.base), body)
        .await;
    let peer = PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: customer.tenant,
            edge: secret.lookup_id().edge_id(),
        },
    };
    let path = format!("{}/joins/{}", customer.base, secret.lookup_id().to_text());
    (
        invited.status,
        Call::new(Method::POST, &path).json(harness::join_body(&secret, &peer)),
    )
}

#[tokio::test]
async fn a_sweep_removes_what_expired_and_nothing_else() {
    let (service, customer, token) = customer().await;
    let signup = json!({ "email": "eve@two.example", "tenant_name": "never confirmed" });
    service
        .send(Call::new(Method::POST, "/v1/signups").json(signup))
        .await;
    let bucket = json!({ "kind": "managed", "region": "eu" });
    let make = |name: &str| {
        let call = Call::new(Method::POST, &format!("{}/volumes", customer.base)).token(&token);
        call.header("idempotency-key", "one")
            .json(json!({ "name": name, "bucket": bucket }))
    };
    let made = service.send(make("a")).await;
    let (_, join) = invite(&service, &customer, &token).await;
    assert_eq!(firn_api::sweep(&service.app).await.unwrap(), 0);
    assert_eq!(service.send(make("a")).await.body, made.body);

    // The sign-up, the volume's kept reply, the confirmation's kept reply, the invitation.
    let later = service.after(DAY + 60);
    assert_eq!(firn_api::sweep(&later.app).await.unwrap(), 4);
    assert_eq!(firn_api::sweep(&later.app).await.unwrap(), 0);
    assert_eq!(service.send(join).await.code(), "credential_refused");
    let token = later.log_in(&customer).await;
    let volumes = later.get(&token, &format!("{}/volumes", customer.base)).await;
    assert_eq!(volumes.body["items"].as_array().map(Vec::len), Some(1));
    let kept: &Value = &volumes.body["items"][0]["id"];
    assert_eq!(kept, &made.body["id"]);
}
