//! The ends of volumes and edges, killed at every step: each call to the table is the last one once, before and after it happened.

use crate::harness::{
    self, Answer, Call, Cloud, Customer, Service, base64,
    customer::{customer, entropy, recovery},
    invitation,
};
use crate::mortal::{self, Life, killed_at_every_moment};
use async_trait::async_trait;
use axum::{
    Router,
    http::{Method, StatusCode},
};
use firn_api::{
    App, CloudError, CloudSession, CloudSessions, Place, ProofRequest, RingObject, SESSION_SECONDS,
    SessionRequest, drive_all, roots_partition, router, sweep,
};
use firn_format::{FamilyId, VolumeId};
use firn_identity::{JoinSecret, PeerIdentity, Principal, Role, TenantId};
use firn_seal::{KeyRing, Recipient, RecipientKind, RecipientSecret};
use firn_table::{Condition, ItemKey, MemoryTableImage, Table, Write};
use serde_json::json;
use std::sync::Arc;

/// More generations than one transaction removes.
const RINGS: usize = 95;
/// Items beside the volume's roots: more than the room that the last rings leave.
const ROOTS: usize = 100;
const DAY: i64 = 24 * 3600;

/// A tenant just before the end of something, and the table as it was then.
struct Scene {
    service: Service,
    customer: Customer,
    token: String,
    image: MemoryTableImage,
    volume: String,
    edge: (String, PeerIdentity),
}

/// Key rings that follow each other; the last lists the edge's key.
fn rings(service: &Service, customer: &Customer, volume: &str, count: usize) -> Vec<String> {
    let (signer, mut entropy) = (customer.phrase.signing_key(), entropy(service));
    let recovery = recovery(customer);
    let volume: firn_identity::VolumeId = volume.parse().unwrap();
    let volume = VolumeId(volume.0);
    let (first, keys) =
        KeyRing::create(FamilyId([5; 16]), volume, vec![recovery], &signer, &mut entropy).unwrap();
    let mut newest = first.verify(&signer.public()).unwrap();
    let mut texts = vec![base64(&newest.ring().encode())];
    let edge = Recipient {
        name: "edge".into(),
        kind: RecipientKind::Edge,
        // The key that the harness joins edges with.
        public: RecipientSecret::derive(&[9; 32]).public(),
    };
    let next = newest.add_recipient(&keys, edge, &signer, &mut entropy).unwrap();
    newest = next.verify(&signer.public()).unwrap();
    texts.push(base64(&newest.ring().encode()));
    let mut keys = keys;
    while texts.len() < count {
        let (next, next_keys) = newest.rotate(&keys, &signer, &mut entropy).unwrap();
        newest = next.verify(&signer.public()).unwrap();
        keys = next_keys;
        texts.push(base64(&newest.ring().encode()));
    }
    texts
}

impl Scene {
    async fn set(rings_count: usize) -> Self {
        let service = Service::new();
        let customer = service.sign_up("ada@one.example").await;
        let token = service.log_in(&customer).await;
        let bucket = json!({ "kind": "managed", "region": "eu" });
        let body = json!({ "name": "v", "bucket": bucket });
        let volume = service
            .post(&token, &format!("{}/volumes", customer.base), body)
            .await;
        let volume = volume.text("id");
        let path = format!("{}/volumes/{volume}/keyring", customer.base);
        for ring in rings(&service, &customer, &volume, rings_count) {
            let put = Call::new(Method::PUT, &path)
                .token(&token)
                .json(json!({ "key_ring": ring }));
            let put = service.send(put).await;
            assert_eq!(put.status, StatusCode::OK, "{:?}", put.body);
        }
        let (edge, peer) = join(&service, &customer, &token, &volume).await;
        Self {
            image: service.table.image(),
            service,
            customer,
            token,
            volume,
            edge: (edge, peer),
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.customer.base)
    }

    async fn see(&self, path: &str) -> Answer {
        self.service.get(&self.token, &self.at(path)).await
    }

