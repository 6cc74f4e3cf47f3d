use crate::{
    TaskEnded,
    sim::{Limits, Simulation, SimulationError},
};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Ten tasks that sleep, send each other numbers and use the disk; returns the trace hash and the order of arrivals.
fn busy_history(seed: u64) -> (u64, Vec<u64>) {
    let simulation = Simulation::new(seed);
    let env = simulation.machine("edge").env();
    let order = simulation
        .run(async move {
            let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
            for number in 0..10 {
                let (env, sender) = (env.clone(), sender.clone());
                let inner = env.clone();
                env.spawn("worker", async move {
                    let path = format!("file-{number}");
                    let file = inner
                        .disk()
                        .open(&path, crate::OpenMode::CreateNew)
                        .await
                        .expect("new");
                    inner.sleep(Duration::from_micros(inner.random_below(100))).await;
                    file.write_at(0, vec![Bytes::from_static(b"content")])
                        .await
                        .expect("space");
                    sender.send(number).await.expect("the receiver lives");
                });
            }
            drop(sender);
            let mut order = Vec::new();
            while let Some(number) = receiver.recv().await {
                order.push(number);
            }
            order
        })
        .expect("it ends");
    (simulation.trace_hash(), order)
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..50 {
        assert_eq!(busy_history(seed), busy_history(seed), "seed {seed}");
    }
}

#[test]
fn without_early_timers_no_time_passes_while_tasks_can_run() {
    let simulation = Simulation::new(1);
    simulation.set_early_timers(false);
    let env = simulation.env();
    let waited = simulation
        .run(async move {
            let sleeper = env.clone();
            let sleep = env.spawn(
                "sleeper",
                async move { sleeper.sleep(Duration::from_millis(1)).await },
            );
            for _ in 0..10_000 {
                env.spawn("step", async {}).await.expect("it ends");
            }
            let before = env.now();
            sleep.await.expect("it ends");
            (before, env.now().since(before))
        })
        .expect("it ends");
    assert_eq!(waited, (crate::Monotonic(0), Duration::from_millis(1)));
}

#[test]
fn other_seeds_are_other_runs() {
    let hashes: BTreeSet<u64> = (0..200).map(|seed| busy_history(seed).0).collect();
    assert_eq!(hashes.len(), 200);
    let orders: BTreeSet<Vec<u64>> = (0..200).map(|seed| busy_history(seed).1).collect();
    assert!(
        orders.len() > 150,
        "only {} interleavings in 200 runs",
        orders.len()
    );
}

#[test]
fn an_hour_passes_at_once_and_timers_fire_in_order() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    let fired = simulation
        .run(async move {
            let fired = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = [3600, 1, 60]
                .into_iter()
                .map(|seconds| {
                    let (fired, inner) = (fired.clone(), env.clone());
                    env.spawn("sleeper", async move {
                        inner.sleep(Duration::from_secs(seconds)).await;
                        fired.lock().expect("no panic").push(seconds);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ends");
            }
            fired.lock().expect("no panic").clone()
        })
        .expect("ends");
    assert_eq!(fired, [1, 60, 3600]);
    assert_eq!(simulation.elapsed(), Duration::from_secs(3600));
}

#[test]
fn a_timeout_drops_what_is_late_and_leaves_no_timer() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let late = env
                .timeout(Duration::from_secs(1), std::future::pending::<()>())
                .await;
            assert!(late.is_err());
            let soon = env
                .timeout(Duration::from_secs(1000), env.sleep(Duration::from_secs(1)))
                .await;
            assert!(soon.is_ok());
        })
        .expect("ends");
    assert_eq!(simulation.elapsed(), Duration::from_secs(2));
    let stuck = simulation.run(std::future::pending::<()>());
    assert!(matches!(stuck, Err(SimulationError::Deadlock { at, .. }) if at == Duration::from_secs(2)));
}

