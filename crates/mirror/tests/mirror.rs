//! A mirror in virtual time: what is copied, what is not, and when what the first retired is deleted from the second.

mod world;

use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::mutants::planting;
use firn_format::{FamilyId, ForwardingRecord};
use firn_mirror::MirrorState;
use firn_mirror::{Mirror, MirrorOptions, NoLocalCopies, check_not_an_alias};
use firn_store::{
    FaultConfig, Faults, Faulty, ListPage, MemoryStore, Metered, ObjectInfo, ObjectKey, Outage, PutMode,
    Store, StoreError,
};
use firn_table::MemoryTable;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use world::{FAMILY, HOUR, KEEP, World, id, name, segment, simulate};

#[test]
fn what_is_put_is_copied_and_what_was_there_before_too() {
    simulate(|env| async move {
        let world = World::new(&env).await;
        // From before, when nobody noted anything.
        world
            .first
            .put(&name(1), segment(FAMILY, 1), PutMode::Create)
            .await
            .unwrap();
        let running = world.mirror.clone();
        let task = env.spawn(
            "mirror",
            async move { running.run(Arc::new(NoLocalCopies)).await },
        );
        for sequence in 2..6 {
            world.put(sequence).await;
            env.sleep(Duration::from_secs(1)).await;
        }
        env.sleep(Duration::from_secs(60)).await;
        let (ours, copies) = (world.first.contents(), world.second.contents());
        assert_eq!(ours, copies);
        assert_eq!(ours.len(), 5);
        let status = world.mirror.status();
        assert_eq!((status.backlog_objects, status.behind_since_ms), (0, None));
        task.abort();
    });
}

#[test]
fn a_second_store_that_is_away_has_members_wait_and_tells_for_how_long() {
    simulate(|env| async move {
        let faulty_env = env.clone();
        let mut control = None;
        let world = World::with(&env, |second| {
            let faulty = Faulty::new(&faulty_env, second, FaultConfig::default()).unwrap();
            control = Some(faulty.control());
            Arc::new(faulty)
        })
        .await;
        let control = control.unwrap();
        let running = world.mirror.clone();
        let task = env.spawn(
            "mirror",
            async move { running.run(Arc::new(NoLocalCopies)).await },
        );
        env.sleep(Duration::from_secs(60)).await;
        let away = Faults {
            outage: Outage::Refuse,
            ..Faults::default()
        };
        control.set(away).unwrap();
        let put_at = env.wall().as_millis();
        let key = world.put(1).await;
        env.sleep(HOUR).await;
        let status = world.mirror.status();
        assert_eq!(status.backlog_objects, 1);
        assert_eq!(status.behind_since_ms, Some(put_at));
        assert!(status.last_error.is_some());
        control.set(Faults::default()).unwrap();
        // The longest pause between two tries.
        env.sleep(Duration::from_secs(300)).await;
        assert!(world.has(&key).await);
        assert_eq!(world.mirror.status().behind_since_ms, None);
        task.abort();
    });
}

/// A store that takes nothing while `is_read_only`: its policy changed, its quota is used up.
struct Refusing {
    store: Arc<dyn Store>,
    is_read_only: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Refusing {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        if self.is_read_only.load(Ordering::Relaxed) {
            return Err(StoreError::Denied {
                operation: "put",
                key: key.clone(),
                detail: "the quota is used up".into(),
            });
        }
        self.store.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.store.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.store.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.store.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.store.list(prefix, after).await
    }
}

#[test]
fn a_second_store_that_is_full_or_read_only_has_members_wait_until_it_takes_them() {
    simulate(|env| async move {
        let is_read_only = Arc::new(AtomicBool::new(false));
        let switch = is_read_only.clone();
        let world = World::with(&env, |store| Arc::new(Refusing { store, is_read_only })).await;
        let running = world.mirror.clone();
        let task = env.spawn(
            "mirror",
            async move { running.run(Arc::new(NoLocalCopies)).await },
        );
        env.sleep(Duration::from_secs(60)).await;
        switch.store(true, Ordering::Relaxed);
        let keys = [world.put(1).await, world.put(2).await];
        env.sleep(HOUR).await;
        let status = world.mirror.status();
        assert_eq!((status.state, status.backlog_objects), (MirrorState::Refusing, 2));
        assert!(status.last_error.is_some_and(|error| error.contains("quota")));
        switch.store(false, Ordering::Relaxed);
        env.sleep(Duration::from_secs(300)).await;
        for key in &keys {
            assert!(world.has(key).await);
        }
        let status = world.mirror.status();
        assert_eq!((status.state, status.backlog_objects), (MirrorState::Copying, 0));
        task.abort();
    });
}

