//! A family with a hold: parity groups in place of copies, and what must be true of them at every moment.

use super::{FAMILY, World, name, segment_of};
use bytes::Bytes;
use firn_cleaner::{Cleaner, Limits, Report};
use firn_env::Env;
use firn_format::SegmentId;
use firn_mirror::{Copies, Grouping};
use firn_parity::{GroupHead, GroupName, Part, row_hash};
use firn_store::{MemoryStore, ObjectKey, PutMode, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How old a segment is when it is cold.
pub const AFTER: Duration = Duration::from_secs(24 * 3600);

pub const DROP: Grouping = Grouping {
    after: AFTER,
    copies: Some(Copies::Drop),
};
pub const KEEP_COPIES: Grouping = Grouping {
    after: AFTER,
    copies: Some(Copies::Keep),
};
pub const AS_THE_TABLE_SAYS: Grouping = Grouping {
    after: AFTER,
    copies: None,
};

pub fn length(sequence: u64) -> usize {
    [300, 70_000, 20_000, 150_000, 65_000, 4_000][sequence as usize % 6] + sequence as usize
}

/// One run of the cleaner, which deletes and retires nothing of its own.
pub async fn clean(world: &World) -> Report {
    let limits = Limits {
        grace: Duration::ZERO,
        judged_segments: 0,
        ..Limits::default()
    };
    let mut cleaner = Cleaner::new(&world.env, world.first.clone(), &world.anchor, limits);
    cleaner.run().await.unwrap()
}

/// A world with segments 1 ‥ `count`, mirrored and cold.
pub async fn cold(env: &Env, count: u64) -> World {
    let world = World::new(env).await.kept(DROP, |second| second);
    for sequence in 1..=count {
        world.put_of(sequence, length(sequence)).await;
    }
    world.compare().await;
    env.sleep(2 * AFTER).await;
    world
}

/// The same, grouped, and the copies dropped.
pub async fn dropped(env: &Env, count: u64) -> World {
    let world = cold(env, count).await;
    world.mirror.group().await.unwrap();
    let status = world.mirror.parity().status();
    let hold = status.hold.expect("in force");
    assert_eq!((status.members, hold.dropped), (count, count), "{status:?}");
    assert_eq!(copies(&world), BTreeSet::new());
    world
}

/// Segments that the second store has.
pub fn copies(world: &World) -> BTreeSet<SegmentId> {
    segments_of(&world.second)
}

pub fn segments_of(store: &MemoryStore) -> BTreeSet<SegmentId> {
    let contents = store.contents();
    let segments = contents
        .keys()
        .filter_map(|key| SegmentId::parse_key(key.as_str()));
    segments.map(|(_, segment)| segment).collect()
}

/// The newest generation of each group whose object is there, as a stranger reads it.
pub fn groups(world: &World) -> Vec<GroupHead> {
    let mut newest = BTreeMap::new();
    for (key, bytes) in world.second.contents() {
        if let Some(name) = GroupName::parse(key.as_str())
            && name.part == Part::Group
        {
            newest.insert(name.group, GroupHead::decode(&bytes).unwrap());
        }
    }
    newest.into_values().collect()
}

/// What must hold at every moment: each member of a group is in one store or other with its very bytes, and what the second store does not have of
/// segments that nobody retired is a member.
pub async fn check(world: &World) -> Result<(), String> {
    let mut members = BTreeSet::new();
    for head in groups(world) {
        for member in head.members {
            members.insert(member.segment);
            let key = ObjectKey::new(&member.segment.key(&FAMILY));
            let (ours, copy) = (world.first.get(&key).await, world.second.get(&key).await);
            let is_right = |found: &Result<Bytes, StoreError>| {
                found.as_ref().is_ok_and(|found| row_hash(found) == member.hash)
            };
            if !is_right(&ours) && !is_right(&copy) {
                return Err(format!(
                    "member {} is in neither store: {:?}, {:?}",
                    member.segment,
                    ours.map(|found| found.len()),
                    copy.map(|found| found.len())
                ));
            }
        }
    }
    let copies = copies(world);
    for segment in segments_of(&world.first) {
        let is_retired = world.anchor.retired(segment).await.unwrap().is_some();
        if !is_retired && !copies.contains(&segment) && !members.contains(&segment) {
            return Err(format!(
                "segment {segment} is in the first store alone, and in no group"
            ));
        }
    }
    Ok(())
}

pub async fn read(world: &World, sequence: u64) -> Result<(), String> {
    let expected = segment_of(FAMILY, sequence, length(sequence)).concat();
    let reader = world.mirror.parity().reader();
    let found = reader.get(&name(sequence)).await;
    match found.map_err(|error| error.to_string())? == expected {
        true => Ok(()),
        false => Err(format!("other bytes of {sequence}")),
    }
}

pub async fn alter(store: &MemoryStore, sequence: u64) {
    let mut bytes = store.get(&name(sequence)).await.unwrap().to_vec();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    put(store, sequence, bytes.into()).await;
}

pub async fn put(store: &MemoryStore, sequence: u64, bytes: Bytes) {
    let key = name(sequence);
    let put = store.put(&key, vec![bytes], PutMode::Overwrite);
    put.await.unwrap();
}
