//! Disks on machines: who is let in, what one machine's ticket is good for, and what becomes of whoever loses the disk.

use crate::harness::{self, Answer, Call, Customer, DOMAIN, Service, base64, customer::customer};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_api::{DISK_CAPABILITY_SECONDS, Fleet, MasterSecret};
use firn_blockd_placement::{Coordinator, CoordinatorSettings, NodeCondition, NodeReport, Placement};
use firn_blockd_protocol::{NodeId, ReplicaState, Replication, Row, RowAt};
use firn_identity::{
    CapabilityError, CapabilityVerifier, CertificateDer, DiskId, KeyHash, PeerIdentity, PeerKind, Rights,
    SigningKey, TenantId, certificate_request,
};
use firn_table::MemoryTable;
use serde_json::{Value, json};
use std::sync::Arc;

const TRACT: u64 = 8 << 20;
const ROWS: u32 = 1100;

/// A cluster of two nodes that only say that they live.
async fn cluster(service: &Service) -> Placement {
    let table = MemoryTable::new().connect(&service.env);
    let placement = Placement::new(service.env.clone(), table, "main").unwrap();
    placement.initialise([ROWS, 8, 8]).await.unwrap();
    let report = NodeReport {
        capacity_tracts: 1_000_000,
        used_tracts: 0,
        condition: NodeCondition::Writable,
    };
    let mut nodes = Vec::new();
    for number in 1..=2 {
        let (address, domain) = (format!("10.0.0.{number}:7300"), format!("d{number}"));
        let registration = placement.register(NodeId([number; 16]), 1, &address, &domain, report);
        nodes.push(registration.await.unwrap());
    }
    let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
    let one = Replication::new(1).unwrap();
    for _ in 0..100 {
        for node in &nodes {
            placement.heartbeat(node, report).await.unwrap();
        }
        coordinator.tick().await.unwrap();
        let rows = placement.rows(one).await.unwrap();
        if rows.len() == ROWS as usize && rows.iter().all(|row| row.active().count() == 1) {
            return placement;
        }
        for row in rows {
            promote(&placement, &row).await;
        }
    }
    panic!("the rows are never whole");
}

async fn promote(placement: &Placement, row: &Row) {
    let at = RowAt {
        replication: row.replication,
        index: row.index,
        version: row.version,
    };
    for replica in &row.replicas {
        if replica.state == ReplicaState::Joining {
            placement.promote(replica.node, &[at]).await.unwrap();
        }
    }
}

/// A service with nodes, and a customer with a disk.
struct World {
    service: Service,
    placement: Placement,
    customer: Customer,
    token: String,
    disk: DiskId,
}

impl World {
    async fn new() -> Self {
        let (service, customer, token) = customer().await;
        let placement = cluster(&service).await;
        let service = service.on_nodes(Arc::new(Fleet::new(placement.clone())));
        let mut world = Self {
            service,
            placement,
            customer,
            token,
            disk: DiskId([0; 16]),
        };
        world.disk = world.new_disk("d").await;
        world
    }

    async fn new_disk(&self, name: &str) -> DiskId {
        let body = json!({ "name": name, "size_bytes": TRACT, "replicas": 1 });
        let path = format!("{}/disks", self.customer.base);
        let made = self.service.post(&self.token, &path, body).await;
        assert_eq!(made.status, StatusCode::ACCEPTED, "{:?}", made.body);
        assert_eq!(firn_api::drive_all(&self.service.app).await.unwrap(), 0);
        made.body["disk"]["id"].as_str().unwrap().parse().unwrap()
    }

    fn path(&self, what: &str) -> String {
        format!("{}/disks/{}{what}", self.customer.base, self.disk)
    }

    /// A machine with a key of this number, let in.
    async fn machine(&self, number: u8) -> Machine {
        let key = SigningKey::from_seed([number; 32]);
        let peer = name_of(self.customer.tenant, self.disk, &key);
        let body = json!({ "certificate_request": base64(&certificate_request(&key, &peer)) });
        let given = self.service.post(&self.token, &self.path("/ticket"), body).await;
        assert_eq!(given.status, StatusCode::CREATED, "{:?}", given.body);
        let certificate = given.body["certificate"]["certificate"].as_str().unwrap();
        let certificate = CertificateDer::from(STANDARD_NO_PAD.decode(certificate).unwrap());
        assert_eq!(PeerIdentity::of_certificate(&certificate).unwrap(), peer);
        Machine {
            grant: given.text("grant"),
            peer,
        }
    }

