//! A file system simple enough to be right at sight: the model in memory and a log of calls on the disk. It exists to test
//! the tests: histories must pass on it, and must find each way in which it can be broken.
//!
//! ```text
//! log = record*      record = call u64 | time i64 | crc32c u32 of both     (the call itself stays in the test's memory)
//! ```

use crate::{
    operation::Operation,
    oracle::current_call,
    outcome::Outcome,
    system::{Branch, Running, StartError, System, Weather},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{
    DiskError, DiskFile, Env, OpenMode,
    sim::{Machine, Simulation},
};
use firn_vfs::{Caller, MemoryOptions, MemorySnapshot, MemoryVfs, Stability, Timestamp, Vfs, VfsError};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

const RECORD_BYTES: u64 = 20;
const LOG: &str = "log";

/// Ways to break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyBug {
    /// Answers before the log is synced.
    AnswersBeforeSync,
    /// Does not sync the name of the log.
    ForgetsTheDirectory,
    /// Commit syncs nothing.
    CommitDoesNothing,
    /// Replays records whose checksum is wrong.
    IgnoresChecksums,
    /// Goes on after a torn record, leaving a gap.
    SkipsTornRecords,
    /// Applies the last record twice.
    ReplaysTwice,
    /// Forgets truncations when replaying.
    LosesTruncations,
    /// Reads give zeros beyond the first 4 KiB.
    ReadsWrongly,
}

impl ToyBug {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AnswersBeforeSync,
        Self::ForgetsTheDirectory,
        Self::CommitDoesNothing,
        Self::IgnoresChecksums,
        Self::SkipsTornRecords,
        Self::ReplaysTwice,
        Self::LosesTruncations,
        Self::ReadsWrongly,
    ];
}

/// What calls were, by number: the part of the log that is too tedious to encode.
type Calls = Arc<Mutex<BTreeMap<u64, (Caller, Operation)>>>;

/// See the module.
pub struct Toy {
    machine: Machine,
    calls: Calls,
    starts: Arc<Starts>,
    /// The empty file system.
    empty: Mutex<Option<MemorySnapshot>>,
    bug: Option<ToyBug>,
}

/// Counts starts, for the write verifier.
#[derive(Default)]
struct Starts {
    count: AtomicU64,
    clean: AtomicBool,
}

impl Toy {
    /// One machine with an empty disk.
    pub fn new(simulation: &Simulation, bug: Option<ToyBug>) -> Self {
        Self {
            machine: simulation.machine("edge"),
            calls: Calls::default(),
            starts: Arc::default(),
            empty: Mutex::new(None),
            bug,
        }
    }
}

fn broken(error: DiskError) -> StartError {
    StartError::Later(error.to_string())
}

#[async_trait]
impl System for Toy {
    fn remembers_requests(&self) -> bool {
        false
    }

    fn edge(&self, _edge: usize) -> Machine {
        self.machine.clone()
    }

    fn edges(&self) -> usize {
        1
    }

    fn model_options(&self) -> MemoryOptions {
        MemoryOptions::default()
    }

    async fn format(&self, _edge: usize) -> Result<(), StartError> {
        let env = self.machine.env();
        self.empty
            .lock()
            .expect("no panic")
            .get_or_insert_with(|| MemoryVfs::new(&env, self.model_options()).snapshot());
        match env.disk().open(LOG, OpenMode::CreateNew).await {
            Ok(_) | Err(DiskError::AlreadyExists { .. }) => {}
            Err(error) => return Err(broken(error)),
        }
        if self.bug == Some(ToyBug::ForgetsTheDirectory) {
            return Ok(());
        }
        env.disk().sync_directory("").await.map_err(broken)
    }

    async fn start(&self, _edge: usize, _branch: Branch) -> Result<Arc<dyn Running>, StartError> {
        let env = self.machine.env();
        let log = match env.disk().open(LOG, OpenMode::ReadWrite).await {
            Err(DiskError::NotFound { .. }) => env.disk().open(LOG, OpenMode::CreateNew).await,
            other => other,
        }
        .map_err(broken)?;
        let model = MemoryVfs::new(&env, self.model_options());
        if let Some(empty) = &*self.empty.lock().expect("no panic") {
            model.restore(empty);
        }
        let length = log.length().await.map_err(broken)?;
        let bytes = log.read_at(0, length as usize).await.map_err(broken)?;
        env.fault_point("toy.replay").await;
        let mut end = 0;
        let mut last = None;
        for record in bytes.chunks_exact(RECORD_BYTES as usize) {
            let intact = crc32c::crc32c(&record[..16]).to_le_bytes() == record[16..];
            if !intact && self.bug != Some(ToyBug::IgnoresChecksums) {
                if self.bug == Some(ToyBug::SkipsTornRecords) {
                    end += RECORD_BYTES;
                    continue;
                }
                break;
            }
            end += RECORD_BYTES;
            self.replay(&model, record).await;
            last = Some(record);
        }
        if let Some(last) = last
            && self.bug == Some(ToyBug::ReplaysTwice)
        {
            self.replay(&model, last).await;
        }
        model.set_now(None);
        model.crash(|_, writes| writes);
        log.truncate(end).await.map_err(broken)?;
        log.sync_data().await.map_err(broken)?;
        if self.bug != Some(ToyBug::ForgetsTheDirectory) {
            env.disk().sync_directory("").await.map_err(broken)?;
        }
        if !self.starts.clean.swap(false, Ordering::Relaxed) {
            self.starts.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Arc::new(RunningToy {
            verifier: self.starts.count.load(Ordering::Relaxed),
            starts: self.starts.clone(),
            vfs: Arc::new(model),
            env,
            log,
            end: tokio::sync::Mutex::new(end),
            calls: self.calls.clone(),
            bug: self.bug,
        }))
    }

