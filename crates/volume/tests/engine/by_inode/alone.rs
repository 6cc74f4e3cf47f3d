//! One member alone: what an owner would make of the same operations, through publications, power cuts, stops and departures.

use super::offices::{make, patient, put_state, start, state_of};
use crate::{
    against_model::{Pair, step},
    files::{create, directory, look, name, write},
    usage::settled,
    world::{World, config, root},
};
use firn_anchor::OwnerId;
use firn_env::sim::{Seeded, Simulation};
use firn_vfs::{Compare, Vfs, compare_trees};
use firn_volume::{Volume, VolumeError};
use std::{sync::Arc, time::Duration};

fn history(seed: u64) {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let model = world.model();
    let mut seeded = Seeded::new(seed, 1);
    let parts = world.own_parts();
    let (mut volume, number) = simulation
        .run(async move {
            let number = make(&parts, 1).await[0];
            (start(&parts, number, &patient()).await, number)
        })
        .expect("the run ends");
    let mut known: Vec<Pair> = vec![[model.root(), volume.root()]];
    for round in 0..6 {
        let (steps, end) = (20 + seeded.below(60), seeded.below(4));
        let mut chosen = Seeded::new(seeded.draw(), 2);
        let (model_side, volume_side) = (model.clone(), volume.clone());
        let mut handles = std::mem::take(&mut known);
        known = simulation
            .run(async move {
                for _ in 0..steps {
                    let sides: [&dyn Vfs; 2] = [&*model_side, &volume_side];
                    step(&mut chosen, &mut handles, sides).await;
                    if chosen.chance(1, 20) {
                        volume_side.sync().await.expect("a healthy store takes it");
                    }
                    if chosen.chance(1, 20) {
                        volume_side.drop_caches().await;
                    }
                }
                handles
            })
            .expect("the run ends");
        let ending = volume.clone();
        match end {
            0 => {}
            1 => world.power_cut_only(),
            2 => {
                let stopped = simulation.run(async move { ending.stop().await });
                stopped.expect("the run ends").expect("it stops");
                world.power_cut_only();
            }
            _ => {
                let left = simulation.run(async move {
                    let member = ending.member_by_inode().expect("a member");
                    ending.sync().await.expect("a healthy store takes it");
                    member.leave().await.expect("it leaves")
                });
                assert!(left.expect("the run ends"), "nothing is under way");
                // Everything is at level 2: another disk serves as well, if it knows whose it is.
                let before = world.own_parts();
                let known = simulation.run(async move { state_of(&before.env).await });
                world.lose_disk();
                world.power_cut_only();
                let after = world.own_parts();
                let put = async move { put_state(&after.env, known.expect("the run ends")).await };
                simulation.run(put).expect("the run ends");
            }
        }
        let parts = world.own_parts();
        let (model_side, before) = (model.clone(), volume.clone());
        let (differences, opened) = simulation
            .run(async move {
                let volume = match end {
                    0 => before,
                    _ => start(&parts, number, &patient()).await,
                };
                let compare = Compare {
                    times: false,
                    ..Compare::default()
                };
                (compare_trees(&*model_side, &volume, &compare).await, volume)
            })
            .expect("the run ends");
        volume = opened;
        assert!(
            differences.is_empty(),
            "seed {seed} round {round} end {end}: {differences:#?}"
        );
    }
    let parts = world.own_parts();
    let errors = simulation
        .run(async move { settled(&parts, &volume).await })
        .expect("the run ends");
    // Its own walk finds every object of the head. What waited when the power went is not counted.
    assert_eq!(errors.0, 0, "seed {seed}: the usage map says too much");
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn one_member_alone_leaves_what_the_model_says() {
    let first = number_from("FIRST_SEED").unwrap_or(1);
    let count = number_from("SEEDS").unwrap_or(8);
    for seed in first..first + count {
        history(seed);
    }
}

/// Runs on a volume with one member, whose start takes a home.
fn alone<F: Future<Output = ()> + Send + 'static>(
    run: impl FnOnce(Arc<World>, Volume) -> F + Send + 'static,
) {
    let simulation = Simulation::new(1);
    let world = Arc::new(World::new(&simulation));
    let parts = world.own_parts();
    simulation
        .run(async move {
            let number = make(&parts, 1).await[0];
            let volume = start(&parts, number, &config()).await;
            run(world, volume).await;
        })
        .expect("the run ends");
}

#[test]
fn a_thousand_files_of_the_own_home_ask_no_arena() {
    alone(|world, volume| async move {
        let env = world.env();
        let own = directory(&volume, volume.root(), "own").await;
        create(&volume, own, "first").await;
        // Neither a beat nor a look at the mail falls into what is counted.
        env.sleep(Duration::from_secs(60)).await;
        let before = world.table().counts().requests();
        for number in 0..1000 {
            let file = create(&volume, own, &format!("file {number}")).await;
            write(&volume, file, 0, vec![7; 100]).await;
        }
        let asked = world.table().counts().requests() - before;
        assert!(asked <= 20, "{asked} requests to the table for a thousand files");
        let member = volume.member_by_inode().expect("a member");
        let home = u64::from(member.number().0);
        assert_eq!(own.inode >> 32, home, "numbers are of the member's home");
    });
}

#[test]
fn what_was_unlinked_and_open_when_a_member_stopped_is_freed_by_its_next_start() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let parts = world.own_parts();
    let number = simulation
        .run(async move {
            let number = make(&parts, 1).await[0];
            let volume = start(&parts, number, &config()).await;
            let file = create(&volume, volume.root(), "open").await;
            write(&volume, file, 0, vec![7; 100_000]).await;
            volume.retain(file).await.expect("it is opened");
            let removed = volume.remove(&root(), volume.root(), &name("open")).await;
            removed.expect("it is removed");
            volume.sync().await.expect("published");
            write(&volume, file, 0, vec![8; 100_000]).await;
            number
        })
        .expect("the run ends");
    world.power_cut_only();
    let parts = world.own_parts();
    simulation
        .run(async move {
            let opened = Volume::open_by_inode(parts, config(), number).await;
            let (volume, report) = opened.expect("it starts");
            let report = report.recovery;
            assert_eq!((report.records, report.orphans_freed), (1, 1));
            volume.sync().await.expect("published");
            let status = volume.status();
            assert_eq!((status.files, status.used_bytes), (1, 0));
        })
        .expect("the run ends");
}

#[test]
fn what_only_an_owner_does_is_refused_and_nobody_owns_such_a_volume() {
    alone(|world, volume| async move {
        let parts = world.own_parts();
        create(&volume, volume.root(), "file").await;
        assert!(matches!(volume.drain().await, Err(VolumeError::SharedByInode)));
        assert!(volume.snapshot_create("now", 0).await.is_err());
        look(&volume, &["file"]).await.expect("it serves");
        volume.sync().await.expect("published");
        volume.stop().await.expect("it stops");
        let opened = Volume::open(parts.clone(), config()).await;
        assert!(opened.is_err(), "a volume that is shared by inode has no owner");
        let acquired = parts.anchor.acquire(parts.volume, OwnerId([9; 16]), "edge").await;
        let refused = acquired.expect_err("nor does the anchor give it to anybody");
        assert!(!refused.is_transient(), "{refused}");
    });
}
