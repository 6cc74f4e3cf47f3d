//! Exact money with a real process: sixteen senders, a ledger on the embedded table that is killed again and again in the
//! middle of batches, and an independent sum.
//!
//! The full measure, ten runs of a million records:
//!
//! ```text
//! cargo test --release -p firn-billing --test exact_money -- --ignored --nocapture
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "a real process with real connections, on tokio's own clock and network"
)]

mod support;

use firn_billing::{Billing, Hour, LineKind, Month, PriceBook};
use firn_env::sim::Seeded;
use firn_table::RedbTable;
use firn_usage::BATCH_MAX_RECORDS;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use support::{SENDERS, TENANTS, deliver, expected, serve, tenant};

const TABLE: &str = "FIRN_TEST_BILLING_TABLE";
/// Whether the ledger is spread.
const SPREAD: &str = "FIRN_TEST_BILLING_SPREAD";

/// Run by the others in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_keeps_the_ledger_until_it_is_killed() {
    let Ok(path) = std::env::var(TABLE) else {
        return;
    };
    let env = firn_env::real(Path::new(&path).parent().unwrap()).unwrap();
    let table = RedbTable::open(&env, Path::new(&path)).await.unwrap();
    serve(env, Arc::new(table), std::env::var_os(SPREAD).is_some()).await;
}

fn start(path: &Path, port: &AtomicU16, spreads: bool) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .envs(spreads.then_some((SPREAD, "1")))
        .args([
            "--exact",
            "child_that_keeps_the_ledger_until_it_is_killed",
            "--nocapture",
        ])
        .env(TABLE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let found = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("port ").and_then(|(_, port)| port.parse().ok()));
    port.store(found.expect("the ledger starts"), Ordering::Relaxed);
    child
}

/// One run; prints what it took.
async fn run(seed: u64, records: u64, kills: u64, largest_batch: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table.redb");
    let port = Arc::new(AtomicU16::new(0));
    let received = Arc::new(AtomicU64::new(0));
    // Every other ledger is spread over shards.
    let spreads = seed % 2 == 1;
    let mut child = start(&path, &port, spreads);
    let began = Instant::now();
    let each = records / SENDERS;
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            tokio::spawn(deliver(
                sender,
                each,
                seed,
                largest_batch,
                port.clone(),
                received.clone(),
            ))
        })
        .collect();
    let mut random = Seeded::new(seed, 1000);
    let mut killed = 0;
    while !senders.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let due = each * SENDERS * (killed + 1) / (kills + 2);
        if killed < kills && received.load(Ordering::Relaxed) >= due {
            tokio::time::sleep(Duration::from_millis(random.below(30))).await;
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
            child = start(&path, &port, spreads);
        }
    }
    for sender in senders {
        sender.await.unwrap();
    }
    let delivered = began.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(killed, kills);

    let env = firn_env::real(directory.path()).unwrap();
    let table = RedbTable::open(&env, &path).await.unwrap();
    let billing = Billing::new(&env, Arc::new(table));
    billing.fold_all().await.unwrap();
    billing.report_gaps().await.unwrap();
    let all = billing.audit_events(None, None, 1000).await.unwrap().events;
    assert_eq!(all, [], "nothing contradicts, nothing is missing");
    let sums = expected(each);
    let book = PriceBook::standard();
    let month = Month::new(2026, 1).unwrap();
    let (mut total, mut counted) = (0, 0);
    for number in 0..TENANTS {
        let who = tenant(number);
        let invoice = billing.close_month(&who, month).await.unwrap();
        let mut quantities: BTreeMap<_, u128> = BTreeMap::new();
        for line in &invoice.lines {
            match &line.kind {
                LineKind::Usage { meter, quantity, .. } => {
                    *quantities.entry(*meter).or_default() += quantity.0
                }
                other => panic!("{other:?}"),
            }
        }
        let mut owed = 0;
        for (meter, quantity) in &quantities {
            assert_eq!(
                sums.get(&(who.clone(), *meter)),
                Some(quantity),
                "{meter} of {who}"
            );
            owed += price(&book, *meter, *quantity);
        }
        assert_eq!(
            sums.keys().filter(|(tenant, _)| *tenant == who).count(),
            quantities.len()
        );
        assert_eq!(invoice.total.0, owed, "to the nano-dollar");
        assert_eq!(
            invoice.total.0,
            invoice.lines.iter().map(|line| line.amount.0).sum::<i128>()
        );
        let hours = billing
            .totals(&who, Hour(0), month.next().first_hour())
            .await
            .unwrap();
        assert_eq!(
            hours.values().map(|totals| totals.records).sum::<u64>(),
            invoice.records
        );
        counted += invoice.records;
        total += owed;
    }
    assert_eq!(counted, each * SENDERS);
    println!(
        "seed {seed}{}: {counted} records by {SENDERS} senders, {killed} kills, {:.1} s ({:.0} records/s), {} nano-dollars",
        if spreads { ", spread" } else { "" },
        delivered.as_secs_f64(),
        counted as f64 / delivered.as_secs_f64(),
        total
    );
}

/// The price list read a second time: each tier's units times its price, rounded half up.
fn price(book: &PriceBook, meter: firn_usage::Meter, quantity: u128) -> i128 {
    let entry = &book.meters[&meter];
    let mut nanos = 0;
    let mut below = u128::from(entry.free);
    for tier in &entry.tiers {
        let above = tier
            .up_to
            .map_or(u128::MAX, |up_to| u128::from(entry.free) + u128::from(up_to));
        let units = quantity.min(above).saturating_sub(below);
        let doubled = 2 * units * u128::try_from(tier.rate.amount.0).unwrap();
        let per = u128::from(tier.rate.per);
        nanos += i128::try_from((doubled + per) / (2 * per)).unwrap();
        below = above;
    }
    nanos
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_killed_in_the_middle_of_batches_bills_to_the_nano_dollar() {
    run(1, 20_000, 5, 120).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: ten runs of a million records"]
async fn a_million_records_are_billed_to_the_nano_dollar_ten_times_of_ten() {
    let records = std::env::var("FIRN_BILLING_RECORDS")
        .ok()
        .and_then(|records| records.parse().ok());
    for seed in 0..10 {
        // A batch that overlaps its neighbours is up to twice as large as the largest, and no larger than one may be.
        run(
            seed,
            records.unwrap_or(1_000_000),
            12,
            BATCH_MAX_RECORDS as u64 / 2 - 1,
        )
        .await;
    }
}
