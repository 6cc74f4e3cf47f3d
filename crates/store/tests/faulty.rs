//! Each fault does what its name says, no more, and the same again for the same seed.

use bytes::Bytes;
use firn_env::{Env, sim::Simulation};
use firn_store::{
    FaultConfig, FaultControl, Faults, Faulty, MemoryStore, ObjectKey, Outage, Phase, PutMode, Store,
    StoreError,
};
use std::{sync::Arc, time::Duration};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name)
}

struct World {
    env: Env,
    inner: Arc<MemoryStore>,
    store: Faulty,
    control: FaultControl,
}

impl World {
    fn new(env: &Env, config: FaultConfig) -> Self {
        let inner = Arc::new(MemoryStore::new(env));
        let store = Faulty::new(env, inner.clone(), config).expect("it makes sense");
        let control = store.control();
        Self {
            env: env.clone(),
            inner,
            store,
            control,
        }
    }

    async fn put(&self, name: &str, content: impl Into<Bytes>) -> Result<(), StoreError> {
        self.store
            .put(&key(name), vec![content.into()], PutMode::Create)
            .await
    }

    async fn timed<T>(&self, request: impl Future<Output = T>) -> (T, u64) {
        let start = self.env.now();
        let result = request.await;
        let took = self.env.now().since(start).as_millis();
        (result, u64::try_from(took).expect("short"))
    }

    fn holds(&self, name: &str) -> bool {
        self.inner.contents().contains_key(&key(name))
    }
}

fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    faults: Faults,
    scenario: impl FnOnce(World) -> F,
) -> T {
    let simulation = Simulation::new(1);
    let config = FaultConfig {
        seed: 1,
        faults,
        phases: Vec::new(),
    };
    let world = World::new(&simulation.env(), config);
    simulation.run(scenario(world)).expect("it ends")
}

fn is_unavailable<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable { .. }))
}

#[test]
fn latency_and_bandwidth_take_the_time_they_say() {
    let faults = Faults {
        latency_ms: 30,
        up_bits_per_second: Some(8_000_000),
        down_bits_per_second: Some(80_000_000),
        ..Faults::default()
    };
    simulate(faults, |world| async move {
        let megabyte = Bytes::from(vec![1; 1_000_000]);
        let (_, took) = world.timed(world.put("a", megabyte)).await;
        assert_eq!(took, 1030);
        let (_, took) = world.timed(world.store.get(&key("a"))).await;
        assert_eq!(took, 130);
        let (_, took) = world.timed(world.store.get_range(&key("a"), 10, 100_000)).await;
        assert_eq!(took, 40);
        let (_, took) = world.timed(world.store.head(&key("a"))).await;
        assert_eq!(took, 30);
        // Two at once share the line.
        let name = key("a");
        let both = futures::future::join(world.store.get(&name), world.store.get(&name));
        let (_, took) = world.timed(both).await;
        assert_eq!(took, 230);
    });
}

#[test]
fn one_connection_does_not_fill_a_line_and_several_do() {
    let faults = Faults {
        latency_ms: 30,
        down_bits_per_second: Some(80_000_000),
        connection_bits_per_second: Some(20_000_000),
        ..Faults::default()
    };
    simulate(faults, |world| async move {
        let megabyte = Bytes::from(vec![1; 1_000_000]);
        let (_, took) = world.timed(world.put("a", megabyte)).await;
        assert_eq!(took, 430, "the line up has no limit, the connection has");
        let name = key("a");
        let (_, took) = world.timed(world.store.get(&name)).await;
        assert_eq!(took, 430);
        let (_, took) = world
            .timed(futures::future::join_all((0..4).map(|_| world.store.get(&name))))
            .await;
        assert_eq!(took, 430, "four connections just fill the line");
        let (_, took) = world
            .timed(futures::future::join_all((0..8).map(|_| world.store.get(&name))))
            .await;
        assert_eq!(took, 830, "eight wait for the line");
    });
}

