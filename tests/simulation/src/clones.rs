//! Clones in a history: branches of the family with a judge each, served now and then on a machine of their own.
//!
//! A clone begins as what its snapshot shows, and from then on has clients, snapshots and crashes like the volume it was made
//! of. Each time it is served it is taken over on a machine that knows nothing, so it is read from the cloud alone, wherever
//! cleaners have moved things since. Its places in the bucket are those of its origin: what a cleaner frees for one must not be
//! what another needs.

use crate::{
    history::{History, Home, on},
    life::Life,
    oracle::{Oracle, Stop},
    system::{Branch, Weather},
    takeover,
    workload::Workload,
};
use firn_env::{TaskEnded, sim::Seeded};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Clones of one history: each is read whole at its end.
const CLONES_MAX: usize = 3;

/// The clones there are.
#[derive(Default)]
pub(crate) struct Clones(Mutex<Vec<Home>>);

impl Clones {
    /// Whether another one may be made.
    pub fn have_room(&self) -> bool {
        self.all().len() < CLONES_MAX
    }

    /// Whether none was made yet.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Home>> {
        self.0.lock().expect("no panic under this lock")
    }

    /// A clone was made; `oracle` knows what it must show.
    pub fn add(&self, history: &History, branch: Branch, oracle: Oracle) {
        self.all().push(Home {
            edge: history.system.clone_reader(),
            branch,
            oracle: Arc::new(Mutex::new(oracle)),
            stop: Stop::Takeover,
            verifier: None,
            born: true,
        });
    }

    fn take(&self, random: &mut Seeded) -> Option<Home> {
        let mut all = self.all();
        (!all.is_empty()).then(|| {
            let index = random.index(all.len());
            all.swap_remove(index)
        })
    }
}

/// Serves one of the clones for a while, if there is one.
pub(crate) async fn visit(history: &Arc<History>, workload: &Workload, random: &mut Seeded) {
    let Some(mut clone) = history.clones.take(random) else {
        return;
    };
    let Some(running) = history.open(&mut clone, random).await else {
        return;
    };
    history.count("clones served");
    let machine = history.system.edge(clone.edge);
    let life = Life::draw(&*history.system, workload, random);
    if random.chance(1, 2) {
        history.system.set_weather(clone.edge, Weather::Rough);
    }
    let work = life.work(history, &clone, &running, random);
    life.some_time(history, &work, random).await;
    history.system.set_weather(clone.edge, Weather::Fair);
    work.stop();
    work.done().await;
    clone.stop = Stop::Takeover;
    if random.chance(1, 2) && takeover::drained(history, &clone, &running).await {
        clone.stop = Stop::Clean;
    }
    machine.crash();
    clone.verifier = None;
    history.after_crash(&machine, "the life of a clone");
    history.collect(&clone.oracle);
    history.clones.all().push(clone);
}

/// At the end of a history: every clone shows what it must, and nothing in it is damaged.
pub(crate) async fn check_all(history: &Arc<History>, random: &mut Seeded) {
    // Whoever cleans has time to come round.
    history.env.sleep(Duration::from_secs(300)).await;
    while let Some(mut clone) = history.clones.take(random) {
        let machine = history.system.edge(clone.edge);
        let Some(running) = history.open(&mut clone, random).await else {
            return;
        };
        let serving = running.clone();
        match on(&machine, "verify", async move { serving.verify().await }).await {
            Ok(damage) if damage.is_empty() => history.count("clones checked"),
            Ok(damage) => history.fail(format!("verifying a clone: {}", damage.join("; "))),
            Err(TaskEnded) => {
                history.after_crash(&machine, "verifying a clone");
                history.fail("the machine went down while a clone was verified");
            }
        }
        history.collect(&clone.oracle);
        machine.crash();
    }
}
