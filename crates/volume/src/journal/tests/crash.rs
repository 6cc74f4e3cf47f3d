//! Crashes: random histories on the simulated disk, and every moment of a recorded one.

use super::{VOLUME, keys_of, open_as, payload};
use crate::journal::{Journal, JournalConfig, JournalError, ReserveClass, Sequence};
use bytes::Bytes;
use firn_env::{
    Env,
    mutants::planting,
    sim::{DiskImage, Machine, Recording, RecordingDisk, Seeded, Simulation, Survival},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

fn tiny() -> JournalConfig {
    JournalConfig {
        file_bytes: 16 << 10,
        capacity_bytes: 96 << 10,
        reserve_bytes: 4 << 10,
        ..JournalConfig::default()
    }
}

/// Payloads of histories whose records are all of one length. Framed, the latter two fill pages without a rest: behind a batch that ends with its
/// page there are no zeros, so that a record of the file's earlier use may follow at once.
const EVEN_RECORD_BYTES: [usize; 3] = [180, 484, 996];

/// What the journal was told and what it promised.
#[derive(Default)]
struct Model {
    appended: BTreeMap<u64, Bytes>,
    /// Everything up to here must survive.
    acknowledged: u64,
    /// Under a committed root.
    covered: u64,
    next_payload: u64,
    acknowledgements: u64,
    /// All records have this length, so that those of each use of a file stand where those of the use before it stood.
    length: Option<usize>,
}

type Shared = Arc<Mutex<Model>>;

fn lock(model: &Shared) -> std::sync::MutexGuard<'_, Model> {
    model.lock().expect("no panic under the model's lock")
}

/// Opens the journal and checks that what it has is a prefix with everything acknowledged.
async fn recover(env: &Env, model: &Shared) -> Result<Journal, String> {
    let covered = lock(model).covered;
    let (journal, mut replay) = open_as(env, (&keys_of(1), VOLUME), covered, tiny())
        .await
        .map_err(|error| format!("it does not open: {error}"))?;
    let mut last = covered;
    while let Some(record) = replay.next().await.map_err(|error| format!("replay: {error}"))? {
        if record.sequence.0 != last + 1 {
            return Err(format!("record {} after record {last}", record.sequence));
        }
        last += 1;
        if lock(model).appended.get(&last) != Some(&record.payload) {
            return Err(format!("record {last} is not what was appended"));
        }
    }
    let mut model = lock(model);
    if last < model.acknowledged {
        return Err(format!(
            "records {} to {} were durable and are lost",
            last + 1,
            model.acknowledged
        ));
    }
    model.appended.retain(|sequence, _| *sequence <= last);
    // Whoever replays builds upon it.
    model.acknowledged = last;
    Ok(journal)
}

/// One client: appends, sometimes waits, sometimes commits a root.
async fn client(env: Env, journal: Journal, model: Shared, seed: u64) -> Result<(), JournalError> {
    let mut random = Seeded::new(seed, 1);
    let even = lock(&model).length;
    loop {
        let length = if let Some(length) = even {
            length
        } else if random.chance(1, 8) {
            random.index(6000)
        } else {
            random.index(300)
        };
        let Ok(reservation) = journal
            .wait_for_space(
                length as u64 + 8,
                ReserveClass::Ordinary,
                Duration::from_millis(50),
            )
            .await
        else {
            if journal.failed().is_some() {
                return Ok(());
            }
            commit_root(&journal, &model).await?;
            continue;
        };
        let appended = {
            let mut model = lock(&model);
            model.next_payload += 1;
            let payload = payload(model.next_payload, length);
            let appended = journal.append(reservation, vec![payload.clone()]);
            model.appended.insert(appended.sequence.0, payload);
            appended
        };
        match random.below(10) {
            0..5 => {
                journal.durable(appended.sequence).await?;
                let mut model = lock(&model);
                model.acknowledged = model.acknowledged.max(appended.sequence.0);
                model.acknowledgements += 1;
            }
            5 => commit_root(&journal, &model).await?,
            6 => match journal.read(&appended.record).await {
                Ok(read) => {
                    let expected = lock(&model).appended.get(&appended.sequence.0).cloned();
                    assert_eq!(Some(read), expected, "a record reads back as it was appended");
                }
                Err(JournalError::Trimmed { .. }) => {}
                Err(error) => return Err(error),
            },
            7 => {
                env.sleep(random.duration(Duration::ZERO, Duration::from_millis(20)))
                    .await
            }
            _ => {}
        }
    }
}

