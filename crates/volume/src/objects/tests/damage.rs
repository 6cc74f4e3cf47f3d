//! Damage and faults: in the cache (a miss), in the store (asked twice, then named), on the way (try again).

use super::{Bench, CACHE, content, key, place, segment_id};
use crate::objects::{FetchPolicy, ObjectsConfig, ReadError};
use firn_env::mutants::planting;
use firn_format::Pointer;
use firn_store::{FaultConfig, Faults, Faulty, Outage, PutMode, Store};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

fn cache_file(bench: &Bench, sequence: u64) -> PathBuf {
    let id = segment_id(sequence);
    bench
        .directory
        .path()
        .join(CACHE)
        .join(format!("{:016x}-{:016x}", id.writer.0, id.sequence))
}

/// Opened objects are dropped, so that every read goes to the disk cache.
fn no_memory() -> ObjectsConfig {
    ObjectsConfig {
        memory_cache_bytes: 0,
        fetch: FetchPolicy::Exact,
        ..ObjectsConfig::default()
    }
}

#[tokio::test]
async fn bit_rot_in_the_disk_cache_is_a_miss_and_is_healed() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    {
        let objects = bench.objects_with(no_memory()).await;
        for index in 0..4 {
            bench.read(&objects, index).await.expect("readable");
        }
        bench.settle(&objects).await;
    }
    let path = cache_file(&bench, 0);
    let mut bytes = std::fs::read(&path).expect("cached");
    bytes[bench.pointers[2].location.offset as usize + 200] ^= 1;
    std::fs::write(&path, bytes).expect("writable");

    let objects = bench.objects_with(no_memory()).await;
    for index in 0..4 {
        let object = bench.read(&objects, index).await.expect("readable");
        assert_eq!(object.payload, content(index as u64, 30_000));
    }
    assert_eq!(bench.gets(), 5, "the damaged one was fetched again");
    bench.settle(&objects).await;
    let objects = bench.objects_with(no_memory()).await;
    bench.read(&objects, 2).await.expect("readable");
    assert_eq!(bench.gets(), 5, "and is right in the cache now");
}

/// What a read of block 2 gives when block 3, whole and sealed with the same keys, stands in its place in the cache.
async fn read_with_another_in_its_place() -> Result<Vec<u8>, ReadError> {
    let bench = Bench::new(1, &[30_000; 4]).await;
    {
        let objects = bench.objects_with(no_memory()).await;
        for index in 0..4 {
            bench.read(&objects, index).await.expect("readable");
        }
        bench.settle(&objects).await;
    }
    let path = cache_file(&bench, 0);
    let mut bytes = std::fs::read(&path).expect("cached");
    let [wanted, other] = [2, 3].map(|index| bench.pointers[index].location);
    assert_eq!(wanted.length, other.length);
    let start = other.offset as usize;
    bytes.copy_within(start..start + other.length as usize, wanted.offset as usize);
    std::fs::write(&path, bytes).expect("writable");
    let objects = bench.objects_with(no_memory()).await;
    let object = bench.read(&objects, 2).await?;
    Ok(object.payload.to_vec())
}

#[test]
fn another_block_in_the_disk_cache_is_a_miss() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let read = || runtime.block_on(read_with_another_in_its_place());
    assert_eq!(read().expect("the store has it"), content(2, 30_000));
    let trusting = planting(Some("volume.trust_the_disk_cache"), read);
    assert!(trusting.is_err(), "who trusts the cache takes it for the store's");
}

/// What a process that has read all blocks from its disk cache gives for block 2 after `change` was done to the file; with what it asked the store for, and what
/// it found damaged.
async fn read_again_after(change: impl FnOnce(&Bench, &mut [u8])) -> (Vec<u8>, u64, u64) {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let objects = bench.objects_with(no_memory()).await;
    let read_all = async || {
        for index in 0..4 {
            bench.read(&objects, index).await.expect("readable");
        }
        bench.settle(&objects).await;
        objects.drop_windows();
    };
    // From the store; from the cache, where each is hashed; and known.
    read_all().await;
    read_all().await;
    assert_eq!(objects.statistics().known_hits, 0);
    read_all().await;
    assert_eq!(objects.statistics().known_hits, 4, "hashed once");
    let (gets, path) = (bench.gets(), cache_file(&bench, 0));
    let mut bytes = std::fs::read(&path).expect("cached");
    change(&bench, &mut bytes);
    std::fs::write(&path, bytes).expect("writable");
    let object = bench.read(&objects, 2).await.expect("readable");
    let damages = objects.statistics().cache_damages;
    (object.payload.to_vec(), bench.gets() - gets, damages)
}

