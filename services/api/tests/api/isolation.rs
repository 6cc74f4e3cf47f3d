//! The isolation matrix: every operation of the router's own list × every role × every way to be the wrong caller.

use crate::harness::{self, AllowAll, Call};
use crate::world::{World, harmless, is_tenants, let_through};
use axum::http::{Method, StatusCode};
use firn_api::{AUDIENCE, POLICY, RegoPolicy, endpoints};
use firn_identity::Role;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

#[tokio::test]
async fn the_matrix_has_no_hole_and_no_leak() {
    let world = World::new().await;
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let (mut checked, mut allowed) = (0, 0);
    // One of each: a tenant that takes back many at once logs itself out.
    let mut taken_back = BTreeMap::new();
    let revoke = format!("{}/tokens/revoke", world.ours.customer.base);
    for role in Role::ALL {
        let token = world.token(&world.ours, role);
        let answer = world
            .service
            .send(Call::new(Method::POST, &revoke).token(&token))
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{:?}", answer.body);
        taken_back.insert(role, token);
    }
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
            let revoked = &taken_back[&role];
            for (what, token) in [
                ("expired", &expired),
                ("wrong audience", &foreign_audience),
                ("revoked", revoked),
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
