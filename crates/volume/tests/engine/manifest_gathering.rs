//! Volumes that were made without a manifest gain it from their trees: beside clients, cleaners, snapshots and clones, over power cuts, and never from
//! what the bucket lists.

use crate::{
    files::{create, look, write},
    manifest::{WITH, churn, clean, format_and_open, limits, noise_of, told},
    manifest_audit::audited,
    world::{World, config},
};
use firn_cleaner::Cleaner;
use firn_env::{
    mutants::planting,
    sim::{Simulation, SimulationError},
};
use firn_format::{GatheringStage, ManifestEntry, SegmentId};
use firn_store::ObjectKey;
use firn_vfs::Vfs;
use firn_volume::{FormatOptions, ManifestStatus, Parts, Volume, VolumeConfig};
use std::{collections::BTreeSet, time::Duration};

const FAST: u64 = 1 << 30;
/// A step of 64 KiB every two minutes.
const SLOW: u64 = 512;

async fn until_over(volume: &Volume, parts: &Parts) -> ManifestStatus {
    for _ in 0..5000 {
        match volume.manifest_status() {
            ManifestStatus::Gathering(gathering) if gathering.stage != GatheringStage::Gaps => {
                parts.env.sleep(Duration::from_secs(1)).await;
            }
            over => return over,
        }
    }
    panic!("it does not end: {:?}", volume.manifest_status());
}

/// All that is left in the bucket of the log.
async fn listed(parts: &Parts) -> BTreeSet<SegmentId> {
    let page = parts.store.list("", None).await.expect("listed");
    assert!(!page.more);
    let names = page.objects.iter();
    names
        .filter_map(|found| Some(SegmentId::parse_key(found.key.as_str())?.1))
        .collect()
}

/// What the manifest says is in the bucket as it says, and whatever else is there nobody needs.
async fn is_right(volume: &Volume, parts: &Parts) {
    let manifest = told(parts).await.expect("a manifest");
    assert!(manifest.is_whole);
    for (segment, entry) in &manifest.segments {
        let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
        let bytes = parts.store.get(&key).await.expect("it must exist");
        let mut found = ManifestEntry::of_bytes(&bytes, entry.birth).expect("a segment");
        if !entry.has_segment_hash() {
            assert!(bytes.len() > 256 << 10);
            found.segment_hash = [0; 32];
        }
        assert_eq!(*entry, found, "segment {segment}");
    }
    let report = audited(parts, "1").await;
    assert!(report.is_intact() && report.is_complete, "{report:?}");
    let audit = report.manifest.expect("a manifest");
    assert_eq!(audit.coverage(), Some(1.0), "{audit:?}");
    for segment in listed(parts).await {
        let is_doomed = parts.anchor.retired(segment).await.expect("read").is_some();
        if segment != manifest.tail && !manifest.segments.contains_key(&segment) && !is_doomed {
            let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
            parts.store.delete(&key).await.expect("deleted");
        }
    }
    let whole = volume.verify(&|_| {}).await.expect("verified");
    assert!(whole.damages.is_empty(), "{:?}", whole.damages);
}

/// The same file that `churn` made, once more.
async fn churn_more(volume: &Volume, parts: &Parts) {
    let handle = look(volume, &["churned"]).await.expect("it is there");
    for number in 0..40_u64 {
        write(
            volume,
            handle,
            (number * 7 % 20) * 40_000,
            vec![number as u8 + 100; 40_000],
        )
        .await;
        volume.sync().await.expect("synced");
        parts.env.sleep(Duration::from_secs(1)).await;
    }
}

/// A volume of today with a history: snapshots whose files are gone, and much that was written anew.
async fn of_today(parts: &Parts, config: VolumeConfig) -> Volume {
    let volume = format_and_open(parts.clone(), FormatOptions::default(), config).await;
    for (name, salt) in [("first", 1), ("second", 2)] {
        let handle = create(&volume, volume.root(), name).await;
        for at in 0..20 {
            write(&volume, handle, at * 20_000, noise_of(salt, at as usize, 20_000)).await;
            volume.sync().await.expect("synced");
        }
        volume
            .snapshot_create(name.as_bytes().to_vec(), 0)
            .await
            .expect("a snapshot");
        write(&volume, handle, 0, noise_of(salt + 10, 0, 300_000)).await;
        volume.sync().await.expect("synced");
    }
    churn(&volume, parts).await;
    volume
}

