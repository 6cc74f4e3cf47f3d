//! Parity groups in place of copies, in virtual time: what may be dropped, what is held in the first store, and how copies come back. The cleaner is the
//! real one, without a volume: what it deletes is what was retired.

mod world;

use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::{Anchor, HoldChange};
use firn_env::mutants::planting;
use firn_mirror::NoLocalCopies;
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use world::{
    FAMILY, KEEP,
    held::{
        AFTER, AS_THE_TABLE_SAYS, DROP, KEEP_COPIES, alter, check, clean, cold, copies, dropped, length, put,
        read, segments_of,
    },
    id, name, segment_of, simulate,
};

#[test]
fn copies_go_once_their_group_is_there_and_a_comparison_does_not_miss_them() {
    simulate(|env| async move {
        let world = dropped(&env, 40).await;
        check(&world).await.unwrap();
        let found = world.compare().await;
        assert_eq!(
            (
                found.copied,
                found.without_copy,
                found.lost_segments,
                found.damaged
            ),
            (0, 40, 0, 0),
            "{found:?}"
        );
        for sequence in 1..=40 {
            read(&world, sequence).await.unwrap();
        }
        // What comes later is copied as ever.
        world.put_of(41, 300).await;
        assert_eq!(world.compare().await.copied, 1);
        let status = world.mirror.parity().status();
        let share = status.parity_bytes as f64 / status.member_bytes as f64;
        println!(
            "the second store keeps {:.1} % of {} members' bytes",
            share * 100.0,
            status.members
        );
        // As another machine finds it, which was not told what is wanted.
        let world = world.kept(AS_THE_TABLE_SAYS, |second| second);
        assert_eq!(world.compare().await.without_copy, 40);
        world.mirror.group().await.unwrap();
        let hold = world.mirror.parity().status().hold.expect("in force");
        assert_eq!((hold.dropped, hold.held), (40, 0), "{hold:?}");
    });
}

fn all_patterns() -> u64 {
    simulate(|env| async move {
        let count = 8;
        let world = dropped(&env, count).await;
        let mut patterns = 0_u64;
        for lost in 0_u32..1 << count {
            if lost.count_ones() > 3 {
                continue;
            }
            patterns += 1;
            let is_lost = |sequence: &u64| lost & (1 << (sequence - 1)) != 0;
            let whole: Vec<(u64, Bytes)> = {
                let mut whole = Vec::new();
                for sequence in (1..=count).filter(is_lost) {
                    whole.push((sequence, world.first.get(&name(sequence)).await.unwrap()));
                    match (sequence + u64::from(lost)).is_multiple_of(2) {
                        true => world.first.delete(&name(sequence)).await.unwrap(),
                        false => alter(&world.first, sequence).await,
                    }
                }
                whole
            };
            for sequence in 1..=count {
                read(&world, sequence).await.unwrap_or_else(|error| {
                    panic!("pattern {lost:08b}: {error}");
                });
            }
            for (sequence, bytes) in whole {
                put(&world.first, sequence, bytes).await;
            }
        }
        // A fourth of a row is one too many, and an error rather than other bytes.
        for sequence in [3, 1, 4, 7] {
            world.first.delete(&name(sequence)).await.unwrap();
        }
        read(&world, 3).await.unwrap_err();
        patterns
    })
}

#[test]
fn all_losses_of_up_to_three_of_a_small_group_are_made_up_for() {
    let patterns = all_patterns();
    println!("{patterns} patterns of losses of a group of 8 without copies");
    assert_eq!(patterns, 1 + 8 + 28 + 56);
    let bug = "mirror.parity_helper_trusted";
    let outcome = std::panic::catch_unwind(|| planting(Some(bug), all_patterns));
    assert!(outcome.is_err(), "{bug} must be noticed");
}

