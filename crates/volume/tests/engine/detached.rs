//! Served without the cloud: which root a start goes out from, and that nothing it acknowledges is taken for what the cloud has.

use crate::{
    files::{create, name, read, write},
    world::{World, config, root},
};
use bytes::Bytes;
use firn_env::{mutants::planting, sim::Simulation};
use firn_vfs::{Stability, Vfs, VfsError};
use firn_volume::{NotDetachable, Volume, VolumeError};
use std::time::Duration;

/// Starts again after a power cut, without the cloud.
fn power_cut_detached(world: &mut World, simulation: &Simulation) -> Volume {
    world.power_cut_only();
    let parts = world.own_parts();
    simulation
        .run(async move {
            let opened = Volume::open_detached(parts, config()).await;
            opened.expect("it opens without the cloud").0
        })
        .expect("the run ends")
}

/// A commit whose machine dies before it remembers the root, a start without the cloud, writes, the return: how many of these writes are
/// there.
fn kept_after_a_commit_that_nobody_remembers() -> usize {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    world.crash_at("checkpoint.after_commit");
    world.attempt(&simulation, async move {
        let volume = opening.await;
        let file = create(&volume, volume.root(), "letter").await;
        // Records that nobody waits for.
        for number in 0..10 {
            let data = vec![Bytes::from_static(b"not stable")];
            let written = volume
                .write(&root(), file, number * 10, data, Stability::Unstable)
                .await;
            written.expect("written");
        }
        let _ = volume.sync().await;
    });
    let volume = power_cut_detached(&mut world, &simulation);
    simulation
        .run(async move {
            for number in 0..MADE {
                create(&volume, volume.root(), &format!("new-{number}")).await;
            }
            volume.stop().await.expect("stopped");
        })
        .expect("the run ends");
    let volume = world.power_cut(&simulation);
    simulation
        .run(async move {
            let mut kept = 0;
            for number in 0..MADE {
                let name = name(&format!("new-{number}"));
                let found = volume.lookup(&root(), volume.root(), &name).await;
                kept += usize::from(found.is_ok());
            }
            kept
        })
        .expect("the run ends")
}

/// Fewer than the records that nobody waited for.
const MADE: usize = 5;

#[test]
fn no_root_covers_what_a_crash_takes_from_the_journal() {
    assert_eq!(kept_after_a_commit_that_nobody_remembers(), MADE);
    let careless = planting(
        Some("volume.commit_before_journal"),
        kept_after_a_commit_that_nobody_remembers,
    );
    assert!(careless < MADE, "the test does not meet what it is for");
}

#[test]
fn what_needs_the_cloud_is_refused_and_all_else_goes_on_after_it_is_back() {
    let simulation = Simulation::new(2);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    let file = simulation
        .run(async move {
            let volume = opening.await;
            let file = create(&volume, volume.root(), "letter").await;
            write(&volume, file, 0, b"committed".to_vec()).await;
            volume.sync().await.expect("committed");
            write(&volume, file, 0, b"Committed, and more".to_vec()).await;
            file
        })
        .expect("the run ends");
    let volume = power_cut_detached(&mut world, &simulation);
    let before = world.requests();
    let verifier = volume.write_verifier();
    simulation
        .run(async move {
            assert!(volume.status().detached);
            let data = read(&volume, file, 0, 100).await.expect("read");
            assert_eq!(&data[..], b"Committed, and more");
            write(&volume, file, 0, b"c".to_vec()).await;
            assert!(matches!(volume.sync().await, Err(VfsError::TryAgain { .. })));
            assert!(matches!(volume.drain().await, Err(VolumeError::Detached)));
            assert!(matches!(volume.verify(&|_| {}).await, Err(VolumeError::Detached)));
            assert!(volume.snapshot_create("now", 0).await.is_err());
            assert!(volume.clone_head("copy").await.is_err());
            assert!(
                volume
                    .restore(b"now", b"/letter", b"/copy", false, &|_| {})
                    .await
                    .is_err()
            );
            volume.stop().await.expect("stopped");
        })
        .expect("the run ends");
    assert_eq!(world.requests(), before, "nothing was asked of the cloud");
    let volume = world.power_cut(&simulation);
    assert_eq!(volume.write_verifier(), verifier, "a clean stop loses nothing");
    simulation
        .run(async move {
            assert!(!volume.status().detached);
            let data = read(&volume, file, 0, 100).await.expect("read");
            assert_eq!(&data[..], b"committed, and more");
            volume.sync().await.expect("committed");
            assert!(volume.verify(&|_| {}).await.expect("verified").is_whole());
        })
        .expect("the run ends");
}

#[test]
fn nothing_goes_on_in_a_journal_once_the_volume_is_being_given_up() {
    for point in ["drain.before_release", "drain.after_release"] {
        let simulation = Simulation::new(3);
        let mut world = World::new(&simulation);
        let opening = world.format_and_open();
        world.crash_at(point);
        world.attempt(&simulation, async move {
            let volume = opening.await;
            create(&volume, volume.root(), "letter").await;
            let _ = volume.drain().await;
        });
        world.power_cut_only();
        let parts = world.own_parts();
        simulation
            .run(async move {
                let refused = Volume::open_detached(parts, config()).await.err();
                assert!(
                    matches!(
                        refused,
                        Some(VolumeError::NotDetachable(
                            NotDetachable::NoCopy | NotDetachable::NotOwned
                        ))
                    ),
                    "{point}: {refused:?}"
                );
            })
            .expect("the run ends");
    }
}

/// Inode numbers that two starts without the cloud give out, the first to a file that a client saw and that a power cut took before it
/// was durable; `None` if it left it.
fn numbers_of_two_starts(seed: u64) -> Option<[u64; 2]> {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    simulation
        .run(async move {
            let volume = opening.await;
            create(&volume, volume.root(), "letter").await;
            volume.sync().await.expect("committed");
        })
        .expect("the run ends");
    let volume = power_cut_detached(&mut world, &simulation);
    let env = world.env();
    let seen = simulation
        .run(async move {
            let making = volume.clone();
            let _made = env.spawn("creates", async move {
                create(&making, making.root(), "lost").await;
            });
            for _ in 0..1_000 {
                if let Ok((seen, _)) = volume.lookup(&root(), volume.root(), &name("lost")).await {
                    return seen.inode;
                }
                env.sleep(Duration::from_nanos(100)).await;
            }
            panic!("it is not seen");
        })
        .expect("the run ends");
    let volume = power_cut_detached(&mut world, &simulation);
    let given = simulation
        .run(async move {
            let found = volume.lookup(&root(), volume.root(), &name("lost")).await;
            match found {
                Ok(_) => None,
                Err(_) => Some(create(&volume, volume.root(), "other").await.inode),
            }
        })
        .expect("the run ends");
    Some([seen, given?])
}

#[test]
fn a_handle_of_what_a_power_cut_took_is_nothing_elses() {
    let seeds = || (0..40).filter_map(numbers_of_two_starts);
    for [seen, given] in seeds() {
        assert_ne!(seen, given);
    }
    let bug = Some("volume.detached_reuses_inode_numbers");
    let reused = planting(bug, || seeds().any(|[seen, given]| seen == given));
    assert!(reused, "the test does not meet what it is for");
}
