//! Every history of a few operations on four blocks and two replicas, with every crash point.
//!
//! A history is a sequence of writes of single blocks, of zeroing the whole disk, and of flushes. Stores may become durable in any order between the
//! operations; a crash may come at any moment and leaves any part of what is under way. Blocks are alike, so of histories that
//! differ only in the names of their blocks one is tried. States that were seen are not tried again.

use crate::{
    check::{Piece, Promises},
    engine::{Engine, Mode},
    replicas::{Attach, Fate, World},
};
use firn_blockd_disk::{Effect, Incarnation, RequestId, Store, Unit};
use futures::FutureExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::{Arc, Mutex},
};

/// Blocks of the disk.
pub const BLOCKS: u64 = 4;
/// Replicas.
pub const REPLICAS: usize = 2;

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    /// Sequences of operations.
    pub histories: u64,
    /// Distinct moments at which a crash could come.
    pub moments: u64,
    /// Distinct disks that were recovered and checked.
    pub crashes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Operation {
    Write(u64),
    /// All blocks, in one request. A crash may leave any of them zeroed.
    Zero,
    Flush,
}

/// Equal for equal things; of a million different ones no two are likely to share it.
fn digest(thing: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    thing.hash(&mut hasher);
    hasher.finish()
}

/// A moment: what the client knows, and what is on the replicas for certain.
#[derive(Clone, Hash)]
struct Moment {
    engine: Engine,
    world: World,
    promises: Promises,
    epoch: u64,
    flying: Vec<Store>,
    flushes: BTreeMap<RequestId, usize>,
    writes: BTreeMap<RequestId, Range<usize>>,
}

struct Search {
    mode: Mode,
    tried: Tried,
    /// Moments that were tried, with the operations left.
    moments: BTreeSet<u64>,
    /// Disks that were checked, with what was promised of them.
    checked: BTreeSet<u64>,
}

/// Tries all histories of `operations` operations.
///
/// # Errors
/// The first crash after which the disk is wrong.
pub fn run(mode: Mode, operations: usize) -> Result<Tried, String> {
    let world = Arc::new(Mutex::new(World::new(REPLICAS)));
    let attach = |incarnation| Attach::new(world.clone(), Incarnation(incarnation), None, Fate::Lost);
    let done = |result: Option<Result<_, firn_blockd_disk::AttachError>>| {
        result
            .expect("nothing interrupts it")
            .map_err(|error| error.to_string())
    };
    done(mode.format(&attach(1), Incarnation(1)).now_or_never())?;
    let engine = mode
        .attach(&attach(2), Incarnation(2))
        .now_or_never()
        .expect("nothing interrupts it")
        .map_err(|error| error.to_string())?;
    let world = world.lock().expect("no panic under this lock").clone();
    let mut search = Search {
        mode,
        tried: Tried::default(),
        moments: BTreeSet::new(),
        checked: BTreeSet::new(),
    };
    let start = Moment {
        engine,
        world,
        promises: Promises::new(vec![0; BLOCKS as usize]),
        epoch: 0,
        flying: Vec::new(),
        flushes: BTreeMap::new(),
        writes: BTreeMap::new(),
    };
    search.operate(&start, &mut Vec::new(), operations)?;
    Ok(search.tried)
}

impl Search {
    /// Every moment after these operations, then every next operation.
    fn operate(&mut self, moment: &Moment, past: &mut Vec<Operation>, left: usize) -> Result<(), String> {
        let mut moments = Vec::new();
        self.settle(moment.clone(), past, &mut moments);
        for moment in &moments {
            self.tried.moments += 1;
            self.crash(moment, past)?;
        }
        if left == 0 {
            self.tried.histories += 1;
            return Ok(());
        }
        let used = past
            .iter()
            .filter_map(|operation| match operation {
                Operation::Write(block) => Some(block + 1),
                Operation::Zero | Operation::Flush => None,
            })
            .max()
            .unwrap_or(0);
        let writes = (0..(used + 1).min(BLOCKS)).map(Operation::Write);
        for operation in writes.chain([Operation::Zero, Operation::Flush]) {
            past.push(operation);
            for moment in &moments {
                self.operate(
                    &moment.after(self.mode, operation, past.len() as u64),
                    past,
                    left - 1,
                )?;
            }
            past.pop();
        }
        Ok(())
    }

    /// All moments that acknowledgements lead to and that were not seen before.
    fn settle(&mut self, moment: Moment, past: &[Operation], all: &mut Vec<Moment>) {
        if !self.moments.insert(digest(&(past, &moment))) {
            return;
        }
        for at in 0..moment.flying.len() {
            let mut next = moment.clone();
            next.acknowledge(self.mode, at);
            self.settle(next, past, all);
        }
        all.push(moment);
    }

