//! Snapshots: what they keep, how they are read, and that no stop takes them back or adds to them.

use crate::{
    files::{create, look, name, read, write},
    usage::{FILE_BYTES, WRITE_BYTES, limits, overwrite, scattered},
    world::{World, root},
};
use bytes::Bytes;
use firn_cleaner::{Cleaner, Limits};
use firn_env::sim::Simulation;
use firn_vfs::{
    AccessMask, Compare, CreateMode, FileHandle, SetAttributes, Stability, Vfs, VfsError, compare_trees,
};
use firn_volume::{SnapshotError, Volume};
use std::time::Duration;

async fn try_to_write(vfs: &dyn Vfs, file: FileHandle) -> Result<(), VfsError> {
    let data = vec![Bytes::from_static(b"x")];
    vfs.write(&root(), file, 0, data, Stability::Unstable)
        .await
        .map(|_| ())
}

fn on<T: Send + 'static>(simulation: &Simulation, future: impl Future<Output = T> + Send + 'static) -> T {
    simulation.run(future).expect("the run ends")
}

#[test]
fn a_snapshot_keeps_what_was_there_and_is_read_only_until_it_is_deleted() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        let directory = volume
            .make_directory(&root(), volume.root(), &name("d"), SetAttributes::default())
            .await
            .expect("made")
            .handle;
        let file = create(&volume, directory, "f").await;
        write(&volume, file, 0, vec![7; 100_000]).await;
        let info = volume.snapshot_create("monday", 0).await.expect("a snapshot");
        assert_eq!((info.files, info.version.is_some()), (3, true));
        assert_eq!(
            volume.snapshot_create("monday", 0).await,
            Err(SnapshotError::Exists {
                name: "monday".into()
            })
        );
        write(&volume, file, 50_000, vec![9; 100_000]).await;
        volume
            .remove(&root(), directory, &name("f"))
            .await
            .expect("removed");
        volume.sync().await.expect("synced");
        volume.drop_caches().await;

        let old = look(&volume, &[".snapshots", "monday", "d", "f"])
            .await
            .expect("found");
        assert_eq!(
            read(&volume, old, 0, 1 << 20).await.expect("it is read"),
            vec![7; 100_000]
        );
        let attributes = volume.attributes(old).await.expect("attributes");
        assert_eq!(attributes.file_system, old.file_system);
        assert_ne!(old.file_system, volume.root().file_system);
        assert_eq!(look(&volume, &["d", "f"]).await, Err(VfsError::NotFound));

        let in_snapshot = look(&volume, &[".snapshots", "monday", "d"])
            .await
            .expect("found");
        let mode = CreateMode::Guarded(SetAttributes::default());
        let refused = volume.create(&root(), in_snapshot, &name("new"), mode).await;
        assert_eq!(refused.map(|_| ()), Err(VfsError::ReadOnly));
        let refused = volume.remove(&root(), in_snapshot, &name("f")).await;
        assert_eq!(refused.map(|_| ()), Err(VfsError::ReadOnly));
        assert_eq!(try_to_write(&volume, old).await, Err(VfsError::ReadOnly));
        let all = AccessMask {
            read: true,
            modify: true,
            extend: true,
            ..AccessMask::default()
        };
        let (granted, _) = volume.check_access(&root(), old, all).await.expect("answered");
        assert!(granted.read && !granted.modify && !granted.extend);

        volume.snapshot_delete(b"monday").await.expect("deleted");
        assert_eq!(volume.attributes(old).await, Err(VfsError::Stale));
        assert_eq!(try_to_write(&volume, old).await, Err(VfsError::Stale));
        assert_eq!(
            look(&volume, &[".snapshots", "monday"]).await,
            Err(VfsError::NotFound)
        );
        assert_eq!(
            volume.snapshot_delete(b"monday").await,
            Err(SnapshotError::NoSuchSnapshot {
                name: "monday".into()
            })
        );
    });
}