fn damage_is_not_mirrored() -> Result<(), String> {
    simulate(|env| async move {
        let world = World::new(&env).await;
        let mut bytes = segment(FAMILY, 1).concat();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        world
            .first
            .put(&name(1), vec![bytes.into()], PutMode::Create)
            .await
            .unwrap();
        // A whole segment, under another's name and of another family.
        world
            .first
            .put(&name(2), segment(FAMILY, 3), PutMode::Create)
            .await
            .unwrap();
        world
            .first
            .put(&name(4), segment(FamilyId([1; 16]), 4), PutMode::Create)
            .await
            .unwrap();
        let found = world.compare().await;
        if found.damaged != 3 || !world.second.contents().is_empty() {
            return Err(format!("{found:?}, {:?}", world.second.contents().keys()));
        }
        Ok(())
    })
}

#[test]
fn neither_damage_nor_another_family_is_mirrored() {
    damage_is_not_mirrored().unwrap();
    planting(Some("mirror.copy_unchecked"), damage_is_not_mirrored).unwrap_err();
    simulate(|env| async move {
        let world = World::new(&env).await;
        let other = ObjectKey::new(&id(1).key(&FamilyId([1; 16])));
        world
            .noting
            .put(&other, segment(FamilyId([1; 16]), 1), PutMode::Create)
            .await
            .unwrap();
        world.put(1).await;
        world.compare().await;
        let copies: Vec<ObjectKey> = world.second.contents().into_keys().collect();
        assert_eq!(copies, [name(1)]);
    });
}

/// Retires a segment at noon and has a cleaner delete it; what is left of it in the second store hour by hour.
fn deleted_after() -> Result<u64, String> {
    simulate(|env| async move {
        let world = World::new(&env).await;
        let retired = world.put(1).await;
        let kept = world.put(2).await;
        world.compare().await;
        let mover = world.retire(1, true).await;
        world.first.delete(&retired).await.unwrap();
        for hour in 0..200 {
            world.compare().await;
            if !world.has(&kept).await {
                return Err("what is needed was deleted".into());
            }
            let record = ObjectKey::new(&ForwardingRecord::key(&FAMILY, id(1), mover));
            if !world.has(&record).await {
                return Err("the record is not there".into());
            }
            if !world.has(&retired).await {
                let tombstones = world
                    .second
                    .contents()
                    .into_keys()
                    .filter(|key| key.as_str().contains("/tombstone/"));
                return match tombstones.count() {
                    0 => Ok(hour),
                    _ => Err("a tombstone is left".into()),
                };
            }
            env.sleep(HOUR).await;
        }
        Err("it is never deleted".into())
    })
}

#[test]
fn what_was_retired_is_deleted_so_much_later_and_not_before() {
    let keep_hours = KEEP.as_secs() / 3600;
    assert_eq!(deleted_after(), Ok(keep_hours));
    assert!(planting(Some("mirror.delete_at_once"), deleted_after).unwrap() < keep_hours);
}

fn lost_is_kept() -> Result<(), String> {
    simulate(|env| async move {
        let world = World::new(&env).await;
        let lost = world.put(1).await;
        let ring = ObjectKey::new(&format!("{FAMILY}/keyring/0000000000000001"));
        world
            .noting
            .put(&ring, vec![Bytes::from_static(b"a ring")], PutMode::Create)
            .await
            .unwrap();
        world.compare().await;
        world.first.delete(&lost).await.unwrap();
        world.first.delete(&ring).await.unwrap();
        for _ in 0..4 {
            let found = world.compare().await;
            if (found.lost_segments, found.lost_others) != (1, 1) {
                return Err(format!("{found:?}"));
            }
            env.sleep(KEEP).await;
        }
        if world.mirror.suspects().keys().copied().collect::<Vec<_>>() != [id(1)] {
            return Err("it is no suspect".into());
        }
        match world.has(&lost).await && world.has(&ring).await {
            true => Ok(()),
            false => Err("the only copy was deleted".into()),
        }
    })
}

#[test]
fn what_the_first_lost_is_a_suspect_and_never_deleted() {
    lost_is_kept().unwrap();
    planting(Some("mirror.absent_is_unneeded"), lost_is_kept).unwrap_err();
}

#[test]
fn what_a_repair_found_unneeded_goes_as_late_as_what_was_retired() {
    simulate(|env| async move {
        let world = World::new(&env).await;
        // Retired, deleted and forgotten while nobody compared.
        let forgotten = world.put(1).await;
        world.compare().await;
        world.first.delete(&forgotten).await.unwrap();
        assert_eq!(world.compare().await.lost_segments, 1);
        world.mirror.mark_unneeded(id(1)).await.unwrap();
        assert!(world.mirror.suspects().is_empty());
        env.sleep(KEEP - HOUR).await;
        assert_eq!(world.compare().await.waiting, 1);
        env.sleep(HOUR).await;
        assert_eq!(world.compare().await.deleted, 1);
        assert!(!world.has(&forgotten).await);
    });
}

