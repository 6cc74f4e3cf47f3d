//! The calendar, and who may sign.

use super::*;
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{DirectoryStore, ListPage, ObjectInfo, ObjectKey, PutMode};
use firn_table::{RedbTable, Table};
use firn_volume::{FormatOptions, VolumeConfig};
use futures::future::join;
use std::{collections::BTreeMap, path::PathBuf};
use tokio::sync::Notify;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR_MS: i64 = 3_600_000;

#[test]
fn the_calendar_goes_on_where_the_last_audit_ended() {
    let due = |outcome, now_ms| due_at(Some((1000, outcome)), DAY, 7, now_ms);
    assert_eq!(due(Outcome::Intact, 2000), 1000 + 24 * HOUR_MS);
    // Long off: at once, and one, not one for each day.
    assert_eq!(due(Outcome::Intact, 100 * 24 * HOUR_MS), 1000 + 24 * HOUR_MS);
    assert_eq!(due(Outcome::Failed, 2000), 1000 + HOUR_MS);
    assert_eq!(due_at(None, DAY, 7, 5), 7);
}

#[test]
fn a_clock_that_was_wrong_delays_no_audit_for_longer_than_the_calendar_says() {
    let future = Some((i64::MAX - 1, Outcome::Intact));
    assert_eq!(due_at(future, DAY, 7, 1000), 1000 + 24 * HOUR_MS);
    assert_eq!(due_at(None, DAY, i64::MAX, 1000), 1000 + 24 * HOUR_MS);
}

#[test]
fn the_default_finds_one_percent_nearly_always() {
    let missed = (1.0 - TOLD_SHARE).powi(i32::try_from(firn_cleaner::DEFAULT_CHALLENGES).expect("few"));
    assert!(missed < 0.001, "{missed}");
}

const FAMILY: FamilyId = FamilyId([7; 16]);
const VOLUME: VolumeId = VolumeId([8; 16]);

/// A bucket in which whoever reads waits while the gate is closed.
struct Gated {
    store: Arc<dyn Store>,
    gate: tokio::sync::Semaphore,
    /// Somebody waits.
    waits: Notify,
}

impl Gated {
    async fn pass(&self) {
        if self.gate.available_permits() == 0 {
            self.waits.notify_one();
        }
        drop(self.gate.acquire().await);
    }
}

#[async_trait]
impl Store for Gated {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.store.put(key, parts, mode).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.pass().await;
        self.store.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.pass().await;
        self.store.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.store.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.store.list(prefix, after).await
    }
}

/// A bucket and a table, and machines that come to both.
struct World {
    directory: tempfile::TempDir,
    store: Arc<dyn Store>,
    table: Arc<dyn Table>,
}

/// A machine that owns the volume, or did.
struct Machine {
    auditor: Arc<Auditor>,
    bucket: ReportBucket,
    gated: Arc<Gated>,
    state: PathBuf,
    epoch: u64,
    _volume: Volume,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let store = DirectoryStore::open(&env, "bucket").await.expect("a bucket");
        let path = directory.path().join("table");
        let table = RedbTable::open(&env, &path).await.expect("a table");
        Self {
            directory,
            store: Arc::new(store),
            table: Arc::new(table),
        }
    }

    /// Has a machine make the volume, or take it from whoever owns it.
    async fn machine(&self, name: &str) -> Machine {
        let state = self.directory.path().join(name);
        std::fs::create_dir(&state).expect("made");
        let env = firn_env::real(&state).expect("an environment");
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        let parts = Parts {
            env: env.clone(),
            store: self.store.clone(),
            second: None,
            anchor: Anchor::new(self.table.clone(), env.clone(), FAMILY),
            keys: Keys::new(FAMILY, keys),
            volume: VOLUME,
        };
        let config = VolumeConfig {
            owner_name: name.into(),
            ..VolumeConfig::default()
        };
        match parts.anchor.create_family().await {
            Ok(()) => Volume::format(&parts, "v", FormatOptions::default(), &config)
                .await
                .expect("made"),
            Err(_) => drop(Volume::takeover(&parts, &config).await.expect("taken over")),
        }
        let (volume, _) = Volume::open(parts.clone(), config).await.expect("it opens");
        let signer = volume.owner_signer().expect("it owns the volume");
        let gated = Arc::new(Gated {
            store: self.store.clone(),
            gate: tokio::sync::Semaphore::new(1),
            waits: Notify::new(),
        });
        let audited = Audited {
            parts: &parts,
            signer: Some(signer.clone()),
            second: None,
            store: gated.clone(),
        };
        let book = ProviderPrices::named("s3-us-east-1").expect("a book").clone();
        Machine {
            auditor: Arc::new(Auditor::new(audited, &AuditSection::default(), book, &state)),
            bucket: ReportBucket {
                store: self.store.clone(),
                keys: parts.keys.clone(),
                volume: VOLUME,
            },
            gated,
            state,
            epoch: signer.epoch().0,
            _volume: volume,
        }
    }
}

