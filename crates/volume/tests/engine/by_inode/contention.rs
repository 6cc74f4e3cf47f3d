//! Offices that want the same at the same moment, over lines of 30 ms: what each of them gets, and what it costs. All figures are of virtual time, and printed.

use super::offices::{connected, make, patient, start};
use crate::{
    files::{create, directory, look, write},
    world::World,
};
use firn_env::{
    Env,
    mutants::planting,
    sim::{Machine, Simulation},
};
use firn_store::{FaultConfig, Faults, Faulty};
use firn_table::FaultRates;
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{Parts, Volume, VolumeConfig};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// There and back, to store and table.
const ROUND_TRIP: Duration = Duration::from_millis(30);

/// Between two calls of a client.
const CALL: Duration = Duration::from_millis(20);

const MINUTE: Duration = Duration::from_secs(60);

/// Offices of one volume, each with a directory of its own and one that is everybody's.
struct Crowd {
    simulation: Simulation,
    machines: Vec<Machine>,
    offices: Vec<Office>,
}

#[derive(Clone)]
struct Office {
    env: Env,
    volume: Arc<Volume>,
    own: FileHandle,
    shared: FileHandle,
}

fn config() -> VolumeConfig {
    VolumeConfig {
        journal_bytes: 64 << 20,
        journal_file_bytes: 4 << 20,
        ..patient()
    }
}

fn over_lines(world: &World, machine: &Machine, up_bits_per_second: Option<u64>) -> Parts {
    let (parts, table) = connected(world, machine);
    table.set_rates(FaultRates {
        delay: ROUND_TRIP / 2..=ROUND_TRIP / 2,
        ..FaultRates::default()
    });
    let faults = Faults {
        latency_ms: ROUND_TRIP.as_millis() as u64,
        up_bits_per_second,
        ..Faults::default()
    };
    let lines = FaultConfig {
        seed: 1,
        faults,
        phases: Vec::new(),
    };
    let store = Faulty::new(&parts.env, parts.store.clone(), lines).expect("lines that make sense");
    Parts {
        store: Arc::new(store),
        ..parts
    }
}

impl Crowd {
    /// The first has an uplink of so many bits a second.
    fn new(seed: u64, count: u8, up_bits_per_second: Option<u64>) -> Self {
        let simulation = Simulation::new(seed);
        let world = World::new(&simulation);
        let machines: Vec<_> = (0..count)
            .map(|place| simulation.machine(&format!("office {place}")))
            .collect();
        let line = |place: usize| up_bits_per_second.filter(|_| place == 0);
        let parts: Vec<_> = machines
            .iter()
            .enumerate()
            .map(|(place, machine)| over_lines(&world, machine, line(place)))
            .collect();
        let ran = simulation.run(async move {
            let numbers = make(&parts[0], count).await;
            let mut offices: Vec<Office> = Vec::new();
            for (parts, number) in parts.iter().zip(numbers) {
                let volume = Arc::new(start(parts, number, &config()).await);
                let shared = match offices.is_empty() {
                    true => directory(&*volume, volume.root(), "shared").await,
                    false => look(&*volume, &["shared"]).await.expect("it is there"),
                };
                let own = directory(&*volume, volume.root(), &format!("own {}", offices.len())).await;
                volume.sync().await.expect("published");
                let env = parts.env.clone();
                offices.push(Office {
                    env,
                    volume,
                    own,
                    shared,
                });
            }
            for office in &offices {
                office.volume.catch_up().await.expect("the root is read");
            }
            offices
        });
        Self {
            offices: ran.expect("the run ends"),
            machines,
            simulation,
        }
    }

    /// What comes of all offices doing the same at the same moment.
    fn all<F: Future<Output = T> + Send + 'static, T: Send + 'static>(
        &self,
        work: impl Fn(usize, Office) -> F,
    ) -> Vec<T> {
        let works: Vec<_> = self
            .offices
            .iter()
            .cloned()
            .enumerate()
            .map(|(place, office)| work(place, office))
            .collect();
        let ran = self.simulation.run(futures::future::join_all(works));
        ran.expect("the run ends")
    }
}