fn retired_members() -> Result<(), String> {
    simulate(|env| async move {
        let world = dropped(&env, 40).await;
        let dead = [4, 10, 16, 22];
        for sequence in dead {
            world.retire(sequence, false).await;
        }
        let report = clean(&world).await;
        check(&world).await?;
        assert_eq!((report.deleted_segments, report.hold_segments), (0, 4));
        world.compare().await;
        world.mirror.group().await.unwrap();
        let hold = world.mirror.parity().status().hold.expect("in force");
        assert_eq!(hold.held, 4, "they are kept as long as ever: {hold:?}");
        assert!(hold.held_bytes > 0 && hold.held_since_ms.is_some(), "{hold:?}");
        clean(&world).await;
        check(&world).await?;
        // As many losses of a row as it has parities, beside them.
        for lost in [28, 34, 40] {
            world.first.delete(&name(lost)).await.unwrap();
        }
        for sequence in 1..=40 {
            read(&world, sequence).await?;
        }
        for lost in [28, 34, 40] {
            let whole = segment_of(FAMILY, lost, length(lost)).concat();
            put(&world.first, lost, whole.into()).await;
        }
        env.sleep(KEEP).await;
        world.compare().await;
        world.mirror.group().await.unwrap();
        let status = world.mirror.parity().status();
        assert_eq!(status.members, 36);
        let report = clean(&world).await;
        assert_eq!((report.deleted_segments, report.hold_segments), (4, 0));
        check(&world).await?;
        for lost in [28, 34, 40] {
            world.first.delete(&name(lost)).await.unwrap();
        }
        for sequence in (1..=40).filter(|sequence| !dead.contains(sequence)) {
            read(&world, sequence).await?;
        }
        Ok(())
    })
}

#[test]
fn what_is_retired_is_held_until_its_group_has_a_generation_without_it() {
    retired_members().unwrap();
    for bug in ["cleaner.hold_ignored", "mirror.member_released"] {
        let outcome = std::panic::catch_unwind(|| planting(Some(bug), retired_members));
        assert!(!matches!(outcome, Ok(Ok(()))), "{bug} must be noticed");
    }
}

fn drop_in_order() -> Result<(), String> {
    simulate(|env| async move {
        let world = cold(&env, 40).await;
        // What the first store has other bytes of keeps its copy.
        alter(&world.first, 9).await;
        world.mirror.group().await.unwrap();
        check(&world).await?;
        let suspects: Vec<_> = world.mirror.suspects().into_keys().collect();
        assert_eq!(suspects, [id(9)]);
        let hold = world.mirror.parity().status().hold.expect("in force");
        assert_eq!((hold.dropped, hold.undropped), (39, 1), "{hold:?}");
        Ok(())
    })
}

#[test]
fn a_copy_goes_after_its_generation_and_only_if_the_first_store_has_its_bytes() {
    drop_in_order().unwrap();
    for bug in ["mirror.dropped_before_the_generation", "mirror.dropped_unread"] {
        let outcome = std::panic::catch_unwind(|| planting(Some(bug), drop_in_order));
        assert!(!matches!(outcome, Ok(Ok(()))), "{bug} must be noticed");
    }
}

#[test]
fn copies_come_back_and_then_nothing_is_held_any_more() {
    simulate(|env| async move {
        let world = dropped(&env, 40).await;
        for sequence in [4, 10] {
            world.retire(sequence, false).await;
        }
        let world = world.kept(KEEP_COPIES, |second| second);
        world.compare().await;
        world.mirror.group().await.unwrap();
        assert!(
            world.anchor.hold().await.unwrap().is_some(),
            "copies are not back yet"
        );
        check(&world).await.unwrap();
        assert_eq!(world.compare().await.copied, 40);
        world.mirror.group().await.unwrap();
        assert_eq!(world.anchor.hold().await.unwrap(), None);
        assert!(!world.anchor.cleaner_round().await.unwrap().0.is_held);
        assert_eq!(world.mirror.parity().status().hold, None);
        let report = clean(&world).await;
        assert_eq!((report.hold_segments, report.deleted_segments), (0, 2));
        check(&world).await.unwrap();
        assert_eq!(copies(&world).len(), 40);
        // And once more the other way.
        let world = world.kept(DROP, |second| second);
        world.compare().await;
        world.mirror.group().await.unwrap();
        check(&world).await.unwrap();
        assert_eq!(copies(&world).len(), 2, "of those that are retired");
    });
}

/// Members that were lost, and that a repair found nobody to need; how many are left after the next mirror.
fn unneeded() -> u64 {
    simulate(|env| async move {
        let world = dropped(&env, 20).await;
        world.first.delete(&name(3)).await.unwrap();
        world.compare().await;
        world.mirror.group().await.unwrap();
        assert_eq!(world.mirror.suspects().into_keys().collect::<Vec<_>>(), [id(3)]);
        world.mirror.mark_unneeded(id(3)).await.unwrap();
        // A copy behind it in the listing.
        world.put_of(21, 300).await;
        world.compare().await;
        world.compare().await;
        world.mirror.group().await.unwrap();
        world.mirror.parity().status().members
    })
}

