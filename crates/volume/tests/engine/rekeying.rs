//! Rekeying: what is old is sealed anew, through stops of every kind, and clients see nothing of it.

use crate::{
    files::{create, directory, look, name, read, write},
    world::{World, config, root},
};
use firn_env::{Env, sim::Simulation};
use firn_format::{FamilyId, KeyEpoch};
use firn_seal::{EpochKey, Keys};
use firn_vfs::{Attributes, FileHandle, SetAttributes, Vfs};
use firn_volume::{Parts, RekeyEnd, Volume, VolumeConfig, VolumeError};
use std::{collections::BTreeMap, time::Duration};

/// Slow enough for a step of 1 MiB now and then.
const SLOW: u64 = 256 << 10;
const FAST: u64 = 1 << 30;

/// Keys of these epochs; that of epoch 1 is the world's.
fn keys(epochs: impl IntoIterator<Item = u32>) -> Keys {
    let epochs = epochs
        .into_iter()
        .map(|epoch| (KeyEpoch(epoch), EpochKey::from_bytes([epoch as u8 + 2; 32])));
    Keys::new(FamilyId([1; 16]), epochs.collect())
}

fn with_keys(parts: Parts, keys: &Keys) -> Parts {
    Parts {
        keys: keys.clone(),
        ..parts
    }
}

fn on<T: Send + 'static>(simulation: &Simulation, future: impl Future<Output = T> + Send + 'static) -> T {
    simulation.run(future).expect("the run ends")
}

async fn open(parts: Parts) -> Volume {
    Volume::open(parts, config()).await.expect("it opens").0
}

/// A block that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed + 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).take(4096).flatten().collect()
}

/// A file of two levels of nodes, small ones, directories, links.
async fn fill(volume: &Volume) {
    let top = volume.root();
    let big = create(volume, top, "big").await;
    for block in 0..150_u64 {
        write(volume, big, block * (32 << 10), noise(block)).await;
    }
    let many = directory(volume, top, "many").await;
    for number in 0..300_u32 {
        let file = create(volume, many, &format!("file {number}")).await;
        write(volume, file, 0, number.to_le_bytes().repeat(20 + number as usize)).await;
    }
    volume
        .make_symlink(
            &root(),
            top,
            &name("link"),
            "target".into(),
            SetAttributes::default(),
        )
        .await
        .expect("made");
    volume.sync().await.expect("synced");
}

/// All that a client can see of `fill`.
async fn seen(volume: &Volume) -> Vec<(String, Attributes, Vec<u8>)> {
    let mut paths = vec![vec!["big".to_owned()], vec!["link".into()], vec!["many".into()]];
    paths.extend((0..300).map(|number| vec!["many".into(), format!("file {number}")]));
    let mut seen = Vec::new();
    for path in paths {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let file = look(volume, &parts).await.expect("it is there");
        let attributes = volume.attributes(file).await.expect("attributes");
        let mut data = Vec::new();
        if parts != ["many"] && parts != ["link"] {
            for offset in (0..attributes.size_bytes).step_by(1 << 20) {
                data.extend(read(volume, file, offset, 1 << 20).await.expect("it is read"));
            }
        }
        seen.push((path.join("/"), attributes, data));
    }
    seen
}

async fn until_over(env: &Env, volume: &Volume) {
    for _ in 0..10_000 {
        if volume.rekey_status().under_way.is_none() {
            return;
        }
        env.sleep(Duration::from_millis(500)).await;
    }
    panic!("the rekey does not end: {:?}", volume.rekey_status());
}

async fn epochs(volume: &Volume) -> (Vec<u32>, Vec<u32>) {
    let report = volume.verify(&|_| ()).await.expect("verified");
    assert!(report.is_whole(), "{:?}", report.damages);
    let list = |found: &BTreeMap<KeyEpoch, u64>| found.keys().map(|epoch| epoch.0).collect();
    (list(&report.live_epochs), list(&report.snapshot_epochs))
}

