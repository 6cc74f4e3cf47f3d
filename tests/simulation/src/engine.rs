//! The engine under test: edges with a volume each, one bucket and one table for all.
//!
//! Three edges can serve (the third is used to read everything from the cloud alone), a fourth machine looks at salvage
//! clones. Each edge reaches the cloud through its own store stack and table client, which have the weather.

use crate::{
    bad_line::{fair_store, fair_table, rough_store, rough_table},
    cleaners::Cleaners,
    gathering,
    manifests::Manifests,
    oracle::is_trouble,
    rekeying::{self, Ring},
    system::{Branch, Running, SnapshotRefusal, StartError, System, Weather},
};
use async_trait::async_trait;
use firn_anchor::{Anchor, AnchorError};
use firn_env::{
    Env,
    sim::{DiskImage, Machine, Seeded, Simulation},
};
use firn_format::{FamilyId, VolumeId};
use firn_seal::{Compression, Keys};
use firn_store::{
    FaultConfig, FaultControl, Faults, Faulty, MemoryStore, Meter, Metered, Outage, RetryPolicy, Retrying,
    Store,
};
use firn_table::{MemoryTable, MemoryTableClient};
use firn_vfs::{Limits, MemoryOptions, Vfs, rules};
use firn_volume::{
    Cadence, CloneError, FormatOptions, OnDisconnect, Parts, RestoreError, ServingState, SnapshotError,
    Volume, VolumeConfig, VolumeError, file_system_id,
    journal::JournalError,
    objects::{FetchPolicy, ReadError},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);
/// Machines on which the volume can be served.
const EDGES: usize = 3;

/// Where histories stop the machine. All of the engine's, and of the layers it does its I/O with.
pub const FAULT_POINTS: &[&str] = &[
    "checkpoint.after_build",
    "checkpoint.after_commit",
    "checkpoint.after_freeze",
    "checkpoint.after_upload",
    "checkpoint.before_commit",
    "checkpoint.before_freeze",
    "checkpoint.before_trim",
    "checkpoint.before_upload",
    "drain.after_release",
    "drain.before_release",
    "gathering.after_walk",
    "journal.after_file_create",
    "journal.after_fsync",
    "journal.after_trim_remove",
    "journal.after_write",
    "journal.after_write_and_sync",
    "journal.before_file_create",
    "journal.before_fsync",
    "journal.before_trim",
    "journal.before_write",
    "journal.before_write_and_sync",
    "objects.after_get",
    "objects.before_cache_write",
    "objects.before_taking_over",
    "objects.before_get",
    "read_ahead.before_look",
    "rekey.after_step",
    "rekey.before_step",
];

struct Edge {
    machine: Machine,
    weather: Mutex<Weather>,
    store: Arc<Metered>,
    meter: Meter,
    faults: FaultControl,
    /// Of the running incarnation.
    table: Mutex<Option<Arc<MemoryTableClient>>>,
}

/// See the module.
pub struct Engine {
    edges: Vec<Edge>,
    cleaners: Option<Arc<Cleaners>>,
    table: MemoryTable,
    ring: Ring,
    config: VolumeConfig,
    format: FormatOptions,
    manifests: Manifests,
    /// A volume of today, whose manifest is begun in the middle of the history.
    begins_manifest: bool,
}

