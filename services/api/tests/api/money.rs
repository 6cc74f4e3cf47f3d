//! Bills over the API: reported, folded, priced, capped, corrected; by whom, and by nobody else.

use crate::harness::{self, Call, Customer, DOMAIN, Service, customer::customer};
use axum::http::{Method, StatusCode};
use firn_billing::{Hour, Month};
use firn_identity::{PeerIdentity, PeerKind, Role};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use serde_json::json;

fn service_peer(name: &str) -> PeerIdentity {
    PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Service(name.into()),
    }
}

fn now_ms(service: &Service) -> u64 {
    u64::try_from(service.env.wall().as_millis()).unwrap()
}

fn month(service: &Service) -> Month {
    Month::of_ms(now_ms(service))
}

fn payer(customer: &Customer) -> TenantName {
    customer.tenant.into()
}

fn commits(service: &Service, tenant: &TenantName, quantity: u64) -> Observation {
    Observation {
        tenant: tenant.clone(),
        resource: ResourceName::new("volume/1").unwrap(),
        meter: Meter::ROOT_COMMITS,
        quantity,
        from_ms: now_ms(service),
        duration_ms: 0,
    }
}

fn report(source: &str, first: u64, observations: Vec<Observation>) -> serde_json::Value {
    let batch = UsageBatch::new(
        SourceId::new(source).unwrap(),
        Incarnation(1),
        first,
        observations,
    );
    json!({ "batch": harness::base64(&batch.unwrap().encode().unwrap()) })
}

async fn send(service: &Service, peer: &str, path: &str, body: serde_json::Value) -> harness::Answer {
    service
        .send(Call::new(Method::POST, path).peer(&service_peer(peer)).json(body))
        .await
}

