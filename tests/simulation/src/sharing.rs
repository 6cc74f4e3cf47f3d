//! Histories of one volume at several offices: owners that change it and commit, one after the other, and followers that read it.
//!
//! The owner's changes are numbered ([`ledger`]); each root holds a prefix of them. So whatever a follower reads stands for the prefixes
//! in which it would be right, and a reader ([`reader`]) is wrong if there is none between what it must have seen (what was committed
//! before its freshness, and what it has read already: it never goes back) and what was changed at all. Meanwhile cleaners delete,
//! machines lose power, lines fail, owners give the volume up or are taken over, and an anchor shows a follower an old root.

mod ledger;
pub mod members;
mod owner;
mod reader;
mod world;

use crate::cleaners::Cleaners;
use firn_env::sim::{Seeded, Simulation};
use firn_store::Store;
use ledger::Ledger;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use world::{FAMILY, World};

/// How long nobody asks anything, at the end.
const IDLE: Duration = Duration::from_secs(3600);

/// What a history was like.
#[derive(Debug, Default)]
pub struct Report {
    /// What was wrong.
    pub failures: Vec<String>,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
}

/// What the actors of a history share.
#[derive(Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    report: Mutex<Report>,
    is_over: Mutex<bool>,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no panic under this lock")
    }

    fn fail(&self, what: String) {
        let mut report = self.report.lock().expect("no panic under this lock");
        report.failures.push(what);
    }

    fn count(&self, what: &'static str) {
        let mut report = self.report.lock().expect("no panic under this lock");
        *report.counts.entry(what).or_default() += 1;
    }

    fn is_over(&self) -> bool {
        *self.is_over.lock().expect("no panic under this lock")
    }
}

/// Runs the history of a seed.
pub fn run(seed: u64) -> Report {
    let simulation = Simulation::new(seed);
    let mut random = Seeded::new(seed, 41);
    let world = Arc::new(World::new(&simulation, &mut random));
    let shared = Arc::new(Shared::default());
    let bucket: Arc<dyn Store> = world.bucket.clone();
    let cleaners = random
        .chance(3, 4)
        .then(|| Cleaners::start(&simulation, &bucket, &world.table, FAMILY, &mut random));
    let env = simulation.env();
    let (own, history) = (shared.clone(), world.clone());
    let (owners, readers) = (Seeded::new(random.draw(), 1), random.draw());
    let work = async move {
        let mut owner = owner::Owner::format(&env, history.clone(), own.clone(), owners).await;
        let reading: Vec<_> = (0..world::FOLLOWERS)
            .map(|number| {
                let reader = reader::Reader::new(
                    &env,
                    history.clone(),
                    own.clone(),
                    number,
                    Seeded::new(readers, 7 + number as u64),
                );
                env.spawn("reader", reader.read_on())
            })
            .collect();
        owner.change_on().await;
        *own.is_over.lock().expect("no panic under this lock") = true;
        for reader in reading {
            if reader.await.is_err() {
                own.fail("a reader ended early".into());
            }
        }
        if let Some(cleaners) = &cleaners {
            cleaners.pause(true);
            let (counts, failures) = cleaners.take_findings();
            let mut report = own.report.lock().expect("no panic under this lock");
            report.failures.extend(failures);
            report.counts.extend(counts);
        }
        env.sleep(Duration::from_secs(60)).await;
        let before = history.requests();
        env.sleep(IDLE).await;
        let asked = history.requests() - before;
        if asked > 0 {
            own.fail(format!("{asked} requests while nobody asked anything"));
        }
    };
    if let Err(error) = simulation.run(work) {
        shared.fail(format!("the run did not end: {error:?}"));
    }
    for machine in world.machines() {
        for panic in machine.take_panics() {
            shared.fail(format!("{} panicked: {panic}", machine.name()));
        }
    }
    std::mem::take(&mut *shared.report.lock().expect("no panic under this lock"))
}