    async fn post(&self, what: &str, body: Value) -> Answer {
        self.service.post(&self.token, &self.path(what), body).await
    }

    async fn ask(&self, peer: &PeerIdentity, call: Value) -> Answer {
        let call = Call::new(Method::POST, &self.path("/calls"))
            .json(call)
            .peer(peer);
        self.service.send(call).await
    }

    async fn answer(&self, machine: &Machine, call: Value) -> Value {
        let answer = self.ask(&machine.peer, call).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        answer.body
    }

    async fn shown(&self) -> Value {
        self.service.get(&self.token, &self.path("")).await.body
    }
}

struct Machine {
    grant: String,
    peer: PeerIdentity,
}

impl Machine {
    fn attach(&self, force: bool) -> Value {
        json!({ "attach": { "grant": self.grant, "holder": "there, process 1", "force": force } })
    }
}

fn name_of(tenant: TenantId, disk: DiskId, key: &SigningKey) -> PeerIdentity {
    PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Attachment {
            tenant,
            disk,
            key: KeyHash::of(&key.public()),
        },
    }
}

fn capability_call(fence: u32) -> Value {
    json!({ "capability": { "fence": fence } })
}

#[tokio::test]
async fn whoever_loses_a_disk_gets_nothing_more_for_it_and_its_fence_has_one_place() {
    let world = World::new().await;
    let (first, second) = (world.machine(1).await, world.machine(2).await);
    let attached = world.answer(&first, first.attach(false)).await;
    assert_eq!(attached["attached"]["record"]["fence"], 1, "{attached}");
    assert_eq!(attached["attached"]["clean"], true);
    let shown = world.shown().await;
    assert_eq!(
        (&shown["fence"], &shown["attached"]["holder"]),
        (&json!(1), &json!("there, process 1"))
    );
    assert_eq!(
        world.placement.disk(world.disk).await.unwrap().fence,
        1,
        "one truth"
    );
    let list = world
        .service
        .get(&world.token, &format!("{}/disks", world.customer.base))
        .await;
    assert_eq!(list.body["items"][0]["attached"]["holder"], "there, process 1");

    let capability = world.answer(&first, capability_call(1)).await;
    let bytes = STANDARD_NO_PAD
        .decode(capability["capability"]["capability"].as_str().unwrap())
        .unwrap();
    assert_eq!(capability["capability"]["seconds"], DISK_CAPABILITY_SECONDS);
    let key = MasterSecret::new(&harness::MASTER).capabilities().public();
    let verifier = CapabilityVerifier::new([key]);
    let verified = verifier.verify(&bytes, world.service.now()).unwrap();
    let permit = |peer| verified.permit(world.customer.tenant, world.disk, Rights::WRITE, 1, peer);
    assert_eq!(permit(&first.peer), Ok(()));
    assert_eq!(
        permit(&second.peer),
        Err(CapabilityError::WrongHolder),
        "another key, the same tenant and disk"
    );

    // What is not the second machine's it does not get, and it takes nothing without force.
    let fenced = json!({ "refused": { "fenced": { "current": 1 } } });
    let settings = |fence: u32| json!({ "settings": { "fence": fence, "settings": "{}" } });
    let detach = |fence: u32| json!({ "detach": { "fence": fence, "clean": true } });
    for call in [capability_call(1), settings(1), detach(1)] {
        assert_eq!(world.answer(&second, call.clone()).await, fenced, "{call}");
    }
    let busy = world.answer(&second, second.attach(false)).await;
    assert_eq!(
        busy["refused"]["attached"]["holder"], "there, process 1",
        "{busy}"
    );
    // Whose answer was lost is not in its own way.
    let again = world.answer(&first, first.attach(false)).await;
    assert_eq!(again["attached"]["record"]["fence"], 2);

    let taken = world.answer(&second, second.attach(true)).await;
    assert_eq!(taken["attached"]["record"]["fence"], 3);
    assert_eq!(taken["attached"]["clean"], false, "it was taken, not given back");
    let fenced = json!({ "refused": { "fenced": { "current": 3 } } });
    for call in [capability_call(2), capability_call(3), settings(2), detach(2)] {
        assert_eq!(world.answer(&first, call.clone()).await, fenced, "{call}");
    }
    let request = json!({ "certificate": { "certificate_request": "AAAA" } });
    assert_eq!(world.answer(&first, request).await, fenced, "nor a longer life");

    let done = json!({ "done": {} });
    assert_eq!(world.answer(&second, detach(3)).await, done);
    assert_eq!(
        world.answer(&second, detach(3)).await,
        done,
        "the answer was lost"
    );
    assert!(world.shown().await.get("attached").is_none());
}

