//! The disk is judged by small programs that keep promises on it. The right one never loses what it promised; each of
//! the wrong ones is found out within a few seeds, or the disk would be too kind to find such bugs in an engine.

use crate::{
    DiskError, EntryKind, Env, OpenMode,
    sim::{DiskImage, DiskOptions, FileImage, Simulation, Survival},
};
use bytes::Bytes;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const RECORD_BYTES: u64 = 700;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    NoSync,
    NoDirectorySync,
    RetriesAFailedSync,
    RenamesBeforeSync,
    TrustsTheLength,
}

fn record(number: u64) -> Bytes {
    Bytes::from(vec![(number % 250 + 1) as u8; RECORD_BYTES as usize])
}

/// Appends records; `promised` counts those it vouches for. Panics when a sync fails, as an engine must.
async fn append_records(env: Env, bug: Bug, promised: Arc<AtomicU64>) {
    let file = env
        .disk()
        .open("journal", OpenMode::CreateNew)
        .await
        .expect("an empty disk");
    if bug != Bug::NoDirectorySync {
        env.disk().sync_directory("").await.expect("no failure planned");
    }
    for number in 0..60 {
        file.write_at(number * RECORD_BYTES, vec![record(number)])
            .await
            .expect("space");
        match bug {
            Bug::NoSync => {}
            Bug::RetriesAFailedSync => while file.sync_data().await.is_err() {},
            _ => file.sync_data().await.expect("a failed sync is a crash"),
        }
        promised.store(number + 1, Ordering::Relaxed);
    }
}

/// How many records a reader finds, believing content only (or, wrongly, the length).
async fn count_records(env: &Env, bug: Bug) -> u64 {
    let Ok(file) = env.disk().open("journal", OpenMode::Read).await else {
        return 0;
    };
    if bug == Bug::TrustsTheLength {
        return file.length().await.expect("open") / RECORD_BYTES;
    }
    let mut number = 0;
    loop {
        let bytes = file
            .read_at(number * RECORD_BYTES, RECORD_BYTES as usize)
            .await
            .expect("open");
        if bytes != record(number) {
            return number;
        }
        number += 1;
    }
}

/// Replaces a small file 20 times through a temporary name; `promised` is the newest content vouched for.
async fn replace_file(env: Env, bug: Bug, promised: Arc<AtomicU64>) {
    for number in 1..=20 {
        let file = env
            .disk()
            .open("new", OpenMode::CreateNew)
            .await
            .expect("renamed away");
        file.write_at(0, vec![record(number)]).await.expect("space");
        if bug != Bug::RenamesBeforeSync {
            file.sync_data().await.expect("a failed sync is a crash");
        }
        env.disk().rename("new", "settings").await.expect("exists");
        env.disk().sync_directory("").await.expect("no failure planned");
        if bug == Bug::RenamesBeforeSync {
            file.sync_data().await.expect("a failed sync is a crash");
        }
        promised.store(number, Ordering::Relaxed);
    }
}

async fn newest_content(env: &Env) -> Result<u64, String> {
    let Ok(file) = env.disk().open("settings", OpenMode::Read).await else {
        return Ok(0);
    };
    let bytes = file.read_at(0, 4096).await.expect("open");
    (1..=20)
        .find(|number| record(*number) == bytes)
        .ok_or_else(|| "the file is neither old nor new".into())
}

/// Whether the program with this bug kept its promises over a crash at a random time.
fn keeps_its_promises(seed: u64, bug: Bug) -> Result<(), String> {
    keeps_its_promises_on(seed, bug, |_| {})
}

