//! A machine: what crashes as one. It has tasks, a disk, a clock that may be wrong, and fault points.
//!
//! Each start is an *incarnation*. A handle knows which one it belongs to; when that is over, its timers and disk calls
//! never complete and what it spawns never runs, exactly as for a process that was killed.

use super::{
    disk::{AttachedDisk, SimulatedDisk},
    executor::Shared,
    handle::Handle,
    machine_state::MachineState,
    network::state::address_of,
};
use crate::{Env, FaultAction, FaultPoints, Parts};
use std::sync::Arc;

/// A simulated machine; cheap to clone.
#[derive(Clone)]
pub struct Machine {
    shared: Arc<Shared>,
    id: usize,
}

impl Machine {
    pub(super) fn add(shared: &Arc<Shared>, name: &str) -> Self {
        let mut core = shared.core();
        let id = core.machines.len();
        let state = MachineState::new(name, core.seed, id);
        core.machines.push(state);
        core.network.add_machine(name);
        drop(core);
        Self {
            shared: shared.clone(),
            id,
        }
    }

    /// Its name, which is also its host name.
    pub fn name(&self) -> String {
        self.shared.core().machines[self.id].name.clone()
    }

    /// Its address on the simulated network.
    pub fn address(&self) -> String {
        address_of(self.id)
    }

    /// Whether its connections come from ports below 1024, which only root can use.
    pub fn use_privileged_ports(&self, privileged: bool) {
        self.shared.core().network.set_privileged(self.id, privileged);
    }

    /// The environment of the running incarnation.
    ///
    /// # Panics
    /// If the machine is down.
    pub fn env(&self) -> Env {
        let core = self.shared.core();
        let state = &core.machines[self.id];
        if !state.running {
            let name = state.name.clone();
            // Whoever ends because of this panic still drops things that take the lock.
            drop(core);
            panic!("machine {name} is down");
        }
        let handle = Arc::new(Handle {
            shared: self.shared.clone(),
            machine: self.id,
            incarnation: state.incarnation,
        });
        Env::new(Parts {
            clock: handle.clone(),
            random: handle.clone(),
            tasks: handle.clone(),
            disk: Arc::new(AttachedDisk::new(&state.disk, handle.clone())),
            network: handle,
            faults: state.faults.clone(),
        })
    }

    /// Cuts the power: all tasks of this machine end at their await, and its disk loses what the contract lets it lose.
    /// Takes effect at once; the tasks are dropped before any other runs. On a machine whose processes have ended it only loses what was not synced.
    pub fn crash(&self) {
        self.shared.core().crash(self.id);
    }

    /// Ends the processes but not the operating system (`kill -9`): the disk shows every write that was made, but what was
    /// not synced is still not durable, and a later [`Machine::crash`] may lose it.
    pub fn kill(&self) {
        self.shared.core().stop(self.id, false);
    }

    /// Starts a machine that is down, with the disk it was left with.
    ///
    /// # Panics
    /// If it is running.
    pub fn restart(&self) -> Env {
        {
            let mut core = self.shared.core();
            let now = core.now;
            let state = &mut core.machines[self.id];
            assert!(!state.running, "machine {} is running", state.name);
            state.running = true;
            state.incarnation += 1;
            // An arbitrary start, so that a time kept over a restart shows as the nonsense it is.
            state.boot_nanos = now.saturating_sub(state.random.below(1_000_000_000_000));
        }
        self.env()
    }

    /// Whether it is running.
    pub fn is_running(&self) -> bool {
        self.shared.core().machines[self.id].running
    }

    /// How often it was started.
    pub fn incarnation(&self) -> u64 {
        self.shared.core().machines[self.id].incarnation
    }

    /// Its disk, for faults and inspection.
    pub fn disk(&self) -> SimulatedDisk {
        self.shared.core().machines[self.id].disk.clone()
    }

    /// Its fault points; hits are counted over all incarnations.
    pub fn faults(&self) -> Arc<FaultPoints> {
        self.shared.core().machines[self.id].faults.clone()
    }

    /// Makes the `hit`th arrival (from 1) at the fault point `name` crash this machine.
    pub fn crash_at(&self, name: &str, hit: u64) {
        let machine = self.clone();
        self.faults()
            .arm(name, hit, FaultAction::Crash(Box::new(move || machine.crash())));
    }

    /// Makes the `hit`th arrival (from 1) at any fault point crash this machine.
    pub fn crash_at_any(&self, hit: u64) {
        let machine = self.clone();
        self.faults()
            .arm_any(hit, FaultAction::Crash(Box::new(move || machine.crash())));
    }

    /// Moves the wall clock, as an administrator or a bad time server would.
    pub fn jump_wall(&self, nanos: i64) {
        let mut core = self.shared.core();
        let state = &mut core.machines[self.id];
        state.wall_offset_nanos = state.wall_offset_nanos.saturating_add(nanos);
    }

    /// Whether a panic in one of its tasks is a crash of this machine (as after a failed fsync) rather than the end of the
    /// simulation with an error.
    pub fn may_panic(&self, allowed: bool) {
        self.shared.core().machines[self.id].may_panic = allowed;
    }

    /// The panics that crashed it, oldest first.
    pub fn panics(&self) -> Vec<String> {
        self.shared.core().machines[self.id].panics.clone()
    }

    /// The same, and forgets them.
    pub fn take_panics(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.core().machines[self.id].panics)
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }
}