impl Engine {
    /// A new installation with settings drawn from `random`: small ones, so that every limit is met.
    pub fn new(simulation: &Simulation, random: &mut Seeded) -> Self {
        let world = simulation.env();
        let bucket: Arc<dyn Store> = Arc::new(MemoryStore::new(&world));
        let edges = (0..=EDGES)
            .map(|number| Edge::new(simulation, &world, &bucket, number))
            .collect();
        let journal_file_bytes = *random.pick(&[64 << 10, 96 << 10, 256 << 10, 1 << 20]);
        let config = VolumeConfig {
            owner_name: "edge".into(),
            segment_bytes: *random.pick(&[16 << 10, 64 << 10, 1 << 20]),
            uploads_max: random.between(1, 8) as usize,
            compression: *random.pick(&[Compression::None, Compression::Lz4]),
            memory_cache_bytes: *random.pick(&[0, 64 << 10, 4 << 20]),
            disk_cache_bytes: *random.pick(&[64 << 10, 1 << 20, 64 << 20]),
            journal_bytes: journal_file_bytes * random.between(2, 8),
            journal_file_bytes,
            dirty_memory_bytes: *random.pick(&[0, 32 << 10, 4 << 20]),
            cadence: Cadence {
                busy: random.duration(Duration::from_millis(20), Duration::from_secs(2)),
                busy_bytes: *random.pick(&[8 << 10, 256 << 10, 4 << 20]),
                trickle: random.duration(Duration::from_millis(50), Duration::from_secs(10)),
            },
            quota_bytes: 1 << 40,
            fetch: *random.pick(&[
                FetchPolicy::Adaptive,
                FetchPolicy::Exact,
                FetchPolicy::FullSegment,
            ]),
            wait_limit: Duration::from_secs(random.between(1, 20)),
            on_disconnect: *random.pick(&[OnDisconnect::Wait, OnDisconnect::Wait, OnDisconnect::Fail]),
            merge_every: *random.pick(&[Duration::ZERO, Duration::from_secs(5), Duration::from_secs(60)]),
            ..VolumeConfig::default()
        };
        let table = MemoryTable::new();
        let cleaners = random
            .chance(3, 4)
            .then(|| Cleaners::start(simulation, &bucket, &table, FAMILY, random));
        let anchor = Anchor::new(table.connect(&world), world.clone(), FAMILY);
        Self {
            manifests: Manifests::new(&world, &bucket, anchor, FAMILY),
            begins_manifest: simulation.seed().is_multiple_of(2) && !simulation.seed().is_multiple_of(16),
            edges,
            cleaners,
            table,
            ring: Ring::new(),
            config,
            format: FormatOptions {
                block_bytes: *random.pick(&[4 << 10, 8 << 10, 32 << 10]),
                // Not drawn, so that a seed goes on to be the history that it was.
                manifest: !simulation.seed().is_multiple_of(2),
                ..FormatOptions::default()
            },
        }
    }

    /// Takes a volume by force. The table is never rolled back here, so an owner that died between upload and commit is all that can
    /// be in doubt, and the administrator says so.
    async fn take(&self, parts: &Parts) -> Result<(), VolumeError> {
        match Volume::takeover(parts, &self.config).await {
            Err(VolumeError::StaleTable(stale)) if stale.is_in_doubt() => {
                match Volume::accept_rollback(parts, &self.config).await? {
                    Some(_) => Ok(()),
                    // The owner lived and committed meanwhile: nothing is in doubt any more, and nothing was taken.
                    None => Volume::takeover(parts, &self.config).await.map(drop),
                }
            }
            taken => taken.map(drop),
        }
    }

    /// What the programs of an edge's running incarnation are made of.
    fn parts(&self, edge: usize, branch: Branch) -> Parts {
        let env = self.edges[edge].machine.env();
        let table = self.table.connect(&env);
        *self.edges[edge].table.lock().expect("no panic under this lock") = Some(table.clone());
        self.edges[edge].apply_weather();
        let anchor = Anchor::new(table, env.clone(), FAMILY);
        Parts {
            store: Arc::new(Retrying::new(
                &env,
                self.edges[edge].store.clone(),
                RetryPolicy {
                    tries_max: 4,
                    pause_ms: 50,
                    pause_max_ms: 2_000,
                    ..RetryPolicy::default()
                },
            )),
            second: None,
            anchor,
            keys: self.ring.keys(FAMILY),
            volume: match branch {
                Branch::HEAD => VOLUME,
                Branch(clone) => VolumeId(clone),
            },
            env,
        }
    }
}

impl Engine {
    fn running(&self, volume: Volume, keys: Keys, env: Env) -> RunningVolume {
        RunningVolume(volume, keys, env, self.ring.clone(), self.begins_manifest)
    }
}

impl Edge {
    fn new(simulation: &Simulation, world: &Env, bucket: &Arc<dyn Store>, number: usize) -> Self {
        let config = FaultConfig {
            seed: simulation.seed() ^ (number as u64) << 32,
            ..FaultConfig::default()
        };
        let faulty = Faulty::new(world, bucket.clone(), config).expect("no faults make sense");
        let faults = faulty.control();
        let store = Arc::new(Metered::new(Arc::new(faulty)));
        let edge = Self {
            machine: simulation.machine(&format!("edge{number}")),
            weather: Mutex::new(Weather::Fair),
            meter: store.meter(),
            store,
            faults,
            table: Mutex::new(None),
        };
        edge.apply_weather();
        edge
    }

