//! Files that are used again: none is made longer, and none of their old records is taken for a new one.

use super::{Bench, DIRECTORY, VOLUME, append_many, keys_of, payload, small_config};
use crate::journal::{JournalError, Sequence};
use bytes::{Bytes, BytesMut};
use firn_format::{JournalFileHeader, JournalUse, WriterId};
use firn_seal::{RecordContext, RecordSealer};
use std::{collections::BTreeSet, os::unix::fs::MetadataExt};

/// The inodes of the journal's files and their lengths.
fn inodes(bench: &Bench) -> BTreeSet<(u64, u64)> {
    let files = bench.files().into_iter();
    files
        .map(|path| {
            let found = std::fs::metadata(path).expect("there");
            (found.ino(), found.len())
        })
        .collect()
}

#[tokio::test]
async fn a_journal_that_is_trimmed_goes_on_in_the_same_files() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        // More than one file.
        let last = append_many(&journal, round * 40 + 1..round * 40 + 41, 2000).await;
        journal.durable(last[39].sequence).await.expect("durable");
        journal.trim(journal.durable_to()).await.expect("trims");
        if round >= 5 {
            seen.extend(inodes(&bench));
        }
    }
    assert!(journal.statistics().rotations >= 20);
    assert!(seen.len() <= 6, "files come and go: {seen:?}");
    let whole = small_config().file_bytes;
    assert!(seen.iter().all(|(_, length)| *length == whole), "{seen:?}");
}

#[tokio::test]
async fn a_start_takes_up_spares_and_replays_nothing_of_them() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..201, 1000).await;
    journal.durable(Sequence(200)).await.expect("durable");
    journal.trim(Sequence(200)).await.expect("trims");
    // As long as those before them, so that each old record stands where a new one could.
    append_many(&journal, 201..211, 1000).await;
    journal.close().await;
    for start in 0..3_u64 {
        let (journal, found) = bench.start(200).await;
        let expected: Vec<Bytes> = (201..211 + start).map(|number| payload(number, 1000)).collect();
        assert_eq!(found, expected, "start {start}");
        append_many(&journal, 211 + start..212 + start, 1000).await;
        journal.close().await;
    }
    let usages = bench.used_files().into_iter().map(|path| {
        let bytes = std::fs::read(path).expect("readable");
        JournalFileHeader::decode(&bytes).expect("a header").usage
    });
    let recycled = usages.filter(|usage| *usage == JournalUse::Recycled).count();
    assert!(recycled >= 2, "the starts made files anew");
}

#[tokio::test]
async fn who_reads_a_record_whose_file_is_used_again_is_told_that_it_was_trimmed() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let old = append_many(&journal, 1..101, 2000).await;
    journal.durable(Sequence(100)).await.expect("durable");
    let entry = journal
        .shared
        .lock()
        .files
        .first_key_value()
        .map(|(_, entry)| entry.file.clone());
    let file = entry.expect("a file");
    journal.trim(Sequence(100)).await.expect("trims");
    for round in 0..4 {
        append_many(&journal, 101 + round * 40..141 + round * 40, 2000).await;
        journal.durable(journal.last()).await.expect("durable");
        journal.trim(journal.last()).await.expect("trims");
    }
    let error = journal.read(&old[0].record).await.expect_err("it is gone");
    assert!(matches!(error, JournalError::Trimmed { sequence: 1 }), "{error}");
    // A reader that had found the file before it was trimmed sees that what is there now is not its record.
    let error = file.read(&old[0].record).await.expect_err("it is gone");
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_spare_of_another_length_is_not_used() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..3, 100).await;
    journal.close().await;
    let spare = bench
        .directory
        .path()
        .join(DIRECTORY)
        .join("00000000000000aa.spare");
    std::fs::write(&spare, [b'x'; 500]).expect("writable");
    let (_, found) = bench.start(0).await;
    assert_eq!(found.len(), 2);
    assert!(!spare.exists());
}

/// As the build before seeds wrote it.
#[tokio::test]
async fn a_journal_of_version_1_is_replayed_and_continued() {
    let bench = Bench::new();
    let context = RecordContext::journal(VOLUME, WriterId(5), 1);
    let sealer = RecordSealer::new(&keys_of(1), [9; 32], context).in_place_of(JournalUse::Unseeded);
    let mut file = BytesMut::from(&sealer.journal_header().encode()[..]);
    assert_eq!(file[8], 1);
    sealer
        .append_framed(0, &[&1_u64.to_le_bytes()], &mut file)
        .expect("sealed");
    for number in 1..6 {
        let slot = number as u32;
        sealer
            .append_framed(slot, &[&payload(number, 300)], &mut file)
            .expect("sealed");
    }
    file.resize(small_config().file_bytes as usize, 0);
    let directory = bench.directory.path().join(DIRECTORY);
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::write(directory.join("0000000000000001.journal"), &file).expect("writable");

    let (journal, found) = bench.start(0).await;
    assert_eq!(
        found,
        (1..6).map(|number| payload(number, 300)).collect::<Vec<_>>()
    );
    append_many(&journal, 6..8, 300).await;
    journal.close().await;
    let written = std::fs::read(directory.join("0000000000000002.journal")).expect("readable");
    let header = JournalFileHeader::decode(&written).expect("a header");
    assert_eq!(header.usage, JournalUse::First);
    let (_, found) = bench.start(0).await;
    assert_eq!(
        found,
        (1..8).map(|number| payload(number, 300)).collect::<Vec<_>>()
    );
}
