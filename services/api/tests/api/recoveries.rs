//! Owners who get in again by phrase and letter, and everybody who has one of the two only.

use crate::harness::{Answer, Call, Customer, DOMAIN, Service, customer::customer, hex};
use axum::http::{Method, StatusCode};
use firn_api::Since;
use firn_seal::{RecoveryClaim, RecoveryPhrase};
use firn_table::Table;
use serde_json::json;
use std::{io::BufReader, sync::Arc};

const ADA: &str = "ada@one.example";

async fn ask_in(service: &Service, phrase: &RecoveryPhrase, email: &str, more: serde_json::Value) -> Answer {
    let key = phrase.signing_key();
    let claim = RecoveryClaim::Asked {
        trust_domain: DOMAIN,
        email,
    };
    let mut body = json!({
        "tenant_key": key.public().to_string(),
        "email": email,
        "signature": hex(&claim.sign(&key)),
    });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    service
        .send(Call::new(Method::POST, "/v1/recoveries").json(body))
        .await
}

async fn ask(service: &Service, phrase: &RecoveryPhrase, email: &str) -> Answer {
    ask_in(service, phrase, email, json!({})).await
}

fn confirmation(asked: &Answer, phrase: &RecoveryPhrase, code: &str) -> Call {
    let key = phrase.signing_key();
    let recovery = asked.text("recovery");
    let claim = RecoveryClaim::Confirmed {
        trust_domain: DOMAIN,
        recovery: &recovery,
        code,
    };
    let path = format!(
        "/v1/tenants/{}/recoveries/{recovery}/confirm",
        asked.text("tenant")
    );
    Call::new(Method::POST, &path).json(json!({ "code": code, "signature": hex(&claim.sign(&key)) }))
}

async fn exchange(service: &Service, customer: &Customer, key: &str) -> Answer {
    let path = format!("{}/tokens", customer.base);
    service
        .send(Call::new(Method::POST, &path).json(json!({ "api_key": key })))
        .await
}

#[tokio::test]
async fn an_owner_without_any_key_gets_in_by_phrase_and_letter() {
    let (service, customer, token) = customer().await;
    let keys = format!("{}/keys", customer.base);
    let ci = service
        .post(&token, &keys, json!({ "name": "ci", "role": "admin" }))
        .await;
    let spare = service
        .post(&token, &keys, json!({ "name": "spare", "role": "owner" }))
        .await;
    let asked = ask(&service, &customer.phrase, "Ada@one.example").await;
    assert_eq!(asked.status, StatusCode::ACCEPTED, "{:?}", asked.body);
    assert_eq!(asked.text("tenant"), customer.tenant.to_string());
    assert_eq!(service.mail.newest().to, ADA, "as it stands with the service");
    let call =
        confirmation(&asked, &customer.phrase, &service.mail.find("Code")).header("idempotency-key", "one");
    let before = service.mail.count();
    let again = service.send(call.clone()).await;
    assert_eq!(again.status, StatusCode::OK, "{:?}", again.body);
    let mut revoked: Vec<_> = again.body["revoked_keys"].as_array().unwrap().iter().collect();
    revoked.sort_by_key(|name| name.to_string());
    assert_eq!(revoked, ["login", "spare"]);
    assert_eq!(service.mail.count(), before + 1, "the owners are told");
    let repeated = service.send(call).await;
    assert_eq!(repeated.body, again.body, "a lost reply is had again");

    // What was lost is of no use to whoever found it; what programs have goes on.
    assert_eq!(service.get(&token, &customer.base).await.code(), "token_refused");
    for lost in [&customer.api_key, &spare.text("api_key")] {
        let old = exchange(&service, &customer, lost).await;
        assert_eq!(old.code(), "credential_refused");
    }
    let program = exchange(&service, &customer, &ci.text("api_key")).await;
    assert_eq!(program.status, StatusCode::CREATED, "{:?}", program.body);

    // What was issued in the same second counts as before.
    let service = service.after(1);
    service.app.refresh().await.unwrap();
    let issued = exchange(&service, &customer, &again.text("api_key")).await;
    assert_eq!(issued.body["role"], "owner");
    let token = issued.text("token");
    let quota = service.get(&token, &format!("{}/quota", customer.base)).await;
    assert_eq!(quota.body["in_use"]["keys"], 2, "ci and the new one");
    let audit = service
        .get(&token, &format!("{}/audit?limit=100", customer.base))
        .await;
    let actions: Vec<_> = audit.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["action"])
        .collect();
    assert!(
        actions.ends_with(&[&json!("member.recover-asked"), &json!("member.recover")]),
        "{actions:?}"
    );
}

