//! Audits by the manifest: what the store lost or altered is named although no tree needs anything of it, and what a cleaner took away is not.

use crate::{
    files::{create, write},
    manifest::{WITH, churn, clean, format_and_open, noise_of, told},
    world::{World, config},
};
use firn_cleaner::{AuditProgress, AuditRequest, VolumeAudit, audit};
use firn_env::{mutants::planting, sim::Simulation};
use firn_format::{FOOTER_BYTES, SegmentId, decode_footer};
use firn_quantity::Money;
use firn_store::{ObjectKey, ProviderPrices, PutMode, Route};
use firn_vfs::Vfs;
use firn_volume::{FormatOptions, Parts, VolumeConfig};

pub async fn audited(parts: &Parts, budget: &str) -> VolumeAudit {
    let request = AuditRequest {
        volume: None,
        challenges: 688,
        budget: Money::parse(budget).expect("an amount"),
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
    report.expect("a report").volumes.remove(0)
}

/// A segment all of whose contents `churn` wrote anew twice: no tree needs it.
async fn one_of_the_first(parts: &Parts) -> SegmentId {
    let manifest = told(parts).await.expect("a manifest");
    *manifest.segments.keys().nth(5).expect("some")
}

async fn replace(parts: &Parts, segment: SegmentId, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
    let whole = parts.store.get(&key).await.expect("it is there").to_vec();
    let mut changed = whole.clone();
    change(&mut changed);
    put(parts, segment, changed).await;
    whole
}

async fn put(parts: &Parts, segment: SegmentId, bytes: Vec<u8>) {
    let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
    parts.store.delete(&key).await.expect("deleted");
    parts
        .store
        .put(&key, vec![bytes.into()], PutMode::Create)
        .await
        .expect("put");
}

/// That one segment is named and nothing that a tree needs is concerned.
fn names(found: &VolumeAudit, segment: SegmentId, is_lost: bool) {
    let manifest = found.manifest.as_ref().expect("a manifest");
    assert_eq!(
        (manifest.lost, manifest.altered),
        (u64::from(is_lost), u64::from(!is_lost)),
        "{found:?}"
    );
    let named = if is_lost {
        &found.lost_segments
    } else {
        &manifest.altered_segments
    };
    assert_eq!(*named, [segment.to_string()]);
    assert!(found.damaged_segments.contains(&segment));
    assert!(!found.is_intact() && found.is_complete);
    assert_eq!(
        (found.damaged_nodes, found.damaged_draws),
        (0, 0),
        "no tree needs it"
    );
}

#[test]
fn what_no_tree_needs_and_is_lost_or_altered_is_named() {
    let simulation = Simulation::new(81);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            let whole = audited(&parts, "1").await;
            let manifest = whole.manifest.clone().expect("a manifest");
            assert!(whole.is_intact() && whole.is_complete, "{whole:?}");
            assert_eq!((manifest.shown, manifest.intact), (manifest.segments, 688));

            // All that was written in it was written anew twice.
            let segment = one_of_the_first(&parts).await;
            let bytes = replace(&parts, segment, |bytes| bytes[100] ^= 1).await;
            names(&audited(&parts, "1").await, segment, false);
            put(&parts, segment, bytes[..bytes.len() - 1].to_vec()).await;
            names(&audited(&parts, "1").await, segment, false);
            let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
            parts.store.delete(&key).await.expect("deleted");
            names(&audited(&parts, "1").await, segment, true);
            let found = audited(&parts, "0").await;
            assert!(!found.is_complete && found.manifest.is_none(), "{found:?}");
            put(&parts, segment, bytes).await;
            assert!(audited(&parts, "1").await.is_intact());
        })
        .expect("the run ends");
}

#[test]
fn an_audit_that_believes_the_listing_does_not_find_what_was_altered() {
    let simulation = Simulation::new(81);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let found = planting(Some("cleaner.audit_believes_the_listing"), || {
        simulation.run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            let segment = one_of_the_first(&parts).await;
            replace(&parts, segment, |bytes| bytes[100] ^= 1).await;
            audited(&parts, "1").await
        })
    });
    assert!(
        found.expect("the run ends").is_intact(),
        "the planted bug has no effect"
    );
}

