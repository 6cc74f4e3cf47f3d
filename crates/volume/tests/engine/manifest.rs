//! The manifest of segments: what it says of the bucket, over restarts, clones and cleaning, and what it costs.

use crate::{
    files::{create, write},
    world::{World, config},
};
use firn_cleaner::{Cleaner, Limits, MustExist, must_exist};
use firn_env::{Env, sim::Simulation};
use firn_format::{ManifestEntry, SegmentId};
use firn_store::Store;
use firn_vfs::Vfs;
use firn_volume::{Cadence, FormatOptions, Parts, Volume, VolumeConfig};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub const WITH: FormatOptions = FormatOptions {
    block_bytes: 32 << 10,
    root_mode: 0o755,
    root_owner: (0, 0),
    manifest: true,
    by_inode: false,
};

pub async fn format_and_open(parts: Parts, options: FormatOptions, config: VolumeConfig) -> Volume {
    parts.anchor.create_family().await.expect("a new family");
    Volume::format(&parts, "test", options, &config)
        .await
        .expect("it is formatted");
    Volume::open(parts, config).await.expect("it opens").0
}

/// What the manifest says now.
pub async fn told(parts: &Parts) -> Option<MustExist> {
    let read = must_exist(&parts.env, parts.store.clone(), &parts.anchor, parts.volume).await;
    read.expect("the manifest can be read")
}

/// All segments in the bucket.
async fn log(store: &dyn Store) -> BTreeMap<SegmentId, ManifestEntry> {
    let mut found = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.list("", after.as_ref()).await.expect("listed");
        for listed in &page.objects {
            let Some((_, segment)) = SegmentId::parse_key(listed.key.as_str()) else {
                continue;
            };
            let bytes = store.get(&listed.key).await.expect("it is there");
            let entry = ManifestEntry::of_bytes(&bytes, firn_format::Version(0)).expect("a segment");
            found.insert(segment, entry);
        }
        after = page.objects.last().map(|listed| listed.key.clone());
        if !page.more {
            return found;
        }
    }
}

/// That the manifest has these segments of the bucket with what is in them, but for the newest checkpoint's own.
fn agrees(told: &MustExist, log: &BTreeMap<SegmentId, ManifestEntry>) {
    let names = |segments: &BTreeMap<SegmentId, ManifestEntry>| -> BTreeSet<SegmentId> {
        segments
            .keys()
            .copied()
            .filter(|segment| *segment != told.tail)
            .collect()
    };
    assert_eq!(names(&told.segments), names(log));
    for (segment, entry) in &told.segments {
        let birth = entry.birth;
        assert_eq!(
            *entry,
            ManifestEntry {
                birth,
                ..log[segment]
            },
            "segment {segment}"
        );
    }
}

async fn some_checkpoints(volume: &Volume, env: &Env, file: &str, count: u64) {
    let handle = create(volume, volume.root(), file).await;
    for number in 0..count {
        write(volume, handle, number * 5000, vec![number as u8; 5000]).await;
        volume.sync().await.expect("synced");
        env.sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn each_segment_that_was_put_is_told_with_its_hashes_also_over_power_cuts() {
    let simulation = Simulation::new(71);
    let mut world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            for (number, count) in [1_u64, 9, 30].into_iter().enumerate() {
                some_checkpoints(&volume, &parts.env, &format!("file{number}"), count).await;
                agrees(
                    &told(&parts).await.expect("a manifest"),
                    &log(&*parts.store).await,
                );
            }
        })
        .expect("the run ends");
    for number in 0..3 {
        let (volume, parts) = (world.power_cut(&simulation), world.own_parts());
        simulation
            .run(async move {
                let before = told(&parts).await.expect("a manifest");
                some_checkpoints(&volume, &parts.env, &format!("later{number}"), 2).await;
                let after = told(&parts).await.expect("a manifest");
                assert!(
                    after.segments.contains_key(&before.tail),
                    "the segment of the root that was found is entered after the start"
                );
                agrees(&after, &log(&*parts.store).await);
                // A start without a change makes no commit, and forgets nothing.
                volume.stop().await.expect("stopped");
            })
            .expect("the run ends");
    }
}

