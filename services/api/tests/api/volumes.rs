//! A volume and its key rings, from its first to its last day.

use crate::harness::{
    Call,
    customer::{customer, rings, volume},
};
use axum::http::{Method, StatusCode};
use firn_api::drive_all;
use serde_json::json;

#[tokio::test]
async fn a_volume_lives_is_deleted_comes_back_and_is_erased() {
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    let made = service.post(&token, &volumes, volume("Akten")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    let (first, second) = rings(&service, &customer, &made.text("id"));
    let path = format!("{volumes}/{}", made.text("id"));
    let put = |ring: &str| {
        Call::new(Method::PUT, &format!("{path}/keyring"))
            .token(&token)
            .json(json!({ "key_ring": ring }))
    };
    // A ring that is signed for another volume is none for this one, whoever puts it there.
    let (other, _) = rings(&service, &customer, &firn_identity::VolumeId([7; 16]).to_string());
    assert_eq!(service.send(put(&other)).await.code(), "key_ring_refused");
    let mut body = volume("Bilder");
    body["key_ring"] = other.into();
    assert_eq!(
        service.post(&token, &volumes, body).await.code(),
        "key_ring_refused"
    );
    let one = service.send(put(&first)).await;
    assert_eq!(one.body["key_ring_generation"], 1, "{:?}", one.body);
    let next = service.send(put(&second)).await;
    assert_eq!(next.body["key_ring_generation"], 2, "{:?}", next.body);
    // The same again is no error, the one before is, and so is one that somebody else signed.
    assert_eq!(service.send(put(&second)).await.status, StatusCode::OK);
    assert_eq!(service.send(put(&first)).await.code(), "key_ring_refused");
    let stranger = service.sign_up("eve@two.example").await;
    assert_eq!(
        service
            .send(put(&rings(&service, &stranger, &made.text("id")).1))
            .await
            .code(),
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
    let erasing = erase("erase").await;
    assert_eq!(erasing.text("state"), "erasing");
    assert_eq!(erase("erase").await.body, erasing.body, "once is enough");
    // There is no way back.
    assert_eq!(erase("undelete").await.code(), "wrong_state");
    assert_eq!(drive_all(&service.app).await.unwrap(), 0);
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
async fn how_a_volume_is_written_is_said_when_it_is_made_and_one_that_many_write_is_granted_to_be_read_only()
{
    let (service, customer, token) = customer().await;
    let volumes = format!("{}/volumes", customer.base);
    let plain = service.post(&token, &volumes, volume("Akten")).await;
    assert!(plain.body.get("leases").is_none(), "{:?}", plain.body);
    let mut body = volume("Bilder");
    body["leases"] = "turns".into();
    assert_eq!(
        service.post(&token, &volumes, body.clone()).await.status,
        StatusCode::BAD_REQUEST
    );
    body["leases"] = "inode".into();
    let made = service.post(&token, &volumes, body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    let path = format!("{volumes}/{}", made.text("id"));
    assert_eq!(service.get(&token, &path).await.text("leases"), "inode");
    // It stays so: there is no such field to change.
    let changed = Call::new(Method::PATCH, &path)
        .token(&token)
        .json(json!({ "leases": "volume" }));
    assert_eq!(service.send(changed).await.status, StatusCode::BAD_REQUEST);

    let stranger = service.sign_up("eve@two.example").await;
    let grant = |access: &str| {
        let key = "11".repeat(32);
        let grantee = stranger.base.rsplit('/').next().unwrap();
        json!({ "grantee": grantee, "grantee_key": key, "access": access })
    };
    let grants = format!("{path}/grants");
    let refused = service.post(&token, &grants, grant("write")).await;
    assert_eq!(refused.code(), "not_allowed", "{:?}", refused.body);
    let read = service.post(&token, &grants, grant("read")).await;
    assert_eq!(read.status, StatusCode::CREATED, "{:?}", read.body);

    // Nobody has made it yet, and so nobody is a member.
    let members = service.get(&token, &format!("{path}/members")).await;
    assert_eq!(
        (members.status, &members.body["items"]),
        (StatusCode::OK, &json!([]))
    );
    let beyond = service.get(&token, &format!("{path}/members?cursor=AAAA")).await;
    assert_eq!(beyond.code(), "malformed_parameter");
}