#[test]
fn a_volume_of_today_gains_its_manifest_from_its_trees_over_power_cuts_and_beside_a_cleaner() {
    for (seed, rate) in [(90, FAST), (91, SLOW), (92, SLOW)] {
        let simulation = Simulation::new(seed);
        let mut world = World::new(&simulation);
        let parts = world.own_parts();
        simulation
            .run(async move {
                let volume = of_today(&parts, config()).await;
                if seed == 92 {
                    // What a proposal has that was made before, no round tells.
                    assert!(clean(&parts).await > 5, "much was retired");
                    assert_eq!(parts.anchor.list_rounds(0, 10).await.expect("listed"), []);
                }
                assert_eq!(volume.manifest_status(), ManifestStatus::Without);
                let begun = volume.manifest_begin(rate).await.expect("begun");
                assert!(matches!(begun, ManifestStatus::Gathering(_)), "{begun:?}");
                if rate == FAST {
                    assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
                    is_right(&volume, &parts).await;
                    return;
                }
                parts.env.sleep(Duration::from_secs(20)).await;
                let seen = told(&parts).await.expect("a manifest");
                assert!(!seen.is_whole && !seen.segments.is_empty(), "{seen:?}");
                let report = audited(&parts, "1").await;
                assert!(report.is_intact(), "{report:?}");
                let audit = report.manifest.expect("a manifest");
                let coverage = audit.coverage().expect("measured");
                assert!(coverage < 1.0 && audit.gathering.is_some(), "{audit:?}");
            })
            .expect("the run ends");
        if rate == FAST {
            continue;
        }
        let (volume, parts) = (world.power_cut(&simulation), world.own_parts());
        simulation
            .run(async move {
                let ManifestStatus::Gathering(before) = volume.manifest_status() else {
                    panic!("{:?}", volume.manifest_status());
                };
                assert!(before.segments > 0, "it goes on where it was: {before:?}");
                churn_more(&volume, &parts).await;
                clean(&parts).await;
                volume.snapshot_create("later", 0).await.expect("a snapshot");
                assert!(matches!(volume.manifest_status(), ManifestStatus::Gathering(_)));
                volume.manifest_begin(FAST).await.expect("a higher rate");
                assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
                is_right(&volume, &parts).await;
                // From here on it is as any other.
                churn_more(&volume, &parts).await;
                clean(&parts).await;
                let handle = create(&volume, volume.root(), "last").await;
                for _ in 0..3 {
                    write(&volume, handle, 0, vec![1; 9000]).await;
                    volume.sync().await.expect("synced");
                    parts.env.sleep(Duration::from_secs(61)).await;
                }
                is_right(&volume, &parts).await;
            })
            .expect("the run ends");
    }
}

#[test]
fn a_segment_that_is_retired_while_the_trees_are_gone_through_does_not_stay_in_the_manifest() {
    let simulation = Simulation::new(93);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = of_today(&parts, config()).await;
            volume.manifest_begin(SLOW).await.expect("begun");
            for _ in 0..4 {
                parts.env.sleep(Duration::from_secs(8)).await;
                clean(&parts).await;
            }
            let is_early = matches!(volume.manifest_status(), ManifestStatus::Gathering(_));
            assert!(is_early, "it ended before much was retired");
            volume.manifest_begin(FAST).await.expect("a higher rate");
            assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
            is_right(&volume, &parts).await;
        })
        .expect("the run ends");
}

#[test]
fn what_only_a_snapshot_needs_is_entered() {
    let planted = "volume.gathering_forgets_snapshots";
    for planted in [None, Some(planted)] {
        let simulation = Simulation::new(88);
        let world = World::new(&simulation);
        let parts = world.own_parts();
        let run = || {
            simulation.run(async move {
                let volume = of_today(&parts, config()).await;
                volume.manifest_begin(FAST).await.expect("begun");
                assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
                is_right(&volume, &parts).await;
            })
        };
        let found = planting(planted, run);
        assert_eq!(found.is_ok(), planted.is_none(), "{planted:?}: {found:?}");
    }
}

/// A manifest of a volume whose trees lead to segments that were retired before it was begun, and are led on by forwarding records alone.
fn gathered_behind_a_cleaner(planted: Option<&'static str>) -> Result<(), String> {
    let simulation = Simulation::new(89);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let config = VolumeConfig {
        merge_every: Duration::from_secs(3600),
        ..config()
    };
    let run = || {
        simulation.run(async move {
            let volume = of_today(&parts, config).await;
            let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, limits());
            // What the second moves it cannot propose, as the first proposal is not merged.
            for _ in 0..2 {
                churn_more(&volume, &parts).await;
                let report = cleaner.run().await.expect("a run");
                assert!(report.retired_segments > 5, "{report:?}");
            }
            volume.manifest_begin(FAST).await.expect("begun");
            assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
            cleaner.run().await.expect("a run");
            is_right(&volume, &parts).await;
        })
    };
    planting(planted, run).map_err(|error| error.to_string())
}

