//! Pinned segments are read by the disk cache as its own, and become its own: each is written to the disk once.

use super::{Bench, CACHE, FetchPolicy, Objects, ObjectsConfig, build, content, segment_id};
use crate::objects::PinShare;
use bytes::Bytes;
use firn_env::OpenMode;

const LENGTHS: [usize; 4] = [30_000; 4];

/// Pins the only segment, as an upload does.
async fn pin(objects: &Objects) {
    let (parts, _) = build(0, 0, &LENGTHS);
    assert!(objects.pin(segment_id(0), &parts).await);
    objects.sync_pins().await;
    objects.insert_segment(segment_id(0), &parts).await;
}

impl Bench {
    async fn names(&self, directory: &str) -> Vec<String> {
        self.env.disk().list(directory).await.expect("listed")
    }

    /// Reads all blocks, and drops them from memory again.
    async fn read_all(&self, objects: &Objects) {
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let object = self.read(objects, index).await.expect("readable");
            assert_eq!(object.payload, content(index as u64, length));
        }
        objects.inner.lock().memory.clear();
        objects.drop_windows();
    }

    /// Flips a bit of the block at `index` in this file.
    async fn damage(&self, path: &str, index: usize) -> Bytes {
        let file = self
            .env
            .disk()
            .open(path, OpenMode::ReadWrite)
            .await
            .expect("open");
        let location = self.pointers[index].location;
        let at = u64::from(location.offset + location.length / 2);
        let byte = file.read_at(at, 1).await.expect("read")[0];
        file.write_at(at, vec![vec![byte ^ 1].into()])
            .await
            .expect("written");
        let length = file.length().await.expect("a length") as usize;
        file.read_at(0, length).await.expect("read")
    }
}

#[tokio::test]
async fn a_pin_is_read_as_if_it_were_cached_and_then_is() {
    let bench = Bench::new(1, &LENGTHS).await;
    let name = super::super::disk::name_of(segment_id(0));
    {
        let objects = bench.objects(FetchPolicy::Exact).await;
        pin(&objects).await;
        bench.read_all(&objects).await;
        assert_eq!(bench.names(CACHE).await, Vec::<String>::new());
        assert_eq!(bench.names("unconfirmed").await, [name.as_str()]);
        let pinned_bytes = objects.statistics().disk_bytes;

        objects.unpin(segment_id(0)).await;
        bench.read_all(&objects).await;
        assert_eq!(bench.names(CACHE).await, [name]);
        assert_eq!(bench.names("unconfirmed").await, Vec::<String>::new());
        assert_eq!(objects.statistics().disk_bytes, pinned_bytes);
        assert_eq!(objects.pinned_bytes(), 0);
    }
    // The next start finds it, and an eviction removes it.
    let objects = bench.objects(FetchPolicy::Exact).await;
    bench.read_all(&objects).await;
    assert_eq!(bench.gets(), 0);
    objects.drop_caches().await;
    assert_eq!(bench.names(CACHE).await, Vec::<String>::new());
    assert_eq!(objects.statistics().disk_bytes, 0);
    bench.read_all(&objects).await;
    assert_eq!(bench.gets(), 4);
}

#[tokio::test]
async fn a_pin_of_an_earlier_run_is_read_as_if_it_were_cached() {
    let bench = Bench::new(1, &LENGTHS).await;
    pin(&bench.objects(FetchPolicy::Exact).await).await;
    let objects = bench.objects(FetchPolicy::Exact).await;
    assert!(objects.may_have_cached(&bench.pointers[2]));
    bench.read_all(&objects).await;
    objects.drop_caches().await;
    assert_eq!(bench.names("unconfirmed").await, Vec::<String>::new());
    assert_eq!(bench.names(CACHE).await, Vec::<String>::new());
    assert_eq!(bench.gets(), 0);
}

#[tokio::test]
async fn nothing_that_is_fetched_gets_into_a_pin() {
    let bench = Bench::new(1, &LENGTHS).await;
    let name = super::super::disk::name_of(segment_id(0));
    let objects = bench.objects(FetchPolicy::Exact).await;
    pin(&objects).await;
    let before = bench.damage(&format!("unconfirmed/{name}"), 1).await;
    bench.read_all(&objects).await;
    bench.settle(&objects).await;
    assert_eq!(bench.gets(), 1, "the damaged block was fetched");
    assert_eq!(
        objects.pinned_segment(segment_id(0)).await.as_ref(),
        Some(&before),
        "the pin is as it was"
    );
    assert_eq!(bench.names(CACHE).await, Vec::<String>::new());

    // Pinned no more, it is mended by what is fetched.
    objects.unpin(segment_id(0)).await;
    bench.read_all(&objects).await;
    bench.settle(&objects).await;
    assert_eq!(bench.gets(), 2);
    assert_eq!(bench.names(CACHE).await, [name]);
    bench.read_all(&objects).await;
    assert_eq!(bench.gets(), 2, "it is whole");
}

#[tokio::test]
async fn half_of_the_cache_may_be_pinned_and_all_of_it_by_what_is_urgent() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::new(1, &LENGTHS).await;
    for (cache, half) in [(256 * MIB, 128 * MIB), (16 * MIB, 64 * MIB)] {
        let config = ObjectsConfig {
            disk_cache_bytes: cache,
            fetch: FetchPolicy::Exact,
            ..ObjectsConfig::default()
        };
        let objects = bench.objects_with(config).await;
        assert_eq!(objects.pins_max_bytes(PinShare::Whole), 2 * half);
        assert!(objects.may_pin(u64::MAX, PinShare::Half), "alone whatever it is");
        pin(&objects).await;
        let pinned = objects.pinned_bytes();
        for (share, most) in [(PinShare::Half, half), (PinShare::Whole, 2 * half)] {
            assert!(objects.may_pin(most - pinned, share));
            assert!(!objects.may_pin(most - pinned + 1, share));
        }
        objects.drop_pins().await;
    }
}
