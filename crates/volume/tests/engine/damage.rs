//! Damage in the bucket: what is told, what still works, and that what is written afterwards is never lost with it.

use crate::{
    files::{create, directory, name, read, write},
    world::{World, root},
};
use bytes::{Bytes, BytesMut};
use firn_env::{Env, sim::Simulation};
use firn_format::{INODE_MAP, Place, SegmentId, USAGE_MAP, Version, decode_segment};
use firn_store::{ObjectKey, PutMode, Store};
use firn_vfs::{CreateMode, FileHandle, SetAttributes, Vfs, VfsError};
use firn_volume::Volume;
use std::time::Duration;

const BLOCK: u64 = 32 << 10;
/// The data below one node of the lowest level.
const BELOW_NODE: u64 = 128 * BLOCK;
/// Where the engine keeps what it fetched and uploaded.
const CACHE: &str = "cache";
const FILE_BYTES: u64 = 2 * BELOW_NODE + 20 * BLOCK + 1000;

/// Content that differs from block to block.
fn content(from: u64, length: u64) -> Vec<u8> {
    (from..from + length)
        .map(|at| (at / 7 + at / BLOCK) as u8)
        .collect()
}

async fn write_content(volume: &Volume, file: FileHandle, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let length = (to - at).min(512 << 10);
        write(volume, file, at, content(at, length)).await;
        at += length;
    }
}

/// The read fails and names the file.
async fn assert_lost(volume: &Volume, file: FileHandle, from: u64, length: u64) {
    match read(volume, file, from, length).await {
        Err(VfsError::Corrupt { inode, .. }) => assert_eq!(inode, file.inode, "the file is named"),
        other => panic!(
            "{from}+{length}: damage is told, not {:?}",
            other.map(|data| data.len())
        ),
    }
}

/// An error of the disk, not a file that never was.
async fn assert_inode_lost(volume: &Volume, file: FileHandle) {
    match volume.attributes(file).await {
        Err(VfsError::Corrupt { inode, .. }) => assert_eq!(inode, file.inode, "the file is named"),
        other => panic!("damage is told, not {other:?}"),
    }
}

async fn assert_content(volume: &Volume, file: FileHandle, from: u64, length: u64) {
    let data = read(volume, file, from, length).await.expect("it is read");
    assert!(
        data == content(from, length),
        "{from}+{length}: as it was written"
    );
}

/// A checkpoint that damage does not hold up.
async fn sync(env: &Env, volume: &Volume) {
    let synced = env.timeout(Duration::from_secs(600), volume.sync()).await;
    synced
        .expect("damage does not hold up a checkpoint")
        .expect("a healthy store takes it");
}

/// Flips a byte of the newest object at a place that is `wanted`.
async fn damage(store: &dyn Store, wanted: impl Fn(Place) -> bool + Send + Sync) {
    let mut newest: Option<(Version, ObjectKey, Bytes, u32)> = None;
    let mut after = None;
    loop {
        let page = store.list("", after.as_ref()).await.expect("listed");
        for object in &page.objects {
            if SegmentId::parse_key(&object.key.to_string()).is_none() {
                continue;
            }
            let bytes = store.get(&object.key).await.expect("there");
            let segment = decode_segment(bytes.clone()).expect("whole");
            for entry in segment.entries.iter().filter(|entry| wanted(entry.place)) {
                if newest.as_ref().is_none_or(|(birth, ..)| *birth <= entry.birth) {
                    newest = Some((
                        entry.birth,
                        object.key.clone(),
                        bytes.clone(),
                        entry.offset + entry.length / 2,
                    ));
                }
            }
        }
        match page.objects.last() {
            Some(last) if page.more => after = Some(last.key.clone()),
            Some(_) | None => break,
        }
    }
    let (_, key, bytes, at) = newest.expect("an object is at the place");
    let mut bytes = BytesMut::from(&bytes[..]);
    bytes[at as usize] ^= 1;
    store
        .put(&key, vec![bytes.freeze()], PutMode::Overwrite)
        .await
        .expect("damaged");
}

async fn empty_cache(env: &Env) {
    let mut removed = 0;
    // What waits to be read back as well, as after the minute in which it is.
    for copies in [CACHE, "unconfirmed"] {
        for name in env.disk().list(copies).await.expect("listed") {
            let path = format!("{copies}/{name}");
            env.disk().remove(&path).await.expect("removed");
            removed += 1;
        }
        env.disk().sync_directory(copies).await.expect("synced");
    }
    assert!(removed > 0, "something was cached");
}

/// What `make` leaves in a new volume, after a start that has nothing of it in a cache and finds the newest object at a place that is
/// `wanted` damaged.
fn after_damage<T, F>(
    simulation: &Simulation,
    world: &mut World,
    make: impl FnOnce(Volume) -> F + Send + 'static,
    wanted: impl Fn(&T, Place) -> bool + Send + Sync + 'static,
) -> (Volume, T)
where
    T: Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (format, parts) = (world.format_and_open(), world.own_parts());
    let made = simulation
        .run(async move {
            let volume = format.await;
            let made = make(volume.clone()).await;
            volume.sync().await.expect("synced");
            volume.stop().await.expect("stopped");
            damage(&*parts.store, |place| wanted(&made, place)).await;
            empty_cache(&parts.env).await;
            made
        })
        .expect("the run ends");
    (world.power_cut(simulation), made)
}