/// What came of a minute in which all offices made files in one directory.
#[derive(Clone, Debug)]
struct Turns {
    /// How many each made.
    files: Vec<usize>,
    alternations_per_second: f64,
    longest_wait: Duration,
}

fn all_in_one_directory(bug: Option<&str>, count: u8, pause: Duration) -> Turns {
    planting(bug, || {
        let crowd = Crowd::new(61, count, None);
        let made = Arc::new(Mutex::new(Vec::new()));
        let told = made.clone();
        let longest = crowd.all(move |place, office| {
            let made = told.clone();
            async move {
                let (began, mut longest) = (office.env.now(), Duration::ZERO);
                for number in 0.. {
                    let asked = office.env.now();
                    if asked.since(began) >= MINUTE {
                        break;
                    }
                    create(&*office.volume, office.shared, &format!("{place} {number}")).await;
                    longest = longest.max(office.env.now().since(asked));
                    made.lock().expect("no panic").push(place);
                    office.env.sleep(pause).await;
                }
                longest
            }
        });
        let made = made.lock().expect("no panic").clone();
        let alternations = made.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let by = |place| made.iter().filter(|made| **made == place).count();
        let turns = Turns {
            files: (0..usize::from(count)).map(by).collect(),
            alternations_per_second: alternations as f64 / MINUTE.as_secs_f64(),
            longest_wait: longest.into_iter().max().unwrap_or_default(),
        };
        println!("{count} in one directory, {pause:?} after each file, {bug:?}: {turns:?}");
        turns
    })
}

#[test]
fn offices_make_files_in_one_directory_by_turns_however_busy_they_are() {
    for pause in [CALL, Duration::from_millis(200)] {
        let two = all_in_one_directory(None, 2, pause);
        assert!(two.alternations_per_second >= 1.5, "{two:?}");
        assert!(two.longest_wait < Duration::from_secs(5), "{two:?}");
    }
    let four = all_in_one_directory(None, 4, CALL);
    assert!(four.longest_wait < Duration::from_secs(20), "{four:?}");
    let bug = Some("leases.goes_on_with_what_is_wanted");
    let kept = all_in_one_directory(bug, 2, CALL);
    assert!(kept.longest_wait > MINUTE / 2, "{kept:?}");
}

#[test]
fn what_was_waited_for_is_used_before_it_goes_on() {
    let bug = Some("leases.gives_what_was_waited_for");
    let files = |turns: Turns| turns.files.iter().sum::<usize>();
    let sound = files(all_in_one_directory(None, 4, CALL));
    let passed_on = files(all_in_one_directory(bug, 4, CALL));
    assert!(passed_on < sound, "{passed_on} and {sound}");
}

/// Files a second that so many offices make, each in its own directory, until all is published.
fn files_a_second(count: u8) -> f64 {
    let crowd = Crowd::new(62, count, None);
    let ends = crowd.all(|_, office| async move {
        let began = office.env.now();
        let mut number = 0_u64;
        while office.env.now().since(began) < MINUTE {
            let file = create(&*office.volume, office.own, &format!("file {number}")).await;
            write(&*office.volume, file, 0, vec![number as u8; 4096]).await;
            number += 1;
            office.env.sleep(CALL).await;
        }
        office.volume.sync().await.expect("published");
        (number, office.env.now().since(began))
    });
    let files: u64 = ends.iter().map(|(files, _)| files).sum();
    let longest = ends.iter().map(|(_, took)| *took).max().unwrap_or_default();
    files as f64 / longest.as_secs_f64()
}

#[test]
fn eight_offices_with_directories_of_their_own_do_seven_times_what_one_does() {
    let (one, eight) = (files_a_second(1), files_a_second(8));
    println!(
        "{one:.1} files a second by one office, {eight:.1} by eight: {:.2} times",
        eight / one
    );
    assert!(eight >= 7.0 * one, "{one} and {eight}");
}

