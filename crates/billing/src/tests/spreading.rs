//! A ledger that is spread over shards while it works, beside instances that do not spread. Histories do it at random (`world.rs`); these are what a
//! reader must understand.

use super::world::{DAY_MS, START_MS, batch, observation, source, tenant};
use crate::{
    Billing, Entries, Finding, Hour, Month, Receipt, Reporter, items, layout, stream::StreamHead,
    tenant::TenantHead,
};
use firn_env::{
    Env,
    sim::{Limits, Simulation},
};
use firn_table::{Condition, Item, ItemKey, MemoryTable, Table, Write};
use firn_usage::{Incarnation, Meter, Observation};
use std::{sync::Arc, time::Duration};

/// One table with an instance that does not spread, and one that does.
struct Ledgers {
    env: Env,
    table: Arc<dyn Table>,
    plain: Billing,
    spreading: Billing,
}

fn run<F>(test: impl FnOnce(Ledgers) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let limits = Limits {
        time: Duration::from_secs(100 * 86_400),
        steps: 1_000_000,
    };
    let simulation = Simulation::with_limits(209, limits);
    let env = simulation.env();
    let memory = MemoryTable::new();
    let table: Arc<dyn Table> = memory.connect(&env);
    let ledgers = Ledgers {
        plain: Billing::new(&env, table.clone()),
        spreading: Billing::new(&env, table.clone()).spread(true),
        env,
        table,
    };
    simulation.run(test(ledgers)).unwrap();
}

impl Ledgers {
    async fn items(&self, partition: &str) -> Vec<Item> {
        self.table.query(partition, "", None, 1000).await.unwrap().items
    }

    /// What lies in the partitions that were for all.
    async fn of_all(&self) -> Vec<Item> {
        let mut found = Vec::new();
        for partition in [layout::STREAMS, layout::PENDING, layout::TENANTS] {
            found.extend(self.items(partition).await);
        }
        found
    }

    /// How many items lie in the shards of a partition.
    async fn sharded(&self, partition: &str) -> usize {
        let mut count = 0;
        for shard in layout::shards(partition) {
            count += self.items(&shard).await.len();
        }
        count
    }

    async fn days(&self, days: u64) {
        self.env.sleep(Duration::from_millis(days * DAY_MS)).await;
    }
}

fn records(count: u64) -> Vec<Observation> {
    (0..count)
        .map(|number| observation("acme", "volume/1", Meter::ROOT_COMMITS, 1 + number, START_MS))
        .collect()
}

fn january() -> Month {
    Month::of_ms(START_MS)
}

async fn total(billing: &Billing) -> (u128, u64) {
    let totals: Entries = billing
        .totals(&tenant("acme"), Hour(0), Hour(u32::MAX))
        .await
        .unwrap();
    totals.values().fold((0, 0), |(quantity, records), totals| {
        (quantity + totals.quantity, records + totals.records)
    })
}

fn receipt(kept: u64, duplicates: u64) -> Receipt {
    Receipt { kept, duplicates }
}

#[test]
fn a_ledger_of_before_is_spread_at_work_and_each_record_counts_once_whoever_receives_and_folds_it() {
    run(|ledgers| async move {
        let (plain, spreading) = (&ledgers.plain, &ledgers.spreading);
        let api = Reporter::service(source("api/1"));
        let whole = batch("api/1", 1, 1, records(20));
        // As it was: one partition each, and a marker that nobody has folded.
        assert_eq!(
            plain.accept(&api, &whole.part(1, 6)).await.unwrap(),
            receipt(5, 0)
        );
        // The sender's next batch overlaps, and finds an instance that spreads.
        assert_eq!(
            spreading.accept(&api, &whole.part(3, 11)).await.unwrap(),
            receipt(5, 3)
        );
        assert_eq!(ledgers.items(layout::PENDING).await.len(), 1);
        assert_eq!(ledgers.sharded(layout::PENDING).await, 1);
        assert_eq!(ledgers.sharded(layout::STREAMS).await, 1);
        // One that does not spread finds both, and so does the other, whatever comes again.
        assert_eq!(
            plain.accept(&api, &whole.part(1, 16)).await.unwrap(),
            receipt(5, 10)
        );
        assert_eq!(plain.fold_all().await.unwrap(), 15);
        assert_eq!(spreading.accept(&api, &whole).await.unwrap(), receipt(5, 15));
        assert_eq!(plain.fold_all().await.unwrap(), 5);
        assert_eq!(spreading.fold_all().await.unwrap(), 0);
        assert_eq!(total(plain).await, ((1..=20).sum(), 20));
        assert_eq!(
            plain.audit_events(None, None, 10).await.unwrap().events.len(),
            0,
            "no gap, no new incarnation, no contradiction"
        );
    });
}

#[test]
fn once_it_is_spread_the_partitions_of_all_are_written_no_more() {
    run(|ledgers| async move {
        let spreading = &ledgers.spreading;
        let api = Reporter::service(source("api/1"));
        let whole = batch("api/1", 1, 1, records(20));
        spreading.accept(&api, &whole.part(1, 3)).await.unwrap();
        spreading.fold_all().await.unwrap();
        let before = ledgers.of_all().await;
        assert_eq!(
            before.len(),
            2,
            "a forwarding record of the stream and of the tenant: {before:?}"
        );
        for first in (3..20).step_by(2) {
            spreading
                .accept(&api, &whole.part(first, first + 2))
                .await
                .unwrap();
            assert_eq!(ledgers.of_all().await, before);
            spreading.fold_all().await.unwrap();
            assert_eq!(ledgers.of_all().await, before);
        }
    });
}