/// An audit of a volume whose manifest begins with a segment that is lost and that no tree needs.
fn audited_without_the_first() -> VolumeAudit {
    let simulation = Simulation::new(81);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let work = async move {
        let volume = format_and_open(parts.clone(), WITH, config()).await;
        churn(&volume, &parts).await;
        let manifest = told(&parts).await.expect("a manifest");
        let first = *manifest.segments.keys().next().expect("some");
        let key = ObjectKey::new(&first.key(&parts.anchor.family()));
        parts.store.delete(&key).await.expect("deleted");
        audited(&parts, "1").await
    };
    simulation.run(work).expect("the run ends")
}

#[test]
fn an_audit_that_forgets_an_entry_does_not_name_it() {
    let found = audited_without_the_first();
    assert_eq!(
        (
            found.lost_segments.len(),
            found.damaged_nodes,
            found.damaged_draws
        ),
        (1, 0, 0)
    );
    let forgetful = planting(Some("cleaner.audit_forgets_an_entry"), audited_without_the_first);
    assert!(
        forgetful.is_intact(),
        "the planted bug has no effect: {forgetful:?}"
    );
}

#[test]
fn of_a_large_segment_the_index_and_an_object_are_compared() {
    let simulation = Simulation::new(82);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let config = VolumeConfig {
        segment_bytes: 4 << 20,
        ..config()
    };
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config).await;
            let handle = create(&volume, volume.root(), "file").await;
            for number in 0..3 {
                for at in 0..2_usize {
                    write(&volume, handle, (at as u64) << 20, noise_of(number, at, 1 << 20)).await;
                }
                volume.sync().await.expect("synced");
            }
            let told = told(&parts).await.expect("a manifest");
            let (segment, _) = told
                .segments
                .iter()
                .find(|(_, entry)| entry.length > 1 << 20)
                .expect("a large one");
            let bytes = {
                let key = ObjectKey::new(&segment.key(&parts.anchor.family()));
                parts.store.get(&key).await.expect("it is there").to_vec()
            };
            let footer = decode_footer(&bytes[bytes.len() - FOOTER_BYTES..]).expect("a footer");
            let index = footer.index_offset as usize;
            let mut altered = bytes.clone();
            altered[..index]
                .iter_mut()
                .skip(60)
                .step_by(4096)
                .for_each(|byte| *byte ^= 1);
            put(&parts, *segment, altered).await;
            names(&audited(&parts, "1").await, *segment, false);
            // An index that is consistent in itself is not the manifest's.
            let mut altered = bytes.clone();
            let length = altered.len();
            altered[length - FOOTER_BYTES - 68] ^= 1;
            let checksum = crc32c_of(&altered[index..length - FOOTER_BYTES]);
            altered[length - FOOTER_BYTES + 16..length - FOOTER_BYTES + 20].copy_from_slice(&checksum);
            let checksum = crc32c_of(&altered[length - FOOTER_BYTES..length - 12]);
            altered[length - 12..length - 8].copy_from_slice(&checksum);
            decode_footer(&altered[length - FOOTER_BYTES..]).expect("a footer");
            put(&parts, *segment, altered).await;
            names(&audited(&parts, "1").await, *segment, false);
            put(&parts, *segment, bytes).await;
            assert!(audited(&parts, "1").await.is_intact());
        })
        .expect("the run ends");
}

/// The checksum of the field's definition, bit by bit: the test has no other use for one.
fn crc32c_of(bytes: &[u8]) -> [u8; 4] {
    let mut register = !0_u32;
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = register >> 1 ^ (0x82f6_3b78 & (register & 1).wrapping_neg());
        }
    }
    (!register).to_le_bytes()
}

#[test]
fn what_a_cleaner_took_away_is_no_loss_and_without_a_manifest_nothing_is_said() {
    for options in [WITH, FormatOptions::default()] {
        let simulation = Simulation::new(83);
        let world = World::new(&simulation);
        let parts = world.own_parts();
        simulation
            .run(async move {
                let volume = format_and_open(parts.clone(), options, config()).await;
                churn(&volume, &parts).await;
                assert!(clean(&parts).await > 5, "much was retired and deleted");
                // The head has taken nothing in yet.
                let found = audited(&parts, "1").await;
                assert!(found.is_intact() && found.is_complete, "{found:?}");
                assert_eq!(found.manifest.is_some(), options.manifest);
                drop(volume);
            })
            .expect("the run ends");
    }
}