#[tokio::test]
async fn what_the_service_observed_is_charged_once_and_what_an_edge_says_never() {
    let (service, customer, token) = customer().await;
    let tenant = payer(&customer);
    let observed = report("anchor", 1, vec![commits(&service, &tenant, 10_100_001)]);
    let first = send(&service, "anchor", "/v1/usage", observed.clone()).await;
    assert_eq!(
        (first.status, first.body["kept"].as_u64()),
        (StatusCode::OK, Some(1))
    );
    let again = send(&service, "anchor", "/v1/usage", observed).await;
    assert_eq!(again.body, json!({ "kept": 0, "duplicates": 1 }));

    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let path = format!("{}/edges/{edge}/usage", customer.base);
    let said = report(&format!("edge/{edge}"), 1, vec![commits(&service, &tenant, 77)]);
    let call = Call::new(Method::POST, &path).peer(&peer).json(said);
    assert_eq!(service.send(call).await.body["kept"], 1);
    firn_api::fold(&service.app).await.unwrap();

    let month = month(&service);
    let usage = service
        .get(&token, &format!("{}/usage/{month}?limit=100", customer.base))
        .await;
    assert_eq!(usage.status, StatusCode::OK, "{:?}", usage.body);
    let mut entries = Vec::new();
    let mut next = usage;
    loop {
        for hour in next.body["items"].as_array().unwrap() {
            entries.extend(hour["entries"].as_array().unwrap().clone());
        }
        let Some(cursor) = next.body["next_cursor"].as_str() else {
            break;
        };
        let path = format!("{}/usage/{month}?limit=100&cursor={cursor}", customer.base);
        next = service.get(&token, &path).await;
    }
    let row = |entry: &serde_json::Value| {
        let role = entry["standing"].as_str().unwrap().to_owned();
        (role, entry["quantity"].as_str().unwrap().to_owned())
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    assert_eq!(
        rows,
        [
            ("observed".into(), "10100001".into()),
            ("advisory".into(), "77".into())
        ]
    );

    // 100,000 free, ten million at 5.00 a million, one at 4.00 a million: docs/billing.md.
    let invoice = service
        .get(&token, &format!("{}/invoices/{month}", customer.base))
        .await;
    assert_eq!(invoice.text("total_nanos"), "50000004000", "{:?}", invoice.body);
    assert_eq!(invoice.text("state"), "draft");
    let costs = service
        .get(&token, &format!("{}/costs/{month}", customer.base))
        .await;
    assert_eq!(costs.text("total_nanos"), "50000004000");
    let forecast = service.get(&token, &format!("{}/forecast", customer.base)).await;
    assert_eq!(forecast.text("spent_nanos"), "50000004000");
    assert_eq!(forecast.body["capped"], false);
}

#[tokio::test]
async fn a_report_is_bound_to_the_certificate_of_its_sender() {
    let (service, customer, token) = customer().await;
    let tenant = payer(&customer);
    let ours = || report("anchor", 1, vec![commits(&service, &tenant, 1)]);
    for peer in ["support", "api", "edge"] {
        let answer = send(&service, peer, "/v1/usage", ours()).await;
        assert_eq!(answer.code(), "credential_refused", "{peer}");
    }
    let owner = Call::new(Method::POST, "/v1/usage").token(&token).json(ours());
    assert_eq!(service.send(owner).await.code(), "credential_refused");
    // The cleaner cannot speak for the anchor, nor an edge for another, nor for another tenant.
    assert_eq!(
        send(&service, "cleaner", "/v1/usage", ours()).await.code(),
        "invalid_field"
    );
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let (other, ..) = service.join_edge(&customer, &token, "f").await;
    let path = format!("{}/edges/{edge}/usage", customer.base);
    let as_other = report(&format!("edge/{other}"), 1, vec![commits(&service, &tenant, 1)]);
    let call = Call::new(Method::POST, &path).peer(&peer).json(as_other);
    assert_eq!(service.send(call).await.code(), "invalid_field");
    let theirs = service.sign_up("bob@two.example").await;
    let foreign = report(
        &format!("edge/{edge}"),
        1,
        vec![commits(&service, &payer(&theirs), 5)],
    );
    let call = Call::new(Method::POST, &path).peer(&peer).json(foreign);
    assert_eq!(service.send(call).await.status, StatusCode::OK);
    firn_api::fold(&service.app).await.unwrap();
    let nothing = service
        .app
        .billing()
        .totals(&payer(&theirs), Hour(0), Hour(u32::MAX))
        .await
        .unwrap();
    assert!(nothing.is_empty(), "usage of another tenant is not counted");
    // And both attempts are in the tenant's own audit log, once.
    for _ in 0..2 {
        firn_api::watch(&service.app).await.unwrap();
    }
    let log = service
        .get(&token, &format!("{}/audit?limit=100", customer.base))
        .await;
    let found: Vec<_> = log.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] == "billing.finding")
        .map(|entry| entry["detail"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().any(|detail| detail.contains("wrong-source")));
    assert!(found.iter().any(|detail| detail.contains("foreign-tenant")));
}

#[tokio::test]
async fn garbage_in_a_report_is_refused_without_harm() {
    let (service, ..) = customer().await;
    for (body, code) in [
        (json!({}), "malformed_body"),
        (json!({ "batch": "!" }), "invalid_field"),
        (json!({ "batch": "AAAA" }), "invalid_field"),
        (json!({ "batch": "A".repeat(400_000) }), "body_too_large"),
        (json!({ "batch": "", "more": 1 }), "malformed_body"),
    ] {
        assert_eq!(send(&service, "anchor", "/v1/usage", body).await.code(), code);
    }
}

