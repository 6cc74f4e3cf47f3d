//! A manifest that names a segment which no store ever had: audits and repairs call it by its name, and nothing waits for it for ever.

use crate::{
    files::{create, write},
    manifest::{WITH, format_and_open, limits, told},
    manifest_audit::audited,
    world::{World, config},
};
use firn_anchor::{Retirement, RetirementOutcome, WriterTenure};
use firn_cleaner::{AuditProgress, AuditRequest, Cleaner, Repair, SecondToAudit, audit};
use firn_env::{mutants::planting, sim::Simulation};
use firn_format::{ListedSegment, SegmentId, WriterId};
use firn_mirror::{Mirror, MirrorOptions, NoLocalCopies};
use firn_quantity::Money;
use firn_store::{MemoryStore, ProviderPrices, Route, Store};
use firn_vfs::Vfs;
use firn_volume::{Parts, Volume};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Whose segment it would be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    /// A cleaner's, which told of what it then did not put.
    Cleaner,
    /// A writer's that there never was.
    Nobody,
}

/// Has the manifest told of a segment that was never put.
async fn told_of(parts: &Parts, of: Of) -> SegmentId {
    let anchor = &parts.anchor;
    let seen = anchor.cleaner_round().await.expect("the table answers");
    let mover = anchor
        .next_writer_for(WriterTenure::Cleaner)
        .await
        .expect("drawn");
    let registration = anchor.writer(mover).await.expect("the table answers");
    let writer = match of {
        Of::Cleaner => mover,
        Of::Nobody => WriterId(anchor.undrawn_writer().await.expect("known").0 + 5),
    };
    let segment = SegmentId { writer, sequence: 3 };
    let manifest = told(parts).await.expect("a manifest");
    let entry = *manifest.segments.values().next().expect("some");
    let retirement = Retirement {
        seen,
        mover: (mover, registration.expect("registered").1),
        segments: Vec::new(),
        proposals: Vec::new(),
        written: Some(vec![ListedSegment { segment, entry }]),
    };
    let outcome = anchor.retire(retirement).await.expect("the table answers");
    assert_eq!(outcome, RetirementOutcome::Done);
    segment
}

async fn some_commits(volume: &Volume, parts: &Parts, name: &str) {
    let handle = create(volume, volume.root(), name).await;
    for number in 0..3 {
        write(volume, handle, number * 1000, vec![number as u8; 1000]).await;
        volume.sync().await.expect("synced");
        parts.env.sleep(Duration::from_secs(1)).await;
    }
}

async fn repair(parts: &Parts, second: &Arc<dyn Store>, segment: SegmentId) -> Repair {
    let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, limits());
    let lost = BTreeSet::from([segment]);
    let repaired = cleaner.repair(Some(second.clone()), &lost, false).await;
    repaired.expect("a repair")
}

/// What the second store's audit says of it.
async fn second_named(parts: &Parts, second: &Arc<dyn Store>) -> Vec<String> {
    let prices = ProviderPrices::named("s3-us-east-1").expect("a book").clone();
    let request = AuditRequest {
        volume: None,
        challenges: 100,
        budget: Money::parse("1").expect("an amount"),
        prices: prices.clone(),
        route: Route::Internet,
        seed: Some([7; 32]),
        from: Default::default(),
        second: Some(SecondToAudit {
            store: second.clone(),
            prices,
            route: Route::Internet,
            is_behind: false,
        }),
    };
    let progress = AuditProgress::default();
    let found = audit(
        &parts.env,
        parts.store.clone(),
        &parts.anchor,
        &request,
        &progress,
    );
    let found = found.await.expect("a report").volumes.remove(0);
    let second = found.second.expect("it was to be audited");
    assert_eq!((second.missing, second.waiting), (1, 0), "{second:?}");
    second.named.into_iter().map(|damage| damage.detail).collect()
}

/// Repairs until nothing waits, an hour between two; how many of them waited, and what the last one said.
fn repaired(of: Of) -> (u32, Repair) {
    let simulation = Simulation::new(87);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let work = async move {
        let volume = format_and_open(parts.clone(), WITH, config()).await;
        some_commits(&volume, &parts, "before").await;
        assert!(audited(&parts, "1").await.is_intact());
        let second: Arc<dyn Store> = Arc::new(MemoryStore::new(&parts.env));
        let options = MirrorOptions {
            keep_deleted: Duration::from_secs(3600),
            compare_every: Duration::from_secs(3600),
        };
        let stores = (parts.store.clone(), second.clone());
        let mirror = Mirror::new(&parts.env, stores, parts.anchor.clone(), Arc::default(), options);
        let segment = told_of(&parts, of).await;
        some_commits(&volume, &parts, "after").await;
        assert!(
            told(&parts)
                .await
                .expect("a manifest")
                .segments
                .contains_key(&segment),
            "the manifest has taken it in"
        );

        // Lost, and of no file.
        let found = audited(&parts, "1").await;
        assert_eq!(found.lost_segments, [segment.to_string()]);
        assert_eq!((found.damaged_nodes, found.damaged_draws), (0, 0), "{found:?}");
        assert!(found.damaged.is_empty() && found.is_complete, "{found:?}");
        let manifest = found.manifest.expect("a manifest");
        assert_eq!((manifest.lost, manifest.altered), (1, 0));

        // Who confirms and who mirrors goes by what was put, and is done with it.
        let compared = mirror.compare(&NoLocalCopies).await.expect("compared");
        assert_eq!((compared.lost_segments, compared.damaged), (0, 0));
        parts.env.sleep(Duration::from_secs(600)).await;
        assert_eq!(volume.status().read_back.unconfirmed, 0);
        let compared = mirror.compare(&NoLocalCopies).await.expect("compared");
        assert_eq!(compared.copied, 0, "nothing is left to copy");
        assert!(mirror.suspects().is_empty() && mirror.status().backlog_objects == 0);
        let named = second_named(&parts, &second).await;
        assert!(named[0].starts_with("it is in neither store"), "{named:?}");

        let mut waited = 0;
        loop {
            let repaired = repair(&parts, &second, segment).await;
            if repaired.waiting.is_empty() || waited == 5 {
                some_commits(&volume, &parts, "repaired").await;
                let is_named = of == Of::Nobody;
                let found = audited(&parts, "1").await;
                assert_eq!(found.is_intact(), !is_named, "{found:?}");
                return (waited, repaired);
            }
            waited += 1;
            parts.env.sleep(Duration::from_secs(3600)).await;
        }
    };
    simulation.run(work).expect("the run ends")
}

#[test]
fn what_a_cleaner_told_of_and_never_put_is_needed_by_nobody_once_that_cleaner_is_over() {
    let (waited, done) = repaired(Of::Cleaner);
    assert!(waited <= 2, "{waited}");
    assert_eq!((done.unneeded.len(), done.beyond.len()), (1, 0), "{done:?}");
}

#[test]
fn what_no_writer_can_have_put_is_called_so_and_nothing_waits_for_it() {
    let (waited, done) = repaired(Of::Nobody);
    assert_eq!((waited, done.beyond.len()), (0, 1), "{done:?}");
    let detail = &done.beyond[0].detail;
    assert!(
        detail.contains("no segment of this name ever existed"),
        "{detail}"
    );
    let planted = "cleaner.repair_waits_for_what_never_was";
    let (waited, _) = planting(Some(planted), || repaired(Of::Nobody));
    assert_eq!(waited, 5, "it waits for ever");
}