    /// Every part of what is under way may be durable.
    fn crash(&mut self, moment: &Moment, past: &[Operation]) -> Result<(), String> {
        let of_store = |store: &Store| {
            store
                .units()
                .map(|unit| (store.clone(), unit))
                .collect::<Vec<_>>()
        };
        let parts: Vec<(Store, Unit)> = moment.flying.iter().flat_map(of_store).collect();
        for subset in 0..1_u32 << parts.len() {
            let mut world = moment.world.clone();
            let durable = parts.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
            for (_, (store, unit)) in durable {
                moment.apply(&mut world, store, *unit);
            }
            if self.checked.insert(digest(&(&world, &moment.promises))) {
                self.tried.crashes += 1;
                self.recover(world, moment, past)?;
            }
        }
        Ok(())
    }

    fn recover(&self, world: World, moment: &Moment, past: &[Operation]) -> Result<(), String> {
        let world = Arc::new(Mutex::new(world));
        let mut content = Vec::new();
        // Attached twice: what the first recovery made of the disk, the second must find again.
        for incarnation in [3, 4] {
            let attach = Attach::new(world.clone(), Incarnation(incarnation), None, Fate::Lost);
            let engine = self
                .mode
                .attach(&attach, Incarnation(incarnation))
                .now_or_never()
                .expect("nothing interrupts it")
                .map_err(|error| format!("{past:?}: {error}"))?;
            let world = world.lock().expect("no panic under this lock");
            let now: Vec<u64> = (0..BLOCKS)
                .map(|block| engine.read(&world, block))
                .collect::<Result<_, String>>()
                .map_err(|error| format!("{past:?}: {error}"))?;
            if incarnation == 4 && now != content {
                return Err(format!("{past:?}: {content:?} became {now:?} at the next attach"));
            }
            content = now;
        }
        match self.mode {
            Mode::Striped(_) => moment.promises.check_epochs(&content),
            Mode::Log(..) => moment.promises.check_prefix(&content),
        }
        .map(drop)
        .map_err(|error| format!("{past:?}: {error}"))
    }
}

impl Moment {
    fn after(&self, mode: Mode, operation: Operation, number: u64) -> Self {
        let mut next = self.clone();
        let id = RequestId(number);
        let effects = match operation {
            Operation::Write(block) => {
                next.promises.pieces.push(Piece {
                    block,
                    number,
                    epoch: next.epoch,
                });
                let pieces = next.promises.pieces.len();
                next.writes.insert(id, pieces - 1..pieces);
                next.engine.write(0, id, block, &[number], false)
            }
            Operation::Zero => {
                let (begin, epoch) = (next.promises.pieces.len(), next.epoch);
                let zeroed = (0..BLOCKS).map(|block| Piece {
                    block,
                    number: 0,
                    epoch,
                });
                next.promises.pieces.extend(zeroed);
                next.writes.insert(id, begin..next.promises.pieces.len());
                next.engine.zero(0, id, 0, BLOCKS, false)
            }
            Operation::Flush => {
                let written = next.promises.pieces.last();
                if written.is_some_and(|piece| piece.epoch == next.epoch) {
                    next.epoch += 1;
                }
                next.flushes.insert(id, next.promises.pieces.len());
                next.engine.flush(0, id)
            }
        };
        next.take(mode, effects);
        next
    }

    /// A unit of a store becomes durable.
    fn apply(&self, world: &mut World, store: &Store, unit: Unit) {
        let (by, replica) = (self.engine.incarnation(), store.replica);
        world.apply(
            by,
            replica,
            unit,
            store.version,
            &store.body_of(unit),
            Fate::Applied,
        );
    }

    fn acknowledge(&mut self, mode: Mode, at: usize) {
        let store = self.flying.remove(at);
        let mut world = std::mem::replace(&mut self.world, World::new(0));
        for unit in store.units() {
            self.apply(&mut world, &store, unit);
        }
        self.world = world;
        let effects = self.engine.stored(0, store.ticket, store.replica);
        self.take(mode, effects);
    }

    fn take(&mut self, mode: Mode, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Store(store) => {
                    self.flying.push(store);
                }
                Effect::Answer(id) => {
                    if let Some(prefix) = self.flushes.remove(&id)
                        && mode.flushes_durably()
                    {
                        self.promises.prefix = self.promises.prefix.max(prefix);
                    }
                    if let Some(pieces) = self.writes.remove(&id)
                        && mode.writes_through()
                    {
                        self.promises.durable.extend(pieces);
                    }
                }
            }
        }
    }
}
