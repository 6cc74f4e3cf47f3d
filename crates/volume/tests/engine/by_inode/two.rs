//! Two members with directories of their own, and one inode that goes to and fro.

use super::offices::{make, patient, start, with_two};
use crate::files::{create, directory, look, name, read, write};
use crate::world::{World, root};
use firn_anchor::Anchor;
use firn_env::{mutants::planting, sim::Simulation};
use firn_table::{ItemKey, Table, Write};
use firn_vfs::{Vfs, VfsError};
use firn_volume::{Parts, Volume};
use std::time::Duration;

/// What is committed by one is seen by the other once that has read the root.
async fn publish(volume: &Volume, other: &Volume) {
    volume.sync().await.expect("published");
    other.catch_up().await.expect("the root is read");
}

#[test]
fn members_write_their_own_directories_at_the_same_moment_and_see_each_others() {
    with_two(1, |env, [first, second], world| async move {
        let here = directory(&first, first.root(), "first").await;
        let there = directory(&second, second.root(), "second").await;
        publish(&first, &second).await;
        publish(&second, &first).await;
        let before = world.table().counts().requests();
        let fill = async |volume: &Volume, within, byte: u8| {
            for number in 0..50 {
                let file = create(volume, within, &format!("file {number}")).await;
                write(volume, file, 0, vec![byte; 20_000]).await;
                env.sleep(Duration::from_millis(100)).await;
                if number % 10 == 9 {
                    volume.sync().await.expect("published");
                }
            }
        };
        futures::join!(fill(&first, here, 1), fill(&second, there, 2));
        let asked = world.table().counts().requests() - before;
        assert!(
            asked < 200,
            "{asked} requests to the table for a hundred files and ten commits"
        );
        publish(&first, &second).await;
        publish(&second, &first).await;
        for volume in [&first, &second] {
            for (within, byte) in [("first", 1), ("second", 2)] {
                for number in 0..50 {
                    let file = look(volume, &[within, &format!("file {number}")]).await;
                    let content = read(volume, file.expect("it is there"), 0, 20_000).await;
                    assert_eq!(content, Ok(vec![byte; 20_000]));
                }
            }
            let status = volume.status();
            assert_eq!((status.files, status.used_bytes), (103, 100 * 20_480));
        }
    });
}

