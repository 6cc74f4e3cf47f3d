//! Nodes that the service starts and ends by itself, with machines that a test can look at; killed at every step as well.

use crate::harness::{self, Answer, Call, Customer, Service, base64};
use crate::mortal::{self, killed_at_every_moment};
use async_trait::async_trait;
use axum::http::{Method, StatusCode};
use firn_api::{
    App, Boot, Machine, NodePlan, NodeProvisioner, Pool, PoolSettings, ProvisionError, drive_all,
    find_lost_nodes, reconcile, router,
};
use firn_identity::{JoinSecret, NodeId, PeerIdentity, PeerKind, SigningKey, TenantId, certificate_request};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

const MIB: u64 = 1 << 20;
const NODE_BYTES: u64 = 64 * MIB;
const IDLE: u64 = 3600;

/// Machines that run nothing.
#[derive(Clone, Default)]
struct Machines(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: BTreeMap<NodeId, NodePlan>,
    launched: usize,
    refuses: bool,
}

impl Machines {
    fn running(&self) -> Vec<NodeId> {
        self.0.lock().unwrap().running.keys().copied().collect()
    }

    fn plan(&self, node: NodeId) -> NodePlan {
        self.0.lock().unwrap().running[&node].clone()
    }
}

#[async_trait]
impl NodeProvisioner for Machines {
    async fn launch(&self, plan: &NodePlan) -> Result<Machine, ProvisionError> {
        let mut state = self.0.lock().unwrap();
        if state.refuses {
            return Err(ProvisionError::Refused("no machines are left".into()));
        }
        if !state.running.contains_key(&plan.node) {
            state.launched += 1;
            state.running.insert(plan.node, plan.clone());
        }
        Ok(Machine {
            node: plan.node,
            name: format!("machine of {}", plan.node),
        })
    }

    async fn machines(&self, _tenant: TenantId) -> Result<Vec<Machine>, ProvisionError> {
        let name = String::new();
        let machine = |node| Machine {
            node,
            name: name.clone(),
        };
        Ok(self.running().into_iter().map(machine).collect())
    }

    async fn terminate(&self, _tenant: TenantId, node: NodeId) -> Result<(), ProvisionError> {
        self.0.lock().unwrap().running.remove(&node);
        Ok(())
    }
}

/// Drives until nothing moves; gives what is left open. Sagas are driven in the order of their identifiers, which are drawn, and
/// one may wait for another three times: for a launch, a node and its end.
async fn settled(app: &App) -> usize {
    for _ in 0..3 {
        drive_all(app).await.unwrap();
    }
    drive_all(app).await.unwrap()
}

struct Scene {
    service: Service,
    customer: Customer,
    token: String,
    machines: Machines,
}

impl Scene {
    /// A pool of at most two nodes, in a fleet that has room for a disk of 8 MiB.
    async fn set() -> Self {
        let service = Service::new();
        let customer = service.sign_up("ada@one.example").await;
        let machines = Machines::default();
        let boot = Boot {
            server: "https://api.example.org".into(),
            authority: None,
            cluster: "main".into(),
            table: "dynamodb://firn".into(),
            node_bytes: NODE_BYTES,
        };
        let settings = PoolSettings {
            tenant: customer.tenant,
            min_nodes: 0,
            max_nodes: 2,
            failure_domains: vec!["a".into(), "b".into()],
            idle_seconds: IDLE,
            boot,
        };
        let service = service.with_pool(Pool {
            settings,
            provisioner: Arc::new(machines.clone()),
        });
        service.fleet.limit(8 * MIB);
        let token = service.log_in(&customer).await;
        Self {
            service,
            customer,
            token,
            machines,
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.customer.base)
    }

    async fn see(&self, path: &str) -> Answer {
        self.service.get(&self.token, &self.at(path)).await
    }

    async fn nodes(&self) -> Vec<Value> {
        self.see("nodes").await.body["items"].as_array().unwrap().clone()
    }

    fn disk(&self) -> Call {
        Call::new(Method::POST, &self.at("disks"))
            .token(&self.token)
            .header("idempotency-key", "one-disk")
            .json(json!({ "name": "d", "size_bytes": 48 * MIB, "replicas": 1 }))
    }

