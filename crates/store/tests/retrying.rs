//! Retrying, limiting and metering, on virtual time.

mod scripted;

use bytes::Bytes;
use firn_env::{Env, sim::Simulation};
use firn_store::{
    FaultConfig, Faults, Faulty, MemoryStore, Metered, ObjectKey, Outage, PutMode, RetryPolicy, Retrying,
    Stack, StackConfig, Store, StoreError, UploadLimit, UploadSchedule,
};
use proptest::prelude::*;
use scripted::{Act, Scripted};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name)
}

fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    seed: u64,
    scenario: impl FnOnce(Env) -> F,
) -> T {
    let simulation = Simulation::new(seed);
    simulation
        .run(scenario(simulation.env()))
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// A retrying store over a metered one over the script.
fn layered(env: &Env, store: Arc<dyn Store>, policy: RetryPolicy) -> (Retrying, firn_store::Meter) {
    let metered = Metered::new(store);
    let meter = metered.meter();
    (Retrying::new(env, Arc::new(metered), policy), meter)
}

#[test]
fn a_store_that_is_unavailable_for_a_while_is_asked_until_it_answers_and_every_try_is_counted() {
    simulate(1, |env| async move {
        let scripted = Scripted::new(&env, Act::Do, [Act::Refuse; 5]);
        let (store, meter) = layered(&env, scripted, RetryPolicy::default());
        store
            .put(&key("a"), vec!["abc".into()], PutMode::Create)
            .await
            .expect("at last");
        let usage = meter.usage();
        assert_eq!((usage.puts, usage.failures, usage.bytes_up), (6, 5, 18));
        assert_eq!(store.statistics().retries, 5);
    });
}

#[test]
fn what_will_not_change_by_itself_is_not_asked_again() {
    simulate(2, |env| async move {
        let scripted = Scripted::new(&env, Act::Do, [Act::Deny]);
        let (store, meter) = layered(&env, scripted, RetryPolicy::default());
        assert!(matches!(
            store.get(&key("a")).await,
            Err(StoreError::Denied { .. })
        ));
        assert!(matches!(
            store.get(&key("a")).await,
            Err(StoreError::NotFound { .. })
        ));
        store
            .put(&key("a"), vec!["x".into()], PutMode::Create)
            .await
            .expect("created");
        let again = store.put(&key("a"), vec!["x".into()], PutMode::Create).await;
        assert!(
            matches!(again, Err(StoreError::AlreadyExists { .. })),
            "told by its first try"
        );
        let usage = meter.usage();
        assert_eq!((usage.gets, usage.puts), (2, 2), "and nothing is read back");
    });
}

#[test]
fn tries_and_their_time_are_bounded_when_nobody_answers() {
    simulate(3, |env| async move {
        let scripted = Scripted::new(&env, Act::Hang, []);
        let policy = RetryPolicy {
            tries_max: 4,
            try_deadline_ms: 1000,
            try_deadline_max_ms: 3000,
            pause_ms: 100,
            pause_max_ms: 150,
            ..RetryPolicy::default()
        };
        let (store, meter) = layered(&env, scripted, policy);
        let start = env.now();
        let error = store.head(&key("a")).await.expect_err("nobody answers");
        assert!(error.is_transient());
        // 1 + 2 + 3 + 3 seconds, and three pauses below 100, 150 and 150 ms.
        let took = env.now().since(start).as_millis();
        assert!((9000..9400).contains(&took), "{took} ms");
        assert_eq!(
            (
                meter.usage().heads,
                store.statistics().timeouts,
                store.statistics().gave_up
            ),
            (4, 4, 1)
        );
    });
}

#[test]
fn an_overall_deadline_ends_a_request_in_mid_try() {
    simulate(4, |env| async move {
        let scripted = Scripted::new(&env, Act::Hang, []);
        let policy = RetryPolicy {
            give_up_after_ms: Some(5000),
            try_deadline_ms: 2000,
            tries_max: u32::MAX,
            ..RetryPolicy::default()
        };
        let (store, _) = layered(&env, scripted, policy);
        let start = env.now();
        store.head(&key("a")).await.expect_err("nobody answers");
        let took = env.now().since(start).as_millis();
        assert!((2000..=5000).contains(&took), "{took} ms");
    });
}

#[test]
fn a_large_object_is_given_the_time_that_a_slow_line_takes() {
    simulate(5, |env| async move {
        // 40 s for 4 MiB: far above the deadline of an empty request.
        let scripted = Scripted::new(&env, Act::Take(Duration::from_secs(40)), []);
        let (store, _) = layered(&env, scripted, RetryPolicy::default());
        let segment = Bytes::from(vec![1; 4 << 20]);
        store
            .put(&key("a"), vec![segment], PutMode::Create)
            .await
            .expect("in time");
        assert_eq!(store.statistics().timeouts, 0);
        store
            .head(&key("a"))
            .await
            .expect("40 s are below the doubled doubled deadline");
        assert_eq!(store.statistics().timeouts, 2);
    });
}

#[test]
fn a_create_whose_reply_was_lost_has_succeeded_iff_the_content_is_ours() {
    simulate(6, |env| async move {
        let scripted = Scripted::new(&env, Act::Do, [Act::DoAndHang]);
        let (store, meter) = layered(&env, scripted.clone(), RetryPolicy::default());
        let parts = vec!["one".into(), "".into(), "two".into()];
        store
            .put(&key("a"), parts, PutMode::Create)
            .await
            .expect("it was ours");
        assert_eq!(
            (
                meter.usage().puts,
                meter.usage().gets,
                store.statistics().read_back
            ),
            (2, 1, 1)
        );

        // Somebody else's object of the same name and size.
        scripted
            .inner
            .put(&key("b"), vec!["theirs".into()], PutMode::Create)
            .await
            .expect("created");
        scripted
            .script
            .lock()
            .expect("no panic under this lock")
            .push_back(Act::Hang);
        let told = store.put(&key("b"), vec!["ours!!".into()], PutMode::Create).await;
        assert!(matches!(told, Err(StoreError::AlreadyExists { .. })), "{told:?}");
        for (name, ours) in [("c", "their"), ("d", "theirs and more")] {
            scripted
                .inner
                .put(&key(name), vec!["theirs".into()], PutMode::Create)
                .await
                .expect("created");
            scripted
                .script
                .lock()
                .expect("no panic under this lock")
                .push_back(Act::Refuse);
            let told = store.put(&key(name), vec![ours.into()], PutMode::Create).await;
            assert!(
                matches!(told, Err(StoreError::AlreadyExists { .. })),
                "{ours}: {told:?}"
            );
        }
    });
}

#[test]
fn a_create_that_cannot_be_read_back_is_tried_further() {
    simulate(7, |env| async move {
        // Lost reply; then "exists", and the reading back fails; then "exists", and it succeeds.
        let script = [Act::DoAndHang, Act::Do, Act::Refuse, Act::Do, Act::Do];
        let scripted = Scripted::new(&env, Act::Deny, script);
        let (store, meter) = layered(&env, scripted, RetryPolicy::default());
        store
            .put(&key("a"), vec!["x".into()], PutMode::Create)
            .await
            .expect("it was ours");
        assert_eq!((meter.usage().puts, meter.usage().gets), (3, 2));
    });
}

#[test]
fn requests_under_way_are_bounded_and_uploads_do_not_hold_up_reads() {
    simulate(8, |env| async move {
        let scripted = Scripted::new(&env, Act::Take(Duration::from_secs(1)), []);
        let policy = RetryPolicy {
            reads_at_once: 3,
            writes_at_once: 2,
            ..RetryPolicy::default()
        };
        let (store, _) = layered(&env, scripted.clone(), policy);
        let store = Arc::new(store);
        let start = env.now();
        let writers: Vec<_> = (0..20)
            .map(|number| {
                let store = store.clone();
                env.spawn("writer", async move {
                    let name = key(&format!("o{number}"));
                    store.put(&name, vec!["x".into()], PutMode::Create).await
                })
            })
            .collect();
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let (env, store) = (env.clone(), store.clone());
                env.clone().spawn("reader", async move {
                    store.head(&key("none")).await.expect_err("absent");
                    env.now()
                })
            })
            .collect();
        for reader in readers {
            let waited = reader.await.expect("a reader returns").since(start);
            assert!(
                waited <= Duration::from_secs(2),
                "six reads, three at once: {waited:?}"
            );
        }
        for writer in writers {
            writer.await.expect("a writer returns").expect("created");
        }
        assert_eq!(env.now().since(start).as_secs(), 10, "twenty writes, two at once");
        let now = scripted.now.lock().expect("no panic under this lock");
        assert_eq!((now.most_reads, now.most_writes), (3, 2));
    });
}