#[test]
fn a_lost_member_that_nobody_needs_leaves_its_group() {
    assert_eq!(unneeded(), 19);
    assert_eq!(
        planting(Some("mirror.tombstone_of_a_member_removed"), unneeded),
        20
    );
}

/// A store that counts another pass while one puts its group.
struct Overtaking {
    store: Arc<dyn Store>,
    anchor: Anchor,
}

#[async_trait]
impl Store for Overtaking {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        if key.as_str().ends_with("/group") {
            let (_, seen) = self.anchor.hold().await.unwrap().expect("in force");
            let counted = self.anchor.change_hold(Some(seen), None, HoldChange::Drop);
            counted.await.unwrap().expect("counted");
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

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store.versions(key).await
    }
}

/// Copies that a pass dropped after another was counted, and what it released.
fn overtaken() -> (u64, u64) {
    simulate(|env| async move {
        let world = cold(&env, 20).await;
        world.mirror.group().await.unwrap();
        for sequence in 21..=40 {
            world.put_of(sequence, length(sequence)).await;
        }
        world.compare().await;
        env.sleep(2 * AFTER).await;
        world.retire(30, false).await;
        let anchor = world.anchor.clone();
        let world = world.kept(DROP, |store| Arc::new(Overtaking { store, anchor }));
        world.mirror.group().await.unwrap();
        let report = clean(&world).await;
        assert_eq!(report.deleted_segments + report.hold_segments, 1);
        let hold = world.mirror.parity().status().hold.expect("in force");
        (hold.dropped - 20, report.deleted_segments)
    })
}

#[test]
fn of_two_passes_at_a_time_the_one_that_was_counted_first_drops_and_releases_nothing() {
    assert_eq!(overtaken(), (0, 0));
    let (dropped, _) = planting(Some("mirror.dropped_by_an_older_pass"), overtaken);
    assert!(dropped > 0);
}

/// A store that fails after so many changes, as a machine does that stops.
struct Failing {
    store: Arc<dyn Store>,
    left: Arc<AtomicU64>,
}

impl Failing {
    fn change(&self) -> Result<(), StoreError> {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Unavailable {
                operation: "change",
                key: ObjectKey::new("any"),
                detail: "the machine stopped".into(),
            }),
        }
    }
}

#[async_trait]
impl Store for Failing {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.change()?;
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
        self.change()?;
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.store.list(prefix, after).await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.store.versions(key).await
    }
}

/// Stops after so many changes of the second store; whether nothing was left to change.
fn stopped_after(steps: u64) -> bool {
    simulate(move |env| async move {
        let world = cold(&env, 12).await;
        let left = Arc::new(AtomicU64::new(steps));
        let world = world.kept(DROP, |store| Arc::new(Failing { store, left }));
        let mut is_over = world.mirror.group().await.is_ok();
        check(&world).await.unwrap();
        // A member is retired, and a cleaner runs, wherever it stopped.
        world.retire(3, true).await;
        clean(&world).await;
        check(&world).await.unwrap();
        env.sleep(KEEP).await;
        is_over &= world.mirror.compare(&NoLocalCopies).await.is_ok();
        is_over &= world.mirror.group().await.is_ok();
        clean(&world).await;
        check(&world).await.unwrap();
        let world = world.kept(DROP, |second| second);
        for _ in 0..2 {
            env.sleep(2 * AFTER + KEEP).await;
            world.compare().await;
            world.mirror.group().await.unwrap();
            clean(&world).await;
            check(&world).await.unwrap();
        }
        let status = world.mirror.parity().status();
        let hold = status.hold.expect("in force");
        assert_eq!(
            (status.members, hold.dropped, hold.held),
            (11, 11, 0),
            "{steps}: {status:?}"
        );
        assert!(!segments_of(&world.first).contains(&id(3)), "{steps}");
        is_over
    })
}

#[test]
fn who_stops_after_any_change_leaves_nothing_that_is_in_one_store_alone_and_in_no_group() {
    let mut steps = 0;
    while !stopped_after(steps) {
        steps += 1;
    }
    println!("stopped after each of {steps} changes of the second store");
    assert!(steps > 20, "{steps}");
    let bug = "mirror.dropped_before_the_generation";
    let all = || (0..steps).all(|at| stopped_after(at) || at < steps);
    let outcome = std::panic::catch_unwind(|| planting(Some(bug), all));
    assert!(outcome.is_err(), "{bug} must be noticed");
}
