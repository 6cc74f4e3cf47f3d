//! The state of a machine behind the simulation's lock.

use super::{disk::SimulatedDisk, seeded::Seeded};
use crate::FaultPoints;
use std::sync::Arc;

pub(super) struct MachineState {
    pub(super) name: String,
    pub(super) running: bool,
    pub(super) incarnation: u64,
    pub(super) disk: SimulatedDisk,
    pub(super) faults: Arc<FaultPoints>,
    pub(super) random: Seeded,
    /// Subtracted from the simulation's time: a monotonic clock means nothing after a restart.
    pub(super) boot_nanos: u64,
    pub(super) wall_offset_nanos: i64,
    pub(super) may_panic: bool,
    pub(super) panics: Vec<String>,
}

impl MachineState {
    /// A running machine with an empty disk; `number` gives it chances of its own.
    pub(super) fn new(name: &str, seed: u64, number: usize) -> Self {
        let faults = Arc::new(FaultPoints::default());
        faults.count_hits();
        Self {
            name: name.to_owned(),
            running: true,
            incarnation: 1,
            disk: SimulatedDisk::new(Seeded::new(seed, 1000 + number as u64)),
            faults,
            random: Seeded::new(seed, 2000 + number as u64),
            boot_nanos: 0,
            wall_offset_nanos: 0,
            may_panic: false,
            panics: Vec::new(),
        }
    }
}