#[tokio::test]
async fn what_is_known_by_its_tag_and_has_rotten_is_a_miss() {
    for at in [90, 200, 29_000] {
        let rot = |bench: &Bench, bytes: &mut [u8]| {
            bytes[bench.pointers[2].location.offset as usize + at] ^= 1;
        };
        assert_eq!(
            read_again_after(rot).await,
            (content(2, 30_000), 1, 1),
            "a bit of byte {at}"
        );
    }
    let tag = |bench: &Bench, bytes: &mut [u8]| {
        let location = bench.pointers[2].location;
        bytes[(location.offset + location.length) as usize - 8] ^= 1;
    };
    assert_eq!(
        read_again_after(tag).await,
        (content(2, 30_000), 1, 1),
        "of the tag"
    );
    let another = |bench: &Bench, bytes: &mut [u8]| {
        let [wanted, other] = [2, 3].map(|index| bench.pointers[index].location);
        let start = other.offset as usize;
        bytes.copy_within(start..start + other.length as usize, wanted.offset as usize);
    };
    assert_eq!(
        read_again_after(another).await,
        (content(2, 30_000), 1, 1),
        "another block"
    );
}

/// The same block, sealed another time with the same keys, in its place.
fn sealed_anew(bench: &Bench, bytes: &mut [u8]) {
    let location = bench.pointers[2].location;
    let (parts, pointers) = super::build(9, 0, &[30_000; 4]);
    let other = pointers[2].location;
    assert_eq!((other.offset, other.length), (location.offset, location.length));
    let range = location.offset as usize..(location.offset + location.length) as usize;
    bytes[range.clone()].copy_from_slice(&parts.concat()[range]);
}

#[test]
fn another_object_of_the_same_place_is_not_taken_for_the_one_that_is_known() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let read = || runtime.block_on(read_again_after(sealed_anew));
    assert_eq!(read(), (content(2, 30_000), 1, 1));
    let (_, gets, _) = planting(Some("volume.any_tag_is_known"), read);
    assert_eq!(
        gets, 0,
        "who looks at no tag takes it for the one that was asked for"
    );
}

#[tokio::test]
async fn damage_under_a_running_cache_is_counted() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let config = ObjectsConfig {
        memory_cache_bytes: 0,
        fetch: FetchPolicy::Exact,
        ..ObjectsConfig::default()
    };
    let objects = bench.objects_with(config).await;
    bench.read(&objects, 0).await.expect("readable");
    bench.settle(&objects).await;
    std::fs::write(cache_file(&bench, 0), vec![0x55; 200_000]).expect("writable");
    // The bytes fetched a moment ago are forgotten by fetching others; four windows of a segment fit in memory.
    objects.drop_windows();
    let object = bench.read(&objects, 0).await.expect("readable");
    assert_eq!(object.payload, content(0, 30_000));
    assert_eq!(objects.statistics().cache_damages, 1);
}

#[tokio::test]
async fn foreign_files_in_the_cache_directory_are_misses_or_left_alone() {
    let bench = Bench::new(1, &[30_000; 2]).await;
    std::fs::create_dir(bench.directory.path().join(CACHE)).expect("made");
    std::fs::write(cache_file(&bench, 0), b"not a segment at all").expect("written");
    std::fs::write(bench.directory.path().join(CACHE).join("notes.txt"), b"mine").expect("written");
    let objects = bench.objects(FetchPolicy::Exact).await;
    let object = bench.read(&objects, 1).await.expect("readable");
    assert_eq!(object.payload, content(1, 30_000));
    bench.settle(&objects).await;
    objects.drop_caches().await;
    assert!(bench.directory.path().join(CACHE).join("notes.txt").exists());
}

#[tokio::test]
async fn a_disk_that_takes_nothing_costs_requests_and_no_errors() {
    let bench = Bench::new(1, &[30_000; 4]).await;
    let objects = bench.objects_with(no_memory()).await;
    std::fs::remove_dir(bench.directory.path().join(CACHE)).expect("removable");
    for index in 0..4 {
        bench.read(&objects, index).await.expect("readable");
    }
    bench.settle(&objects).await;
    let statistics = objects.statistics();
    assert_eq!((statistics.disk_failures, statistics.disk_bytes), (4, 0));
}

#[tokio::test]
async fn damaged_bytes_from_the_store_are_asked_for_again() {
    for policy in [
        FetchPolicy::Exact,
        FetchPolicy::FullSegment,
        FetchPolicy::Adaptive,
    ] {
        let bench = Bench::new(1, &[30_000; 1]).await;
        let objects = bench.objects(policy).await;
        bench.lying.lies.store(1, Ordering::Relaxed);
        let object = bench.read(&objects, 0).await.expect("right the second time");
        assert_eq!(object.payload, content(0, 30_000));
        assert_eq!(bench.gets(), 2);
        assert_eq!(objects.statistics().damages.healed, 1);
    }
}

