//! Whoever keeps the groups stops between two calls of the table: the next one goes on, nothing is lost, and nothing is held for ever.

mod world;

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{FaultAction, mutants::planting};
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use futures::future::{Either, select};
use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex},
};
use world::{
    HOUR, KEEP, World,
    held::{AFTER, DROP, KEEP_COPIES, check, clean, cold, copies, dropped, segments_of},
    id, simulate,
};

/// A pass by a machine that stops where `point` is reached for the `hit`th time; whether it was.
async fn stopped_at(world: &World, point: &str, hit: u64) -> bool {
    let faults = world.env.faults();
    faults.arm(point, hit, FaultAction::Crash(Box::new(|| {})));
    let before = faults.acted().get(point).copied();
    let is_stopped = {
        let (pass, hour) = (pin!(world.mirror.group()), pin!(world.env.sleep(HOUR)));
        matches!(select(pass, hour).await, Either::Right(_))
    };
    faults.disarm();
    assert_eq!(
        is_stopped,
        faults.acted().get(point).copied() != before,
        "{point}"
    );
    is_stopped
}

/// How the family stands once machines that do not stop have made so many passes.
async fn settled(world: World, members: u64) -> Result<(), String> {
    let world = world.kept(DROP, |second| second);
    for _ in 0..2 {
        world.env.sleep(2 * AFTER + KEEP).await;
        world.compare().await;
        world.mirror.group().await.unwrap();
        clean(&world).await;
        check(&world).await?;
    }
    let status = world.mirror.parity().status();
    let hold = status.hold.expect("in force");
    match (status.members, hold.dropped, hold.held) == (members, members, 0) {
        true => Ok(()),
        false => Err(format!("not {members}: {status:?}")),
    }
}

/// Whether a copy was about to be dropped for the `hit`th time.
fn before_a_drop(hit: u64) -> Result<bool, String> {
    simulate(move |env| async move {
        let world = cold(&env, 12).await;
        let is_stopped = stopped_at(&world, "mirror.before_drop", hit).await;
        check(&world).await?;
        // One whose copy may be gone, and one whose copy may be there.
        for sequence in [3, 12] {
            world.retire(sequence, true).await;
        }
        let report = clean(&world).await;
        assert_eq!((report.deleted_segments, report.hold_segments), (0, 2));
        check(&world).await?;
        settled(world, 10).await?;
        Ok(is_stopped)
    })
}

#[test]
fn who_stops_before_a_copy_goes_leaves_it_to_the_next_pass() {
    let mut hits = 1;
    while before_a_drop(hits).unwrap() {
        hits += 1;
    }
    println!("stopped before each of {} copies", hits - 1);
    assert_eq!(hits, 13, "one hit for each copy, and one that is not reached");
    let outcome = std::panic::catch_unwind(|| {
        planting(Some("mirror.only_what_joined_is_dropped"), || before_a_drop(5))
    });
    assert!(!matches!(outcome, Ok(Ok(_))), "must be noticed");
}

fn before_a_release() -> Result<(), String> {
    simulate(|env| async move {
        let world = dropped(&env, 12).await;
        for sequence in [3, 12] {
            world.retire(sequence, false).await;
        }
        env.sleep(KEEP).await;
        world.compare().await;
        // Their group is written without them, and the table does not know yet.
        assert!(stopped_at(&world, "mirror.before_release", 1).await);
        assert_eq!(world.mirror.parity().status().members, 10);
        check(&world).await?;
        let report = clean(&world).await;
        assert_eq!((report.deleted_segments, report.hold_segments), (0, 2));
        check(&world).await?;
        settled(world, 10).await
    })
}

#[test]
fn who_stops_before_a_release_leaves_it_to_the_next_pass() {
    before_a_release().unwrap();
    let outcome =
        std::panic::catch_unwind(|| planting(Some("mirror.only_what_left_is_released"), before_a_release));
    assert!(!matches!(outcome, Ok(Ok(()))), "must be noticed");
}

fn before_the_end() -> Result<(), String> {
    simulate(|env| async move {
        let world = dropped(&env, 12).await;
        let world = world.kept(KEEP_COPIES, |second| second);
        world.mirror.group().await.unwrap();
        world.compare().await;
        assert!(stopped_at(&world, "mirror.before_hold_ends", 1).await);
        assert!(world.anchor.hold().await.unwrap().is_some(), "it is in force yet");
        check(&world).await?;
        // What is retired now is held, and by nobody for ever.
        world.retire(3, false).await;
        let report = clean(&world).await;
        assert_eq!((report.deleted_segments, report.hold_segments), (0, 1));
        let world = world.kept(KEEP_COPIES, |second| second);
        world.compare().await;
        world.mirror.group().await.unwrap();
        if world.anchor.hold().await.unwrap().is_some() {
            return Err("the hold does not end".into());
        }
        assert!(!world.anchor.cleaner_round().await.unwrap().0.is_held);
        clean(&world).await;
        check(&world).await?;
        let left: BTreeSet<_> = segments_of(&world.first);
        match left.contains(&id(3)) || copies(&world).len() < 11 {
            true => Err(format!("{left:?}, {:?}", copies(&world))),
            false => Ok(()),
        }
    })
}

#[test]
fn who_stops_before_a_hold_ends_leaves_its_end_to_the_next_pass() {
    before_the_end().unwrap();
}

/// A store in which a segment is retired while a pass looks at it.
struct Retiring {
    store: Arc<dyn Store>,
    world: Mutex<Option<World>>,
}

#[async_trait]
impl Store for Retiring {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
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
        let world = self.world.lock().expect("no panic under this lock").take();
        if let Some(world) = world {
            world.retire(5, false).await;
        }
        self.store.list(prefix, after).await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store.versions(key).await
    }
}

/// Whether a segment that was retired while a pass was about to end the hold goes in the end.
fn retired_before_the_end() -> bool {
    simulate(|env| async move {
        let world = dropped(&env, 12).await;
        let world = world.kept(KEEP_COPIES, |second| second);
        world.mirror.group().await.unwrap();
        world.compare().await;
        let other = world.another();
        let world = world.kept(KEEP_COPIES, |store| {
            let world = Mutex::new(Some(other));
            Arc::new(Retiring { store, world })
        });
        world.mirror.group().await.unwrap();
        let world = world.kept(KEEP_COPIES, |second| second);
        world.compare().await;
        world.mirror.group().await.unwrap();
        clean(&world).await;
        assert_eq!(world.anchor.hold().await.unwrap(), None);
        check(&world).await.unwrap();
        !segments_of(&world.first).contains(&id(5))
    })
}

#[test]
fn what_is_retired_while_a_pass_ends_the_hold_is_not_held_for_ever() {
    assert!(retired_before_the_end());
    assert!(!planting(
        Some("mirror.hold_ends_with_any_round"),
        retired_before_the_end
    ));
}
