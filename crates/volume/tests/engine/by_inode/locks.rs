//! Random histories of clients that lock files in two or three offices, raise counters under their locks, hang, and unlock, while lines fail, processes die and come back, offices are broken,
//! and the table throttles and loses answers.
//!
//! | must hold | how it is seen |
//! |---|---|
//! | a lock excludes clients of all offices | a client is never granted what another one has, unless the other's office is down or may not use what it holds (it was not heard for 40 s) |
//! | who lost a lock hears of it | what a client has when its office serves again excludes others again |
//! | what was written under a lock is seen under the next | a counter is found as it was left, unless an office was broken since |
//! | a restart in place loses no lock | what a client held it gets back, if its office was heard until it died, and is there again within a quarter of a minute |
//! | progress | when all is well a client of each office gets each lock within a bound |
//! | silence | once nothing is locked, and nobody asks anything, nothing is asked of the anchor |

mod client;
mod office;

use super::offices::make;
use crate::{
    files::{create, write},
    world::World,
};
use client::{gets, work};
use firn_anchor::MemberTuple;
use firn_env::{
    Env, Monotonic,
    mutants::planting,
    sim::{Seeded, Simulation},
};
use firn_session::LockRequest;
use firn_table::FaultRates;
use firn_vfs::{FileHandle, Vfs};
use office::Office;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Clients of one office.
const CLIENTS: u64 = 2;
/// Files with locks and counters.
const FILES: usize = 2;
/// Within so long of its end a process that is back gives its clients their locks back: it was heard 40 s before its end at the latest.
const BACK_WITHIN: Duration = Duration::from_secs(15);
/// What a client may take to get a lock once all is well.
const PROGRESS: Duration = Duration::from_secs(240);

/// What a client believes to hold.
#[derive(Clone, Debug)]
pub struct Hold {
    office: usize,
    request: LockRequest,
}

/// What clients know.
#[derive(Default)]
pub struct Book {
    holds: BTreeMap<u64, Hold>,
    next: u64,
    /// What each counter was left at; `None`: nobody knows.
    counters: BTreeMap<u64, Option<u64>>,
    counts: BTreeMap<&'static str, u64>,
    violation: Option<String>,
    /// Nothing fails any more.
    is_calm: bool,
}

/// A history under way.
pub struct History {
    env: Env,
    offices: Vec<Arc<Office>>,
    files: Vec<FileHandle>,
    book: Arc<Mutex<Book>>,
}

pub fn book(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().expect("no panic under this lock")
}

impl Book {
    fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// What is unpublished somewhere may be put aside.
    fn forget_counters(&mut self) {
        self.counters.values_mut().for_each(|counter| *counter = None);
    }
}

impl History {
    fn book(&self) -> MutexGuard<'_, Book> {
        book(&self.book)
    }

    /// A client has this now; the number of its hold, which is `again` if it had it before.
    fn has(&self, hold: &Hold, again: Option<u64>) -> u64 {
        let mut book = self.book();
        let conflicts = |number: u64, other: &Hold| {
            let (of, asked) = (&other.request, &hold.request);
            Some(number) != again
                && of.file == asked.file
                && of.owner != asked.owner
                && of.range.overlaps(asked.range)
                && (of.exclusive || asked.exclusive)
        };
        let mut in_the_way = book
            .holds
            .iter()
            .filter(|(number, other)| conflicts(**number, other));
        let beside = in_the_way.find(|(_, other)| self.offices[other.office].may_use_what_it_holds());
        if let Some((_, other)) = beside {
            let what = format!("{hold:?} was granted at {:?} beside {other:?}", self.env.now());
            book.violate(what);
        }
        let number = again.unwrap_or_else(|| {
            book.next += 1;
            book.next
        });
        book.holds.insert(number, hold.clone());
        number
    }
}

