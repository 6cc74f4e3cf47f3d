//! Random histories of two to four offices over the real engine: they append to the same files, make files in the same directories and move directories into each
//! other, are cut off, broken, crash, leave and come back, on a table that throttles, loses answers and lets requests land late.
//!
//! What the table showed is the truth: each root is read afterwards, by a member on a table of its own that knows nothing but that root. A history is sound if
//!
//! - **S1** each inode whose leaf differs between two roots was held, when the later one was committed, by who committed it, and directories are a tree;
//! - **S2** each file of a root goes on from what it was in the root before, and no name is lost; what was acknowledged is in the last root, or in a salvage clone of
//!   the office that acknowledged it, byte for byte and on what it was written on;
//! - **S3** a change sees all that was acknowledged as published before it began, and so does a read after the root was read;
//! - **S4** is S2 of appends: who appended to an older state would write over what came since;
//! - no leaf is found changed by who was not broken, every office that was is told so, and once nothing fails any more everybody changes everything.
//!
//! In some a cleaner runs beside them ([`cleaner`]); then roots before the last are read from a copy of the store from which nothing was deleted, the last
//! one and the clones from what is left.

mod cleaner;
pub mod office;
mod oracle;

use super::offices::make;
use crate::{
    files::{create, directory},
    world::World,
};
use cleaner::Cleaning;
use firn_anchor::{Arena, MemberNumber, VolumeTuple};
use firn_env::{mutants::planting, sim::Simulation};
use firn_format::VolumeId;
use firn_table::FaultRates;
use firn_vfs::{FileHandle, Vfs};
use futures::future::{Either, select};
use office::Office;
use oracle::{Observed, judge};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// The places that everybody changes.
#[derive(Clone, Debug)]
pub struct Places {
    /// Files that are appended to.
    cells: Vec<FileHandle>,
    /// Directories in which files are made; those of `moved` are moved into each other.
    directories: Vec<FileHandle>,
    moved: Vec<FileHandle>,
}

/// What offices told their clients.
#[derive(Default)]
pub struct Told {
    violation: Option<String>,
    counts: BTreeMap<&'static str, u64>,
    /// Changes that were begun.
    begun: u64,
    acknowledged: BTreeMap<u64, Where>,
    published: BTreeSet<u64>,
    /// Which office began it.
    begun_by: BTreeMap<u64, MemberNumber>,
    /// Each clone, and whose journal it has.
    salvaged: BTreeMap<VolumeId, MemberNumber>,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// It appended its number to this file.
    Cell(FileHandle),
    /// It made a file of its number in this directory.
    Directory(FileHandle),
}

pub type Shared = Arc<Mutex<Told>>;

pub fn lock(told: &Shared) -> MutexGuard<'_, Told> {
    told.lock().unwrap()
}

impl Told {
    fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    fn add(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }
}

/// Who beside the offices is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nobody,
    ACleaner,
}

/// Runs one history: what it went through, or what is wrong with it.
fn history(seed: u64, beside: Beside) -> Result<BTreeMap<&'static str, u64>, String> {
    let simulation = Arc::new(Simulation::new(seed));
    let world = Arc::new(match beside {
        Beside::Nobody => World::new(&simulation),
        Beside::ACleaner => World::with_archive(&simulation),
    });
    let told = Shared::default();
    let observed: Arc<Mutex<Observed>> = Arc::default();
    let watched = observed.clone();
    let head = format!("volume/{}", world.own_parts().volume.hex());
    world.table().watch(move |key, value| {
        let Some(value) = value else { return };
        let mut observed = watched.lock().unwrap();
        if key.sort.starts_with("arena/") {
            let (arena, _) = Arena::from_bytes(value).unwrap();
            observed.arena(arena);
        } else if key.sort == head {
            observed.root(VolumeTuple::from_bytes(value).unwrap());
        }
    });
    let env = simulation.env();
    let members = 2 + env.random_below(3) as u8;
    let own = world.own_parts();
    let machines: Vec<_> = (0..members).map(|_| simulation.machine("office")).collect();
    let first_office = machines[0].env();
    let (numbers, places) = simulation
        .run(async move {
            let numbers = make(&own, members).await;
            let first = super::offices::start(&own, numbers[0], &super::offices::patient()).await;
            let mut places = Places {
                cells: Vec::new(),
                directories: Vec::new(),
                moved: Vec::new(),
            };
            for number in 0..2 {
                let within = directory(&first, first.root(), &format!("d{number}")).await;
                places.directories.push(within);
                places
                    .moved
                    .push(directory(&first, within, &format!("m{number}")).await);
                for cell in 0..2 {
                    places
                        .cells
                        .push(create(&first, within, &format!("c{cell}")).await);
                }
            }
            first.sync().await.expect("published");
            first.stop().await.expect("it stops");
            // The first office goes on from here.
            super::offices::copy_state(&own.env, &first_office).await;
            (numbers, places)
        })
        .map_err(|error| error.to_string())?;
    world.end();
    let rates = FaultRates {
        throttle_per_mille: env.random_below(60) as u32,
        lose_reply_per_mille: env.random_below(100) as u32,
        late_per_mille: env.random_below(100) as u32,
        late_requests: 1 + env.random_below(60),
        delay: Duration::from_millis(1)..=Duration::from_millis(30),
    };
    let offices: Vec<Office> = numbers
        .iter()
        .enumerate()
        .zip(machines)
        .map(|((place, number), machine)| {
            let told = told.clone();
            Office::new(
                machine,
                world.clone(),
                *number,
                told,
                places.clone(),
                rates.clone(),
                (seed, place as u64),
            )
        })
        .collect();
    let waiting = env.clone();
    let cleaning =
        (beside == Beside::ACleaner).then(|| Cleaning::new(&simulation, world.clone(), told.clone(), seed));
    let ended = simulation.run(async move {
        let lives: Vec<_> = offices.into_iter().map(Office::live).collect();
        let all = futures::future::join_all(lives);
        let Some(cleaning) = &cleaning else {
            return waiting.timeout(Duration::from_secs(100_000), all).await.is_ok();
        };
        let all = waiting.timeout(Duration::from_secs(100_000), all);
        let goes_on = pin!(cleaning.go_on(&waiting));
        let ended = match select(pin!(all), goes_on).await {
            Either::Left((ended, _)) => ended.is_ok(),
            Either::Right(((), _)) => unreachable!("it never ends"),
        };
        cleaning.finish(&waiting).await;
        ended
    });
    world.table().settle();
    let told = std::mem::take(&mut *lock(&told));
    if let Some(violation) = told.violation {
        return Err(violation);
    }
    if !ended.map_err(|error| error.to_string())? {
        return Err("progress: not all offices ended".into());
    }
    let observed = std::mem::take(&mut *observed.lock().unwrap());
    judge(&simulation, &world, &numbers, observed, &places, &told)?;
    Ok(told.counts)
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Within so many each rule that is left out must be noticed.
const SEEDS_OF_A_BUG: u64 = 300;