#[test]
fn a_segment_that_was_retired_before_is_not_entered_but_where_its_objects_went() {
    gathered_behind_a_cleaner(None).expect("it is right");
    let planted = "volume.gathering_keeps_retired";
    gathered_behind_a_cleaner(Some(planted)).expect_err(planted);
}

#[test]
fn a_cleaner_that_began_before_and_tells_no_round_has_all_gathered_anew() {
    // While it is gathered, and once all is entered and no round was told yet.
    for rate in [SLOW, FAST] {
        let simulation = Simulation::new(94);
        let world = World::new(&simulation);
        let parts = world.own_parts();
        let retired = planting(Some("cleaner.retire_untold"), || {
            let parts = parts.clone();
            simulation.run(async move {
                let volume = of_today(&parts, config()).await;
                volume.manifest_begin(rate).await.expect("begun");
                parts.env.sleep(Duration::from_secs(20)).await;
                assert_eq!(volume.manifest_status() == ManifestStatus::Whole, rate == FAST);
                (clean(&parts).await, volume)
            })
        });
        let (retired, volume) = retired.expect("the run ends");
        assert!(retired > 5);
        simulation
            .run(async move {
                volume.manifest_begin(FAST).await.expect("a higher rate");
                parts.env.sleep(Duration::from_secs(61)).await;
                let handle = create(&volume, volume.root(), "more").await;
                write(&volume, handle, 0, vec![1; 9000]).await;
                volume.sync().await.expect("synced");
                assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
                is_right(&volume, &parts).await;
            })
            .expect("the run ends");
    }
}

fn what_is_lost_is_entered() -> Result<(), SimulationError> {
    let simulation = Simulation::new(95);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation.run(async move {
        let volume = of_today(&parts, config()).await;
        let before = listed(&parts).await;
        // Which segment has nothing but data that a snapshot needs, is found by taking them away one by one.
        let mut lost = None;
        for segment in before {
            let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
            let bytes = parts.store.get(&key).await.expect("it is there");
            parts.store.delete(&key).await.expect("deleted");
            let found = audited(&parts, "1").await;
            if found.damaged_nodes == 0 && found.damaged_draws > 0 {
                lost = Some((segment, key, bytes));
                break;
            }
            let mode = firn_store::PutMode::Create;
            parts.store.put(&key, vec![bytes], mode).await.expect("put");
        }
        let (lost, key, bytes) = lost.expect("a segment of data alone");
        volume.manifest_begin(FAST).await.expect("begun");
        assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
        let manifest = told(&parts).await.expect("a manifest");
        assert!(!manifest.segments[&lost].is_read(), "entered, not forgotten");
        let found = audited(&parts, "1").await;
        assert!(found.lost_segments.contains(&lost.to_string()), "{found:?}");
        assert_eq!(found.manifest.expect("a manifest").lost, 1);
        let mode = firn_store::PutMode::Create;
        parts.store.put(&key, vec![bytes], mode).await.expect("put");
    })
}

#[test]
fn what_a_tree_needs_and_the_store_lost_is_entered_and_named() {
    what_is_lost_is_entered().expect("the run ends");
    let planted = "volume.gathering_believes_the_listing";
    planting(Some(planted), what_is_lost_is_entered).expect_err(planted);
}

#[test]
fn below_a_node_that_is_lost_there_are_gaps_which_are_said_until_it_is_begun_again() {
    let simulation = Simulation::new(96);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = of_today(&parts, config()).await;
            let before = listed(&parts).await;
            let mut lost = None;
            for segment in before {
                let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
                let bytes = parts.store.get(&key).await.expect("it is there");
                parts.store.delete(&key).await.expect("deleted");
                // Not the root itself.
                let request = volume.verify(&|_| {}).await.expect("verified");
                if !request.damages.is_empty() && audited_if_there(&parts).await > 0 {
                    lost = Some((key, bytes));
                    break;
                }
                let mode = firn_store::PutMode::Create;
                parts.store.put(&key, vec![bytes], mode).await.expect("put");
            }
            let (key, bytes) = lost.expect("a segment with a node");
            volume.manifest_begin(FAST).await.expect("begun");
            let ManifestStatus::Gathering(gaps) = until_over(&volume, &parts).await else {
                panic!("no gap: {:?}", volume.manifest_status());
            };
            assert!(
                gaps.stage == GatheringStage::Gaps && gaps.unreadable > 0,
                "{gaps:?}"
            );
            let audit = audited(&parts, "1").await.manifest.expect("a manifest");
            assert!(audit.gathering.is_some_and(|gathering| gathering.has_gaps));
            let mode = firn_store::PutMode::Create;
            parts.store.put(&key, vec![bytes], mode).await.expect("put");
            volume.manifest_begin(FAST).await.expect("begun again");
            assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
        })
        .expect("the run ends");
}

async fn audited_if_there(parts: &Parts) -> u64 {
    audited(parts, "1").await.damaged_nodes
}