/// Commits of each office in a minute in which all publish after each change, the longest wait for one, and how many roots they built for them.
fn commits_of(count: u8) -> (Vec<u64>, Duration, u64) {
    let crowd = Crowd::new(63, count, None);
    for machine in &crowd.machines {
        machine.faults().count_hits();
    }
    let hits = |crowd: &Crowd| -> u64 {
        let builds = |machine: &Machine| {
            machine
                .faults()
                .hits()
                .get("by_inode.before_build")
                .copied()
                .unwrap_or(0)
        };
        crowd.machines.iter().map(builds).sum()
    };
    let before = hits(&crowd);
    let commits = crowd.all(|_, office| async move {
        let began = office.env.now();
        let file = create(&*office.volume, office.own, "file").await;
        let (mut commits, mut longest) = (0_u64, Duration::ZERO);
        while office.env.now().since(began) < MINUTE {
            let asked = office.env.now();
            write(&*office.volume, file, 0, commits.to_le_bytes().to_vec()).await;
            office.volume.sync().await.expect("published");
            longest = longest.max(office.env.now().since(asked));
            commits += 1;
        }
        (commits, longest)
    });
    let longest = commits.iter().map(|(_, longest)| *longest).max();
    let commits = commits.into_iter().map(|(commits, _)| commits).collect();
    (commits, longest.unwrap_or_default(), hits(&crowd) - before)
}

#[test]
fn none_of_sixteen_offices_that_publish_all_the_time_starves() {
    for count in [1, 2, 8, 16] {
        let (commits, longest, builds) = commits_of(count);
        let (sum, least) = (
            commits.iter().sum::<u64>(),
            commits.iter().min().copied().unwrap_or(0),
        );
        println!(
            "{count} offices: {:.2} commits a second, {least} to {} in a minute each, the longest wait {longest:?}, {} of {builds} roots built in vain",
            sum as f64 / MINUTE.as_secs_f64(),
            commits.iter().max().copied().unwrap_or(0),
            builds.saturating_sub(sum)
        );
        assert!(least > 0 && longest < MINUTE, "{commits:?}, {longest:?}");
    }
}

/// How long an office waits for a file of one line that another holds which has so much to upload.
fn behind_a_backlog(backlog_bytes: u64, up_bits_per_second: u64) -> Duration {
    let crowd = Crowd::new(64, 2, Some(up_bits_per_second));
    let (first, second) = (crowd.offices[0].clone(), crowd.offices[1].clone());
    let ran = crowd.simulation.run(async move {
        let line = create(&*first.volume, first.shared, "line").await;
        write(&*first.volume, line, 0, b"line\n".to_vec()).await;
        first.volume.sync().await.expect("published");
        second.volume.catch_up().await.expect("the root is read");
        let large = create(&*first.volume, first.own, "large").await;
        let mut random = firn_env::sim::Seeded::new(1, 0);
        for number in 0..backlog_bytes >> 20 {
            let mut part = vec![0; 1 << 20];
            random.fill(&mut part);
            write(&*first.volume, large, number << 20, part).await;
        }
        let asked = second.env.now();
        write(&*second.volume, line, 0, b"LINE\n".to_vec()).await;
        second.env.now().since(asked)
    });
    ran.expect("the run ends")
}

#[test]
fn a_file_of_one_line_behind_a_backlog() {
    const UP: u64 = 80_000_000;
    for backlog in [0, 8 << 20, 32 << 20] {
        let waited = behind_a_backlog(backlog, UP);
        let uploading = Duration::from_secs_f64(backlog as f64 * 8.0 / UP as f64);
        println!(
            "{} MiB to upload, which takes {uploading:?}: {waited:?} for a line",
            backlog >> 20
        );
        assert!(waited < uploading + Duration::from_secs(10), "{waited:?}");
    }
}
