//! The cost of draws over a manifest as it is: without sums in its nodes all leaves are read (decision 0214). Printed for the decision.

use crate::{
    files::{create, write},
    manifest::{WITH, format_and_open, told},
    world::{World, config},
};
use firn_cleaner::{AuditProgress, AuditReport, AuditRequest, audit};
use firn_env::sim::Simulation;
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route};
use firn_vfs::Vfs;
use firn_volume::{FormatOptions, VolumeConfig};

/// Entries of a leaf.
const LEAF: u64 = 128;
/// Names in an answer of a LIST.
const NAMES: u64 = 1000;

/// An audit with so many challenges of a volume of so many segments, with a manifest or without; and its segments.
fn audited(segments: u64, challenges: u32, options: FormatOptions) -> (AuditReport, u64) {
    let simulation = Simulation::new(7);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let work = async move {
        // A block of noise fills a segment.
        let config = VolumeConfig {
            segment_bytes: 16 << 10,
            ..config()
        };
        let volume = format_and_open(parts.clone(), options, config).await;
        let file = create(&volume, volume.root(), "archive").await;
        let mut noise = blake3::Hasher::new().finalize_xof();
        for block in 0..segments {
            let mut bytes = vec![0; 32 << 10];
            noise.fill(&mut bytes);
            write(&volume, file, block * (32 << 10), bytes).await;
        }
        volume.sync().await.expect("committed");
        write(&volume, file, 0, vec![1]).await;
        volume.drain().await.expect("drained");
        let entered = told(&parts).await.map_or(0, |manifest| manifest.segments.len());
        let request = AuditRequest {
            volume: None,
            challenges,
            budget: Money::parse("1").expect("an amount"),
            prices: ProviderPrices::named("s3-us-east-1").expect("a book").clone(),
            route: Route::Internet,
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
        (report.expect("a report"), entered as u64)
    };
    simulation.run(work).expect("the run ends")
}

#[test]
fn draws_over_a_manifest_cost_its_leaves_and_a_listing() {
    println!(
        "| segments | leaves | challenges | GETs | LISTs | read | money | a log of so much, in segments of 4 MiB |\n|---|---|---|---|---|---|---|---|"
    );
    for segments in [256, 1024, 2048] {
        for challenges in [1, 688] {
            let (without, _) = audited(segments, challenges, FormatOptions::default());
            let (with, entered) = audited(segments, challenges, WITH);
            assert!(with.is_intact() && with.is_complete(), "{with:?}");
            assert!(entered >= segments, "{entered}");
            let leaves = entered.div_ceil(LEAF);
            let more = with.usage.since(&without.usage);
            let gets = more.gets + more.ranged_gets;
            println!(
                "| {entered} | {leaves} | {challenges} | {gets} | {} | {:.1} KB | ${:.6} | {:.1} GB |",
                more.lists,
                more.bytes_down as f64 / 1e3,
                (with.cost.nanos() - without.cost.nanos()) as f64 / 1e9,
                entered as f64 * 4.194304e-3,
            );
            // A leaf, a node above each 128 of them and one above; of each draw an index and an object at most.
            let most = leaves + leaves.div_ceil(LEAF) + 2 + 3 * u64::from(challenges);
            assert!(
                gets <= most,
                "{gets} for {leaves} leaves and {challenges} challenges"
            );
            assert!(
                more.lists <= 2 * entered.div_ceil(NAMES) + 2,
                "{} lists",
                more.lists
            );
        }
    }
}