#[test]
fn what_comes_back_loses_its_mark() {
    simulate(|env| async move {
        let world = World::new(&env).await;
        let key = world.put(1).await;
        world.compare().await;
        world.retire(1, false).await;
        world.first.delete(&key).await.unwrap();
        assert_eq!(world.compare().await.marked, 1);
        // An administrator undid it.
        world
            .first
            .put(&key, segment(FAMILY, 1), PutMode::Create)
            .await
            .unwrap();
        world.compare().await;
        env.sleep(KEEP).await;
        world.compare().await;
        assert!(world.has(&key).await);
    });
}

#[test]
fn a_segment_that_is_cut_short_in_the_first_is_a_suspect_and_in_the_second_damage() {
    simulate(|env| async move {
        let world = World::new(&env).await;
        for sequence in [1, 2] {
            world.put(sequence).await;
        }
        world.compare().await;
        let cut = Bytes::from(segment(FAMILY, 1).concat()[..100].to_vec());
        world
            .first
            .put(&name(1), vec![cut.clone()], PutMode::Overwrite)
            .await
            .unwrap();
        world
            .second
            .put(&name(2), vec![cut], PutMode::Overwrite)
            .await
            .unwrap();
        let found = world.compare().await;
        assert_eq!((found.lost_segments, found.damaged), (1, 1), "{found:?}");
        assert!(world.mirror.suspects().contains_key(&id(1)));
    });
}

#[test]
fn two_names_of_one_store_are_told_from_two_stores() {
    simulate(|env| async move {
        let (one, other) = (MemoryStore::new(&env), MemoryStore::new(&env));
        check_not_an_alias(&env, &one, &other).await.unwrap();
        check_not_an_alias(&env, &one, &one).await.unwrap_err();
        assert!(one.contents().is_empty() && other.contents().is_empty());
        let anchor = Anchor::new(MemoryTable::new().connect(&env), env.clone(), FAMILY);
        let store: Arc<dyn Store> = Arc::new(one);
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: HOUR,
        };
        let mirror = Mirror::new(&env, (store.clone(), store), anchor, Arc::default(), options);
        let ended = Arc::new(AtomicBool::new(false));
        mirror.run(Arc::new(NoLocalCopies)).await;
        ended.store(true, Ordering::Relaxed);
        assert!(!mirror.is_checked());
    });
}

/// `cargo test -p firn-mirror --test mirror -- costs --nocapture` prints what decision 0198 quotes.
#[test]
fn costs_are_a_put_for_each_segment_and_two_listings_for_each_comparison() {
    const SEGMENTS: u64 = 3000;
    /// Segments of 4 MiB in 1 TiB.
    const OF_A_TIB: f64 = 262_144.0;
    simulate(|env| async move {
        let (first, second) = (
            Metered::new(Arc::new(MemoryStore::new(&env))),
            Metered::new(Arc::new(MemoryStore::new(&env))),
        );
        let (first_meter, second_meter) = (first.meter(), second.meter());
        let anchor = Anchor::new(MemoryTable::new().connect(&env), env.clone(), FAMILY);
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: HOUR,
        };
        let first: Arc<dyn Store> = Arc::new(first);
        for sequence in 0..SEGMENTS {
            first
                .put(&name(sequence), segment(FAMILY, sequence), PutMode::Create)
                .await
                .unwrap();
        }
        let before = (first_meter.usage(), second_meter.usage());
        let mirror = Mirror::new(&env, (first, Arc::new(second)), anchor, Arc::default(), options);
        mirror.compare(&NoLocalCopies).await.unwrap();
        let copied = (
            first_meter.usage().since(&before.0),
            second_meter.usage().since(&before.1),
        );
        assert_eq!((copied.0.gets, copied.1.puts), (SEGMENTS, SEGMENTS));
        let before = (first_meter.usage(), second_meter.usage());
        mirror.compare(&NoLocalCopies).await.unwrap();
        let (ours, theirs) = (
            first_meter.usage().since(&before.0),
            second_meter.usage().since(&before.1),
        );
        assert_eq!(ours.requests(), SEGMENTS / 1000);
        // One more for tombstones, and one for parity groups.
        assert_eq!(theirs.requests(), SEGMENTS / 1000 + 2);
        let book = firn_store::ProviderPrices::named("s3-us-east-1").unwrap();
        let scale = OF_A_TIB / SEGMENTS as f64;
        let dollars = |usage: &firn_store::Usage| {
            let cost = book.cost(usage, firn_store::Route::Internet);
            cost.requests.nanos() as f64 / 1e9 * scale
        };
        println!(
            "1 TiB: first copy ${:.2} of requests; a comparison {:.0} lists, ${:.4}",
            dollars(&copied.0) + dollars(&copied.1),
            (ours.requests() + theirs.requests() - 2) as f64 * scale + 2.0,
            2.0 * dollars(&ours)
        );
    });
}
