//! Rights are computed when they are used: from the role that a member has now, not from the one they had when something was made.

use crate::harness::{Answer, Call, Customer, Service, customer::customer};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

/// A member who was invited and accepted: their id and login key.
async fn member(
    service: &Service,
    customer: &Customer,
    token: &str,
    email: &str,
    role: &str,
) -> (String, String) {
    let (id, confirmed) = invite_and_confirm(service, customer, token, email, role).await;
    assert_eq!(confirmed.status, StatusCode::OK, "{:?}", confirmed.body);
    (id, confirmed.text("api_key"))
}

async fn invite(
    service: &Service,
    customer: &Customer,
    token: &str,
    email: &str,
    role: &str,
) -> (String, String) {
    let body = json!({ "email": email, "role": role });
    let invited = service
        .post(token, &format!("{}/members", customer.base), body)
        .await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    (invited.text("id"), service.mail.find("Code"))
}

async fn confirm(service: &Service, customer: &Customer, id: &str, code: &str) -> Answer {
    let path = format!("{}/members/{id}/confirm", customer.base);
    service
        .send(Call::new(Method::POST, &path).json(json!({ "code": code, "public_key": Value::Null })))
        .await
}

async fn invite_and_confirm(
    service: &Service,
    customer: &Customer,
    token: &str,
    email: &str,
    role: &str,
) -> (String, Answer) {
    let (id, code) = invite(service, customer, token, email, role).await;
    let confirmed = confirm(service, customer, &id, &code).await;
    (id, confirmed)
}

async fn exchange(service: &Service, customer: &Customer, key: &str) -> Answer {
    let path = format!("{}/tokens", customer.base);
    service
        .send(Call::new(Method::POST, &path).json(json!({ "api_key": key })))
        .await
}

async fn token(service: &Service, customer: &Customer, key: &str) -> String {
    let issued = exchange(service, customer, key).await;
    assert_eq!(issued.status, StatusCode::CREATED, "{:?}", issued.body);
    issued.text("token")
}

async fn key_of(service: &Service, customer: &Customer, token: &str, role: &str) -> String {
    let body = json!({ "name": role, "role": role });
    let made = service
        .post(token, &format!("{}/keys", customer.base), body)
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    made.text("api_key")
}

async fn change_role(service: &Service, customer: &Customer, owner: &str, member: &str, role: &str) {
    let path = format!("{}/members/{member}", customer.base);
    let call = Call::new(Method::PATCH, &path).token(owner);
    let changed = service.send(call.json(json!({ "role": role }))).await;
    assert_eq!(changed.status, StatusCode::OK, "{:?}", changed.body);
}

#[tokio::test]
async fn a_key_never_grants_more_than_the_member_who_made_it_may_now() {
    let (service, customer, owner) = customer().await;
    let (id, login) = member(&service, &customer, &owner, "bob@one.example", "admin").await;
    let bob = token(&service, &customer, &login).await;
    let key = key_of(&service, &customer, &bob, "admin").await;
    let before = token(&service, &customer, &key).await;
    let members = format!("{}/members", customer.base);
    let invitation = |email: &str| json!({ "email": email, "role": "reader" });
    let may = service.post(&before, &members, invitation("one@x.example")).await;
    assert_eq!(may.status, StatusCode::CREATED, "{:?}", may.body);

    change_role(&service, &customer, &owner, &id, "reader").await;
    let old = service.post(&before, &members, invitation("two@x.example")).await;
    assert_eq!(
        old.code(),
        "token_refused",
        "the token of before the demotion: {:?}",
        old.body
    );
    // Tokens are told apart by seconds: one that was made in the second of the revocation counts as made before it.
    let later = service.after(2);
    let after = token(&later, &customer, &key).await;
    let new = later.post(&after, &members, invitation("three@x.example")).await;
    assert_eq!(
        new.code(),
        "not_allowed",
        "the key kept the old role: {:?}",
        new.body
    );
    let reads = later.get(&after, &members).await;
    assert_eq!(
        reads.status,
        StatusCode::OK,
        "what a reader may, the key still may: {:?}",
        reads.body
    );

    // Who is an operator cannot have made a key for money: what both may is to look.
    change_role(&later, &customer, &owner, &id, "billing").await;
    let later = service.after(4);
    let after = token(&later, &customer, &key).await;
    let volumes = format!("{}/volumes", customer.base);
    let bucket = json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu-central-1" } });
    assert_eq!(later.post(&after, &volumes, bucket).await.code(), "not_allowed");

    let removed = later
        .send(Call::new(Method::DELETE, &format!("{members}/{id}")).token(&owner))
        .await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT, "{:?}", removed.body);
    assert_eq!(
        exchange(&later, &customer, &key).await.code(),
        "credential_refused"
    );
    assert_eq!(later.get(&after, &members).await.code(), "token_refused");
}

#[tokio::test]
async fn an_invitation_is_worth_no_more_than_whoever_made_it() {
    let (service, customer, owner) = customer().await;
    let (admin, login) = member(&service, &customer, &owner, "bob@one.example", "admin").await;
    let bob = token(&service, &customer, &login).await;
    let (friend, code) = invite(&service, &customer, &bob, "friend@x.example", "admin").await;
    change_role(&service, &customer, &owner, &admin, "reader").await;
    let confirmed = confirm(&service, &customer, &friend, &code).await;
    assert_eq!(
        confirmed.code(),
        "credential_refused",
        "somebody who is no admin any more made an admin: {:?}",
        confirmed.body
    );
    // An invitation of somebody who still may is good.
    let (_, confirmed) = invite_and_confirm(&service, &customer, &owner, "eve@one.example", "admin").await;
    assert_eq!(confirmed.status, StatusCode::OK, "{:?}", confirmed.body);
}