#[test]
fn a_clone_of_a_volume_whose_manifest_is_not_whole_gathers_its_own() {
    let simulation = Simulation::new(97);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let clone = simulation
        .run({
            let parts = parts.clone();
            async move {
                let volume = of_today(&parts, config()).await;
                volume.manifest_begin(SLOW).await.expect("begun");
                parts.env.sleep(Duration::from_secs(20)).await;
                let made = volume.clone_snapshot(b"first", "copy").await.expect("cloned");
                assert!(matches!(volume.manifest_status(), ManifestStatus::Gathering(_)));
                made.volume
            }
        })
        .expect("the run ends");
    let elsewhere = world.elsewhere(&simulation, clone);
    simulation
        .run(async move {
            let volume = Volume::open(elsewhere.clone(), config())
                .await
                .expect("it opens")
                .0;
            assert!(matches!(volume.manifest_status(), ManifestStatus::Gathering(_)));
            volume.manifest_begin(FAST).await.expect("a higher rate");
            assert_eq!(until_over(&volume, &elsewhere).await, ManifestStatus::Whole);
            let manifest = told(&elsewhere).await.expect("a manifest");
            let report = volume.verify(&|_| {}).await.expect("verified");
            assert!(report.damages.is_empty());
            let audit = audit_of(&elsewhere).await;
            assert_eq!(audit, Some(1.0), "{manifest:?}");
        })
        .expect("the run ends");
}

async fn audit_of(parts: &Parts) -> Option<f64> {
    use firn_cleaner::{AuditProgress, AuditRequest, audit};
    let request = AuditRequest {
        volume: Some(parts.volume),
        challenges: 688,
        budget: firn_quantity::Money::parse("1").expect("an amount"),
        prices: firn_store::ProviderPrices::named("s3-us-east-1")
            .expect("a book")
            .clone(),
        route: firn_store::Route::Internet,
        seed: Some([7; 32]),
        second: None,
        from: Default::default(),
    };
    let progress = AuditProgress::default();
    let report = audit(
        &parts.env,
        parts.store.clone(),
        &parts.anchor,
        &request,
        &progress,
    )
    .await;
    let volume = report.expect("a report").volumes.remove(0);
    assert!(volume.is_intact(), "{volume:?}");
    volume.manifest.expect("a manifest").coverage()
}

#[test]
fn a_long_segment_is_entered_by_its_index_alone_and_audited_by_it() {
    let simulation = Simulation::new(98);
    let world = World::new(&simulation);
    let (parts, meter) = (world.own_parts(), world.meter());
    let config = VolumeConfig {
        segment_bytes: 4 << 20,
        ..config()
    };
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), FormatOptions::default(), config).await;
            let handle = create(&volume, volume.root(), "file").await;
            for at in 0..24_usize {
                write(&volume, handle, (at as u64) << 20, noise_of(1, at, 1 << 20)).await;
            }
            volume.sync().await.expect("synced");
            let before = meter.usage();
            volume.manifest_begin(FAST).await.expect("begun");
            assert_eq!(until_over(&volume, &parts).await, ManifestStatus::Whole);
            let after = meter.usage();
            let (read, requests) = (
                after.bytes_down - before.bytes_down,
                after.requests() - before.requests(),
            );
            println!("24 MiB in segments of 4 MiB: {read} bytes read, {requests} requests");
            assert!(read < 1 << 20, "{read} bytes");
            is_right(&volume, &parts).await;
            let told = told(&parts).await.expect("a manifest");
            let long = told.segments.iter().find(|(_, entry)| !entry.has_segment_hash());
            let (segment, entry) = long.expect("a long one");
            let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
            let mut altered = parts.store.get(&key).await.expect("it is there").to_vec();
            let last = entry.length as usize - 65;
            altered[last] ^= 1;
            parts.store.delete(&key).await.expect("deleted");
            let mode = firn_store::PutMode::Create;
            parts
                .store
                .put(&key, vec![altered.into()], mode)
                .await
                .expect("put");
            let found = audited(&parts, "1").await;
            assert_eq!(
                found.manifest.expect("a manifest").altered_segments,
                [segment.to_string()]
            );
        })
        .expect("the run ends");
}

#[test]
fn a_volume_that_has_a_manifest_keeps_it_when_one_is_begun() {
    let simulation = Simulation::new(99);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            let before = told(&parts).await.expect("a manifest");
            assert_eq!(
                volume.manifest_begin(FAST).await.expect("asked"),
                ManifestStatus::Whole
            );
            let after = told(&parts).await.expect("a manifest");
            assert!(
                before
                    .segments
                    .keys()
                    .all(|segment| after.segments.contains_key(segment))
            );
        })
        .expect("the run ends");
}
