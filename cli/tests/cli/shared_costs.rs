//! Costs of a shared volume by who caused them, as `firn cost` tells the owner, who pays, and the grantee, after real work by both.
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

use crate::running::{Service, firn_api};
use crate::sharing::{self, Offices, TIMEOUT, signed_up};
use firn_rig::{Client, EXPORT};
use serde_json::{Value, json};
use std::{fs, process::Command, time::Instant};

/// A thousandth, a commit: no free units, so that each of them is seen.
const PRICES: &str = r#"
name = "by-the-commit"
title = "each commit costs"
currency = "USD"
source = "this test"
effective = "2026-01-01"
[[meters]]
meter = "root-commits"
tiers = [{ price = "0.001", per = 1 }]
"#;

/// Charges the tenant by these prices, as the service's staff does.
async fn charge_by_the_commit(service: &Service, tenant: &str) {
    let directory = service.directory.join("support");
    let certified = Command::new(firn_api())
        .args(["certify", "support", "--directory"])
        .arg(&directory)
        .arg("--secret")
        .arg(service.directory.join("secret"))
        .output()
        .unwrap();
    assert!(certified.status.success());
    let file = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let identity = file("key.pem") + &file("certificate.pem");
    let authority = reqwest::Certificate::from_pem(file("authority.pem").as_bytes()).unwrap();
    let client = reqwest::Client::builder()
        .identity(reqwest::Identity::from_pem(identity.as_bytes()).unwrap())
        .tls_certs_only([authority])
        .no_proxy()
        .build()
        .unwrap();
    let this_month = jiff::Zoned::now()
        .with_time_zone(jiff::tz::TimeZone::UTC)
        .strftime("%Y-%m")
        .to_string();
    for (path, body) in [
        ("price-books", json!({ "text": PRICES })),
        (
            "price-books/assign",
            json!({ "tenant": tenant, "book": "by-the-commit", "from": this_month }),
        ),
    ] {
        let url = format!("https://localhost:{}/v1/support/{path}", service.address.port());
        let sent = client
            .post(url)
            .header("content-type", "application/json")
            .body(body.to_string());
        let reply = sent.send().await.unwrap();
        let status = reply.status();
        assert!(status.is_success(), "{status}: {}", reply.text().await.unwrap());
    }
}

fn digits(line: &Value, field: &str) -> u128 {
    line[field].as_str().unwrap().parse().unwrap()
}

fn lines(volume: &Value) -> &[Value] {
    volume["lines"].as_array().unwrap()
}

/// The lines add up to the volume's cost, the resources to all charges, and those to the invoice, to the last billionth.
fn adds_up(cost: &Value, invoice: &Value) {
    let sum = |items: &[Value]| {
        items
            .iter()
            .map(|item| digits(item, "amount_nanos"))
            .sum::<u128>()
    };
    let resources = cost["costs"]["resources"].as_array().unwrap();
    assert_eq!(sum(resources), digits(&cost["costs"], "total_nanos"));
    assert_eq!(
        digits(invoice, "total_nanos"),
        digits(&cost["costs"], "total_nanos")
    );
    let given = cost["shared"]["given"].as_array().unwrap();
    assert_eq!(given.len(), 1);
    let volume = given[0]["volume"].as_str().unwrap();
    let its: Vec<Value> = resources
        .iter()
        .filter(|resource| {
            resource["resource"]
                .as_str()
                .unwrap()
                .starts_with(&format!("volume/{volume}"))
        })
        .cloned()
        .collect();
    assert_eq!(digits(&given[0], "total_nanos"), sum(&its));
    assert_eq!(digits(&given[0], "total_nanos"), sum(lines(&given[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_pays_for_a_shared_volume_and_both_sides_see_what_the_grantee_caused() {
    let place = tempfile::tempdir().unwrap();
    let (service, sides) = signed_up(place.path());
    // Before anything is charged: of somebody who has used something, prices begin with the next month.
    charge_by_the_commit(&service, &sides.0.tenant).await;
    let mut offices = Offices::of(place.path(), service, sides, "--write").await;
    offices.share().await;
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.other.address, EXPORT).await.unwrap();
    let (root, there) = (one.root.clone(), two.root.clone());
    one.write_file(&root, b"from-head", 0o644, b"ada wrote this")
        .await
        .unwrap();
    offices.owner.sync().await.unwrap();
    let large = vec![7_u8; 300_000];
    for round in 0..3 {
        let name = format!("from-office-{round}");
        two.write_file(&there, name.as_bytes(), 0o644, &large)
            .await
            .unwrap();
        offices.other.sync().await.unwrap();
    }

    // Commits are counted within seconds, and what edges say comes with their reports.
    let end = Instant::now() + TIMEOUT;
    let (cost, invoice) = loop {
        let cost = offices.ada.person.json(&["cost"]);
        let invoice = offices.ada.person.json(&["invoice", "show"]);
        let given = cost["shared"]["given"][0].clone();
        let reported = |line: &Value| digits(line, "operations") > 0 && digits(line, "bytes_up") > 0;
        let all = lines(&given);
        // What an edge did in the half minute before a handover is in no report of its own, so only the grantee's is waited for.
        let is_there = all.len() == 2 && reported(&all[1]) && digits(&all[1], "commits") >= 3;
        // Of one moment: nothing was charged between the two.
        if is_there && cost["costs"] == offices.ada.person.json(&["cost"])["costs"] {
            break (cost, invoice);
        }
        assert!(Instant::now() < end, "{cost}");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    };
    let given = &cost["shared"]["given"][0];
    let [own, theirs] = lines(given) else {
        panic!("{given}")
    };
    assert_eq!(
        (&own["tenant"], &own["edge"]),
        (&json!(offices.ada.tenant), &Value::Null)
    );
    assert_eq!(theirs["tenant"], json!(offices.bob.tenant));
    let edges = offices.bob.person.json(&["edge", "list"]);
    assert_eq!(theirs["edge"], edges[0]["id"]);
    assert!(digits(own, "commits") > 0);
    for line in [own, theirs] {
        assert_eq!(digits(line, "amount_nanos"), digits(line, "commits") * 1_000_000);
    }
    assert!(digits(theirs, "bytes_up") >= 1000, "{theirs}");
    assert!(digits(theirs, "requests") > 0, "{theirs}");
    adds_up(&cost, &invoice);
    let page = offices.ada.person.firn(&["cost"]).good().out();
    assert!(page.contains("Shared with others, and paid by you"), "{page}");

    // The grantee sees its own edges' part of the owner's bill, nothing else of it, and pays none of it.
    let seen = offices.bob.person.json(&["cost"]);
    let resources = seen["costs"]["resources"].as_array().unwrap();
    let is_volume = |cost: &Value| cost["resource"].as_str().unwrap().starts_with("volume/");
    assert!(!resources.iter().any(is_volume), "{seen}");
    let granted = seen["shared"]["granted"].as_array().unwrap();
    assert_eq!(granted.len(), 1);
    assert_eq!(granted[0]["owner"], json!(offices.ada.tenant));
    let [line] = lines(&granted[0]) else {
        panic!("{seen}")
    };
    assert_eq!(line["edge"], theirs["edge"]);
    assert!(digits(line, "commits") >= 3);
    assert_eq!(granted[0]["total_nanos"], line["amount_nanos"]);
    let text = seen.to_string();
    assert!(!text.contains(edges_of(&offices.ada).as_str()), "{text}");
    offices.other.stop().await.unwrap();
    offices.owner.stop().await.unwrap();
}

/// The id of ada's only edge.
fn edges_of(side: &sharing::Side) -> String {
    side.person.json(&["edge", "list"])[0]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}
