//! The journal on a real disk and on a simulated one: what its users rely on, one sentence a test.

mod crash;
mod damage;
mod recycling;
mod space;

use super::{Appended, Journal, JournalConfig, JournalError, Replay, ReserveClass, Sequence};
use bytes::Bytes;
use firn_env::Env;
use firn_format::{FamilyId, KeyEpoch, VolumeId, WriterId};
use firn_seal::{EpochKey, Keys};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

const DIRECTORY: &str = "journal";
const VOLUME: VolumeId = VolumeId([7; 16]);

fn keys_of(byte: u8) -> Keys {
    let epochs = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([byte; 32]))]);
    Keys::new(FamilyId([1; 16]), epochs)
}

fn small_config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        capacity_bytes: 1 << 20,
        reserve_bytes: 8 << 10,
        ..JournalConfig::default()
    }
}

/// Opens the journal as a writer that no start before it was.
async fn open_as(
    env: &Env,
    (keys, volume): (&Keys, VolumeId),
    covered: u64,
    config: JournalConfig,
) -> Result<(Journal, Replay), JournalError> {
    let writer = WriterId(env.random_u64());
    Journal::open(env, keys, volume, writer, DIRECTORY, Sequence(covered), config).await
}

struct Bench {
    directory: tempfile::TempDir,
    env: Env,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("a disk");
        Self { directory, env }
    }

    async fn open(&self, covered: u64, config: JournalConfig) -> Result<(Journal, Replay), JournalError> {
        open_as(&self.env, (&keys_of(1), VOLUME), covered, config).await
    }

    /// A start with the keys of somebody else, or for another volume, that is refused.
    async fn refused(&self, keys: &Keys, volume: VolumeId) -> JournalError {
        match open_as(&self.env, (keys, volume), 0, small_config()).await {
            Err(error) => error,
            Ok(_) => panic!("the start should have been refused"),
        }
    }

    async fn start(&self, covered: u64) -> (Journal, Vec<Bytes>) {
        let (journal, replay) = self
            .open(covered, small_config())
            .await
            .expect("the journal opens");
        let records = all(replay, covered).await.expect("every record opens");
        (journal, records)
    }

    async fn failed_start(&self) -> JournalError {
        self.refused(&keys_of(1), VOLUME).await
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.directory.path().join(DIRECTORY))
            .expect("the journal's directory")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        files
    }

    /// The files that hold records, oldest first.
    fn used_files(&self) -> Vec<PathBuf> {
        let used = |path: &PathBuf| {
            if path.extension().is_none_or(|extension| extension != "journal") {
                return false;
            }
            let bytes = std::fs::read(path).expect("readable");
            // One that is being prepared may be shorter than its header.
            bytes.iter().skip(84).any(|byte| *byte != 0)
        };
        self.files().into_iter().filter(used).collect()
    }
}

async fn all(mut replay: Replay, covered: u64) -> Result<Vec<Bytes>, JournalError> {
    let mut records = Vec::new();
    while let Some(record) = replay.next().await? {
        assert_eq!(
            record.sequence.0,
            covered + records.len() as u64 + 1,
            "sequences have no gap"
        );
        records.push(record.payload);
    }
    Ok(records)
}

fn payload(number: u64, length: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..length).map(|index| (index as u64 * 31 + number) as u8));
    Bytes::from(bytes)
}

async fn append(journal: &Journal, payload: &Bytes) -> Appended {
    let reservation = journal
        .wait_for_space(
            payload.len() as u64,
            ReserveClass::Ordinary,
            Duration::from_secs(20),
        )
        .await
        .expect("there is space");
    let middle = payload.len() / 2;
    journal.append(
        reservation,
        vec![payload.slice(..middle), payload.slice(middle..)],
    )
}

async fn append_many(journal: &Journal, numbers: std::ops::Range<u64>, length: usize) -> Vec<Appended> {
    let mut appended = Vec::new();
    for number in numbers {
        appended.push(append(journal, &payload(number, length)).await);
    }
    appended
}

#[tokio::test]
async fn what_was_durable_is_replayed_in_order_after_a_restart() {
    let bench = Bench::new();
    let (journal, found) = bench.start(0).await;
    assert!(found.is_empty());
    let appended = append_many(&journal, 1..101, 300).await;
    journal.durable(appended[99].sequence).await.expect("durable");
    assert_eq!(journal.durable_to(), Sequence(100));
    assert_eq!(journal.oldest_unsynced(), None);
    // No close: the process is gone.
    let (second, found) = bench.start(0).await;
    assert_eq!(
        found,
        (1..101).map(|number| payload(number, 300)).collect::<Vec<_>>()
    );
    let next = append(&second, &payload(101, 10)).await;
    assert_eq!(next.sequence, Sequence(101), "numbers go on");
    drop(journal);
}