    fn apply_weather(&self) {
        let weather = *self.weather.lock().expect("no panic under this lock");
        let faults = match weather {
            Weather::Fair => fair_store(),
            Weather::Rough | Weather::NoTable => rough_store(),
            Weather::NoStore | Weather::CutOff => Faults {
                outage: Outage::Hang,
                ..rough_store()
            },
        };
        self.faults.set(faults).expect("the faults make sense");
        let client = self.table.lock().expect("no panic under this lock");
        let Some(table) = &*client else { return };
        table.set_outage(matches!(weather, Weather::NoTable | Weather::CutOff));
        table.set_rates(match weather {
            Weather::Fair => fair_table(15),
            Weather::Rough | Weather::NoStore | Weather::NoTable | Weather::CutOff => rough_table(15),
        });
    }
}

fn classify(error: VolumeError) -> StartError {
    let text = error.to_string();
    match error {
        VolumeError::Anchor(AnchorError::OwnedByOther { .. } | AnchorError::Fenced(_)) => {
            StartError::Owned(text)
        }
        VolumeError::SalvageFirst { .. } => StartError::SalvageFirst,
        VolumeError::Anchor(error) if error.is_transient() => StartError::Later(text),
        // Keys were rotated since its ring was read: the next try has the newer one.
        VolumeError::KeyNotAtHand { .. } => StartError::Later(text),
        VolumeError::Disk(_)
        | VolumeError::Journal(
            JournalError::Disk(_) | JournalError::NoSpace { .. } | JournalError::Failed { .. },
        )
        | VolumeError::Objects(_)
        | VolumeError::Read(ReadError::Unavailable { .. })
        | VolumeError::NotDetachable(_)
        | VolumeError::Stopped(_) => StartError::Later(text),
        // The first checkpoint met an outage.
        VolumeError::Checkpoint(error) if met_an_outage(&error) => StartError::Later(text),
        other => StartError::Broken(format!("{other:?}")),
    }
}

fn met_an_outage(error: &dyn std::error::Error) -> bool {
    let Some(source) = error.source() else {
        return false;
    };
    let anchor = source
        .downcast_ref::<AnchorError>()
        .is_some_and(AnchorError::is_transient);
    anchor || matches!(source.downcast_ref(), Some(ReadError::Unavailable { .. }))
}

#[async_trait]
impl System for Engine {
    fn edge(&self, edge: usize) -> Machine {
        self.edges[edge].machine.clone()
    }

    fn edges(&self) -> usize {
        EDGES
    }

    fn model_options(&self) -> MemoryOptions {
        MemoryOptions {
            file_system: file_system_id(VOLUME),
            quota_bytes: self.config.quota_bytes,
            limits: Limits {
                file_bytes: rules::FILE_BYTES_MAX,
                links: 1_000_000,
                preferred_io_bytes: 1 << 20,
                maximum_io_bytes: 1 << 20,
            },
            ..MemoryOptions::default()
        }
    }

    async fn format(&self, edge: usize) -> Result<(), StartError> {
        let parts = self.parts(edge, Branch::HEAD);
        match parts.anchor.create_family().await {
            Ok(()) | Err(AnchorError::FamilyExists { .. }) => {}
            Err(error) => return Err(classify(error.into())),
        }
        match Volume::format(&parts, "volume", self.format, &self.config).await {
            Ok(()) => Ok(()),
            // Done by an earlier try whose end nobody saw.
            Err(VolumeError::Anchor(AnchorError::VolumeExists { .. })) => Ok(()),
            Err(error) => Err(classify(error)),
        }
    }

    async fn start(&self, edge: usize, branch: Branch) -> Result<Arc<dyn Running>, StartError> {
        let parts = self.parts(edge, branch);
        if branch != Branch::HEAD {
            self.take(&parts).await.map_err(classify)?;
        }
        let (keys, env) = (parts.keys.clone(), parts.env.clone());
        let (volume, _report) = Volume::open(parts, self.config.clone()).await.map_err(classify)?;
        Ok(Arc::new(self.running(volume, keys, env)))
    }