#[test]
fn a_build_of_before_refuses_what_has_moved_as_of_a_later_version() {
    run(|ledgers| async move {
        let api = Reporter::service(source("api/1"));
        ledgers
            .spreading
            .accept(&api, &batch("api/1", 1, 1, records(3)))
            .await
            .unwrap();
        ledgers.spreading.fold_all().await.unwrap();
        let stream = layout::stream_key(&source("api/1"), Incarnation(1)).shared;
        let head = ledgers
            .table
            .get(&stream)
            .await
            .unwrap()
            .expect("a forwarding record");
        // What such a build does with it.
        let refused = items::decode::<StreamHead>(&head).unwrap_err().to_string();
        assert!(refused.contains("this build reads 1"), "{refused}");
        let known = layout::tenant_key(&tenant("acme")).shared;
        let head = ledgers
            .table
            .get(&known)
            .await
            .unwrap()
            .expect("a forwarding record");
        assert!(items::decode::<TenantHead>(&head).is_err());
    });
}

#[test]
fn a_month_that_one_instance_closed_is_closed_for_the_other_before_and_after_the_tenant_moves() {
    for spreads_first in [false, true] {
        run(move |ledgers| async move {
            let acme = tenant("acme");
            let api = Reporter::service(source("api/1"));
            let whole = batch("api/1", 1, 1, records(3));
            if spreads_first {
                ledgers.spreading.accept(&api, &whole.part(1, 2)).await.unwrap();
                ledgers.spreading.fold_all().await.unwrap();
            } else {
                ledgers.plain.accept(&api, &whole.part(1, 2)).await.unwrap();
            }
            ledgers.days(34).await;
            let invoice = ledgers.plain.close_month(&acme, january()).await.unwrap();
            assert_eq!(invoice.records, 1);
            // Late usage, by the other one.
            ledgers.spreading.accept(&api, &whole).await.unwrap();
            assert_eq!(ledgers.spreading.fold_all().await.unwrap(), 2);
            assert_eq!(ledgers.sharded(layout::TENANTS).await, 1);
            for ledger in [&ledgers.plain, &ledgers.spreading] {
                assert_eq!(ledger.invoice(&acme, january()).await.unwrap(), invoice);
                let next = ledger.invoice(&acme, january().next()).await.unwrap();
                assert_eq!(next.records, 2);
            }
        });
    }
}

#[test]
fn a_gap_and_a_new_incarnation_are_noticed_once_across_shards() {
    run(|ledgers| async move {
        let (plain, spreading) = (&ledgers.plain, &ledgers.spreading);
        let api = Reporter::service(source("api/1"));
        let whole = batch("api/1", 1, 1, records(20));
        plain.accept(&api, &whole.part(1, 4)).await.unwrap();
        spreading.accept(&api, &whole.part(7, 11)).await.unwrap();
        ledgers.env.sleep(Duration::from_secs(601)).await;
        assert_eq!(plain.report_gaps().await.unwrap(), 1);
        assert_eq!(spreading.report_gaps().await.unwrap(), 0);
        spreading
            .accept(&api, &batch("api/1", 2, 1, records(1)))
            .await
            .unwrap();
        plain
            .accept(&api, &batch("api/1", 3, 1, records(1)))
            .await
            .unwrap();
        let events = plain.audit_events(None, None, 10).await.unwrap().events;
        let lives = |event: &&crate::AuditEvent| matches!(event.finding, Finding::NewIncarnation { .. });
        assert_eq!((events.len(), events.iter().filter(lives).count()), (3, 2));
    });
}

#[test]
fn what_a_backup_enumerates_is_the_whole_ledger() {
    run(|ledgers| async move {
        let api = Reporter::service(source("api/1"));
        let whole = batch("api/1", 1, 1, records(9));
        ledgers.plain.accept(&api, &whole.part(1, 4)).await.unwrap();
        ledgers.spreading.accept(&api, &whole.part(4, 7)).await.unwrap();
        ledgers.spreading.fold_all().await.unwrap();
        // A marker in a shard, too.
        ledgers.spreading.accept(&api, &whole.part(7, 10)).await.unwrap();
        let copy = MemoryTable::new().connect(&ledgers.env);
        for partition in ledgers.plain.partitions(&[]).await.unwrap() {
            for item in ledgers.items(&partition).await {
                let write = Write::Put {
                    key: ItemKey::new(item.key.partition, item.key.sort),
                    value: item.value,
                    condition: Condition::Absent,
                };
                copy.transact(vec![write]).await.unwrap();
            }
        }
        let restored = Billing::new(&ledgers.env, copy);
        assert_eq!(restored.accept(&api, &whole).await.unwrap(), receipt(0, 9));
        restored.fold_all().await.unwrap();
        assert_eq!(total(&restored).await, ((1..=9).sum(), 9));
    });
}
