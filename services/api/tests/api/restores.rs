//! Restored backups: the same service as before, in which nobody lives again who was removed.

use crate::harness::{
    Call, Customer, Service,
    customer::{customer, rings, volume},
};
use axum::http::{Method, StatusCode};
use firn_api::{BackupError, Restored, Roster, Since, drive_all, types::AuditEntry, verify_chain};
use firn_table::Table;
use serde_json::json;
use std::{io::BufReader, sync::Arc};

fn table(service: &Service) -> Arc<dyn Table> {
    service.table.connect(&service.env)
}

async fn backup(service: &Service) -> (Vec<u8>, u64) {
    let mut file = Vec::new();
    let items = firn_api::backup(&service.env, &table(service), &mut file)
        .await
        .unwrap();
    (file, items)
}

async fn roster(service: &Service) -> Roster {
    let roster = Roster::of_table(&service.env, &table(service)).await.unwrap();
    // As it comes back from its file.
    let mut file = Vec::new();
    roster.write(&mut file).unwrap();
    for cut in [0, 1, file.len() / 2, file.len() - 2] {
        assert!(Roster::read(&mut BufReader::new(&file[..cut])).is_err(), "{cut}");
    }
    let read = Roster::read(&mut BufReader::new(&*file)).unwrap();
    assert_eq!(read, roster);
    read
}

async fn restore(service: &Service, file: &[u8], since: &Since) -> Result<Restored, BackupError> {
    firn_api::restore(
        &service.env,
        &table(service),
        &mut BufReader::new(file),
        since,
        None,
    )
    .await
}

#[tokio::test]
async fn a_backup_restored_elsewhere_is_the_same_service() {
    let (service, customer, token) = customer().await;
    service
        .post(&token, &format!("{}/volumes", customer.base), volume("a"))
        .await;
    let (file, items) = backup(&service).await;
    let since = Since::Roster(roster(&service).await);

    for cut in [0, 1, file.len() / 2, file.len() - 2] {
        let scratch = Service::new();
        let restored = restore(&scratch, &file[..cut], &since).await;
        assert!(restored.is_err(), "a file cut at {cut} is refused");
        let is_begun = cut > 1;
        let settled = firn_api::require_settled(&table(&scratch)).await;
        assert_eq!(
            settled.is_err(),
            is_begun,
            "no service starts on a part of a backup"
        );
    }
    let elsewhere = Service::new();
    let restored = restore(&elsewhere, &file, &since).await.unwrap();
    assert_eq!((restored.items, &*restored.told), (items, &[] as &[String]));
    firn_api::require_settled(&table(&elsewhere)).await.unwrap();
    assert!(
        restore(&elsewhere, &file, &since).await.is_err(),
        "not into a full table"
    );
    let elsewhere = elsewhere.after(1);
    elsewhere.app.refresh().await.unwrap();
    let path = format!("{}/volumes", customer.base);
    assert_eq!(
        elsewhere.get(&token, &path).await.code(),
        "token_refused",
        "what was logged in before is not any more"
    );
    let token = elsewhere.log_in(&customer).await;
    let volumes = elsewhere.get(&token, &path).await;
    assert_eq!(volumes.body["items"][0]["name"], "a");
    let page = elsewhere.get(&token, &format!("{}/audit", customer.base)).await;
    let entries: Vec<AuditEntry> = serde_json::from_value(page.body["items"].clone()).unwrap();
    verify_chain(&entries).unwrap();
    assert_eq!(entries.last().unwrap().action, "service.restore");
}

/// A tenant with one of each thing, all of which end after the backup.
struct Scene {
    service: Service,
    customer: Customer,
    file: Vec<u8>,
    api_key: String,
    key: String,
    edge: String,
    peer: firn_identity::PeerIdentity,
    member: String,
    kept: String,
    gone: String,
    second_ring: String,
}

impl Scene {
    async fn set() -> Self {
        let (service, customer, token) = customer().await;
        let base = customer.base.clone();
        let made = service
            .post(
                &token,
                &format!("{base}/keys"),
                json!({ "name": "ci", "role": "admin" }),
            )
            .await;
        let key = made.body["key"]["id"].as_str().unwrap().to_owned();
        let (edge, peer, _) = service.join_edge(&customer, &token, "office").await;
        let member = service
            .post(
                &token,
                &format!("{base}/members"),
                json!({ "email": "bob@one.example", "role": "admin" }),
            )
            .await
            .text("id");
        let volumes = format!("{base}/volumes");
        let kept = service.post(&token, &volumes, volume("kept")).await.text("id");
        let gone = service.post(&token, &volumes, volume("gone")).await.text("id");
        let (first, second) = rings(&service, &customer, &kept);
        let put = async |ring: &str| {
            let path = format!("{volumes}/{kept}/keyring");
            let call = Call::new(Method::PUT, &path)
                .token(&token)
                .json(json!({ "key_ring": ring }));
            assert_eq!(service.send(call).await.status, StatusCode::OK);
        };
        put(&first).await;
        let (file, _) = backup(&service).await;

        put(&second).await;
        for path in [
            format!("{base}/keys/{key}"),
            format!("{base}/edges/{edge}"),
            format!("{base}/members/{member}"),
            format!("{volumes}/{gone}"),
        ] {
            let ended = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
            assert!(ended.status.is_success(), "{path}: {:?}", ended.body);
        }
        service
            .post(&token, &format!("{volumes}/{gone}/erase"), json!({}))
            .await;
        assert_eq!(drive_all(&service.app).await.unwrap(), 0);
        Self {
            api_key: made.text("api_key"),
            key,
            edge: edge.to_string(),
            peer,
            member,
            kept,
            gone,
            second_ring: second,
            service,
            customer,
            file,
        }
    }