/// The same for one large file.
fn damaged(
    simulation: &Simulation,
    world: &mut World,
    wanted: impl Fn(u64, Place) -> bool + Send + Sync + 'static,
) -> (Volume, FileHandle) {
    let make = |volume: Volume| async move {
        let file = create(&volume, volume.root(), "large").await;
        write_content(&volume, file, 0, FILE_BYTES).await;
        file
    };
    after_damage(simulation, world, make, move |file: &FileHandle, place| {
        wanted(file.inode, place)
    })
}

/// What a file with a damaged node goes through, `lost` being the part below the node.
fn a_damaged_node(seed: u64, level: u8, index: u64, lost: std::ops::Range<u64>) {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let (volume, file) = damaged(&simulation, &mut world, move |inode, place| {
        place == Place { inode, level, index }
    });
    let patch = lost.start + 5 * BLOCK + 100;
    let env = world.env();
    let region = lost.clone();
    simulation
        .run(async move {
            assert_lost(&volume, file, patch, 10).await;
            if region.start > 0 {
                assert_content(&volume, file, region.start - 3 * BLOCK, 3 * BLOCK).await;
            }
            // What is acknowledged now stays, and nothing lost becomes zeros.
            write(&volume, file, patch, vec![7; 50]).await;
            write_content(&volume, file, region.start + 9 * BLOCK, region.start + 10 * BLOCK).await;
            sync(&env, &volume).await;
            create(&volume, volume.root(), "another").await;
            sync(&env, &volume).await;
            volume.stop().await.expect("stopped");
        })
        .expect("the run ends");
    let volume = world.power_cut(&simulation);
    let env = world.env();
    simulation
        .run(async move {
            assert_eq!(read(&volume, file, patch, 50).await.expect("it is read"), [7; 50]);
            assert_content(&volume, file, lost.start + 9 * BLOCK, BLOCK).await;
            for at in [
                patch - 1,
                patch + 50,
                lost.start,
                lost.start + 10 * BLOCK,
                lost.end - 1,
            ] {
                assert_lost(&volume, file, at, 1).await;
            }
            let report = volume.verify(&|_| {}).await.expect("the store answers");
            assert!(!report.is_whole() && report.damages.iter().all(|one| one.inode == file.inode));
            // A cut through what is lost, and growth: zeros behind the cut, still lost before it.
            let cut = lost.end - 2 * BLOCK - 10;
            for size in [cut, FILE_BYTES] {
                let change = SetAttributes {
                    size_bytes: Some(size),
                    ..SetAttributes::default()
                };
                volume
                    .set_attributes(&root(), file, change, None)
                    .await
                    .expect("set");
                sync(&env, &volume).await;
            }
            assert_lost(&volume, file, cut - 1, 1).await;
            assert_eq!(read(&volume, file, cut, 100).await.expect("zeros"), [0; 100]);
            // Writing heals.
            write_content(&volume, file, lost.start, FILE_BYTES).await;
            sync(&env, &volume).await;
            let mut at = 0;
            while at < FILE_BYTES {
                let length = (FILE_BYTES - at).min(512 << 10);
                assert_content(&volume, file, at, length).await;
                at += length;
            }
            let report = volume.verify(&|_| {}).await.expect("the store answers");
            assert!(report.is_whole(), "{report:?}");
        })
        .expect("the run ends");
}

#[test]
fn a_write_below_a_damaged_node_of_a_file_is_kept_and_the_rest_stays_lost_until_it_is_written() {
    a_damaged_node(1, 1, 1, BELOW_NODE..2 * BELOW_NODE);
}

#[test]
fn so_it_is_if_the_root_of_the_files_map_is_damaged() {
    a_damaged_node(2, 2, 0, 0..FILE_BYTES);
}

#[test]
fn so_it_is_if_a_single_block_is_damaged() {
    let simulation = Simulation::new(3);
    let mut world = World::new(&simulation);
    let (volume, file) = damaged(&simulation, &mut world, move |inode, place| {
        place
            == Place {
                inode,
                level: 0,
                index: 3,
            }
    });
    let env = world.env();
    simulation
        .run(async move {
            write(&volume, file, 3 * BLOCK + 10, vec![7; 50]).await;
            sync(&env, &volume).await;
            assert_eq!(
                read(&volume, file, 3 * BLOCK + 10, 50).await.expect("read"),
                [7; 50]
            );
            assert_lost(&volume, file, 3 * BLOCK, 11).await;
            assert_content(&volume, file, 4 * BLOCK, BLOCK).await;
        })
        .expect("the run ends");
}