    /// The machine does what its user data says: it joins, with the secret that stands in it.
    async fn join(&self, node: NodeId) -> Answer {
        let plan = self.machines.plan(node);
        let (_, after) = plan.user_data.split_once("firnjoin_").unwrap();
        let end = after
            .find(|letter: char| !letter.is_ascii_alphanumeric() && !"-_".contains(letter))
            .unwrap();
        let secret = JoinSecret::parse(&format!("firnjoin_{}", &after[..end])).unwrap();
        let peer = PeerIdentity {
            trust_domain: harness::DOMAIN.into(),
            kind: PeerKind::Node(node),
        };
        let request = certificate_request(&SigningKey::from_seed([4; 32]), &peer);
        let body = json!({
            "authenticator": &*secret.authenticator().expose(),
            "certificate_request": base64(&request),
            "address": "10.0.0.7:7500",
            "capacity_bytes": NODE_BYTES,
        });
        let path = self.at(&format!("nodes/{node}/join"));
        self.service.send(Call::new(Method::POST, &path).json(body)).await
    }

    /// Drives until nothing moves; gives what is left open.
    async fn drive(&self) -> usize {
        settled(&self.service.app).await
    }

    /// From a disk that does not fit to the disk on a node that came.
    async fn grow_by_one(&self) -> NodeId {
        let started = self.service.send(self.disk()).await;
        assert_eq!(started.status, StatusCode::ACCEPTED, "{:?}", started.body);
        assert_eq!(self.drive().await, 2, "the disk, and the node it waits for");
        let node = self.machines.running()[0];
        assert_eq!(self.join(node).await.status, StatusCode::OK);
        self.service.fleet.limit(8 * MIB + NODE_BYTES);
        assert_eq!(self.drive().await, 0);
        node
    }
}

#[tokio::test]
async fn a_disk_that_does_not_fit_waits_for_a_node_and_is_placed_on_it() {
    let scene = Scene::set().await;
    let node = scene.grow_by_one().await;
    assert_eq!(scene.machines.0.lock().unwrap().launched, 1);
    assert_eq!(scene.see("disks").await.body["items"][0]["state"], "ready");
    let nodes = scene.nodes().await;
    assert_eq!(nodes[0]["state"], "active");
    assert_eq!(nodes[0]["machine"], format!("machine of {node}"));
    assert_eq!(nodes[0]["failure_domain"], "a");
    assert!(nodes[0]["operation"].is_null(), "{:?}", nodes[0]);
    assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 1);
    assert_eq!(
        scene.join(node).await.code(),
        "credential_refused",
        "its secret is good once"
    );
}

