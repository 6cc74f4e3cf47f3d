//! Usage records per second on the embedded table, fsync and all: `cargo run --release -p firn-billing --example ingest_rate`
//!
//! Sixteen senders at once, each with a stream of its own, first with full batches, then with small ones; then the fold into
//! hours and an invoice. Level 1: what is counted is on the local disk.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use firn_billing::{Billing, Month, Reporter};
use firn_table::RedbTable;
use firn_usage::{
    BATCH_MAX_RECORDS, Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch,
};
use std::{path::PathBuf, sync::Arc, time::Instant};

const SENDERS: u64 = 16;
const TENANTS: u64 = 100;
/// 2026-01-10T00:00:00Z.
const OBSERVED_MS: u64 = 1_768_003_200_000;

fn batches(sender: u64, life: u64, records: u64, size: u64) -> Vec<UsageBatch> {
    let observation = |sequence: u64| Observation {
        tenant: TenantName::new(&format!("tenant-{}", (sender + sequence) % TENANTS)).expect("a name"),
        resource: ResourceName::new(&format!("volume/{:04x}", sequence % 97)).expect("a name"),
        meter: Meter::ROOT_COMMITS,
        quantity: 1 + sequence % 7,
        from_ms: OBSERVED_MS + sequence * 20,
        duration_ms: 1000,
    };
    let source = SourceId::new(&format!("api/{sender}")).expect("a name");
    (0..records.div_ceil(size))
        .map(|number| {
            let first = 1 + number * size;
            let observations = (first..(first + size).min(records + 1))
                .map(observation)
                .collect();
            UsageBatch::new(source.clone(), Incarnation(life), first, observations).expect("a batch")
        })
        .collect()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000_000);
    let directory = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let path = directory.join(format!("firn-ingest-rate-{}.redb", std::process::id()));
    let env = firn_env::real(&directory).expect("a directory");
    let table = RedbTable::open(&env, &path).await.expect("a table");
    let billing = Arc::new(Billing::new(&env, Arc::new(table)));
    for (life, size, share) in [
        (1, BATCH_MAX_RECORDS as u64, 1),
        (2, 1000, 1),
        (3, 100, 10),
        (4, 10, 100),
    ] {
        let each = records / SENDERS / share;
        let prepared: Vec<_> = (0..SENDERS)
            .map(|sender| batches(sender, life, each, size))
            .collect();
        let bytes: usize = prepared[0]
            .iter()
            .map(|batch| batch.encode().map_or(0, |bytes| bytes.len()))
            .sum();
        let began = Instant::now();
        let senders: Vec<_> = prepared
            .into_iter()
            .map(|batches| {
                let billing = billing.clone();
                env.spawn("sender", async move {
                    for batch in batches {
                        let reporter = Reporter::service(batch.source().clone());
                        billing.accept(&reporter, &batch).await.expect("received");
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await.expect("all sent");
        }
        let received = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let folded = billing.fold_all().await.expect("folded");
        let fold = began.elapsed().as_secs_f64();
        println!(
            "batches of {size:>4}: {folded:>8} records, {:>3} bytes each, received at {:>7.0}/s, folded at {:>7.0}/s, both at {:>7.0}/s",
            bytes as u64 / each.max(1),
            folded as f64 / received,
            folded as f64 / fold,
            folded as f64 / (received + fold),
        );
    }
    let tenant = TenantName::new("tenant-0").expect("a name");
    let began = Instant::now();
    let invoice = billing
        .invoice(&tenant, Month::new(2026, 1).expect("a month"))
        .await
        .expect("an invoice");
    println!(
        "an invoice of {} records: {} {} in {:.1} ms; the table takes {} MiB",
        invoice.records,
        invoice.total,
        invoice.currency,
        began.elapsed().as_secs_f64() * 1000.0,
        std::fs::metadata(&path).map_or(0, |file| file.len() >> 20)
    );
    drop(billing);
    std::fs::remove_file(&path).expect("it was made here");
}