impl Machine {
    async fn audit(&self) -> Ended {
        self.audit_for(AskedBy::Administrator).await
    }

    async fn audit_for(&self, by: AskedBy) -> Ended {
        let asked = Asked {
            by,
            challenges: 10,
            budget: Money::parse("1").expect("an amount"),
            seed: None,
            second: false,
            goes_on: false,
        };
        let audited = self.auditor.audit(asked, &AuditProgress::default()).await;
        audited.expect("none is under way")
    }

    async fn newest(&self) -> Report {
        let newest = self.bucket.newest().await.expect("the bucket answers");
        newest.expect("a report").report().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_overtaken_while_an_audit_runs_signs_no_report_and_tells_what_was_found() {
    let world = World::new().await;
    let first = world.machine("first").await;
    assert_eq!(first.audit().await.not_signed, None);
    assert_eq!(first.newest().await.sequence, 1);

    // In the middle of the next one the volume gets another owner.
    let closed = first.gated.gate.acquire().await.expect("open");
    let meanwhile = async {
        first.gated.waits.notified().await;
        let second = world.machine("second").await;
        drop(closed);
        second
    };
    let (ended, second) = join(first.audit_for(AskedBy::Calendar), meanwhile).await;
    assert!(ended.found.is_ok_and(|found| found.is_intact()));
    let why = ended.not_signed.expect("the key does not count any more");
    assert!(why.contains("taken over"), "{why}");
    assert_eq!(first.newest().await.sequence, 1, "the bucket has no report of it");

    // It is kept and told, also after a start.
    let last = first.auditor.part().last.expect("one");
    assert_eq!(
        (last.outcome, last.detail.as_deref()),
        (Outcome::Intact, Some(why))
    );
    let kept = KeptAudits::open(&first.state);
    let Some(Kept::Unsigned(kept)) = kept.last() else {
        panic!("it was signed");
    };
    assert_eq!(
        (kept.asked_by, kept.detail.as_deref()),
        (AskedBy::Calendar, Some(why))
    );

    // The new owner's reports follow the last one of before.
    assert_eq!(second.audit().await.not_signed, None);
    let newest = second.newest().await;
    assert_eq!((newest.sequence, newest.signer.epoch), (2, second.epoch));
    assert!(first.audit().await.not_signed.is_some());
    assert_eq!(second.newest().await, newest);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_know_of_a_new_owner_is_told_by_that_ones_report() {
    let world = World::new().await;
    let first = world.machine("first").await;
    first.audit().await;
    let second = world.machine("second").await;
    second.audit().await;
    let newest = second.newest().await;
    // As if the table had said nothing: what the bucket has is enough.
    let kept = KeptAudits::open(&first.state);
    let sign = |_| panic!("nothing is signed");
    let filed = file(&first.bucket, &kept, first.epoch, &sign).await;
    assert!(matches!(filed, Ok(Err(Overtaken))));
    assert_eq!(second.newest().await, newest);
}