/// The same, on a disk of another kind.
fn keeps_its_promises_on(seed: u64, bug: Bug, kind: impl FnOnce(&mut DiskOptions)) -> Result<(), String> {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("edge");
    machine.may_panic(true);
    machine.disk().configure(kind);
    if bug == Bug::RetriesAFailedSync {
        machine.disk().configure(|disk| disk.sync_failures = 200_000);
    }
    let controller = simulation.env();
    simulation
        .run(async move {
            let promised = Arc::new(AtomicU64::new(0));
            let env = machine.env();
            let replaces = bug == Bug::RenamesBeforeSync || (bug == Bug::None && seed.is_multiple_of(2));
            if replaces {
                env.spawn("replacer", replace_file(env.clone(), bug, promised.clone()));
            } else {
                env.spawn("appender", append_records(env.clone(), bug, promised.clone()));
            }
            controller
                .sleep(Duration::from_micros(controller.random_below(60_000)))
                .await;
            machine.crash();
            let promised = promised.load(Ordering::Relaxed);
            let env = machine.restart();
            let found = if replaces {
                newest_content(&env).await?
            } else {
                count_records(&env, bug).await
            };
            // More than was promised is fine, unless the reader believes in records that are not there.
            let real = if replaces {
                found
            } else {
                count_records(&env, Bug::None).await
            };
            if found < promised || found > real {
                return Err(format!("promised {promised}, found {found}, real {real}"));
            }
            Ok(())
        })
        .expect("ends")
}

#[test]
fn what_was_synced_always_survives() {
    for seed in 0..2000 {
        if let Err(broken) = keeps_its_promises(seed, Bug::None) {
            panic!("seed {seed}: {broken}");
        }
    }
}

#[test]
fn a_disk_that_writes_through_needs_no_syncs() {
    for seed in 0..500 {
        for bug in [Bug::NoSync, Bug::NoDirectorySync, Bug::RenamesBeforeSync] {
            let kept = keeps_its_promises_on(seed, bug, |disk| disk.writes_through = true);
            assert_eq!(kept, Ok(()), "{bug:?}, seed {seed}");
        }
    }
}

#[test]
fn every_way_to_skimp_on_syncs_is_found_out() {
    for bug in [
        Bug::NoSync,
        Bug::NoDirectorySync,
        Bug::RetriesAFailedSync,
        Bug::RenamesBeforeSync,
        Bug::TrustsTheLength,
    ] {
        let caught = (0..500).find(|seed| keeps_its_promises(*seed, bug).is_err());
        assert!(caught.is_some_and(|seed| seed < 100), "{bug:?}: {caught:?}");
    }
}

#[test]
fn a_crash_tears_writes_at_sectors_and_reorders_them() {
    let simulation = Simulation::new(0);
    let machine = simulation.machine("edge");
    let env = machine.env();
    simulation
        .run(async move {
            let file = env.disk().open("file", OpenMode::CreateNew).await.expect("new");
            env.disk().sync_directory("").await.expect("healthy");
            file.write_at(0, vec![Bytes::from(vec![1; 2048])])
                .await
                .expect("space");
            file.sync_data().await.expect("healthy");
            file.write_at(0, vec![Bytes::from(vec![2; 2048])])
                .await
                .expect("space");
            file.write_at(0, vec![Bytes::from(vec![3; 2048])])
                .await
                .expect("space");
        })
        .expect("ends");
    let disk = machine.disk();
    let (mut torn, mut reordered, mut middle) = (0, 0, 0);
    for seed in 0..200 {
        let image = disk.image_after_crash(Survival::Each(50), seed);
        let bytes = image.files["file"].to_bytes();
        let sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors.len(), 4);
        for (sector, first) in bytes.chunks(512).zip(&sectors) {
            assert!(sector.iter().all(|byte| byte == first), "a sector is whole");
            assert!((1..=3).contains(first), "never older than the last sync");
        }
        torn += u32::from(sectors.iter().any(|sector| *sector != sectors[0]));
        reordered += u32::from(sectors[0] == 1 && sectors[3] == 3);
        middle += u32::from(sectors.contains(&2));
    }
    assert!(
        torn > 100 && reordered > 5 && middle > 50,
        "{torn} {reordered} {middle}"
    );
    assert_eq!(
        disk.image_after_crash(Survival::Nothing, 1).files["file"].to_bytes(),
        vec![1; 2048]
    );
    assert_eq!(
        disk.image_after_crash(Survival::Everything, 1).files["file"].to_bytes(),
        vec![3; 2048]
    );
    let prefixes: Vec<u8> = (0..10)
        .map(|until| disk.image_after_crash(Survival::Prefix(until), 1))
        .filter_map(|image| image.files.get("file").map(|file| file.to_bytes()[0]))
        .collect();
    assert!(prefixes.is_sorted(), "{prefixes:?}");
}

