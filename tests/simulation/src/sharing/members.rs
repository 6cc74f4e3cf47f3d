//! Histories of members that all change one volume, one after the other: clients at each office, lines that fail, machines that lose power in
//! the middle of anything and whose clocks jump, and cleaners.
//!
//! What must hold:
//!
//! | | how it is seen |
//! |---|---|
//! | nothing acknowledged is lost (S2) | each file that was acknowledged is in the volume at the end, or in a salvage clone, and then its path was told |
//! | what was acknowledged at level 2 is never put aside | each such file is in the volume at the end |
//! | two members never both change one state (S4) | a name that two offices create exclusively is one's, unless one was taken over |
//! | what was published is seen (S3) | a read finds no older value than was published before its freshness, at any office |
//! | write verifiers | what was committed under one verifier is there, also when the volume was taken over in between |
//! | nobody is taken over that is well | no owner whose line and machine were well for two minutes |
//! | progress | when all is well each office changes something within a bound |
//! | silence | an hour after the last change nobody has asked anything |

mod client;
mod ending;
pub mod locking;
mod office;

use super::{Report, world::World};
use crate::cleaners::Cleaners;
use firn_env::{
    Monotonic,
    sim::{Seeded, Simulation},
};
use firn_store::Store;
use firn_volume::{FormatOptions, Volume};
use office::Office;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

/// Registers that a client changes at one office after the other.
const REGISTERS: usize = 3;

/// What the actors share.
#[derive(Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    report: Mutex<Report>,
}

/// A value that was acknowledged at level 1.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    pub register: usize,
    pub value: u64,
}

/// What was done and seen.
#[derive(Default)]
struct Ledger {
    /// Numbers of files that were acknowledged.
    pub files: BTreeSet<u64>,
    /// Of them, those that were acknowledged at level 2.
    pub files_in_cloud: BTreeSet<u64>,
    /// Numbers that were given out.
    pub next: u64,
    /// The newest value of each register that anybody tried to write, and whether somebody is at it.
    pub attempts: [u64; REGISTERS],
    pub busy: [bool; REGISTERS],
    /// What was acknowledged during each term and is not published yet.
    pub unpublished: BTreeMap<TermName, Vec<Acknowledged>>,
    /// What was published when.
    pub published: Vec<(Monotonic, Acknowledged)>,
    /// Offices that were told that they made a name.
    pub exclusive: BTreeMap<u64, u64>,
    /// Paths that salvages told.
    pub paths: BTreeSet<String>,
    pub is_over: bool,
}

/// A term of an office, over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TermName {
    pub office: usize,
    pub incarnation: u64,
    pub taken: u64,
}

impl Ledger {
    /// What a term had is level 2.
    pub fn publish(&mut self, now: Monotonic, term: TermName) {
        for acknowledged in self.unpublished.remove(&term).unwrap_or_default() {
            self.published.push((now, acknowledged));
        }
    }

    /// The newest value of a register that was published by then.
    pub fn published_at(&self, register: usize, is_before: impl Fn(Monotonic) -> bool) -> u64 {
        let of_register = self
            .published
            .iter()
            .filter(|(at, acknowledged)| acknowledged.register == register && is_before(*at));
        of_register
            .map(|(_, acknowledged)| acknowledged.value)
            .max()
            .unwrap_or(0)
    }
}

impl Shared {
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no panic under this lock")
    }

    pub fn fail(&self, what: String) {
        let mut report = self.report.lock().expect("no panic under this lock");
        report.failures.push(what);
    }

    pub fn count(&self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&self, what: &'static str, more: u64) {
        let mut report = self.report.lock().expect("no panic under this lock");
        *report.counts.entry(what).or_default() += more;
    }

    pub fn counted(&self, what: &'static str) -> u64 {
        let report = self.report.lock().expect("no panic under this lock");
        report.counts.get(what).copied().unwrap_or(0)
    }
}

/// Runs the history of a seed.
pub fn run(seed: u64) -> Report {
    let simulation = Simulation::new(seed);
    let mut random = Seeded::new(seed, 43);
    let world = Arc::new(World::new(&simulation, &mut random));
    let shared = Arc::new(Shared::default());
    let members = random.between(2, 3) as usize;
    let bucket: Arc<dyn Store> = world.bucket.clone();
    let cleaners = random.chance(1, 2).then(|| {
        Cleaners::start(
            &simulation,
            &bucket,
            &world.table,
            super::world::FAMILY,
            &mut random,
        )
    });
    let env = simulation.env();
    let (own, history) = (shared.clone(), world.clone());
    let work = async move {
        let offices: Vec<_> = (0..members)
            .map(|number| Office::new(&env, history.clone(), own.clone(), number, &mut random))
            .collect();
        format(&offices[0]).await;
        let mut tasks = Vec::new();
        for office in &offices {
            office.start();
        }
        for office in &offices {
            let weather = Seeded::new(random.draw(), 1);
            let client = Seeded::new(random.draw(), 2);
            tasks.push(env.spawn("client", client::work(office.clone(), client)));
            let reader = Seeded::new(random.draw(), 3);
            drop(env.spawn("reader", client::read_on(office.clone(), reader)));
            drop(env.spawn("weather", office::weather(office.clone(), weather)));
        }
        for task in tasks {
            if task.await.is_err() {
                own.fail("a client ended early".into());
            }
        }
        own.ledger().is_over = true;
        ending::judge(&env, &history, &offices, &own).await;
        if let Some(cleaners) = &cleaners {
            cleaners.pause(true);
            let (counts, failures) = cleaners.take_findings();
            let mut report = own.report.lock().expect("no panic under this lock");
            report.failures.extend(failures);
            report.counts.extend(counts);
        }
        ending::silence(&env, &history, &own).await;
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

/// Makes the volume, which nobody owns then.
async fn format(office: &Arc<Office>) {
    let (parts, config) = (office.parts(), office.config());
    let made = office.machine().env().spawn("format", async move {
        parts.anchor.create_family().await.expect("a new family");
        let made = Volume::format(&parts, "volume", FormatOptions::default(), &config).await;
        made.expect("it is made");
        let (volume, _) = Volume::open(parts, config).await.expect("it opens");
        volume.drain().await.expect("it is given up");
    });
    made.await.expect("the machine is up");
}
