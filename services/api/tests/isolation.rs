//! The isolation matrix: every operation of the router's own list × every role × every way to be the wrong caller.

mod harness;

use axum::http::{Method, StatusCode};
use firn_api::{AUDIENCE, Endpoint, POLICY, RegoPolicy, endpoints};
use firn_identity::{EdgeId, MemberId, NodeId, PeerIdentity, Principal, Role, TenantId};
use harness::{AllowAll, Answer, Call, Customer, Service};
use serde_json::json;
use std::sync::Arc;

/// Two tenants with something of everything, and callers of both.
struct World {
    service: Service,
    ours: Tenant,
    theirs: Tenant,
}

struct Tenant {
    customer: Customer,
    volume: String,
    disk: String,
    operation: String,
    key: String,
    edge: (EdgeId, PeerIdentity),
    other_edge: (EdgeId, PeerIdentity),
    node: (NodeId, PeerIdentity),
    other_node: (NodeId, PeerIdentity),
}

impl Tenant {
    async fn new(service: &Service, email: &str) -> Self {
        let customer = service.sign_up(email).await;
        let token = service.log_in(&customer).await;
        let base = &customer.base;
        let bucket = json!({ "kind": "managed", "region": "eu-central-1" });
        let volume = service
            .post(
                &token,
                &format!("{base}/volumes"),
                json!({ "name": "v", "bucket": bucket }),
            )
            .await;
        let disk = service
            .post(
                &token,
                &format!("{base}/disks"),
                json!({ "name": "d", "size_bytes": 8 << 20 }),
            )
            .await;
        assert_eq!(disk.status, StatusCode::ACCEPTED, "{:?}", disk.body);
        assert_eq!(firn_api::drive_all(&service.app).await.unwrap(), 0);
        let key = service
            .post(
                &token,
                &format!("{base}/keys"),
                json!({ "name": "k", "role": "reader" }),
            )
            .await;
        let (edge, edge_peer, _) = service.join_edge(&customer, &token, "e1").await;
        let (other_edge, other_edge_peer, _) = service.join_edge(&customer, &token, "e2").await;
        let node = service.join_node(&customer, &token, "n1").await;
        let other_node = service.join_node(&customer, &token, "n2").await;
        Self {
            volume: volume.text("id"),
            disk: disk.body["disk"]["id"].as_str().unwrap().to_owned(),
            operation: disk.body["operation"]["id"].as_str().unwrap().to_owned(),
            key: key.body["key"]["id"].as_str().unwrap().to_owned(),
            edge: (edge, edge_peer),
            other_edge: (other_edge, other_edge_peer),
            node,
            other_node,
            customer,
        }
    }

    fn id(&self) -> TenantId {
        self.customer.tenant
    }

    /// The operation's path on this tenant's things. A parameter nobody gave a value fails the test.
    fn path(&self, endpoint: &Endpoint) -> String {
        let values = [
            ("{tenant}", self.id().to_string()),
            ("{member}", self.customer.owner.to_string()),
            ("{key}", self.key.clone()),
            ("{volume}", self.volume.clone()),
            ("{edge}", self.edge.0.to_string()),
            ("{disk}", self.disk.clone()),
            ("{node}", self.node.0.to_string()),
            ("{operation}", self.operation.clone()),
            ("{lookup}", "AAAAAAAAAAAAAAAAAAAAAA".into()),
            ("{signup}", "00".repeat(16)),
            ("{month}", "2026-11".into()),
            ("{book}", "firn-standard".into()),
        ];
        let path = values
            .iter()
            .fold(endpoint.path().to_owned(), |path, (name, value)| {
                path.replace(name, value)
            });
        assert!(!path.contains('{'), "{path}: give the new parameter a value here");
        path
    }

    fn principal(&self, role: Role) -> Principal {
        match role {
            Role::Edge => Principal::Edge(self.edge.0),
            Role::Node => Principal::Node(self.node.0),
            Role::Owner | Role::Admin | Role::Operator | Role::Billing | Role::Reader => {
                Principal::Member(MemberId([role as u8; 16]))
            }
        }
    }

    fn peer(&self, role: Role) -> Option<&PeerIdentity> {
        match role {
            Role::Edge => Some(&self.edge.1),
            Role::Node => Some(&self.node.1),
            Role::Owner | Role::Admin | Role::Operator | Role::Billing | Role::Reader => None,
        }
    }
}

impl World {
    async fn new() -> Self {
        let service = Service::new();
        let ours = Tenant::new(&service, "ada@one.example").await;
        let theirs = Tenant::new(&service, "bob@two.example").await;
        Self {
            service,
            ours,
            theirs,
        }
    }

    fn token(&self, tenant: &Tenant, role: Role) -> String {
        let now = self.service.now();
        self.service
            .token(tenant.id(), tenant.principal(role), role, AUDIENCE, now)
    }
}