#[test]
fn a_clone_begins_with_what_its_origin_says() {
    let simulation = Simulation::new(72);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let clone = simulation
        .run({
            let parts = parts.clone();
            async move {
                let volume = format_and_open(parts.clone(), WITH, config()).await;
                some_checkpoints(&volume, &parts.env, "file", 20).await;
                let made = volume.clone_head("copy").await.expect("cloned");
                some_checkpoints(&volume, &parts.env, "other", 2).await;
                made.volume
            }
        })
        .expect("the run ends");
    let elsewhere: Parts = world.elsewhere(&simulation, clone);
    simulation
        .run(async move {
            let origin = told(&parts).await.expect("a manifest");
            let first = told(&elsewhere).await.expect("a clone inherits it");
            assert!(first.segments.len() > 20, "{}", first.segments.len());
            let volume = Volume::open(elsewhere.clone(), config())
                .await
                .expect("it opens")
                .0;
            some_checkpoints(&volume, &elsewhere.env, "own", 20).await;
            let second = told(&elsewhere).await.expect("a manifest");
            assert!(
                first
                    .segments
                    .iter()
                    .all(|(segment, entry)| second.segments[segment] == *entry)
            );
            assert!(second.segments.contains_key(&first.tail));
            // Together they say what there is.
            let mut all = origin.segments.clone();
            all.extend(second.segments.clone());
            all.extend([(origin.tail, log(&*parts.store).await[&origin.tail])]);
            let log = log(&*parts.store).await;
            agrees(
                &MustExist {
                    segments: all,
                    ..second
                },
                &log,
            );
        })
        .expect("the run ends");
}

pub fn limits() -> Limits {
    Limits {
        grace: Duration::ZERO,
        free_per_mille: 0,
        cold_free_per_mille: 0,
        ..Limits::default()
    }
}

pub async fn clean(parts: &Parts) -> u64 {
    let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, limits());
    let mut retired = 0;
    for _ in 0..2 {
        let report = cleaner.run().await.expect("a run");
        retired += report.retired_segments;
        parts.env.sleep(Duration::from_secs(61)).await;
    }
    retired
}

pub async fn churn(volume: &Volume, parts: &Parts) {
    let handle = create(volume, volume.root(), "churned").await;
    for number in 0..60_u64 {
        write(
            volume,
            handle,
            (number * 7 % 20) * 40_000,
            vec![number as u8; 40_000],
        )
        .await;
        volume.sync().await.expect("synced");
        parts.env.sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn what_a_cleaner_retires_leaves_and_what_it_writes_enters_and_rounds_are_forgotten_once_taken_in() {
    let simulation = Simulation::new(73);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            let before = told(&parts).await.expect("a manifest");
            assert!(clean(&parts).await > 5, "much was retired");
            let rounds = parts.anchor.list_rounds(0, 100).await.expect("listed");
            assert!(!rounds.is_empty());
            // Not taken in yet: the table tells.
            let between = told(&parts).await.expect("a manifest");
            assert_eq!(between.newest_round, before.newest_round);
            some_checkpoints(&volume, &parts.env, "later", 3).await;
            let after = told(&parts).await.expect("a manifest");
            assert!(after.newest_round > before.newest_round, "{after:?}");
            for round in &rounds {
                for segment in &round.round.retired {
                    assert!(before.segments.contains_key(segment) || *segment == before.tail);
                    assert!(!between.segments.contains_key(segment) && !after.segments.contains_key(segment));
                }
                for written in &round.round.written {
                    assert_eq!(after.segments.get(&written.segment), Some(&written.entry));
                }
            }
            let left: BTreeSet<_> = before
                .segments
                .keys()
                .filter(|segment| !after.segments.contains_key(segment))
                .collect();
            let retired: BTreeSet<_> = rounds.iter().flat_map(|round| &round.round.retired).collect();
            assert!(left.is_subset(&retired), "nothing else left");
            clean(&parts).await;
            let kept = parts.anchor.list_rounds(0, 100).await.expect("listed");
            assert!(
                kept.iter().all(|round| round.number > after.newest_round),
                "{kept:?}"
            );
            let log = log(&*parts.store).await;
            for (segment, entry) in &told(&parts).await.expect("a manifest").segments {
                let birth = entry.birth;
                assert_eq!(
                    Some(*entry),
                    log.get(segment).map(|found| ManifestEntry { birth, ..*found })
                );
            }
        })
        .expect("the run ends");
}

