//! A member as an edge has it: its number, the age of what its clients read, its departure, and what becomes of its service when it is broken.

use super::offices::{copy_state, make, patient, start, with_two};
use crate::{
    files::{create, directory, name, write},
    world::{World, config, root},
};
use firn_anchor::AnchorError;
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_vfs::{FileHandle, Vfs, VfsError};
use firn_volume::{
    ByInodeVfs, FormatOptions, MemberError, MemberStartError, ServingState, Volume, VolumeError,
};
use std::time::Duration;

const STRICT: Duration = Duration::ZERO;

fn layer(volume: &Volume, freshness: Duration) -> ByInodeVfs {
    ByInodeVfs::new(volume.clone(), freshness)
}

async fn size(vfs: &ByInodeVfs, file: FileHandle) -> Result<u64, VfsError> {
    Ok(Vfs::attributes(vfs, file).await?.size_bytes)
}

#[test]
fn a_machine_finds_its_number_again_and_joins_only_what_is_shared_by_inode() {
    let joined = |bug: Option<&str>| {
        let (told, found) = std::sync::mpsc::channel();
        planting(bug, move || {
            let simulation = Simulation::new(1);
            let world = World::new(&simulation);
            let (own, beside) = (world.own_parts(), world.machine_beside(&simulation, "second"));
            let run = async move {
                own.anchor.create_family().await.expect("a new family");
                Volume::format(&own, "shared", FormatOptions::default(), &config())
                    .await
                    .expect("it is formatted");
                let early = Volume::join_by_inode(&own, "one").await;
                assert!(
                    matches!(
                        early,
                        Err(VolumeError::Anchor(AnchorError::NotSharedByInode { .. }))
                    ),
                    "{early:?}"
                );
                own.anchor
                    .share_by_inode(own.volume)
                    .await
                    .expect("nobody owns it");
                let mut numbers = Vec::new();
                for (parts, name) in [(&own, "one"), (&beside, "two"), (&own, "one"), (&beside, "two")] {
                    let number = Volume::join_by_inode(parts, name).await;
                    numbers.push(number.expect("it joins"));
                }
                let _ = told.send(numbers);
            };
            simulation.run(run).expect("the run ends");
        });
        found.recv().expect("the run sends it")
    };
    let numbers = joined(None);
    assert!(
        numbers[0] != numbers[1] && numbers[..2] == numbers[2..],
        "{numbers:?}"
    );
    let anew = joined(Some("volume.joins_at_each_start"));
    assert!(anew[0] != anew[2], "{anew:?}");
}

