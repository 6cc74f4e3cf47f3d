//! Limits for strangers at the doors: mails, waiting, slow bodies; bounded by recipient, by address and in all.

use crate::harness::{self, Answer, Call, Service};
use axum::{
    body::{Body, Bytes},
    http::{Method, Request, StatusCode},
};
use firn_env::sim::Simulation;
use serde_json::json;
use std::{net::Ipv4Addr, time::Duration};
use tower::ServiceExt as _;

async fn sign_up(service: &Service, email: &str) -> Answer {
    let body = json!({ "email": email, "tenant_name": "Nord" });
    service
        .send(Call::new(Method::POST, "/v1/signups").json(body))
        .await
}

fn seconds(answer: &Answer) -> u64 {
    answer.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[test]
fn nobody_is_flooded_with_mail_by_strangers_or_tenants() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    let run = async move {
        let service = Service::on(env.clone(), harness::rego());
        let mut refused = None;
        for _ in 0..5 {
            // However it is written, it is one address.
            for email in ["victim@one.example", "Victim@ONE.example"] {
                let answer = sign_up(&service, email).await;
                match answer.status {
                    StatusCode::ACCEPTED => assert!(refused.is_none(), "let in after a refusal"),
                    _ => refused = Some(answer),
                }
            }
        }
        let refused = refused.expect("ten mails are too many");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.code(), "rate_limited");
        assert_eq!(service.mail.count(), 3, "mails to one recipient");
        let wait = seconds(&refused);
        assert!((60..=3600).contains(&wait), "{wait} s");
        assert!(
            refused.text("detail").contains(&format!("{wait} s")),
            "{:?}",
            refused.body
        );

        // A tenant that invites and removes the same person again and again sends no more.
        let customer = service.sign_up("ada@one.example").await;
        let token = service.log_in(&customer).await;
        let before = service.mail.count();
        let members = format!("{}/members", customer.base);
        for _ in 0..10 {
            let body = json!({ "email": "friend@two.example", "role": "reader" });
            let invited = service.post(&token, &members, body).await;
            if invited.status != StatusCode::CREATED {
                assert_eq!(invited.code(), "rate_limited", "{:?}", invited.body);
                continue;
            }
            let path = format!("{members}/{}", invited.text("id"));
            let removed = service.send(Call::new(Method::DELETE, &path).token(&token)).await;
            assert_eq!(removed.status, StatusCode::NO_CONTENT, "{:?}", removed.body);
        }
        assert_eq!(service.mail.count() - before, 3);

        env.sleep(Duration::from_secs(wait)).await;
        assert_eq!(
            sign_up(&service, "victim@one.example").await.status,
            StatusCode::ACCEPTED,
            "as it said"
        );
    };
    simulation.run(run).unwrap();
}

#[test]
fn sign_ups_from_one_address_and_from_everywhere_are_bounded() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    let run = async move {
        let service = Service::on(env.clone(), harness::rego());
        let mut accepted = 0;
        for number in 0..200 {
            let answer = sign_up(&service, &format!("{number}@one.example")).await;
            accepted += usize::from(answer.status == StatusCode::ACCEPTED);
        }
        assert_eq!(accepted, 30, "from one address");
        env.sleep(Duration::from_secs(3600)).await;
        let again = sign_up(&service, "late@one.example").await;
        assert_eq!(again.status, StatusCode::ACCEPTED);
    };
    simulation.run(run).unwrap();
}

/// As many as one address may, from so many addresses that the limit of all together is what holds them back.
#[test]
fn sign_ups_from_many_addresses_are_bounded_in_all() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    let run = async move {
        let service = Service::on(env.clone(), harness::rego());
        let began = env.now();
        let sign_up_from = async |address: u32, number: u32| {
            let body = json!({ "email": format!("{number}@{address}.example"), "tenant_name": "Nord" });
            let call = Call::new(Method::POST, "/v1/signups").json(body);
            service
                .send(call.from(Ipv4Addr::from(0x0a00_0000 + address).into()))
                .await
        };
        let (mut accepted, mut refused) = (0, None);
        for address in 0..100 {
            let mut from_here = 0;
            for number in 0..30 {
                let answer = sign_up_from(address, number).await;
                match answer.status {
                    StatusCode::ACCEPTED => from_here += 1,
                    _ => refused = Some(answer),
                }
            }
            accepted += from_here;
            assert!(
                from_here == 30 || accepted == 1800,
                "{accepted} are let in, {from_here} of 30 from the {address}th address"
            );
        }
        assert_eq!(env.now(), began, "no time has passed, so none was added");
        assert_eq!(accepted, 1800);
        assert_eq!(service.mail.count(), 1800, "nothing was done for those refused");
        let refused = refused.expect("three thousand are too many");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.code(), "rate_limited");
        assert!(
            refused.text("detail").contains("too many people"),
            "{:?}",
            refused.body
        );
        assert_eq!(seconds(&refused), 2, "1800 an hour");

        // Half a minute makes room for fifteen, whoever asks.
        env.sleep(Duration::from_secs(30)).await;
        let mut later = 0;
        for address in 200..240 {
            later += usize::from(sign_up_from(address, 0).await.status == StatusCode::ACCEPTED);
        }
        assert_eq!(later, 15);
    };
    simulation.run(run).unwrap();
}

#[test]
fn a_body_that_does_not_come_is_waited_for_only_so_long() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    let run = async move {
        let service = Service::on(env.clone(), harness::rego());
        let began = env.now();
        let beginning = futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"{")) });
        let never = futures::StreamExt::chain(beginning, futures::stream::pending());
        let request = Request::builder()
            .method(Method::POST)
            .uri("/v1/signups")
            .header("content-type", "application/json")
            .body(Body::from_stream(never))
            .unwrap();
        let answered = env
            .timeout(Duration::from_secs(3600), service.router.clone().oneshot(request))
            .await
            .expect("it is answered")
            .unwrap();
        assert_eq!(answered.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(env.now().since(began) <= Duration::from_secs(30));
    };
    simulation.run(run).unwrap();
}
