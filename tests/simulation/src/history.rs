//! One history: lives of an edge between crashes, each judged when the next begins.
//!
//! ```text
//! format → [ start → judge what survived → clients work, weather changes → stop somehow ]* → start → final checks
//! ```
//!
//! Everything that happens follows from the seed: the plan, the clients' calls, the weather, the stops.

use crate::{
    clones::{self, Clones},
    life::{Life, LifeEnd},
    oracle::{Found, Oracle, Stop},
    outage::Owner,
    system::{Branch, Running, StartError, System, Weather},
    tree::Tree,
    workload::Workload,
};
use firn_env::{
    Env, TaskEnded,
    sim::{DiskImage, Limits, Machine, Seeded, Simulation, SimulationError},
};
use firn_vfs::{FileSystemStatus, Vfs, VfsError};
use futures::FutureExt;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Starts of an edge until it serves, before a history gives up; half of them in fair weather.
const STARTS_MAX: usize = 40;
/// Reads of a whole tree until one succeeds.
const READS_MAX: usize = 60;

/// Builds what is to be tested into a new world.
pub type Build<'a> = &'a (dyn Fn(&Simulation, &mut Seeded) -> Arc<dyn System> + Sync);

/// What a history was like.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found wrong; empty: passed.
    pub failures: Vec<String>,
    /// Arrivals at fault points.
    pub hits: BTreeMap<&'static str, u64>,
    /// Crashes at fault points.
    pub crashes: BTreeMap<&'static str, u64>,
    /// Hash over every step.
    pub trace_hash: u64,
    /// Task polls.
    pub steps: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// Calls by how they ended, and other counts.
    pub counts: BTreeMap<&'static str, u64>,
    /// Everything that was called and changed, if it was asked for.
    pub log: Vec<String>,
}

/// Runs the history of a seed.
pub fn run(seed: u64, build: Build<'_>, keep_log: bool) -> Report {
    let limits = Limits {
        steps: 30_000_000,
        ..Limits::default()
    };
    let simulation = Simulation::with_limits(seed, limits);
    let mut random = Seeded::new(seed, 7);
    let system = build(&simulation, &mut random);
    let history = Arc::new(History {
        env: simulation.env(),
        options: system.model_options(),
        model_clock: simulation.machine("model clock"),
        system,
        clones: Clones::default(),
        record: Mutex::new(Record {
            keep_log,
            ..Record::default()
        }),
    });
    let outcome = simulation.run({
        let history = history.clone();
        async move { history.run(random, Seeded::new(seed, 8)).await }
    });
    let mut record = history.lock();
    match outcome {
        Ok(()) => {}
        Err(SimulationError::Panicked {
            machine,
            task,
            message,
        }) => record
            .failures
            .push(format!("panic in {task} of {machine}: {message}")),
        Err(error) => record.failures.push(error.to_string()),
    }
    let (mut hits, mut crashes) = (BTreeMap::new(), BTreeMap::new());
    for edge in (0..history.system.edges()).chain([history.system.clone_reader()]) {
        let machine = history.system.edge(edge);
        let faults = machine.faults();
        // It holds the machine's environment, which holds it: ten thousand worlds would stay in memory.
        faults.set_observer(|_, _| {});
        for (name, count) in faults.hits() {
            *hits.entry(name).or_default() += count;
        }
        for (name, count) in faults.acted() {
            *crashes.entry(name).or_default() += count;
        }
    }
    Report {
        failures: record.failures.clone(),
        crashes,
        counts: record.counts.clone(),
        log: record.log.clone(),
        hits,
        trace_hash: simulation.trace_hash(),
        steps: simulation.steps(),
        elapsed: simulation.elapsed(),
    }
}

/// What is kept of a history while it runs.
#[derive(Default)]
pub(crate) struct Record {
    failures: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    log: Vec<String>,
    keep_log: bool,
}

pub(crate) struct History {
    pub(crate) env: Env,
    pub(crate) system: Arc<dyn System>,
    options: firn_vfs::MemoryOptions,
    /// Its wall clock is set to the birth of the file system, so that both root directories are of one age.
    model_clock: Machine,
    /// Branches that were made on the way.
    pub(crate) clones: Clones,
    record: Mutex<Record>,
}

/// A judge shared by clients, observers and the history.
pub(crate) type SharedOracle = Arc<Mutex<Oracle>>;

