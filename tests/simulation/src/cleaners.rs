//! Cleaners beside the bucket: without keys, on machines of their own, while edges come and go.
//!
//! Each runs again and again, with thresholds drawn anew, so that much is moved and deleted. It is stopped at a fault point or
//! at any time, and starts over with nothing but what bucket and table know; or its line to the bucket stalls for minutes, so
//! that what it sent lands when another has long done its work. It must never find anything damaged, and what the edges and
//! their snapshots show is judged by the histories as ever.

use firn_anchor::Anchor;
use firn_cleaner::{CleanError, Cleaner, Limits, Report};
use firn_env::{
    Env, TaskEnded,
    sim::{Machine, Seeded, Simulation},
};
use firn_format::FamilyId;
use firn_store::{FaultConfig, FaultControl, Faults, Faulty, Store};
use firn_table::{FaultRates, MemoryTable};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How many.
const CLEANERS: usize = 2;

/// How long a segment stays at least after it was retired.
const GRACE_MIN: Duration = Duration::from_secs(20);
/// The longest pause of a cleaner that has something to do; a life of an edge lasts some seconds.
const PAUSE_BUSY: Duration = Duration::from_secs(3);
/// A run that finds nothing to do is followed by a longer pause, up to this one: histories have hours of quiet.
const PAUSE_MAX: Duration = Duration::from_secs(1200);

/// What a stalled line adds to each request. Others take a cleaner for dead after less.
const STALL_MS: u64 = 90_000;

/// What the cleaners did and found.
#[derive(Default)]
struct Record {
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

struct Host {
    machine: Machine,
    store: Arc<dyn Store>,
    faults: FaultControl,
    table: MemoryTable,
}

/// See the module.
pub(crate) struct Cleaners {
    hosts: Vec<Host>,
    family: FamilyId,
    paused: AtomicBool,
    record: Mutex<Record>,
}

impl Cleaners {
    /// Cleaners of a family, at work from now on.
    pub fn start(
        simulation: &Simulation,
        bucket: &Arc<dyn Store>,
        table: &MemoryTable,
        family: FamilyId,
        random: &mut Seeded,
    ) -> Arc<Self> {
        let world = simulation.env();
        let hosts = (0..CLEANERS).map(|number| {
            let config = FaultConfig {
                seed: simulation.seed() ^ (100 + number as u64) << 32,
                ..FaultConfig::default()
            };
            let faulty = Faulty::new(&world, bucket.clone(), config).expect("no faults make sense");
            Host {
                machine: simulation.machine(&format!("cleaner{number}")),
                faults: faulty.control(),
                store: Arc::new(faulty),
                table: table.clone(),
            }
        });
        let cleaners = Arc::new(Self {
            hosts: hosts.collect(),
            family,
            paused: AtomicBool::new(false),
            record: Mutex::default(),
        });
        for number in 0..CLEANERS {
            let (own, env) = (cleaners.clone(), world.clone());
            let random = Seeded::new(random.draw(), 11);
            // It lives as long as the simulation.
            drop(world.spawn("cleaner", async move { own.go_on(number, env, random).await }));
        }
        cleaners
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no panic under this lock")
    }

    /// Stops all of them at once, or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
        if paused {
            for host in &self.hosts {
                host.machine.kill();
            }
        }
    }

    /// Counts, and what was found wrong since the last time.
    pub fn take_findings(&self) -> (BTreeMap<&'static str, u64>, Vec<String>) {
        let mut record = self.lock();
        (
            std::mem::take(&mut record.counts),
            std::mem::take(&mut record.failures),
        )
    }