#[test]
fn the_directory_of_snapshots_lists_them_and_shows_itself_only_if_asked_to() {
    let simulation = Simulation::new(2);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        let (hidden, visible) = (volume.clone(), volume.listing_snapshots());
        create(&volume, volume.root(), "file").await;
        for number in 0..7 {
            volume
                .snapshot_create(format!("s{number}").into_bytes(), 0)
                .await
                .expect("a snapshot");
        }
        for (access, expected) in [(&hidden, vec!["file"]), (&visible, vec![".snapshots", "file"])] {
            for limit in [1, 2, 3, 100] {
                assert_eq!(
                    list(access, access.root(), limit).await,
                    expected,
                    "{limit} at once"
                );
            }
        }
        let directory = look(&hidden, &[".snapshots"]).await.expect("found");
        let expected: Vec<String> = (0..7).map(|number| format!("s{number}")).collect();
        for limit in [1, 3, 100] {
            assert_eq!(list(&hidden, directory, limit).await, expected);
        }
        let (parent, _) = hidden.parent(&root(), directory).await.expect("a parent");
        assert_eq!(parent, hidden.root());
        let inside = look(&hidden, &[".snapshots", "s3"]).await.expect("found");
        assert_eq!(
            hidden.parent(&root(), inside).await.expect("a parent").0,
            directory
        );
        let mode = CreateMode::Guarded(SetAttributes::default());
        let refused = hidden
            .create(&root(), hidden.root(), &name(".snapshots"), mode)
            .await;
        assert_eq!(refused.map(|_| ()), Err(VfsError::Exists));
    });
}

async fn list(vfs: &dyn Vfs, directory: FileHandle, limit: u32) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = vfs
            .read_directory(&root(), directory, cookie, limit, true)
            .await
            .expect("listed");
        for entry in page.entries {
            assert!(entry.cookie > cookie && entry.attributes.is_some());
            cookie = entry.cookie;
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
        }
        if page.end {
            names.retain(|name| name != "." && name != "..");
            names.sort();
            return names;
        }
    }
}

#[test]
fn a_protected_snapshot_is_deleted_by_nobody_before_its_date_and_a_date_moves_only_later() {
    let simulation = Simulation::new(3);
    let world = World::new(&simulation);
    let (opening, env) = (world.format_and_open(), world.env());
    on(&simulation, async move {
        let volume = opening.await;
        let hour_ms = 3_600_000;
        let until = env.wall().as_millis() + hour_ms;
        volume.snapshot_create("kept", until).await.expect("a snapshot");
        let refused = volume.snapshot_delete(b"kept").await;
        assert!(
            matches!(refused, Err(SnapshotError::Protected { hours: 1, .. })),
            "{refused:?}"
        );
        let refused = volume.snapshot_protect(b"kept", until - 1).await;
        assert!(
            matches!(refused, Err(SnapshotError::CannotShorten { .. })),
            "{refused:?}"
        );
        volume
            .snapshot_protect(b"kept", until + hour_ms)
            .await
            .expect("longer");
        env.sleep(std::time::Duration::from_millis(hour_ms as u64 + 1))
            .await;
        assert!(volume.snapshot_delete(b"kept").await.is_err());
        env.sleep(std::time::Duration::from_millis(hour_ms as u64)).await;
        volume
            .snapshot_delete(b"kept")
            .await
            .expect("its date has passed");
    });
}

#[test]
fn names_that_are_no_directory_names_are_refused_and_any_other_bytes_are_taken() {
    let simulation = Simulation::new(4);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'n'; 256]] {
            let refused = volume.snapshot_create(bad.to_vec(), 0).await;
            assert_eq!(refused, Err(SnapshotError::BadName), "{bad:?}");
        }
        let odd = vec![0xff, b'\n', 0x1b, b' '];
        volume.snapshot_create(odd.clone(), 0).await.expect("a snapshot");
        assert!(volume.rooted_in_snapshot(&odd).is_ok());
    });
}