pub(crate) fn judge(oracle: &SharedOracle) -> MutexGuard<'_, Oracle> {
    oracle.lock().expect("no panic under the judge's lock")
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no panic under this lock")
    }

    pub(crate) fn fail(&self, what: impl Into<String>) {
        let what = what.into();
        self.say(|| format!("FAILURE: {what}"));
        self.lock().failures.push(what);
    }

    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        let mut record = self.lock();
        if record.keep_log {
            let now = self.env.now().0 as f64 / 1e9;
            record.log.push(format!("{now:>12.6} {}", line()));
        }
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    /// Moves what a judge found into the record.
    pub(crate) fn collect(&self, oracle: &SharedOracle) {
        let (failures, counts, log) = judge(oracle).take_findings();
        let mut record = self.lock();
        record.failures.extend(failures);
        for (what, count) in counts {
            *record.counts.entry(what).or_default() += count;
        }
        record.log.extend(log);
        let (counts, failures) = self.system.take_cleaners_findings();
        record.failures.extend(failures);
        for (what, count) in counts {
            *record.counts.entry(what).or_default() += count;
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.lock().failures.is_empty()
    }

    async fn run(self: Arc<Self>, mut random: Seeded, mut outages: Seeded) {
        let workload = Workload::draw(self.system.largest_write(), &mut random);
        self.say(|| format!("workload {workload:?}"));
        for edge in 0..self.system.edges() {
            self.system.edge(edge).may_panic(true);
        }
        if !self.format(&mut random).await {
            return;
        }
        let oracle = Arc::new(Mutex::new(Oracle::new(&self.env, self.options.clone())));
        if !self.system.remembers_requests() {
            oracle.lock().expect("no panic under this lock").clock_jumps();
        }
        let lives = random.between(1, 4);
        let mut branch = Home {
            edge: 0,
            branch: Branch::HEAD,
            oracle,
            stop: Stop::Clean,
            verifier: None,
            born: false,
        };
        for life in 0..=lives {
            let last = life == lives;
            let detached = match life {
                _ if last => None,
                0 => None,
                _ => self.open_in_outage(&mut branch, Owner::This, &mut outages).await,
            };
            let running = match detached {
                Some(running) => Some(running),
                None if self.has_failed() => None,
                None => self.open(&mut branch, &mut random).await,
            };
            let Some(running) = running else {
                return;
            };
            if self.has_failed() {
                return;
            }
            if last {
                self.final_checks(&branch, &running, &mut random).await;
                if !self.has_failed() {
                    clones::check_all(&self, &mut random).await;
                }
                return;
            }
            let mut end = Life::draw(&*self.system, &workload, &mut random);
            if running.is_detached() {
                end.detach();
            }
            self.say(|| format!("life {life}: {end:?}"));
            let next = end.live(&self, &branch, running, &mut random).await;
            self.collect(&branch.oracle);
            if self.has_failed() {
                return;
            }
            match next {
                LifeEnd::Stopped { stop, verifier, edge } => {
                    branch.stop = stop;
                    branch.verifier = verifier;
                    branch.edge = edge;
                }
                LifeEnd::Moved(home) => branch = home,
                LifeEnd::GaveUp => return,
            }
            self.between_lives(&branch, &mut random);
            self.check_manifests(false).await;
            if self.has_failed() {
                return;
            }
            if !self.clones.is_empty() && random.chance(2, 3) {
                clones::visit(&self, &workload, &mut random).await;
                if self.has_failed() {
                    return;
                }
            }
        }
    }

    async fn format(&self, random: &mut Seeded) -> bool {
        let machine = self.system.edge(0);
        for attempt in 0..STARTS_MAX {
            if !machine.is_running() {
                machine.restart();
            }
            if attempt < 3 && random.chance(1, 10) {
                machine.crash_at_any(random.between(1, 10));
            }
            let system = self.system.clone();
            let formatted = on(&machine, "format", async move { system.format(0).await }).await;
            machine.faults().disarm();
            match formatted {
                Ok(Ok(())) => return true,
                Ok(Err(StartError::Later(_))) | Err(TaskEnded) => {}
                Ok(Err(error)) => {
                    self.fail(format!("format: {error:?}"));
                    return false;
                }
            }
        }
        self.fail("format: never done");
        false
    }

    /// Starts until it serves, and judges what is there.
    pub(crate) async fn open(&self, home: &mut Home, random: &mut Seeded) -> Option<Arc<dyn Running>> {
        let machine = self.system.edge(home.edge);
        for attempt in 0..STARTS_MAX {
            if attempt > 0 {
                // The first start may have used up what a clean stop left; a new verifier is always allowed.
                home.verifier = home.verifier.filter(|_| home.stop != Stop::Clean);
            }
            if attempt == STARTS_MAX / 2 {
                self.system.set_weather(home.edge, Weather::Fair);
            }
            if home.branch != Branch::HEAD {
                self.forget_everything(&machine);
            } else if !machine.is_running() {
                machine.restart();
            }
            if attempt < 4 && random.chance(1, 5) {
                machine.crash_at_any(random.between(1, 12));
            }
            // Until what survived is known, there is nothing to hold changes against.
            machine.faults().set_observer(|_, _| {});
            let (system, edge, branch) = (self.system.clone(), home.edge, home.branch);
            let started = on(&machine, "start", async move { system.start(edge, branch).await }).await;
            machine.faults().disarm();
            match started {
                Ok(Ok(running)) => {
                    self.say(|| format!("edge {edge} serves"));
                    if self.judge_survivors(home, &machine, &running).await.is_ok() {
                        return Some(running);
                    }
                    self.after_crash(&machine, "judging");
                }
                Ok(Err(StartError::Later(reason))) => {
                    self.say(|| format!("edge {edge} does not start yet: {reason}"));
                    self.env.sleep(Duration::from_secs(random.between(1, 20))).await;
                    // What has failed once keeps files and locks until the process ends.
                    machine.kill();
                }
                Ok(Err(error)) => {
                    self.fail(format!("edge {edge} does not start: {error:?}"));
                    return None;
                }
                Err(TaskEnded) => self.after_crash(&machine, "start"),
            }
        }
        self.fail(format!("edge {} never started", home.edge));
        None
    }

    /// A machine that was never used before takes the place of this one.
    pub(crate) fn forget_everything(&self, machine: &Machine) {
        machine.crash();
        machine.disk().restore(&DiskImage::default());
        machine.restart();
    }

    /// A machine went down: by a fault point, or by a panic that must be one we asked for.
    pub(crate) fn after_crash(&self, machine: &Machine, when: &str) {
        for panic in machine.take_panics() {
            self.say(|| format!("panic during {when}: {panic}"));
            if !panic.contains("sync") {
                self.fail(format!("panic during {when}: {panic}"));
            }
        }
    }

    pub(crate) async fn judge_survivors(
        &self,
        home: &mut Home,
        machine: &Machine,
        running: &Arc<dyn Running>,
    ) -> Result<(), TaskEnded> {
        let weather = Weather::Fair;
        self.system.set_weather(home.edge, weather);
        let tree = self.read_tree(machine, running).await?;
        if !home.born {
            self.be_born(home, machine, running).await?;
        }
        let serving = running.clone();
        let (completed, verifier, status) = on(machine, "ask", async move {
            let status = serving.vfs().file_system_status().await;
            (
                serving.vfs().completed_requests(),
                serving.write_verifier(),
                status,
            )
        })
        .await?;
        if let Some(tree) = tree {
            let snapshots = self.read_snapshots(machine, running).await?;
            judge(&home.oracle).recovered(home.stop, &tree, &completed, snapshots.as_deref());
            self.collect(&home.oracle);
        }
        let files = |status: FileSystemStatus| status.total_files - status.free_files;
        let expected = judge(&home.oracle).model().file_system_status().now_or_never();
        if let (Ok(status), Some(Ok(expected))) = (status, expected)
            && files(status) != files(expected)
        {
            let (found, expected) = (files(status), files(expected));
            self.fail(format!("{found} files are counted, {expected} are there"));
        }
        let same = home.verifier == Some(verifier);
        if same && home.stop != Stop::Clean {
            self.fail(format!("the write verifier is the same after {:?}", home.stop));
        }
        if !same && home.stop == Stop::Clean && home.verifier.is_some() {
            self.fail("the write verifier changed over a clean stop");
        }
        // The next stop finds this one's promises.
        home.stop = Stop::Crash;
        home.verifier = Some(verifier);
        let (oracle, env, name) = (
            home.oracle.clone(),
            machine.env(),
            self.system.applied_observation(),
        );
        machine.faults().set_observer(move |observed, value| {
            if observed == name {
                let now = firn_vfs::Timestamp::from_nanos(env.wall().0);
                judge(&oracle).applied(crate::oracle::current_call(), now);
            } else if observed == "volume.snapshot_created" {
                judge(&oracle).snapshot_created(value);
            } else if observed == "volume.snapshot_deleted" {
                judge(&oracle).snapshot_deleted(value);
            }
        });
        Ok(())
    }

    /// The first time: a judge whose file system is as old as the one found.
    async fn be_born(
        &self,
        home: &mut Home,
        machine: &Machine,
        running: &Arc<dyn Running>,
    ) -> Result<(), TaskEnded> {
        let vfs = running.vfs();
        let root = on(machine, "ask", async move { vfs.attributes(vfs.root()).await }).await?;
        let Ok(root) = root else {
            self.fail(format!("no root directory: {root:?}"));
            return Ok(());
        };
        let clock = self.model_clock.env();
        let born = root.born.seconds * 1_000_000_000 + i64::from(root.born.nanoseconds);
        self.model_clock.jump_wall(born - clock.wall().0);
        let mut oracle = Oracle::new(&clock, self.options.clone());
        if !self.system.remembers_requests() {
            oracle.clock_jumps();
        }
        if self.lock().keep_log {
            oracle.keep_log();
        }
        *judge(&home.oracle) = oracle;
        home.born = true;
        Ok(())
    }

    /// Reads everything on the machine itself; `None` if that fails for good (which is reported).
    pub(crate) async fn read_tree(
        &self,
        machine: &Machine,
        running: &Arc<dyn Running>,
    ) -> Result<Option<Tree>, TaskEnded> {
        self.read_vfs(machine, &running.vfs()).await
    }

    async fn read_vfs(&self, machine: &Machine, vfs: &Arc<dyn Vfs>) -> Result<Option<Tree>, TaskEnded> {
        let mut last = String::new();
        for _ in 0..READS_MAX {
            let vfs = vfs.clone();
            match on(machine, "read all", async move { Tree::read(&*vfs).await }).await? {
                Ok(tree) => return Ok(Some(tree)),
                Err((path, error @ VfsError::TryAgain { .. })) => {
                    last = format!("{path}: {error}");
                    self.env.sleep(Duration::from_secs(2)).await;
                }
                Err((path, error)) => {
                    self.fail(format!("reading {path} after recovery: {error:?}"));
                    return Ok(None);
                }
            }
        }
        self.fail(format!(
            "the recovered file system cannot be read in fair weather: {last}"
        ));
        Ok(None)
    }

    /// Reads all snapshots on the machine itself; `None` if that fails for good (which is reported).
    async fn read_snapshots(
        &self,
        machine: &Machine,
        running: &Arc<dyn Running>,
    ) -> Result<Option<Vec<Found>>, TaskEnded> {
        let mut found = Vec::new();
        for (id, name, _) in running.snapshots() {
            let Some(vfs) = running.snapshot(&name) else {
                self.fail(format!("snapshot {name} is listed and cannot be read"));
                return Ok(None);
            };
            match self.read_vfs(machine, &vfs).await? {
                Some(tree) => found.push((id, tree)),
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// While the machine is down.
    fn between_lives(&self, home: &Home, random: &mut Seeded) {
        let machine = self.system.edge(home.edge);
        if machine.is_running() {
            return;
        }
        machine.disk().configure(|disk| {
            disk.sync_failures = 0;
            disk.read_failures = 0;
            disk.capacity_bytes = 1 << 40;
        });
        match random.below(8) {
            0 => self.system.spoil_cache(home.edge, true),
            1 => self.system.spoil_cache(home.edge, false),
            _ => {}
        }
        let weather = *random.pick(&[Weather::Fair, Weather::Fair, Weather::Rough]);
        self.system.set_weather(home.edge, weather);
        if random.chance(1, 8) {
            // Either way, up to an hour.
            machine.jump_wall(random.between(0, 7_200_000_000_000) as i64 - 3_600_000_000_000);
            judge(&home.oracle).clock_jumps();
        }
        if random.chance(1, 3) {
            // After a kill, the power may fail as well.
            machine.crash();
        }
    }
}

/// Where the file system lives now, and what is known of it.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) edge: usize,
    /// Which of the family's file systems.
    pub(crate) branch: Branch,
    pub(crate) oracle: SharedOracle,
    /// How it was stopped last.
    pub(crate) stop: Stop,
    /// The write verifier then.
    pub(crate) verifier: Option<[u8; 8]>,
    /// Whether it was ever judged.
    pub(crate) born: bool,
}

/// Runs something as a task of a machine; it ends with the machine.
pub(crate) async fn on<T: Send + 'static>(
    machine: &Machine,
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, TaskEnded> {
    if !machine.is_running() {
        return Err(TaskEnded);
    }
    machine.env().spawn(name, future).await
}