    async fn go_on(self: Arc<Self>, number: usize, env: Env, mut random: Seeded) {
        let host = &self.hosts[number];
        let mut pause_max = Duration::from_secs(10);
        loop {
            env.sleep(random.duration(Duration::from_secs(1), pause_max))
                .await;
            if self.paused.load(Ordering::Relaxed) {
                continue;
            }
            host.faults.set(line(&mut random)).expect("the faults make sense");
            if !host.machine.is_running() {
                host.machine.restart();
            }
            let kill = random.chance(1, 6);
            if random.chance(1, 5) {
                host.machine.crash_at_any(random.between(1, 25));
            }
            let limits = Limits {
                grace: random.duration(GRACE_MIN, 3 * GRACE_MIN),
                free_per_mille: *random.pick(&[0, 100, 400]),
                cold_free_per_mille: *random.pick(&[0, 100]),
                batch_bytes: *random.pick(&[16 << 10, 1 << 20]),
                cache_bytes: *random.pick(&[4 << 10, 1 << 20]),
                segment_bytes: *random.pick(&[16 << 10, 256 << 10]),
                judged_segments: 40,
                cleaner_lease: Duration::from_secs(60),
                give_up_versions: 8,
                ..Limits::default()
            };
            let began = env.now();
            let run = host.run(self.family, limits);
            let ended = if kill {
                let until = random.duration(Duration::from_millis(1), Duration::from_secs(5));
                let ended = env.timeout(until, run).await;
                if ended.is_err() {
                    host.machine.kill();
                }
                ended.unwrap_or(Err(TaskEnded))
            } else {
                run.await
            };
            host.machine.faults().disarm();
            let found_something = matches!(&ended, Ok(Ok(report)) if report.retired_segments > 0);
            // Who takes longer than others wait may find what it looked at gone, as a reader may; it retires nothing then.
            let in_time = env.now().since(began) < GRACE_MIN;
            self.note(number, ended, in_time);
            pause_max = if found_something {
                PAUSE_BUSY
            } else {
                (pause_max * 2).min(PAUSE_MAX)
            };
        }
    }

    fn note(&self, number: usize, ended: Result<Result<Report, CleanError>, TaskEnded>, in_time: bool) {
        let mut record = self.lock();
        let mut count = |what: &'static str, count: u64| {
            if count > 0 {
                *record.counts.entry(what).or_default() += count;
            }
        };
        match ended {
            Ok(Ok(report)) => {
                count("cleaner runs", 1);
                count("segments retired", report.retired_segments);
                count("segments deleted", report.deleted_segments);
                count("objects moved", report.moved_objects);
                count("cleaners overtaken", report.overtaken);
                let is_strange = report.foreign.count + report.unclaimed.count > 0;
                // A hint that is wrong: none is lost here.
                count("segments taken for missing", report.missing.count);
                if is_strange || (in_time && !report.damaged.is_empty()) {
                    let found = (&report.damaged, &report.foreign, &report.unclaimed);
                    record.failures.push(format!("cleaner {number} found {found:?}"));
                }
            }
            Ok(Err(CleanError::Damaged(damage))) if in_time => {
                record.failures.push(format!("cleaner {number} found {damage}"));
            }
            // It will come again.
            Ok(Err(_)) => count("cleaner runs that failed", 1),
            Err(TaskEnded) => count("cleaners that died", 1),
        }
    }
}

impl Host {
    /// One run, on the machine.
    fn run(
        &self,
        family: FamilyId,
        limits: Limits,
    ) -> impl Future<Output = Result<Result<Report, CleanError>, TaskEnded>> + 'static {
        let env = self.machine.env();
        let table = self.table.connect(&env);
        table.set_rates(FaultRates {
            throttle_per_mille: 3,
            lose_reply_per_mille: 3,
            late_per_mille: 3,
            late_requests: 4,
            delay: Duration::from_millis(1)..=Duration::from_millis(15),
        });
        let anchor = Anchor::new(table, env.clone(), family);
        let store = self.store.clone();
        let inside = env.clone();
        env.spawn("clean", async move {
            Cleaner::new(&inside, store, &anchor, limits).run().await
        })
    }
}

/// How requests to the bucket fare in the next run.
fn line(random: &mut Seeded) -> Faults {
    let fair = Faults {
        latency_ms: 8,
        jitter_ms: 4,
        ..Faults::default()
    };
    match random.below(6) {
        0 => Faults {
            latency_ms: STALL_MS,
            jitter_ms: STALL_MS,
            ..fair
        },
        1 | 2 => Faults {
            unavailable: 0.005,
            lost_request: 0.003,
            late: 0.01,
            late_ms: 60_000,
            lost_reply: 0.003,
            timeout_ms: 1_000,
            slow: 0.05,
            ..fair
        },
        _ => fair,
    }
}
