//! Torn tails, damage, foreign files and wrong keys: which start goes on, and what the others say.

use super::{Bench, DIRECTORY, VOLUME, all, append, append_many, keys_of, payload, small_config};
use crate::journal::{Journal, JournalError, Sequence};
use firn_format::{JOURNAL_HEADER_BYTES, JournalFileHeader, RecordScan, VolumeId};
use std::path::Path;

/// Where the last whole record ends. It may end in zeros, as what was never written does.
fn end_of_records(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("readable");
    let framing = JournalFileHeader::decode(&bytes).expect("a header").framing();
    let mut end = JOURNAL_HEADER_BYTES;
    for slot in 0.. {
        match framing.next(&bytes[end..], slot) {
            RecordScan::Record { total_bytes, .. } => end += total_bytes,
            RecordScan::Torn | RecordScan::End => break,
        }
    }
    end
}

fn change_byte(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).expect("readable");
    bytes[offset] ^= 0x40;
    std::fs::write(path, bytes).expect("writable");
}

/// Ten records of 1,000 bytes in one file, closed.
async fn ten_records(bench: &Bench) {
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..11, 1000).await;
    journal.close().await;
}

#[tokio::test]
async fn a_torn_tail_is_dropped_and_nothing_before_it() {
    for cut in [1, 5, 500, 1034, 1036] {
        let bench = Bench::new();
        ten_records(&bench).await;
        let path = bench.used_files().remove(0);
        let mut bytes = std::fs::read(&path).expect("readable");
        let end = end_of_records(&path);
        bytes[end - cut..].fill(0);
        std::fs::write(&path, bytes).expect("writable");
        let (journal, mut replay) = bench.open(0, small_config()).await.expect("opens");
        // A whole record that is gone leaves no trace; a part of one does.
        assert_eq!(replay.torn_tail().is_some(), cut < 1036, "cut of {cut}");
        let mut count = 0;
        while let Some(record) = replay.next().await.expect("replays") {
            count += 1;
            assert_eq!(record.payload, payload(count, 1000));
        }
        assert_eq!(count, 9, "cut of {cut}");
        let next = append(&journal, &payload(99, 20)).await;
        assert_eq!(
            next.sequence,
            Sequence(10),
            "the torn record's number is given again"
        );
        journal.close().await;
        // The torn tail is now in a file that is not the last, and still legitimate.
        let (_, found) = bench.start(0).await;
        assert_eq!(found.len(), 10, "cut of {cut}");
        assert_eq!(found[9], payload(99, 20));
    }
}

#[tokio::test]
async fn damage_before_durable_records_of_a_later_file_stops_the_start() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 11..16, 1000).await;
    journal.close().await;
    let first = bench.used_files().remove(0);
    change_byte(&first, end_of_records(&first) - 3000);
    let error = bench.failed_start().await;
    let JournalError::Damaged { path, offset, .. } = &error else {
        panic!("{error}");
    };
    assert!(first.ends_with(path), "{error}");
    assert!(*offset > 84 && *offset < 8000, "{error}");
}

#[tokio::test]
async fn a_missing_file_stops_the_start_unless_the_root_covers_it() {
    let bench = Bench::new();
    for start in 0..3_u64 {
        let (journal, _) = bench.start(0).await;
        append_many(&journal, start * 10 + 1..start * 10 + 11, 100).await;
        journal.close().await;
    }
    std::fs::remove_file(&bench.used_files()[1]).expect("removable");
    let error = bench.failed_start().await;
    assert!(
        matches!(
            error,
            JournalError::Missing {
                first: 11,
                last: 20,
                covered: 0,
                ..
            }
        ),
        "{error}"
    );
    let (_, found) = bench.start(20).await;
    assert_eq!(found.len(), 10);
}

#[tokio::test]
async fn a_root_older_than_the_trimmed_journal_is_noticed() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..101, 2000).await;
    journal.close().await;
    let (journal, _) = bench.start(60).await;
    journal.trim(Sequence(60)).await.expect("trims");
    journal.close().await;
    let error = bench.failed_start().await;
    assert!(
        matches!(error, JournalError::Missing { covered: 0, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_wrong_key_is_said_to_be_one_and_changes_nothing() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let before = bench.files();
    let error = bench.refused(&keys_of(2), VOLUME).await;
    assert!(matches!(error, JournalError::WrongKey { .. }), "{error}");
    assert_eq!(bench.files(), before);
    let (_, found) = bench.start(0).await;
    assert_eq!(found.len(), 10);
}

#[tokio::test]
async fn another_volumes_journal_is_refused() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let error = bench.refused(&keys_of(1), VolumeId([8; 16])).await;
    assert!(matches!(error, JournalError::ForeignVolume { .. }), "{error}");
}

#[tokio::test]
async fn files_of_others_are_left_alone_and_fakes_are_named() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let directory = bench.directory.path().join(DIRECTORY);
    std::fs::write(directory.join("lost+found.txt"), b"somebody's").expect("writable");
    let (journal, found) = bench.start(0).await;
    assert_eq!(found.len(), 10);
    journal.close().await;
    assert!(directory.join("lost+found.txt").exists());

    std::fs::write(directory.join("00000000000000ff.journal"), [b'x'; 500]).expect("writable");
    let error = bench.failed_start().await;
    assert!(matches!(error, JournalError::Unreadable { .. }), "{error}");
    std::fs::remove_file(directory.join("00000000000000ff.journal")).expect("removable");

    let renamed = directory.join("00000000000000fe.journal");
    std::fs::copy(bench.used_files().remove(0), &renamed).expect("copied");
    let error = bench.failed_start().await;
    assert!(matches!(error, JournalError::Unreadable { .. }), "{error}");
}

#[tokio::test]
async fn an_altered_record_with_a_right_checksum_is_damage_not_a_torn_tail() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let path = bench.used_files().remove(0);
    let mut bytes = std::fs::read(&path).expect("readable");
    let end = end_of_records(&path);
    // The last record: head 8, sealed 1,008 + 16, checksum 4. A forger can make the checksum right.
    let start = end - 1036;
    bytes[start + 20] ^= 1;
    let header = JournalFileHeader::decode(&bytes).expect("a header");
    let frame = header.framing().frame(10, &bytes[start + 8..end - 4]);
    bytes[end - 4..end].copy_from_slice(&frame.tail);
    std::fs::write(&path, bytes).expect("writable");
    let (_, replay) = bench.open(0, small_config()).await.expect("opens");
    let error = all(replay, 0).await.expect_err("a forged record");
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn reading_only_changes_nothing_on_the_disk() {
    let bench = Bench::new();
    ten_records(&bench).await;
    let list = || {
        let sizes = bench.files().into_iter();
        sizes
            .map(|path| (path.clone(), std::fs::read(path).expect("readable")))
            .collect::<Vec<_>>()
    };
    let before = list();
    let replay = Journal::read_only(&bench.env, &keys_of(1), VOLUME, DIRECTORY, Sequence(4))
        .await
        .expect("opens");
    assert_eq!(replay.last(), Sequence(10));
    assert_eq!(all(replay, 4).await.expect("replays").len(), 6);
    assert_eq!(list(), before);
}

#[tokio::test]
async fn a_record_damaged_after_it_was_written_is_reported_by_name() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let appended = append_many(&journal, 1..4, 1000).await;
    journal.durable(appended[2].sequence).await.expect("durable");
    let path = bench.used_files().remove(0);
    change_byte(&path, end_of_records(&path) - 100);
    journal
        .read(&appended[1].record)
        .await
        .expect("the record before it is fine");
    let error = journal.read(&appended[2].record).await.expect_err("damaged");
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}
