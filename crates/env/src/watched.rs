//! A value that tasks wait on until it says what they wait for.
//!
//! It stands in for `tokio::sync::watch`, whose waiters stand in one of eight queues that the thread draws: several tasks
//! that wait for one change are woken in another order in each run, so that a seed no longer means one history. Here they
//! are woken in the order in which they began to wait.

use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// See the module. Cheap to clone; all clones are one value.
#[derive(Debug, Default)]
pub struct Watched<T>(Arc<Inner<T>>);

#[derive(Debug, Default)]
struct Inner<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Clone for Watched<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Watched<T> {
    /// A value to begin with.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner {
            value: Mutex::new(value),
            changed: Notify::new(),
        }))
    }

    fn value(&self) -> MutexGuard<'_, T> {
        self.0.value.lock().expect("no panic under this lock")
    }

    /// The value now.
    pub fn get(&self) -> T {
        self.value().clone()
    }

    /// Puts another value in its place and has all who wait look at it.
    pub fn set(&self, value: T) {
        *self.value() = value;
        self.0.changed.notify_waiters();
    }

    /// The same, unless the value that stands there says that it is to stay.
    pub fn set_unless(&self, value: T, stays: impl FnOnce(&T) -> bool) {
        {
            let mut present = self.value();
            if stays(&present) {
                return;
            }
            *present = value;
        }
        self.0.changed.notify_waiters();
    }

    /// Waits until the value is as wanted and returns it. Of values that follow each other quickly a waiter may see only
    /// the last. Can be dropped at any time.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&T) -> bool) -> T {
        loop {
            // Made before the look: a change in between completes it.
            let changed = self.0.changed.notified();
            let value = self.get();
            if wanted(&value) {
                return value;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Watched;
    use crate::sim::Simulation;
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    /// The hash of a run in which many tasks wait for the same changes, and the order in which they saw the last.
    fn run(seed: u64) -> (u64, Vec<u32>) {
        let simulation = Simulation::new(seed);
        let env = simulation.env();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let order = seen.clone();
        simulation
            .run(async move {
                let watched = Watched::new(0);
                for number in 0..50 {
                    let (watched, order) = (watched.clone(), order.clone());
                    drop(env.spawn("waiter", async move {
                        assert!(watched.wait_for(|value| *value >= 1).await >= 1);
                        assert_eq!(watched.wait_for(|value| *value >= 3).await, 3);
                        order.lock().expect("no panic under this lock").push(number);
                    }));
                }
                for value in 1..=3 {
                    env.sleep(Duration::from_secs(1)).await;
                    assert_eq!(watched.get(), value - 1);
                    watched.set(value);
                }
                env.sleep(Duration::from_secs(1)).await;
            })
            .expect("it ends");
        let seen = seen.lock().expect("no panic under this lock").clone();
        (simulation.trace_hash(), seen)
    }

    #[test]
    fn all_waiters_see_a_change_and_in_the_same_order_in_each_run() {
        for seed in 0..20 {
            let (one, other) = (run(seed), run(seed));
            assert_eq!(one, other, "seed {seed}");
            let mut seen = one.1;
            seen.sort_unstable();
            assert_eq!(seen, (0..50).collect::<Vec<u32>>());
        }
    }
}