#[test]
fn an_unsynced_rename_leaves_the_file_at_one_of_its_names() {
    let simulation = Simulation::new(0);
    let machine = simulation.machine("edge");
    let env = machine.env();
    simulation
        .run(async move {
            env.disk().create_directory("a").await.expect("new");
            env.disk().create_directory("b").await.expect("new");
            env.disk().sync_directory("").await.expect("healthy");
            let file = env.disk().open("a/file", OpenMode::CreateNew).await.expect("new");
            file.write_at(0, vec![Bytes::from_static(b"kept")])
                .await
                .expect("space");
            file.sync_data().await.expect("healthy");
            env.disk().sync_directory("a").await.expect("healthy");
            env.disk().rename("a/file", "b/file").await.expect("exists");
        })
        .expect("ends");
    let mut moved = 0;
    for seed in 0..100 {
        let image = machine.disk().image_after_crash(Survival::Each(50), seed);
        let at: Vec<&String> = image.files.keys().collect();
        assert_eq!(at.len(), 1, "{at:?}");
        assert_eq!(image.files[at[0]].to_bytes(), "kept");
        moved += u32::from(at[0] == "b/file");
    }
    assert!((20..80).contains(&moved));
}

#[test]
fn a_linked_file_has_two_names_until_one_is_removed() {
    let simulation = Simulation::new(0);
    let env = simulation.machine("edge").env();
    simulation
        .run(async move {
            let disk = env.disk();
            disk.create_directory("objects/deep").await.expect("new");
            let file = disk.open("new", OpenMode::CreateNew).await.expect("new");
            file.write_at(0, vec![record(1)]).await.expect("space");
            disk.link("new", "objects/one").await.expect("free name");
            let taken = disk.link("new", "objects/one").await;
            assert!(matches!(taken, Err(DiskError::AlreadyExists { .. })));
            drop(file);
            let free = disk.free_bytes().await.expect("open");
            disk.remove("new").await.expect("exists");
            assert_eq!(
                disk.free_bytes().await.expect("open"),
                free,
                "the other name keeps the space"
            );
            let status = disk.status("objects/one").await.expect("exists");
            assert_eq!(
                (status.kind, status.length_bytes),
                (EntryKind::File, RECORD_BYTES)
            );
            assert!(status.modified <= env.wall());
            let entries = disk.entries("objects").await.expect("a directory");
            let named: Vec<(&str, EntryKind)> = entries
                .iter()
                .map(|entry| (entry.name.as_str(), entry.kind))
                .collect();
            assert_eq!(named, [("deep", EntryKind::Directory), ("one", EntryKind::File)]);
            disk.remove("objects/one").await.expect("exists");
            assert_eq!(disk.free_bytes().await.expect("open"), free + 4096);
            assert!(disk.status("objects/one").await.is_err());
        })
        .expect("ends");
}