#[tokio::test]
async fn a_ticket_is_good_for_one_key_one_disk_and_a_quarter_of_an_hour() {
    let world = World::new().await;
    let (own, other) = (world.machine(1).await, world.machine(2).await);
    let refused = |answer: &Value| answer["refused"]["not_admitted"]["why"].is_string();

    // Another's grant, what nodes take, and nonsense.
    let stolen = json!({ "attach": { "grant": other.grant, "holder": "x", "force": true } });
    assert!(refused(&world.answer(&own, stolen).await));
    world.answer(&own, own.attach(false)).await;
    let capability = world.answer(&own, capability_call(1)).await;
    let capability = capability["capability"]["capability"].clone();
    for grant in [capability, json!("AAAA"), json!("?")] {
        let call = json!({ "attach": { "grant": grant, "holder": "x", "force": true } });
        assert!(refused(&world.answer(&own, call).await), "{grant}");
    }
    // It ends; what is attached by then stays so.
    let later = world
        .service
        .after(16 * 60)
        .on_nodes(Arc::new(Fleet::new(world.placement.clone())));
    let send = |call: Value| {
        later.send(
            Call::new(Method::POST, &world.path("/calls"))
                .json(call)
                .peer(&own.peer),
        )
    };
    let late = send(own.attach(true)).await;
    assert!(refused(&late.body), "{:?}", late.body);
    assert!(send(capability_call(1)).await.body["capability"].is_object());

    // Another disk of the tenant, another tenant, another installation, and nobody.
    let second = world.new_disk("e").await;
    let elsewhere = format!("{}/disks/{second}/calls", world.customer.base);
    let call = |path: &str| Call::new(Method::POST, path).json(json!({ "record": {} }));
    let stranger = world.service.sign_up("eve@two.example").await;
    let key = SigningKey::from_seed([1; 32]);
    let theirs = name_of(stranger.tenant, world.disk, &key);
    let foreign = PeerIdentity {
        trust_domain: "other.example".into(),
        ..own.peer.clone()
    };
    let (_, edge, _) = world.service.join_edge(&world.customer, &world.token, "e").await;
    for (what, request) in [
        ("another disk", call(&elsewhere).peer(&own.peer)),
        ("another tenant's", call(&world.path("/calls")).peer(&theirs)),
        (
            "another installation's",
            call(&world.path("/calls")).peer(&foreign),
        ),
        ("an edge's", call(&world.path("/calls")).peer(&edge)),
        ("a token alone", call(&world.path("/calls")).token(&world.token)),
        ("nobody", call(&world.path("/calls"))),
    ] {
        let answer = world.service.send(request).await;
        assert_eq!(answer.code(), "certificate_refused", "{what}: {:?}", answer.body);
    }
    // The certificate opens nothing else of the tenant's.
    for path in ["", "/disks", "/keys"] {
        let path = format!("{}{path}", world.customer.base);
        let answer = world
            .service
            .send(Call::new(Method::GET, &path).peer(&own.peer))
            .await;
        assert_eq!(answer.code(), "not_authenticated", "{path}: {:?}", answer.body);
    }
}