/// Some of what is durable goes under a committed root, and the journal is trimmed.
async fn commit_root(journal: &Journal, model: &Shared) -> Result<(), JournalError> {
    let covered = {
        let mut model = lock(model);
        model.covered = model.covered.max(journal.durable_to().0.saturating_sub(3));
        Sequence(model.covered)
    };
    journal.trim(covered).await
}

/// Several lives of one machine; `Err` says which promise was broken.
fn history(seed: u64) -> Result<(u64, u64), String> {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("edge");
    let model = Shared::default();
    let length = EVEN_RECORD_BYTES[seed as usize / 3 % EVEN_RECORD_BYTES.len()];
    lock(&model).length = seed.is_multiple_of(3).then_some(length);
    let mut random = Seeded::new(seed, 0);
    let tight = random.chance(1, 4);
    machine.disk().configure(|options| {
        if tight {
            options.capacity_bytes = 150 << 10;
        }
        options.sync_failures = if seed.is_multiple_of(5) { 20_000 } else { 0 };
    });
    for life in 0..6 {
        let env = if machine.is_running() {
            machine.env()
        } else {
            machine.restart()
        };
        if random.chance(1, 3) {
            machine.crash_at_any(random.between(1, 60));
        }
        let seeds: Vec<u64> = (0..random.between(1, 5)).map(|_| random.draw()).collect();
        let until = random.duration(Duration::from_millis(1), Duration::from_millis(150));
        let kill = random.chance(1, 4);
        live(&simulation, &machine, env, &model, (seeds, until, kill), None)
            .map_err(|why| format!("life {life}: {why}"))?;
    }
    Ok((simulation.trace_hash(), lock(&model).acknowledgements))
}

fn live(
    simulation: &Simulation,
    machine: &Machine,
    env: Env,
    model: &Shared,
    (seeds, until, kill): (Vec<u64>, Duration, bool),
    crashes: Option<&mut u32>,
) -> Result<(), String> {
    let outcome = Arc::new(Mutex::new(Ok(())));
    let (told, shared) = (outcome.clone(), model.clone());
    let inside = env.clone();
    let life = env.spawn("life", async move {
        // A disk that fails or is full at the start may refuse it; what it has must be right the next time.
        let journal = match recover(&inside, &shared).await {
            Ok(journal) => journal,
            Err(why) if why.contains("no space") || why.contains("sync") => return,
            Err(why) => {
                *told.lock().expect("no panic under this lock") = Err(why);
                return;
            }
        };
        let clients: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                inside.spawn(
                    "client",
                    client(inside.clone(), journal.clone(), shared.clone(), seed),
                )
            })
            .collect();
        for client in clients {
            let _ = client.await;
        }
    });
    let controller = simulation.env();
    simulation
        .run(async move {
            let _ = controller.timeout(until, life).await;
        })
        .map_err(|error| error.to_string())?;
    if let Some(crashes) = crashes {
        *crashes += u32::from(!machine.is_running());
    }
    if kill {
        machine.kill();
    } else {
        machine.crash();
    }
    machine.faults().disarm();
    std::mem::replace(&mut *outcome.lock().expect("no panic under this lock"), Ok(()))
}