#[test]
fn a_full_disk_refuses_and_a_reservation_holds() {
    let simulation = Simulation::new(0);
    let machine = simulation.machine("edge");
    machine.disk().configure(|disk| disk.capacity_bytes = 64 << 10);
    let env = machine.env();
    simulation
        .run(async move {
            let disk = env.disk();
            let journal = disk.open("journal", OpenMode::CreateNew).await.expect("new");
            journal.allocate(32 << 10).await.expect("space");
            let other = disk.open("other", OpenMode::CreateNew).await.expect("new");
            other
                .write_at(0, vec![Bytes::from(vec![1; 32 << 10])])
                .await
                .expect("space");
            assert_eq!(disk.free_bytes().await.expect("open"), 0);
            let full = other.write_at(32 << 10, vec![Bytes::from_static(b"x")]).await;
            assert!(matches!(full, Err(DiskError::Full { .. })));
            journal
                .write_at(0, vec![Bytes::from(vec![2; 32 << 10])])
                .await
                .expect("reserved");
            disk.remove("other").await.expect("exists");
            assert_eq!(
                disk.free_bytes().await.expect("open"),
                0,
                "an open file keeps its space"
            );
            drop(other);
            assert_eq!(disk.free_bytes().await.expect("open"), 32 << 10);
            journal.truncate(4096).await.expect("open");
            assert_eq!(disk.free_bytes().await.expect("open"), 60 << 10);
        })
        .expect("ends");
}

#[test]
fn a_write_nobody_waits_for_any_more_still_happens() {
    let happened = (0..50)
        .filter(|seed| {
            let simulation = Simulation::new(*seed);
            let env = simulation.machine("edge").env();
            simulation
                .run(async move {
                    let file = env.disk().open("file", OpenMode::CreateNew).await.expect("new");
                    let write = file.write_at(0, vec![Bytes::from_static(b"late")]);
                    let dropped = env.timeout(Duration::from_nanos(1), write).await.is_err();
                    env.sleep(Duration::from_secs(1)).await;
                    assert_eq!(file.read_at(0, 4).await.expect("open"), "late");
                    dropped
                })
                .expect("ends")
        })
        .count();
    assert!(happened > 10, "{happened} of 50 writes were dropped");
}

#[test]
fn a_lock_is_exclusive_and_ends_with_its_holder_or_the_machine() {
    let simulation = Simulation::new(0);
    let machine = simulation.machine("edge");
    let env = machine.env();
    simulation
        .run(async move {
            let lock = env.disk().lock("lock").await.expect("free");
            assert!(matches!(
                env.disk().lock("lock").await,
                Err(DiskError::Locked { .. })
            ));
            drop(lock);
            let lock = env.disk().lock("lock").await.expect("free");
            machine.crash();
            let env = machine.restart();
            let next = env.disk().lock("lock").await.expect("free");
            drop(lock);
            assert!(env.disk().lock("lock").await.is_err(), "a ghost frees nothing");
            drop(next);
        })
        .expect("ends");
}

#[test]
fn kill_keeps_completed_writes_and_rot_flips_what_it_says() {
    let simulation = Simulation::new(0);
    let machine = simulation.machine("edge");
    let env = machine.env();
    let disk = machine.disk();
    simulation
        .run(async move {
            let file = env.disk().open("file", OpenMode::CreateNew).await.expect("new");
            file.write_at(0, vec![Bytes::from(vec![0xff; 10_000])])
                .await
                .expect("space");
            machine.kill();
            let env = machine.restart();
            let file = env
                .disk()
                .open("file", OpenMode::Read)
                .await
                .expect("a kill is no power cut");
            assert_eq!(file.read_at(0, 20_000).await.expect("open"), vec![0xff; 10_000]);
            let rotten = machine.disk().rot("fi", 1);
            let bytes = file.read_at(0, 20_000).await.expect("open");
            let changed: Vec<u64> = (0..10_000).filter(|at| bytes[*at as usize] != 0xff).collect();
            assert_eq!(rotten, [("file".to_owned(), changed[0])]);
            assert!(
                file.write_at(0, vec![Bytes::new()]).await.is_err(),
                "opened for reading"
            );
        })
        .expect("ends");
    let mut image = DiskImage::default();
    image
        .files
        .insert("one".into(), FileImage::from_bytes(&[7; 5000]));
    disk.restore(&image);
    assert!(disk.image() == image);
}