/// What the first sees of its own file and of the other's, once it adopted a root while its own changes were unpublished.
fn adopts_beside_own_changes(bug: Option<&str>) -> Result<(u8, u8), VfsError> {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(2, move |_, [first, second], _| async move {
            let own = create(&first, first.root(), "own").await;
            write(&first, own, 0, vec![1; 9000]).await;
            publish(&first, &second).await;
            let others = create(&second, second.root(), "others").await;
            write(&second, others, 0, vec![1; 9000]).await;
            publish(&second, &first).await;
            assert_eq!(read(&first, others, 0, 9000).await, Ok(vec![1; 9000]));
            // Not published, while the root moves.
            write(&first, own, 0, vec![2; 9000]).await;
            write(&second, others, 0, vec![2; 9000]).await;
            publish(&second, &first).await;
            let seen = async {
                let own = read(&first, own, 0, 9000).await?;
                Ok((own[8999], read(&first, others, 0, 9000).await?[8999]))
            };
            let _ = told.send(seen.await);
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn an_adoption_keeps_what_is_unpublished_here_and_drops_what_others_changed() {
    assert_eq!(adopts_beside_own_changes(None), Ok((2, 2)));
    let stale = adopts_beside_own_changes(Some("volume.adoption_keeps_stale_entries"));
    assert_eq!(stale, Ok((2, 1)));
    let dropped = adopts_beside_own_changes(Some("volume.adoption_drops_own_changes"));
    assert_eq!(dropped, Ok((1, 2)));
}

#[test]
fn a_directory_goes_to_and_fro_between_two_that_make_files_in_it() {
    with_two(3, |env, [first, second], _| async move {
        let within = directory(&first, first.root(), "both").await;
        publish(&first, &second).await;
        let began = env.now();
        let fill = async |volume: &Volume, who: &str| {
            for number in 0..20 {
                create(volume, within, &format!("{who} {number}")).await;
                env.sleep(Duration::from_millis(500)).await;
            }
        };
        futures::join!(fill(&first, "first"), fill(&second, "second"));
        let took = env.now().since(began);
        assert!(took < Duration::from_secs(120), "{took:?} for forty files");
        publish(&first, &second).await;
        publish(&second, &first).await;
        for volume in [&first, &second] {
            for who in ["first", "second"] {
                for number in 0..20 {
                    let found = look(volume, &["both", &format!("{who} {number}")]).await;
                    found.expect("nothing is lost");
                }
            }
        }
    });
}

/// Whether a name that another made, and committed, is refused here, without that its root was read before.
fn sees_a_name_of_another(bug: Option<&str>) -> bool {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(4, move |_, [first, second], _| async move {
            let within = directory(&first, first.root(), "first").await;
            create(&first, within, "file").await;
            publish(&first, &second).await;
            look(&second, &["first", "file"]).await.expect("it is there");
            let removed = first.remove(&root(), within, &name("file")).await;
            removed.expect("it is removed");
            first.sync().await.expect("published");
            // In memory the name is taken.
            let mode = firn_vfs::CreateMode::Guarded(Default::default());
            let made = second.create(&root(), within, &name("file"), mode).await;
            let _ = told.send(made.is_ok());
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn a_refusal_rests_on_a_root_that_was_read_since_the_call_came() {
    assert!(sees_a_name_of_another(None));
    assert!(!sees_a_name_of_another(Some("volume.refuses_by_old_root")));
}

/// What both say how many files there are, after each made some.
fn counted(bug: Option<&str>) -> [u64; 2] {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(5, move |_, [first, second], _| async move {
            for number in 0..3 {
                create(&first, first.root(), &format!("first {number}")).await;
                create(&second, second.root(), &format!("second {number}")).await;
            }
            publish(&first, &second).await;
            publish(&second, &first).await;
            let _ = told.send([first.status().files, second.status().files]);
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn counters_go_in_as_differences() {
    assert_eq!(counted(None), [7, 7]);
    assert_ne!(counted(Some("volume.counters_not_as_differences")), [7, 7]);
}

/// Whether a file that another made can be opened by its handle, after the root was read.
fn finds_by_handle(bug: Option<&str>) -> bool {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(6, move |_, [first, second], _| async move {
            let file = create(&second, second.root(), "file").await;
            publish(&second, &first).await;
            let _ = told.send(first.attributes(file).await.is_ok());
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn numbers_of_others_are_looked_up() {
    assert!(finds_by_handle(None));
    assert!(!finds_by_handle(Some("volume.others_numbers_denied")));
}

/// What becomes of a change here whose inode another has changed since, because the table lost the lease.
fn with_a_lost_lease(bug: Option<&str>) -> (bool, Vec<u8>) {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(7, move |env, [first, second], world| async move {
            // The root directory's number is nobody's home.
            create(&first, first.root(), "before").await;
            publish(&first, &second).await;
            create(&first, first.root(), "first").await;
            let parts = world.own_parts();
            let table = world.table().connect(&env);
            let sort = format!("arena/{}/{:016x}", parts.volume.hex(), 0);
            let key = ItemKey::new(format!("family/{}", parts.anchor.family()), sort);
            let item = table.get(&key).await.expect("it answers").expect("it is there");
            let write = Write::Delete {
                key,
                version: item.version,
            };
            table.transact(vec![write]).await.expect("it is deleted");
            create(&second, second.root(), "second").await;
            second.sync().await.expect("published");
            let is_published = first.sync().await.is_ok();
            second.catch_up().await.expect("the root is read");
            let mut names = Vec::new();
            for one in ["first", "second"] {
                if look(&second, &[one]).await.is_ok() {
                    names.extend(one.as_bytes().first());
                }
            }
            let _ = told.send((is_published, names));
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn the_leaf_check_keeps_what_another_committed_though_a_lease_was_lost() {
    assert_eq!(with_a_lost_lease(None), (false, b"s".to_vec()));
    assert_eq!(
        with_a_lost_lease(Some("volume.no_leaf_check")),
        (true, b"f".to_vec()),
        "what the other one committed is gone"
    );
}

/// How many of two moves succeed of which each takes a directory into one that is below the other.
fn moves_into_each_other(bug: Option<&str>) -> usize {
    let (told, found) = std::sync::mpsc::channel();
    let run = move || {
        with_two(8, move |_, [first, second], _| async move {
            // No inode is touched by both moves: `here/m` goes into `there/m/n`, and `there/m` into `here/m/n`.
            let nested = async |volume: &Volume, text: &str| {
                let within = directory(volume, volume.root(), text).await;
                let moved = directory(volume, within, "m").await;
                (within, directory(volume, moved, "n").await)
            };
            let (here, below_here) = nested(&first, "here").await;
            publish(&first, &second).await;
            let (there, below_there) = nested(&second, "there").await;
            publish(&second, &first).await;
            // Each holds what it moves into, so that nothing is handed over, and published before.
            create(&first, below_there, "held").await;
            create(&second, below_here, "held").await;
            publish(&first, &second).await;
            publish(&second, &first).await;
            let (caller, moved) = (root(), name("m"));
            let one = first.rename(&caller, here, &moved, below_there, &moved);
            let other = second.rename(&caller, there, &moved, below_here, &moved);
            let (one, other) = futures::join!(one, other);
            let _ = told.send(usize::from(one.is_ok()) + usize::from(other.is_ok()));
        });
    };
    planting(bug, run);
    found.recv().expect("the run sends it")
}

#[test]
fn directories_do_not_come_below_each_other() {
    assert_eq!(moves_into_each_other(None), 1);
    // The shape lease is given before the move that was made under it is published.
    assert_eq!(
        moves_into_each_other(Some("volume.moves_stand_under_no_lease")),
        2
    );
    assert_eq!(
        moves_into_each_other(Some("volume.directories_move_without_shape")),
        2
    );
}

/// Whether an office that was broken, and does not know it yet, is told that it has caught up: it has an unpublished change of a file that another has taken and
/// changed since.
fn catches_up_broken(bug: Option<&str>) -> bool {
    planting(bug, || {
        let simulation = Simulation::new(9);
        let world = World::new(&simulation);
        let (own, beside) = (world.own_parts(), world.machine_beside(&simulation, "second"));
        let client = world.table().connect(&own.env);
        let anchor = Anchor::new(client.clone(), own.env.clone(), own.anchor.family());
        let own = Parts { anchor, ..own };
        let ran = simulation.run(async move {
            let numbers = make(&own, 2).await;
            let first = start(&own, numbers[0], &patient()).await;
            let second = start(&beside, numbers[1], &patient()).await;
            let file = create(&first, first.root(), "file").await;
            publish(&first, &second).await;
            write(&first, file, 0, vec![1]).await;
            client.set_outage(true);
            write(&second, file, 0, vec![2, 2]).await;
            second.sync().await.expect("published");
            // Before its next sign of life.
            client.set_outage(false);
            first.catch_up().await.is_ok()
        });
        ran.expect("the run ends")
    })
}

#[test]
fn who_was_broken_does_not_catch_up() {
    assert!(!catches_up_broken(None));
    assert!(catches_up_broken(Some("leases.reads_by_lapsed_lease")));
}