#[test]
fn any_history_of_crashes_leaves_a_prefix_with_everything_acknowledged() {
    // More on request: FIRN_JOURNAL_SEEDS=10000.
    let seeds = std::env::var("FIRN_JOURNAL_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(150);
    let mut acknowledgements = 0;
    for seed in 0..seeds {
        match history(seed) {
            Ok((_, acknowledged)) => acknowledgements += acknowledged,
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(
        acknowledgements > 5000,
        "the histories acknowledge something: {acknowledgements}"
    );
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 5] {
        assert_eq!(history(seed), history(seed));
    }
}

/// Every place in the journal's code where the machine may be stopped.
const FAULT_POINTS: [&str; 17] = [
    "journal.open",
    "journal.before_rewrite",
    "journal.before_resync",
    "journal.before_recovery_remove",
    "journal.after_recovery",
    "journal.before_file_create",
    "journal.after_file_create",
    "journal.before_file_recycle",
    "journal.before_recycled_name",
    "journal.before_write",
    "journal.after_write",
    "journal.before_write_and_sync",
    "journal.after_write_and_sync",
    "journal.before_fsync",
    "journal.after_fsync",
    "journal.before_trim",
    "journal.after_trim_remove",
];

#[test]
fn a_crash_at_every_fault_point_is_survived() {
    for point in FAULT_POINTS {
        let mut crashes = 0;
        for seed in 0..12 {
            let simulation = Simulation::new(seed);
            let machine = simulation.machine("edge");
            let model = Shared::default();
            // A first life to have something to lose, one that ends at the point, one that looks.
            for life in 0..3_u64 {
                if life == 1 {
                    machine.crash_at(point, 1 + seed % 4);
                }
                let env = if machine.is_running() {
                    machine.env()
                } else {
                    machine.restart()
                };
                let work = (
                    vec![seed, seed + 1, seed + 2],
                    Duration::from_millis(80),
                    seed % 2 == 0,
                );
                let armed = life == 1;
                live(
                    &simulation,
                    &machine,
                    env,
                    &model,
                    work,
                    armed.then_some(&mut crashes),
                )
                .unwrap_or_else(|why| panic!("{point}, seed {seed}, life {life}: {why}"));
            }
        }
        assert!(crashes > 0, "{point} is never reached");
    }
}

#[test]
fn every_planted_bug_of_the_journal_is_caught() {
    let bugs = [
        // Records of an earlier use of the file have the slots and checksums of this one's.
        "volume.accept_stale_records",
        "volume.acknowledge_before_fsync",
        "volume.fsync_covers_later_writes",
        "volume.reuse_found_journal_file",
        "volume.skip_journal_directory_sync",
        "volume.skip_sync_before_rotation",
        // A journal file is removed although its last record is not under a committed root.
        "volume.trim_one_record_early",
        "volume.write_beside_zeros",
    ];
    for bug in bugs {
        let caught = (0..500).find(|seed| planting(Some(bug), || history(*seed)).is_err());
        println!("{bug}: caught at seed {caught:?}");
        assert!(caught.is_some(), "{bug} is not caught");
    }
}

/// A process dies, the kernel lives on with what was written and not synced, the next process builds on it, the power fails.
fn build_on_unsynced_records() -> Result<(), String> {
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let machine = simulation.machine("edge");
        let model = Shared::default();
        let env = machine.env();
        let shared = model.clone();
        simulation
            .run(async move {
                let first = recover(&env, &shared).await?;
                for number in 1..20 {
                    let reservation = first.reserve(108, ReserveClass::Ordinary).expect("there is room");
                    let record = first.append(reservation, vec![payload(number, 100)]);
                    lock(&shared)
                        .appended
                        .insert(record.sequence.0, payload(number, 100));
                }
                // Written by itself, not synced. The first process stops here; its handle is kept only so that it does
                // not close the journal in an orderly way.
                env.sleep(Duration::from_millis(50)).await;
                let second = recover(&env, &shared).await?;
                assert_eq!(second.last(), Sequence(19), "what the kernel has is replayed");
                let reservation = second
                    .reserve(108, ReserveClass::Ordinary)
                    .expect("there is room");
                let record = second.append(reservation, vec![payload(20, 100)]);
                lock(&shared).appended.insert(20, payload(20, 100));
                second
                    .durable(record.sequence)
                    .await
                    .map_err(|error| error.to_string())?;
                lock(&shared).acknowledged = 20;
                Ok::<_, String>((first, second))
            })
            .map_err(|error| error.to_string())??;
        machine.crash();
        let env = machine.restart();
        let shared = model.clone();
        simulation
            .run(async move { recover(&env, &shared).await.map(drop) })
            .map_err(|error| error.to_string())??;
    }
    Ok(())
}

#[test]
fn records_that_were_only_in_the_kernels_memory_are_made_durable_before_they_are_built_upon() {
    build_on_unsynced_records().expect("nothing is lost");
}

#[test]
fn a_start_that_builds_on_unsynced_records_is_caught() {
    planting(
        Some("volume.skip_resync_of_found_files"),
        build_on_unsynced_records,
    )
    .expect_err("the bug is noticed");
}

/// Runs a short busy life on a recording disk.
fn recorded() -> (Recording, Shared) {
    let simulation = Simulation::new(11);
    let machine = simulation.machine("edge");
    let (disk, recording) = RecordingDisk::new(machine.env().disk().clone(), DiskImage::default());
    let env = machine.env().with_disk(Arc::new(disk));
    let model = Shared::default();
    let (shared, marks) = (model.clone(), recording.clone());
    simulation
        .run(async move {
            let journal = recover(&env, &shared).await?;
            let clients = (0..4_u64).map(|index| {
                let (env, journal, shared, marks) =
                    (env.clone(), journal.clone(), shared.clone(), marks.clone());
                env.clone().spawn("client", async move {
                    for round in 0..12 {
                        let number = index * 100 + round;
                        let length = if round % 5 == 0 { 3000 } else { 150 };
                        let reservation = journal
                            .wait_for_space(length + 8, ReserveClass::Ordinary, Duration::from_secs(10))
                            .await
                            .expect("96 KiB suffice");
                        let appended = {
                            let mut model = lock(&shared);
                            let record = journal.append(reservation, vec![payload(number, length as usize)]);
                            model
                                .appended
                                .insert(record.sequence.0, payload(number, length as usize));
                            record
                        };
                        if round % 3 != 2 {
                            journal.durable(appended.sequence).await.expect("durable");
                            marks.mark(appended.sequence.0);
                        }
                    }
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.await.map_err(|error| error.to_string())?;
            }
            journal.close().await;
            Ok::<_, String>(())
        })
        .expect("the simulation runs")
        .expect("the journal works");
    (recording, model)
}

#[test]
fn every_moment_of_a_recorded_life_can_be_the_last() {
    let (recording, model) = recorded();
    let mut replay = recording.replay();
    let mut tried = 0;
    loop {
        let acknowledged = replay.marks().iter().copied().max().unwrap_or(0);
        let position = replay.position() as u64;
        let survivals = [
            Survival::Nothing,
            Survival::Everything,
            Survival::Each(50),
            Survival::Prefix(position),
        ];
        for (number, survival) in survivals.into_iter().enumerate() {
            let image = replay.crash(survival, position * 7 + number as u64);
            let appended = lock(&model).appended.clone();
            let after = Arc::new(Mutex::new(Model {
                appended,
                acknowledged,
                ..Model::default()
            }));
            let simulation = Simulation::new(position);
            let machine = simulation.machine("edge");
            machine.crash();
            machine.disk().restore(&image);
            let env = machine.restart();
            let outcome = simulation.run(async move { recover(&env, &after).await.map(drop) });
            if let Err(why) = outcome.expect("the simulation runs") {
                panic!(
                    "after event {position} of {}, {survival:?}: {why}",
                    recording.len()
                );
            }
            tried += 1;
        }
        if !replay.step() {
            break;
        }
    }
    assert!(tried > 400, "{tried} moments");
}