#[test]
fn after_a_rekey_the_old_key_opens_nothing_and_clients_saw_nothing_of_it() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let (env, opening) = (world.env(), world.format_and_open());
    let ring = keys([1]);
    let parts = with_keys(world.own_parts(), &ring);
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.stop().await.expect("stopped");
        let volume = open(parts).await;
        let orphan = create(&volume, volume.root(), "unlinked").await;
        write(&volume, orphan, 0, vec![7; 200_000]).await;
        volume.retain(orphan).await.expect("retained");
        volume
            .remove(&root(), volume.root(), &name("unlinked"))
            .await
            .expect("removed");
        volume.snapshot_create("before", 0).await.expect("a snapshot");
        let before = seen(&volume).await;
        assert_eq!(epochs(&volume).await.0, [1]);
        assert!(volume.rekey_status().is_done(), "there is one key only");

        ring.adopt(&keys([1, 2])).expect("adopted");
        assert!(!volume.rekey_status().is_done());
        let started = volume.rekey_start(SLOW).await.expect("started");
        let under_way = started.under_way.expect("it is under way");
        assert_eq!(
            (under_way.target, under_way.bytes_per_second),
            (KeyEpoch(2), SLOW)
        );
        let first = volume.status().checkpoints;
        until_over(&env, &volume).await;
        assert!(volume.status().checkpoints > first + 3, "it was done in steps");

        let status = volume.rekey_status();
        let last = status.last.clone().expect("one was done");
        assert_eq!(
            (last.end, last.counts.unreadable, status.left_bytes),
            (RekeyEnd::Done, 0, 0)
        );
        assert!(last.counts.resealed_objects > 500, "{last:?}");
        assert_eq!(status.oldest, Some(KeyEpoch(2)));
        assert_eq!(epochs(&volume).await, (vec![2], vec![1]));
        assert_eq!(seen(&volume).await, before);
        assert_eq!(
            read(&volume, orphan, 0, 1 << 20).await.expect("still open"),
            vec![7; 200_000]
        );

        // What the snapshot retains needs the old key until it is deleted.
        assert_eq!(status.snapshots.len(), 1);
        assert_eq!(
            (status.snapshots[0].name.as_str(), status.snapshots[0].oldest),
            ("before", Some(KeyEpoch(1)))
        );
        assert_eq!(status.oldest_needed(), Some(KeyEpoch(1)));
        volume.snapshot_create("after", 0).await.expect("a snapshot");
        assert_eq!(volume.rekey_status().snapshots.len(), 1);
        volume.snapshot_delete(b"before").await.expect("deleted");
        assert!(volume.rekey_status().is_done());
        volume.release(orphan).await.expect("released");
        volume.drain().await.expect("drained");
        before
    });
    let before = on_new_disk_with_the_new_key(&simulation, &mut world);
    on(&simulation, async move {
        let volume = before.await;
        assert_eq!(seen(&volume).await.len(), 303);
        assert_eq!(epochs(&volume).await.0, [2]);
        assert!(volume.rekey_status().is_done());
    });
}

/// Opens with a ring from which the first epoch's key was removed.
fn on_new_disk_with_the_new_key(
    simulation: &Simulation,
    world: &mut World,
) -> impl Future<Output = Volume> + Send + 'static {
    let parts = with_keys(world.machine_beside(simulation, "another"), &keys([2]));
    open(parts)
}

#[test]
fn a_rekey_goes_on_after_every_crash_and_what_is_written_meanwhile_is_not_lost() {
    for (seed, hits) in [(2, 3), (3, 40), (4, 90)] {
        let simulation = Simulation::new(seed);
        let mut world = World::new(&simulation);
        let (opening, ring) = (world.format_and_open(), keys([1, 2]));
        let (env, parts) = (world.env(), with_keys(world.own_parts(), &ring));
        on(&simulation, async move {
            let volume = opening.await;
            fill(&volume).await;
            volume.stop().await.expect("stopped");
            let volume = open(parts).await;
            volume.rekey_start(SLOW).await.expect("started");
            env.sleep(Duration::from_millis(1)).await;
            // A power cut is next, but the start was committed.
        });
        let mut crashes = 0;
        for number in 0..40_u64 {
            world.power_cut_only();
            let (env, parts) = (world.env(), with_keys(world.own_parts(), &ring));
            let is_last = number == 39;
            if !is_last {
                world.crash_at_any(hits + number * 7);
            }
            let (done, is_done) = std::sync::mpsc::channel();
            world.attempt(&simulation, async move {
                let volume = open(parts).await;
                let file = look(&volume, &["big"]).await.expect("there");
                let at = (number % 150) * (32 << 10);
                write(&volume, file, at + 5, vec![number as u8; 100]).await;
                until_over(&env, &volume).await;
                assert_eq!(
                    read(&volume, file, at + 5, 100).await.expect("read"),
                    vec![number as u8; 100]
                );
                assert_eq!(epochs(&volume).await.0, [2]);
                let _ = done.send(());
            });
            if is_done.try_recv().is_ok() {
                break;
            }
            assert!(!is_last, "it is over without crashes");
            crashes += 1;
        }
        assert!(crashes > 0, "no crash met the rekey");
    }
}

