//! The spool by example.

use crate::{
    Delivery, DeliveryPolicy, Meter, Observation, ResourceName, SinkError, SourceId, Spool, SpoolConfig,
    SpoolError, TenantName, UsageBatch, UsageSink,
};
use async_trait::async_trait;
use firn_env::sim::Simulation;
use std::sync::{Arc, Mutex};

fn observation(quantity: u64) -> Observation {
    Observation {
        tenant: TenantName::new("acme").unwrap(),
        resource: ResourceName::new("volume/1").unwrap(),
        meter: Meter::ROOT_COMMITS,
        quantity,
        from_ms: 1,
        duration_ms: 0,
    }
}

fn source() -> SourceId {
    SourceId::new("api/1").unwrap()
}

#[derive(Default)]
struct Kept {
    batches: Mutex<Vec<UsageBatch>>,
    refuses: bool,
}

#[async_trait]
impl UsageSink for Kept {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        if self.refuses {
            return Err(SinkError::Refused("not you".into()));
        }
        self.batches.lock().unwrap().push(batch.clone());
        Ok(())
    }
}

#[test]
fn many_small_appends_leave_as_one_batch_and_received_files_are_removed() {
    let simulation = Simulation::new(1);
    let env = simulation.machine("api").env();
    simulation
        .run(async move {
            let config = SpoolConfig {
                max_bytes: 1 << 20,
                file_bytes: 8 << 10,
            };
            let spool = Spool::open(&env, "usage", source(), config).await.unwrap();
            for quantity in 1..=500 {
                spool.append(vec![observation(quantity)]).await.unwrap();
            }
            let sink = Arc::new(Kept::default());
            let mut delivery = Delivery::new(&spool, sink.clone(), DeliveryPolicy::default());
            let delivered = delivery.deliver_pending().await.unwrap();
            assert_eq!(delivered.records, 500);
            assert!(delivered.batches <= 8, "{delivered:?}");
            assert!(spool.status().used_bytes <= 9 << 10, "{:?}", spool.status());
            assert_eq!(spool.status().received_before, 501);
            assert_eq!(delivery.deliver_pending().await.unwrap().batches, 0);
            let quantities: Vec<_> = sink
                .batches
                .lock()
                .unwrap()
                .iter()
                .flat_map(UsageBatch::records)
                .map(|record| (record.sequence, record.observation.quantity))
                .collect();
            assert_eq!(
                quantities,
                (1..=500).map(|number| (number, number)).collect::<Vec<_>>()
            );
        })
        .unwrap();
}

#[test]
fn a_full_spool_says_so_takes_up_again_once_emptied_and_what_was_forgone_leaves_a_gap() {
    let simulation = Simulation::new(2);
    let env = simulation.machine("api").env();
    simulation
        .run(async move {
            let config = SpoolConfig {
                max_bytes: 8 << 10,
                file_bytes: 2 << 10,
            };
            let spool = Spool::open(&env, "usage", source(), config).await.unwrap();
            let mut kept = 0;
            let full = loop {
                match spool.append(vec![observation(kept + 1)]).await {
                    Ok(_) => kept += 1,
                    Err(error) => break error,
                }
                assert!(kept < 1000, "it is bounded");
            };
            assert!(
                matches!(full, SpoolError::Full { .. }) && full.to_string().contains("nothing was recorded")
            );
            assert!(spool.status().used_bytes <= 8 << 10);
            spool.forgo(3);
            let sink = Arc::new(Kept::default());
            let mut delivery = Delivery::new(&spool, sink.clone(), DeliveryPolicy::default());
            assert_eq!(delivery.deliver_pending().await.unwrap().records, kept);
            let numbers = spool.append(vec![observation(99)]).await.unwrap();
            assert_eq!(numbers.start, kept + 4);
            assert_eq!(delivery.deliver_pending().await.unwrap().records, 1);
            assert_eq!(
                sink.batches.lock().unwrap().last().unwrap().first_sequence(),
                kept + 4
            );
        })
        .unwrap();
}

#[test]
fn a_spool_belongs_to_one_source_and_one_process() {
    let simulation = Simulation::new(3);
    let env = simulation.machine("api").env();
    simulation
        .run(async move {
            let spool = Spool::open(&env, "usage", source(), SpoolConfig::default())
                .await
                .unwrap();
            let second = Spool::open(&env, "usage", source(), SpoolConfig::default()).await;
            assert!(matches!(second.err(), Some(SpoolError::InUse(_))));
            drop(spool);
            env.sleep(std::time::Duration::from_secs(1)).await;
            let other = SourceId::new("api/2").unwrap();
            let error = Spool::open(&env, "usage", other, SpoolConfig::default())
                .await
                .err()
                .unwrap();
            assert!(error.to_string().contains("api/1"), "{error}");
        })
        .unwrap();
}

