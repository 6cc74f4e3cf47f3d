//! The anchor mounted in the service: what it promises on a table it promises the edge that serves the volume, shut to it from the
//! transaction on that removes it, and to everybody else always.

use crate::harness::{self, Call, Customer, Fleet, Service};
use crate::shaky::Shaky;
use async_trait::async_trait;
use axum::{
    Router,
    http::{Method, StatusCode},
};
use firn_anchor::{
    Anchor, AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, AnchorRole, OwnerId, Ownership, conformance,
};
use firn_api::{AUDIENCE, REVOKED_WITHIN, roots_partition, router};
use firn_env::{
    Env, Monotonic,
    sim::{Seeded, Simulation},
};
use firn_format::{FamilyId, Location, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_identity::{EdgeId, PeerIdentity, Principal, Role};
use firn_table::{Table, TableError};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub const FAMILY: FamilyId = FamilyId([5; 16]);
pub const OWNER: OwnerId = OwnerId([6; 16]);
/// Longer outages of the table than this are not promised to be bridged.
const OUTAGE: Duration = Duration::from_millis(2500);
const SEEDS: u64 = 20;

/// A tenant with a volume that one edge serves.
pub struct Scene {
    pub service: Service,
    pub customer: Customer,
    pub owner: String,
    volume: String,
    edge: EdgeId,
    peer: PeerIdentity,
}

impl Scene {
    pub async fn set(service: Service) -> Self {
        let customer = service.sign_up("ada@one.example").await;
        let owner = service.log_in(&customer).await;
        let body = json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu" } });
        let made = service
            .post(&owner, &format!("{}/volumes", customer.base), body)
            .await;
        let volume = made.text("id");
        let (edge, peer, _) = service.join_edge_of(&customer, &owner, "e", &[&volume]).await;
        Self {
            service,
            customer,
            owner,
            volume,
            edge,
            peer,
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.customer.base)
    }

    fn path(&self) -> String {
        self.at(&format!("edges/{}/volumes/{}/anchor", self.edge, self.volume))
    }

    /// The edge's way to its roots by this instance, with its certificate or with a token.
    pub fn door(&self, router: &Router, token: Option<String>) -> Door {
        Door {
            router: router.clone(),
            path: self.path(),
            peer: self.peer.clone(),
            token,
        }
    }

    fn token(&self) -> String {
        let edge = Principal::Edge(self.edge);
        let now = self.service.now();
        self.service
            .token(self.customer.tenant, edge, Role::Edge, AUDIENCE, now)
    }

    /// The anchor as the service's own components see it.
    fn seen_by_the_service(&self) -> Anchor {
        let kept = roots_partition(self.customer.tenant, self.volume.parse().unwrap());
        let table = self.service.table.connect(&self.service.env);
        Anchor::within(
            table,
            self.service.env.clone(),
            FAMILY,
            kept,
            AnchorRole::Observer,
        )
    }

    pub fn engine_volume(&self) -> VolumeId {
        self.volume.parse().unwrap()
    }

    fn removal(&self) -> Call {
        Call::new(Method::DELETE, &self.at(&format!("edges/{}", self.edge))).token(&self.owner)
    }
}

/// What an edge does with what the service answers; `edge-proxy` does the same over TLS.
pub struct Door {
    pub router: Router,
    pub path: String,
    pub peer: PeerIdentity,
    pub token: Option<String>,
}

#[async_trait]
impl AnchorBackend for Door {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let asked = Call::new(Method::POST, &self.path).json(serde_json::to_value(&call).unwrap());
        let asked = match &self.token {
            Some(token) => asked.token(token),
            None => asked.peer(&self.peer),
        };
        let answer = asked.send(&self.router).await;
        match answer.code() {
            "" => Ok(serde_json::from_value(answer.body).unwrap()),
            "storage_unavailable" | "changed_meanwhile" => {
                Err(TableError::Unavailable(answer.text("detail")))
            }
            "invalid_field" => Err(TableError::Limit(answer.text("detail"))),
            other => Err(TableError::Refused(other.to_owned())),
        }
    }
}

