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
        journal_bytes: 2 << 30,
        journal_file_bytes: 4 << 20,
        segment_bytes: 4 << 20,
        dirty_memory_bytes: 64 << 20,
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
        Self::with(config(), seed, count, up_bits_per_second)
    }

    fn with(config: VolumeConfig, seed: u64, count: u8, up_bits_per_second: Option<u64>) -> Self {
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
                let volume = Arc::new(start(parts, number, &config).await);
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
    let (least, most) = (four.files.iter().min(), four.files.iter().max());
    assert!(least.copied() > most.map(|most| most / 2), "{four:?}");
    let bug = Some("leases.goes_on_with_what_is_wanted");
    let kept = all_in_one_directory(bug, 2, CALL);
    assert!(kept.longest_wait > MINUTE / 2, "{kept:?}");
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

/// What came of a minute in which all offices publish after each change.
#[derive(Debug)]
struct Commits {
    /// Of each.
    made: Vec<u64>,
    longest_wait: Duration,
    /// Roots that were built, by all of them.
    builds: u64,
}

impl Commits {
    fn all(&self) -> u64 {
        self.made.iter().sum()
    }

    fn a_second(&self) -> f64 {
        self.all() as f64 / MINUTE.as_secs_f64()
    }

    fn least(&self) -> u64 {
        self.made.iter().min().copied().unwrap_or(0)
    }

    fn most(&self) -> u64 {
        self.made.iter().max().copied().unwrap_or(0)
    }

    fn in_vain(&self) -> u64 {
        self.builds.saturating_sub(self.all())
    }
}

fn commits_of(bug: Option<&str>, count: u8) -> Commits {
    planting(bug, || {
        let crowd = Crowd::new(63, count, None);
        for machine in &crowd.machines {
            machine.faults().count_hits();
        }
        let hits = |crowd: &Crowd| -> u64 {
            let builds = |machine: &Machine| {
                let hits = machine.faults().hits();
                hits.get("by_inode.before_build").copied().unwrap_or(0)
            };
            crowd.machines.iter().map(builds).sum()
        };
        let before = hits(&crowd);
        let told = crowd.all(|_, office| async move {
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
        let commits = Commits {
            made: told.iter().map(|(made, _)| *made).collect(),
            longest_wait: told.iter().map(|(_, longest)| *longest).max().unwrap_or_default(),
            builds: hits(&crowd) - before,
        };
        println!(
            "{count} offices, {bug:?}: {:.2} commits a second, {} to {} in a minute each, the longest wait {:?}, {} of {} roots built in vain",
            commits.a_second(),
            commits.least(),
            commits.most(),
            commits.longest_wait,
            commits.in_vain(),
            commits.builds
        );
        commits
    })
}

#[test]
fn sixteen_offices_that_publish_all_the_time_go_one_after_the_other() {
    commits_of(None, 1);
    let two = commits_of(None, 2);
    for count in [8, 16] {
        let many = commits_of(None, count);
        assert!(many.least() > 0 && many.most() <= 3 * many.least(), "{many:?}");
        assert!(many.in_vain() * 10 <= many.builds, "{many:?}");
        // The line takes its part: each turn of four is two writes of one record.
        assert!(many.all() * 2 >= two.all(), "{many:?} {two:?}");
        assert!(many.longest_wait < Duration::from_secs(20), "{many:?}");
    }
    // Each builds, and all but one in vain.
    let raced = commits_of(Some("leases.no_commit_lease"), 16);
    assert!(raced.in_vain() * 2 > raced.builds, "{raced:?}");
    assert!(raced.most() > 3 * raced.least(), "{raced:?}");
}

/// What another office has to upload.
#[derive(Clone, Copy)]
struct Backlog {
    bytes: u64,
    up_bits_per_second: u64,
    /// Half of it may be pinned until the store was read back, a minute after an upload.
    disk_cache_bytes: u64,
    /// Whether the line was changed there after the backlog.
    is_line_changed: bool,
}

impl Backlog {
    /// One that leaves room on the disk.
    fn new(bytes: u64, up_bits_per_second: u64) -> Self {
        Self {
            bytes,
            up_bits_per_second,
            disk_cache_bytes: 4 << 30,
            is_line_changed: true,
        }
    }
}

/// How long an office waits for a file of one line that another holds, in which a client writes so much to another file as fast as it is let.
fn behind(bug: Option<&str>, backlog: Backlog) -> Duration {
    planting(bug, || {
        let Backlog {
            bytes: backlog_bytes,
            up_bits_per_second,
            disk_cache_bytes,
            is_line_changed,
        } = backlog;
        let config = VolumeConfig {
            disk_cache_bytes,
            ..config()
        };
        let crowd = Crowd::with(config, 64, 2, Some(up_bits_per_second));
        let (first, second) = (crowd.offices[0].clone(), crowd.offices[1].clone());
        let ran = crowd.simulation.run(async move {
            let line = create(&*first.volume, first.shared, "line").await;
            write(&*first.volume, line, 0, b"line\n".to_vec()).await;
            first.volume.sync().await.expect("published");
            second.volume.catch_up().await.expect("the root is read");
            let large = create(&*first.volume, first.own, "large").await;
            let (env, volume) = (first.env.clone(), first.volume.clone());
            let at = env.clone();
            let copying = env.spawn("copy", async move {
                let mut random = firn_env::sim::Seeded::new(1, 0);
                for number in 0..backlog_bytes >> 20 {
                    let mut part = vec![0; 1 << 20];
                    random.fill(&mut part);
                    write(&*volume, large, number << 20, part).await;
                    // As fast as a line of 1 Gbit/s.
                    at.sleep(Duration::from_millis(8)).await;
                }
            });
            // The most is unpublished, or all was written.
            let copied = Duration::from_millis((backlog_bytes >> 20) * 8) + Duration::from_secs(1);
            second.env.sleep(copied).await;
            if is_line_changed {
                write(&*first.volume, line, 0, b"Line\n".to_vec()).await;
            }
            let asked = second.env.now();
            write(&*second.volume, line, 0, b"LINE\n".to_vec()).await;
            let waited = second.env.now().since(asked);
            copying.abort();
            waited
        });
        let waited = ran.expect("the run ends");
        println!(
            "{} MiB at {} Mbit/s beside a cache of {} MiB, {bug:?}: {waited:?} for a line, changed there as well: {is_line_changed}",
            backlog_bytes >> 20,
            up_bits_per_second / 1_000_000,
            disk_cache_bytes >> 20
        );
        waited
    })
}

/// `recall_within`, and what a try takes besides its upload.
const RECALLED: Duration = Duration::from_secs(60 + 10);

#[test]
fn a_file_of_one_line_waits_for_no_longer_backlog_than_the_uplink_takes_in_a_minute() {
    const UP: u64 = 8_000_000;
    for bytes in [0, 8 << 20, 128 << 20] {
        let waited = behind(None, Backlog::new(bytes, UP));
        assert!(waited < RECALLED, "{waited:?}");
    }
    let bug = Some("volume.unpublished_without_bound");
    let waited = behind(bug, Backlog::new(128 << 20, UP));
    assert!(waited > RECALLED + Duration::from_secs(20), "{waited:?}");
}

/// An uplink that fills what may be pinned within seconds: half of the cache, and 64 MiB at least.
#[test]
fn what_is_waited_for_does_not_wait_for_read_backs() {
    const UP: u64 = 80_000_000;
    let beside_pins = |bytes| Backlog {
        disk_cache_bytes: 16 << 20,
        ..Backlog::new(bytes, UP)
    };
    for bytes in [64 << 20, 128 << 20, 256 << 20] {
        let waited = behind(None, beside_pins(bytes));
        // What fits beside the pins, at 10 MB/s.
        assert!(waited < Duration::from_secs(15), "{waited:?}");
    }
    for bug in [
        "volume.recalls_wait_for_read_backs",
        "volume.unpublished_beyond_the_pins",
    ] {
        let waited = behind(Some(bug), beside_pins(256 << 20));
        assert!(waited > Duration::from_secs(45), "{waited:?}");
    }
}

#[test]
fn what_is_published_is_given_at_once_whatever_else_there_is_to_upload() {
    let backlog = Backlog {
        is_line_changed: false,
        ..Backlog::new(128 << 20, 8_000_000)
    };
    let waited = behind(None, backlog);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    let waited = behind(Some("leases.gives_behind_all"), backlog);
    assert!(waited > Duration::from_secs(20), "{waited:?}");
}

/// Takes some gigabytes of memory.
#[test]
#[ignore = "takes minutes; make test-all runs it"]
fn a_file_of_one_line_behind_a_gibibyte() {
    for disk_cache_bytes in [16 << 20, 4 << 30] {
        let backlog = Backlog {
            disk_cache_bytes,
            ..Backlog::new(1 << 30, 80_000_000)
        };
        let waited = behind(None, backlog);
        assert!(waited < RECALLED, "{waited:?}");
    }
}