#[test]
fn refused_records_stay_and_impossible_ones_are_not_taken() {
    let simulation = Simulation::new(4);
    let env = simulation.machine("api").env();
    simulation
        .run(async move {
            let spool = Spool::open(&env, "usage", source(), SpoolConfig::default())
                .await
                .unwrap();
            let impossible = Observation {
                from_ms: u64::MAX,
                ..observation(1)
            };
            for wrong in [vec![], vec![impossible], vec![observation(1); 1025]] {
                assert!(spool.append(wrong).await.is_err());
            }
            spool.append(vec![observation(1)]).await.unwrap();
            let refusing = Arc::new(Kept {
                refuses: true,
                ..Kept::default()
            });
            let mut delivery = Delivery::new(&spool, refusing, DeliveryPolicy::default());
            assert!(matches!(
                delivery.deliver_pending().await,
                Err(SinkError::Refused(_))
            ));
            assert_eq!(spool.status().received_before, 0);
        })
        .unwrap();
}

#[test]
fn a_failed_sync_stops_the_spool_until_it_is_opened_again() {
    let simulation = Simulation::new(5);
    let machine = simulation.machine("api");
    let env = machine.env();
    simulation
        .run(async move {
            let spool = Spool::open(&env, "usage", source(), SpoolConfig::default())
                .await
                .unwrap();
            spool.append(vec![observation(1)]).await.unwrap();
            machine.disk().configure(|disk| disk.sync_failures = 1_000_000);
            let broken = spool.append(vec![observation(2)]).await.unwrap_err();
            assert!(matches!(broken, SpoolError::Broken(_)), "{broken}");
            machine.disk().configure(|disk| disk.sync_failures = 0);
            let still = spool.append(vec![observation(3)]).await.unwrap_err();
            assert!(matches!(still, SpoolError::Broken(_)), "{still}");
            drop(spool);
            env.sleep(std::time::Duration::from_secs(1)).await;
            let again = Spool::open(&env, "usage", source(), SpoolConfig::default())
                .await
                .unwrap();
            assert!(again.append(vec![observation(4)]).await.unwrap().start >= 2);
        })
        .unwrap();
}

/// The spool's only file, whichever number it has.
async fn only_file(env: &firn_env::Env) -> (String, Vec<u8>) {
    let names = env.disk().list("usage").await.unwrap();
    let mut spools = names.iter().filter(|name| name.ends_with(".spool"));
    let path = format!("usage/{}", spools.next_back().unwrap());
    let file = env.disk().open(&path, firn_env::OpenMode::Read).await.unwrap();
    let length = file.length().await.unwrap();
    (path, file.read_at(0, length as usize).await.unwrap().to_vec())
}

#[test]
fn a_file_of_a_newer_build_is_refused_and_neither_removed_nor_cut() {
    // Its head; the batch in its first frame.
    for is_batch in [false, true] {
        let simulation = Simulation::new(3);
        let env = simulation.machine("api").env();
        simulation
            .run(async move {
                let spool = Spool::open(&env, "usage", source(), SpoolConfig::default())
                    .await
                    .unwrap();
                spool.append(vec![observation(7)]).await.unwrap();
                drop(spool);
                env.sleep(std::time::Duration::from_secs(1)).await;
                let (path, whole) = only_file(&env).await;
                let at = match is_batch {
                    false => 0,
                    true => whole.windows(4).position(|four| four == b"FUSG").unwrap(),
                };
                let mut newer = whole.clone();
                newer[at + 4] = 2;
                let file = env
                    .disk()
                    .open(&path, firn_env::OpenMode::ReadWrite)
                    .await
                    .unwrap();
                file.write_and_sync(0, vec![newer.clone().into()]).await.unwrap();

                let opened = Spool::open(&env, "usage", source(), SpoolConfig::default()).await;
                let error = opened.err().expect("refused");
                assert!(matches!(error, SpoolError::Newer { found: 2, .. }), "{error}");
                let said = error.to_string();
                assert!(
                    said.contains("Nothing was changed") && said.contains("install that version"),
                    "{said}"
                );
                assert_eq!(only_file(&env).await, (path, newer));
            })
            .unwrap();
    }
}