    /// Sends a request to a process that lives so long, and drives sagas until then.
    async fn attempt(&self, request: &Call, life: &Life) {
        let app = mortal::process(&self.service, life);
        let answer = request.clone().send(&router(&app)).await;
        assert!(
            matches!(answer.status, StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE),
            "{:?}",
            answer.body
        );
        // A killed process drives nothing; one that lives on may fail only because it is being killed.
        let _ = drive_all(&app).await;
    }

    /// Another process takes over; the client repeats its request under the same idempotency key. Gives the reply.
    async fn recover(&self, request: &Call, over: &App) -> Answer {
        drive_all(over).await.unwrap();
        let repeated = self.service.send(request.clone()).await;
        assert_eq!(repeated.status, StatusCode::OK, "{:?}", repeated.body);
        assert_eq!(drive_all(over).await.unwrap(), 0, "nothing is left open");
        let operation = self
            .see(&format!("operations/{}", repeated.text("operation")))
            .await;
        assert_eq!(operation.text("state"), "done");
        repeated
    }

    /// How many key rings the table holds.
    async fn rings(&self) -> usize {
        let partition = format!("tenant/{}", self.customer.tenant);
        let prefix = format!("key-ring/{}/", self.volume);
        self.items(&partition, &prefix).await
    }

    /// How many items of the volume's roots it holds.
    async fn roots(&self) -> usize {
        let partition = roots_partition(self.customer.tenant, self.volume.parse().unwrap());
        self.items(&partition, "").await
    }

    async fn items(&self, partition: &str, prefix: &str) -> usize {
        let table: Arc<dyn Table> = self.service.table.connect(&self.service.env);
        let (mut found, mut after) = (0, None);
        loop {
            let page = table
                .query(partition, prefix, after.as_deref(), 1000)
                .await
                .unwrap();
            found += page.items.len();
            match page.next {
                Some(next) => after = Some(next),
                None => return found,
            }
        }
    }

    /// What the audit log's entries with this action say.
    async fn noted(&self, action: &str) -> Vec<String> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.see(&format!("audit?limit=100{cursor}")).await;
            for entry in page.body["items"].as_array().unwrap() {
                if entry["action"] == action {
                    found.push(entry["detail"].as_str().unwrap().to_owned());
                }
            }
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    }
}

/// An edge that serves the volume, was given a session of the cloud, and items beside the volume's roots.
async fn join(service: &Service, customer: &Customer, token: &str, volume: &str) -> (String, PeerIdentity) {
    let (edge, peer, _) = service.join_edge_of(customer, token, "e", &[volume]).await;
    let path = format!("{}/edges/{edge}/volumes/{volume}/session", customer.base);
    let session = Call::new(Method::POST, &path).peer(&peer).json(json!({}));
    assert_eq!(service.send(session).await.status, StatusCode::CREATED);
    let partition = roots_partition(customer.tenant, volume.parse().unwrap());
    let table = service.table.connect(&service.env);
    for item in 0..ROOTS {
        let put = Write::Put {
            key: ItemKey::new(&*partition, format!("retired/{item:04}")),
            value: "A".into(),
            condition: Condition::Absent,
        };
        table.transact(vec![put]).await.unwrap();
    }
    (edge.to_string(), peer)
}

