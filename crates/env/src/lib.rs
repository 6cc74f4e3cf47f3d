//! Everything an engine may ask of the outside world, in one value: [`Env`].
//!
//! Firn's engines never touch the operating system themselves. Time, randomness, the local disk, the network and the
//! spawning of tasks all come from an `Env`, which has two implementations: the real one (tokio, the kernel) and the
//! simulated one (one thread, virtual time, a seeded scheduler, a disk that loses what was not synced). The same engine
//! code runs on both, so a failing history is replayed from its seed (decision 0001).
//!
//! `tokio::sync` and `futures` combinators need no runtime and may be used freely; `tokio::time`, `tokio::spawn`,
//! `std::time::*::now` and thread-local randomness may not, and clippy refuses them (`clippy.toml`).

mod backoff;
mod calls;
mod clock;
mod connections;
mod disk;
#[cfg(feature = "testing")]
mod fault;
mod log_limiter;
pub mod mutants;
mod network;
mod operation;
mod queue_depth;
mod random;
#[cfg(target_os = "linux")]
mod real;
#[cfg(feature = "testing")]
pub mod sim;
mod tasks;
pub mod terminal;
mod watched;

pub use backoff::{Attempts, Backoff, Retry};
pub use calls::Calls;
pub use clock::{Clock, Elapsed, Monotonic, WallTime};
pub use connections::{ConnectionTable, IDLE_MIN, InFlight, Place, TableFull};
pub use disk::{DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, EntryKind, FileStatus, OpenMode};
#[cfg(feature = "testing")]
pub use fault::{FaultAction, FaultPoints};
pub use log_limiter::LogLimiter;
pub use network::{ByteStream, DatagramSocket, Listener, Network};
pub use operation::{Operation, Wait, Waiting};
pub use queue_depth::{QueueDepth, RequestInFlight, RequestSource};
pub use random::Random;
// What stores anything runs on Linux. Elsewhere there is the seam alone, for the libraries that the command line tool shares.
#[cfg(target_os = "linux")]
pub use real::{RealDisk, listen_tcp, real};
pub use tasks::{Task, TaskEnded, Tasks};
pub use watched::Watched;

use futures::FutureExt;
use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

/// What a process ends with when one of its essential tasks has panicked: what a program ends with whose main task has.
pub const ESSENTIAL_PANICKED: i32 = 101;

/// A handle on the outside world; cheap to clone.
#[derive(Clone)]
pub struct Env {
    parts: Arc<Parts>,
    queue_depth: Arc<QueueDepth>,
}

/// The replaceable parts of an [`Env`].
pub struct Parts {
    /// Monotonic and wall time.
    pub clock: Arc<dyn Clock>,
    /// Randomness: the operating system's, or the simulation's seed.
    pub random: Arc<dyn Random>,
    /// Spawning of concurrent tasks.
    pub tasks: Arc<dyn Tasks>,
    /// The local disk, rooted at one directory.
    pub disk: Arc<dyn Disk>,
    /// Stream connections.
    pub network: Arc<dyn Network>,
    /// Named places where a test may crash the machine.
    #[cfg(feature = "testing")]
    pub faults: Arc<FaultPoints>,
}

impl Env {
    /// Assembles an environment from its parts.
    pub fn new(parts: Parts) -> Self {
        Self::with_queue_depth(parts, Arc::default())
    }

    /// The same, where a part looks at how many requests are in flight.
    fn with_queue_depth(parts: Parts, queue_depth: Arc<QueueDepth>) -> Self {
        Self {
            parts: Arc::new(parts),
            queue_depth,
        }
    }

    /// Monotonic time: never goes back, unrelated to the calendar.
    pub fn now(&self) -> Monotonic {
        self.parts.clock.now()
    }

    /// Calendar time; may jump either way when an administrator sets the clock.
    pub fn wall(&self) -> WallTime {
        self.parts.clock.wall()
    }

    /// Completes once `duration` has passed on the monotonic clock.
    pub async fn sleep(&self, duration: Duration) {
        self.parts.clock.sleep(duration).await;
    }