/// What the second office's client sees of a file that the first makes longer and publishes, at once and after `later`, with the reads of the root that this took.
fn seen(bug: Option<&str>, freshness: Duration, later: Duration) -> (u64, u64, u64) {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(1, move |env, [first, second], _| async move {
            let clients = layer(&second, freshness);
            let file = create(&first, first.root(), "file").await;
            first.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            env.sleep(Duration::from_secs(5)).await;
            assert_eq!(size(&clients, file).await, Ok(0));
            write(&first, file, 0, vec![1; 9000]).await;
            first.sync().await.expect("published");
            let at_once = size(&clients, file).await.expect("it is read");
            env.sleep(later).await;
            let then = size(&clients, file).await.expect("it is read");
            let reads = second.by_inode_status().expect("a member").root_reads;
            let _ = told.send((at_once, then, reads));
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn what_others_published_is_read_within_the_freshness() {
    let second = Duration::from_secs(1);
    assert_eq!(seen(None, STRICT, second), (9000, 9000, 3));
    let (_, then, reads) = seen(None, Duration::from_secs(30), Duration::from_secs(31));
    assert_eq!(
        (then, reads),
        (9000, 2),
        "the first read, and the one after it was too old"
    );
    let blind = seen(Some("volume.reads_without_a_root_read"), STRICT, second);
    assert_eq!(blind, (0, 0, 0));
}

#[test]
fn what_a_member_holds_is_read_without_a_look_at_the_root_and_many_reads_share_one() {
    with_two(2, |env, [first, second], world| async move {
        let own = layer(&first, STRICT);
        let here = directory(&first, first.root(), "here").await;
        let file = create(&first, here, "file").await;
        write(&first, file, 0, vec![1; 9000]).await;
        first.sync().await.expect("published");
        let before = world.table().counts().requests();
        for _ in 0..1000 {
            assert_eq!(size(&own, file).await, Ok(9000));
            let found = Vfs::lookup(&own, &root(), here, &name("file")).await;
            assert_eq!(found.expect("it is there").0, file);
        }
        let asked = world.table().counts().requests() - before;
        assert!(asked <= 2, "{asked} requests for 2,000 reads of what is held");
        let others = layer(&second, Duration::from_millis(500));
        let reads = || second.by_inode_status().expect("a member").root_reads;
        let before = reads();
        for _ in 0..20 {
            let all = (0..50).map(|_| size(&others, file));
            let all = futures::future::join_all(all).await;
            assert!(all.iter().all(|size| *size == Ok(9000)), "{all:?}");
            env.sleep(Duration::from_millis(100)).await;
        }
        let reads = reads() - before;
        assert!(
            (4..=5).contains(&reads),
            "{reads} reads of the root for 1,000 in two seconds"
        );
    });
}

/// How long the second office waits for a directory of the first, which has stopped.
fn waited_after_stop(bug: Option<&str>) -> (bool, Duration) {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(3, move |env, [first, second], _| async move {
            let here = directory(&first, first.root(), "here").await;
            create(&first, here, "unpublished").await;
            let left = first.leave_by_inode(Duration::from_secs(20)).await;
            let left = left.expect("the journal is synced");
            let began = env.now();
            second.catch_up().await.expect("the root is read");
            if left {
                let found = second.lookup(&root(), here, &name("unpublished")).await;
                found.expect("it was published by who left");
                create(&second, here, "after").await;
            } else {
                create(&second, second.root(), "after").await;
            }
            let _ = told.send((left, env.now().since(began)));
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn who_stops_goes_away_and_nobody_waits_for_it() {
    let (left, waited) = waited_after_stop(None);
    assert!(left && waited < Duration::from_secs(2), "{waited:?}");
    let (left, waited) = waited_after_stop(Some("volume.stops_without_leaving"));
    assert!(!left && waited >= Duration::from_secs(55), "{waited:?}");
}

/// How many requests an office makes in an hour in which nobody asks anything of it, and how long another waits then for what it had.
fn idle(bug: Option<&str>) -> (u64, Duration) {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(5, move |env, [first, second], world| async move {
            let clients = layer(&first, STRICT);
            let here = directory(&first, first.root(), "here").await;
            create(&first, here, "file").await;
            let left = second.leave_by_inode(Duration::from_secs(20)).await;
            assert!(left.expect("its journal is synced"));
            env.sleep(Duration::from_secs(600)).await;
            let before = world.table().counts().requests();
            env.sleep(Duration::from_secs(3600)).await;
            let asked = world.table().counts().requests() - before;
            // A client's first calls have it come back.
            let file = Vfs::lookup(&clients, &root(), here, &name("file")).await;
            let file = file.expect("it is there").0;
            write(&first, file, 0, vec![1; 9000]).await;
            assert_eq!(size(&clients, file).await, Ok(9000));
            let began = env.now();
            create(&first, here, "another").await;
            let _ = told.send((asked, env.now().since(began)));
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn an_office_in_which_nobody_works_asks_nothing_and_comes_back_with_the_first_call() {
    let (asked, waited) = idle(None);
    assert_eq!(asked, 0);
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    let (asked, _) = idle(Some("volume.idle_member_stays"));
    assert!(asked > 3600, "{asked}");
}

/// Whether a file can be made in a directory that another made, by the handle that a client got there, before this office has read a root that has it.
fn makes_by_handle(bug: Option<&str>) -> bool {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(6, move |_, [first, second], _| async move {
            let here = directory(&first, first.root(), "here").await;
            first.sync().await.expect("published");
            let mode = firn_vfs::CreateMode::Guarded(Default::default());
            let made = second.create(&root(), here, &name("file"), mode).await;
            let _ = told.send(made.is_ok());
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn a_handle_that_a_client_got_in_another_office_is_looked_up_in_the_newest_root() {
    assert!(makes_by_handle(None));
    assert!(!makes_by_handle(Some("volume.handles_by_old_root")));
}

async fn until_ended(env: &Env, volume: &Volume) -> ServingState {
    let ended = env.timeout(Duration::from_secs(120), volume.ended()).await;
    ended.expect("it ends")
}

/// An office whose state directory is copied while it serves: the copy starts, and then the office's own again.
fn copied(bug: Option<&'static str>) -> Result<(), MemberStartError> {
    let (told, found) = std::sync::mpsc::channel();
    planting(bug, move || {
        let simulation = Simulation::new(4);
        let world = World::new(&simulation);
        let (parts, beside) = (world.own_parts(), world.machine_beside(&simulation, "copy"));
        let env = simulation.env();
        let run = async move {
            let number = make(&parts, 1).await[0];
            let volume = start(&parts, number, &patient()).await;
            let clients = layer(&volume, STRICT);
            create(&volume, volume.root(), "acknowledged").await;
            copy_state(&parts.env, &beside.env).await;
            let copy = start(&beside, number, &patient()).await;
            let state = until_ended(&env, &volume).await;
            assert!(matches!(state, ServingState::Broken(_)), "{state:?}");
            assert!(volume.is_started_elsewhere().await);
            let lookup = Vfs::lookup(&clients, &root(), volume.root(), &name("acknowledged")).await;
            assert!(matches!(lookup, Err(VfsError::TryAgain { .. })), "{lookup:?}");
            volume.stop().await.expect("its journal is closed");
            let again = Volume::open_by_inode(parts.clone(), patient(), number).await;
            let (tuple, _) = parts
                .anchor
                .member(parts.volume, number)
                .await
                .expect("it is there");
            let of_copy = copy.member_by_inode().expect("a member").incarnation();
            assert_eq!(again.is_err(), tuple.record.incarnation == Some(of_copy));
            let _ = told.send(again.map(drop));
        };
        simulation.run(run).expect("the run ends");
    });
    found.recv().expect("the run sends it")
}

#[test]
fn an_office_whose_state_was_copied_is_told_and_does_not_start_behind_the_copy() {
    let refused = copied(None);
    assert!(
        matches!(
            refused,
            Err(MemberStartError::Member(MemberError::Anchor(
                AnchorError::StartedElsewhere { .. }
            )))
        ),
        "{refused:?}"
    );
    copied(Some("anchor.any_copy_starts")).expect("it pushes the copy away, and that this one, and so on");
}