#[tokio::test]
async fn a_volume_whose_erasing_is_killed_at_every_step_keeps_no_ring_and_its_name_is_free_once() {
    let mut scene = Scene::set(RINGS).await;
    let path = scene.at(&format!("volumes/{}", scene.volume));
    let deleted = Call::new(Method::DELETE, &path).token(&scene.token);
    assert_eq!(scene.service.send(deleted).await.text("state"), "deleted");
    scene.image = scene.service.table.image();
    let request = Call::new(Method::POST, &format!("{path}/erase"))
        .token(&scene.token)
        .header("idempotency-key", "one-request")
        .json(json!({}));
    let mut halfway = false;
    let moment = killed_at_every_moment(async |moment, life| {
        scene.service.table.restore(&scene.image);
        scene.attempt(&request, life).await;
        // Nobody ever gets a volume back that lacks some of its rings.
        let left = scene.rings().await;
        halfway |= left > 0 && left < RINGS;
        match &*scene
            .see(&format!("volumes/{}", scene.volume))
            .await
            .text("state")
        {
            "deleted" => assert_eq!(left, RINGS, "moment {moment}"),
            "erasing" | "erased" => {
                let back = scene
                    .service
                    .post(&scene.token, &format!("{path}/undelete"), json!({}))
                    .await;
                assert_eq!(back.code(), "wrong_state");
            }
            other => panic!("{other} at moment {moment}"),
        }
        scene.recover(&request, &scene.service.app).await;
        assert_eq!(
            (scene.rings().await, scene.roots().await),
            (0, 0),
            "moment {moment}"
        );
        let volume = scene.see(&format!("volumes/{}", scene.volume)).await;
        assert_eq!(volume.text("state"), "erased");
        assert_eq!(scene.see("quota").await.body["in_use"]["volumes"], 0);
        for action in ["volume.erase", "volume.erased"] {
            assert_eq!(scene.noted(action).await.len(), 1, "{action}, moment {moment}");
        }
        let body = json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu" } });
        let again = scene.service.post(&scene.token, &scene.at("volumes"), body).await;
        assert_eq!(
            again.status,
            StatusCode::CREATED,
            "the name is free: {:?}",
            again.body
        );
    })
    .await;
    println!("erase: killed at {moment} moments");
    assert!(
        moment > 20 && halfway,
        "the kill does not reach between two batches of rings"
    );
}

#[tokio::test]
async fn an_edge_whose_removal_is_killed_at_every_step_is_refused_by_all_or_by_nobody() {
    let scene = Scene::set(2).await;
    let (edge, peer) = &scene.edge;
    let id = edge.parse().unwrap();
    let token = scene.service.token(
        scene.customer.tenant,
        Principal::Edge(id),
        Role::Edge,
        firn_api::AUDIENCE,
        scene.service.now(),
    );
    let path = scene.at(&format!("edges/{edge}"));
    let request = Call::new(Method::DELETE, &path)
        .token(&scene.token)
        .header("idempotency-key", "one-request");
    let moment = killed_at_every_moment(async |moment, life| {
        scene.service.table.restore(&scene.image);
        scene.attempt(&request, life).await;
        // What another instance says, which knows only what is stored.
        let other = scene.service.under(harness::rego());
        other.app.refresh().await.unwrap();
        let by_token = other.get(&token, &path).await;
        let by_certificate = other.send(Call::new(Method::GET, &path).peer(peer)).await;
        match &*scene.see(&format!("edges/{edge}")).await.text("state") {
            "active" => {
                assert_eq!(by_token.status, StatusCode::OK, "moment {moment}");
                assert_eq!(by_certificate.status, StatusCode::OK);
            }
            "revoked" => {
                // By the list itself, which verifiers that do not know the edge have too.
                assert_eq!(by_token.code(), "token_refused", "moment {moment}");
                assert_eq!(by_certificate.code(), "certificate_refused");
            }
            other => panic!("{other} at moment {moment}"),
        }
        // Not done before its last session is over, and then by whoever is there.
        let removed = scene.service.send(request.clone()).await;
        let waiting = drive_all(&scene.service.app).await.unwrap();
        assert_eq!(waiting, 1, "moment {moment}: {:?}", removed.body);
        let later = scene.service.after(i64::try_from(SESSION_SECONDS).unwrap() + 40);
        scene.recover(&request, &later.app).await;
        assert_eq!(scene.see("quota").await.body["in_use"]["edges"], 0);
        for action in ["edge.remove", "edge.cut-off"] {
            assert_eq!(scene.noted(action).await.len(), 1, "{action}, moment {moment}");
        }
    })
    .await;
    println!("remove: killed at {moment} moments");
    // The work after it waits, and is done by others.
    assert!(moment > 15, "the kill does not reach it");
    let end = &scene.noted("edge.cut-off").await[0];
    assert!(
        end.contains(&scene.volume),
        "it tells where the edge's key is still listed: {end}"
    );
}

/// A cloud so slow that somebody else's request comes in between.
struct CloudAfter {
    router: Router,
    first: Call,
}

#[async_trait]
impl CloudSessions for CloudAfter {
    fn managed(&self, region: &str, tenant: TenantId, volume: firn_identity::VolumeId) -> Option<Place> {
        Cloud.managed(region, tenant, volume)
    }