#[test]
fn two_starts_are_one_rekey_that_follows_a_newer_key_and_ends_when_it_is_stopped() {
    let simulation = Simulation::new(5);
    let world = World::new(&simulation);
    let (env, opening, ring) = (world.env(), world.format_and_open(), keys([1, 2]));
    let parts = with_keys(world.own_parts(), &ring);
    let meter = world.meter();
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.stop().await.expect("stopped");
        let volume = open(parts).await;
        let slow = 16 << 10;
        let (one, other) = (volume.clone(), volume.clone());
        let (first, second) = futures::join!(one.rekey_start(slow), other.rekey_start(slow));
        let (first, second) = (first.expect("started"), second.expect("joined"));
        let of = |status: &firn_volume::RekeyStatus| {
            let under_way = status.under_way.clone().expect("under way");
            (under_way.target, under_way.started_ms)
        };
        assert_eq!(of(&first), of(&second));
        env.sleep(Duration::from_secs(200)).await;
        let passed = volume
            .rekey_status()
            .under_way
            .expect("it is slow")
            .counts
            .passed_bytes;
        assert!(passed > 0);
        assert!(volume.rekey_status().left_bytes > 0);

        let stopped = volume.rekey_stop().await.expect("stopped");
        assert_eq!(stopped.under_way, None);
        assert_eq!(stopped.last.expect("one ended").end, RekeyEnd::Stopped);
        assert_eq!(stopped.oldest, Some(KeyEpoch(1)));
        assert_eq!(epochs(&volume).await.0, [1, 2]);

        volume.rekey_start(slow).await.expect("started again");
        env.sleep(Duration::from_secs(100)).await;
        ring.adopt(&keys([1, 2, 3])).expect("adopted");
        env.sleep(Duration::from_secs(200)).await;
        let under_way = volume.rekey_status().under_way.expect("under way");
        assert_eq!(under_way.target, KeyEpoch(3));
        volume.rekey_start(FAST).await.expect("faster");
        until_over(&env, &volume).await;
        assert_eq!(epochs(&volume).await.0, [3]);

        // Another start has nothing to do, and an idle volume asks for nothing.
        let again = volume.rekey_start(FAST).await.expect("answered");
        assert!(again.under_way.is_none() && again.is_done());
        env.sleep(Duration::from_secs(120)).await;
        let before = meter.usage().requests();
        env.sleep(Duration::from_secs(3600)).await;
        assert_eq!(meter.usage().requests(), before);
    });
}

#[test]
fn another_edge_that_takes_over_goes_on_with_the_rekey() {
    let simulation = Simulation::new(6);
    let world = World::new(&simulation);
    let (env, opening, ring) = (world.env(), world.format_and_open(), keys([1, 2]));
    let parts = with_keys(world.own_parts(), &ring);
    let other = with_keys(world.machine_beside(&simulation, "other"), &keys([1, 2]));
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.stop().await.expect("stopped");
        let volume = open(parts).await;
        volume.rekey_start(16 << 10).await.expect("started");
        env.sleep(Duration::from_secs(200)).await;
        let passed = volume
            .rekey_status()
            .under_way
            .expect("it is slow")
            .counts
            .passed_bytes;
        Volume::takeover(&other, &config()).await.expect("taken over");
        let volume = open(other).await;
        let resumed = volume.rekey_status().under_way.expect("it goes on");
        assert!(resumed.counts.passed_bytes >= passed && passed > 0);
        volume.rekey_start(FAST).await.expect("faster");
        until_over(&env, &volume).await;
        assert_eq!(epochs(&volume).await.0, [2]);
        assert_eq!(seen(&volume).await.len(), 303);
    });
}