#[test]
fn a_deadlock_is_an_error_that_names_who_waits() {
    let simulation = Simulation::new(1);
    let env = simulation.machine("edge").env();
    let inner = env.clone();
    let error = simulation
        .run(async move {
            let never = env.spawn("waits for nobody", std::future::pending::<()>());
            inner.spawn("waits for nobody", std::future::pending::<()>());
            never.await
        })
        .expect_err("nothing can run");
    let SimulationError::Deadlock { live, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(live, &["edge/waits for nobody ×2"]);
}

#[test]
fn a_run_that_spins_or_waits_for_ever_is_given_up() {
    let limits = Limits {
        steps: 1000,
        time: Duration::from_secs(10),
    };
    let spinning = Simulation::with_limits(1, limits).run(async {
        loop {
            let mut yielded = false;
            std::future::poll_fn(|context| {
                if std::mem::replace(&mut yielded, true) {
                    return std::task::Poll::Ready(());
                }
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            })
            .await;
        }
    });
    assert!(matches!(
        spinning,
        Err::<(), _>(SimulationError::StepLimit { steps: 1000, .. })
    ));

    let simulation = Simulation::with_limits(1, limits);
    let env = simulation.env();
    let waiting = simulation.run(async move { env.sleep(Duration::from_secs(11)).await });
    assert!(matches!(waiting, Err(SimulationError::TimeLimit { .. })));
}

struct CountsDrop(Arc<AtomicU64>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_crash_drops_every_task_at_its_await_and_nothing_of_it_runs_again() {
    let simulation = Simulation::new(3);
    let machine = simulation.machine("edge");
    let (controller, old) = (simulation.env(), machine.env());
    let dropped = Arc::new(AtomicU64::new(0));
    let ticks = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let (env, guard, ticks) = (old.clone(), CountsDrop(dropped.clone()), ticks.clone());
            old.spawn("ticker", async move {
                for _ in 0..1000 {
                    env.sleep(Duration::from_secs(1)).await;
                    ticks.fetch_add(1, Ordering::Relaxed);
                    let _ = &guard;
                }
            })
        })
        .collect();
    let (counted, drops) = (ticks.clone(), dropped.clone());
    simulation
        .run(async move {
            controller.sleep(Duration::from_millis(2500)).await;
            machine.crash();
            for task in tasks {
                assert_eq!(task.await, Err(TaskEnded));
            }
            assert_eq!(drops.load(Ordering::Relaxed), 5);
            let before = counted.load(Ordering::Relaxed);
            machine.restart();
            // What still holds the old environment is a ghost: it neither runs nor returns.
            let ghost = old.spawn("ghost", async {});
            assert_eq!(ghost.await, Err(TaskEnded));
            let late = controller
                .timeout(Duration::from_secs(9), old.sleep(Duration::ZERO))
                .await;
            assert!(late.is_err());
            let late = controller
                .timeout(Duration::from_secs(9), old.disk().list(""))
                .await;
            assert!(late.is_err());
            assert_eq!(counted.load(Ordering::Relaxed), before);
        })
        .expect("ends");
    assert_eq!(ticks.load(Ordering::Relaxed), 10);
}

#[test]
fn an_armed_fault_point_crashes_at_the_chosen_hit_and_never_returns() {
    let simulation = Simulation::new(4);
    let machine = simulation.machine("edge");
    machine.crash_at("middle", 3);
    let passed = Arc::new(AtomicU64::new(0));
    let (env, count, watched) = (machine.env(), passed.clone(), machine.clone());
    simulation
        .run(async move {
            let inner = env.clone();
            let task = env.spawn("worker", async move {
                for _ in 0..10 {
                    inner.fault_point("middle").await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(task.await, Err(TaskEnded));
            assert!(!watched.is_running());
        })
        .expect("ends");
    assert_eq!(passed.load(Ordering::Relaxed), 2);
    assert_eq!(machine.faults().hits().get("middle"), Some(&3));
    assert_eq!(machine.faults().acted().get("middle"), Some(&1));
}

async fn fails_to_sync() {
    panic!("fsync failed")
}

#[test]
fn a_panic_ends_the_run_unless_the_machine_may_panic_which_then_is_a_crash() {
    let simulation = Simulation::new(5);
    let env = simulation.machine("edge").env();
    let error = simulation
        .run(async move { env.spawn("fragile", fails_to_sync()).await })
        .expect_err("a panic");
    assert_eq!(error.to_string(), "task fragile of edge panicked: fsync failed");

    let simulation = Simulation::new(5);
    let machine = simulation.machine("edge");
    machine.may_panic(true);
    let env = machine.env();
    let ended = simulation
        .run(async move { env.spawn("fragile", fails_to_sync()).await })
        .expect("the controller goes on");
    assert_eq!(ended, Err(TaskEnded));
    assert!(!machine.is_running());
    assert_eq!(machine.panics(), ["fragile: fsync failed"]);
}

#[test]
fn clocks_are_private_to_a_machine_and_monotonic_time_means_nothing_after_a_restart() {
    let simulation = Simulation::new(6);
    let (one, other) = (simulation.machine("one"), simulation.machine("other"));
    one.jump_wall(-3_600_000_000_000);
    let (first, second) = (one.env(), other.env());
    assert_eq!(second.wall().0 - first.wall().0, 3_600_000_000_000);
    let controller = simulation.env();
    simulation
        .run(async move {
            let before = first.now();
            first.sleep(Duration::from_secs(2)).await;
            assert_eq!(first.now().since(before), Duration::from_secs(2));
            controller.sleep(Duration::from_secs(100_000)).await;
            let before = first.now();
            one.crash();
            let again = one.restart();
            assert_ne!(again.now(), before);
        })
        .expect("ends");
}

#[test]
fn compute_gives_its_result_and_lets_others_in_between_at_times() {
    let interrupted = (0..100)
        .filter(|seed| {
            let simulation = Simulation::new(*seed);
            let env = simulation.machine("edge").env();
            simulation
                .run(async move {
                    let (count, inner) = (Arc::new(AtomicU64::new(0)), env.clone());
                    let other = count.clone();
                    let task = env.spawn("other", async move { other.store(1, Ordering::Relaxed) });
                    assert_eq!(inner.compute(|| 6 * 7).await, 42);
                    let seen = count.load(Ordering::Relaxed);
                    task.await.expect("ends");
                    seen == 1
                })
                .expect("ends")
        })
        .count();
    assert!((1..60).contains(&interrupted), "{interrupted} of 100");
}

#[test]
fn observations_reach_the_observer_at_once() {
    let simulation = Simulation::new(1);
    let machine = simulation.machine("edge");
    let env = machine.env();
    env.observe("applied", 1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    machine
        .faults()
        .set_observer(move |name, value| log.lock().expect("no panic").push((name, value)));
    env.observe("applied", 2);
    assert_eq!(*seen.lock().expect("no panic"), [("applied", 2)]);
}
