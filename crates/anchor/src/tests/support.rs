//! A small deterministic world: seeded randomness, a clock that only moves when somebody sleeps, and a scheduler that polls
//! whichever future the seed says.

use firn_env::{Clock, Env, Monotonic, Parts, Random, Tasks, WallTime};
use futures::{future::BoxFuture, task::noop_waker_ref};
use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

/// A small generator (SplitMix64): the same seed gives the same numbers.
pub(crate) struct Dice {
    state: Mutex<u64>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(seed),
        })
    }

    /// A number from 0, below `sides`.
    pub(crate) fn roll(&self, sides: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(sides)) >> 64) as u64
    }

    fn next(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
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

/// Every sleep ends at its first or second poll and moves the clock by its length.
#[derive(Default)]
struct SteppingClock {
    now_nanos: Arc<Mutex<u64>>,
}

impl Clock for SteppingClock {
    fn now(&self) -> Monotonic {
        Monotonic(*self.now_nanos.lock().unwrap())
    }

    fn wall(&self) -> WallTime {
        WallTime(1_800_000_000_000_000_000 + i64::try_from(self.now().0).unwrap())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep {
            now_nanos: self.now_nanos.clone(),
            nanos: u64::try_from(duration.as_nanos()).unwrap(),
            slept: false,
        })
    }
}

struct Sleep {
    now_nanos: Arc<Mutex<u64>>,
    nanos: u64,
    slept: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.slept {
            return Poll::Ready(());
        }
        self.slept = true;
        *self.now_nanos.lock().unwrap() += self.nanos;
        Poll::Pending
    }
}

struct NoTasks;

impl Tasks for NoTasks {
    fn spawn(&self, name: &'static str, _: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
        panic!("the anchor runs nothing in the background, and yet {name}")
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// A world with this randomness. Disk and network are there because an `Env` has them; nothing here uses them.
pub(crate) fn world(dice: Arc<Dice>) -> Env {
    let real = firn_env::real(Path::new(".")).unwrap();
    Env::new(Parts {
        clock: Arc::new(SteppingClock::default()),
        random: dice,
        tasks: Arc::new(NoTasks),
        disk: real.disk().clone(),
        network: real.network().clone(),
        faults: real.faults().clone(),
    })
}

/// Polls once.
pub(crate) fn step<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls to the end.
pub(crate) fn run<T>(future: impl Future<Output = T> + Send) -> T {
    let mut future: BoxFuture<'_, T> = Box::pin(future);
    (0..1_000_000)
        .find_map(|_| step(&mut future))
        .expect("the future ends")
}