/// A request that changes nothing when it is let through: an If-Match that never matches, a body that says nothing.
fn harmless(endpoint: &Endpoint, path: &str) -> Call {
    let call = Call::new(endpoint.method().clone(), path);
    match *endpoint.method() {
        Method::GET => call,
        Method::DELETE => call.header("if-match", "\"never\""),
        _ if endpoint.path().ends_with("/tokens/revoke") => call,
        _ => call.json(json!({})),
    }
}

/// Whether authentication and authorisation let the request through to its handler.
fn let_through(answer: &Answer) -> bool {
    assert!(!answer.status.is_server_error(), "{:?}", answer.body);
    !matches!(
        answer.code(),
        "not_authenticated" | "token_refused" | "certificate_refused" | "not_allowed"
    )
}

fn is_tenants(endpoint: &Endpoint) -> bool {
    endpoint.path().contains("{tenant}")
}

#[tokio::test]
async fn the_matrix_has_no_hole_and_no_leak() {
    let world = World::new().await;
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let (mut checked, mut allowed) = (0, 0);
    for endpoint in endpoints() {
        let operation = endpoint.operation();
        let public = harness::is_public(&policy, &operation);
        let path = world.ours.path(&endpoint);
        let send = |call: Call| world.service.send(call);
        let name = |what: &str, role: Role| format!("{operation} as {role}, {what}");

        let nobody = send(harmless(&endpoint, &path)).await;
        assert_eq!(
            let_through(&nobody),
            public,
            "{operation} without a token: {:?}",
            nobody.body
        );
        checked += 1;

        for role in Role::ALL {
            let by_token = |token: &str| harmless(&endpoint, &path).token(token);
            let by_peer = |call: Call| match world.ours.peer(role) {
                Some(peer) => call.peer(peer),
                None => call,
            };
            let expected = public || harness::decision(&policy, &operation, endpoint.path(), role, true);
            let own = send(by_peer(by_token(&world.token(&world.ours, role)))).await;
            assert_eq!(
                let_through(&own),
                expected,
                "{}: {:?}",
                name("own tenant", role),
                own.body
            );
            allowed += u32::from(expected);

            if let Some(peer) = world.ours.peer(role).filter(|_| is_tenants(&endpoint)) {
                let own = send(harmless(&endpoint, &path).peer(peer)).await;
                assert_eq!(
                    let_through(&own),
                    expected,
                    "{}: {:?}",
                    name("own certificate", role),
                    own.body
                );
                checked += 1;
            }

            let now = world.service.now();
            let principal = world.ours.principal(role);
            let ours = world.ours.id();
            let expired = world
                .service
                .token(ours, principal, role, AUDIENCE, now.minus(1000));
            let foreign_audience = world.service.token(ours, principal, role, "firn-node", now);
            let revoked = world.token(&world.ours, role);
            let revoke = format!("{}/tokens/revoke", world.ours.customer.base);
            let taken_back = send(Call::new(Method::POST, &revoke).token(&revoked)).await;
            assert_eq!(taken_back.status, StatusCode::NO_CONTENT, "{:?}", taken_back.body);
            for (what, token) in [
                ("expired", &expired),
                ("wrong audience", &foreign_audience),
                ("revoked", &revoked),
                ("garbage", &"x.y.z".to_owned()),
            ] {
                let answer = send(by_token(token)).await;
                assert_eq!(
                    answer.code(),
                    "token_refused",
                    "{}: {:?}",
                    name(what, role),
                    answer.body
                );
                assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
                checked += 1;
            }

            if is_tenants(&endpoint) && !public {
                let theirs = send(by_token(&world.token(&world.theirs, role))).await;
                assert!(
                    !let_through(&theirs),
                    "{}: {:?}",
                    name("other tenant", role),
                    theirs.body
                );
                if let Some(peer) = world.theirs.peer(role) {
                    let theirs = send(harmless(&endpoint, &path).peer(peer)).await;
                    assert!(
                        !let_through(&theirs),
                        "{}: {:?}",
                        name("other tenant's certificate", role),
                        theirs.body
                    );
                }
                checked += 2;
            }
            checked += 1;
        }

        if is_tenants(&endpoint) {
            // A token that was stolen from one edge, on the connection of another.
            for (role, peer) in [
                (Role::Edge, &world.ours.other_edge.1),
                (Role::Node, &world.ours.other_node.1),
            ] {
                let token = world.token(&world.ours, role);
                let answer = send(harmless(&endpoint, &path).token(&token).peer(peer)).await;
                assert_eq!(
                    answer.code(),
                    "certificate_refused",
                    "{}",
                    name("another's certificate", role)
                );
                // And another's certificate alone reaches nothing that is one's own.
                let answer = send(harmless(&endpoint, &path).peer(peer)).await;
                let expected = public || harness::decision(&policy, &operation, endpoint.path(), role, false);
                assert_eq!(
                    let_through(&answer),
                    expected,
                    "{}: {:?}",
                    name("another's path", role),
                    answer.body
                );
                checked += 2;
            }
        }
    }
    println!("{checked} cells checked, {allowed} of them allowed");
    assert!(
        checked > 1500,
        "only {checked} cells: the list of operations shrank"
    );
}

