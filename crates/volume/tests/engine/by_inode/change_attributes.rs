//! Change attributes after a break: no client of the office that was broken takes a later change for one that it saw there.

use super::offices::{Machines, Started, connected, patient, start};
use crate::{
    files::{create, directory, name, write},
    world::root,
};
use firn_env::{mutants::planting, sim::Simulation};
use firn_vfs::{FileHandle, Vfs};
use firn_volume::Volume;

async fn change_of(volume: &Volume, file: FileHandle) -> u64 {
    volume.attributes(file).await.expect("it is there").change
}

/// Who made the file that the broken office changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    OfTheBroken,
    OfTheBreaker,
}

/// What the breaking office does between its taking and its first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    Crash,
}

/// What clients of the broken office saw of a file while nobody heard it, and what the one that took it made of it: from the first change on.
fn seen_and_made(bug: Option<&str>, home: Home, between: Between) -> ([u64; 2], [u64; 2]) {
    planting(bug, || {
        let machines = Machines::new(Simulation::new(31));
        let (number, second, file, seen) = machines.start(move |started: Started| async move {
            let (volume, second) = (started.first, started.second);
            let (maker, reader) = match home {
                Home::OfTheBroken => (&volume, &second),
                Home::OfTheBreaker => (&second, &volume),
            };
            let file = create(maker, maker.root(), "file").await;
            maker.sync().await.expect("published");
            reader.catch_up().await.expect("the root is read");
            write(&volume, file, 0, vec![1; 10]).await;
            volume.sync().await.expect("published");
            started.table.set_outage(true);
            write(&volume, file, 0, vec![2; 10]).await;
            let seen = change_of(&volume, file).await;
            write(&volume, file, 0, vec![3; 10]).await;
            let seen = [seen, change_of(&volume, file).await];
            let member = second.member_by_inode().expect("a member").clone();
            drop(member.acquire(&[file.inode]).await.expect("it is taken"));
            (started.numbers[1], second, file, seen)
        });
        if between == Between::Crash {
            machines.second.crash();
            machines.second.restart();
        }
        let (other, _) = connected(&machines.world, &machines.second);
        let ran = machines.simulation.run(async move {
            let second = match between {
                Between::Nothing => second,
                Between::Crash => start(&other, number, &patient()).await,
            };
            second.catch_up().await.expect("the root is read");
            write(&second, file, 0, vec![4; 10]).await;
            let made = change_of(&second, file).await;
            second.sync().await.expect("published");
            write(&second, file, 0, vec![5; 10]).await;
            [made, change_of(&second, file).await]
        });
        (seen, ran.expect("the run ends"))
    })
}

#[test]
fn the_first_change_of_what_was_taken_by_a_break_is_none_that_clients_of_the_broken_saw() {
    for home in [Home::OfTheBroken, Home::OfTheBreaker] {
        for between in [Between::Nothing, Between::Crash] {
            let (seen, made) = seen_and_made(None, home, between);
            assert!(
                made[0] > seen[1] + (1 << 31),
                "{home:?} {between:?}: {made:?} {seen:?}"
            );
            assert!(made[1] > made[0], "{home:?} {between:?}: {made:?}");
            let bug = Some("volume.change_goes_on_after_break");
            let (seen, made) = seen_and_made(bug, home, between);
            assert_eq!(made[0], seen[0], "{home:?} {between:?}: the same for two changes");
        }
    }
    let (_, made) = seen_and_made(None, Home::OfTheBroken, Between::Nothing);
    assert_eq!(made[1], made[0] + 1, "it is advanced once");
}

/// What a client of a broken office saw of a file whose change is only in the salvage clone, and what the next change is there after the return.
fn salvaged_and_changed_again(bug: Option<&str>) -> (u64, u64) {
    planting(bug, || {
        let machines = Machines::new(Simulation::new(32));
        let (number, file, seen, _second) = machines.start(move |started: Started| async move {
            let (volume, second) = (started.first, started.second);
            let (here, lost) = (
                directory(&volume, volume.root(), "here").await,
                directory(&volume, volume.root(), "lost").await,
            );
            let file = create(&volume, here, "file").await;
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            started.table.set_outage(true);
            let same = name("file");
            let renamed = volume.rename(&root(), here, &same, lost, &same).await;
            renamed.expect("it is moved");
            let seen = change_of(&volume, file).await;
            create(&second, lost, "second").await;
            second.sync().await.expect("published");
            (started.numbers[0], file, seen, second)
        });
        machines.restart_first();
        let (own, _) = connected(&machines.world, &machines.first);
        let ran = machines.simulation.run(async move {
            let volume = start(&own, number, &patient()).await;
            let returned = change_of(&volume, file).await;
            assert_ne!(returned, seen, "the move is only in the clone");
            let mode = firn_vfs::SetAttributes {
                mode: Some(0o600),
                ..Default::default()
            };
            let changed = volume.set_attributes(&root(), file, mode, None).await;
            changed.expect("it is changed");
            change_of(&volume, file).await
        });
        (seen, ran.expect("the run ends"))
    })
}

#[test]
fn a_change_after_the_return_is_none_of_those_that_are_only_in_the_clone() {
    let (seen, made) = salvaged_and_changed_again(None);
    assert!(made > seen + (1 << 31), "{made} after {seen}");
    let (seen, made) = salvaged_and_changed_again(Some("volume.change_goes_on_after_break"));
    assert_eq!(made, seen, "the same for two changes");
}
