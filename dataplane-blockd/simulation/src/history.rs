//! One random history of one disk.

use crate::{
    check::{Piece, Promises},
    engine::{Engine, Mode},
    replicas::{Attach, Fate, World},
};
use firn_blockd_disk::{
    Effect, FlushPolicy, Incarnation, LogConfig, Regions, RequestId, Store, StripedConfig, Unit, WritePolicy,
};
use firn_env::sim::Seeded;
use futures::FutureExt;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

/// Stores that a quiet disk may need at most: far more than any history leaves open, far fewer than one that never rests.
const DRAIN_STEPS_MAX: usize = 5000;
/// Steps of a recovery at most, for crashes within it.
const RECOVERY_STEPS: u64 = 60;

/// What a history came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The mode's name.
    pub mode: &'static str,
    /// Why it failed.
    pub failure: Option<String>,
    /// Crashes, those within recovery included.
    pub crashes: u64,
    /// Writes of blocks.
    pub writes: u64,
    /// Of them, lost in crashes.
    pub lost: u64,
    /// A hash of all that happened.
    pub trace: u64,
    /// What happened, if it was asked for.
    pub log: Vec<String>,
}

/// Runs the history of a seed.
pub fn run(seed: u64, verbose: bool) -> Report {
    let mut random = Seeded::new(seed, 77);
    let mode = choose_mode(&mut random);
    let replicas = random.between(1, 3) as usize;
    // At most one replica rots, and only if another has the data.
    let rotten = (replicas > 1 && random.chance(1, 2)).then(|| random.index(replicas));
    let mut history = History {
        random,
        mode,
        world: Arc::new(Mutex::new(World::new(replicas))),
        rotten,
        workload: Workload::Random,
        incarnation: Incarnation(0),
        promises: Promises::default(),
        requests: BTreeMap::new(),
        next_request: 0,
        next_number: 1,
        now_ms: 0,
        flying: Vec::new(),
        late: VecDeque::new(),
        epoch: 0,
        epochs: BTreeMap::new(),
        report: Report {
            mode: mode.name(),
            ..Report::default()
        },
        verbose,
    };
    if let Err(failure) = history.play() {
        history.report.failure = Some(format!("{}, {replicas} replicas: {failure}", mode.name()));
    }
    history.report
}

fn choose_mode(random: &mut Seeded) -> Mode {
    let ordered = FlushPolicy::Ordered {
        lag_ms_max: random.between(1, 50),
    };
    let dirty_bytes_max = random.between(1, 40) * 8;
    let blocks = random.between(1, 6);
    let striped = |write, flush, regions| {
        Mode::Striped(StripedConfig {
            blocks,
            write,
            flush,
            dirty_bytes_max,
            regions,
        })
    };
    let regions = Regions {
        blocks: random.between(1, 3),
        idle_kept: random.below(3) as usize,
    };
    match random.below(8) {
        0 => striped(WritePolicy::Durable, FlushPolicy::Durable, regions),
        1 | 2 => striped(WritePolicy::Memory, FlushPolicy::Durable, regions),
        3 => striped(WritePolicy::Memory, ordered, regions),
        kind => {
            let config = LogConfig {
                flush: if kind < 6 { FlushPolicy::Durable } else { ordered },
                dirty_bytes_max,
                checkpoint_entries: random.between(2, 20),
            };
            Mode::Log(config, blocks, blocks + random.between(4, 12))
        }
    }
}

/// Where writes go: the paper's three loads.
#[derive(Clone, Copy, Debug)]
enum Workload {
    /// One block after the other.
    Sequential,
    /// Half of them to where the last ones went.
    HalfAgain,
    /// Anywhere.
    Random,
}

enum Request {
    Write {
        pieces: std::ops::Range<usize>,
        promises: bool,
    },
    Flush {
        prefix: usize,
    },
}

struct Flying {
    store: Store,
    by: Incarnation,
    /// Units that are not durable on its replica yet: of a range, each by itself.
    left: Vec<Unit>,
}

struct History {
    random: Seeded,
    mode: Mode,
    world: Arc<Mutex<World>>,
    rotten: Option<usize>,
    workload: Workload,
    incarnation: Incarnation,
    promises: Promises,
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    next_number: u64,
    now_ms: u64,
    flying: Vec<Flying>,
    /// Stores of dead attaches that are still somewhere in the network.
    late: VecDeque<Flying>,
    /// The epoch of the next write.
    epoch: u64,
    /// Epochs of the versions that this attach wrote in place.
    epochs: BTreeMap<u64, u64>,
    report: Report,
    verbose: bool,
}