#[tokio::test]
async fn with_a_policy_that_allows_everything_tenants_still_do_not_meet() {
    let world = World::new().await;
    let open = world.service.under(Arc::new(AllowAll));
    for endpoint in endpoints().iter().filter(|endpoint| is_tenants(endpoint)) {
        let policy = RegoPolicy::compile(POLICY).unwrap();
        if harness::is_public(&policy, &endpoint.operation()) {
            continue;
        }
        let path = world.ours.path(endpoint);
        let nobody = open.send(harmless(endpoint, &path)).await;
        assert!(!let_through(&nobody), "{} without a token", endpoint.operation());
        for role in Role::ALL {
            let answer = open
                .send(harmless(endpoint, &path).token(&world.token(&world.theirs, role)))
                .await;
            assert!(
                !let_through(&answer),
                "{} as {role}: {:?}",
                endpoint.operation(),
                answer.body
            );
        }
        for peer in [&world.theirs.edge.1, &world.theirs.node.1] {
            let answer = open.send(harmless(endpoint, &path).peer(peer)).await;
            assert!(
                !let_through(&answer),
                "{}: {:?}",
                endpoint.operation(),
                answer.body
            );
        }
        if endpoint.path().contains("{edge}") {
            let answer = open
                .send(harmless(endpoint, &path).peer(&world.ours.other_edge.1))
                .await;
            assert!(!let_through(&answer), "{} by another edge", endpoint.operation());
        }
    }
}

#[tokio::test]
async fn a_thing_of_another_tenant_looks_like_one_that_is_not_there() {
    let world = World::new().await;
    let token = world.token(&world.ours, Role::Owner);
    let base = &world.ours.customer.base;
    for (kind, theirs, unknown) in [
        (
            "volumes",
            world.theirs.volume.clone(),
            format!("vol_{}", "0".repeat(32)),
        ),
        (
            "disks",
            world.theirs.disk.clone(),
            format!("dsk_{}", "0".repeat(32)),
        ),
        (
            "edges",
            world.theirs.edge.0.to_string(),
            format!("edg_{}", "0".repeat(32)),
        ),
        (
            "nodes",
            world.theirs.node.0.to_string(),
            format!("nod_{}", "0".repeat(32)),
        ),
        (
            "keys",
            world.theirs.key.clone(),
            format!("key_{}", "0".repeat(32)),
        ),
    ] {
        let theirs_answer = world
            .service
            .get(&token, &format!("{base}/{kind}/{theirs}"))
            .await;
        let unknown_answer = world
            .service
            .get(&token, &format!("{base}/{kind}/{unknown}"))
            .await;
        assert_eq!(theirs_answer.status, StatusCode::NOT_FOUND);
        let (mut left, mut right) = (theirs_answer.body, unknown_answer.body);
        left["detail"] = left["detail"].as_str().unwrap().replace(&theirs, "X").into();
        right["detail"] = right["detail"].as_str().unwrap().replace(&unknown, "X").into();
        assert_eq!(left, right);
    }
}

#[tokio::test]
async fn a_removed_edge_is_refused_at_its_next_request() {
    let world = World::new().await;
    let owner = world.token(&world.ours, Role::Owner);
    let path = format!("{}/edges/{}", world.ours.customer.base, world.ours.edge.0);
    let asks = || {
        world
            .service
            .send(Call::new(Method::GET, &path).peer(&world.ours.edge.1))
    };
    assert_eq!(asks().await.status, StatusCode::OK);
    let removed = world
        .service
        .send(Call::new(Method::DELETE, &path).token(&owner))
        .await;
    assert_eq!(removed.text("state"), "revoked");
    assert_eq!(asks().await.code(), "certificate_refused");
}

#[tokio::test]
async fn a_token_limited_to_scopes_reaches_no_further() {
    let world = World::new().await;
    let customer = &world.ours.customer;
    let body = json!({ "api_key": customer.api_key, "scopes": ["volume:read"] });
    let issued = world
        .service
        .send(Call::new(Method::POST, &format!("{}/tokens", customer.base)).json(body))
        .await;
    let token = issued.text("token");
    assert_eq!(
        world
            .service
            .get(&token, &format!("{}/volumes", customer.base))
            .await
            .status,
        StatusCode::OK
    );
    let disks = world
        .service
        .get(&token, &format!("{}/disks", customer.base))
        .await;
    assert_eq!(disks.code(), "not_allowed");
}