#[tokio::test]
async fn a_store_that_lies_twice_is_believed_and_the_object_is_named() {
    let bench = Bench::new(1, &[30_000; 3]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    bench.lying.lies.store(2, Ordering::Relaxed);
    let error = bench.read(&objects, 1).await.expect_err("damaged");
    let ReadError::Corrupt {
        place: at, location, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*at, *location), (place(1), bench.pointers[1].location));
    assert!(error.to_string().contains("20"), "names the file: {error}");
    bench.read(&objects, 1).await.expect("an error is not remembered");
}

#[tokio::test]
async fn an_object_at_a_wrong_place_is_refused_wherever_it_comes_from() {
    let bench = Bench::new(1, &[30_000; 3]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    let error = objects
        .get(&bench.pointers[1], place(2))
        .await
        .expect_err("wrong place");
    assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
    bench.read(&objects, 1).await.expect("right at its own place");
    let error = objects
        .get(&bench.pointers[1], place(2))
        .await
        .expect_err("wrong place, from memory");
    assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn a_location_past_the_segments_end_is_damage_not_a_hang() {
    let bench = Bench::new(1, &[30_000; 1]).await;
    let objects = bench.objects(FetchPolicy::Adaptive).await;
    for (offset, length) in [(1 << 30, 30_000), (u32::MAX, u32::MAX), (100, 1 << 19)] {
        let mut pointer: Pointer = bench.pointers[0];
        (pointer.location.offset, pointer.location.length) = (offset, length);
        let error = objects
            .get(&pointer, place(0))
            .await
            .expect_err("nothing is there");
        assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_segment_that_appears_late_is_waited_for_and_one_that_never_does_is_named() {
    let bench = Bench::new(1, &[30_000; 1]).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    let whole = bench.lying.get(&key(0)).await.expect("there");
    bench.lying.delete(&key(0)).await.expect("deleted");
    let appear = async {
        bench.env.sleep(Duration::from_millis(250)).await;
        bench
            .lying
            .put(&key(0), vec![whole], PutMode::Create)
            .await
            .expect("stored");
    };
    let (object, ()) = futures::future::join(bench.read(&objects, 0), appear).await;
    object.expect("it appeared");

    bench.settle(&objects).await;
    objects.drop_caches().await;
    bench.lying.delete(&key(0)).await.expect("deleted");
    let error = bench.read(&objects, 0).await.expect_err("gone");
    assert!(
        matches!(error, ReadError::Missing { segment, .. } if segment == segment_id(0)),
        "{error}"
    );
}

#[tokio::test]
async fn an_outage_is_told_as_such_and_over_when_it_is_over() {
    let bench = Bench::new(1, &[30_000; 1]).await;
    let faulty =
        Faulty::new(&bench.env, bench.lying.clone(), FaultConfig::default()).expect("a configuration");
    let control = faulty.control();
    let objects = crate::objects::Objects::open(
        &bench.env,
        Arc::new(faulty),
        super::FAMILY,
        super::keys(),
        CACHE,
        ObjectsConfig::default(),
    )
    .await
    .expect("opens without the store");
    control.set_outage(Outage::Refuse);
    let error = bench.read(&objects, 0).await.expect_err("out of reach");
    assert!(matches!(error, ReadError::Unavailable { .. }), "{error}");
    control.set_outage(Outage::None);
    bench.read(&objects, 0).await.expect("back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_tears_and_corrupts_half_of_all_replies_gives_right_objects_or_errors() {
    let lengths = [20_000; 40];
    let bench = Bench::new(2, &lengths).await;
    let faults = Faults {
        corrupt: 0.5,
        unavailable: 0.2,
        torn: 0.2,
        ..Faults::default()
    };
    let config = FaultConfig {
        seed: 3,
        faults,
        ..FaultConfig::default()
    };
    let faulty = Faulty::new(&bench.env, bench.lying.clone(), config).expect("a configuration");
    let objects = crate::objects::Objects::open(
        &bench.env,
        Arc::new(faulty),
        super::FAMILY,
        super::keys(),
        CACHE,
        ObjectsConfig::default(),
    )
    .await
    .expect("opens");
    let mut right = 0;
    for round in 0..20 {
        for index in 0..80 {
            match bench.read(&objects, index).await {
                Ok(object) => {
                    assert_eq!(object.payload, content(index as u64, 20_000), "round {round}");
                    right += 1;
                }
                Err(ReadError::Unavailable { .. } | ReadError::Corrupt { .. }) => {}
                Err(error @ (ReadError::Missing { .. } | ReadError::KeyNotAtHand { .. })) => {
                    panic!("{error}")
                }
            }
        }
    }
    assert!(right > 1000, "only {right} of 1,600 reads succeeded");
}