#[test]
fn a_request_that_its_caller_drops_gives_its_turn_back() {
    simulate(9, |env| async move {
        let scripted = Scripted::new(&env, Act::Do, [Act::Hang]);
        let policy = RetryPolicy {
            writes_at_once: 1,
            ..RetryPolicy::default()
        };
        let (store, _) = layered(&env, scripted, policy);
        let name = key("a");
        let dropped = store.put(&name, vec!["x".into()], PutMode::Create);
        env.timeout(Duration::from_secs(1), dropped)
            .await
            .expect_err("it hangs");
        store
            .put(&key("b"), vec!["x".into()], PutMode::Create)
            .await
            .expect("the turn is free");
    });
}

#[test]
fn pauses_double_up_to_their_bound_and_clients_do_not_return_together() {
    let pauses = |seed| {
        simulate(seed, |env| async move {
            let scripted = Scripted::new(&env, Act::Do, [Act::Refuse; 9]);
            let policy = RetryPolicy {
                tries_max: 10,
                pause_ms: 100,
                pause_max_ms: 2000,
                ..RetryPolicy::default()
            };
            let (store, _) = layered(&env, scripted, policy);
            let start = env.now();
            store.list("", None).await.expect("at last");
            env.now().since(start)
        })
    };
    let mut totals: Vec<Duration> = (0..200).map(pauses).collect();
    // The bounds add up to 0.1+0.2+0.4+0.8+1.6+4×2 = 11.1 s, and full jitter takes half of each on average.
    let mean = totals.iter().sum::<Duration>() / 200;
    assert!((5.2..5.9).contains(&mean.as_secs_f64()), "{mean:?}");
    assert!(totals.iter().all(|total| total.as_secs_f64() < 11.1));
    totals.sort();
    totals.dedup();
    assert_eq!(totals.len(), 200);
}

