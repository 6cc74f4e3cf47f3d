//! Register of waits of stores and loads at this moment, for people: each wait is here from its first retry to its end.

use firn_env::{Env, Monotonic};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tracing::debug;

/// A load is given back to be asked again elsewhere, so its wait has no end of its own: it is over when no load has failed for so
/// long, which is longer than a call may take.
const LOAD_FRESH_FOR: Duration = Duration::from_secs(15);

/// Why something waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Since when.
    pub since: Monotonic,
    /// What the node that was asked last said.
    pub why: String,
}

#[derive(Default)]
struct Open {
    next: u64,
    stores: BTreeMap<u64, Waiting>,
    /// The last load that failed, and when.
    load: Option<(Waiting, Monotonic)>,
}

#[derive(Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<Open>>);

/// One wait; it is over when this is dropped.
pub(crate) struct Wait {
    waits: Waits,
    key: u64,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.open().stores.remove(&self.key);
    }
}

impl Waits {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Something waits since then.
    pub(crate) fn begin(&self, since: Monotonic, why: String) -> Wait {
        debug!(why, "nodes are asked again");
        let mut open = self.open();
        let key = open.next;
        open.next += 1;
        open.stores.insert(key, Waiting { since, why });
        Wait {
            waits: self.clone(),
            key,
        }
    }

    pub(crate) fn load_failed(&self, env: &Env, why: String) {
        let now = env.now();
        let mut open = self.open();
        let since = match &open.load {
            Some((waiting, at)) if now.since(*at) < LOAD_FRESH_FOR => waiting.since,
            Some(_) | None => now,
        };
        open.load = Some((Waiting { since, why }, now));
    }

    pub(crate) fn load_done(&self) {
        self.open().load = None;
    }

    /// What has waited longest of what waits now.
    pub(crate) fn oldest(&self, env: &Env) -> Option<Waiting> {
        let now = env.now();
        let open = self.open();
        let load = open
            .load
            .as_ref()
            .filter(|(_, at)| now.since(*at) < LOAD_FRESH_FOR);
        let stores = open.stores.values();
        stores
            .chain(load.map(|(waiting, _)| waiting))
            .min_by_key(|waiting| waiting.since)
            .cloned()
    }
}

impl Wait {
    /// Another node, or another word of the same.
    pub(crate) fn say(&self, why: String) {
        if let Some(waiting) = self.waits.open().stores.get_mut(&self.key) {
            waiting.why = why;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;

    #[test]
    fn what_waits_longest_is_told_and_what_is_over_is_not() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        simulation
            .run(async move {
                let waits = Waits::default();
                assert_eq!(waits.oldest(&env), None);
                let first = waits.begin(env.now(), "one".into());
                env.sleep(Duration::from_secs(1)).await;
                let second = waits.begin(env.now(), "two".into());
                assert_eq!(waits.oldest(&env).map(|oldest| oldest.why), Some("one".into()));
                first.say("one, again".into());
                assert_eq!(
                    waits.oldest(&env).map(|oldest| oldest.why),
                    Some("one, again".into())
                );
                drop(first);
                assert_eq!(waits.oldest(&env).map(|oldest| oldest.why), Some("two".into()));
                drop(second);
                waits.load_failed(&env, "three".into());
                assert_eq!(waits.oldest(&env).map(|oldest| oldest.why), Some("three".into()));
                env.sleep(Duration::from_secs(20)).await;
                assert_eq!(waits.oldest(&env), None, "nobody has asked since");
            })
            .expect("the run ends");
    }
}
