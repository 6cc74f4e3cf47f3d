//! Named places in the code at which a test stops the machine.
//!
//! Armed, the chosen hit of the chosen name acts: the simulated machine crashes, its tasks are dropped, its disk loses what was
//! not synced. In what ships there are none: the call does nothing.
//!
//! Beside them stand observations, by which an engine tells a test in which order things happened inside it.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// What an armed point does.
pub enum FaultAction {
    /// Calls this (which crashes the simulated machine) and never returns to the code behind the point.
    Crash(Box<dyn Fn() + Send + Sync>),
}

/// What is told of each observation: its name and value.
type Observer = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

struct Armed {
    /// `None`: any point.
    name: Option<String>,
    /// Counts down; acts at zero.
    hits_left: u64,
    action: FaultAction,
}

/// The fault points of one machine.
#[derive(Default)]
pub struct FaultPoints {
    watching: AtomicBool,
    armed: Mutex<Option<Armed>>,
    hits: Mutex<BTreeMap<&'static str, u64>>,
    acted: Mutex<BTreeMap<&'static str, u64>>,
    observed: AtomicBool,
    observer: Mutex<Option<Observer>>,
}

impl FaultPoints {
    /// Makes the `hit`th arrival (from 1) at `name` act.
    pub fn arm(&self, name: &str, hit: u64, action: FaultAction) {
        self.set(Some(name.to_owned()), hit, action);
    }

    /// Makes the `hit`th arrival (from 1) at any point act.
    pub fn arm_any(&self, hit: u64, action: FaultAction) {
        self.set(None, hit, action);
    }

    /// Takes back what was armed, if it has not acted.
    pub fn disarm(&self) {
        *self.armed.lock().expect("no panic under this lock") = None;
    }

    fn set(&self, name: Option<String>, hit: u64, action: FaultAction) {
        *self.armed.lock().expect("no panic under this lock") = Some(Armed {
            name,
            hits_left: hit.max(1),
            action,
        });
        self.watching.store(true, Ordering::Relaxed);
    }

    /// Starts to count arrivals, for the table of hits.
    pub fn count_hits(&self) {
        self.watching.store(true, Ordering::Relaxed);
    }

    /// Arrivals by name since counting began.
    pub fn hits(&self) -> BTreeMap<&'static str, u64> {
        self.hits.lock().expect("no panic under this lock").clone()
    }

    /// Points at which something armed acted, with how often.
    pub fn acted(&self) -> BTreeMap<&'static str, u64> {
        self.acted.lock().expect("no panic under this lock").clone()
    }

    /// Calls `observer` at every [`Env::observe`](crate::Env::observe), in the middle of the engine's step: it must neither
    /// block nor call the engine.
    pub fn set_observer(&self, observer: impl Fn(&'static str, u64) + Send + Sync + 'static) {
        *self.observer.lock().expect("no panic under this lock") = Some(Arc::new(observer));
        self.observed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn observe(&self, name: &'static str, value: u64) {
        if !self.observed.load(Ordering::Relaxed) {
            return;
        }
        let observer = self.observer.lock().expect("no panic under this lock").clone();
        if let Some(observer) = observer {
            observer(name, value);
        }
    }

    pub(crate) async fn reach(&self, name: &'static str) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        *self
            .hits
            .lock()
            .expect("no panic under this lock")
            .entry(name)
            .or_default() += 1;
        let action = {
            let mut armed = self.armed.lock().expect("no panic under this lock");
            match armed.as_mut() {
                Some(point) if point.name.as_deref().is_none_or(|armed| armed == name) => {
                    point.hits_left -= 1;
                    if point.hits_left == 0 {
                        armed.take().map(|point| point.action)
                    } else {
                        None
                    }
                }
                Some(_) | None => None,
            }
        };
        match action {
            None => {}
            Some(FaultAction::Crash(crash)) => {
                *self
                    .acted
                    .lock()
                    .expect("no panic under this lock")
                    .entry(name)
                    .or_default() += 1;
                crash();
                pending().await
            }
        }
    }
}
