//! The fleet's nodes: only the fleet's tenant gets certificates with which a node may copy every tenant's blocks.

use crate::harness::{self, Answer, Call, Customer, Service, base64, hex};
use axum::http::{Method, StatusCode};
use firn_billing::{Hour, ReporterRole};
use firn_identity::{JoinSecret, NodeId, PeerIdentity, PeerKind, SigningKey, TenantId, certificate_request};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use serde_json::{Value, json};

/// Invites a node; gives it and its secret.
async fn invited(service: &Service, customer: &Customer, token: &str) -> (NodeId, JoinSecret) {
    let env = service.env.clone();
    let secret = JoinSecret::generate(&mut |bytes| {
        bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]);
    });
    let body = json!({
        "name": format!("n {}", hex(&secret.authenticator().hash().0[..4])),
        "failure_domain": "rack-1",
        "authenticator_hash": hex(&secret.authenticator().hash().0),
    });
    let invited = service
        .post(token, &format!("{}/nodes", customer.base), body)
        .await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    (invited.text("id").parse().unwrap(), secret)
}

fn request_for(kind: PeerKind) -> Value {
    let name = PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind,
    };
    base64(&certificate_request(&SigningKey::from_seed([4; 32]), &name)).into()
}

async fn join(
    service: &Service,
    customer: &Customer,
    node: NodeId,
    secret: &JoinSecret,
    requests: &[(&str, Value)],
) -> Answer {
    let mut body = json!({
        "authenticator": &*secret.authenticator().expose(),
        "address": "10.0.0.7:7500",
        "capacity_bytes": 1_u64 << 40,
    });
    for (field, request) in requests {
        body[*field] = request.clone();
    }
    let path = format!("{}/nodes/{node}/join", customer.base);
    service.send(Call::new(Method::POST, &path).json(body)).await
}

#[tokio::test]
async fn a_tenant_gets_no_certificate_of_the_fleet_for_a_node_of_its_own() {
    let service = Service::new();
    let customer = service.sign_up("mallory@one.example").await;
    let token = service.log_in(&customer).await;
    let (node, secret) = invited(&service, &customer, &token).await;
    let fleet = request_for(PeerKind::Node(node));
    let joined = join(
        &service,
        &customer,
        node,
        &secret,
        &[("certificate_request", fleet)],
    )
    .await;
    assert_eq!(
        joined.code(),
        "invalid_field",
        "a tenant's node is a fleet node: {:?}",
        joined.body
    );
    // With the name that says whose it is, it joins, and is that tenant's.
    let own = PeerKind::TenantNode {
        tenant: customer.tenant,
        node,
    };
    let fleet = request_for(PeerKind::Node(node));
    let requests = [
        ("certificate_request", fleet.clone()),
        ("tenant_certificate_request", request_for(own.clone())),
    ];
    let joined = join(&service, &customer, node, &secret, &requests).await;
    assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
    assert_eq!(name_in(&joined).kind, own);

    // Nor does it get one later, when it renews.
    let path = format!("{}/nodes/{node}/certificate", customer.base);
    let renew = |request: Value| {
        let call = Call::new(Method::POST, &path).peer(&peer(own.clone()));
        service.send(call.json(json!({ "certificate_request": request })))
    };
    assert_eq!(renew(fleet).await.code(), "invalid_field");
    assert_eq!(renew(request_for(own.clone())).await.status, StatusCode::CREATED);

    // A certificate of the fleet that it had from before is worth nothing at the service.
    let heartbeat = Call::new(Method::POST, &format!("{}/nodes/{node}/heartbeat", customer.base))
        .json(json!({ "free_bytes": 1 }));
    let old = service
        .send(heartbeat.clone().peer(&peer(PeerKind::Node(node))))
        .await;
    assert_eq!(old.code(), "certificate_refused", "{:?}", old.body);
    assert_eq!(
        service.send(heartbeat.peer(&peer(own.clone()))).await.status,
        StatusCode::OK
    );

    // What it says that it served is the tenant's own word: shown, not charged, and of nobody else.
    let (other, payer) = (TenantId([9; 16]), customer.tenant);
    let said = report(&service, &customer, own.clone(), node, (other, 7)).await;
    assert_eq!(said.status, StatusCode::OK, "{:?}", said.body);
    assert_eq!(counted(&service, other).await, []);
    let (second, secret) = invited(&service, &customer, &token).await;
    let kind = PeerKind::TenantNode {
        tenant: payer,
        node: second,
    };
    let requests = [
        ("certificate_request", request_for(PeerKind::Node(second))),
        ("tenant_certificate_request", request_for(kind.clone())),
    ];
    join(&service, &customer, second, &secret, &requests).await;
    // One node does not speak for another.
    let said = report(&service, &customer, own, second, (payer, 7)).await;
    assert!(said.status.is_client_error(), "{:?}", said.body);
    let said = report(&service, &customer, kind, second, (payer, 7)).await;
    assert_eq!(said.status, StatusCode::OK, "{:?}", said.body);
    assert_eq!(counted(&service, payer).await, [(ReporterRole::Advisory, 7)]);
}