    fn can_detach(&self) -> bool {
        true
    }

    async fn start_detached(&self, edge: usize) -> Result<Arc<dyn Running>, StartError> {
        let parts = self.parts(edge, Branch::HEAD);
        let (keys, env) = (parts.keys.clone(), parts.env.clone());
        let opened = Volume::open_detached(parts, self.config.clone()).await;
        let (volume, _report) = opened.map_err(classify)?;
        Ok(Arc::new(self.running(volume, keys, env)))
    }

    async fn takeover(&self, edge: usize) -> Result<(), StartError> {
        let parts = self.parts(edge, Branch::HEAD);
        self.take(&parts).await.map_err(classify)
    }

    async fn salvage(&self, edge: usize) -> Result<Option<Branch>, StartError> {
        let parts = self.parts(edge, Branch::HEAD);
        let report = Volume::salvage(&parts, &self.config).await.map_err(classify)?;
        Ok(report.map(|report| Branch(report.volume.0)))
    }

    fn set_weather(&self, edge: usize, weather: Weather) {
        *self.edges[edge].weather.lock().expect("no panic under this lock") = weather;
        self.edges[edge].apply_weather();
    }

    fn requests(&self) -> u64 {
        let store: u64 = self.edges.iter().map(|edge| edge.meter.usage().requests()).sum();
        store + self.table.counts().requests()
    }

    fn spoil_cache(&self, edge: usize, wipe: bool) {
        let disk = self.edges[edge].machine.disk();
        if !wipe {
            disk.rot("cache/", 300);
            return;
        }
        let image = disk.image();
        let is_cache = |path: &str| path == "cache" || path.starts_with("cache/");
        disk.restore(&DiskImage {
            directories: image
                .directories
                .into_iter()
                .filter(|path| !is_cache(path))
                .collect(),
            files: image
                .files
                .into_iter()
                .filter(|(path, _)| !is_cache(path))
                .collect(),
        });
    }

    fn fault_points(&self) -> &'static [&'static str] {
        FAULT_POINTS
    }

    fn largest_write(&self) -> u64 {
        // The largest record is half a file; beside the data it needs room for names and attributes.
        (self.config.journal_file_bytes / 2 - (30 << 10)).min(40_000)
    }

    fn applied_observation(&self) -> &'static str {
        "volume.applied"
    }

    fn has_snapshots(&self) -> bool {
        true
    }

    async fn check_manifests(&self) -> Vec<String> {
        self.manifests.check().await
    }

    async fn delete_unlisted(&self) -> Result<u64, String> {
        self.manifests.delete_others().await
    }

    fn pause_cleaners(&self, paused: bool) {
        if let Some(cleaners) = &self.cleaners {
            cleaners.pause(paused);
        }
    }

    fn take_cleaners_findings(&self) -> (BTreeMap<&'static str, u64>, Vec<String>) {
        self.cleaners
            .as_ref()
            .map_or_else(Default::default, |cleaners| cleaners.take_findings())
    }
}

fn refusal(error: SnapshotError) -> SnapshotRefusal {
    match error {
        SnapshotError::Protected { .. } => SnapshotRefusal::Protected,
        SnapshotError::Volume(error) if is_trouble(&error) => SnapshotRefusal::Trouble(error.to_string()),
        SnapshotError::Unknown | SnapshotError::NotYet { .. } => SnapshotRefusal::Trouble(error.to_string()),
        other => SnapshotRefusal::Broken(other.to_string()),
    }
}

/// A volume that serves, the keys it was opened with, the ring that these may be renewed from, and whether its manifest is begun in the middle.
struct RunningVolume(Volume, Keys, Env, Ring, bool);