#[test]
fn a_refused_lost_or_torn_put_is_not_done_and_one_whose_reply_is_lost_is() {
    let one = |change: fn(&mut Faults)| {
        let mut faults = Faults {
            timeout_ms: 5000,
            latency_ms: 10,
            ..Faults::default()
        };
        change(&mut faults);
        simulate(faults, |world| async move {
            let (result, took) = world.timed(world.put("a", "content")).await;
            assert!(is_unavailable(result));
            let injected: Vec<_> = world.control.injected().into_iter().collect();
            (world.holds("a"), took, injected)
        })
    };
    assert_eq!(
        one(|faults| faults.unavailable = 1.0),
        (false, 10, vec![("unavailable", 1)])
    );
    assert_eq!(
        one(|faults| faults.lost_request = 1.0),
        (false, 5005, vec![("lost_request", 1)])
    );
    assert_eq!(one(|faults| faults.torn = 1.0), (false, 5, vec![("torn", 1)]));
    assert_eq!(
        one(|faults| faults.lost_reply = 1.0),
        (true, 5005, vec![("lost_reply", 1)])
    );
    assert_eq!(
        one(|faults| faults.outage = Outage::Refuse),
        (false, 10, vec![("outage", 1)])
    );
    assert_eq!(
        one(|faults| faults.outage = Outage::Hang),
        (false, 5000, vec![("outage", 1)])
    );
}

#[test]
fn a_late_put_is_done_after_its_caller_gave_up() {
    let faults = Faults {
        late: 1.0,
        late_ms: 60_000,
        timeout_ms: 1,
        ..Faults::default()
    };
    simulate(faults, |world| async move {
        assert!(is_unavailable(world.put("a", "content").await));
        assert!(!world.holds("a"));
        world.env.sleep(Duration::from_secs(60)).await;
        assert!(world.holds("a"));
    });
}