    fn regions(&self) -> Option<Vec<String>> {
        Cloud.regions()
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        let answer = self.first.clone().send(&self.router).await;
        assert!(answer.status.is_success(), "{:?}", answer.body);
        Cloud.start(request).await
    }

    async fn prove(&self, request: &ProofRequest) -> Result<(), CloudError> {
        Cloud.prove(request).await
    }

    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError> {
        Cloud.keep(ring).await
    }
}

#[tokio::test]
async fn credentials_that_the_cloud_gave_while_the_edge_was_removed_stay_with_the_service() {
    let scene = Scene::set(2).await;
    let (edge, peer) = &scene.edge;
    let path = scene.at(&format!("edges/{edge}/volumes/{}/session", scene.volume));
    // The cloud answers after the removal: it removes the edge first.
    let removal = Call::new(Method::DELETE, &scene.at(&format!("edges/{edge}"))).token(&scene.token);
    let slow = scene.service.with_cloud(Arc::new(CloudAfter {
        router: scene.service.router.clone(),
        first: removal,
    }));
    let session = Call::new(Method::POST, &path).peer(peer).json(json!({}));
    let answer = slow.send(session).await;
    assert_eq!(answer.code(), "certificate_refused", "{:?}", answer.body);
    // The removal waits for it all the same.
    assert_eq!(drive_all(&scene.service.app).await.unwrap(), 1);
}

#[tokio::test]
async fn a_deleted_volume_is_erased_after_a_month_and_can_be_undeleted_until_then() {
    let scene = Scene::set(2).await;
    let path = scene.at(&format!("volumes/{}", scene.volume));
    let delete = Call::new(Method::DELETE, &path);
    scene.service.send(delete.token(&scene.token)).await;
    let undelete = async |service: &Service| {
        let token = service.log_in(&scene.customer).await;
        service.post(&token, &format!("{path}/undelete"), json!({})).await
    };
    let state = async |service: &Service| {
        let token = service.log_in(&scene.customer).await;
        service.get(&token, &path).await.text("state")
    };
    let before = scene.service.after(30 * DAY - 60);
    sweep(&before.app).await.unwrap();
    assert_eq!(state(&before).await, "deleted");
    let image = scene.service.table.image();
    assert_eq!(undelete(&before).await.text("state"), "active");
    scene.service.table.restore(&image);
    let after = scene.service.after(30 * DAY + 60);
    assert_eq!(
        undelete(&after).await.code(),
        "wrong_state",
        "whether it is swept or not"
    );
    sweep(&after.app).await.unwrap();
    assert_eq!(state(&after).await, "erasing");
    assert_eq!(drive_all(&after.app).await.unwrap(), 0);
    assert_eq!(
        (state(&after).await, scene.rings().await),
        ("erased".to_owned(), 0)
    );
}

#[tokio::test]
async fn the_name_of_an_edge_is_its_own_until_it_is_removed() {
    let service = Service::new();
    let customer = service.sign_up("ada@one.example").await;
    let token = service.log_in(&customer).await;
    let edges = format!("{}/edges", customer.base);
    let (first, ..) = service.join_edge(&customer, &token, "Office").await;
    let secret = JoinSecret::generate(&mut entropy(&service));
    let sealed = secret
        .seal(b"what the edge must know", &mut entropy(&service))
        .unwrap();
    // Also one that reads alike.
    let again = service
        .post(&token, &edges, invitation("oFFICE", &secret, &sealed))
        .await;
    assert_eq!(again.code(), "name_taken", "{:?}", again.body);
    let other = service.sign_up("eve@two.example").await;
    let others = service.log_in(&other).await;
    service.join_edge(&other, &others, "Office").await;
    let removal = Call::new(Method::DELETE, &format!("{edges}/{first}")).token(&token);
    assert_eq!(service.send(removal).await.status, StatusCode::OK);
    let again = service
        .post(&token, &edges, invitation("oFFICE", &secret, &sealed))
        .await;
    assert_eq!(again.status, StatusCode::CREATED, "{:?}", again.body);
}

