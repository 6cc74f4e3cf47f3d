//! Many who change one tenant at once, and many tenants: each gets its turn, on a slow table, in virtual time.

use crate::harness::{self, Call, Fleet, Service};
use crate::shaky::Shaky;
use axum::http::{Method, StatusCode};
use firn_api::router;
use firn_env::sim::Simulation;
use firn_table::{ItemKey, Table as _};
use serde_json::json;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// More than a request has tries.
const AT_ONCE: usize = 40;

#[test]
fn a_crowd_that_changes_one_tenant_is_served_to_the_last() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let service = Service::on(env.clone(), harness::rego());
            let customer = service.sign_up("a@example.com").await;
            let token = service.log_in(&customer).await;
            let table = Shaky {
                env: env.clone(),
                table: service.table.connect(&env),
                is_away: Arc::new(AtomicBool::new(false)),
            };
            let fleet = Arc::new(Fleet::default());
            let app = harness::app_over(&env, Arc::new(table), harness::rego(), &service.mail, fleet);
            let path = format!("{}/keys", customer.base);
            let began = env.now();
            let crowd: Vec<_> = (0..AT_ONCE)
                .map(|which| {
                    let (router, path, token) = (router(&app), path.clone(), token.clone());
                    env.spawn("one of many", async move {
                        let body = json!({ "name": format!("key {which}"), "role": "reader" });
                        Call::new(Method::POST, &path)
                            .token(&token)
                            .json(body)
                            .send(&router)
                            .await
                    })
                })
                .collect();
            for one in crowd {
                let answer = one.await.unwrap();
                assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
            }
            println!("{AT_ONCE} at once: {:?}", env.now().since(began));
        })
        .unwrap();
}

/// Visits wait for a table above all. One after the other, a thousand tenants would not have theirs within the minute in which a cap holds.
#[test]
fn tenants_are_visited_beside_each_other() {
    const TENANTS: u32 = 28;
    let simulation = Simulation::new(2);
    let env = simulation.env();
    simulation
        .run(async move {
            let service = Service::on(env.clone(), harness::rego());
            let mut customers = Vec::new();
            for number in 0..TENANTS {
                let customer = service.sign_up(&format!("ada@{number}.example")).await;
                customers.push(customer);
            }
            let table = Shaky {
                env: env.clone(),
                table: service.table.connect(&env),
                is_away: Arc::new(AtomicBool::new(false)),
            };
            let fleet = Arc::new(Fleet::default());
            let app = harness::app_over(&env, Arc::new(table), harness::rego(), &service.mail, fleet);
            let began = env.now();
            firn_api::watch(&app).await.unwrap();
            let took = env.now().since(began);
            println!("{TENANTS} tenants: {took:?}");
            for customer in &customers {
                let observed = ItemKey::new(format!("tenant/{}", customer.tenant), "capacity");
                let observed = service.table.connect(&env).get(&observed).await.unwrap();
                assert!(observed.is_some(), "every tenant was visited");
            }
            // One after the other it would be more than ten requests of 25 ms for each.
            assert!(took < Duration::from_millis(25) * 5 * TENANTS, "{took:?}");
        })
        .unwrap();
}
