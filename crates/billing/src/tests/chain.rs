//! The whole way: observers with a spool on a disk that loses what was not synced, an unreliable table, ledgers that crash.
//! Each operation has a resource of its own, so the hours tell how often it was counted.

use super::world::{Api, START_MS, observation, source, tenant};
use crate::{BillingError, Hour, Reporter};
use async_trait::async_trait;
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use firn_table::{FaultRates, MemoryTable};
use firn_usage::{Delivery, DeliveryPolicy, Meter, SinkError, Spool, SpoolConfig, UsageBatch, UsageSink};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

/// The network between an observer and whichever ledger answers.
struct Road {
    env: Env,
    apis: [Api; 2],
    reporter: Reporter,
}

#[async_trait]
impl UsageSink for Road {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        let api = &self.apis[self.env.random_below(2) as usize];
        let received = api.accept(&self.reporter, batch).await;
        if self.env.random_below(6) == 0 {
            return Err(SinkError::Unavailable("the reply was lost".into()));
        }
        match received {
            Ok(_) => Ok(()),
            Err(error @ BillingError::Unavailable(_)) => Err(SinkError::Unavailable(error.to_string())),
            Err(error) => Err(SinkError::Refused(error.to_string())),
        }
    }
}

type Acknowledged = Arc<Mutex<BTreeSet<String>>>;

fn policy() -> DeliveryPolicy {
    DeliveryPolicy {
        linger: Duration::from_millis(10),
        try_limit: Duration::from_millis(300),
        first_pause: Duration::from_millis(5),
        longest_pause: Duration::from_millis(50),
        attempts: 500,
    }
}

async fn open(env: &Env, name: &str) -> Spool {
    let config = SpoolConfig {
        max_bytes: 1 << 20,
        file_bytes: 4096,
    };
    Spool::open(env, "usage", source(name), config).await.unwrap()
}

fn road(env: &Env, apis: &[Api; 2], name: &str) -> Arc<Road> {
    Arc::new(Road {
        env: env.clone(),
        apis: apis.clone(),
        reporter: Reporter::service(source(name)),
    })
}

/// One life of an observer.
async fn observe(env: Env, apis: [Api; 2], name: String, life: u64, acknowledged: Acknowledged) {
    let spool = open(&env, &name).await;
    env.spawn(
        "delivery",
        Delivery::new(&spool, road(&env, &apis, &name), policy()).run(),
    );
    for number in 0..200 {
        let what = format!("op/{name}/{life}/{number}");
        let who = format!("tenant-{}", number % 5);
        let seen = observation(&who, &what, Meter::API_OPERATIONS, 1, START_MS);
        spool.append(vec![seen]).await.unwrap();
        acknowledged.lock().unwrap().insert(what);
        env.sleep(Duration::from_micros(env.random_below(8_000))).await;
    }
}

fn chain(seed: u64) -> usize {
    let simulation = Simulation::new(seed);
    let table = MemoryTable::new();
    let rates = FaultRates {
        throttle_per_mille: 10,
        lose_reply_per_mille: 20,
        late_per_mille: 10,
        late_requests: 20,
        delay: Duration::ZERO..=Duration::from_micros(500),
    };
    let apis = ["api-1", "api-2"].map(|name| Api::start(simulation.machine(name), &table, rates.clone()));
    let observers: Vec<(String, Machine)> = (0..4)
        .map(|number| {
            (
                format!("node/{number}"),
                simulation.machine(&format!("node-{number}")),
            )
        })
        .collect();
    let env = simulation.env();
    simulation
        .run(async move {
            let acknowledged = Acknowledged::default();
            for life in 0..4 {
                for (name, machine) in &observers {
                    let env = if life == 0 {
                        machine.env()
                    } else {
                        machine.restart()
                    };
                    let living = observe(
                        env.clone(),
                        apis.clone(),
                        name.clone(),
                        life,
                        acknowledged.clone(),
                    );
                    env.spawn("life", living);
                }
                for _ in 0..3 {
                    env.sleep(Duration::from_micros(env.random_below(60_000))).await;
                    let api = &apis[env.random_below(2) as usize];
                    api.crash();
                    env.sleep(Duration::from_micros(env.random_below(30_000))).await;
                    api.restart();
                }
                for (_, machine) in &observers {
                    if env.random_below(2) == 0 {
                        machine.crash()
                    } else {
                        machine.kill()
                    }
                }
            }
            for (name, machine) in &observers {
                let env = machine.restart();
                let spool = open(&env, name).await;
                let mut delivery = Delivery::new(&spool, road(&env, &apis, name), policy());
                delivery.deliver_pending().await.unwrap();
            }
            for api in &apis {
                api.crash();
            }
            table.settle();
            let billing = crate::Billing::new(&env, table.connect(&env));
            billing.fold_all().await.unwrap();
            let mut counted = BTreeSet::new();
            for number in 0..5 {
                let who = tenant(&format!("tenant-{number}"));
                for (key, totals) in billing.totals(&who, Hour(0), Hour(u32::MAX)).await.unwrap() {
                    assert_eq!((totals.quantity, totals.records), (1, 1), "{}", key.resource);
                    counted.insert(key.resource.to_string());
                }
            }
            let events = billing.audit_events(None, None, 100).await.unwrap().events;
            assert_eq!(
                events,
                [],
                "nothing contradicts, and no life of a spool is taken for another"
            );
            let acknowledged = acknowledged.lock().unwrap();
            assert!(acknowledged.is_subset(&counted), "acknowledged and not billed");
            acknowledged.len()
        })
        .unwrap()
}

#[test]
fn what_a_spool_acknowledged_is_billed_once_whoever_crashes() {
    let acknowledged: usize = (0..12).map(chain).sum();
    assert!(
        acknowledged > 1000,
        "idle histories prove nothing: {acknowledged}"
    );
}
