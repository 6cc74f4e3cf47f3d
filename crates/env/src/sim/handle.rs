//! One incarnation's access to the simulation: its clock, its chances, its tasks.

use super::executor::{Shared, Sleep};
use crate::{Clock, Monotonic, Random, Tasks, WallTime};
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};

/// Where wall clocks start: 2026-01-01T00:00:00Z.
const WALL_START_NANOS: i64 = 1_767_225_600_000_000_000;
/// Compute work runs in place; one in this many runs as a task of its own, so that others may come in between.
const COMPUTE_LATER_IN: u64 = 4;
/// Half of those take up to so long, as on a pool whose other threads are busy: longer than the next sync, so that work ends in
/// another order than it began.
const COMPUTE_DELAY_MAX: Duration = Duration::from_millis(5);

/// One incarnation's access to the simulation.
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) machine: usize,
    pub(super) incarnation: u64,
}

impl Handle {
    pub(super) fn is_alive(&self) -> bool {
        self.shared.core().is_alive(self.machine, self.incarnation)
    }

    pub(super) fn sleep_for(&self, duration: Duration) -> Sleep {
        Sleep::new(self.shared.clone(), self.machine, self.incarnation, duration)
    }

    /// Runs `future` beside its caller, which may be gone before it ends.
    pub(super) fn detach(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.shared.spawn(self.machine, self.incarnation, name, future);
    }
}

impl Clock for Handle {
    fn now(&self) -> Monotonic {
        let core = self.shared.core();
        Monotonic(core.now - core.machines[self.machine].boot_nanos.min(core.now))
    }

    fn wall(&self) -> WallTime {
        let core = self.shared.core();
        let passed = i64::try_from(core.now).unwrap_or(i64::MAX);
        WallTime(
            WALL_START_NANOS
                .saturating_add(passed)
                .saturating_add(core.machines[self.machine].wall_offset_nanos),
        )
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.sleep_for(duration))
    }
}

impl Random for Handle {
    fn fill(&self, bytes: &mut [u8]) {
        self.shared.core().machines[self.machine].random.fill(bytes);
    }
}

impl Tasks for Handle {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
        let task = self.shared.spawn(self.machine, self.incarnation, name, future);
        let shared = Arc::downgrade(&self.shared);
        Box::new(move || {
            if let (Some(task), Some(shared)) = (task, shared.upgrade()) {
                shared.abort(task);
            }
        })
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        // On a dead machine nothing may run, and the work must not be dropped at once: whoever awaits it would notice.
        let later = !self.is_alive() || self.shared.core().scheduler.chance(1, COMPUTE_LATER_IN);
        if later {
            let delay = {
                let mut core = self.shared.core();
                let slow = core.scheduler.chance(1, 2);
                slow.then(|| core.scheduler.duration(Duration::ZERO, COMPUTE_DELAY_MAX))
            };
            let sleep = delay.map(|delay| self.sleep_for(delay));
            let work = async move {
                if let Some(sleep) = sleep {
                    sleep.await;
                }
                work();
            };
            self.detach("compute", Box::pin(work));
        } else {
            work();
        }
    }
}