/// Stops the edge at `point` while a snapshot is made and changes follow; after the restart the snapshot, if it is there, has
/// exactly what was there when it was made.
fn stopped_at(point: &'static str, seed: u64) -> bool {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let model = world.model();
    let volume = on(&simulation, world.format_and_open());
    let (working, expected) = (volume.clone(), model.clone());
    on(&simulation, async move {
        for side in [&*expected as &dyn Vfs, &working] {
            let file = create(side, side.root(), "file").await;
            write(side, file, 0, vec![1; 200_000]).await;
        }
    });
    world.crash_at(point);
    let working = volume.clone();
    world.attempt(&simulation, async move {
        let making = working.snapshot_create("s", 0);
        let changing = async {
            // The record goes in while the freeze is under way; what follows must not be in the snapshot.
            while working.snapshots().is_empty() {
                working.status();
                tokio::task::yield_now().await;
            }
            let file = look(&working, &["file"]).await.expect("found");
            write(&working, file, 100, vec![2; 50_000]).await;
            create(&working, working.root(), "later").await;
        };
        let _ = futures::future::join(making, changing).await;
    });
    let volume: Volume = world.power_cut(&simulation);
    let exists = volume.snapshots().len() == 1;
    for cold in [false, true] {
        let (volume, model) = (volume.clone(), model.clone());
        on(&simulation, async move {
            volume.sync().await.expect("synced");
            if cold {
                volume.drop_caches().await;
            }
            if let Ok(snapshot) = volume.rooted_in_snapshot(b"s") {
                let compare = Compare {
                    times: false,
                    ..Compare::default()
                };
                let differences = compare_trees(&*model, &snapshot, &compare).await;
                assert!(differences.is_empty(), "{point}: {differences:#?}");
            }
        });
    }
    exists
}

#[test]
fn a_crash_while_a_snapshot_is_made_leaves_it_as_it_was_frozen_or_not_at_all() {
    let mut survived = 0;
    for (seed, point) in [
        "checkpoint.after_freeze",
        "checkpoint.after_build",
        "checkpoint.before_upload",
        "checkpoint.before_commit",
        "checkpoint.after_commit",
    ]
    .into_iter()
    .enumerate()
    {
        survived += usize::from(stopped_at(point, 100 + seed as u64));
    }
    assert!(survived >= 2, "only {survived} came through a crash");
}

#[test]
fn five_hundred_snapshots_survive_a_move_and_cost_no_more_requests() {
    let simulation = Simulation::new(5);
    let mut world = World::new(&simulation);
    let volume = on(&simulation, world.format_and_open());
    let working = volume.clone();
    on(&simulation, async move {
        let file = create(&working, working.root(), "hot").await;
        for number in 0..500_u64 {
            write(&working, file, 0, number.to_le_bytes().to_vec()).await;
            working
                .snapshot_create(format!("{number:03}").into_bytes(), 0)
                .await
                .expect("a snapshot");
        }
        working.drain().await.expect("drained");
    });
    world.lose_disk();
    let volume = world.power_cut(&simulation);
    let before = world.requests();
    let working = volume.clone();
    on(&simulation, async move {
        assert_eq!(working.snapshots().len(), 500);
        for number in [0_u64, 123, 499] {
            let snapshot = working
                .rooted_in_snapshot(format!("{number:03}").as_bytes())
                .expect("there");
            let file = look(&snapshot, &["hot"]).await.expect("found");
            assert_eq!(
                read(&snapshot, file, 0, 1 << 20).await.expect("it is read"),
                number.to_le_bytes()
            );
        }
    });
    let reading = world.requests() - before;
    assert!(reading < 30, "{reading} requests to read three small files");
    let before = world.requests();
    let working = volume.clone();
    on(&simulation, async move {
        working.snapshot_create("one more", 0).await.expect("a snapshot");
    });
    let made = world.requests() - before;
    assert!(made <= 3, "{made} requests for a snapshot");
}