    async fn key_works(&self, service: &Service) -> bool {
        let body = json!({ "api_key": self.api_key });
        let path = format!("{}/tokens", self.customer.base);
        let answer = service.send(Call::new(Method::POST, &path).json(body)).await;
        answer.status == StatusCode::CREATED
    }

    async fn edge_works(&self, service: &Service) -> bool {
        let path = format!("{}/edges/{}", self.customer.base, self.edge);
        let answer = service.send(Call::new(Method::GET, &path).peer(&self.peer)).await;
        answer.status == StatusCode::OK
    }
}

#[tokio::test]
async fn what_ended_after_the_backup_does_not_live_again() {
    let scene = Scene::set().await;
    assert!(!scene.key_works(&scene.service).await && !scene.edge_works(&scene.service).await);
    let elsewhere = Service::new();
    let since = Since::Roster(roster(&scene.service).await);
    let restored = restore(&elsewhere, &scene.file, &since).await.unwrap();
    for id in [&scene.key, &scene.edge, &scene.member, &scene.gone, &scene.kept] {
        assert!(
            restored.told.iter().any(|line| line.contains(id.as_str())),
            "{id}: {:?}",
            restored.told
        );
    }
    let elsewhere = elsewhere.after(1);
    elsewhere.app.refresh().await.unwrap();
    assert!(!scene.key_works(&elsewhere).await, "a revoked key lives again");
    assert!(!scene.edge_works(&elsewhere).await, "a removed edge lives again");

    let token = elsewhere.log_in(&scene.customer).await;
    let base = &scene.customer.base;
    let members = elsewhere.get(&token, &format!("{base}/members")).await;
    assert_eq!(members.body["items"].as_array().unwrap().len(), 1, "the owner");
    assert_eq!(drive_all(&elsewhere.app).await.unwrap(), 0);
    let gone = elsewhere
        .get(&token, &format!("{base}/volumes/{}", scene.gone))
        .await;
    assert_eq!(gone.text("state"), "erased");
    let ring = elsewhere
        .get(&token, &format!("{base}/volumes/{}/keyring", scene.kept))
        .await;
    assert_eq!(
        ring.text("key_ring"),
        scene.second_ring,
        "the newer ring was carried over"
    );
    let (before, after) = (
        scene
            .service
            .after(1)
            .get(
                &scene.service.log_in(&scene.customer).await,
                &format!("{base}/quota"),
            )
            .await,
        elsewhere.get(&token, &format!("{base}/quota")).await,
    );
    assert_eq!(
        before.body["in_use"], after.body["in_use"],
        "nothing is counted that ended"
    );
    // The address is free again.
    let again = json!({ "email": "bob@one.example", "role": "reader" });
    let invited = elsewhere.post(&token, &format!("{base}/members"), again).await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
}

#[tokio::test]
async fn without_anything_newer_the_operator_is_told_what_lives_again() {
    let scene = Scene::set().await;
    let elsewhere = Service::new();
    let restored = restore(&elsewhere, &scene.file, &Since::Nothing).await.unwrap();
    for id in [&scene.key, &scene.edge, &scene.member] {
        assert!(
            restored
                .told
                .iter()
                .any(|line| line.contains(id.as_str()) && line.contains("lives")),
            "{id}: {:?}",
            restored.told
        );
    }
    let elsewhere = elsewhere.after(1);
    assert!(scene.key_works(&elsewhere).await, "as the operator was told");
}

#[tokio::test]
async fn a_roster_from_before_the_backup_is_refused() {
    let (service, _, _) = customer().await;
    let old = roster(&service).await;
    let later = service.after(60);
    let (file, _) = backup(&later).await;
    let refused = restore(&Service::new(), &file, &Since::Roster(old)).await;
    assert!(
        matches!(refused, Err(BackupError::OlderRoster { seconds: 60.. })),
        "{refused:?}"
    );
}
