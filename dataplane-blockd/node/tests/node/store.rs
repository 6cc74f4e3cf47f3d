//! The store alone: what is durable survives every crash, and no block is ever torn.

use crate::support::{
    content,
    store::{DISK, formatted, generation, place, put, read, trim},
    tiny,
};
use firn_blockd_node::*;
use firn_blockd_protocol::*;
use firn_env::{
    Env,
    mutants::planting,
    sim::{DiskImage, RecordingDisk, Simulation, Survival},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What a test knows of one block.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Generations that were put, and whether each was a trim.
    put: BTreeMap<Generation, bool>,
    /// The highest generation that was said to be durable.
    durable: Generation,
}

type Model = BTreeMap<(u32, u16), Known>;

/// Checks every block of a store against what is known; returns what is wrong.
async fn check(store: &Store, model: &Model) -> Result<(), String> {
    for ((index, block), known) in model {
        let range = BlockRange::new(*block, 1).expect("within the tract");
        let found = store
            .read(place(*index), range)
            .await
            .map_err(|error| error.to_string())?;
        let version = found.versions[0];
        let which = || format!("block {index}/{block} at {}", version.generation);
        if version.generation < known.durable {
            return Err(format!("{} although {} was durable", which(), known.durable));
        }
        match version.state {
            BlockState::Absent => {}
            BlockState::Trimmed => {
                if known.put.get(&version.generation) != Some(&true) {
                    return Err(format!("{} was never trimmed", which()));
                }
            }
            BlockState::Written(_) => {
                if known.put.get(&version.generation) != Some(&false) {
                    return Err(format!("{} was never written", which()));
                }
                if found.data != content(place(*index).tract, *block, version.generation) {
                    return Err(format!("{} holds something else", which()));
                }
            }
        }
    }
    Ok(())
}

/// Puts at random until told to stop; keeps `model` up to date with what it was told.
async fn work(
    env: &Env,
    store: &Store,
    model: &Arc<Mutex<Model>>,
    steps: u64,
    first: u64,
    told: impl Fn(u64),
) {
    let mut sequence = first;
    for _ in 0..steps {
        let index = env.random_below(2) as u32;
        let start = env.random_below(24) as u16;
        let count = 1 + env.random_below(6) as u16;
        // Now and then an old generation arrives late.
        let late = env.random_below(8) == 0 && sequence > first + 10;
        let at = generation(if late {
            sequence - env.random_below(8)
        } else {
            sequence
        });
        sequence += 1;
        let trims = env.random_below(6) == 0;
        let puts: Vec<Put> = (start..start + count)
            .map(|block| {
                if trims {
                    trim(block, at)
                } else {
                    put(index, block, at)
                }
            })
            .collect();
        {
            let mut model = model.lock().expect("no panic");
            // One generation is one content: a late one only counts where nobody put it before.
            if puts.iter().any(|put| {
                model
                    .get(&(index, put.block))
                    .is_some_and(|known| known.put.get(&at).is_some_and(|was| *was != trims))
            }) {
                continue;
            }
            for put in &puts {
                model.entry((index, put.block)).or_default().put.insert(at, trims);
            }
        }
        let batch = store.put(place(index), &puts).await.expect("it is put");
        if env.random_below(3) == 0 {
            store.durable(batch).await;
            let mut model = model.lock().expect("no panic");
            for put in &puts {
                let known = model.entry((index, put.block)).or_default();
                known.durable = known.durable.max(at);
            }
        }
        told(sequence);
    }
}

#[test]
fn a_directory_is_formatted_once() {
    let simulation = Simulation::new(1);
    let env = simulation.machine("node").env();
    simulation
        .run(async move {
            assert!(matches!(
                Store::open(&env, StoreOptions::default()).await,
                Err(OpenError::Empty)
            ));
            let node = Store::format(&env, tiny()).await.expect("it is formatted");
            assert!(
                matches!(Store::format(&env, tiny()).await, Err(OpenError::Exists(found)) if found == node)
            );
            let store = Store::open(&env, StoreOptions::default())
                .await
                .expect("it opens");
            assert_eq!(store.node(), node);
            assert_eq!(store.geometry(), tiny());
        })
        .expect("the run ends");
}