/// The simulation's clocks start on Thursday 2026-01-01 00:00 UTC.
fn limit(env: &Env, rules: &[&str]) -> Arc<UploadLimit> {
    let schedule = UploadSchedule {
        rules: rules
            .iter()
            .map(|rule| rule.parse().expect("a valid rule"))
            .collect(),
        ..UploadSchedule::default()
    };
    Arc::new(UploadLimit::new(env, schedule))
}

#[test]
fn uploads_keep_to_the_limit_on_average_and_downloads_know_of_none() {
    simulate(10, |env| async move {
        let (store, _) = layered(&env, Arc::new(MemoryStore::new(&env)), RetryPolicy::default());
        let store = store.with_upload_limit(limit(&env, &["10 Mbit/s"]));
        let start = env.now();
        for number in 0..100 {
            let segment = Bytes::from(vec![1; 1_000_000]);
            store
                .put(&key(&format!("o{number}")), vec![segment], PutMode::Create)
                .await
                .expect("created");
        }
        // 800 Mbit, the last of which need not be waited for.
        let took = env.now().since(start).as_secs_f64();
        assert!((79.0..80.5).contains(&took), "{took}");
        let start = env.now();
        for number in 0..100 {
            store.get(&key(&format!("o{number}"))).await.expect("there");
        }
        assert!(env.now().since(start).as_secs_f64() < 0.1);
    });
}

#[test]
fn waiting_for_the_upload_limit_is_not_a_timeout() {
    simulate(11, |env| async move {
        let (store, meter) = layered(&env, Arc::new(MemoryStore::new(&env)), RetryPolicy::default());
        let store = Arc::new(store.with_upload_limit(limit(&env, &["64 kbit/s"])));
        let start = env.now();
        let puts: Vec<_> = (0..10)
            .map(|number| {
                let store = store.clone();
                env.spawn("put", async move {
                    let segment = Bytes::from(vec![1; 4 << 20]);
                    store
                        .put(&key(&format!("o{number}")), vec![segment], PutMode::Create)
                        .await
                })
            })
            .collect();
        for put in puts {
            put.await.expect("a put returns").expect("slow, but no failure");
        }
        assert!(env.now().since(start) > Duration::from_secs(4000));
        assert_eq!((meter.usage().puts, store.statistics().timeouts), (10, 0));
    });
}

#[test]
fn the_night_uploads_what_the_day_held_back() {
    simulate(12, |env| async move {
        let (store, _) = layered(&env, Arc::new(MemoryStore::new(&env)), RetryPolicy::default());
        let store = store.with_upload_limit(limit(&env, &["Mon-Fri 08:00-18:00 1 Mbit/s"]));
        env.sleep(Duration::from_secs(17 * 3600 + 55 * 60)).await;
        let start = env.now();
        for number in 0..200 {
            let segment = Bytes::from(vec![1; 1_000_000]);
            store
                .put(&key(&format!("o{number}")), vec![segment], PutMode::Create)
                .await
                .expect("created");
        }
        // At the day's rate it would take 1600 s; at six in the evening, five minutes on, the rest goes at once.
        let took = env.now().since(start).as_secs();
        assert!((300..=331).contains(&took), "{took}");
    });
}

