//! Ingestion and fold by example.

use super::world::{DAY_MS, START_MS, batch, calm, observation, resource, source, tenant};
use crate::{
    Billing, BillingError, Entries, EntryKey, Finding, Hour, Receipt, Reporter, ReporterRole, Totals, layout,
};
use firn_env::{Env, sim::Simulation};
use firn_usage::{Meter, Observation};
use std::time::Duration;

/// Runs a test of an empty ledger, and of a service that may report to it.
fn run<F>(seed: u64, test: impl FnOnce(Env, Billing, Reporter) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let simulation = Simulation::new(seed);
    let env = simulation.env();
    let billing = calm(&env);
    let tested = test(env, billing, Reporter::service(source("api/1")));
    simulation.run(tested).unwrap();
}

fn records(count: u64, from_ms: u64) -> Vec<Observation> {
    (0..count)
        .map(|number| observation("acme", "volume/1", Meter::ROOT_COMMITS, 1 + number, from_ms))
        .collect()
}

fn all(entries: &Entries) -> Vec<(String, ReporterRole, u128, u64)> {
    let row = |(key, totals): (&EntryKey, &Totals)| {
        (
            key.resource.to_string(),
            key.role,
            totals.quantity,
            totals.records,
        )
    };
    entries.iter().map(row).collect()
}

const EVER: (Hour, Hour) = (Hour(0), Hour(u32::MAX));

#[test]
fn duplicates_count_once_and_overlaps_keep_what_is_new() {
    run(1, |env, billing, api| async move {
        env.sleep(Duration::from_secs(60)).await;
        let whole = batch("api/1", 1, 1, records(10, START_MS));
        let receipt = |kept, duplicates| Receipt { kept, duplicates };
        assert_eq!(
            billing.accept(&api, &whole.part(1, 5)).await.unwrap(),
            receipt(4, 0)
        );
        assert_eq!(
            billing.accept(&api, &whole.part(1, 5)).await.unwrap(),
            receipt(0, 4)
        );
        assert_eq!(
            billing.accept(&api, &whole.part(8, 11)).await.unwrap(),
            receipt(3, 0)
        );
        assert_eq!(
            billing.accept(&api, &whole.part(3, 10)).await.unwrap(),
            receipt(3, 4)
        );
        assert_eq!(billing.accept(&api, &whole).await.unwrap(), receipt(0, 10));
        assert_eq!(billing.fold_all().await.unwrap(), 10);
        assert_eq!(billing.fold_all().await.unwrap(), 0);
        let totals = billing.totals(&tenant("acme"), EVER.0, EVER.1).await.unwrap();
        assert_eq!(
            all(&totals),
            [("volume/1".into(), ReporterRole::Observed, 55, 10)]
        );
        assert_eq!(billing.report_gaps().await.unwrap(), 0);
    });
}

#[test]
fn a_gap_is_reported_once_when_it_stays_and_what_fills_it_later_counts() {
    run(2, |env, billing, api| async move {
        let whole = batch("api/1", 1, 1, records(10, START_MS));
        billing.accept(&api, &whole.part(1, 4)).await.unwrap();
        billing.accept(&api, &whole.part(7, 11)).await.unwrap();
        assert_eq!(billing.report_gaps().await.unwrap(), 0, "it may be on its way");
        env.sleep(Duration::from_secs(601)).await;
        assert_eq!(billing.report_gaps().await.unwrap(), 1);
        assert_eq!(billing.report_gaps().await.unwrap(), 0);
        let page = billing.audit_events(None, None, 10).await.unwrap();
        assert!(matches!(
            page.events[0].finding,
            Finding::Gap {
                first: 4,
                next: 7,
                ..
            }
        ));
        assert_eq!(billing.accept(&api, &whole.part(4, 7)).await.unwrap().kept, 3);
        assert_eq!(billing.fold_all().await.unwrap(), 10);
    });
}

#[test]
fn more_gaps_than_are_remembered_are_refused_until_the_first_are_filled() {
    run(3, |_, billing, api| async move {
        let whole = batch("api/1", 1, 1, records(600, START_MS));
        for sequence in (2..=256).step_by(2) {
            billing
                .accept(&api, &whole.part(sequence, sequence + 1))
                .await
                .unwrap();
        }
        let refused = billing.accept(&api, &whole.part(258, 259)).await;
        assert!(
            matches!(refused, Err(BillingError::TooManyGaps { .. })),
            "{refused:?}"
        );
        // All of them at once: more parts than one transaction takes.
        assert_eq!(billing.accept(&api, &whole).await.unwrap().kept, 600 - 128);
        assert_eq!(billing.fold_all().await.unwrap(), 600);
    });
}