/// Runs one history: what it went through, or what is wrong with it.
fn history(seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let simulation = Arc::new(Simulation::new(seed));
    let world = Arc::new(World::new(&simulation));
    let shared: Arc<Mutex<Book>> = Arc::default();
    let watched = shared.clone();
    world.table().watch(move |key, value| {
        let Some(value) = value.filter(|_| key.sort.starts_with("member/")) else {
            return;
        };
        if MemberTuple::from_bytes(value).unwrap().record.broken.is_some() {
            book(&watched).forget_counters();
        }
    });
    let mut random = Seeded::new(seed, 61);
    let members = random.between(2, 3) as u8;
    let own = world.own_parts();
    let machines: Vec<_> = (0..members).map(|_| simulation.machine("office")).collect();
    let first_office = machines[0].env();
    let made = simulation.run(async move {
        let numbers = make(&own, members).await;
        let first = super::offices::start(&own, numbers[0], &super::offices::patient()).await;
        let mut files = Vec::new();
        for number in 0..FILES {
            let file = create(&first, first.root(), &format!("counter {number}")).await;
            write(&first, file, 0, 0_u64.to_be_bytes().to_vec()).await;
            files.push(file);
        }
        first.sync().await.expect("published");
        first.stop().await.expect("it stops");
        // The first office goes on from here.
        super::offices::copy_state(&own.env, &first_office).await;
        (numbers, files)
    });
    let (numbers, files) = made.map_err(|error| error.to_string())?;
    world.end();
    let is_calm = random.chance(1, 3);
    let rates = match is_calm {
        true => FaultRates::default(),
        false => FaultRates {
            throttle_per_mille: random.below(40) as u32,
            lose_reply_per_mille: random.below(60) as u32,
            late_per_mille: random.below(60) as u32,
            late_requests: 1 + random.below(60),
            delay: Duration::from_millis(1)..=Duration::from_millis(30),
        },
    };
    for file in &files {
        book(&shared).counters.insert(file.inode, Some(0));
    }
    let env = simulation.env();
    let offices = numbers
        .iter()
        .zip(machines)
        .enumerate()
        .map(|(place, (number, machine))| {
            let freshness = *random.pick(&[
                Duration::ZERO,
                Duration::from_millis(500),
                Duration::from_secs(300),
            ]);
            let at = (place, *number);
            Arc::new(Office::new(
                at,
                machine,
                world.clone(),
                shared.clone(),
                (rates.clone(), freshness),
            ))
        });
    let history = Arc::new(History {
        env: env.clone(),
        offices: offices.collect(),
        files,
        book: shared.clone(),
    });
    let table = world.table();
    let ended = simulation.run(async move {
        let (mut lives, mut clients) = (Vec::new(), Vec::new());
        for place in 0..history.offices.len() {
            let weather = Seeded::new(random.draw(), 1);
            let of = history.clone();
            lives.push(env.spawn("office", async move { office::live(&of, place, is_calm, weather).await }));
            for client in 0..CLIENTS {
                let random = Seeded::new(random.draw(), client);
                clients.push(env.spawn("locker", work(history.clone(), place, client, random)));
            }
        }
        for client in clients {
            if env.timeout(Duration::from_secs(20_000), client).await.is_err() {
                history.book().violate("progress: a client does not end");
            }
        }
        history.book().is_calm = true;
        history.offices.iter().for_each(|office| office.heal());
        for round in 0..2 {
            for place in 0..history.offices.len() {
                for file in 0..FILES {
                    if history.book().violation.is_none() && !gets(&history, place, file, PROGRESS).await {
                        let status = history.offices[place].status();
                        history.book().violate(format!(
                            "progress: round {round}: office {place} does not get lock {file} though all is well: {status:?}"
                        ));
                    }
                }
            }
        }
        // Idle offices go away.
        env.sleep(Duration::from_secs(900)).await;
        let before = table.counts().requests();
        env.sleep(Duration::from_secs(3600)).await;
        let asked = table.counts().requests() - before;
        if asked > 0 {
            history.book().violate(format!("silence: {asked} requests in an hour in which nobody locks anything"));
        }
        for office in &history.offices {
            let locks = office.status();
            let mut book = history.book();
            for (what, count) in [("handovers", locks.given), ("locks of offices that were gone", locks.breaks)] {
                *book.counts.entry(what).or_default() += count;
            }
        }
        lives.into_iter().for_each(|life| life.abort());
    });
    let told = std::mem::take(&mut *book(&shared));
    if let Some(violation) = told.violation {
        return Err(violation);
    }
    ended.map_err(|error| error.to_string())?;
    Ok(told.counts)
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Within so many each rule that is left out must be noticed.
const SEEDS_OF_A_BUG: u64 = 500;

#[test]
fn locks_exclude_clients_of_all_offices_and_what_was_written_under_one_is_seen_under_the_next() {
    let first = number_from("FIRST_SEED").unwrap_or(0);
    let count = number_from("SEEDS").unwrap_or(30);
    let mut sum = BTreeMap::new();
    for seed in first..first + count {
        let counts = history(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for (what, count) in counts {
            *sum.entry(what).or_insert(0) += count;
        }
    }
    println!("{count} histories: {sum:?}");
    if count >= 30 {
        for what in [
            "counters raised",
            "waits granted",
            "tries granted",
            "tries refused",
            "handovers",
            "breaks",
            "locks lost",
            "locks taken again after a restart",
            "locks of offices that were gone",
            "stops",
        ] {
            assert!(sum.get(what).is_some_and(|count| *count > 0), "{what}: {sum:?}");
        }
    }
}

/// Requires that a rule that is left out is noticed, by what it is for.
fn is_noticed(bug: &str, by: &str) {
    let found = planting(Some(bug), || {
        (0..SEEDS_OF_A_BUG).find_map(|seed| {
            let why = history(seed).err()?;
            why.contains(by).then_some((seed, why))
        })
    });
    println!("{bug}: {found:?}");
    assert!(found.is_some(), "{bug}");
}

#[test]
fn an_unlock_that_is_recorded_before_what_was_written_is_published_is_noticed() {
    is_noticed(
        "volume.unlock_recorded_before_published",
        "under a lock, and was left at",
    );
}

#[test]
fn a_lock_that_is_granted_without_a_read_of_the_root_is_noticed() {
    is_noticed("volume.lock_granted_by_old_root", "under a lock, and was left at");
}

#[test]
fn locks_that_are_kept_after_a_break_are_noticed() {
    is_noticed("volume.locks_outlive_a_break", "was granted at");
}

#[test]
fn an_office_that_decides_before_it_knows_others_locks_is_noticed() {
    is_noticed("volume.decides_before_others_are_known", "was granted at");
}

#[test]
fn an_office_that_goes_on_granting_when_it_has_given_the_lease_is_noticed() {
    is_noticed("session.grants_in_a_closed_table", "was granted at");
}

/// A moment of the simulation, for who waits.
fn later(env: &Env, limit: Duration) -> Monotonic {
    env.now().after(limit)
}