#[test]
fn a_file_whose_map_is_damaged_can_be_removed() {
    let simulation = Simulation::new(4);
    let mut world = World::new(&simulation);
    let (volume, file) = damaged(&simulation, &mut world, move |inode, place| {
        place
            == Place {
                inode,
                level: 2,
                index: 0,
            }
    });
    let env = world.env();
    simulation
        .run(async move {
            assert_lost(&volume, file, 0, 10).await;
            let removed = volume.remove(&root(), volume.root(), &name("large")).await;
            removed.expect("removed");
            sync(&env, &volume).await;
            sync(&env, &volume).await;
            let report = volume.verify(&|_| {}).await.expect("the store answers");
            assert!(report.is_whole(), "{report:?}");
        })
        .expect("the run ends");
}

#[test]
fn a_damaged_node_of_the_inode_map_takes_its_files_along_and_holds_up_nobody_else() {
    let simulation = Simulation::new(5);
    let mut world = World::new(&simulation);
    let make = |volume: Volume| async move {
        let mut files = Vec::new();
        for number in 0..300 {
            files.push(create(&volume, volume.root(), &format!("file{number}")).await);
        }
        (files[0], files[files.len() - 1])
    };
    let wanted = |(_, last): &(FileHandle, FileHandle), at| {
        let (inode, level) = (INODE_MAP, 1);
        let index = last.inode / 128;
        at == Place { inode, level, index }
    };
    let (volume, (first, last)) = after_damage(&simulation, &mut world, make, wanted);
    let env = world.env();
    simulation
        .run(async move {
            assert_inode_lost(&volume, last).await;
            write(&volume, first, 0, vec![1; 10]).await;
            let mut made = Vec::new();
            for number in 0..200 {
                made.push(create(&volume, volume.root(), &format!("new{number}")).await);
            }
            sync(&env, &volume).await;
            for file in made {
                write(&volume, file, 0, vec![2; 10]).await;
            }
            sync(&env, &volume).await;
            assert_eq!(read(&volume, first, 0, 10).await.expect("read"), [1; 10]);
            assert_inode_lost(&volume, last).await;
        })
        .expect("the run ends");
}

/// The names in it are out of reach, and say so; the files keep what they have, and other directories take new ones.
#[test]
fn a_damaged_node_of_a_directory_costs_its_names_and_holds_up_nobody_else() {
    let simulation = Simulation::new(8);
    let mut world = World::new(&simulation);
    let make = |volume: Volume| async move {
        let full = directory(&volume, volume.root(), "full").await;
        let mut files = Vec::new();
        for number in 0..500 {
            files.push(create(&volume, full, &format!("file{number}")).await);
        }
        write(&volume, files[7], 0, vec![1; 10]).await;
        (full, files[7])
    };
    let wanted =
        |(full, _): &(FileHandle, FileHandle), place: Place| place.inode == full.inode && place.level == 1;
    let (volume, (full, file)) = after_damage(&simulation, &mut world, make, wanted);
    let env = world.env();
    simulation
        .run(async move {
            let reports_damage = |what: &str, error: Option<VfsError>| match error {
                Some(VfsError::Corrupt { inode, .. }) => assert_eq!(inode, full.inode, "{what}"),
                other => panic!("{what}: damage is told, not {other:?}"),
            };
            let found = volume.lookup(&root(), full, &name("file7")).await;
            reports_damage("a lookup", found.err());
            let listed = volume.read_directory(&root(), full, 0, 100, false).await;
            reports_damage("a listing", listed.err());
            let mode = CreateMode::Guarded(SetAttributes::default());
            let made = volume.create(&root(), full, &name("new"), mode).await;
            reports_damage("a new name", made.err());
            let removed = volume.remove(&root(), full, &name("file7")).await;
            reports_damage("a removal", removed.err());
            // Clients that have a file open notice nothing.
            assert_eq!(read(&volume, file, 0, 10).await.expect("read"), [1; 10]);
            write(&volume, file, 10, vec![2; 10]).await;
            create(&volume, volume.root(), "elsewhere").await;
            sync(&env, &volume).await;
            write(&volume, file, 20, vec![3; 10]).await;
            sync(&env, &volume).await;
            let data = read(&volume, file, 0, 30).await.expect("read");
            assert_eq!(data, [[1; 10], [2; 10], [3; 10]].concat());
            let report = volume.verify(&|_| {}).await.expect("the store answers");
            assert!(
                report.damages.iter().any(|one| one.inode == full.inode),
                "{report:?}"
            );
        })
        .expect("the run ends");
}

/// The usage map is a hint: a part of it that is damaged is counted anew, whichever part it is.
#[test]
fn damage_of_the_usage_map_holds_up_nobody() {
    for (seed, level) in [(6, 0), (7, 1)] {
        let simulation = Simulation::new(seed);
        let mut world = World::new(&simulation);
        let (volume, file) = damaged(&simulation, &mut world, move |_, place| {
            (place.inode, place.level) == (USAGE_MAP, level)
        });
        let env = world.env();
        simulation
            .run(async move {
                write_content(&volume, file, 0, BLOCK).await;
                sync(&env, &volume).await;
                write_content(&volume, file, BLOCK, 2 * BLOCK).await;
                sync(&env, &volume).await;
                assert_content(&volume, file, 0, 512 << 10).await;
            })
            .expect("the run ends");
    }
}
