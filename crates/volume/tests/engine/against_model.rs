//! One client, random operations, checkpoints, cache losses and power cuts: after each the volume equals the executable model.
//! (Many clients, faults and takeovers are the business of the simulation, which is a crate of its own.)

use crate::{
    usage::settled,
    world::{World, root},
};
use bytes::Bytes;
use firn_env::sim::{Seeded, Simulation};
use firn_vfs::{
    Compare, CreateMode, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError, compare_trees,
};

/// A file as each side names it.
pub type Pair = [FileHandle; 2];

/// One operation on both; the results must agree in success and in error.
pub async fn step(seeded: &mut Seeded, known: &mut Vec<Pair>, sides: [&dyn Vfs; 2]) {
    let caller = root();
    let directories = *seeded.pick(known);
    let others = *seeded.pick(known);
    let name = Name::new(format!("n{}", seeded.below(12))).expect("a name");
    let target = Name::new(format!("n{}", seeded.below(12))).expect("a name");
    let kind = seeded.below(14);
    let offset = seeded.below(200_000);
    let mut data = vec![0; 1 + seeded.below(70_000) as usize];
    seeded.fill(&mut data);
    let data = Bytes::from(data);
    let size = seeded.below(250_000);
    let mut results: Vec<Result<Option<FileHandle>, VfsError>> = Vec::new();
    let attributes = SetAttributes {
        mode: Some(0o755),
        ..SetAttributes::default()
    };
    for (side, (directory, other)) in sides.into_iter().zip(directories.into_iter().zip(others)) {
        results.push(match kind {
            0..=2 => side
                .create(
                    &caller,
                    directory,
                    &name,
                    CreateMode::Unchecked(attributes.clone()),
                )
                .await
                .map(|made| Some(made.handle)),
            3 => side
                .make_directory(&caller, directory, &name, attributes.clone())
                .await
                .map(|made| Some(made.handle)),
            4 => side
                .make_symlink(
                    &caller,
                    directory,
                    &name,
                    Bytes::from("over/there"),
                    attributes.clone(),
                )
                .await
                .map(|made| Some(made.handle)),
            5..=7 => side
                .write(
                    &caller,
                    directory,
                    offset,
                    vec![data.clone()],
                    Stability::FileSync,
                )
                .await
                .map(|_| None),
            8 => side.remove(&caller, directory, &name).await.map(|_| None),
            9 => side
                .remove_directory(&caller, directory, &name)
                .await
                .map(|_| None),
            10 => side
                .rename(&caller, directory, &name, other, &target)
                .await
                .map(|_| None),
            11 => side.link(&caller, other, directory, &name).await.map(|_| None),
            12 => {
                let change = SetAttributes {
                    size_bytes: Some(size),
                    ..SetAttributes::default()
                };
                side.set_attributes(&caller, directory, change, None)
                    .await
                    .map(|_| None)
            }
            _ => {
                let value = data.slice(..data.len().min(300));
                let mode = firn_vfs::XattrMode::Either;
                side.set_xattr(&caller, directory, b"user.note", value, mode)
                    .await
                    .map(|_| None)
            }
        });
    }
    let outcome = |result: &Result<Option<FileHandle>, VfsError>| result.clone().map(|made| made.is_some());
    let what = format!("operation {kind} on {directories:?} {name:?} {others:?} {target:?}");
    assert_eq!(outcome(&results[0]), outcome(&results[1]), "{what}");
    if let [Ok(Some(one)), Ok(Some(other))] = results[..]
        && !known.contains(&[one, other])
    {
        known.push([one, other]);
    }
}

fn history(seed: u64) {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let model = world.model();
    let mut seeded = Seeded::new(seed, 1);
    let mut volume = simulation.run(world.format_and_open()).expect("the run ends");
    let mut known = vec![[model.root(), volume.root()]];
    for round in 0..6 {
        let (steps, end) = (20 + seeded.below(60), seeded.below(4));
        let mut chosen = Seeded::new(seeded.draw(), 2);
        let (model_side, volume_side) = (model.clone(), volume.clone());
        let mut handles = std::mem::take(&mut known);
        handles = simulation
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
        known = handles;
        match end {
            0 => {}
            1 => {
                volume = world.power_cut(&simulation);
            }
            2 => {
                let stopping = volume.clone();
                simulation
                    .run(async move { stopping.stop().await })
                    .expect("the run ends")
                    .expect("it stops");
                volume = world.power_cut(&simulation);
            }
            _ => {
                let draining = volume.clone();
                simulation
                    .run(async move { draining.drain().await })
                    .expect("the run ends")
                    .expect("it drains");
                world.lose_disk();
                volume = world.power_cut(&simulation);
            }
        }
        let (model_side, volume_side) = (model.clone(), volume.clone());
        let differences = simulation
            .run(async move {
                let compare = Compare {
                    times: false,
                    ..Compare::default()
                };
                compare_trees(&*model_side, &volume_side, &compare).await
            })
            .expect("the run ends");
        assert!(
            differences.is_empty(),
            "seed {seed} round {round} end {end}: {differences:#?}"
        );
    }
    let (last, parts) = (volume.clone(), world.own_parts());
    let report = simulation
        .run(async move {
            last.sync().await.expect("a healthy store takes it");
            let report = last.verify(&|_| {}).await.expect("the store answers");
            let errors = settled(&parts, &last).await;
            assert_eq!(
                errors,
                (0, 0),
                "seed {seed}: the usage map says too much, too little"
            );
            report
        })
        .expect("the run ends");
    assert!(report.is_whole(), "seed {seed}: {report:#?}");
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Every second history from the first or the second on: two tests, so that both run at once.
fn every_second(begin: u64) {
    let first = number_from("FIRST_SEED").unwrap_or(1);
    let count = number_from("SEEDS").unwrap_or(12);
    for seed in (first + begin..first + count).step_by(2) {
        history(seed);
    }
}

#[test]
fn odd_histories_leave_what_the_model_says() {
    every_second(0);
}

#[test]
fn even_histories_leave_what_the_model_says() {
    every_second(1);
}
