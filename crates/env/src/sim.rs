//! The simulated environment: a whole installation on one thread, repeatable from a seed.
//!
//! A [`Simulation`] has machines; each gives an [`Env`](crate::Env) like the real one. Engines cannot tell the
//! difference, but time is virtual, every choice (who runs next, how long a disk takes, what a crash leaves) comes from
//! the seed, and a machine can be stopped between any two awaits. [`Simulation::trace_hash`] covers every step, so that
//! a test can prove that the same seed is the same run.
//!
//! ```
//! use firn_env::sim::Simulation;
//! use std::time::Duration;
//!
//! let simulation = Simulation::new(7);
//! let machine = simulation.machine("edge");
//! let env = machine.env();
//! simulation
//!     .run(async move { env.sleep(Duration::from_secs(3600)).await })
//!     .expect("an hour passes at once");
//! ```
//!
//! What breaks repeatability, and is therefore refused by `clippy.toml` or by review: `tokio::select!` and
//! `futures::select!` without `biased` (they draw from the thread), several waiters on one `tokio::sync::watch` (it draws their
//! order from the thread; [`Watched`](crate::Watched) does not), the order of a `HashMap`, addresses of memory, and anything
//! that asks the operating system.

mod disk;
mod executor;
mod handle;
mod limits;
mod machine;
mod machine_state;
mod network;
mod recording;
mod seeded;
#[cfg(test)]
mod tests;

pub use disk::{DiskImage, DiskOptions, FileImage, SimulatedDisk, Survival};
pub use limits::{Limits, SimulationError};
pub use machine::Machine;
pub use recording::{Recording, RecordingDisk};
pub use seeded::Seeded;

use crate::Env;
use executor::Shared;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// A deterministic world. Dropping it ends every task.
pub struct Simulation {
    shared: Arc<Shared>,
    controller: Machine,
    seed: u64,
}

impl Simulation {
    /// A world with no machine but the controller, from which tests act.
    pub fn new(seed: u64) -> Self {
        Self::with_limits(seed, Limits::default())
    }

    /// The same with other limits.
    pub fn with_limits(seed: u64, limits: Limits) -> Self {
        let shared = Shared::new(seed, limits);
        let controller = Machine::add(&shared, "controller");
        Self {
            shared,
            controller,
            seed,
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a running machine with an empty disk.
    pub fn machine(&self, name: &str) -> Machine {
        Machine::add(&self.shared, name)
    }

    /// The environment of the controller, a machine that never crashes.
    pub fn env(&self) -> Env {
        self.controller.env()
    }

    /// Runs everything until `future` is done; tasks left over go on in the next run.
    ///
    /// # Errors
    /// [`SimulationError`] if it cannot be done.
    pub fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, SimulationError> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let root = self
            .shared
            .spawn(
                self.controller.id(),
                self.controller.incarnation(),
                "root",
                Box::pin(async move {
                    let value = future.await;
                    *slot.lock().expect("no panic under this lock") = Some(value);
                }),
            )
            .expect("the controller never crashes");
        let outcome = self.shared.run(root);
        if outcome.is_err() {
            self.shared.abort(root);
        }
        outcome?;
        let value = result.lock().expect("no panic under this lock").take();
        Ok(value.expect("the root task ended"))
    }

    /// Cuts (or heals) the network between two machines.
    pub fn partition(&self, one: &Machine, other: &Machine, cut: bool) {
        self.shared
            .core()
            .network
            .set_partition(one.id(), other.id(), cut);
    }

    /// Resets every connection of a machine.
    pub fn reset_connections(&self, machine: &Machine) {
        self.shared.core().network.reset(machine.id());
    }

    /// Sets the longest one-way delay of the network.
    pub fn set_network_latency(&self, longest: Duration) {
        self.shared.core().network.set_latency(longest);
    }

    /// Whether a near timer may fire while tasks are runnable, as on a loaded machine (the default). Without, time passes only
    /// while everybody waits: what a measurement of waiting wants.
    pub fn set_early_timers(&self, on: bool) {
        self.shared.core().set_early_timers(on);
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.shared.core().now)
    }

    /// Polls of tasks so far.
    pub fn steps(&self) -> u64 {
        self.shared.core().steps()
    }

    /// A hash of every step so far: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.shared.core().hash()
    }

    /// Mixes a result of the test's own into the trace hash.
    pub fn note(&self, value: u64) {
        self.shared.core().mix(value);
    }

    /// Prints every step to standard error, for the replay of one seed.
    pub fn print_steps(&self, on: bool) {
        self.shared.core().print(on);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.shared.end();
    }
}
