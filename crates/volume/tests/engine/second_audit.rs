//! Audits of a second store: what is missing or altered there is found as often as the report says, and what is right in the first harms no reader.

use crate::{
    manifest::{WITH, churn, format_and_open, told},
    world::{World, config},
};
use firn_cleaner::{
    AuditProgress, AuditReport, AuditRequest, SecondAudit, SecondToAudit, VolumeAudit, audit,
};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::SegmentId;
use firn_quantity::Money;
use firn_store::{MemoryStore, ObjectKey, ProviderPrices, PutMode, Route, Store};
use firn_volume::{FormatOptions, Parts};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const AUDITS: u8 = 200;
const CHALLENGES: u32 = 30;

async fn report(
    parts: &Parts,
    second: &Arc<dyn Store>,
    (seed, challenges): (u8, u32),
    budget: &str,
) -> AuditReport {
    let prices = ProviderPrices::named("s3-us-east-1").expect("a book").clone();
    let request = AuditRequest {
        volume: None,
        challenges,
        budget: Money::parse(budget).expect("an amount"),
        prices: prices.clone(),
        route: Route::Internet,
        seed: Some([seed; 32]),
        from: Default::default(),
        second: Some(SecondToAudit {
            store: second.clone(),
            prices,
            route: Route::Internet,
            is_behind: false,
        }),
    };
    let progress = AuditProgress::default();
    let (env, first) = (&parts.env, parts.store.clone());
    let audited = audit(env, first, &parts.anchor, &request, &progress).await;
    audited.expect("a report")
}

async fn audited(parts: &Parts, second: &Arc<dyn Store>, draws: (u8, u32)) -> (VolumeAudit, SecondAudit) {
    let volume = report(parts, second, draws, "1").await.volumes.remove(0);
    let second = volume.second.clone().expect("it was to be audited");
    (volume, second)
}

async fn put(store: &Arc<dyn Store>, key: &ObjectKey, bytes: Vec<u8>) {
    store.delete(key).await.expect("deleted");
    let put = store.put(key, vec![bytes.into()], PutMode::Create).await;
    put.expect("put");
}

fn key(parts: &Parts, segment: SegmentId) -> ObjectKey {
    ObjectKey::new(&segment.key(&parts.anchor.family()))
}

/// A store with a copy of each segment.
async fn copied(env: &Env, parts: &Parts) -> Arc<dyn Store> {
    let second: Arc<dyn Store> = Arc::new(MemoryStore::new(env));
    let prefix = format!("{}/log/", parts.anchor.family());
    let mut after = None;
    loop {
        let page = parts.store.list(&prefix, after.as_ref()).await.expect("listed");
        for object in &page.objects {
            let bytes = parts.store.get(&object.key).await.expect("read");
            put(&second, &object.key, bytes.to_vec()).await;
        }
        after = page.objects.last().map(|object| object.key.clone());
        if !page.more {
            return second;
        }
    }
}

/// Segments and their lengths, as the manifest says.
async fn lengths(parts: &Parts) -> BTreeMap<SegmentId, u64> {
    let manifest = told(parts).await.expect("a manifest");
    let segments = manifest.segments.iter();
    segments
        .map(|(segment, entry)| (*segment, u64::from(entry.length)))
        .collect()
}