/// The next root of a volume.
pub async fn commit(env: &Env, anchor: &Anchor, ownership: &mut Ownership) -> Result<Version, AnchorError> {
    let root = match ownership.unresolved() {
        Some(root) => root.clone(),
        None => {
            let version = Version(ownership.root().map_or(0, |root| root.version.0) + 1);
            let place = Location {
                segment: SegmentId {
                    writer: WriterId(1),
                    sequence: version.0,
                },
                offset: 0,
                length: 100,
            };
            let now_ms = env.wall().as_millis();
            ownership.next_root(Uid([7; 32]), place, version, env.random_bytes(), now_ms)
        }
    };
    let version = root.version;
    anchor.commit(ownership, root).await.map(|()| version)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_anchor_promises_on_a_table_it_promises_here() {
    let scene = Scene::set(Service::new()).await;
    let door = scene.door(&scene.service.router, None);
    conformance::run(Arc::new(door), &scene.service.env).await;
}

#[tokio::test]
async fn what_an_edge_commits_is_what_the_services_own_components_see() {
    let scene = Scene::set(Service::new()).await;
    let env = &scene.service.env;
    let door = Arc::new(scene.door(&scene.service.router, None));
    let anchor = Anchor::over(door, env.clone(), FAMILY);
    anchor.create_family().await.unwrap();
    anchor.create_volume(scene.engine_volume(), "main").await.unwrap();
    let mut ownership = anchor
        .acquire(scene.engine_volume(), OWNER, "edge")
        .await
        .unwrap();
    let version = commit(env, &anchor, &mut ownership).await.unwrap();
    let (seen, _) = scene
        .seen_by_the_service()
        .load(scene.engine_volume())
        .await
        .unwrap();
    assert_eq!(seen.root.map(|root| root.version), Some(version));

    // A backup of the control plane has it, and a restored one goes on from there.
    let table: Arc<dyn Table> = scene.service.table.connect(env);
    let mut file = Vec::new();
    firn_api::backup(env, &table, &mut file).await.unwrap();
    scene
        .service
        .table
        .restore(&firn_table::MemoryTable::new().image());
    firn_api::restore(env, &table, &mut &file[..], &firn_api::Since::Nothing, None)
        .await
        .unwrap();
    let mut ownership = anchor
        .acquire(scene.engine_volume(), OWNER, "edge")
        .await
        .unwrap();
    let next = commit(env, &anchor, &mut ownership).await.unwrap();
    assert_eq!(next, Version(version.0 + 1));
}

#[tokio::test]
async fn nobody_but_the_edge_that_serves_the_volume_gets_in_and_only_while_the_volume_is_active() {
    let scene = Scene::set(Service::new()).await;
    let put = json!({ "create_family": { "created_at_ms": 7, "change_id": "00".repeat(16) } });
    let get = json!({ "family": {} });
    let send = async |path: &str, peer: &PeerIdentity, body: &Value| {
        let call = Call::new(Method::POST, path).peer(peer).json(body.clone());
        scene.service.send(call).await
    };
    let (other, other_peer, _) = scene
        .service
        .join_edge_of(&scene.customer, &scene.owner, "other", &[])
        .await;
    let others_path = scene.at(&format!("edges/{other}/volumes/{}/anchor", scene.volume));
    let stranger = scene.service.sign_up("bob@two.example").await;
    let strangers = scene.service.log_in(&stranger).await;
    let (_, strangers_peer, _) = scene.service.join_edge(&stranger, &strangers, "e").await;
    for body in [&put, &get] {
        assert_eq!(send(&others_path, &other_peer, body).await.code(), "not_found");
        for peer in [&other_peer, &strangers_peer] {
            assert_eq!(send(&scene.path(), peer, body).await.code(), "not_allowed");
        }
        let owner = Call::new(Method::POST, &scene.path())
            .token(&scene.owner)
            .json(body.clone());
        assert_eq!(scene.service.send(owner).await.code(), "not_allowed");
    }
    assert_eq!(
        send(&scene.path(), &scene.peer, &put).await.status,
        StatusCode::OK
    );

    // A deleted volume takes nothing, an undeleted one goes on.
    let volume = scene.at(&format!("volumes/{}", scene.volume));
    let deleted = Call::new(Method::DELETE, &volume).token(&scene.owner);
    assert_eq!(scene.service.send(deleted).await.text("state"), "deleted");
    for body in [&put, &get] {
        assert_eq!(send(&scene.path(), &scene.peer, body).await.code(), "wrong_state");
    }
    scene
        .service
        .post(&scene.owner, &format!("{volume}/undelete"), json!({}))
        .await;
    let found = send(&scene.path(), &scene.peer, &get).await;
    assert_eq!(found.body["tuple"]["tuple"]["name"], "family");
}

#[tokio::test]
async fn what_is_no_call_is_refused_with_a_word() {
    let scene = Scene::set(Service::new()).await;
    let id = "07".repeat(16);
    let take = |seen: &str, name: &str| {
        let take = json!({ "owner": id, "owner_name": name, "force": false, "grant": id, "taken_at_ms": 1 });
        json!({ "change_volume": { "volume": format!("vol_{id}"), "seen": seen, "change": { "take": take } } })
    };
    for (body, code) in [
        (json!({}), "malformed_body"),
        (json!("family"), "malformed_body"),
        (json!({ "get": { "sort": "family" } }), "malformed_body"),
        (json!({ "family": { "partition": "p" } }), "malformed_body"),
        (json!({ "volume": { "volume": "7" } }), "malformed_body"),
        (
            json!({ "volume": { "volume": format!("vol_{}", "AB".repeat(16)) } }),
            "malformed_body",
        ),
        (json!({ "volumes": { "limit": 0 } }), "invalid_field"),
        (json!({ "volumes": { "limit": 1001 } }), "invalid_field"),
        (json!({ "volumes": { "limit": -1 } }), "malformed_body"),
        (take("-1", "e"), "malformed_body"),
        (take("01", "e"), "malformed_body"),
        (take("18446744073709551616", "e"), "malformed_body"),
        (json!({ "volume_named": { "name": "" } }), "invalid_field"),
        (json!({ "volume_named": { "name": "a/b" } }), "invalid_field"),
        (
            json!({ "propose": { "volume": format!("vol_{id}"), "proposal": "!" } }),
            "malformed_body",
        ),
        (
            json!({ "volume_named": { "name": "x".repeat(firn_anchor::EDGE_CALL_BYTES_MAX) } }),
            "body_too_large",
        ),
    ] {
        let call = Call::new(Method::POST, &scene.path())
            .peer(&scene.peer)
            .json(body.clone());
        let answer = scene.service.send(call).await;
        assert_eq!(answer.code(), code, "{body}: {:?}", answer.body);
    }
    let call = Call::new(Method::POST, &scene.path())
        .peer(&scene.peer)
        .json(json!({ "volumes": { "limit": 10 } }));
    let none = scene.service.send(call).await;
    assert_eq!(none.body, json!({ "tuples": { "tuples": [], "more": false } }));
}

#[tokio::test]
async fn an_edge_may_not_do_what_cleaners_do() {
    let scene = Scene::set(Service::new()).await;
    let segment = format!("{}/{}", "0".repeat(16), "0".repeat(16));
    let seen = json!({ "segment": segment, "seen": "1" });
    for body in [
        json!({ "end_writer": { "writer": "1", "seen": "1" } }),
        json!({ "draw_writer": {
            "seen": "1", "writer": "1", "tenure": "cleaner", "drawn_at_ms": 1, "change_id": "00".repeat(16),
        } }),
        json!({ "retire": {
            "mover": "1", "mover_seen": "1", "segments": [], "proposals": [], "change_id": "00".repeat(16),
        } }),
        json!({ "see_doomed": { "segments": [seen], "seen_at_ms": 1 } }),
        json!({ "forget_doomed": { "segment": seen } }),
        json!({ "change_hold": { "change": "begin", "changed_at_ms": 1, "change_id": "00".repeat(16) } }),
        json!({ "release_doomed": { "hold": "1", "segments": [seen], "released_at_ms": 1 } }),
        json!({ "change_retired": { "segment": seen } }),
        json!({ "set_cleaner_cursor": { "sweep": "log" } }),
    ] {
        let call = Call::new(Method::POST, &scene.path())
            .peer(&scene.peer)
            .json(body.clone());
        let answer = scene.service.send(call).await;
        assert_eq!(answer.code(), "not_allowed", "{body}: {:?}", answer.body);
    }
}

/// How an edge's commits ended, by one way to the service.
struct Ended {
    at: Monotonic,
    commits: u64,
}

/// Takes the volume over and commits until that fails.
async fn commits_until_it_fails(
    env: &Env,
    anchor: &Anchor,
    volume: VolumeId,
    commits: &mut u64,
) -> AnchorError {
    let mut ownership = match anchor.takeover(volume, OWNER, "edge").await {
        Ok(taken) => taken.ownership,
        Err(error) => return error,
    };
    loop {
        match commit(env, anchor, &mut ownership).await {
            Ok(_) => *commits += 1,
            Err(error) => return error,
        }
    }
}

/// Commits until it is refused, whatever the table does, also by taking the volume over: what a thief would do.
async fn commits_until_refused(env: Env, anchor: Anchor, volume: VolumeId) -> Ended {
    let mut commits = 0;
    loop {
        match commits_until_it_fails(&env, &anchor, volume, &mut commits).await {
            AnchorError::Table(TableError::Refused(_)) => {
                return Ended {
                    at: env.now(),
                    commits,
                };
            }
            AnchorError::Fenced(_) => {}
            other => assert!(other.is_transient(), "{other}"),
        }
    }
}

/// An edge commits by one instance while it is removed by another; gives how long it took until it was refused.
async fn history(env: Env, other: Env, seed: u64) -> Duration {
    let scene = Scene::set(Service::on(env.clone(), harness::rego())).await;
    let away = Arc::new(AtomicBool::new(false));
    let instance = |env: &Env, is_away: &Arc<AtomicBool>| {
        let table = Shaky {
            env: env.clone(),
            table: scene.service.table.connect(env),
            is_away: is_away.clone(),
        };
        let fleet = Arc::new(Fleet::default());
        harness::app_over(env, Arc::new(table), harness::rego(), &scene.service.mail, fleet)
    };
    let (here, there) = (
        instance(&env, &Arc::new(AtomicBool::new(false))),
        instance(&other, &away),
    );
    let follower = there.clone();
    drop(other.spawn("follow", async move { follower.follow_revocations().await }));

    let volume = scene.engine_volume();
    let door = |token| {
        let door = scene.door(&router(&there), token);
        Anchor::over(Arc::new(door), other.clone(), FAMILY)
    };
    let anchor = door(None);
    anchor.create_family().await.unwrap();
    anchor.create_volume(volume, "main").await.unwrap();
    // With its certificate, and at the same time with a token that is good for minutes.
    let edges: Vec<_> = [None, Some(scene.token())]
        .into_iter()
        .map(|token| other.spawn("edge", commits_until_refused(other.clone(), door(token), volume)))
        .collect();

    let mut seeded = Seeded::new(seed, 11);
    env.sleep(seeded.duration(Duration::from_secs(2), Duration::from_secs(5)))
        .await;
    let goes = seeded.duration(Duration::ZERO, OUTAGE);
    away.store(seeded.chance(1, 2), Ordering::SeqCst);
    let removed = scene.removal().send(&router(&here)).await;
    assert_eq!(removed.text("state"), "revoked");
    let at = env.now();
    let root = async || {
        let (tuple, _) = scene.seen_by_the_service().load(volume).await.unwrap();
        (tuple.root, tuple.epoch)
    };
    let last = root().await;
    let (back, there_again) = (env.clone(), away.clone());
    drop(env.spawn("outage", async move {
        back.sleep(goes).await;
        there_again.store(false, Ordering::SeqCst);
    }));
    let mut longest = Duration::ZERO;
    let mut commits = 0;
    for edge in edges {
        let ended = edge.await.unwrap();
        longest = longest.max(ended.at.since(at));
        commits += ended.commits;
    }
    assert!(commits > 5, "seed {seed}: {commits} commits before the removal");
    assert!(
        root().await == last,
        "seed {seed}: a root was committed after the removal was answered"
    );
    longest
}

#[test]
fn no_root_is_committed_after_its_edge_was_removed_and_the_edge_is_told_in_time() {
    let mut longest = Duration::ZERO;
    for seed in 1..=SEEDS {
        let simulation = Simulation::new(seed);
        let (env, other) = (
            simulation.machine("first").env(),
            simulation.machine("second").env(),
        );
        let told = simulation
            .run(async move { history(env, other, seed).await })
            .unwrap();
        assert!(told <= REVOKED_WITHIN, "seed {seed}: {told:?}");
        longest = longest.max(told);
    }
    println!("the longest until an edge was refused: {longest:?}");
    assert!(longest > Duration::from_secs(1), "the histories reach no outage");
}