#[tokio::test]
async fn the_letter_alone_and_the_phrase_alone_open_nothing() {
    let (service, customer, token) = customer().await;
    let stranger = RecoveryPhrase::from_entropy([9; 32]);
    // Without the phrase there is not even a letter, and no answer says what is known here.
    let letters = service.mail.count();
    let unknown = ask(&service, &stranger, ADA).await;
    let unknown_here = ask_in(
        &service,
        &stranger,
        ADA,
        json!({ "tenant": customer.tenant.to_string() }),
    )
    .await;
    let no_owner = ask(&service, &customer.phrase, "eve@one.example").await;
    let forged = ask_in(
        &service,
        &stranger,
        ADA,
        json!({ "tenant_key": customer.phrase.signing_key().public().to_string() }),
    )
    .await;
    for refused in [&unknown, &unknown_here, &no_owner, &forged] {
        assert_eq!(refused.code(), "credential_refused", "{:?}", refused.body);
        assert_eq!(refused.text("detail"), unknown.text("detail"));
    }
    assert_eq!(service.mail.count(), letters);

    let asked = ask(&service, &customer.phrase, ADA).await;
    let code = service.mail.find("Code");
    let by_mailbox = service.send(confirmation(&asked, &stranger, &code)).await;
    assert_eq!(by_mailbox.code(), "credential_refused", "{:?}", by_mailbox.body);
    for guess in ["", "AAAAAAAAAAAAAAAAAAAAAA"] {
        let by_phrase = service.send(confirmation(&asked, &customer.phrase, guess)).await;
        assert_eq!(by_phrase.code(), "credential_refused", "{:?}", by_phrase.body);
    }
    assert_eq!(service.get(&token, &customer.base).await.status, StatusCode::OK);

    // A code is for its own recovery, for an hour, and once.
    let second = ask(&service, &customer.phrase, ADA).await;
    let crossed = service.send(confirmation(&second, &customer.phrase, &code)).await;
    assert_eq!(crossed.code(), "credential_refused", "{:?}", crossed.body);
    let late = service
        .after(3601)
        .send(confirmation(&asked, &customer.phrase, &code))
        .await;
    assert_eq!(late.code(), "credential_refused", "{:?}", late.body);
    let good = service.send(confirmation(&asked, &customer.phrase, &code)).await;
    assert_eq!(good.status, StatusCode::OK, "{:?}", good.body);
    let twice = service.send(confirmation(&asked, &customer.phrase, &code)).await;
    assert_eq!(twice.code(), "credential_refused", "{:?}", twice.body);
}

#[tokio::test]
async fn who_is_no_owner_any_more_does_not_come_back_as_one() {
    let (service, customer, token) = customer().await;
    let members = format!("{}/members", customer.base);
    let invited = service
        .post(
            &token,
            &members,
            json!({ "email": "bob@one.example", "role": "owner" }),
        )
        .await;
    let bob = format!("{members}/{}", invited.text("id"));
    let not_yet = ask(&service, &customer.phrase, "bob@one.example").await;
    assert_eq!(not_yet.code(), "credential_refused");
    // The refusal sent nothing: the newest letter is the invitation.
    let confirm =
        Call::new(Method::POST, &format!("{bob}/confirm")).json(json!({ "code": service.mail.find("Code") }));
    assert_eq!(service.send(confirm).await.status, StatusCode::OK);
    let asked = ask(&service, &customer.phrase, "bob@one.example").await;
    assert_eq!(asked.status, StatusCode::ACCEPTED, "{:?}", asked.body);
    let code = service.mail.find("Code");
    let demoted = service
        .send(
            Call::new(Method::PATCH, &bob)
                .token(&token)
                .json(json!({ "role": "admin" })),
        )
        .await;
    assert_eq!(demoted.status, StatusCode::OK, "{:?}", demoted.body);
    let refused = service.send(confirmation(&asked, &customer.phrase, &code)).await;
    assert_eq!(refused.code(), "credential_refused", "{:?}", refused.body);
    let again = ask(&service, &customer.phrase, "bob@one.example").await;
    assert_eq!(again.code(), "credential_refused");
}

#[tokio::test]
async fn a_spent_budget_keeps_no_owner_out_and_letters_are_counted() {
    let (service, customer, _) = customer().await;
    firn_api::set_capped(&service.app, customer.tenant, true)
        .await
        .unwrap();
    let asked = ask(&service, &customer.phrase, ADA).await;
    let code = service.mail.find("Code");
    let good = service.send(confirmation(&asked, &customer.phrase, &code)).await;
    assert_eq!(good.status, StatusCode::OK, "{:?}", good.body);
    // The sign-up's letter and this one went to the same address: one more, and then an hour's wait for the next.
    assert_eq!(
        ask(&service, &customer.phrase, ADA).await.status,
        StatusCode::ACCEPTED
    );
    let fourth = ask(&service, &customer.phrase, ADA).await;
    assert_eq!(fourth.code(), "rate_limited", "{:?}", fourth.body);
}

#[tokio::test]
async fn a_restored_service_finds_the_tenant_by_its_phrase_and_an_old_one_by_its_id() {
    let (service, customer, _) = customer().await;
    let mut file = Vec::new();
    let table: Arc<dyn Table> = service.table.connect(&service.env);
    firn_api::backup(&service.env, &table, &mut file).await.unwrap();
    let elsewhere = Service::new();
    let new_table: Arc<dyn Table> = elsewhere.table.connect(&elsewhere.env);
    firn_api::restore(
        &elsewhere.env,
        &new_table,
        &mut BufReader::new(&*file),
        &Since::Nothing,
        None,
    )
    .await
    .unwrap();
    let asked = ask(&elsewhere, &customer.phrase, ADA).await;
    assert_eq!(asked.status, StatusCode::ACCEPTED, "{:?}", asked.body);

    // A tenant from before: nothing leads from its key to it.
    let by_key = table.query("tenant-keys", "", None, 10).await.unwrap().items;
    let [entry] = &*by_key else {
        panic!("one tenant, one key: {by_key:?}")
    };
    let delete = firn_table::Write::Delete {
        key: entry.key.clone(),
        version: entry.version,
    };
    table.transact(vec![delete]).await.unwrap();
    assert_eq!(
        ask(&service, &customer.phrase, ADA).await.code(),
        "credential_refused"
    );
    let named = ask_in(
        &service,
        &customer.phrase,
        ADA,
        json!({ "tenant": customer.tenant.to_string() }),
    )
    .await;
    assert_eq!(named.status, StatusCode::ACCEPTED, "{:?}", named.body);
    // What nobody confirmed is swept.
    let later = service.after(7200);
    assert!(firn_api::sweep(&later.app).await.unwrap() >= 1);
    let code = service.mail.find("Code");
    let late = service.send(confirmation(&named, &customer.phrase, &code)).await;
    assert_eq!(late.code(), "credential_refused");
}
