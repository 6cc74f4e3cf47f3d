//! Limits of a simulated run, and the errors of one that ended without a result.

use std::time::Duration;

/// Where a run is given up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Polls of tasks.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
}

impl Default for Limits {
    /// Twenty million steps take some seconds; a month is longer than any history needs.
    fn default() -> Self {
        Self {
            steps: 20_000_000,
            time: Duration::from_secs(31 * 86_400),
        }
    }
}

/// Why a run ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// Nothing can run and no timer is left.
    #[error("deadlock at {at:?}: these tasks wait for each other: {}", live.join(", "))]
    Deadlock {
        /// The virtual time.
        at: Duration,
        /// Tasks that have not ended.
        live: Vec<String>,
    },
    /// Too many polls: something spins.
    #[error("not done after {steps} steps; live tasks: {}", live.join(", "))]
    StepLimit {
        /// Polls so far.
        steps: u64,
        /// Tasks that have not ended.
        live: Vec<String>,
    },
    /// Too much virtual time: something waits for what never comes.
    #[error("not done by {at:?}; live tasks: {}", live.join(", "))]
    TimeLimit {
        /// The virtual time.
        at: Duration,
        /// Tasks that have not ended.
        live: Vec<String>,
    },
    /// A task panicked on a machine that must not.
    #[error("task {task} of {machine} panicked: {message}")]
    Panicked {
        /// The machine.
        machine: String,
        /// The task.
        task: String,
        /// Its words.
        message: String,
    },
}
