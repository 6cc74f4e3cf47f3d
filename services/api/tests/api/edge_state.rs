//! Desired and observed state over the API: what an edge is told, when the generation rises, and who is told nothing.

use crate::harness::{
    Answer, Call, Service,
    customer::{customer, rings, volume},
};
use axum::http::{Method, StatusCode};
use firn_edge_state::{DesiredState, NewWrites, Refusal};
use firn_identity::{DocumentVerifier, EdgeId, PeerIdentity};
use serde_json::{Value, json};

async fn report(service: &Service, path: &str, peer: &PeerIdentity, state: Value) -> Answer {
    let body = json!({ "state": state });
    service
        .send(Call::new(Method::POST, path).peer(peer).json(body))
        .await
}

fn observed_state(in_force: u64) -> Value {
    json!({ "version": "9.9.9", "in_force": in_force, "volumes": [], "mood": "what a newer edge says beside" })
}

#[tokio::test]
async fn an_edge_is_told_what_is_wanted_once_and_again_when_that_changes() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let edge: EdgeId = edge.to_string().parse().unwrap();
    let path = format!("{base}/edges/{edge}/usage");
    let verifier = DocumentVerifier::of_authority(service.app.authority().certificate()).unwrap();
    let opened = |answer: &Answer| {
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        let text = answer.body["desired"].as_str().map(str::to_owned);
        text.map(|text| DesiredState::open(&verifier, (customer.tenant, edge), &text).unwrap())
    };
    let first = report(&service, &path, &peer, observed_state(0)).await;
    let text = first.body["desired"].as_str().unwrap().to_owned();
    let first = opened(&first).expect("it has none yet");
    assert_eq!(
        (first.generation, first.content.new_writes),
        (1, NewWrites::Allowed)
    );
    // Another's it is not, whatever it is called.
    let foreign = DesiredState::open(&verifier, (customer.tenant, EdgeId([9; 16])), &text);
    assert!(matches!(foreign, Err(Refusal::Foreign { .. })), "{foreign:?}");
    assert_eq!(
        opened(&report(&service, &path, &peer, observed_state(1)).await),
        None
    );

    // A cap of nothing is reached when it is set, and no longer when it is raised.
    let set = |nanos: u64| {
        Call::new(Method::PUT, &format!("{base}/budget"))
            .token(&token)
            .json(json!({ "hard_cap_nano_dollars": nanos }))
    };
    assert_eq!(service.send(set(0)).await.status, StatusCode::OK);
    let capped = opened(&report(&service, &path, &peer, observed_state(1)).await).expect("it is told");
    assert_eq!(
        (capped.generation, capped.content.new_writes),
        (2, NewWrites::RefusedByCap)
    );
    // What it cannot read is not sent to it again before there is another.
    let mut refusing = observed_state(1);
    refusing["refused"] = json!({ "generation": 2, "why": "its format is 7; update the edge" });
    assert_eq!(opened(&report(&service, &path, &peer, refusing).await), None);
    let shown = service.get(&token, &format!("{base}/edges/{edge}")).await.body;
    assert_eq!(
        shown["observed"]["refused"]["why"],
        "its format is 7; update the edge"
    );
    assert_eq!(
        (&shown["observed"]["in_force"], &shown["desired_generation"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(service.send(set(1_000_000_000)).await.status, StatusCode::OK);
    let raised = opened(&report(&service, &path, &peer, observed_state(1)).await).expect("it is told");
    assert_eq!(
        (raised.generation, raised.content.new_writes),
        (3, NewWrites::Allowed)
    );

    // An edge that knows a later generation than the service, as after a restored backup.
    let later = opened(&report(&service, &path, &peer, observed_state(40)).await).expect("it is told");
    assert_eq!((later.generation, later.content), (41, raised.content));
    assert_eq!(
        opened(&report(&service, &path, &peer, observed_state(41)).await),
        None
    );
}

#[tokio::test]
async fn reports_of_others_and_of_what_cannot_be_are_refused() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let (_, other, _) = service.join_edge(&customer, &token, "f").await;
    let path = format!("{base}/edges/{edge}/usage");
    assert_eq!(
        report(&service, &path, &other, observed_state(0)).await.status,
        StatusCode::FORBIDDEN
    );
    let refused = report(&service, &path, &peer, observed_state(u64::MAX)).await;
    assert_eq!(refused.code(), "invalid_field", "{:?}", refused.body);
    let mut long = observed_state(0);
    long["version"] = "9".repeat(401).into();
    let refused = report(&service, &path, &peer, long).await;
    assert_eq!(refused.code(), "invalid_field", "{:?}", refused.body);
    let shown = service.get(&token, &format!("{base}/edges/{edge}")).await.body;
    assert!(shown["observed"].is_null(), "{shown}");

    let removed = Call::new(Method::DELETE, &format!("{base}/edges/{edge}")).token(&token);
    assert_eq!(service.send(removed).await.status, StatusCode::OK);
    let refused = report(&service, &path, &peer, observed_state(0)).await;
    assert!(!refused.status.is_success(), "{:?}", refused.body);
}

#[tokio::test]
async fn a_rekey_that_is_asked_for_is_told_to_the_edge_of_the_volume_and_each_order_has_a_number() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let made = service
        .post(&token, &format!("{base}/volumes"), volume("files"))
        .await;
    let id = made.text("id");
    let path = format!("{base}/volumes/{id}");
    let change = |order: Value| {
        Call::new(Method::PATCH, &path)
            .token(&token)
            .json(json!({ "rekey": order }))
    };
    let order = |to_epoch: u32, bytes_per_second: u64, stop: bool| json!({ "to_epoch": to_epoch, "bytes_per_second": bytes_per_second, "stop": stop });
    let early = service.send(change(order(1, 4 << 20, false))).await;
    assert_eq!(
        early.status,
        StatusCode::NOT_FOUND,
        "it has no keys yet: {:?}",
        early.body
    );
    let (first, second) = rings(&service, &customer, &id);
    for ring in [first, second] {
        let put = Call::new(Method::PUT, &format!("{path}/keyring")).token(&token);
        let put = service.send(put.json(json!({ "key_ring": ring }))).await;
        assert_eq!(put.status, StatusCode::OK, "{:?}", put.body);
    }
    let (edge, peer, _) = service.join_edge_of(&customer, &token, "e", &[&id]).await;
    let verifier = DocumentVerifier::of_authority(service.app.authority().certificate()).unwrap();
    let told = async |in_force: u64| {
        let reports = format!("{base}/edges/{edge}/usage");
        let answer = report(&service, &reports, &peer, observed_state(in_force)).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        let text = answer.body["desired"].as_str().map(str::to_owned);
        text.map(|text| DesiredState::open(&verifier, (customer.tenant, edge), &text).unwrap())
    };
    let plain = told(0).await.expect("it has none yet");
    assert_eq!(plain.content.volumes[0].rekey, None);

    for (refused, field) in [
        (order(3, 4 << 20, false), "rekey.to_epoch"),
        (order(0, 4 << 20, false), "rekey.to_epoch"),
        (order(2, 1, false), "rekey.bytes_per_second"),
        (order(2, u64::MAX, true), "rekey.bytes_per_second"),
    ] {
        let answer = service.send(change(refused)).await;
        assert_eq!(answer.code(), "invalid_field", "{:?}", answer.body);
        assert!(answer.body.to_string().contains(field), "{:?}", answer.body);
    }
    assert_eq!(told(1).await, None, "nothing was asked for");

    let asked = service.send(change(order(2, 4 << 20, false))).await;
    assert_eq!(asked.status, StatusCode::OK, "{:?}", asked.body);
    assert_eq!(asked.body["rekey"]["number"], 1);
    let rekey = told(1).await.expect("it is told").content.volumes[0]
        .rekey
        .unwrap();
    assert_eq!((rekey.number, rekey.to_epoch, rekey.is_stopped), (1, 2, false));
    assert_eq!(told(2).await, None);
    // A stop is an order as well, and so is the same again.
    for number in 2..4 {
        let asked = service.send(change(order(2, 4 << 20, true))).await;
        assert_eq!(asked.body["rekey"]["number"], number);
        let rekey = told(number).await.expect("it is told").content.volumes[0]
            .rekey
            .unwrap();
        assert_eq!((rekey.number, rekey.is_stopped), (number, true));
    }
    let log = service.get(&token, &format!("{base}/audit")).await;
    assert!(
        log.body.to_string().contains("rekey stop, to key epoch 2"),
        "{:?}",
        log.body
    );
}