#[tokio::test]
async fn the_name_of_a_node_is_its_own_until_it_is_removed() {
    let (service, customer, token) = customer().await;
    let nodes = format!("{}/nodes", customer.base);
    let invite = async |name: &str| {
        let body = json!({ "name": name, "failure_domain": "r", "authenticator_hash": "00".repeat(32) });
        service.post(&token, &nodes, body).await
    };
    let first = invite("Rack").await;
    assert_eq!(first.status, StatusCode::CREATED, "{:?}", first.body);
    assert_eq!(invite("rACK").await.code(), "name_taken");
    assert_eq!(invite("other").await.status, StatusCode::CREATED);
    let path = format!("{nodes}/{}", first.text("id"));
    let drained = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(drained.status, StatusCode::OK, "{:?}", drained.body);
    assert_eq!(invite("rACK").await.status, StatusCode::CREATED);
    // One that joined keeps its name until it is empty and gone.
    let (joined, _) = service.join_node(&customer, &token, "third").await;
    let path = format!("{nodes}/{joined}");
    let drained = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(drained.status, StatusCode::OK, "{:?}", drained.body);
    assert_eq!(invite("third").await.code(), "name_taken");
    assert_eq!(drive_all(&service.app).await.unwrap(), 0);
    assert_eq!(invite("third").await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn the_name_of_a_key_is_its_own_for_as_long_as_it_is_of_use() {
    const HOUR: i64 = 3600;
    let (service, customer, token) = customer().await;
    let keys = format!("{}/keys", customer.base);
    let make = async |service: &Service, token: &str, name: &str| {
        let body = json!({ "name": name, "role": "reader", "lifetime_seconds": 3600 });
        service.post(token, &keys, body).await
    };
    let in_use = async |service: &Service, token: &str| {
        let quota = service.get(token, &format!("{}/quota", customer.base)).await;
        quota.body["in_use"]["keys"].clone()
    };
    assert_eq!(make(&service, &token, "Login").await.code(), "name_taken");
    let first = make(&service, &token, "CI").await;
    assert_eq!(first.status, StatusCode::CREATED, "{:?}", first.body);
    assert_eq!(make(&service, &token, "ci").await.code(), "name_taken");
    let path = format!("{keys}/{}", first.body["key"]["id"].as_str().unwrap());
    let revoked = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    let second = make(&service, &token, "ci").await;
    assert_eq!(second.status, StatusCode::CREATED, "{:?}", second.body);
    assert_eq!(in_use(&service, &token).await, 2);
    // What expired gives its name up, and its place in the quota.
    let later = service.after(HOUR + 1);
    let token = later.log_in(&customer).await;
    let third = make(&later, &token, "ci").await;
    assert_eq!(third.status, StatusCode::CREATED, "{:?}", third.body);
    assert_eq!(in_use(&later, &token).await, 2);
    let second = format!("{keys}/{}", second.body["key"]["id"].as_str().unwrap());
    assert_eq!(later.get(&token, &second).await.body["revoked"], true);
    assert_eq!(make(&later, &token, "ci").await.code(), "name_taken");
}

#[tokio::test]
async fn an_edge_was_last_seen_when_it_asked_for_credentials() {
    let scene = Scene::set(2).await;
    let (edge, peer) = &scene.edge;
    let path = scene.at(&format!("edges/{edge}"));
    let seen = async |service: &Service| {
        let token = service.log_in(&scene.customer).await;
        service.get(&token, &path).await.body["last_seen"].as_u64()
    };
    // The scene ends with its first session, which some seconds may be past by now.
    let first = seen(&scene.service).await.expect("seen");
    assert!(first <= scene.service.now().0);
    let later = scene.service.after(600);
    let began = later.now().0;
    assert!(first < began);
    let session = Call::new(
        Method::POST,
        &scene.at(&format!("edges/{edge}/volumes/{}/session", scene.volume)),
    );
    let started = later.send(session.peer(peer).json(json!({}))).await;
    assert_eq!(started.status, StatusCode::CREATED, "{:?}", started.body);
    let second = seen(&later).await.expect("seen");
    assert!((began..=later.now().0).contains(&second), "{second}");
    assert_eq!(seen(&scene.service.after(4000)).await, Some(second));
}