/// Runs histories and sums up what they went through, each of `all` more often than three times.
fn histories(beside: Beside, count: u64, all: &[&str]) -> BTreeMap<&'static str, u64> {
    let first = number_from("FIRST_SEED").unwrap_or(0);
    let count = number_from("SEEDS").unwrap_or(count);
    let mut sum = BTreeMap::new();
    for seed in first..first + count {
        let counts = history(seed, beside).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for (what, count) in counts {
            *sum.entry(what).or_insert(0) += count;
        }
    }
    println!("{count} histories: {sum:?}");
    if count >= 30 {
        for what in all {
            assert!(sum.get(what).is_some_and(|count| *count > 3), "{what}: {sum:?}");
        }
    }
    sum
}

#[test]
fn offices_that_fail_keep_all_promises() {
    let all = [
        "changes",
        "crashes",
        "breaks",
        "broken offices that went on",
        "departures",
        "salvage clones",
        "salvaged",
        "went on",
        "moves",
        "publications",
    ];
    histories(Beside::Nobody, 45, &all);
}

#[test]
fn offices_keep_all_promises_while_a_cleaner_deletes_what_no_root_and_no_office_needs() {
    let all = [
        "changes",
        "breaks",
        "salvage clones",
        "salvaged",
        "went on",
        "cleaner runs",
        "cleaners that died",
        "segments retired",
        "segments deleted",
        "objects moved",
    ];
    let sum = histories(Beside::ACleaner, 45, &all);
    let (put, left) = (sum["segments put"], sum["segments left"]);
    assert!(2 * left < put, "{left} of {put} segments are left");
}

/// Requires that a rule that is left out is noticed. A panic of an office is one way to.
fn is_noticed(bug: &str) {
    is_noticed_in(bug, Beside::Nobody);
}

fn is_noticed_in(bug: &str, beside: Beside) {
    let found = planting(Some(bug), || {
        (0..SEEDS_OF_A_BUG).find_map(|seed| {
            let ran = std::panic::catch_unwind(|| history(seed, beside));
            let why = match ran {
                Ok(Ok(_)) => return None,
                Ok(Err(why)) => why,
                Err(_) => "a panic".into(),
            };
            Some((seed, why))
        })
    });
    println!("{bug}: {found:?}");
    assert!(found.is_some(), "{bug}");
}

#[test]
fn a_lease_that_is_used_as_soon_as_it_is_seen_in_the_arena_is_noticed() {
    is_noticed("leases.used_before_adoption");
}

#[test]
fn a_lease_that_is_given_before_its_changes_are_published_is_noticed() {
    is_noticed("leases.given_unpublished");
}

#[test]
fn a_lapsed_lease_that_is_used_is_noticed() {
    is_noticed("leases.lapsed_lease_used");
}

#[test]
fn clean_entries_that_stay_at_an_adoption_are_noticed() {
    is_noticed("volume.adoption_keeps_stale_entries");
}

#[test]
fn own_changes_that_an_adoption_drops_are_noticed() {
    is_noticed("volume.adoption_drops_own_changes");
}

#[test]
fn sections_of_others_that_a_publication_forgets_are_noticed() {
    is_noticed("volume.publishes_own_section_only");
}

#[test]
fn what_a_broken_office_adopts_though_it_was_lost_is_noticed() {
    is_noticed("volume.adopts_what_is_lost");
}

#[test]
fn what_goes_on_though_it_stands_on_what_was_salvaged_is_noticed() {
    is_noticed("leases.tainted_goes_on");
}

#[test]
fn what_a_broken_office_drops_without_salvage_is_noticed() {
    is_noticed("volume.drops_what_is_lost");
}

#[test]
fn a_cleaner_that_judges_what_may_be_about_to_be_committed_is_noticed() {
    is_noticed_in("cleaner.judge_members_uncommitted", Beside::ACleaner);
}

#[test]
fn a_cleaner_that_ignores_what_was_retained_for_a_broken_office_is_noticed() {
    is_noticed_in("cleaner.ignore_retained_roots", Beside::ACleaner);
}

#[test]
fn starts_that_note_nothing_before_they_begin_are_noticed() {
    is_noticed("volume.begins_without_a_note");
}
