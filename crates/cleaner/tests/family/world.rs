//! Seeded randomness, a clock that moves when the test says so, and futures that are polled by hand: a cleaner can be
//! stopped between any two requests, left there for a year, dropped, or gone on with.

use super::Gate;
use firn_anchor::Anchor;
use firn_env::{Clock, Env, Monotonic, Parts, Random, Tasks, WallTime};
use firn_format::FamilyId;
use firn_store::MemoryStore;
use firn_table::MemoryTable;
use futures::{future::BoxFuture, task::noop_waker_ref};
use std::{
    collections::BTreeMap,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

/// SplitMix64: the same seed gives the same numbers.
pub struct Dice(Mutex<u64>);

impl Dice {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(seed)))
    }

    /// A number from 0, below `sides`.
    pub fn roll(&self, sides: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(sides)) >> 64) as u64
    }

    fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Random for Dice {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.next().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}

/// Moves by what the test adds, and by a nanosecond a sleep.
#[derive(Clone, Default)]
pub struct HandClock(Arc<Mutex<Duration>>);

impl HandClock {
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for HandClock {
    fn now(&self) -> Monotonic {
        Monotonic(self.0.lock().unwrap().as_nanos() as u64)
    }

    fn wall(&self) -> WallTime {
        WallTime(1_800_000_000_000_000_000 + self.now().0 as i64)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Once(false))
    }
}

/// Pending once.
pub struct Once(pub bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

struct NoTasks;

impl Tasks for NoTasks {
    fn spawn(&self, name: &'static str, _: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
        panic!("the cleaner runs nothing in the background, and yet {name}")
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// Polls once.
pub fn step<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls to the end.
pub fn run<T>(future: impl Future<Output = T> + Send) -> T {
    let mut future: BoxFuture<'_, T> = Box::pin(future);
    (0..50_000_000)
        .find_map(|_| step(&mut future))
        .expect("the future ends")
}

pub const FAMILY: FamilyId = FamilyId([0xfa; 16]);

/// One bucket, one table, one family.
pub struct World {
    pub dice: Arc<Dice>,
    pub clock: HandClock,
    pub env: Env,
    pub store: Arc<MemoryStore>,
    /// The mirror; empty unless a test keeps one.
    pub second: Arc<MemoryStore>,
    pub table: MemoryTable,
    /// When each segment was first doomed, by sort key.
    pub doomed_at: Arc<Mutex<BTreeMap<String, Monotonic>>>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let (dice, clock) = (Dice::new(seed), HandClock::default());
        let real = firn_env::real(Path::new(".")).unwrap();
        let env = Env::new(Parts {
            clock: Arc::new(clock.clone()),
            random: dice.clone(),
            tasks: Arc::new(NoTasks),
            disk: real.disk().clone(),
            network: real.network().clone(),
            faults: Arc::default(),
        });
        let table = MemoryTable::new();
        let doomed_at: Arc<Mutex<BTreeMap<String, Monotonic>>> = Arc::default();
        let (noted, at) = (doomed_at.clone(), clock.clone());
        table.watch(move |key, value| {
            if let (Some(segment), Some(_)) = (key.sort.strip_prefix("doomed/"), value) {
                // A retirement that moved nothing is forgotten, and a put that lands late then makes another. Nothing of the
                // segment was ever needed again, so whoever saw the first one may still act on it.
                noted
                    .lock()
                    .unwrap()
                    .entry(segment.to_owned())
                    .or_insert_with(|| at.now());
            }
        });
        let world = Self {
            store: Arc::new(MemoryStore::new(&env)),
            second: Arc::new(MemoryStore::new(&env)),
            dice,
            clock,
            env,
            table,
            doomed_at,
        };
        run(world.anchor().create_family()).unwrap();
        world
    }

    /// Makes the bucket, empty so far, one that keeps what is deleted.
    pub fn keep_versions(&mut self) {
        self.store = Arc::new(MemoryStore::keeping_versions(&self.env));
    }

    /// An anchor whose requests yield once.
    pub fn anchor(&self) -> Anchor {
        let client = self.table.connect(&self.env);
        client.set_rates(firn_table::FaultRates {
            delay: Duration::from_nanos(1)..=Duration::from_nanos(2),
            ..firn_table::FaultRates::default()
        });
        Anchor::new(client, self.env.clone(), FAMILY)
    }

    /// A store whose requests yield once.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::new(Gate::new(self.store.clone(), &self.env))
    }

    pub fn roll(&self, sides: u64) -> u64 {
        self.dice.roll(sides)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}
