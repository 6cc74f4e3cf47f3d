//! Space: reservations, back-pressure, the reserve, trimming.

use super::{Bench, append, append_many, payload, small_config};
use crate::journal::{JournalConfig, JournalError, ReserveClass, Sequence};
use bytes::Bytes;
use std::time::Duration;

const RECORD_BYTES: usize = 4000;

fn tight() -> JournalConfig {
    JournalConfig {
        file_bytes: 32 << 10,
        capacity_bytes: 128 << 10,
        reserve_bytes: 8 << 10,
        ..JournalConfig::default()
    }
}

#[tokio::test]
async fn a_full_journal_refuses_and_trimming_lets_the_waiting_in() {
    let bench = Bench::new();
    let (journal, _) = bench.open(0, tight()).await.expect("opens");
    let short = Duration::from_millis(300);
    let mut count = 0;
    while let Ok(reservation) = journal
        .wait_for_space(RECORD_BYTES as u64, ReserveClass::Ordinary, short)
        .await
    {
        count += 1;
        journal.append(reservation, vec![Bytes::from(vec![count as u8; RECORD_BYTES])]);
        assert!(count < 100, "128 KiB do not hold a hundred records of 4 KB");
    }
    assert!(count >= 20, "only {count} records of 4 KB fit in 128 KiB");
    journal
        .durable(journal.last())
        .await
        .expect("what was accepted becomes durable");
    assert!(journal.used_bytes() <= tight().capacity_bytes);

    let removal = journal
        .reserve(1000, ReserveClass::Reserved)
        .expect("the reserve is there for removals");
    journal.append(removal, vec![Bytes::from(vec![1; 1000])]);

    let waiting = journal.wait_for_space(
        RECORD_BYTES as u64,
        ReserveClass::Ordinary,
        Duration::from_secs(20),
    );
    let trimming = async {
        bench.env.sleep(Duration::from_millis(50)).await;
        journal.trim(journal.last()).await.expect("trims");
    };
    let (reservation, ()) = futures::future::join(waiting, trimming).await;
    journal.append(
        reservation.expect("space came back"),
        vec![Bytes::from(vec![2; RECORD_BYTES])],
    );
    journal.durable(journal.last()).await.expect("durable");
}

#[tokio::test]
async fn a_full_queue_is_not_a_full_journal() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::new();
    let config = JournalConfig {
        file_bytes: 64 << 20,
        capacity_bytes: 256 << 20,
        reserve_bytes: 16 << 20,
        ..JournalConfig::default()
    };
    let (journal, _) = bench.open(0, config).await.expect("opens");
    bench.env.sleep(Duration::from_millis(100)).await;
    let mut held = Vec::new();
    while let Some(reservation) = journal.reserve(MIB, ReserveClass::Ordinary) {
        held.push(reservation);
    }
    assert!(held.len() < 64, "{} MiB are promised at one time", held.len());
    assert!(
        !journal.is_full(MIB, ReserveClass::Ordinary),
        "three files may still be made"
    );
    drop(held);

    // The same with hardly anything to be queued: what refuses is the journal.
    let bench = Bench::new();
    let (journal, _) = bench.open(0, tight()).await.expect("opens");
    let bytes = RECORD_BYTES as u64;
    let mut appended = 0;
    while let Ok(reservation) = journal
        .wait_for_space(bytes, ReserveClass::Ordinary, Duration::from_millis(300))
        .await
    {
        appended += 1;
        journal.append(reservation, vec![Bytes::from(vec![1; RECORD_BYTES])]);
        assert!(appended < 100, "128 KiB do not hold a hundred records of 4 KB");
    }
    assert!(journal.is_full(bytes, ReserveClass::Ordinary));
    let reserved = ReserveClass::Reserved;
    assert!(!journal.is_full(1000, reserved), "removals have their reserve");
    journal.durable(journal.last()).await.expect("durable");
    journal.trim(journal.last()).await.expect("trims");
    assert!(!journal.is_full(bytes, ReserveClass::Ordinary));
}