/// Of so many audits of a second store of which a part is altered: how many noticed, and how many should have, with the standard deviation.
fn noticed(options: FormatOptions) -> (f64, f64, f64) {
    let simulation = Simulation::new(91);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    let work = async move {
        let volume = format_and_open(parts.clone(), options, config()).await;
        churn(&volume, &parts).await;
        let second = copied(&parts.env, &parts).await;
        let lengths = lengths(&parts).await;
        let all: u64 = lengths.values().sum();
        let mut altered_bytes = 0;
        for (segment, length) in lengths.iter().step_by(7) {
            if altered_bytes > all / 30 {
                break;
            }
            let mut bytes = second.get(&key(&parts, *segment)).await.expect("a copy").to_vec();
            bytes.iter_mut().skip(60).step_by(50).for_each(|byte| *byte ^= 1);
            put(&second, &key(&parts, *segment), bytes).await;
            altered_bytes += length;
        }
        let share = altered_bytes as f64 / all as f64;
        let (mut noticed, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for seed in 0..AUDITS {
            let (volume, found) = audited(&parts, &second, (seed, CHALLENGES)).await;
            assert!(volume.is_intact() && volume.is_complete, "{volume:?}");
            assert_eq!((found.answered(), found.missing), (u64::from(CHALLENGES), 0));
            assert_eq!(found.copies, found.segments);
            noticed += f64::from(u8::from(!found.is_intact()));
            let probability = found.probability(share);
            expected += probability;
            variance += probability * (1.0 - probability);
        }
        (noticed, expected, f64::sqrt(variance))
    };
    simulation.run(work).expect("the run ends")
}

#[test]
fn what_is_altered_in_the_second_store_is_found_as_often_as_is_told() {
    let (found, expected, deviation) = noticed(WITH);
    println!("{found} of {AUDITS} audits noticed, {expected:.1} by their own word");
    assert!(expected > 20.0 && expected < 180.0, "the test tells nothing");
    assert!(
        (found - expected).abs() <= 4.5 * deviation,
        "{found} noticed, {expected} ± {deviation}"
    );
    let (found, ..) = planting(Some("cleaner.audit_believes_the_listing"), || noticed(WITH));
    assert!(
        found < expected - 4.5 * deviation,
        "the planted bug has no effect"
    );
}

#[test]
fn what_is_missing_there_is_named_once_it_is_old_and_what_it_waits_for_is_told() {
    let simulation = Simulation::new(92);
    let world = World::new(&simulation);
    let parts = world.own_parts();
    simulation
        .run(async move {
            let volume = format_and_open(parts.clone(), WITH, config()).await;
            churn(&volume, &parts).await;
            let second = copied(&parts.env, &parts).await;
            let (whole, found) = audited(&parts, &second, (1, 100)).await;
            assert!(
                found.is_intact() && found.is_complete && found.has_manifest,
                "{found:?}"
            );
            assert!(whole.is_complete);

            let segment = *lengths(&parts).await.keys().nth(3).expect("some");
            second.delete(&key(&parts, segment)).await.expect("deleted");
            let (_, found) = audited(&parts, &second, (1, 100)).await;
            assert_eq!((found.waiting, found.missing), (1, 0), "it is young: {found:?}");
            assert!(found.is_intact());
            parts.env.sleep(Duration::from_secs(72 * 3600)).await;
            let (volume, found) = audited(&parts, &second, (1, 100)).await;
            assert_eq!((found.waiting, found.missing), (0, 1), "{found:?}");
            assert_eq!(found.named[0].key, key(&parts, segment).as_str());
            assert!(volume.is_intact(), "the first store has it: {volume:?}");

            // What the first store lost is not there to be copied, however young.
            let newest = *lengths(&parts).await.keys().last().expect("some");
            let bytes = parts.store.get(&key(&parts, newest)).await.expect("read");
            parts.store.delete(&key(&parts, newest)).await.expect("deleted");
            second.delete(&key(&parts, newest)).await.expect("deleted");
            let (volume, found) = audited(&parts, &second, (1, 100)).await;
            assert!(!volume.is_intact() && found.missing == 2, "{found:?}");
            put(&parts.store, &key(&parts, newest), bytes.to_vec()).await;

            // The money is one: what the first takes is not there for the second.
            let found = report(&parts, &second, (1, 100), "0").await;
            let of_second = found.volumes[0].second.as_ref().expect("it is told");
            assert_eq!((of_second.answered(), of_second.is_complete), (0, false));
            assert!(!found.is_complete());
        })
        .expect("the run ends");
}

#[test]
fn without_a_manifest_what_the_trees_drew_is_read_in_the_second_store() {
    let altered = |mutant: Option<&'static str>| {
        let simulation = Simulation::new(93);
        let world = World::new(&simulation);
        let parts = world.own_parts();
        planting(mutant, || {
            simulation.run(async move {
                let volume = format_and_open(parts.clone(), FormatOptions::default(), config()).await;
                churn(&volume, &parts).await;
                let second = copied(&parts.env, &parts).await;
                let (_, before) = audited(&parts, &second, (1, 500)).await;
                for object in second.list("", None).await.expect("listed").objects {
                    let mut bytes = second.get(&object.key).await.expect("read").to_vec();
                    bytes.iter_mut().skip(60).step_by(50).for_each(|byte| *byte ^= 1);
                    put(&second, &object.key, bytes).await;
                }
                let (volume, after) = audited(&parts, &second, (1, 500)).await;
                assert!(volume.is_intact());
                (before, after)
            })
        })
        .expect("the run ends")
    };
    let (before, after) = altered(None);
    assert!(
        before.is_intact() && before.is_complete && !before.has_manifest,
        "{before:?}"
    );
    assert_eq!(before.intact, 500);
    assert!(after.damaged > 450 && after.altered > 0, "{after:?}");
    let (_, believed) = altered(Some("cleaner.audit_believes_the_second_store"));
    assert!(believed.is_intact(), "the planted bug has no effect");
}