#[test]
fn an_edge_with_an_old_ring_is_refused_and_loses_nothing() {
    let simulation = Simulation::new(7);
    let world = World::new(&simulation);
    let (env, opening) = (world.env(), world.format_and_open());
    let (old, new) = (
        with_keys(world.own_parts(), &keys([1])),
        with_keys(world.own_parts(), &keys([1, 2])),
    );
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.stop().await.expect("stopped");
        let volume = open(Parts { ..copy(&new) }).await;
        volume.rekey_start(FAST).await.expect("started");
        until_over(&env, &volume).await;
        let file = look(&volume, &["big"]).await.expect("there");
        write(&volume, file, 0, vec![99; 10]).await;
        volume.stop().await.expect("stopped");

        let refused = match Volume::open(old, config()).await {
            Err(error) => error,
            Ok(_) => panic!("it opened with an old ring"),
        };
        let VolumeError::KeyNotAtHand { epoch, newest, .. } = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!((*epoch, *newest), (KeyEpoch(2), KeyEpoch(1)));
        let text = refused.to_string();
        assert!(
            text.contains("nothing was changed") && text.contains("newer key ring"),
            "{text}"
        );

        let volume = open(new).await;
        let file = look(&volume, &["big"]).await.expect("there");
        assert_eq!(read(&volume, file, 0, 10).await.expect("read"), [99; 10]);
        assert_eq!(epochs(&volume).await.0, [2]);
    });
}

fn copy(parts: &Parts) -> Parts {
    Parts {
        env: parts.env.clone(),
        store: parts.store.clone(),
        second: parts.second.clone(),
        anchor: parts.anchor.clone(),
        keys: parts.keys.clone(),
        volume: parts.volume,
    }
}

#[test]
fn what_is_written_over_meanwhile_stays_and_a_clone_knows_what_it_needs() {
    let simulation = Simulation::new(8);
    let world = World::new(&simulation);
    let (env, opening) = (world.env(), world.format_and_open());
    let parts = with_keys(world.own_parts(), &keys([1, 2]));
    let configured = VolumeConfig {
        memory_cache_bytes: 0,
        ..config()
    };
    let (elsewhere, config_of_clone) = (world.machine_beside(&simulation, "reader"), config());
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.stop().await.expect("stopped");
        let volume = Volume::open(parts, configured).await.expect("it opens").0;
        let file = look(&volume, &["big"]).await.expect("there");
        let old = volume.clone_head("old").await.expect("cloned");
        volume.rekey_start(SLOW).await.expect("started");
        let mut last = BTreeMap::new();
        for number in 0..200_u64 {
            let at = (number * 37 % 150) * (32 << 10) + number;
            write(&volume, file, at, vec![number as u8; 3000]).await;
            last.insert(at, number as u8);
            env.sleep(Duration::from_millis(200)).await;
        }
        until_over(&env, &volume).await;
        volume.sync().await.expect("synced");
        let (file, whole) = (look(&volume, &["big"]).await.expect("there"), &volume);
        let before = read_whole(whole, file).await;
        volume.drop_caches().await;
        assert_eq!(read_whole(whole, file).await, before);
        assert_eq!(epochs(&volume).await.0, [2]);
        let new = volume.clone_head("new").await.expect("cloned");
        for (clone, oldest) in [(old, Some(KeyEpoch(1))), (new, Some(KeyEpoch(2)))] {
            let parts = Parts {
                volume: clone.volume,
                ..with_keys(copy(&elsewhere), &keys([1, 2]))
            };
            let opened = Volume::open(parts, config_of_clone.clone())
                .await
                .expect("it opens")
                .0;
            assert_eq!(opened.rekey_status().oldest, oldest, "{}", clone.name);
            opened.drain().await.expect("drained");
        }
    });
}

async fn read_whole(volume: &Volume, file: FileHandle) -> Vec<u8> {
    let mut data = Vec::new();
    for offset in (0..150 * (32 << 10)).step_by(1 << 20) {
        data.extend(read(volume, file, offset, 1 << 20).await.expect("it is read"));
    }
    data
}