#[test]
fn a_torn_get_fails_and_a_corrupt_one_differs_in_one_bit() {
    simulate(Faults::default(), |world| async move {
        let content = Bytes::from(vec![0; 10_000]);
        world.put("a", content.clone()).await.expect("no faults yet");
        let torn = Faults {
            torn: 1.0,
            ..Faults::default()
        };
        world.control.set(torn).expect("it makes sense");
        assert!(is_unavailable(world.store.get(&key("a")).await));
        world
            .store
            .head(&key("a"))
            .await
            .expect("a head has no bytes to tear");
        let corrupt = Faults {
            corrupt: 1.0,
            ..Faults::default()
        };
        world.control.set(corrupt).expect("it makes sense");
        for _ in 0..100 {
            let got = world.store.get(&key("a")).await.expect("corrupt, not failed");
            assert_eq!(got.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        }
        world.control.reset();
        assert_eq!(
            world.store.get(&key("a")).await.expect("what is stored is whole"),
            content
        );
    });
}

#[test]
fn a_new_object_comes_into_view_late_but_its_name_is_taken_at_once() {
    let faults = Faults {
        invisible: 1.0,
        invisible_ms: 5000,
        ..Faults::default()
    };
    simulate(faults, |world| async move {
        world.put("a", "content").await.expect("done");
        let is_not_found = |error| matches!(error, StoreError::NotFound { .. });
        assert!(is_not_found(
            world.store.get(&key("a")).await.expect_err("hidden")
        ));
        assert!(is_not_found(
            world.store.get_range(&key("a"), 0, 1).await.expect_err("hidden")
        ));
        assert!(is_not_found(
            world.store.head(&key("a")).await.expect_err("hidden")
        ));
        assert!(
            world
                .store
                .list("", None)
                .await
                .expect("listed")
                .objects
                .is_empty()
        );
        let again = world.put("a", "other").await;
        assert!(
            matches!(again, Err(StoreError::AlreadyExists { .. })),
            "{again:?}"
        );
        world.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(world.store.get(&key("a")).await.expect("seen"), "content");
        let parts = vec!["newer".into()];
        world
            .store
            .put(&key("a"), parts, PutMode::Overwrite)
            .await
            .expect("done");
        assert_eq!(
            world
                .store
                .get(&key("a"))
                .await
                .expect("an old name stays in view"),
            "newer"
        );
    });
}

#[test]
fn a_rolled_back_prefix_shows_what_it_held_and_the_rest_is_untouched() {
    simulate(Faults::default(), |world| async move {
        for name in ["p/old", "p/changed", "q/kept"] {
            world.put(name, name.to_owned()).await.expect("created");
        }
        let then = world.control.remember("p/").await.expect("remembered");
        world.put("p/new", "new").await.expect("created");
        world.put("q/new", "new").await.expect("created");
        world.store.delete(&key("p/old")).await.expect("deleted");
        let parts = vec!["other".into()];
        world
            .store
            .put(&key("p/changed"), parts, PutMode::Overwrite)
            .await
            .expect("done");
        world.control.roll_back(then).await.expect("rolled back");
        let contents = world.inner.contents();
        let shown: Vec<_> = contents
            .iter()
            .map(|(key, content)| (key.as_str(), &content[..]))
            .collect();
        assert_eq!(
            shown,
            [
                ("p/changed", &b"p/changed"[..]),
                ("p/old", b"p/old"),
                ("q/kept", b"q/kept"),
                ("q/new", b"new"),
            ]
        );
    });
}

#[test]
fn damage_is_one_bit_and_for_good() {
    simulate(Faults::default(), |world| async move {
        world.put("a", vec![0; 10]).await.expect("created");
        world.control.damage(&key("a"), 3).await.expect("damaged");
        let got = world.store.get(&key("a")).await.expect("there");
        assert_eq!(&got[..], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let nowhere = world.control.damage(&key("a"), 10).await;
        assert!(matches!(nowhere, Err(StoreError::Invalid { .. })), "{nowhere:?}");
    });
}

#[test]
fn the_timetable_and_the_switchboard_change_faults_while_it_runs() {
    let simulation = Simulation::new(1);
    let config = FaultConfig {
        phases: vec![
            Phase {
                from_ms: 10_000,
                faults: Faults {
                    outage: Outage::Refuse,
                    ..Faults::default()
                },
            },
            Phase {
                from_ms: 20_000,
                faults: Faults::default(),
            },
        ],
        ..FaultConfig::default()
    };
    let world = World::new(&simulation.env(), config);
    let scenario = async move {
        world.put("a", "x").await.expect("before the outage");
        world.env.sleep(Duration::from_secs(10)).await;
        assert!(is_unavailable(world.store.get(&key("a")).await));
        world.control.set(Faults::default()).expect("it makes sense");
        world.store.get(&key("a")).await.expect("switched off by hand");
        world.control.reset();
        assert!(is_unavailable(world.store.get(&key("a")).await));
        world.env.sleep(Duration::from_secs(10)).await;
        world.store.get(&key("a")).await.expect("after the outage");
        world.control.set_outage(Outage::Refuse);
        assert!(is_unavailable(world.store.get(&key("a")).await));
        let nonsense = Faults {
            torn: 2.0,
            ..Faults::default()
        };
        assert!(world.control.set(nonsense).is_err());
    };
    simulation.run(scenario).expect("it ends");
}

#[test]
fn the_same_seed_gives_the_same_faults_and_another_seed_others() {
    let run = |seed| {
        let simulation = Simulation::new(1);
        let faults = Faults {
            latency_ms: 10,
            jitter_ms: 10,
            slow: 0.1,
            unavailable: 0.2,
            lost_reply: 0.1,
            torn: 0.1,
            corrupt: 0.1,
            ..Faults::default()
        };
        let config = FaultConfig {
            seed,
            faults,
            phases: Vec::new(),
        };
        let world = World::new(&simulation.env(), config);
        let outcome = simulation
            .run(async move {
                let mut outcome = Vec::new();
                for number in 0..200 {
                    let name = format!("o{}", number % 20);
                    let put = world.put(&name, "some content").await;
                    let get = world.store.get(&key(&name)).await;
                    outcome.push(format!("{put:?} {get:?} {:?}", world.env.now()));
                }
                (outcome, world.control.injected())
            })
            .expect("it ends");
        (outcome, simulation.trace_hash())
    };
    let (outcome, hash) = run(5);
    assert_eq!(run(5), (outcome.clone(), hash));
    assert_ne!(run(6).0, outcome);
    for fault in ["unavailable", "lost_reply", "torn", "corrupt"] {
        assert!(outcome.1[fault] > 3, "{fault}: {:?}", outcome.1);
    }
}

#[test]
fn chances_are_met_in_the_long_run() {
    let faults = Faults {
        unavailable: 0.25,
        latency_ms: 10,
        jitter_ms: 20,
        ..Faults::default()
    };
    simulate(faults, |world| async move {
        let (mut refused, mut total_ms) = (0, 0);
        for _ in 0..4000 {
            let (result, took) = world.timed(world.store.head(&key("none"))).await;
            refused += u32::from(is_unavailable(result));
            total_ms += took;
        }
        assert!((900..1100).contains(&refused), "{refused} of 4000 at a quarter");
        // 10 ms and an exponential of mean 20 ms, rounded down.
        assert!((110_000..130_000).contains(&total_ms), "{total_ms} ms");
    });
}