#[tokio::test]
async fn a_dropped_reservation_gives_its_space_back() {
    let bench = Bench::new();
    let (journal, _) = bench.open(0, tight()).await.expect("opens");
    bench.env.sleep(Duration::from_millis(100)).await;
    for _ in 0..1000 {
        drop(
            journal
                .reserve(RECORD_BYTES as u64, ReserveClass::Ordinary)
                .expect("nothing is used"),
        );
    }
}

#[tokio::test]
async fn who_waits_longest_is_served_first() {
    let bench = Bench::new();
    let (journal, _) = bench.open(0, tight()).await.expect("opens");
    let mut held = Vec::new();
    while let Ok(reservation) = journal
        .wait_for_space(12_000, ReserveClass::Ordinary, Duration::from_millis(200))
        .await
    {
        held.push(reservation);
    }
    let large = journal.wait_for_space(12_000, ReserveClass::Ordinary, Duration::from_secs(20));
    futures::pin_mut!(large);
    assert!(futures::poll!(&mut large).is_pending());
    // A small record would fit in the gap the large one leaves, and would starve it.
    assert!(journal.reserve(10, ReserveClass::Ordinary).is_none());
    drop(held);
    drop(large.await.expect("served when space returns"));
}

#[tokio::test]
async fn trimming_removes_only_files_wholly_under_the_root() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let appended = append_many(&journal, 1..101, 2000).await;
    journal.durable(Sequence(100)).await.expect("durable");
    let before = bench.used_files();
    assert!(before.len() >= 3);
    journal.trim(Sequence(3)).await.expect("trims");
    assert_eq!(bench.used_files(), before, "record 4 is in the first file too");
    journal.trim(Sequence(60)).await.expect("trims");
    assert_eq!(bench.used_files().len(), before.len() - 1);
    let error = journal.read(&appended[0].record).await.expect_err("gone");
    assert!(matches!(error, JournalError::Trimmed { sequence: 1 }), "{error}");
    assert_eq!(
        journal.read(&appended[99].record).await.expect("there"),
        payload(100, 2000)
    );
    journal.trim(Sequence(100)).await.expect("trims");
    journal.close().await;
    let (_, found) = bench.start(100).await;
    assert!(found.is_empty());
}

#[tokio::test]
async fn sizes_that_cannot_work_are_refused_at_the_start() {
    let bench = Bench::new();
    let wrong = [
        JournalConfig {
            file_bytes: 100,
            ..tight()
        },
        JournalConfig {
            reserve_bytes: 32 << 10,
            ..tight()
        },
        JournalConfig {
            capacity_bytes: 40 << 10,
            ..tight()
        },
    ];
    for config in wrong {
        let opened = bench.open(0, config).await;
        assert!(matches!(opened, Err(JournalError::Configuration { .. })));
    }
}

#[tokio::test]
async fn a_record_that_no_file_can_hold_is_refused_at_once() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let most = journal.largest_record_bytes();
    let refused = journal
        .wait_for_space(most + 1, ReserveClass::Ordinary, Duration::from_secs(60))
        .await;
    let Err(refused) = refused else { panic!("granted") };
    assert!(refused.waited < Duration::from_secs(1), "{refused}");
    let largest = Bytes::from(vec![5; most as usize]);
    let record = append(&journal, &largest).await;
    assert_eq!(journal.read(&record.record).await.expect("readable"), largest);
    assert!(small_config().file_bytes > most);
}

#[tokio::test]
async fn a_journal_above_its_capacity_still_starts_and_drains() {
    let bench = Bench::new();
    for start in 0..4_u64 {
        let (journal, _) = bench.start(0).await;
        append_many(&journal, start * 25 + 1..start * 25 + 26, 2000).await;
        journal.close().await;
    }
    let (journal, _) = bench.open(0, tight()).await.expect("opens");
    assert!(journal.used_bytes() > tight().capacity_bytes);
    journal.trim(Sequence(100)).await.expect("trims");
    append(&journal, &payload(101, 2000)).await;
}