    async fn takeover(&self, _edge: usize) -> Result<(), StartError> {
        Err(StartError::Broken("the toy has one edge".into()))
    }

    async fn salvage(&self, _edge: usize) -> Result<Option<Branch>, StartError> {
        Ok(None)
    }

    fn set_weather(&self, _edge: usize, _weather: Weather) {}

    fn requests(&self) -> u64 {
        0
    }

    fn spoil_cache(&self, _edge: usize, _wipe: bool) {}

    fn fault_points(&self) -> &'static [&'static str] {
        &["toy.replay", "toy.before_sync", "toy.after_sync"]
    }

    fn largest_write(&self) -> u64 {
        40_000
    }

    fn applied_observation(&self) -> &'static str {
        "toy.applied"
    }
}

impl Toy {
    async fn replay(&self, model: &MemoryVfs, record: &[u8]) {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (call, now) = (number(&record[..8]), number(&record[8..16]) as i64);
        let found = self.calls.lock().expect("no panic").get(&call).cloned();
        let Some((caller, operation)) = found else { return };
        if matches!(&operation, Operation::SetAttributes { change, .. } if change.size_bytes.is_some())
            && self.bug == Some(ToyBug::LosesTruncations)
        {
            return;
        }
        model.set_now(Some(Timestamp::from_nanos(now)));
        let _ = operation.make(model, &caller).await;
    }
}

struct RunningToy {
    vfs: Arc<MemoryVfs>,
    env: Env,
    log: Arc<dyn DiskFile>,
    end: tokio::sync::Mutex<u64>,
    calls: Calls,
    verifier: u64,
    starts: Arc<Starts>,
    bug: Option<ToyBug>,
}

impl RunningToy {
    async fn perform_locked(&self, caller: &Caller, operation: &Operation) -> Outcome {
        // Also for queries: what is not yet durable must not be seen.
        let mut end = self.end.lock().await;
        if *end == u64::MAX {
            return Err(VfsError::Io("the edge has stopped".into()));
        }
        if operation.is_query() {
            let outcome = operation.make(&*self.vfs, caller).await;
            return self.misread(outcome);
        }
        let now = self.env.wall().0;
        self.vfs.set_now(Some(Timestamp::from_nanos(now)));
        let call = current_call().unwrap_or_default();
        let outcome = operation.make(&*self.vfs, caller).await;
        let Ok(reply) = &outcome else { return outcome };
        let unchanged = match operation {
            Operation::Commit { .. } | Operation::Retain { .. } => true,
            // Attributes before and after are the first two.
            Operation::Rename { .. }
            | Operation::SetAttributes { .. }
            | Operation::SetAcl { .. }
            | Operation::Write { .. } => reply.attributes.first() == reply.attributes.get(1),
            _ => false,
        };
        if !unchanged {
            self.env.observe("toy.applied", call);
            self.calls
                .lock()
                .expect("no panic")
                .insert(call, (caller.clone(), operation.clone()));
            let mut record = call.to_le_bytes().to_vec();
            record.extend_from_slice(&now.to_le_bytes());
            record.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
            self.log
                .write_at(*end, vec![Bytes::from(record)])
                .await
                .map_err(|error| VfsError::Io(error.to_string()))?;
            *end += RECORD_BYTES;
        }
        let unstable = matches!(
            operation,
            Operation::Write {
                stability: Stability::Unstable,
                ..
            }
        );
        let skips = match operation {
            Operation::Commit { .. } => self.bug == Some(ToyBug::CommitDoesNothing),
            _ => unstable || self.bug == Some(ToyBug::AnswersBeforeSync),
        };
        if !skips {
            self.env.fault_point("toy.before_sync").await;
            self.log.sync_data().await.expect("a failed sync is a crash");
            self.env.fault_point("toy.after_sync").await;
        }
        outcome
    }

    fn misread(&self, mut outcome: Outcome) -> Outcome {
        if let Ok(reply) = &mut outcome
            && self.bug == Some(ToyBug::ReadsWrongly)
            && reply.bytes.len() > 4096
        {
            let mut bytes = reply.bytes.to_vec();
            bytes[4096..].fill(0);
            reply.bytes = Bytes::from(bytes);
        }
        outcome
    }
}

#[async_trait]
impl Running for RunningToy {
    fn vfs(&self) -> Arc<dyn Vfs> {
        self.vfs.clone()
    }

    async fn perform(&self, caller: &Caller, operation: &Operation) -> Outcome {
        self.perform_locked(caller, operation).await
    }

    async fn sync(&self) -> Result<(), String> {
        Err("the toy has no cloud".into())
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.verifier.to_le_bytes()
    }

    async fn stop(&self) -> Result<(), String> {
        let mut end = self.end.lock().await;
        self.log.sync_data().await.map_err(|error| error.to_string())?;
        // Whoever still waits for the log finds it closed.
        *end = u64::MAX;
        self.starts.clean.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn drain(&self) -> Result<(), String> {
        self.stop().await
    }

    async fn verify(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_fenced(&self) -> bool {
        false
    }
}
