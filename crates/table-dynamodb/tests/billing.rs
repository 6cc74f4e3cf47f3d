//! Billing on DynamoDB Local, which `make test` starts: fifty thousand records by sixteen senders, doubled, overtaken and with
//! lost replies, against an independent sum.
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-table-dynamodb --test billing -- --ignored --nocapture real_
//! ```
#![allow(clippy::disallowed_methods, reason = "prints real time")]

#[allow(
    dead_code,
    reason = "shared with the tests of the table itself, which use all of it"
)]
mod support;

use firn_billing::{Billing, Hour, Month, PriceBook, Reporter};
use firn_env::sim::Seeded;
use firn_table::{Metered, TablePrices};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use support::{Proxy, Trouble, environment, fresh, server};

const SENDERS: u64 = 16;
const RECORDS_EACH: u64 = 3125;
const TENANTS: u64 = 8;
const BATCH: u64 = 625;
/// 2026-01-10T00:00:00Z.
const OBSERVED_MS: u64 = 1_768_003_200_000;

fn tenant(number: u64) -> TenantName {
    TenantName::new(&format!("tenant-{number}")).unwrap()
}

fn observation(sender: u64, sequence: u64) -> Observation {
    let mut random = Seeded::new(sender, sequence);
    Observation {
        tenant: tenant(random.below(TENANTS)),
        resource: ResourceName::new(&format!("volume/{}", random.below(20))).unwrap(),
        meter: *random.pick(&[Meter::ROOT_COMMITS, Meter::NODE_OPERATIONS]),
        quantity: 1 + random.below(1000),
        from_ms: OBSERVED_MS + random.below(2 * 3_600_000),
        duration_ms: 0,
    }
}

fn batch(sender: u64, first: u64, next: u64) -> UsageBatch {
    let source = SourceId::new(&format!("api/{sender}")).unwrap();
    let observations = (first..next)
        .map(|sequence| observation(sender, sequence))
        .collect();
    UsageBatch::new(source, Incarnation(1 + sender), first, observations).unwrap()
}

async fn deliver(billing: Arc<Billing>, sender: u64) {
    let mut random = Seeded::new(99, sender);
    let mut unsent: Vec<u64> = (0..RECORDS_EACH / BATCH)
        .map(|number| 1 + number * BATCH)
        .collect();
    for _ in 0..1000 {
        if unsent.is_empty() {
            return;
        }
        let index = random.index(unsent.len().min(2));
        let first = unsent[index];
        let from = first.saturating_sub(random.below(100)).max(1);
        let batch = batch(sender, from, first + BATCH);
        let reporter = Reporter::service(batch.source().clone());
        if billing.accept(&reporter, &batch).await.is_ok() && !random.chance(1, 6) {
            unsent.remove(index);
        }
    }
    panic!("sender {sender} is never done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_fifty_thousand_records_are_billed_to_the_nano_dollar() {
    let server = server();
    let env = environment();
    let proxy = Proxy::start(&server).await;
    let table = Arc::new(Metered::new(
        Arc::new(fresh(&env, &proxy.endpoint).await),
        TablePrices::DYNAMODB_ON_DEMAND,
    ));
    let billing = Arc::new(Billing::new(&env, table.clone()));
    proxy.script([
        Trouble::LoseReply,
        Trouble::Throttle,
        Trouble::InternalErrorAfterwards,
        Trouble::LoseRequest,
    ]);
    let began = Instant::now();
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| tokio::spawn(deliver(billing.clone(), sender)))
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let received = began.elapsed().as_secs_f64();
    proxy.script([
        Trouble::LoseReply,
        Trouble::Throttle,
        Trouble::InternalErrorAfterwards,
    ]);
    while billing.fold_all().await.unwrap() > 0 {}
    let both = began.elapsed().as_secs_f64();

    let mut sums: BTreeMap<(TenantName, Meter), u128> = BTreeMap::new();
    for (sender, sequence) in
        (0..SENDERS).flat_map(|sender| (1..=RECORDS_EACH).map(move |sequence| (sender, sequence)))
    {
        let record = observation(sender, sequence);
        *sums.entry((record.tenant, record.meter)).or_default() += u128::from(record.quantity);
    }
    let book = PriceBook::standard();
    let month = Month::new(2026, 1).unwrap();
    let mut records = 0;
    for number in 0..TENANTS {
        let who = tenant(number);
        let invoice = billing.close_month(&who, month).await.unwrap();
        let mut owed = 0;
        for ((_, meter), quantity) in sums.iter().filter(|((tenant, _), _)| *tenant == who) {
            owed += book.meters[meter].price(*quantity).unwrap().0;
        }
        assert_eq!(invoice.total.0, owed, "to the nano-dollar");
        let totals = billing
            .totals(&who, Hour(0), month.next().first_hour())
            .await
            .unwrap();
        for (meter, expected) in sums
            .iter()
            .filter(|((tenant, _), _)| *tenant == who)
            .map(|((_, meter), sum)| (meter, sum))
        {
            let found: u128 = totals
                .iter()
                .filter(|(key, _)| key.meter == *meter)
                .map(|(_, totals)| totals.quantity)
                .sum();
            assert_eq!(found, *expected);
        }
        records += invoice.records;
    }
    assert_eq!(records, SENDERS * RECORDS_EACH);
    let usage = table.usage();
    println!(
        "{records} records on DynamoDB: received at {:.0}/s, with the fold {:.0}/s; {} write units, {:.1} millionths of a dollar a \
         thousand records",
        records as f64 / received,
        records as f64 / both,
        usage.write_units,
        usage.nano_dollars as f64 / records as f64
    );
}
