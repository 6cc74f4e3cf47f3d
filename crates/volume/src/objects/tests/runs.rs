//! Many objects at once: the same as one by one, by fewer calls.

use super::{Bench, CACHE, content, place, segment_id};
use crate::objects::{FetchPolicy, Objects, ObjectsConfig, ReadError};
use firn_format::{Place, Pointer};

const BLOCKS: usize = 8;
const BLOCK_BYTES: usize = 30_000;

fn config(memory_cache_bytes: u64) -> ObjectsConfig {
    ObjectsConfig {
        memory_cache_bytes,
        fetch: FetchPolicy::Exact,
        ..ObjectsConfig::default()
    }
}

fn wanted(bench: &Bench) -> Vec<(Pointer, Place)> {
    let places = (0..).map(place);
    bench.pointers.iter().copied().zip(places).collect()
}

async fn all_are_right(objects: &Objects, bench: &Bench) {
    let all = objects.get_all(&wanted(bench)).await.expect("readable");
    assert_eq!(all.len(), bench.pointers.len());
    for (index, object) in all.iter().enumerate() {
        assert_eq!(
            object.payload,
            content(index as u64, BLOCK_BYTES),
            "block {index}"
        );
    }
}

/// Two segments, read once: all of them are in the disk cache.
async fn cached() -> Bench {
    let bench = Bench::new(2, &[BLOCK_BYTES; BLOCKS]).await;
    let objects = bench.objects_with(config(0)).await;
    all_are_right(&objects, &bench).await;
    bench.settle(&objects).await;
    bench
}

#[tokio::test]
async fn what_is_nowhere_near_is_fetched_once() {
    let bench = Bench::new(2, &[BLOCK_BYTES; BLOCKS]).await;
    let objects = bench.objects_with(config(1 << 20)).await;
    let (first, second) =
        futures::future::join(all_are_right(&objects, &bench), all_are_right(&objects, &bench)).await;
    assert_eq!((first, second), ((), ()));
    assert_eq!(bench.gets(), 2 * BLOCKS as u64);
}

#[tokio::test]
async fn blocks_of_the_disk_cache_are_read_in_runs_without_a_task_and_kept_in_memory() {
    let bench = cached().await;
    let gets = bench.gets();
    let objects = bench.objects_with(config(1 << 20)).await;
    all_are_right(&objects, &bench).await;
    let after = objects.statistics();
    assert_eq!((after.disk_hits, after.misses), (2 * BLOCKS as u64, 0));
    assert_eq!(objects.inner.lock().loads.len(), 0);
    all_are_right(&objects, &bench).await;
    let again = objects.statistics();
    assert_eq!(
        (again.disk_hits, again.memory_hits),
        (after.disk_hits, 2 * BLOCKS as u64)
    );
    assert_eq!(bench.gets(), gets);
}

#[tokio::test]
async fn one_damaged_block_of_a_run_is_fetched_and_no_other() {
    let bench = cached().await;
    let gets = bench.gets();
    let id = segment_id(0);
    let name = format!("{:016x}-{:016x}", id.writer.0, id.sequence);
    let path = bench.directory.path().join(CACHE).join(name);
    let mut bytes = std::fs::read(&path).expect("cached");
    bytes[bench.pointers[3].location.offset as usize + 200] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    let objects = bench.objects_with(config(0)).await;
    all_are_right(&objects, &bench).await;
    assert_eq!(bench.gets(), gets + 1);
    bench.settle(&objects).await;
    all_are_right(&objects, &bench).await;
    assert_eq!(bench.gets(), gets + 1, "and it is right in the cache now");
}

#[tokio::test]
async fn a_cache_file_that_was_cut_short_costs_what_is_missing() {
    let bench = cached().await;
    let gets = bench.gets();
    let id = segment_id(1);
    let name = format!("{:016x}-{:016x}", id.writer.0, id.sequence);
    let path = bench.directory.path().join(CACHE).join(name);
    let file = std::fs::File::options().write(true).open(path).expect("cached");
    // In the middle of the sixth block.
    let cut = bench.pointers[BLOCKS + 5].location.offset + 100;
    file.set_len(u64::from(cut)).expect("cut");
    let objects = bench.objects_with(config(0)).await;
    all_are_right(&objects, &bench).await;
    assert_eq!(bench.gets(), gets + 3);
}

#[tokio::test]
async fn an_object_at_a_wrong_place_is_refused_among_others() {
    let bench = cached().await;
    let objects = bench.objects_with(config(1 << 20)).await;
    for _ in 0..2 {
        let mut wanted = wanted(&bench);
        wanted[2].1 = place(77);
        let error = objects.get_all(&wanted).await.expect_err("refused");
        assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
        // From memory as well.
        all_are_right(&objects, &bench).await;
    }
}

#[tokio::test]
async fn what_a_reader_has_passed_is_kept_by_the_disk_cache_alone() {
    let bench = cached().await;
    let objects = bench.objects_with(config(1 << 20)).await;
    let wanted = wanted(&bench);
    let passed = wanted.len() - 2;
    for _ in 0..2 {
        let all = objects.get_all_keeping(&wanted, passed).await.expect("readable");
        for (index, object) in all.iter().enumerate() {
            assert_eq!(object.payload, content(index as u64, BLOCK_BYTES));
        }
    }
    let after = objects.statistics();
    assert_eq!(after.memory_objects, 2, "those that were not passed");
    assert_eq!((after.memory_hits, after.disk_hits), (2, 2 * passed as u64 + 2));
}

#[tokio::test]
async fn without_a_disk_cache_what_a_reader_has_passed_is_kept_in_memory() {
    let bench = Bench::new(2, &[BLOCK_BYTES; BLOCKS]).await;
    let config = ObjectsConfig {
        disk_cache_bytes: 0,
        ..config(1 << 20)
    };
    let objects = bench.objects_with(config).await;
    let wanted = wanted(&bench);
    for _ in 0..2 {
        objects
            .get_all_keeping(&wanted, wanted.len())
            .await
            .expect("readable");
    }
    assert_eq!(objects.statistics().memory_objects, wanted.len() as u64);
    assert_eq!(bench.gets(), wanted.len() as u64);
}