#[async_trait]
impl Running for RunningVolume {
    fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::new(self.0.clone())
    }

    async fn create_snapshot(&self, name: &str, protected_until_ms: i64) -> Result<u64, SnapshotRefusal> {
        let name = name.as_bytes().to_vec();
        let made = self.0.snapshot_create(name, protected_until_ms).await;
        made.map(|info| info.id).map_err(refusal)
    }

    async fn delete_snapshot(&self, name: &str) -> Result<(), SnapshotRefusal> {
        match self.0.snapshot_delete(name.as_bytes()).await {
            // The one that was listed may have been deleted by an earlier try.
            Err(SnapshotError::NoSuchSnapshot { .. }) => Err(SnapshotRefusal::Trouble("it is gone".into())),
            other => other.map_err(refusal),
        }
    }

    fn snapshots(&self) -> Vec<(u64, String, i64)> {
        let infos = self.0.snapshots().into_iter();
        infos
            .filter(|info| info.version.is_some())
            .map(|info| {
                let name = String::from_utf8_lossy(&info.name).into_owned();
                (info.id, name, info.protected_until_ms)
            })
            .collect()
    }

    fn snapshot(&self, name: &str) -> Option<Arc<dyn Vfs>> {
        let access = self.0.rooted_in_snapshot(name.as_bytes()).ok()?;
        Some(Arc::new(access))
    }

    async fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<Branch, SnapshotRefusal> {
        match self.0.clone_snapshot(snapshot.as_bytes(), name).await {
            Ok(clone) => Ok(Branch(clone.volume.0)),
            // Deleted, or not yet committed again, since it was listed.
            Err(CloneError::Snapshot(SnapshotError::NoSuchSnapshot { .. })) => {
                Err(SnapshotRefusal::Trouble("it is gone".into()))
            }
            Err(CloneError::Snapshot(error)) => Err(refusal(error)),
            Err(CloneError::Volume(error)) => Err(match classify(error) {
                StartError::Later(why) | StartError::Owned(why) => SnapshotRefusal::Trouble(why),
                StartError::SalvageFirst => SnapshotRefusal::Broken("salvage first".into()),
                StartError::Broken(why) => SnapshotRefusal::Broken(why),
            }),
            Err(error @ CloneError::Exists { .. }) => Err(SnapshotRefusal::Broken(error.to_string())),
        }
    }

    async fn restore(
        &self,
        live: &dyn Vfs,
        snapshot: &str,
        from: &[u8],
        to: &[u8],
    ) -> Result<(), SnapshotRefusal> {
        let snapshot = snapshot.as_bytes();
        let restored = self
            .0
            .restore_through(live, snapshot, from, to, false, &|_| {})
            .await;
        match restored {
            Ok(_) => Ok(()),
            Err(RestoreError::Snapshot(_)) => Err(SnapshotRefusal::Trouble("it is gone".into())),
            // Whoever works beside it may have moved what it was just about to fill.
            Err(error @ RestoreError::Stopped { .. }) => {
                let status = self.0.status();
                let detail = format!(
                    "{error}; journal {:?}, {} bytes dirty",
                    status.journal, status.dirty_bytes
                );
                Err(SnapshotRefusal::Trouble(detail))
            }
            Err(error) => Err(SnapshotRefusal::Broken(error.to_string())),
        }
    }

    async fn sync(&self) -> Result<(), String> {
        self.0.sync().await.map_err(|error| error.to_string())
    }

    async fn stop(&self) -> Result<(), String> {
        self.0.stop().await.map_err(|error| error.to_string())
    }

    async fn drain(&self) -> Result<(), String> {
        self.0.drain().await.map_err(|error| error.to_string())
    }

    async fn verify(&self) -> Vec<String> {
        match self.0.verify(&|_| {}).await {
            Ok(report) => report
                .damages
                .iter()
                .map(|damage| format!("inode {} ({:?}): {}", damage.inode, damage.path, damage.detail))
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    async fn rekey(&self, rotates: bool, bytes_per_second: u64) -> Result<(), String> {
        rekeying::rekey(&self.0, (&self.3, &self.1), rotates, bytes_per_second).await
    }

    async fn begin_manifest(&self) -> Result<bool, String> {
        if !self.4 {
            return Ok(false);
        }
        gathering::begin(&self.2, &self.0).await
    }

    async fn finish_manifest(&self) -> Vec<String> {
        gathering::finish(&self.2, &self.0).await
    }

    async fn finish_rekey(&self) -> Vec<String> {
        rekeying::finish(&self.2, &self.0).await
    }

    fn is_fenced(&self) -> bool {
        self.0.status().serving_state == ServingState::Fenced
    }

    fn is_detached(&self) -> bool {
        self.0.status().detached
    }
}
