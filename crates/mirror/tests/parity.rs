//! Parity groups in virtual time: what is grouped, what can be computed, and what waits for it.

mod world;

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, mutants::planting};
use firn_mirror::{ExpectedMember, RowCheck};
use firn_store::{ListPage, MemoryStore, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use world::{FAMILY, HOUR, KEEP, World, id, name, segment_of, simulate};

/// How old a segment is when it is cold.
const AFTER: Duration = Duration::from_secs(24 * 3600);

/// Lengths of some segments: parts of a row, and some rows.
fn length(sequence: u64) -> usize {
    [300, 70_000, 20_000, 150_000, 65_000, 4_000][sequence as usize % 6] + sequence as usize
}

/// A world with segments 1 ‥ `count`, mirrored and grouped.
async fn grouped(env: &Env, count: u64) -> World {
    let world = World::new(env).await.grouped(AFTER, |second| second);
    for sequence in 1..=count {
        world.put_of(sequence, length(sequence)).await;
    }
    world.compare().await;
    env.sleep(2 * AFTER).await;
    world.mirror.group().await.unwrap();
    let status = world.mirror.parity().status();
    assert_eq!((status.members, status.waiting), (count, 0), "{status:?}");
    world
}

async fn lose(world: &World, sequence: u64) {
    world.first.delete(&name(sequence)).await.unwrap();
    world.second.delete(&name(sequence)).await.unwrap();
}

async fn read(world: &World, sequence: u64) -> Result<(), String> {
    let expected = segment_of(FAMILY, sequence, length(sequence)).concat();
    let reader = world.mirror.parity().reader();
    let found = reader
        .get(&name(sequence))
        .await
        .map_err(|error| error.to_string())?;
    match found == expected {
        true => Ok(()),
        false => Err(format!("other bytes of {sequence}")),
    }
}

async fn alter(store: &MemoryStore, sequence: u64) {
    let mut bytes = store.get(&name(sequence)).await.unwrap().to_vec();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    let key = name(sequence);
    let put = store.put(&key, vec![bytes.into()], PutMode::Overwrite);
    put.await.unwrap();
}

/// Objects of the groups, by name.
fn objects(world: &World) -> BTreeMap<ObjectKey, Bytes> {
    let mut all = world.second.contents();
    all.retain(|key, _| key.as_str().starts_with("parity/"));
    all
}

fn generation(world: &World) -> u64 {
    let objects = objects(world);
    let key = objects.keys().last().expect("a group").as_str();
    u64::from_str_radix(key.rsplit('/').nth(1).unwrap(), 16).unwrap()
}

#[test]
fn what_both_stores_lost_is_computed_from_the_rest() {
    simulate(|env| async move {
        let world = grouped(&env, 70).await;
        // In columns of their own, as the largest are.
        for lost in [3, 9, 15] {
            lose(&world, lost).await;
        }
        for sequence in 1..=70 {
            read(&world, sequence).await.unwrap();
        }
        let reader = world.mirror.parity().reader();
        let whole = segment_of(FAMILY, 9, length(9)).concat();
        for (offset, bytes) in [(0, 1), (65_535, 2), (150_000, 1 << 40), (3, 70_000)] {
            let found = reader.get_range(&name(9), offset, bytes).await.unwrap();
            let end = whole.len().min((offset + bytes) as usize);
            assert!(found == whole[offset as usize..end], "{offset}, {bytes}");
        }
        assert_eq!(
            reader.head(&name(9)).await.unwrap().size_bytes,
            whole.len() as u64
        );
        let found = world.compare().await;
        assert_eq!(found.lost_segments, 0, "the listings do not show it: {found:?}");
        world.mirror.group().await.unwrap();
        let suspects: Vec<_> = world.mirror.suspects().into_keys().collect();
        assert_eq!(suspects, [id(3), id(9), id(15)]);

        // A fourth of a row is one too many, and an error rather than other bytes.
        lose(&world, 21).await;
        for lost in [3, 9, 15, 21] {
            let error = read(&world, lost).await.unwrap_err();
            assert!(error.contains("does not exist"), "{error}");
        }
        read(&world, 1).await.unwrap();
        assert!(world.mirror.parity().status().rows_failed > 0);
    });
}

fn wrong_helpers() -> Result<(), String> {
    simulate(|env| async move {
        let world = grouped(&env, 40).await;
        lose(&world, 3).await;
        // One is right in the first store, the other in none.
        alter(&world.second, 9).await;
        for store in [&world.first, &world.second] {
            alter(store, 15).await;
        }
        for sequence in [3, 9, 15, 21] {
            read(&world, sequence).await?;
        }
        Ok(())
    })
}

#[test]
fn a_wrong_helper_is_told_by_its_hash() {
    wrong_helpers().unwrap();
    planting(Some("mirror.parity_helper_trusted"), wrong_helpers).unwrap_err();
}

fn deleted_members() -> Result<(), String> {
    simulate(|env| async move {
        let world = grouped(&env, 40).await;
        let dead = [4, 10, 16, 22];
        for sequence in dead {
            world.retire(sequence, false).await;
            world.first.delete(&name(sequence)).await.unwrap();
        }
        assert_eq!(world.compare().await.marked, 4);
        env.sleep(KEEP).await;
        let found = world.compare().await;
        let status = world.mirror.parity().status();
        // As many losses of one row as it has parities, or one more.
        lose(&world, 28).await;
        read(&world, 28).await?;
        assert_eq!((found.deleted, found.held_by_parity, status.held), (0, 4, 4));

        let before = generation(&world);
        world.mirror.group().await.unwrap();
        assert_eq!(generation(&world), before + 1);
        let found = world.compare().await;
        assert_eq!((found.deleted, found.held_by_parity), (4, 0), "{found:?}");
        for sequence in dead {
            assert!(!world.has(&name(sequence)).await);
        }
        lose(&world, 34).await;
        lose(&world, 36).await;
        for sequence in (1..=40).filter(|sequence| !dead.contains(sequence)) {
            read(&world, sequence).await?;
        }
        Ok(())
    })
}

#[test]
fn a_members_deletion_waits_until_its_group_has_a_generation_without_it() {
    deleted_members().unwrap();
    planting(
        Some("mirror.member_deleted_before_its_subtraction"),
        deleted_members,
    )
    .unwrap_err();
}

#[test]
fn who_comes_later_joins_and_who_is_not_cold_does_not() {
    simulate(|env| async move {
        let world = grouped(&env, 20).await;
        let before = objects(&world);
        for sequence in 21..=50 {
            world.put_of(sequence, length(sequence)).await;
        }
        world.compare().await;
        world.mirror.group().await.unwrap();
        assert_eq!(objects(&world), before, "they are not cold");
        env.sleep(AFTER).await;
        world.mirror.group().await.unwrap();
        assert_eq!(
            objects(&world),
            before,
            "they are few: parities are not written for each"
        );
        assert_eq!(world.mirror.parity().status().waiting, 30);
        env.sleep(AFTER).await;
        world.mirror.group().await.unwrap();
        let status = world.mirror.parity().status();
        assert_eq!(
            (status.groups, status.members, status.waiting),
            (1, 50, 0),
            "{status:?}"
        );
        assert_eq!(objects(&world).len(), 4, "the generation before is gone");
        for lost in [3, 27, 33] {
            lose(&world, lost).await;
        }
        for sequence in 1..=50 {
            read(&world, sequence).await.unwrap();
        }
        // As another process finds it.
        let world = world.grouped(AFTER, |second| second);
        read(&world, 27).await.unwrap();
    });
}

#[test]
fn what_was_lost_in_both_and_retired_since_leaves_and_the_parities_are_right() {
    simulate(|env| async move {
        let world = grouped(&env, 10).await;
        lose(&world, 3).await;
        world.compare().await;
        world.mirror.group().await.unwrap();
        assert_eq!(world.mirror.parity().status().absent, 1);
        // A repair wrote it anew under another name.
        world.retire(3, false).await;
        world.mirror.group().await.unwrap();
        let status = world.mirror.parity().status();
        assert_eq!(
            (status.members, status.absent, status.broken),
            (9, 0, 0),
            "{status:?}"
        );
        assert!(world.mirror.suspects().is_empty());
        for lost in [9, 1, 4] {
            lose(&world, lost).await;
        }
        for sequence in (1..=10).filter(|sequence| *sequence != 3) {
            read(&world, sequence).await.unwrap();
        }
        // The last ones take the group along.
        for sequence in (1..=10).filter(|sequence| *sequence != 3) {
            world.retire(sequence, false).await;
            world.first.delete(&name(sequence)).await.unwrap();
        }
        world.compare().await;
        env.sleep(KEEP).await;
        world.mirror.group().await.unwrap();
        assert!(objects(&world).is_empty());
        world.compare().await;
        assert!(
            world
                .second
                .contents()
                .keys()
                .all(|key| !key.as_str().contains("/log/"))
        );
    });
}

#[test]
fn a_lost_or_altered_parity_is_made_anew_and_a_generation_that_never_ended_goes() {
    simulate(|env| async move {
        let world = grouped(&env, 40).await;
        let all = objects(&world);
        let (lost, parity) = all.iter().nth(1).expect("group, parity-0, …");
        world.second.delete(lost).await.unwrap();
        let altered = lost.as_str().replace("parity-0", "parity-1");
        let put = vec![vec![7; parity.len()].into()];
        world
            .second
            .put(&ObjectKey::new(&altered), put, PutMode::Overwrite)
            .await
            .unwrap();
        // Somebody began the next generation and died.
        let begun = lost.as_str().replace("/0000000000000001/", "/0000000000000002/");
        let begun = ObjectKey::new(&begun);
        let put = vec![Bytes::from_static(b"begun")];
        world.second.put(&begun, put, PutMode::Create).await.unwrap();
        world.mirror.group().await.unwrap();
        assert_eq!(generation(&world), 3);
        for lost in [3, 9, 15] {
            lose(&world, lost).await;
        }
        for sequence in 1..=40 {
            read(&world, sequence).await.unwrap();
        }
        world.mirror.group().await.unwrap();
        assert_eq!(objects(&world).len(), 4, "{:?}", objects(&world).keys());
    });
}

#[test]
fn a_group_object_that_is_damaged_is_told_and_reads_go_on() {
    simulate(|env| async move {
        let world = grouped(&env, 10).await;
        let all = objects(&world);
        let (key, _) = all.iter().next().expect("the group");
        let put = vec![Bytes::from_static(b"FIRNPGRP and then nothing")];
        world.second.put(key, put, PutMode::Overwrite).await.unwrap();
        let world = world.grouped(AFTER, |second| second);
        for sequence in 1..=10 {
            read(&world, sequence).await.unwrap();
        }
        world.mirror.group().await.unwrap();
        let status = world.mirror.parity().status();
        assert_eq!(
            (status.groups, status.members, status.broken),
            (1, 10, 1),
            "{status:?}"
        );
        lose(&world, 3).await;
        read(&world, 3).await.unwrap();
    });
}

/// Challenges every row of the parities of a world in which one was altered: the names of those that are wrong, and how many were right.
async fn challenged(world: &World) -> (Vec<String>, u64) {
    let parity = world.mirror.parity();
    parity.refresh().await.unwrap();
    let (mut wrong, mut right) = (Vec::new(), 0);
    for (group, _) in parity.parity_bytes() {
        for position in (0..64).map(|step| u64::MAX / 64 * step) {
            match parity.check_parity(group, position).await.unwrap() {
                RowCheck::Right => right += 1,
                RowCheck::Wrong { key, .. } => wrong.push(key.as_str().to_owned()),
                RowCheck::NoGroup => panic!("the group is there"),
            }
        }
    }
    (wrong, right)
}

fn an_altered_parity_is_challenged(mutant: Option<&'static str>) -> Vec<String> {
    planting(mutant, || {
        simulate(|env| async move {
            let world = grouped(&env, 40).await;
            let (wrong, right) = challenged(&world).await;
            assert!(wrong.is_empty() && right > 0, "{wrong:?}");
            let all = objects(&world);
            let (key, parity) = all.iter().nth(1).expect("group, parity-0, …");
            let altered = vec![vec![7; parity.len()].into()];
            world.second.put(key, altered, PutMode::Overwrite).await.unwrap();
            let (wrong, _) = challenged(&world).await;
            assert!(wrong.iter().all(|wrong| wrong == key.as_str()), "{wrong:?}");
            wrong
        })
    })
}

#[test]
fn a_challenge_finds_an_altered_parity_by_its_rows() {
    assert!(an_altered_parity_is_challenged(None).len() > 10);
    let believed = an_altered_parity_is_challenged(Some("mirror.parity_row_believed"));
    assert!(believed.is_empty(), "the planted bug has no effect");
}

#[test]
fn a_member_without_a_copy_is_challenged_by_its_row_and_by_what_its_group_says_of_it() {
    simulate(|env| async move {
        let world = grouped(&env, 40).await;
        let whole = segment_of(FAMILY, 3, length(3)).concat();
        let member = |byte: u32| ExpectedMember {
            segment: id(3),
            bytes: Some(whole.len() as u32),
            hash: Some(firn_parity::row_hash(&whole)),
            byte,
        };
        let parity = world.mirror.parity();
        world.second.delete(&name(3)).await.unwrap();
        for byte in [0, 70_000, u32::MAX] {
            for draw in 0..3 {
                let found = parity.check_member(&member(byte), draw).await.unwrap();
                assert_eq!(found, RowCheck::Right);
            }
        }
        // The first has other bytes: of this row nothing is right, until it is computed.
        alter(&world.first, 3).await;
        let found = parity.check_member(&member(0), 0).await.unwrap();
        assert!(matches!(found, RowCheck::Wrong { .. }), "{found:?}");
        // A group that says another hash or length protects something else.
        for other in [
            ExpectedMember {
                hash: Some([7; 32]),
                ..member(0)
            },
            ExpectedMember {
                bytes: Some(1),
                ..member(0)
            },
        ] {
            let found = parity.check_member(&other, 0).await.unwrap();
            assert!(matches!(found, RowCheck::Wrong { .. }), "{found:?}");
        }
        let stranger = ExpectedMember {
            segment: id(999),
            ..member(0)
        };
        assert_eq!(
            parity.check_member(&stranger, 0).await.unwrap(),
            RowCheck::NoGroup
        );
    });
}

/// A store whose credentials may not delete.
struct Undeletable(Arc<dyn Store>);

#[async_trait]
impl Store for Undeletable {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.0.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.0.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.0.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.0.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(StoreError::Denied {
            operation: "delete",
            key: key.clone(),
            detail: "by policy".into(),
        })
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.0.list(prefix, after).await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.0.versions(key).await
    }
}