/// What a node says that it served to a tenant's disk; the answer.
async fn report(
    service: &Service,
    customer: &Customer,
    shown: PeerKind,
    node: NodeId,
    (payer, requests): (TenantId, u64),
) -> Answer {
    let observation = Observation {
        tenant: TenantName::from(payer),
        resource: ResourceName::new("disk/dsk_1").unwrap(),
        meter: Meter::NODE_OPERATIONS,
        quantity: requests,
        from_ms: u64::try_from(service.env.wall().as_millis()).unwrap(),
        duration_ms: 0,
    };
    let source = SourceId::new(&format!("node/{node}")).unwrap();
    let batch = UsageBatch::new(source, Incarnation(1), 1, vec![observation]).unwrap();
    let path = format!("{}/nodes/{node}/usage", customer.base);
    let body = json!({ "batch": base64(&batch.encode().unwrap()) });
    let call = Call::new(Method::POST, &path).peer(&peer(shown));
    service.send(call.json(body)).await
}

/// The requests at nodes that the ledger has for a tenant, and what they are worth.
async fn counted(service: &Service, payer: TenantId) -> Vec<(ReporterRole, u128)> {
    firn_api::fold(&service.app).await.unwrap();
    let now = Hour::of_ms(u64::try_from(service.env.wall().as_millis()).unwrap());
    let until = Hour(now.0 + 1);
    let hours = service
        .app
        .billing()
        .hours(&TenantName::from(payer), now, until)
        .await
        .unwrap();
    let entries = hours.values().flat_map(|entries| entries.iter());
    let entries = entries.filter(|(key, _)| key.meter == Meter::NODE_OPERATIONS);
    entries.map(|(key, totals)| (key.role, totals.quantity)).collect()
}

fn peer(kind: PeerKind) -> PeerIdentity {
    PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind,
    }
}

fn name_in(joined: &Answer) -> PeerIdentity {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    let text = joined.body["certificate"]["certificate"].as_str().unwrap();
    let certificate = STANDARD_NO_PAD.decode(text).unwrap().into();
    PeerIdentity::of_certificate(&certificate).unwrap()
}

#[tokio::test]
async fn the_fleets_tenant_gets_the_fleets_certificates() {
    let service = Service::new();
    let customer = service.sign_up("operator@one.example").await;
    let service = service.with_fleet(customer.tenant);
    let token = service.log_in(&customer).await;
    let (node, secret) = invited(&service, &customer, &token).await;
    let own = PeerKind::TenantNode {
        tenant: customer.tenant,
        node,
    };
    let requests = [
        ("certificate_request", request_for(PeerKind::Node(node))),
        ("tenant_certificate_request", request_for(own.clone())),
    ];
    let joined = join(&service, &customer, node, &secret, &requests).await;
    assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
    assert_eq!(name_in(&joined).kind, PeerKind::Node(node));
    let heartbeat = Call::new(Method::POST, &format!("{}/nodes/{node}/heartbeat", customer.base))
        .json(json!({ "free_bytes": 1 }));
    let seen = service.send(heartbeat.peer(&peer(PeerKind::Node(node)))).await;
    assert_eq!(seen.status, StatusCode::OK, "{:?}", seen.body);

    // What it served to anybody's disk is charged to them, once.
    let payer = TenantId([9; 16]);
    for _ in 0..2 {
        let said = report(&service, &customer, PeerKind::Node(node), node, (payer, 7)).await;
        assert_eq!(said.status, StatusCode::OK, "{:?}", said.body);
    }
    assert_eq!(counted(&service, payer).await, [(ReporterRole::Observed, 7)]);
}
