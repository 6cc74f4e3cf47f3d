//! Many histories on all cores, and a summary.

use crate::history::{Build, Report, run};
use firn_env::mutants::planting;
use std::{
    cell::Cell,
    collections::BTreeMap,
    panic,
    sync::{
        Mutex, Once,
        atomic::{AtomicU64, Ordering},
    },
};

thread_local! {
    static IN_A_HISTORY: Cell<bool> = const { Cell::new(false) };
}

/// What many histories were like together.
#[derive(Debug, Default)]
pub struct Summary {
    /// Seeds of histories without failure.
    pub passed: u64,
    /// The others, with what was wrong.
    pub failed: BTreeMap<u64, Vec<String>>,
    /// Arrivals at fault points, and crashes there.
    pub points: BTreeMap<&'static str, (u64, u64)>,
    /// Other counts.
    pub counts: BTreeMap<&'static str, u64>,
    /// Task polls.
    pub steps: u64,
}

impl Summary {
    fn add(&mut self, seed: u64, report: Report) {
        if report.failures.is_empty() {
            self.passed += 1;
        } else {
            self.failed.insert(seed, report.failures);
        }
        for (name, count) in report.hits {
            self.points.entry(name).or_default().0 += count;
        }
        for (name, count) in report.crashes {
            self.points.entry(name).or_default().1 += count;
        }
        for (name, count) in report.counts {
            *self.counts.entry(name).or_default() += count;
        }
        self.steps += report.steps;
    }
}

/// Which histories are run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// On how many threads.
    pub threads: usize,
    /// No more are begun after one failed.
    pub stop_at_failure: bool,
    /// A bug that is planted in all of them.
    pub planted: Option<&'static str>,
}

/// Runs many histories.
pub fn run_many(build: Build<'_>, plan: Plan) -> Summary {
    quiet_panics();
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    // Each thread has worlds of its own; a world never leaves its thread.
    #[allow(
        clippy::disallowed_methods,
        reason = "whole simulations side by side, not tasks of one"
    )]
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let enough = plan.stop_at_failure && !lock(&summary).failed.is_empty();
                    if number >= plan.count || enough {
                        return;
                    }
                    IN_A_HISTORY.set(true);
                    let report = planting(plan.planted, || run(plan.first + number, build, false));
                    IN_A_HISTORY.set(false);
                    lock(&summary).add(plan.first + number, report);
                }
            });
        }
    });
    summary.into_inner().expect("no panic under this lock")
}

fn lock(summary: &Mutex<Summary>) -> std::sync::MutexGuard<'_, Summary> {
    summary.lock().expect("no panic under this lock")
}

/// Panics of simulated machines are part of the play and end up in the report; they need not be on the screen.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IN_A_HISTORY.get() || std::env::var_os("FIRN_SHOW_PANICS").is_some() {
                usual(info);
            }
        }));
    });
}