#[test]
fn who_may_not_delete_leaves_one_generation_behind_and_no_more() {
    simulate(|env| async move {
        let world = World::new(&env)
            .await
            .grouped(AFTER, |second| Arc::new(Undeletable(second)));
        for round in 0..4 {
            for sequence in 1..=5 {
                world.put_of(10 * round + sequence, length(sequence)).await;
            }
            world.compare().await;
            env.sleep(2 * AFTER).await;
            world.mirror.group().await.unwrap();
        }
        let status = world.mirror.parity().status();
        assert_eq!((status.members, status.waiting), (20, 0), "{status:?}");
        assert_eq!(status.generations_written, 4, "{status:?}");
        let of_group = |key: &ObjectKey| key.as_str().rsplitn(3, '/').nth(2).map(str::to_owned);
        let mut generations: BTreeMap<_, u64> = BTreeMap::new();
        for key in objects(&world)
            .keys()
            .filter(|key| key.as_str().ends_with("/group"))
        {
            *generations.entry(of_group(key)).or_default() += 1;
        }
        assert!(generations.values().all(|count| *count <= 2), "{generations:?}");
        assert!(status.undeleted > 0, "{status:?}");
    });
}

/// `cargo test -p firn-mirror --test parity -- costs --nocapture` prints what decision 0208 quotes.
#[test]
fn costs_are_a_get_a_segment_and_a_read_of_what_is_lost_asks_each_column() {
    simulate(|env| async move {
        let second = Arc::new(MemoryStore::new(&env));
        let metered = firn_store::Metered::new(second);
        let meter = metered.meter();
        let metered: Arc<dyn Store> = Arc::new(metered);
        let of_second = metered.clone();
        let mut world = World::new(&env).await;
        world = world.grouped(AFTER, |_| of_second);
        for sequence in 1..=128 {
            world.put_of(sequence, 200_000).await;
        }
        // At each start, whatever is there.
        world.mirror.check().await.unwrap();
        world.compare().await;
        env.sleep(2 * AFTER).await;
        let before = meter.usage();
        world.mirror.group().await.unwrap();
        let made = meter.usage().since(&before);
        let status = world.mirror.parity().status();
        assert_eq!(made.puts, 4);
        assert_eq!(made.gets, 128);
        let key = name(77);
        world.first.delete(&key).await.unwrap();
        metered.delete(&key).await.unwrap();
        let reader = world.mirror.parity().reader();
        reader.get_range(&key, 0, 1).await.unwrap();
        let before = meter.usage();
        reader.get_range(&key, 100_000, 1).await.unwrap();
        let read = meter.usage().since(&before);
        println!(
            "a group of 128 segments: {} PUTs, {} GETs, {:.2} % of parities; a row of a lost segment: {} GETs",
            made.puts,
            made.gets,
            status.parity_bytes as f64 / status.member_bytes as f64 * 100.0,
            read.ranged_gets
        );
        // What is lost itself, its row in 31 other columns, and three parities; and one more where two members meet in a row.
        assert!((35..=35 + 32).contains(&read.ranged_gets), "{read:?}");
        env.sleep(HOUR).await;
    });
}