/// While places are taken over, nodes of the head are written anew, in the version of the snapshot that is made with that commit.
/// The two must be one tree: else the next snapshot, which shares the new nodes, is asked by nobody whether it needs them.
#[test]
fn a_snapshot_made_while_places_are_taken_over_hides_no_node_of_the_next_one() {
    let simulation = Simulation::new(6);
    let mut world = World::new(&simulation);
    let (opening, parts) = (world.format_and_open(), world.own_parts());
    let eager = Limits {
        free_per_mille: 0,
        cold_free_per_mille: 0,
        ..limits()
    };
    simulation
        .run(async move {
            let volume = opening.await;
            scattered(&volume).await;
            let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, eager);
            cleaner.run().await.expect("a run");
            parts.env.sleep(Duration::from_secs(61)).await;
            // Beside what was moved, so that the node above is neither ours nor theirs.
            let hot = look(&volume, &["hot"]).await.expect("it is there");
            overwrite(&volume, hot, 0, WRITE_BYTES, 100).await;
            volume
                .snapshot_create("with the merge", 0)
                .await
                .expect("a snapshot");
            let merging = volume.status().merging;
            assert!(merging.merged > 0 && merging.rewritten > 0, "{merging:?}");
            volume.snapshot_create("the next", 0).await.expect("a snapshot");
            volume
                .remove(&root(), volume.root(), &name("hot"))
                .await
                .expect("removed");
            volume.sync().await.expect("synced");
            let mut retired = 0;
            for _ in 0..6 {
                retired += cleaner.run().await.expect("a run").retired_segments;
                parts.env.sleep(Duration::from_secs(61)).await;
            }
            assert!(retired > 3, "only {retired} segments were retired");
            volume.drain().await.expect("drained");
        })
        .expect("the run ends");
    world.lose_disk();
    let volume = world.power_cut(&simulation);
    simulation
        .run(async move {
            for snapshot in ["with the merge", "the next"] {
                let rooted = volume.rooted_in_snapshot(snapshot.as_bytes()).expect("there");
                let hot = look(&rooted, &["hot"]).await.expect("found");
                for offset in (0..FILE_BYTES).step_by(1 << 20) {
                    let data = read(&rooted, hot, offset, 1 << 20).await;
                    assert!(data.is_ok(), "{snapshot} at {offset}: {data:?}");
                }
            }
        })
        .expect("the run ends");
}

#[test]
fn space_is_what_only_the_snapshot_has() {
    let simulation = Simulation::new(6);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        let mut random = 1_u32;
        let mut noise = |bytes: usize| -> Vec<u8> {
            let mut next = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            };
            (0..bytes).map(|_| next()).collect()
        };
        let kept = create(&volume, volume.root(), "kept").await;
        write(&volume, kept, 0, noise(1_000_000)).await;
        let changing = create(&volume, volume.root(), "changing").await;
        write(&volume, changing, 0, noise(500_000)).await;
        volume.snapshot_create("one", 0).await.expect("a snapshot");
        write(&volume, changing, 0, noise(500_000)).await;
        volume.snapshot_create("two", 0).await.expect("a snapshot");
        write(&volume, changing, 0, noise(100_000)).await;
        volume.sync().await.expect("synced");
        let (one, two) = (
            volume.snapshot_space(b"one").await.expect("known"),
            volume.snapshot_space(b"two").await.expect("known"),
        );
        assert!((500_000..560_000).contains(&one.unique_bytes), "{one:?}");
        // Of the second, only the first 100,000 bytes were replaced: whole blocks of 32 KiB.
        assert!((100_000..190_000).contains(&two.unique_bytes), "{two:?}");
        assert!(one.complete && two.complete);
        volume.snapshot_delete(b"one").await.expect("deleted");
        let again = volume.snapshot_space(b"two").await.expect("known");
        assert!(again.unique_bytes >= two.unique_bytes, "{again:?}");
    });
}