#[test]
fn a_dropped_waiter_neither_owes_nor_blocks() {
    simulate(13, |env| async move {
        let limit = limit(&env, &["1 Mbit/s"]);
        limit.admit(1_000_000).await;
        let start = env.now();
        for _ in 0..3 {
            let waiting = limit.admit(100_000_000);
            env.timeout(Duration::from_secs(1), waiting)
                .await
                .expect_err("8 s are owed");
        }
        limit.admit(1).await;
        let took = env.now().since(start).as_millis();
        assert!((7990..8100).contains(&took), "{took} ms");
    });
}

#[test]
fn an_outage_of_an_hour_costs_a_bounded_number_of_requests() {
    simulate(14, |env| async move {
        let config = FaultConfig {
            faults: Faults {
                outage: Outage::Refuse,
                latency_ms: 12,
                ..Faults::default()
            },
            ..FaultConfig::default()
        };
        let faulty = Faulty::new(&env, Arc::new(MemoryStore::new(&env)), config).expect("it makes sense");
        let control = faulty.control();
        let stack = Stack::new(&env, Arc::new(faulty), StackConfig::default());
        let start = env.now();
        let mut calls = 0;
        while env.now().since(start) < Duration::from_secs(3600) {
            calls += 1;
            let put = stack
                .store
                .put(&key("a"), vec!["x".into()], PutMode::Create)
                .await;
            assert!(put.expect_err("an outage").is_transient());
        }
        let tries = stack.meter.usage().puts;
        assert_eq!(tries, calls * 8);
        assert!(tries < 3600, "{tries} requests in an hour");
        control.set_outage(Outage::None);
        stack
            .store
            .put(&key("a"), vec!["x".into()], PutMode::Create)
            .await
            .expect("over");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// One client on a store that loses requests and replies: every request succeeds in the end and has the effect it would
    /// have had on a faultless store. (Late requests are excluded: they may overtake later ones, which is why names are not
    /// used twice.)
    #[test]
    fn over_any_unreliable_line_a_client_sees_a_reliable_store(
        seed in any::<u64>(),
        refused in 0.0..0.3, lost_request in 0.0..0.2, lost_reply in 0.0..0.2, torn in 0.0..0.2,
        steps in proptest::collection::vec((0..6_u8, 0..5_u8), 1..40),
    ) {
        simulate(seed, |env| async move {
            let faults = Faults {
                latency_ms: 12,
                jitter_ms: 5,
                unavailable: refused,
                lost_request,
                lost_reply,
                torn,
                ..Faults::default()
            };
            let config = StackConfig {
                retry: RetryPolicy { tries_max: 1000, ..RetryPolicy::default() },
                ..StackConfig::default()
            };
            let faults = FaultConfig { seed, faults, ..FaultConfig::default() };
            let faulty = Faulty::new(&env, Arc::new(MemoryStore::new(&env)), faults).expect("it makes sense");
            let stack = Stack::new(&env, Arc::new(faulty), config);
            let mut model: BTreeMap<ObjectKey, Bytes> = BTreeMap::new();
            for (number, (action, name)) in steps.into_iter().enumerate() {
                let name = key(&format!("o{name}"));
                let content = Bytes::from(format!("content {number}"));
                match action {
                    0 | 1 => {
                        let put = stack.store.put(&name, vec![content.clone()], PutMode::Create).await;
                        match put {
                            Ok(()) => assert_eq!(model.insert(name, content), None),
                            Err(StoreError::AlreadyExists { .. }) => assert!(model.contains_key(&name)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    2 => {
                        stack.store.put(&name, vec![content.clone()], PutMode::Overwrite).await.expect("in the end");
                        model.insert(name, content);
                    }
                    3 => {
                        stack.store.delete(&name).await.expect("in the end");
                        model.remove(&name);
                    }
                    4 => match stack.store.get(&name).await {
                        Ok(content) => assert_eq!(Some(&content), model.get(&name)),
                        Err(StoreError::NotFound { .. }) => assert!(!model.contains_key(&name)),
                        Err(error) => panic!("{error}"),
                    },
                    _ => {
                        let page = stack.store.list("", None).await.expect("in the end");
                        assert!(page.objects.iter().map(|object| &object.key).eq(model.keys()));
                    }
                }
            }
        });
    }
}
