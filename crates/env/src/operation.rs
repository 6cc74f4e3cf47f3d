//! Operation: a call from outside while it is executed, and what it waits for, so that a slow one can be explained.
//!
//! Whoever serves calls runs each as an [`Operation`]; whoever waits somewhere below says for what, with [`Env::waits_for`]. What
//! runs in a task of its own, such as a request to the store that several readers share, is noted by each call that waits for it. Where no
//! call is served (checkpoints, cleaning, tests) nothing is noted, and it costs a look at a thread's variable.

use crate::{Env, Monotonic};
use futures::{future::poll_fn, pin_mut};
use std::{
    cell::RefCell,
    fmt::{self, Display, Formatter},
    future::Future,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Objects of a volume that are not in memory: from the cache on disk, or the object store.
    Objects,
    /// The local journal: that a change is on this machine's disk.
    Journal,
    /// Room in the journal or in memory, which only the cloud can make.
    Room,
    /// The cloud: that a change is in it (level 2).
    Cloud,
    /// Clients of other protocols, until they have forgotten what they keep of a file.
    OtherClients,
}

impl Wait {
    const ALL: [Self; 5] = [
        Self::Objects,
        Self::Journal,
        Self::Room,
        Self::Cloud,
        Self::OtherClients,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Objects => "for the object store or its cache on disk",
            Self::Journal => "for the journal's disk",
            Self::Room => "for room in journal or memory, until the cloud takes data",
            Self::Cloud => "for the cloud to have the change",
            Self::OtherClients => "for clients of other protocols to forget what they keep",
        }
    }
}

/// How long was waited for one thing. What is waited for several times at one moment passes once.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    times: u32,
    total: Duration,
    under_way: u32,
    since: Monotonic,
}

/// One call from outside while it is executed.
#[derive(Debug, Default)]
pub struct Operation {
    waited: Mutex<[Waited; Wait::ALL.len()]>,
}

thread_local! {
    /// The operation whose future this thread polls.
    static CURRENT: RefCell<Option<Arc<Operation>>> = const { RefCell::new(None) };
}

/// Puts back, also after a panic, what was polled around this.
struct Entered(Option<Arc<Operation>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Operation {
    /// An operation that has not waited yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Runs `future` as this operation.
    pub async fn run<T>(self: &Arc<Self>, future: impl Future<Output = T>) -> T {
        pin_mut!(future);
        poll_fn(|context| {
            let _entered = Entered(CURRENT.replace(Some(self.clone())));
            future.as_mut().poll(context)
        })
        .await
    }

    /// What was waited for until now, longest first, for a line of a log: `2.28s for the journal's disk (3 times)`.
    pub fn waits(&self) -> impl Display + use<> {
        let mut waits: Vec<_> = Wait::ALL
            .into_iter()
            .zip(*self.lock())
            .filter(|(_, waited)| waited.times > 0)
            .collect();
        waits.sort_by_key(|(_, waited)| std::cmp::Reverse(waited.total));
        Waits(waits)
    }

    /// How long was waited for `wait`, and how many times.
    pub fn waited(&self, wait: Wait) -> (Duration, u32) {
        let waited = self.lock()[wait as usize];
        (waited.total, waited.times)
    }

    fn lock(&self) -> MutexGuard<'_, [Waited; Wait::ALL.len()]> {
        self.waited.lock().expect("no panic under an operation's lock")
    }
}

struct Waits(Vec<(Wait, Waited)>);

impl Display for Waits {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("for nothing outside this process");
        }
        for (index, (wait, waited)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{:.2?} {}", waited.total, wait.text())?;
            if waited.times > 1 {
                write!(f, " ({} times)", waited.times)?;
            }
        }
        Ok(())
    }
}

/// A wait that is under way; it ends when this is dropped.
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting(Option<(Env, Arc<Operation>, Wait)>);

impl Env {
    /// Notes that the call which is executed here waits from now on, until what is returned is dropped.
    pub fn waits_for(&self, wait: Wait) -> Waiting {
        let Some(operation) = CURRENT.with_borrow(Clone::clone) else {
            return Waiting(None);
        };
        {
            let waited = &mut operation.lock()[wait as usize];
            if waited.under_way == 0 {
                waited.since = self.now();
            }
            waited.under_way += 1;
            waited.times = waited.times.saturating_add(1);
        }
        Waiting(Some((self.clone(), operation, wait)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((env, operation, wait)) = self.0.take() {
            let waited = &mut operation.lock()[wait as usize];
            waited.under_way -= 1;
            if waited.under_way == 0 {
                waited.total += env.now().since(waited.since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_at_one_moment_pass_once_and_those_of_others_are_not_counted() {
        let simulation = Simulation::new(7);
        simulation.set_early_timers(false);
        let env = simulation.machine("edge").env();
        let (operation, line) = simulation
            .run(async move {
                let operation = Operation::new();
                let wait = async |wait: Wait, seconds: u32| {
                    let _waiting = env.waits_for(wait);
                    env.sleep(SECOND * seconds).await;
                };
                let work = async {
                    wait(Wait::Journal, 1).await;
                    futures::join!(wait(Wait::Objects, 2), wait(Wait::Objects, 3));
                    // Given up after a second: what was waited is waited.
                    let _ = env.timeout(SECOND, wait(Wait::Objects, 60)).await;
                };
                let other = Operation::new();
                futures::join!(
                    operation.run(work),
                    other.run(wait(Wait::Room, 9)),
                    wait(Wait::Journal, 9)
                );
                let line = operation.waits().to_string();
                (operation, line)
            })
            .expect("it ends");
        assert_eq!(operation.waited(Wait::Journal), (SECOND, 1));
        assert_eq!(operation.waited(Wait::Objects), (4 * SECOND, 3));
        assert_eq!(operation.waited(Wait::Room), (Duration::ZERO, 0));
        assert_eq!(
            line,
            "4.00s for the object store or its cache on disk (3 times), 1.00s for the journal's disk"
        );
    }
}