#[tokio::test]
async fn a_name_is_given_to_the_key_it_is_of_and_bad_values_are_refused() {
    let world = World::new().await;
    let machine = world.machine(1).await;
    let (one, other) = (SigningKey::from_seed([8; 32]), SigningKey::from_seed([9; 32]));
    let ticket = |request: &[u8]| {
        let body = json!({ "certificate_request": base64(request) });
        world.post("/ticket", body)
    };
    // Signed for another's name, and for none.
    let swapped = certificate_request(&one, &name_of(world.customer.tenant, world.disk, &other));
    for (request, words) in [
        (&swapped[..], "not signed"),
        (&[0; 10], "not a certificate request"),
    ] {
        let refused = ticket(request).await;
        assert_eq!(refused.code(), "invalid_field", "{:?}", refused.body);
        assert!(refused.text("detail").contains(words), "{:?}", refused.body);
    }
    let attach =
        |holder: &str| json!({ "attach": { "grant": machine.grant, "holder": holder, "force": false } });
    for call in [
        attach(""),
        attach("a#b"),
        attach("a\nb"),
        attach(&"x".repeat(257)),
        json!({ "settings": { "fence": 1, "settings": "x".repeat(16_385) } }),
        json!({ "row": { "copies": 0, "index": 0 } }),
        json!({ "rows": { "copies": 4, "from": 0 } }),
    ] {
        let answer = world.ask(&machine.peer, call.clone()).await;
        assert_eq!(answer.code(), "invalid_field", "{call}: {:?}", answer.body);
    }
    assert_eq!(world.placement.disk(world.disk).await.unwrap().fence, 0);
    // All rows come, some at a time; beyond the table there are none.
    let mut seen = Vec::new();
    for from in [0, 1024, 2048] {
        let call = json!({ "rows": { "copies": 1, "from": from } });
        let rows = world.answer(&machine, call).await;
        let rows = rows["rows"]["rows"].as_array().unwrap().clone();
        seen.extend(rows.iter().map(|row| {
            firn_blockd_placement::DiskAnswer::read_row(row.as_str().unwrap())
                .unwrap()
                .index
                .0
        }));
    }
    assert_eq!(seen, (0..ROWS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_disk_is_asked_back_or_taken_away_and_not_deleted_under_its_user() {
    let world = World::new().await;
    let machine = world.machine(1).await;
    let detach = |force: bool| {
        let body = json!({ "force": force });
        world.post("/detach", body)
    };
    let free = detach(false).await;
    assert_eq!(free.status, StatusCode::OK, "{:?}", free.body);
    assert_eq!(free.body["fence"], 0, "nobody has it: nothing is done");
    assert_eq!(detach(true).await.body["fence"], 0);

    world.answer(&machine, machine.attach(false)).await;
    let delete = || {
        let call = Call::new(Method::DELETE, &world.path("")).token(&world.token);
        world.service.send(call)
    };
    let refused = delete().await;
    assert_eq!(refused.code(), "wrong_state", "{:?}", refused.body);
    assert!(
        refused.text("detail").contains("there, process 1"),
        "{:?}",
        refused.body
    );
    for _ in 0..2 {
        let asked = detach(false).await;
        assert_eq!(asked.body["attached"]["asked_to_end"], true, "{:?}", asked.body);
    }
    let record = world.answer(&machine, json!({ "record": {} })).await;
    assert_eq!(
        record["record"]["attached"]["asked_to_end"], true,
        "its machine sees it"
    );
    let taken = detach(true).await;
    assert_eq!(taken.body["fence"], 2);
    assert!(taken.body.get("attached").is_none());
    let fenced = world.answer(&machine, capability_call(1)).await;
    assert_eq!(fenced["refused"]["fenced"]["current"], 2, "{fenced}");
    assert_eq!(delete().await.status, StatusCode::ACCEPTED);
    assert_eq!(firn_api::drive_all(&world.service.app).await.unwrap(), 0);
    let gone = world.answer(&machine, json!({ "record": {} })).await;
    assert_eq!(gone["record"]["state"]["state"], "deleting", "{gone}");
}

#[tokio::test]
async fn an_edges_attachment_is_numbered_by_the_cluster_too() {
    let world = World::new().await;
    let machine = world.machine(1).await;
    world.answer(&machine, machine.attach(false)).await;
    let (edge, _, _) = world.service.join_edge(&world.customer, &world.token, "e").await;
    let attach = |body: Value| world.post("/attach", body);
    let reader = attach(json!({ "read_only": true, "edge": edge })).await;
    assert_eq!(reader.body["fence"], 1, "{:?}", reader.body);
    let writer = attach(json!({ "edge": edge })).await;
    assert_eq!(writer.body["fence"], 2, "{:?}", writer.body);
    assert_eq!(world.placement.disk(world.disk).await.unwrap().fence, 2);
    let fenced = world.answer(&machine, capability_call(1)).await;
    assert_eq!(fenced["refused"]["fenced"]["current"], 2, "{fenced}");
}