#[test]
fn a_chunk_of_more_tenants_and_hours_than_a_transaction_has_items_is_folded_in_steps() {
    run(4, |env, billing, api| async move {
        env.sleep(Duration::from_secs(20 * 86_400)).await;
        let mut many = Vec::new();
        for number in 0..1500_u64 {
            let who = format!("tenant-{}", number % 70);
            let when = START_MS + (number % 7) * 3_600_000;
            many.push(observation(&who, "disk/1", Meter::NODE_OPERATIONS, number, when));
            // One tenant with more hours than a transaction has items.
            let when = START_MS + (number % 300) * 3_600_000;
            many.push(observation("tenant-5", "disk/2", Meter::NODE_OPERATIONS, 1, when));
        }
        let whole = batch("api/1", 1, 1, many);
        billing.accept(&api, &whole.part(1, 1200)).await.unwrap();
        billing
            .accept(&api, &whole.part(1200, whole.next_sequence()))
            .await
            .unwrap();
        let mut steps = 0;
        while billing.fold(1).await.unwrap() > 0 {
            steps += 1;
            assert!(steps < 100);
        }
        assert!(steps > 5, "{steps}");
        let mut quantity = 0;
        let mut counted = 0;
        for number in 0..70 {
            let who = tenant(&format!("tenant-{number}"));
            for (key, totals) in billing.totals(&who, EVER.0, EVER.1).await.unwrap() {
                counted += totals.records;
                if key.resource == resource("disk/1") {
                    quantity += totals.quantity;
                }
            }
        }
        assert_eq!((counted, quantity), (3000, (0..1500).sum()));
    });
}

#[test]
fn an_hour_of_many_resources_is_kept_in_parts() {
    run(5, |env, billing, api| async move {
        env.sleep(Duration::from_secs(60)).await;
        for round in 0..3_u64 {
            let many: Vec<_> = (0..2000_u64)
                .map(|number| {
                    let name = format!("volume/{:0>100}", (number + round * 1000) % 4000);
                    observation("acme", &name, Meter::ROOT_COMMITS, 1 << 60, START_MS)
                })
                .collect();
            let mut at = 0;
            while at < many.len() {
                let count = firn_usage::UsageBatch::fitting(&many[at..]);
                let part = batch("api/1", 1 + round, 1 + at as u64, many[at..at + count].to_vec());
                billing.accept(&api, &part).await.unwrap();
                at += count;
            }
            billing.fold_all().await.unwrap();
        }
        let page = billing
            .table
            .query(&layout::hours(&tenant("acme")), "", None, 100)
            .await
            .unwrap();
        assert!(page.items.len() > 1, "{} part", page.items.len());
        let totals = billing.totals(&tenant("acme"), EVER.0, EVER.1).await.unwrap();
        assert_eq!(totals.len(), 4000);
        assert_eq!(
            totals.values().map(|totals| totals.quantity).sum::<u128>(),
            6000 << 60
        );
    });
}

#[test]
fn an_edge_reports_for_its_own_tenant_only_and_is_never_charged() {
    run(6, |env, billing, _| async move {
        env.sleep(Duration::from_secs(60)).await;
        let edge = Reporter::edge(source("edge/7"), tenant("acme"));
        let mut said = records(3, START_MS);
        said.push(observation(
            "beta",
            "volume/9",
            Meter::ROOT_COMMITS,
            1_000_000,
            START_MS,
        ));
        billing.accept(&edge, &batch("edge/7", 1, 1, said)).await.unwrap();
        billing.fold_all().await.unwrap();
        let totals = billing.totals(&tenant("acme"), EVER.0, EVER.1).await.unwrap();
        assert_eq!(all(&totals), [("volume/1".into(), ReporterRole::Advisory, 6, 3)]);
        assert!(
            billing
                .totals(&tenant("beta"), EVER.0, EVER.1)
                .await
                .unwrap()
                .is_empty()
        );
        let page = billing
            .audit_events(Some(&tenant("acme")), None, 10)
            .await
            .unwrap();
        assert!(
            matches!(&page.events[0].finding, Finding::ForeignTenant { claimed, records: 1, .. } if *claimed == tenant("beta"))
        );
        let invoice = billing
            .invoice(&tenant("acme"), crate::Month::of_ms(START_MS))
            .await
            .unwrap();
        assert_eq!((invoice.lines.len(), invoice.records), (0, 0));

        let other = batch("edge/8", 1, 1, records(1, START_MS));
        let refused = billing.accept(&edge, &other).await;
        assert!(matches!(refused, Err(BillingError::NotYourSource { .. })));
        let _ = billing.accept(&edge, &other).await;
        let page = billing
            .audit_events(Some(&tenant("acme")), None, 10)
            .await
            .unwrap();
        assert_eq!(page.events.len(), 2, "one event for all its tries of an hour");
    });
}

#[test]
fn a_clock_that_is_ahead_does_not_move_usage_into_the_future() {
    run(7, |env, billing, api| async move {
        env.sleep(Duration::from_secs(7200)).await;
        let mut some = records(1, START_MS + 40 * DAY_MS);
        some.extend(records(1, START_MS + 1000));
        billing.accept(&api, &batch("api/1", 1, 1, some)).await.unwrap();
        billing.fold_all().await.unwrap();
        let hours = billing.hours(&tenant("acme"), EVER.0, EVER.1).await.unwrap();
        let named: Vec<_> = hours.keys().map(Hour::to_string).collect();
        assert_eq!(named, ["2026-01-01T00", "2026-01-01T02"]);
        let page = billing.audit_events(None, None, 10).await.unwrap();
        assert!(matches!(
            page.events[0].finding,
            Finding::ClockAhead { records: 1, .. }
        ));
    });
}