impl History {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic under this lock")
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let mixed =
            self.report.trace ^ (self.now_ms << 32) ^ self.next_request << 16 ^ self.flying.len() as u64;
        self.report.trace = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        if self.verbose {
            self.report.log.push(line());
        }
    }

    fn play(&mut self) -> Result<(), String> {
        self.incarnation = Incarnation(1);
        let attach = Attach::new(self.world.clone(), self.incarnation, None, Fate::Lost);
        let formatted = self.mode.format(&attach, self.incarnation).now_or_never();
        formatted
            .expect("nothing interrupts it")
            .map_err(|error| error.to_string())?;
        let mut engine = self.recover()?;
        self.promises = Promises::new(vec![0; engine.blocks() as usize]);
        let lives = self.random.between(2, 5);
        for life in 0..lives {
            self.workload = *self
                .random
                .pick(&[Workload::Sequential, Workload::HalfAgain, Workload::Random]);
            for _ in 0..self.random.between(5, 90) {
                self.step(&mut engine)?;
            }
            if life + 1 == lives || self.random.chance(1, 6) {
                self.drain(&mut engine)?;
            }
            self.crash();
            drop(engine);
            engine = self.recover()?;
            self.check(&engine)?;
        }
        Ok(())
    }

    fn step(&mut self, engine: &mut Engine) -> Result<(), String> {
        self.now_ms += self.random.below(3);
        match self.random.below(100) {
            0..30 => self.write(engine)?,
            30..36 => self.zero(engine)?,
            36..46 => self.flush(engine)?,
            46..60 => self.arrive()?,
            60..84 => self.acknowledge(engine)?,
            84..92 => self.read(engine)?,
            92..95 => self.rot(),
            95..97 => self.late_arrives(),
            _ => {
                if self.random.chance(1, 8) && engine.blocks() < 12 {
                    let (blocks, physical) = (self.random.between(1, 2), self.random.below(3));
                    let effects = engine.grow(self.now_ms, blocks, physical);
                    if let Mode::Striped(config) = &mut self.mode {
                        // The size of a striped disk is kept by whoever attaches it.
                        config.blocks = engine.blocks();
                    }
                    self.note(|| format!("grow by {blocks}"));
                    self.take(effects)?;
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, request: Request) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.requests.insert(id, request);
        id
    }

    fn range(&mut self, blocks: u64) -> (u64, u64) {
        let last = self.promises.pieces.last().map_or(0, |piece| piece.block);
        let first = match self.workload {
            Workload::Sequential => (last + 1) % blocks,
            Workload::HalfAgain if self.random.chance(1, 2) => last % blocks,
            Workload::HalfAgain | Workload::Random => self.random.below(blocks),
        };
        (first, self.random.between(1, 3).min(blocks - first))
    }

    fn submit(&mut self, first: u64, numbers: &[u64], durable: bool) -> RequestId {
        let epoch = self.epoch;
        let start = self.promises.pieces.len();
        for (block, number) in (first..).zip(numbers) {
            self.promises.pieces.push(Piece {
                block,
                number: *number,
                epoch,
            });
        }
        self.report.writes += numbers.len() as u64;
        let promises = durable || self.mode.writes_through();
        self.request(Request::Write {
            pieces: start..start + numbers.len(),
            promises,
        })
    }

    fn write(&mut self, engine: &mut Engine) -> Result<(), String> {
        let (first, count) = self.range(engine.blocks());
        let numbers: Vec<u64> = (self.next_number..self.next_number + count).collect();
        self.next_number += count;
        let durable = self.random.chance(1, 6);
        let id = self.submit(first, &numbers, durable);
        self.note(|| format!("{id:?}: write {first}.. {numbers:?} durable {durable}"));
        let effects = engine.write(self.now_ms, id, first, &numbers, durable);
        self.take(effects)
    }

    fn zero(&mut self, engine: &mut Engine) -> Result<(), String> {
        let (first, count) = if self.random.chance(1, 3) {
            (0, engine.blocks())
        } else {
            self.range(engine.blocks())
        };
        let durable = self.random.chance(1, 6);
        let id = self.submit(first, &vec![0; count as usize], durable);
        self.note(|| format!("{id:?}: zero {first}.. {count} durable {durable}"));
        let effects = engine.zero(self.now_ms, id, first, count, durable);
        self.take(effects)
    }

    fn flush(&mut self, engine: &mut Engine) -> Result<(), String> {
        let prefix = self.promises.pieces.len();
        let id = self.request(Request::Flush { prefix });
        if self
            .promises
            .pieces
            .last()
            .is_some_and(|piece| piece.epoch == self.epoch)
        {
            self.epoch += 1;
        }
        self.note(|| format!("{id:?}: flush"));
        let effects = engine.flush(self.now_ms, id);
        self.take(effects)
    }

    fn read(&mut self, engine: &Engine) -> Result<(), String> {
        let block = self.random.below(engine.blocks());
        let found = engine.read(&self.world(), block)?;
        let expected = self.promises.newest(engine.blocks())[block as usize];
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "block {block} reads as {found}, but the newest write there is {expected}"
        ))
    }

    fn take(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Store(store) => {
                    if matches!(store.unit, Unit::Block(_)) {
                        self.epochs.insert(store.version.sequence, store.epoch);
                    }
                    self.flying.push(Flying {
                        by: self.incarnation,
                        left: store.units().collect(),
                        store,
                    });
                }
                Effect::Answer(id) => self.answered(id)?,
            }
        }
        Ok(())
    }

    fn answered(&mut self, id: RequestId) -> Result<(), String> {
        self.note(|| format!("{id:?}: answered"));
        match self.requests.remove(&id) {
            Some(Request::Write {
                pieces,
                promises: true,
            }) => self.promises.durable.extend(pieces),
            Some(Request::Flush { prefix }) if self.mode.flushes_durably() => {
                self.promises.prefix = self.promises.prefix.max(prefix);
            }
            Some(Request::Write { .. } | Request::Flush { .. }) => {}
            None => return Err(format!("{id:?} was answered twice")),
        }
        Ok(())
    }

    /// A store, or a part of a range, becomes durable; the client does not know yet.
    fn arrive(&mut self) -> Result<(), String> {
        let waiting: Vec<usize> = (0..self.flying.len())
            .filter(|at| !self.flying[*at].left.is_empty())
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let at = *self.random.pick(&waiting);
        let mut units = self.flying[at].left.clone();
        if units.len() > 1 {
            units.retain(|_| self.random.chance(1, 2));
        }
        self.apply(at, &units)
    }

    fn apply(&mut self, at: usize, units: &[Unit]) -> Result<(), String> {
        let store = self.flying[at].store.clone();
        for unit in units {
            self.note(|| format!("{unit:?} is on replica {} as {:?}", store.replica, store.version));
            self.check_order(&store, *unit)?;
            let accepted = self.world().apply(
                self.flying[at].by,
                store.replica,
                *unit,
                store.version,
                &store.body_of(*unit),
                Fate::Applied,
            );
            if !accepted {
                return Err("the owner of the disk was fenced".to_owned());
            }
        }
        self.flying[at].left.retain(|unit| !units.contains(unit));
        Ok(())
    }

    /// I11: what a later epoch overwrites in place is durable everywhere.
    fn check_order(&self, store: &Store, unit: Unit) -> Result<(), String> {
        let Unit::Block(block) = unit else {
            return Ok(());
        };
        let world = self.world();
        let Some(old) = world.load(store.replica, unit) else {
            return Ok(());
        };
        let same_attach = old.version.incarnation == store.version.incarnation;
        let Some(epoch) = self.epochs.get(&old.version.sequence).filter(|_| same_attach) else {
            return Ok(());
        };
        let everywhere = (0..world.replicas())
            .filter(|replica| Some(*replica) != self.rotten)
            .all(|replica| {
                world
                    .load(replica, unit)
                    .is_some_and(|held| held.version >= old.version)
            });
        if *epoch < store.epoch && !everywhere {
            return Err(format!(
                "block {block} of epoch {epoch} is overwritten before it is durable"
            ));
        }
        Ok(())
    }

    fn acknowledge(&mut self, engine: &mut Engine) -> Result<(), String> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.flying.len());
        let left = self.flying[at].left.clone();
        self.apply(at, &left)?;
        let done = self.flying.swap_remove(at).store;
        let effects = engine.stored(self.now_ms, done.ticket, done.replica);
        self.take(effects)
    }

    fn rot(&mut self) {
        let Some(replica) = self.rotten else { return };
        let units = self.world().units(replica);
        if !units.is_empty() {
            let unit = *self.random.pick(&units);
            self.note(|| format!("{unit:?} rots on replica {replica}"));
            self.world().rot(replica, unit);
        }
    }

    fn late_arrives(&mut self) {
        if let Some(late) = self.late.pop_front() {
            let store = late.store;
            for unit in late.left {
                let accepted = self.world().apply(
                    late.by,
                    store.replica,
                    unit,
                    store.version,
                    &store.body_of(unit),
                    Fate::Applied,
                );
                self.note(|| format!("late: {unit:?} on replica {}: accepted {accepted}", store.replica));
            }
        }
    }

    /// Everything under way is done: every request must be answered, and the disk become idle.
    fn drain(&mut self, engine: &mut Engine) -> Result<(), String> {
        for _ in 0..DRAIN_STEPS_MAX {
            if self.flying.is_empty() {
                if let Some(id) = self.requests.keys().next() {
                    return Err(format!("{id:?} is never answered"));
                }
                self.note(|| "drained".to_owned());
                return Ok(());
            }
            self.acknowledge(engine)?;
        }
        Err(format!(
            "the disk never becomes idle: {} stores are under way",
            self.flying.len()
        ))
    }

    /// The client dies. What was under way is durable, torn, lost or late.
    fn crash(&mut self) {
        self.report.crashes += 1;
        self.note(|| "crash".to_owned());
        for Flying { store, by, left } in std::mem::take(&mut self.flying) {
            for unit in left {
                let fate = match self.random.below(8) {
                    0..3 => Fate::Applied,
                    3 => Fate::Torn,
                    4 | 5 => {
                        self.late.push_back(Flying {
                            store: store.clone(),
                            by,
                            left: vec![unit],
                        });
                        continue;
                    }
                    _ => Fate::Lost,
                };
                self.note(|| format!("{unit:?} on replica {}: {fate:?}", store.replica));
                self.world()
                    .apply(by, store.replica, unit, store.version, &store.body_of(unit), fate);
            }
        }
        self.requests.clear();
        self.epochs.clear();
    }

    /// Attaches, perhaps after some attempts that die in between.
    fn recover(&mut self) -> Result<Engine, String> {
        let mut attempts = self.random.below(4);
        loop {
            self.incarnation.0 += 1;
            let left = (attempts > 0).then(|| self.random.below(RECOVERY_STEPS));
            let last = *self.random.pick(&[Fate::Lost, Fate::Applied, Fate::Torn]);
            let attach = Attach::new(self.world.clone(), self.incarnation, left, last);
            let attached = self.mode.attach(&attach, self.incarnation).now_or_never();
            let incarnation = self.incarnation;
            match attached {
                Some(engine) => {
                    self.note(|| format!("attached as {incarnation:?}"));
                    // Whatever the network still holds from before must not matter now.
                    for _ in 0..self.random.below(3) {
                        self.late_arrives();
                    }
                    return engine.map_err(|error| error.to_string());
                }
                None => {
                    self.note(|| format!("crash while attaching as {incarnation:?} after {left:?} steps"));
                    self.report.crashes += 1;
                    attempts -= 1;
                    if self.random.chance(1, 3) {
                        self.rot();
                    }
                    self.late_arrives();
                }
            }
        }
    }

    /// The disk after a crash against the model; from here on it is known again.
    fn check(&mut self, engine: &Engine) -> Result<(), String> {
        let content = (0..engine.blocks())
            .map(|block| engine.read(&self.world(), block))
            .collect::<Result<Vec<u64>, String>>()?;
        let lost = match self.mode {
            Mode::Striped(_) => self.promises.check_epochs(&content)?,
            Mode::Log(..) => self.promises.check_prefix(&content)?,
        };
        self.report.lost += lost as u64;
        self.note(|| format!("after the crash: {content:?}, {lost} lost"));
        self.promises = Promises::new(content);
        self.epoch = 0;
        Ok(())
    }
}