#[tokio::test]
async fn at_the_hard_cap_provisioning_is_refused_and_nothing_else_until_it_is_raised() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let disk = |name: &str| json!({ "name": name, "size_bytes": 8 << 20 });
    let set = |nanos: Option<u64>| {
        let body =
            json!({ "alert_nano_dollars": nanos.map(|nanos| nanos / 2), "hard_cap_nano_dollars": nanos });
        Call::new(Method::PUT, &format!("{base}/budget"))
            .token(&token)
            .json(body)
    };
    assert_eq!(
        service.send(set(Some(40_000_000_000))).await.status,
        StatusCode::OK
    );
    let tenant = payer(&customer);
    let letters = service.mail.count();
    send(
        &service,
        "anchor",
        "/v1/usage",
        report("anchor", 1, vec![commits(&service, &tenant, 10_100_001)]),
    )
    .await;
    firn_api::fold(&service.app).await.unwrap();
    firn_api::watch(&service.app).await.unwrap();
    assert_eq!(service.mail.count() - letters, 3, "half, four fifths, all");
    let refused = service.post(&token, &format!("{base}/disks"), disk("a")).await;
    assert_eq!(
        (refused.status, refused.code()),
        (StatusCode::PAYMENT_REQUIRED, "budget_exhausted")
    );
    let forecast = service.get(&token, &format!("{base}/forecast")).await;
    assert_eq!(forecast.body["capped"], true);
    let month = month(&service);
    for path in [
        format!("{base}/volumes"),
        format!("{base}/invoices/{month}"),
        format!("{base}/alerts/{month}"),
    ] {
        assert_eq!(service.get(&token, &path).await.status, StatusCode::OK, "{path}");
    }
    let alerts = service.get(&token, &format!("{base}/alerts/{month}")).await;
    assert_eq!(alerts.body["alerts"].as_array().unwrap().len(), 3);
    // Repeated looks raise nothing again.
    firn_api::watch(&service.app).await.unwrap();
    assert_eq!(service.mail.count() - letters, 3);
    assert_eq!(service.send(set(None)).await.status, StatusCode::OK);
    firn_api::watch(&service.app).await.unwrap();
    let allowed = service.post(&token, &format!("{base}/disks"), disk("a")).await;
    assert_eq!(allowed.status, StatusCode::ACCEPTED, "{:?}", allowed.body);
}

#[tokio::test]
async fn capacity_of_an_hour_is_charged_once_however_many_instances_look() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let disk = service
        .post(
            &token,
            &format!("{base}/disks"),
            json!({ "name": "d", "size_bytes": 8 << 20 }),
        )
        .await;
    assert_eq!(disk.status, StatusCode::ACCEPTED);
    service.join_edge(&customer, &token, "e").await;
    // Two hours later the hour before is whole; two instances look at the same moment, and look again.
    let (one, other) = (service.after(2 * 3600), service.after(2 * 3600));
    for _ in 0..3 {
        let (left, right) = futures::join!(
            firn_api::observe_capacity(&one.app, customer.tenant),
            firn_api::observe_capacity(&other.app, customer.tenant),
        );
        left.and(right).unwrap();
    }
    firn_api::fold(&one.app).await.unwrap();
    let totals = one
        .app
        .billing()
        .totals(&payer(&customer), Hour(0), Hour(u32::MAX))
        .await
        .unwrap();
    let of = |meter| {
        totals
            .iter()
            .filter(|(key, _)| key.meter == meter)
            .map(|(_, totals)| (totals.quantity, totals.records))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Meter::DISK_BYTE_HOURS), [(8 << 20, 1)]);
    assert_eq!(of(Meter::EDGE_HOURS), [(1, 1)]);
    // Nothing is left to deliver, and the next hour is another.
    assert_eq!(
        firn_api::observe_capacity(&one.app, customer.tenant)
            .await
            .unwrap(),
        0
    );
    let later = service.after(3 * 3600);
    assert_eq!(
        firn_api::observe_capacity(&later.app, customer.tenant)
            .await
            .unwrap(),
        2
    );
}