    /// Completes some microseconds after `duration` has passed at most, where [`Env::sleep`] may take a millisecond longer: for
    /// what stands in for a device. It keeps a processor busy for the last two milliseconds.
    pub async fn sleep_precisely(&self, duration: Duration) {
        self.parts.clock.sleep_precisely(duration).await;
    }

    /// Runs `future` for at most `limit`; dropping it at the limit must be safe for the caller.
    ///
    /// # Errors
    /// [`Elapsed`] when the limit came first.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
        let sleep = self.sleep(limit);
        futures::pin_mut!(future, sleep);
        match futures::future::select(future, sleep).await {
            futures::future::Either::Left((value, _)) => Ok(value),
            futures::future::Either::Right(((), _)) => Err(Elapsed { limit }),
        }
    }

    /// `N` random bytes, fit for keys and salts under the real environment.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.parts.random.fill(&mut bytes);
        bytes
    }

    /// A uniformly random 64-bit number.
    pub fn random_u64(&self) -> u64 {
        u64::from_le_bytes(self.random_bytes())
    }

    /// A uniformly random number below `bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn random_below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random element");
        // The modulo bias at 64 bits is below 2^-32 for any bound a jitter or a choice uses.
        ((u128::from(self.random_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Starts a task. Dropping the handle lets it run on; [`Task::abort`] ends it at its next await.
    pub fn spawn<T, F>(&self, name: &'static str, future: F) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        Task::start(&*self.parts.tasks, name, future)
    }

    /// Starts a task without which the process is of no use, or worse: it would go on looking alive. If it panics, the process ends
    /// (exit code [`ESSENTIAL_PANICKED`]) and whoever supervises it starts it again. A task that returns has done its work.
    pub fn spawn_essential<T, F>(&self, name: &'static str, future: F) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let tasks = self.parts.tasks.clone();
        self.spawn(name, async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(value) => value,
                Err(payload) => match tasks.essential_panicked(name, payload) {},
            }
        })
    }

    /// Runs CPU-bound work (sealing, hashing) where it does not hold up other tasks.
    pub async fn compute<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        tasks::compute(&*self.parts.tasks, work).await
    }

    /// Lets every task that is ready run before this one goes on.
    pub async fn yield_now(&self) {
        self.parts.tasks.yield_now().await;
    }

    /// The local disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.parts.disk
    }

    /// The requests in flight: whoever serves any notes them here.
    pub fn queue_depth(&self) -> &Arc<QueueDepth> {
        &self.queue_depth
    }

    /// The network.
    pub fn network(&self) -> &Arc<dyn Network> {
        &self.parts.network
    }

    /// A named place at which a test may stop the machine or inject an error. Nothing happens in production.
    ///
    /// Under simulation a crash here never returns: the machine's tasks are dropped.
    pub async fn fault_point(&self, name: &'static str) {
        #[cfg(feature = "testing")]
        self.parts.faults.reach(name).await;
        #[cfg(not(feature = "testing"))]
        let _ = name;
    }

    /// Tells a test that something happened inside an engine, at the instant it happens. Nothing in production.
    pub fn observe(&self, name: &'static str, value: u64) {
        #[cfg(feature = "testing")]
        self.parts.faults.observe(name, value);
        #[cfg(not(feature = "testing"))]
        let _ = (name, value);
    }

    /// The fault points themselves, for tests that arm them and print the table of hits.
    #[cfg(feature = "testing")]
    pub fn faults(&self) -> &Arc<FaultPoints> {
        &self.parts.faults
    }

    /// The same environment with another disk, such as a subdirectory of this one.
    #[must_use]
    pub fn with_disk(&self, disk: Arc<dyn Disk>) -> Self {
        let parts = Parts {
            clock: self.parts.clock.clone(),
            random: self.parts.random.clone(),
            tasks: self.parts.tasks.clone(),
            disk,
            network: self.parts.network.clone(),
            #[cfg(feature = "testing")]
            faults: self.parts.faults.clone(),
        };
        Self::with_queue_depth(parts, self.queue_depth.clone())
    }
}