#[test]
fn a_volume_without_one_is_cleaned_and_leaves_no_rounds() {
    let simulation = Simulation::new(74);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), FormatOptions::default(), config()).await;
            churn(&volume, &parts).await;
            assert!(clean(&parts).await > 5, "much was retired");
            some_checkpoints(&volume, &parts.env, "later", 3).await;
            assert_eq!(told(&parts).await, None);
            assert_eq!(parts.anchor.list_rounds(0, 10).await.expect("listed"), []);
        })
        .expect("the run ends");
}

#[test]
fn a_round_that_is_not_there_any_more_ends_the_manifest_and_nothing_else() {
    let simulation = Simulation::new(75);
    let mut world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            assert!(clean(&parts).await > 5, "much was retired");
            let rounds = parts.anchor.list_rounds(0, 100).await.expect("listed");
            parts.anchor.forget_round(&rounds[0]).await.expect("forgotten");
            some_checkpoints(&volume, &parts.env, "later", 3).await;
            assert_eq!(told(&parts).await, None);
        })
        .expect("the run ends");
    let (volume, parts) = (world.power_cut(&simulation), world.own_parts());
    simulation
        .run(async move {
            some_checkpoints(&volume, &parts.env, "last", 2).await;
            assert!(volume.verify(&|_| {}).await.expect("verified").damages.is_empty());
            assert_eq!(told(&parts).await, None);
        })
        .expect("the run ends");
}

/// Bytes put by so many checkpoints of so many bytes each, and in how many PUTs, of a volume without and with a manifest.
fn put_by(checkpoints: u64, bytes: usize, segment_bytes: u64) -> [(u64, u64); 2] {
    [FormatOptions::default(), WITH].map(|options| {
        let simulation = Simulation::new(76);
        let world = World::new(&simulation);
        let (parts, meter) = (world.own_parts(), world.meter());
        let config = VolumeConfig {
            segment_bytes,
            cadence: Cadence {
                busy: Duration::from_secs(3600),
                busy_bytes: 1 << 30,
                trickle: Duration::from_secs(3600),
            },
            ..config()
        };
        simulation
            .run(async move {
                let volume = format_and_open(parts.clone(), options, config).await;
                let handle = create(&volume, volume.root(), "file").await;
                volume.sync().await.expect("synced");
                let before = meter.usage();
                for number in 0..checkpoints {
                    for at in (0..bytes).step_by(1 << 20) {
                        let part = (bytes - at).min(1 << 20);
                        let noise: Vec<u8> = noise_of(number, at, part);
                        write(&volume, handle, at as u64, noise).await;
                    }
                    volume.sync().await.expect("synced");
                }
                let after = meter.usage();
                (after.bytes_up - before.bytes_up, after.puts - before.puts)
            })
            .expect("the run ends")
    })
}

pub fn noise_of(number: u64, at: usize, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64) << 20 | 1;
    for byte in &mut noise {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    noise
}

#[test]
fn a_trickle_pays_two_kilobytes_a_checkpoint_and_a_busy_volume_a_hundredth() {
    let checkpoints = 256;
    let [(without, puts_without), (with, puts_with)] = put_by(checkpoints, 4096, 4 << 20);
    let each = (with - without) / checkpoints;
    println!(
        "trickling: {each} bytes a checkpoint of {}",
        without / checkpoints
    );
    assert!((300..=2048).contains(&each), "{each}");
    // Its nodes go into the segment that the checkpoint makes anyhow.
    assert_eq!(puts_with, puts_without);

    let [(without, _), (with, _)] = put_by(2, 24 << 20, 4 << 20);
    println!("busy: {} bytes of {without}", with - without);
    assert!((with - without) * 100 <= without, "{with} against {without}");
}
