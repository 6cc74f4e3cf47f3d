//! The executor: one thread, virtual time, and a seeded choice of what runs next.
//!
//! A step polls one task, picked at random among those that were woken, so that every interleaving has a chance. When
//! none can run, the clock jumps to the next timer; now and then it does so while tasks are waiting, as on a loaded
//! machine a short timeout fires before the work it guards is done (measurements switch that off). When nothing runs and no timer is left, the run is
//! a deadlock and the error names who waits.
//!
//! Locks: `Core` is held for bookkeeping only; futures are polled and dropped outside of it, since both may come back
//! here. The ready queue has a lock of its own, because wakers are called from anywhere.

use super::{
    limits::{Limits, SimulationError},
    machine_state::MachineState,
    network::state::NetworkState,
    seeded::Seeded,
};
use futures::future::BoxFuture;
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

/// While tasks are runnable, one step in this many lets a near timer fire first.
const EARLY_TIMER_IN: u64 = 64;
/// Only timers this near fire early: a slow CPU is plausible, one that sleeps through a minute is not.
const EARLY_TIMER_NANOS: u64 = 10_000_000;

/// Names one task for ever; slots are used again, ids are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskId {
    slot: usize,
    id: u64,
}

/// Tasks that were woken and not polled since.
#[derive(Default)]
struct ReadyQueue(Mutex<Vec<TaskId>>);

struct TaskWaker {
    queue: Arc<ReadyQueue>,
    task: TaskId,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue
                .0
                .lock()
                .expect("no panic under this lock")
                .push(self.task);
        }
    }
}

struct TaskEntry {
    id: u64,
    name: &'static str,
    machine: usize,
    incarnation: u64,
    /// `None` while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    flag: Arc<TaskWaker>,
    waker: Waker,
}

/// What every handle on a simulation shares.
pub(super) struct Shared {
    core: Mutex<Core>,
    ready: Arc<ReadyQueue>,
}

/// The state behind the lock.
pub(super) struct Core {
    pub(super) seed: u64,
    pub(super) scheduler: Seeded,
    pub(super) now: u64,
    pub(super) machines: Vec<MachineState>,
    pub(super) network: NetworkState,
    tasks: Vec<Option<TaskEntry>>,
    free_slots: Vec<usize>,
    next_task: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    next_timer: u64,
    /// Things to drop when no lock is held and no task is being polled.
    graveyard: Vec<Box<dyn Any + Send>>,
    /// A machine crashed since tasks were last reaped.
    reap: bool,
    steps: u64,
    limits: Limits,
    hash: u64,
    print: bool,
    /// Timers may fire while tasks are runnable.
    early_timers: bool,
    root: Option<TaskId>,
}

