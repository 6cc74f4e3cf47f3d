//! A cleaner beside the offices of a history: without keys, on a machine of its own, stopped at any point, and slow.

use super::{Shared, lock};
use crate::world::World;
use firn_anchor::Anchor;
use firn_cleaner::{CleanError, Cleaner, Limits, Report};
use firn_env::{
    Env, TaskEnded,
    sim::{Machine, Seeded, Simulation},
};
use firn_format::SegmentId;
use firn_store::MemoryStore;
use firn_table::FaultRates;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// How long a segment stays at least after it was retired.
const GRACE_MIN: Duration = Duration::from_secs(20);

/// Runs at the end, after each of which the grace passes: what the first retires the others delete.
const LAST_RUNS: usize = 4;

pub struct Cleaning {
    machine: Machine,
    world: Arc<World>,
    told: Shared,
    chosen: Mutex<Seeded>,
}

impl Cleaning {
    pub fn new(simulation: &Simulation, world: Arc<World>, told: Shared, seed: u64) -> Self {
        Self {
            machine: simulation.machine("cleaner"),
            world,
            told,
            chosen: Mutex::new(Seeded::new(seed, 50)),
        }
    }

    fn chosen(&self) -> std::sync::MutexGuard<'_, Seeded> {
        self.chosen.lock().unwrap()
    }

    /// Cleans again and again.
    pub async fn go_on(&self, env: &Env) {
        loop {
            let pause = self
                .chosen()
                .duration(Duration::from_secs(1), Duration::from_secs(15));
            env.sleep(pause).await;
            if !self.machine.is_running() {
                self.machine.restart();
            }
            let (rates, limits, kill) = {
                let mut chosen = self.chosen();
                if chosen.chance(1, 6) {
                    self.machine.crash_at_any(chosen.between(1, 25));
                }
                let slowest = *chosen.pick(&[30, 30, 1000, 8000]);
                let rates = FaultRates {
                    throttle_per_mille: 3,
                    lose_reply_per_mille: 3,
                    late_per_mille: 3,
                    late_requests: 4,
                    delay: Duration::from_millis(1)..=Duration::from_millis(slowest),
                };
                let limits = Limits {
                    grace: chosen.duration(GRACE_MIN, 3 * GRACE_MIN),
                    free_per_mille: *chosen.pick(&[0, 100, 400]),
                    cold_free_per_mille: *chosen.pick(&[0, 100]),
                    batch_bytes: *chosen.pick(&[16 << 10, 1 << 20]),
                    cache_bytes: *chosen.pick(&[4 << 10, 1 << 20]),
                    segment_bytes: *chosen.pick(&[16 << 10, 256 << 10]),
                    cleaner_lease: Duration::from_secs(120),
                    ..Limits::default()
                };
                let kill = chosen
                    .chance(1, 8)
                    .then(|| chosen.duration(Duration::from_millis(1), Duration::from_secs(5)));
                (rates, limits, kill)
            };
            let began = env.now();
            let run = self.run(rates, limits);
            let ended = match kill {
                None => run.await,
                Some(after) => {
                    let ended = env.timeout(after, run).await;
                    if ended.is_err() {
                        self.machine.kill();
                    }
                    ended.unwrap_or(Err(TaskEnded))
                }
            };
            self.machine.faults().disarm();
            // Who takes longer than others wait may find what it looked at gone, as a reader may.
            self.note(ended, env.now().since(began) < GRACE_MIN);
        }
    }

    /// Once nobody changes anything any more.
    pub async fn finish(&self, env: &Env) {
        self.machine.faults().disarm();
        self.machine.kill();
        self.machine.restart();
        for _ in 0..LAST_RUNS {
            let limits = Limits {
                grace: GRACE_MIN,
                cleaner_lease: Duration::from_secs(1),
                ..Limits::default()
            };
            let ended = self.run(FaultRates::default(), limits).await;
            self.note(ended, true);
            env.sleep(2 * GRACE_MIN).await;
        }
        let archive = self.world.archive().expect("a history that is cleaned has one");
        let mut told = lock(&self.told);
        told.add("segments put", segments(&archive));
        told.add("segments left", segments(&self.world.store()));
    }

    /// One run, on the machine.
    fn run(
        &self,
        rates: FaultRates,
        limits: Limits,
    ) -> impl Future<Output = Result<Result<Report, CleanError>, TaskEnded>> + 'static {
        let env = self.machine.env();
        let table = self.world.table().connect(&env);
        table.set_rates(rates);
        let parts = self.world.parts_in(&env);
        let anchor = Anchor::new(table, env.clone(), parts.anchor.family());
        let inside = env.clone();
        env.spawn("clean", async move {
            Cleaner::new(&inside, parts.store, &anchor, limits).run().await
        })
    }

    fn note(&self, ended: Result<Result<Report, CleanError>, TaskEnded>, in_time: bool) {
        let mut told = lock(&self.told);
        match ended {
            Ok(Ok(report)) => {
                told.count("cleaner runs");
                told.add("segments retired", report.retired_segments);
                told.add("segments deleted", report.deleted_segments);
                told.add("objects moved", report.moved_objects);
                told.add("segments left to their writers", report.uncommitted_segments);
                let is_strange = report.foreign.count + report.unclaimed.count > 0;
                if is_strange || (in_time && !report.damaged.is_empty()) {
                    let found = (&report.damaged, &report.foreign, &report.unclaimed);
                    told.violate(format!("the cleaner found {found:?}"));
                }
            }
            Ok(Err(CleanError::Damaged(damage))) if in_time => {
                told.violate(format!("the cleaner found {damage}"));
            }
            // It comes again.
            Ok(Err(_)) => told.count("cleaner runs that failed"),
            Err(TaskEnded) => told.count("cleaners that died"),
        }
    }
}

/// How many segments lie in a store.
fn segments(store: &MemoryStore) -> u64 {
    let contents = store.contents();
    let keys = contents.keys();
    keys.filter(|key| SegmentId::parse_key(key.as_str()).is_some())
        .count() as u64
}