#[test]
fn a_store_comes_back_after_kill_with_everything_flushed() {
    for seed in 0..10 {
        let simulation = Simulation::new(seed);
        let machine = simulation.machine("node");
        let env = machine.env();
        simulation
            .run(async move { Store::format(&env, tiny()).await.expect("it is formatted") })
            .expect("the run ends");
        let model: Arc<Mutex<Model>> = Arc::default();
        for round in 0..4 {
            let env = machine.env();
            let shared = model.clone();
            simulation
                .run(async move {
                    let store = Store::open(&env, StoreOptions::default())
                        .await
                        .expect("it opens");
                    let known = shared.lock().expect("no panic").clone();
                    check(&store, &known).await.expect("nothing was lost");
                    work(&env, &store, &shared, 80, 1 + round * 1000, |_| ()).await;
                    store.set_fence(DISK, Fence(round as u32 + 1)).await;
                    store.flush().await;
                    assert_eq!(store.fence(DISK), Some(Fence(round as u32 + 1)));
                })
                .expect("the run ends");
            if round % 2 == 0 {
                machine.kill();
            } else {
                machine.crash();
            }
            machine.restart();
        }
    }
}

/// One life after another, each ended by a crash at some fault point or moment. `Err`: what was wrong.
fn lives(seed: u64) -> Result<(), String> {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("node");
    let env = machine.env();
    simulation
        .run(async move { Store::format(&env, tiny()).await.expect("it is formatted") })
        .map_err(|error| error.to_string())?;
    let model: Arc<Mutex<Model>> = Arc::default();
    let fence: Arc<Mutex<u32>> = Arc::default();
    for life in 0..8_u64 {
        let env = machine.env();
        machine.crash_at_any(1 + (seed * 31 + life * 17) % 160);
        let wrong: Arc<Mutex<Option<String>>> = Arc::default();
        let (shared, promised, verdict) = (model.clone(), fence.clone(), wrong.clone());
        let living = env.clone();
        drop(env.spawn("life", async move {
            let env = living;
            let store = match Store::open(&env, StoreOptions::default()).await {
                Ok(store) => store,
                Err(error) => {
                    *verdict.lock().expect("no panic") = Some(error.to_string());
                    return;
                }
            };
            let known = shared.lock().expect("no panic").clone();
            if let Err(error) = check(&store, &known).await {
                *verdict.lock().expect("no panic") = Some(error);
                return;
            }
            let least = Fence(*promised.lock().expect("no panic"));
            if store.fence(DISK).unwrap_or_default() < least {
                *verdict.lock().expect("no panic") = Some("a fence was forgotten".into());
                return;
            }
            store.set_fence(DISK, Fence(life as u32 + 1)).await;
            *promised.lock().expect("no panic") = life as u32 + 1;
            let workers = (0..3).map(|worker| {
                let (env, store, shared) = (&env, &store, &shared);
                async move { work(env, store, shared, 200, life * 10_000 + 1 + worker * 1000, |_| ()).await }
            });
            futures::future::join_all(workers).await;
        }));
        let controller = simulation.env();
        let watched = machine.clone();
        let outcome = simulation.run(async move {
            for _ in 0..400 {
                controller.sleep(Duration::from_millis(50)).await;
                if !watched.is_running() {
                    return;
                }
            }
        });
        outcome.map_err(|error| error.to_string())?;
        if let Some(wrong) = wrong.lock().expect("no panic").take() {
            return Err(format!("life {life}: {wrong}"));
        }
        machine.faults().disarm();
        machine.crash();
        machine.restart();
    }
    Ok(())
}