#[tokio::test]
async fn records_written_by_several_starts_are_one_history() {
    let bench = Bench::new();
    for start in 0..5_u64 {
        let (journal, found) = bench.start(0).await;
        assert_eq!(found.len() as u64, start * 70);
        append_many(&journal, start * 70 + 1..start * 70 + 71, 2000).await;
        journal.close().await;
        assert!(
            journal.statistics().rotations >= 1,
            "the records fill more than one file"
        );
    }
    let (_, found) = bench.start(100).await;
    assert_eq!(
        found,
        (101..351).map(|number| payload(number, 2000)).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_start_without_new_records_leaves_no_file_behind() {
    let bench = Bench::new();
    for _ in 0..4 {
        let (journal, _) = bench.start(0).await;
        journal.close().await;
        assert!(bench.files().len() <= 3, "{:?}", bench.files());
    }
}

#[tokio::test]
async fn records_are_read_back_whole_before_and_after_a_restart() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let appended = append_many(&journal, 1..61, 1500).await;
    for (index, record) in appended.iter().enumerate() {
        let read = journal.read(&record.record).await.expect("readable");
        assert_eq!(read, payload(index as u64 + 1, 1500));
        assert!(journal.is_written(&record.record));
    }
    journal.close().await;
    let (journal, mut replay) = bench.open(0, small_config()).await.expect("opens");
    let mut found = Vec::new();
    while let Some(record) = replay.next().await.expect("replays") {
        found.push(record);
    }
    for record in found {
        assert_eq!(
            journal.read(&record.record).await.expect("readable"),
            record.payload
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_who_waits_at_one_moment_shares_one_fsync() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    // One task, so that all 200 are appended before the writer gets its turn.
    let appended = append_many(&journal, 1..201, 64).await;
    let waits = appended.iter().map(|record| journal.durable(record.sequence));
    for result in futures::future::join_all(waits).await {
        result.expect("durable");
    }
    let statistics = journal.statistics();
    assert_eq!(statistics.records, 200);
    assert!(statistics.syncs <= 3, "{} syncs", statistics.syncs);
}

#[tokio::test]
async fn a_record_nobody_waits_for_reaches_the_kernel_by_itself() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let record = append(&journal, &payload(1, 10)).await;
    assert!(!journal.is_written(&record.record));
    assert!(journal.oldest_unsynced().is_some());
    for _ in 0..200 {
        if journal.is_written(&record.record) {
            assert_eq!(journal.statistics().syncs, 0, "nobody asked for durability");
            return;
        }
        bench.env.sleep(Duration::from_millis(10)).await;
    }
    panic!("not written within 2 s");
}

#[tokio::test]
async fn closing_makes_everything_durable_and_then_nothing_more() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..31, 3000).await;
    journal.close().await;
    assert_eq!(journal.durable_to(), Sequence(30));
    journal.close().await;
    assert!(journal.reserve(10, ReserveClass::Reserved).is_none());
    let (_, found) = bench.start(0).await;
    assert_eq!(found.len(), 30);
}

#[tokio::test]
async fn dropping_the_last_handle_writes_what_was_appended() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    append_many(&journal, 1..11, 100).await;
    drop(journal);
    bench.env.sleep(Duration::from_millis(300)).await;
    let (_, found) = bench.start(0).await;
    assert_eq!(found.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_readers_and_trimming_on_real_threads_agree() {
    let bench = Bench::new();
    let (journal, _) = bench.start(0).await;
    let workers = (0..8_u64).map(|worker| {
        let (journal, env) = (journal.clone(), bench.env.clone());
        env.spawn("worker", async move {
            for round in 0..150 {
                let sent = payload(
                    worker << 32 | round,
                    (round as usize * 37 + worker as usize * 11) % 3000,
                );
                let appended = append(&journal, &sent).await;
                if round % 3 == 0 {
                    journal.durable(appended.sequence).await.expect("durable");
                    assert!(journal.durable_to() >= appended.sequence);
                }
                match journal.read(&appended.record).await {
                    Ok(read) => assert_eq!(read, sent),
                    Err(JournalError::Trimmed { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                if round % 20 == worker {
                    journal.trim(journal.durable_to()).await.expect("trims");
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("the worker ends well");
    }
    let last = journal.last();
    assert_eq!(last, Sequence(1200));
    journal.close().await;
    let (_, found) = bench.start(last.0 - 5).await;
    assert_eq!(found.len(), 5);
}

#[test]
fn a_full_disk_at_the_start_is_one_clear_line() {
    let simulation = firn_env::sim::Simulation::new(1);
    let machine = simulation.machine("edge");
    machine
        .disk()
        .configure(|options| options.capacity_bytes = 40 << 10);
    let env = machine.env();
    let opened = simulation
        .run(async move {
            let owner = (&keys_of(1), VOLUME);
            open_as(&env, owner, 0, small_config()).await.map(drop)
        })
        .expect("the simulation runs");
    let error = opened.expect_err("64 KiB do not fit in 40");
    assert!(error.to_string().contains("make room"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

#[tokio::test]
async fn a_file_is_what_the_specification_says() {
    let bench = Bench::new();
    let (journal, _) = bench.start(41).await;
    append_many(&journal, 1..3, 100).await;
    journal.close().await;
    let path = bench.used_files().remove(0);
    assert!(path.ends_with("0000000000000001.journal"));
    let bytes = Bytes::from(std::fs::read(path).expect("readable"));
    let header = firn_format::JournalFileHeader::decode(&bytes).expect("a header");
    assert_eq!((header.volume, header.number), (VOLUME, 1));
    let opener = firn_seal::RecordOpener::of_journal(&keys_of(1), &header).expect("the key");
    let mut rest = bytes.slice(firn_format::JOURNAL_HEADER_BYTES..);
    let mut opened = Vec::new();
    while let firn_format::RecordScan::Record { payload, total_bytes } =
        header.framing().next(&rest, opened.len() as u32)
    {
        opened.push(
            opener
                .open(opened.len() as u32, rest.slice(payload))
                .expect("sealed for this slot"),
        );
        rest = rest.slice(total_bytes..);
    }
    let opening = Bytes::copy_from_slice(&42_u64.to_le_bytes());
    assert_eq!(opened, [opening, payload(1, 100), payload(2, 100)]);
    assert!(rest.iter().all(|byte| *byte == 0));
}