#[tokio::test]
async fn a_machine_that_does_not_join_is_ended_and_the_disk_undone() {
    let scene = Scene::set().await;
    let started = scene.service.send(scene.disk()).await;
    assert_eq!(scene.drive().await, 2);
    let node = scene.machines.running()[0];
    let later = scene.service.after(17 * 60);
    assert_eq!(settled(&later.app).await, 0);
    assert_eq!(scene.machines.running(), []);
    assert_eq!(scene.nodes().await, [] as [Value; 0]);
    let operation = scene
        .see(&format!(
            "operations/{}",
            started.body["operation"]["id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(operation.text("state"), "undone");
    let why = operation.text("failure");
    assert!(why.contains("did not join in time"), "{why}");
    let used = scene.see("quota").await.body["in_use"].clone();
    assert_eq!(
        (&used["nodes"], &used["disks"], &used["disk_bytes"]),
        (&json!(0), &json!(0), &json!(0))
    );
    assert!(!scene.machines.running().contains(&node));
}

#[tokio::test]
async fn when_no_machines_are_given_the_disk_is_undone_at_once_and_tells_why() {
    let scene = Scene::set().await;
    scene.machines.0.lock().unwrap().refuses = true;
    let started = scene.service.send(scene.disk()).await;
    assert_eq!(scene.drive().await, 0);
    let operation = scene
        .see(&format!(
            "operations/{}",
            started.body["operation"]["id"].as_str().unwrap()
        ))
        .await;
    assert!(
        operation.text("failure").contains("no machines are left"),
        "{:?}",
        operation.body
    );
    assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 0);
}

#[tokio::test]
async fn a_pool_at_its_limit_launches_nothing() {
    let scene = Scene::set().await;
    let body = json!({ "name": "huge", "size_bytes": 4096 * MIB, "replicas": 1 });
    let started = scene.service.post(&scene.token, &scene.at("disks"), body).await;
    assert_eq!(
        scene.drive().await,
        3,
        "two nodes, as many as it may have, and the disk"
    );
    for node in scene.machines.running() {
        assert_eq!(scene.join(node).await.status, StatusCode::OK);
    }
    scene.service.fleet.limit(8 * MIB + 2 * NODE_BYTES);
    assert_eq!(
        scene.drive().await,
        1,
        "the disk gives them a minute to be counted"
    );
    let later = scene.service.after(17 * 60);
    assert_eq!(settled(&later.app).await, 0);
    let operation = scene
        .see(&format!(
            "operations/{}",
            started.body["operation"]["id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(operation.text("state"), "undone");
    let again = json!({ "name": "huge", "size_bytes": 4096 * MIB, "replicas": 1 });
    scene.service.post(&scene.token, &scene.at("disks"), again).await;
    assert_eq!(
        scene.drive().await,
        0,
        "undone at once: {:?}",
        scene.nodes().await
    );
    assert_eq!(scene.machines.0.lock().unwrap().launched, 2);
}

#[tokio::test]
async fn a_node_that_is_not_needed_for_an_hour_is_emptied_and_its_machine_ended() {
    let scene = Scene::set().await;
    let node = scene.grow_by_one().await;
    let path = scene.see("disks").await.body["items"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(!reconcile(&scene.service.app).await.unwrap(), "it is needed");
    let delete = Call::new(Method::DELETE, &scene.at(&format!("disks/{path}"))).token(&scene.token);
    scene.service.send(delete).await;
    assert_eq!(scene.drive().await, 0);
    scene.service.fleet.limit(200 * MIB);
    let at = |seconds: u64| scene.service.after(i64::try_from(seconds).unwrap());
    assert!(!reconcile(&at(0).app).await.unwrap(), "it begins to be idle");
    assert!(!reconcile(&at(IDLE - 10).app).await.unwrap(), "not yet");
    scene.service.fleet.limit(8 * MIB);
    assert!(
        !reconcile(&at(IDLE + 10).app).await.unwrap(),
        "it was needed in between"
    );
    scene.service.fleet.limit(200 * MIB);
    assert!(
        !reconcile(&at(IDLE + 20).app).await.unwrap(),
        "so the hour begins anew"
    );
    scene.service.fleet.hold(node, true);
    assert!(reconcile(&at(2 * IDLE + 30).app).await.unwrap());
    assert!(!reconcile(&at(4 * IDLE).app).await.unwrap(), "one at a time");
    assert_eq!(
        drive_all(&scene.service.app).await.unwrap(),
        1,
        "while others copy what it holds"
    );
    assert_eq!(scene.machines.running(), [node]);
    assert_eq!(scene.nodes().await[0]["state"], "draining");
    scene.service.fleet.hold(node, false);
    assert_eq!(drive_all(&scene.service.app).await.unwrap(), 0);
    assert_eq!(scene.machines.running(), []);
    assert!(scene.service.fleet.draining().is_empty(), "the cluster forgot it");
    assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 0);
}

#[tokio::test]
async fn a_node_lost_for_ten_minutes_is_given_up_with_its_machine() {
    let scene = Scene::set().await;
    let node = scene.grow_by_one().await;
    let later = |minutes: i64| scene.service.after(60 * minutes);
    find_lost_nodes(&later(5).app, scene.customer.tenant)
        .await
        .unwrap();
    assert_eq!(scene.nodes().await[0]["state"], "lost");
    assert!(!reconcile(&later(6).app).await.unwrap(), "it may come back");
    assert!(reconcile(&later(11).app).await.unwrap());
    assert_eq!(drive_all(&scene.service.app).await.unwrap(), 0);
    assert!(!scene.machines.running().contains(&node));
}

#[tokio::test]
async fn a_pool_killed_at_every_step_has_no_orphan_no_double_and_the_quota_is_right() {
    let moment = killed_at_every_moment(async |moment, life| {
        let scene = Scene::set().await;
        let app = mortal::process(&scene.service, life);
        let _ = scene.disk().send(&router(&app)).await;
        for _ in 0..2 {
            let _ = drive_all(&app).await;
        }
        // Another process takes over.
        assert!(scene.drive().await <= 2);
        let repeated = scene.service.send(scene.disk()).await;
        assert_eq!(repeated.status, StatusCode::ACCEPTED, "{:?}", repeated.body);
        assert_eq!(scene.drive().await, 2, "moment {moment}");
        let running = scene.machines.running();
        assert_eq!(
            (running.len(), scene.machines.0.lock().unwrap().launched),
            (1, 1),
            "moment {moment}"
        );
        assert_eq!(scene.join(running[0]).await.status, StatusCode::OK);
        scene.service.fleet.limit(8 * MIB + NODE_BYTES);
        assert_eq!(scene.drive().await, 0, "moment {moment}");
        assert_eq!(scene.see("disks").await.body["items"][0]["state"], "ready");
        assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 1);
    })
    .await;
    println!("launch: killed at {moment} moments");
    assert!(moment > 40, "the kill does not reach it");
}

#[tokio::test]
async fn a_drain_killed_at_every_step_leaves_no_machine_no_record_and_no_quota() {
    let moment = killed_at_every_moment(async |moment, life| {
        let scene = Scene::set().await;
        let node = scene.grow_by_one().await;
        let app = mortal::process(&scene.service, life);
        let drain = Call::new(Method::DELETE, &scene.at(&format!("nodes/{node}")))
            .token(&scene.token)
            .header("idempotency-key", "one-drain");
        let _ = drain.clone().send(&router(&app)).await;
        let _ = drive_all(&app).await;
        let repeated = scene.service.send(drain).await;
        assert_eq!(
            repeated.status,
            StatusCode::OK,
            "moment {moment}: {:?}",
            repeated.body
        );
        assert_eq!(scene.drive().await, 0);
        assert_eq!(scene.machines.running(), [], "moment {moment}");
        assert_eq!(scene.nodes().await, [] as [Value; 0]);
        assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 0);
    })
    .await;
    println!("drain: killed at {moment} moments");
    assert!(moment > 20, "the kill does not reach it");
}

#[tokio::test]
async fn a_node_is_not_emptied_if_too_few_would_remain() {
    let scene = Scene::set().await;
    let node = scene.grow_by_one().await;
    let path = scene.at(&format!("nodes/{node}"));
    scene.service.fleet.be_short(true);
    let refused = scene
        .service
        .send(Call::new(Method::DELETE, &path).token(&scene.token))
        .await;
    assert_eq!(refused.code(), "too_few_nodes", "{:?}", refused.body);
    assert!(refused.text("detail").contains("add 1"), "it says what to do");
    assert_eq!(scene.nodes().await[0]["state"], "active");
    // Nor does the pool try, again and again, to get rid of one that it lost.
    let later = |minutes: i64| scene.service.after(60 * minutes);
    find_lost_nodes(&later(5).app, scene.customer.tenant)
        .await
        .unwrap();
    assert!(!reconcile(&later(11).app).await.unwrap());
    scene.service.fleet.be_short(false);
    assert!(reconcile(&later(11).app).await.unwrap());
}

#[tokio::test]
async fn a_drain_that_others_overtake_ends_and_the_node_serves_as_before_wherever_it_is_killed() {
    let moment = killed_at_every_moment(async |moment, life| {
        let scene = Scene::set().await;
        let node = scene.grow_by_one().await;
        scene.service.fleet.hold(node, true);
        let path = scene.at(&format!("nodes/{node}"));
        let drain = Call::new(Method::DELETE, &path).token(&scene.token);
        let operation = scene.service.send(drain).await.text("operation");
        assert_eq!(
            scene.drive().await,
            1,
            "it waits for others to copy what it holds"
        );
        // One of those others leaves.
        scene.service.fleet.be_short(true);
        let app = mortal::process(&scene.service, life);
        let _ = drive_all(&app).await;
        assert_eq!(
            scene.drive().await,
            0,
            "moment {moment}: it does not wait for ever"
        );
        let ended = scene.see(&format!("operations/{operation}")).await;
        assert_eq!(ended.text("state"), "undone", "moment {moment}");
        assert!(ended.text("failure").contains("add 1"), "{:?}", ended.body);
        assert_eq!(scene.nodes().await[0]["state"], "active");
        assert!(scene.service.fleet.draining().is_empty());
        assert_eq!(scene.see("quota").await.body["in_use"]["nodes"], 1);
        assert_eq!(scene.machines.running(), [node]);
    })
    .await;
    println!("undrain: killed at {moment} moments");
    assert!(moment > 10, "the kill does not reach it");
}