#[test]
fn crashes_anywhere_lose_nothing_that_was_durable_and_tear_no_block() {
    for seed in 0..60 {
        if let Err(wrong) = lives(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn bugs_planted_in_the_store_are_caught() {
    let bugs = [
        "store.acknowledge_before_sync",
        "store.journal_before_data",
        "store.last_arrival_wins",
        "store.fence_not_durable",
    ];
    let mut unnoticed = Vec::new();
    for bug in bugs {
        match (0..100).find(|seed| planting(Some(bug), || lives(*seed)).is_err()) {
            Some(seed) => eprintln!("{bug}: caught with seed {seed}"),
            None => unnoticed.push(bug),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn recorded(seed: u64) -> (firn_env::sim::Recording, Arc<Mutex<Vec<Model>>>) {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("node");
    let env = machine.env();
    simulation
        .run(async move { Store::format(&env, tiny()).await.expect("it is formatted") })
        .expect("the run ends");
    machine.disk().settle();
    let start: DiskImage = machine.disk().image();
    let env = machine.env();
    let (disk, recording) = RecordingDisk::new(env.disk().clone(), start);
    let env = env.with_disk(Arc::new(disk));
    // What was known at each mark.
    let known: Arc<Mutex<Vec<Model>>> = Arc::default();
    let (marks, steps) = (recording.clone(), known.clone());
    simulation
        .run(async move {
            let store = Store::open(&env, StoreOptions::default())
                .await
                .expect("it opens");
            let model: Arc<Mutex<Model>> = Arc::default();
            work(&env, &store, &model, 260, 1, |_| {
                let mut steps = steps.lock().expect("no panic");
                marks.mark(steps.len() as u64);
                steps.push(model.lock().expect("no panic").clone());
            })
            .await;
        })
        .expect("the run ends");
    (recording, known)
}

#[test]
fn every_moment_of_a_recorded_run_recovers() {
    let (recording, known) = recorded(7);
    let known = known.lock().expect("no panic").clone();
    let mut replay = recording.replay();
    let mut tried = 0;
    // Every third moment, so that the test stays short; which ones differs between the kinds of survival.
    while replay.step() {
        if replay.position() % 3 != 0 {
            continue;
        }
        let survival = match replay.position() / 3 % 4 {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::Each(50),
            _ => Survival::Each(10),
        };
        let image = replay.crash(survival, replay.position() as u64);
        // What was durable at the last mark must be there; what was put by the next one may be.
        let last = replay.marks().last().map(|mark| *mark as usize);
        let mut model = last.map(|last| known[last].clone()).unwrap_or_default();
        let next = last.map_or(0, |last| last + 1);
        for later in known.iter().skip(next).take(2) {
            for (block, seen) in later {
                model.entry(*block).or_default().put.extend(seen.put.clone());
            }
        }
        let simulation = Simulation::new(replay.position() as u64);
        let machine = simulation.machine("node");
        machine.disk().restore(&image);
        let env = machine.env();
        simulation
            .run(async move {
                let store = Store::open(&env, StoreOptions::default())
                    .await
                    .expect("it opens");
                check(&store, &model).await.expect("nothing was lost");
            })
            .unwrap_or_else(|error| panic!("moment {}: {error}", replay.position()));
        tried += 1;
    }
    assert!(tried > 100, "only {tried} moments");
}

#[test]
fn the_highest_generation_wins_whatever_the_order() {
    let simulation = Simulation::new(2);
    let env = simulation.machine("node").env();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            for sequence in [5, 3, 9, 1, 8] {
                store
                    .put(place(0), &[put(0, 7, generation(sequence))])
                    .await
                    .expect("it is put");
            }
            store
                .put(place(0), &[trim(8, generation(4))])
                .await
                .expect("it is put");
            store
                .put(place(0), &[put(0, 8, generation(2))])
                .await
                .expect("it is put");
            let later = Generation::new(Fence(2), 1);
            store
                .put(place(0), &[put(0, 9, generation(100))])
                .await
                .expect("it is put");
            store.put(place(0), &[put(0, 9, later)]).await.expect("it is put");
            for _ in 0..2 {
                assert_eq!(read(&store, 0, 7).await.0.generation, generation(9));
                assert_eq!(read(&store, 0, 8).await.0.state, BlockState::Trimmed);
                assert_eq!(read(&store, 0, 9).await.0.generation, later);
                store.flush().await;
            }
        })
        .expect("the run ends");
}

#[test]
fn a_tract_from_an_earlier_stay_is_emptied_once_however_many_ask() {
    let simulation = Simulation::new(6);
    let env = simulation.machine("node").env();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            store
                .put(place(0), &[put(0, 1, generation(9))])
                .await
                .expect("it is put");
            let later = TractPlace {
                since: RowVersion(5),
                ..place(0)
            };
            let early = store.put(later, &[put(0, 2, generation(1))]).await;
            assert!(
                matches!(early, Err(StoreError::OtherMembership { .. })),
                "{early:?}"
            );
            let asking = (0..5_u16).map(|at| {
                let store = &store;
                async move {
                    store.reset(later).await;
                    // What belongs to the earlier membership is gone; giving that up must not touch this one.
                    store
                        .put(later, &[put(0, 10 + at, generation(2))])
                        .await
                        .expect("it is put");
                    store.release(place(0)).await;
                }
            });
            futures::future::join_all(asking).await;
            let range = BlockRange::new(0, 20).expect("within the tract");
            let found = store.read(later, range).await.expect("no damage");
            let written: Vec<usize> = (0..20)
                .filter(|at| found.versions[*at].state != BlockState::Absent)
                .collect();
            assert_eq!(written, [10, 11, 12, 13, 14]);
        })
        .expect("the run ends");
}

#[test]
fn rot_is_found_and_never_returned() {
    assert_eq!(damaged_blocks_that_pass(), 0);
    let passed = planting(Some("store.damage_passes"), damaged_blocks_that_pass);
    assert!(passed > 0, "the bug is noticed");
}

/// Of 200 blocks on a disk that rots, those that are returned although they are damaged.
fn damaged_blocks_that_pass() -> usize {
    let simulation = Simulation::new(4);
    let machine = simulation.machine("node");
    let env = machine.env();
    let rotting = machine.disk();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            let puts: Vec<Put> = (0..200).map(|block| put(0, block, generation(1))).collect();
            store.put(place(0), &puts).await.expect("it is put");
            store.flush().await;
            rotting.rot("data/", 4000);
            let mut wrong = 0;
            let mut damaged = 0;
            for block in 0..200 {
                let range = BlockRange::new(block, 1).expect("within the tract");
                match store.read(place(0), range).await {
                    Ok(found) if found.data == content(place(0).tract, block, generation(1)) => {}
                    Ok(_) => wrong += 1,
                    Err(StoreError::Damaged { block: which, .. }) => {
                        assert_eq!(which, block);
                        damaged += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(store.damaged().len(), damaged);
            assert!(wrong + damaged > 0, "something rotted");
            wrong
        })
        .expect("the run ends")
}

#[test]
fn a_rotten_journal_or_index_is_an_error_and_not_a_step_back() {
    for (prefix, bits) in [
        ("journal/", 300),
        ("index/", 200_000),
        ("state", 3),
        ("superblock", 1),
    ] {
        let simulation = Simulation::new(5);
        let machine = simulation.machine("node");
        let env = machine.env();
        simulation
            .run(async move {
                let store = formatted(&env).await;
                for sequence in 1..400 {
                    let puts: Vec<Put> = (0..8).map(|at| put(0, at * 3, generation(sequence))).collect();
                    store.put(place(0), &puts).await.expect("it is put");
                    store.flush().await;
                }
            })
            .expect("the run ends");
        machine.crash();
        machine.restart();
        machine.disk().rot(prefix, bits);
        let env = machine.env();
        let opened = simulation
            .run(async move {
                match Store::open(&env, StoreOptions::default()).await {
                    Err(error) => Err(error),
                    Ok(store) => Ok(read(&store, 0, 0).await.0.generation),
                }
            })
            .expect("the run ends");
        match opened {
            Err(OpenError::Damaged { .. }) => {}
            Err(error) => panic!("{prefix}: {error}"),
            Ok(found) => assert_eq!(found, generation(399), "{prefix}: a step back in time"),
        }
    }
}