#[tokio::test]
async fn an_edge_is_not_charged_for_an_hour_before_it_joined() {
    let (service, customer, token) = customer().await;
    service.join_edge(&customer, &token, "e").await;
    let later = service.after(3 * 3600);
    let token = later.log_in(&customer).await;
    later.join_edge(&customer, &token, "f").await;
    firn_api::observe_capacity(&later.app, customer.tenant)
        .await
        .unwrap();
    firn_api::fold(&later.app).await.unwrap();
    let charged = async |service: &Service| {
        let totals = service
            .app
            .billing()
            .totals(&payer(&customer), Hour(0), Hour(u32::MAX))
            .await
            .unwrap();
        let of_edges = totals.iter().filter(|(key, _)| key.meter == Meter::EDGE_HOURS);
        of_edges.map(|(_, totals)| totals.quantity).sum::<u128>()
    };
    assert_eq!(
        charged(&later).await,
        1,
        "that of the hour before is the first edge's alone"
    );
    let after = later.after(3600);
    firn_api::observe_capacity(&after.app, customer.tenant)
        .await
        .unwrap();
    firn_api::fold(&after.app).await.unwrap();
    assert_eq!(charged(&after).await, 3);
}

#[tokio::test]
async fn a_month_that_is_over_is_closed_and_only_a_credit_changes_what_is_owed() {
    let (service, customer, token) = customer().await;
    let tenant = payer(&customer);
    send(
        &service,
        "anchor",
        "/v1/usage",
        report("anchor", 1, vec![commits(&service, &tenant, 200_000)]),
    )
    .await;
    firn_api::fold(&service.app).await.unwrap();
    let used = month(&service);
    let later = service.after(33 * 86_400);
    firn_api::settle(&later.app).await.unwrap();
    let token_later = later.log_in(&customer).await;
    let list = later
        .get(&token_later, &format!("{}/invoices", customer.base))
        .await;
    assert_eq!(list.body["items"].as_array().unwrap().len(), 1, "{:?}", list.body);
    assert_eq!(list.body["items"][0]["month"], used.to_string());
    assert_eq!(list.body["items"][0]["state"], "final");
    assert_eq!(list.body["items"][0]["total_nanos"], "500000000");

    let credit = json!({ "tenant": customer.tenant, "id": "sorry-1", "amount_nanos": "500000000", "reason": "our outage", "granted_by": "bea" });
    let granted = send(&later, "support", "/v1/support/credits", credit.clone()).await;
    assert_eq!(granted.status, StatusCode::OK, "{:?}", granted.body);
    assert_eq!(
        send(&later, "support", "/v1/support/credits", credit.clone())
            .await
            .body,
        granted.body
    );
    let mut more = credit.clone();
    more["amount_nanos"] = "600000000".into();
    assert_eq!(
        send(&later, "support", "/v1/support/credits", more).await.code(),
        "name_taken"
    );
    assert_eq!(
        send(&later, "anchor", "/v1/support/credits", credit.clone())
            .await
            .code(),
        "credential_refused"
    );
    let owner = Call::new(Method::POST, "/v1/support/credits")
        .token(&token)
        .json(credit);
    assert_eq!(service.send(owner).await.code(), "credential_refused");
    let invoice = later
        .get(&token_later, &format!("{}/invoices/{used}", customer.base))
        .await;
    assert_eq!(invoice.text("total_nanos"), "500000000", "a final invoice stays");
    let credits = later
        .get(&token_later, &format!("{}/credits", customer.base))
        .await;
    assert_eq!(credits.body["credits"][0]["amount_nanos"], "500000000");
    let audited = later
        .get(&token_later, &format!("{}/audit?limit=100", customer.base))
        .await;
    let noted = audited.body["items"].as_array().unwrap().iter();
    assert_eq!(
        noted.filter(|entry| entry["action"] == "credit.granted").count(),
        1
    );
}