impl Shared {
    pub(super) fn new(seed: u64, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(Core {
                seed,
                scheduler: Seeded::new(seed, 0),
                now: 0,
                machines: Vec::new(),
                network: NetworkState::new(seed),
                tasks: Vec::new(),
                free_slots: Vec::new(),
                next_task: 0,
                timers: BTreeMap::new(),
                next_timer: 0,
                graveyard: Vec::new(),
                reap: false,
                steps: 0,
                limits,
                hash: 0x9e37_79b9_7f4a_7c15,
                print: false,
                early_timers: true,
                root: None,
            }),
            ready: Arc::new(ReadyQueue::default()),
        })
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no panic under the simulation's lock")
    }

    /// Starts a task of `machine`; on an incarnation that is gone it is only kept to be dropped.
    pub(super) fn spawn(
        &self,
        machine: usize,
        incarnation: u64,
        name: &'static str,
        future: BoxFuture<'static, ()>,
    ) -> Option<TaskId> {
        let mut core = self.core();
        if !core.is_alive(machine, incarnation) {
            core.graveyard.push(Box::new(future));
            return None;
        }
        let id = core.next_task;
        core.next_task += 1;
        let slot = core.free_slots.pop().unwrap_or(core.tasks.len());
        let task = TaskId { slot, id };
        let flag = Arc::new(TaskWaker {
            queue: self.ready.clone(),
            task,
            queued: AtomicBool::new(false),
        });
        let entry = TaskEntry {
            id,
            name,
            machine,
            incarnation,
            future: Some(future),
            waker: Waker::from(flag.clone()),
            flag: flag.clone(),
        };
        if slot == core.tasks.len() {
            core.tasks.push(Some(entry));
        } else {
            core.tasks[slot] = Some(entry);
        }
        drop(core);
        flag.wake_by_ref();
        Some(task)
    }

    /// Ends a task; what it holds is dropped after the current step.
    pub(super) fn abort(&self, task: TaskId) {
        let mut core = self.core();
        if core.entry(task).is_some()
            && let Some(future) = core.remove(task)
        {
            core.graveyard.push(Box::new(future));
        }
    }

    /// Runs until `root` is done.
    pub(super) fn run(&self, root: TaskId) -> Result<(), SimulationError> {
        self.core().root = Some(root);
        loop {
            self.reap();
            if self.core().entry(root).is_none() {
                return Ok(());
            }
            match self.pick()? {
                Some(task) => self.step(task)?,
                None => self.advance()?,
            }
        }
    }

    /// Drops what ended, and the tasks of machines that crashed.
    fn reap(&self) {
        loop {
            let dead = {
                let mut core = self.core();
                if core.reap {
                    core.reap = false;
                    for slot in 0..core.tasks.len() {
                        let Some(entry) = &core.tasks[slot] else { continue };
                        if !core.is_alive(entry.machine, entry.incarnation) {
                            let task = TaskId { slot, id: entry.id };
                            if let Some(future) = core.remove(task) {
                                core.graveyard.push(Box::new(future));
                            }
                        }
                    }
                }
                std::mem::take(&mut core.graveyard)
            };
            if dead.is_empty() {
                return;
            }
            // Dropping may wake, spawn or abort: hence outside the lock, and again until nothing is left.
            drop(dead);
        }
    }

    fn pick(&self) -> Result<Option<TaskId>, SimulationError> {
        let mut core = self.core();
        let mut ready = self.ready.0.lock().expect("no panic under this lock");
        if ready.is_empty() {
            return Ok(None);
        }
        if core.steps >= core.limits.steps {
            drop(ready);
            return Err(SimulationError::StepLimit {
                steps: core.steps,
                live: core.live(),
            });
        }
        if core.early_timers
            && let Some((deadline, _)) = core.timers.keys().next().copied()
            && deadline.saturating_sub(core.now) < EARLY_TIMER_NANOS
            && core.scheduler.chance(1, EARLY_TIMER_IN)
        {
            return Ok(None);
        }
        let index = core.scheduler.index(ready.len());
        Ok(Some(ready.swap_remove(index)))
    }

    fn step(&self, task: TaskId) -> Result<(), SimulationError> {
        let (mut future, waker, machine, name) = {
            let mut core = self.core();
            let Some(entry) = core.entry_mut(task) else {
                return Ok(());
            };
            entry.flag.queued.store(false, Ordering::Relaxed);
            let Some(future) = entry.future.take() else {
                return Ok(());
            };
            let polled = (future, entry.waker.clone(), entry.machine, entry.name);
            core.steps += 1;
            let now = core.now;
            core.mix(task.id);
            core.mix(now);
            core.trace(|| format!("run {name} #{}", task.id, name = polled.3));
            polled
        };
        let mut context = Context::from_waker(&waker);
        let outcome = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        match outcome {
            Ok(Poll::Pending) => {
                let mut core = self.core();
                match core.entry_mut(task) {
                    Some(entry) => entry.future = Some(future),
                    // Aborted, or its machine crashed, while it ran.
                    None => core.graveyard.push(Box::new(future)),
                }
                Ok(())
            }
            Ok(Poll::Ready(())) => {
                self.core().remove(task);
                drop(future);
                Ok(())
            }
            Err(panic) => {
                self.core().remove(task);
                drop(future);
                self.panicked(machine, name, &*panic)
            }
        }
    }

    /// A panic ends the process: the machine crashes, and the run too unless the machine may panic.
    fn panicked(
        &self,
        machine: usize,
        task: &'static str,
        panic: &(dyn Any + Send),
    ) -> Result<(), SimulationError> {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without words".into());
        let mut core = self.core();
        core.trace(|| format!("panic in {task}: {message}"));
        if core.machines[machine].may_panic {
            core.machines[machine].panics.push(format!("{task}: {message}"));
            core.crash(machine);
            return Ok(());
        }
        Err(SimulationError::Panicked {
            machine: core.machines[machine].name.clone(),
            task: task.to_owned(),
            message,
        })
    }

    /// Moves the clock to the next timer and wakes all that are due then.
    fn advance(&self) -> Result<(), SimulationError> {
        let due = {
            let mut core = self.core();
            let Some((deadline, _)) = core.timers.keys().next().copied() else {
                return Err(SimulationError::Deadlock {
                    at: Duration::from_nanos(core.now),
                    live: core.live(),
                });
            };
            if u128::from(deadline) > core.limits.time.as_nanos() {
                return Err(SimulationError::TimeLimit {
                    at: Duration::from_nanos(core.now),
                    live: core.live(),
                });
            }
            let now = core.now.max(deadline);
            core.now = now;
            let later = core.timers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut core.timers, later)
        };
        for waker in due.into_values() {
            waker.wake();
        }
        Ok(())
    }

    /// Drops every task; the last thing a simulation does.
    pub(super) fn end(&self) {
        {
            let mut core = self.core();
            for machine in 0..core.machines.len() {
                core.crash(machine);
            }
        }
        self.reap();
        let timers = std::mem::take(&mut self.core().timers);
        drop(timers);
        let connections = std::mem::take(&mut self.core().network);
        drop(connections);
    }
}