#[tokio::test]
async fn prices_are_published_ahead_and_hold_from_their_month_on() {
    let (service, customer, token) = customer().await;
    let next = month(&service).next();
    let text = include_str!("../../../../crates/billing/prices/firn-standard-2026-01.toml");
    let text = text.replace("\"2026-01-01\"", &format!("\"{next}-01\""));
    assert!(
        text.contains(&next.to_string()),
        "the data file says from when on it holds"
    );
    let published = send(
        &service,
        "support",
        "/v1/support/price-books",
        json!({ "text": text }),
    )
    .await;
    assert_eq!(published.status, StatusCode::OK, "{:?}", published.body);
    let versions = service
        .send(Call::new(Method::GET, "/v1/price-books/firn-standard"))
        .await;
    assert_eq!(versions.body["versions"].as_array().unwrap().len(), 2);
    let prices = |month: Month| format!("{}/prices/{month}", customer.base);
    assert_eq!(
        service
            .get(&token, &prices(month(&service)))
            .await
            .text("effective"),
        "2026-01"
    );
    assert_eq!(
        service.get(&token, &prices(next)).await.text("effective"),
        next.to_string()
    );
    let changed = text.replace("free = 100_000", "free = 1");
    assert_ne!(changed, text);
    let again = send(
        &service,
        "support",
        "/v1/support/price-books",
        json!({ "text": changed }),
    )
    .await;
    assert_eq!(again.code(), "wrong_state", "a published version never changes");
    let assigned = send(
        &service,
        "support",
        "/v1/support/price-books/assign",
        json!({ "tenant": customer.tenant, "book": "no-such-book", "from": next.to_string() }),
    );
    assert_eq!(assigned.await.code(), "not_found");
    // A backup takes the ledger along.
    let table: std::sync::Arc<dyn firn_table::Table> = service.table.connect(&service.env);
    let mut file = Vec::new();
    firn_api::backup(&service.env, &table, &mut file).await.unwrap();
    let text = String::from_utf8(file).unwrap();
    assert!(text.contains("billing/books/firn-standard"));
    let nobody = service.member_token(customer.tenant, Role::Reader);
    assert_eq!(service.get(&nobody, &prices(next)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_edge_that_reports_a_tenth_of_its_work_is_found_and_told_of_once() {
    let (service, customer, token) = customer().await;
    let tenant = payer(&customer);
    let made = service
        .post(
            &token,
            &format!("{}/volumes", customer.base),
            json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu" } }),
        )
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    let volume = made.text("id");
    let (edge, peer, _) = service
        .join_edge_of(&customer, &token, "branch", &[&volume])
        .await;
    service.join_edge(&customer, &token, "elsewhere").await;
    let of_volume = |quantity| Observation {
        resource: ResourceName::new(&format!("volume/{volume}")).unwrap(),
        ..commits(&service, &tenant, quantity)
    };
    send(
        &service,
        "anchor",
        "/v1/usage",
        report("anchor", 1, vec![of_volume(1000)]),
    )
    .await;
    let said = report(&format!("edge/{edge}"), 1, vec![of_volume(100)]);
    let path = format!("{}/edges/{edge}/usage", customer.base);
    let call = Call::new(Method::POST, &path).peer(&peer).json(said);
    assert_eq!(service.send(call).await.status, StatusCode::OK);
    firn_api::fold(&service.app).await.unwrap();
    // The window of six hours in which it happened is over, and what was in spools has come.
    let mut found = Vec::new();
    for hours in [3, 5, 7, 9] {
        let later = service.after(hours * 3600);
        firn_api::settle(&later.app).await.unwrap();
        firn_api::watch(&later.app).await.unwrap();
        let owner = later.log_in(&customer).await;
        let log = later
            .get(&owner, &format!("{}/audit?limit=100", customer.base))
            .await;
        found = log.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|entry| {
                entry["detail"]
                    .as_str()
                    .filter(|detail| detail.contains("reported"))
            })
            .map(str::to_owned)
            .collect();
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("under-reported")
            && found[0].contains("\"observed\":\"1000\"")
            && found[0].contains("\"reported\":\"100\""),
        "{found:?}"
    );
    // By its name; the one that does not serve the volume is not suspected.
    let detail: serde_json::Value = serde_json::from_str(&found[0]).unwrap();
    assert_eq!(
        detail["edges"],
        json!([{ "id": edge.to_string(), "name": "branch" }])
    );
}