impl Core {
    pub(super) fn is_alive(&self, machine: usize, incarnation: u64) -> bool {
        let state = &self.machines[machine];
        state.running && state.incarnation == incarnation
    }

    /// Cuts the power of a machine.
    pub(super) fn crash(&mut self, machine: usize) {
        self.stop(machine, true);
    }

    /// Stops a machine. Its tasks end before anything else runs; if the power was cut, its disk keeps what the contract
    /// promises, also when its processes had ended before.
    pub(super) fn stop(&mut self, machine: usize, power_cut: bool) {
        let running = self.machines[machine].running;
        if !running && !power_cut {
            return;
        }
        self.mix(machine as u64);
        self.trace(|| format!("machine {machine} stops, power cut: {power_cut}"));
        let state = &mut self.machines[machine];
        if power_cut {
            state.disk.crash();
        } else {
            state.disk.unlock_all();
        }
        if !running {
            return;
        }
        state.running = false;
        self.reap = true;
        self.network.machine_stopped(machine);
    }

    fn entry(&self, task: TaskId) -> Option<&TaskEntry> {
        self.tasks[task.slot].as_ref().filter(|entry| entry.id == task.id)
    }

    fn entry_mut(&mut self, task: TaskId) -> Option<&mut TaskEntry> {
        self.tasks[task.slot].as_mut().filter(|entry| entry.id == task.id)
    }

    /// Forgets a task and returns its future, unless that is being polled.
    fn remove(&mut self, task: TaskId) -> Option<BoxFuture<'static, ()>> {
        self.entry(task)?;
        let entry = self.tasks[task.slot].take()?;
        self.free_slots.push(task.slot);
        entry.future
    }

    /// Mixes a number into the trace hash: two runs with equal hashes took the same steps.
    pub(super) fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value)
            .wrapping_mul(0x9fb2_1c65_1e98_df25)
            .rotate_left(29);
    }

    pub(super) fn trace(&self, text: impl FnOnce() -> String) {
        if self.print {
            eprintln!("{:>14.6} {}", self.now as f64 / 1e9, text());
        }
    }

    pub(super) fn print(&mut self, on: bool) {
        self.print = on;
    }

    pub(super) fn set_early_timers(&mut self, on: bool) {
        self.early_timers = on;
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Tasks that have not ended, as `machine/name`, counted.
    fn live(&self) -> Vec<String> {
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for (slot, entry) in self.tasks.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if self.root == Some(TaskId { slot, id: entry.id }) {
                continue;
            }
            let name = format!("{}/{}", self.machines[entry.machine].name, entry.name);
            *names.entry(name).or_default() += 1;
        }
        names
            .into_iter()
            .map(|(name, count)| {
                if count == 1 {
                    name
                } else {
                    format!("{name} ×{count}")
                }
            })
            .collect()
    }
}

/// A timer of one incarnation of a machine. If the machine is gone it never completes.
pub(super) struct Sleep {
    shared: Arc<Shared>,
    machine: usize,
    incarnation: u64,
    deadline: u64,
    key: Option<(u64, u64)>,
}

impl Sleep {
    pub(super) fn new(shared: Arc<Shared>, machine: usize, incarnation: u64, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let deadline = shared.core().now.saturating_add(nanos);
        Self {
            shared,
            machine,
            incarnation,
            deadline,
            key: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut core = this.shared.core();
        if !core.is_alive(this.machine, this.incarnation) {
            return Poll::Pending;
        }
        if core.now >= this.deadline {
            if let Some(key) = this.key.take() {
                core.timers.remove(&key);
            }
            return Poll::Ready(());
        }
        let key = *this.key.get_or_insert_with(|| {
            core.next_timer += 1;
            (this.deadline, core.next_timer)
        });
        let replaced = core.timers.insert(key, context.waker().clone());
        drop(core);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let waker = self.shared.core().timers.remove(&key);
            drop(waker);
        }
    }
}
