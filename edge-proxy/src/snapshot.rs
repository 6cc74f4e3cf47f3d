//! Status snapshot of a running edge: one structure behind `status`, `top`, `/metrics` and `/healthz`.
//!
//! A snapshot takes no request to the store or the table and no disk access: looking at an edge costs nothing. Its JSON form
//! is an interface of the edge (`status --output json`): keys are added, never renamed, unless `format` is raised.

mod clients;
mod protocols;

pub use clients::{CaseIndexPart, LocalMountPart, LocksPart, MountPart, NfsPart, OperationPart, TurnedPart};
pub use protocols::{ProtocolPart, TrafficPart, add_buckets};

use crate::{
    access_log::AccessLogPart,
    anchor::Roots,
    auditor::{AuditPart, Auditor},
    by_inode::{ByInodePart, SalvagedBeside},
    cleaner::{CleanerPart, InsideCleaner},
    config::Config,
    damages::DamagePart,
    detached::{Detached, DetachedPart},
    durability::{LevelTwoPart, millis},
    following::FollowingPart,
    manifest::ManifestPart,
    nfs::NfsServer,
    reporting::{DesiredPart, Reporting},
    second::{Second, SecondPart},
    serve::Service,
    sharing::SharedPart,
    smb::SmbPart,
};
use firn_seal::Keys;
use firn_store::{BackgroundStatistics, Meter, ProviderPrices, RequestBudget, Route, Usage};
use firn_volume::{Member, ServingState, Volume, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard};

/// Version of the JSON form.
pub const FORMAT: u32 = 1;

/// A moment of an edge. Sizes in bytes, times in milliseconds, money in billionths of a dollar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub format: u32,
    pub version: String,
    pub volume: VolumePart,
    pub owner: OwnerPart,
    pub uncommitted: UncommittedPart,
    pub commits: CommitsPart,
    pub journal: JournalPart,
    pub cache: CachePart,
    pub store: StorePart,
    pub table: TablePart,
    pub nfs: NfsPart,
    /// Directories of this machine on which the volume is mounted.
    #[serde(default)]
    pub mounts: Vec<LocalMountPart>,
    /// SMB; absent if it is not configured.
    #[serde(default)]
    pub smb: Option<SmbPart>,
    /// All of them side by side.
    #[serde(default)]
    pub protocols: Vec<ProtocolPart>,
    #[serde(default)]
    pub cleaner: CleanerPart,
    #[serde(default)]
    pub audit: AuditPart,
    /// Audits, repairs, the mirror and the cleaner inside at the stores: of the process, all volumes together.
    #[serde(default)]
    pub background: BackgroundStatistics,
    #[serde(default)]
    pub manifest: ManifestPart,
    /// The mirror of the store; absent without one.
    #[serde(default)]
    pub second: Option<SecondPart>,
    #[serde(default)]
    pub merging: MergingPart,
    /// What cannot be read, as far as readers met it.
    #[serde(default)]
    pub damages: Vec<DamagePart>,
    /// How much more they met.
    #[serde(default)]
    pub more_damages: u64,
    /// The outage in which this edge started and serves from its journal and its cache; absent once the volume was opened with
    /// the cloud.
    #[serde(default)]
    pub detached: Option<DetachedPart>,
    /// How another edge's volume is followed; absent for an owner.
    #[serde(default)]
    pub following: Option<FollowingPart>,
    /// How the volume is shared; absent if it is not.
    #[serde(default)]
    pub shared: Option<SharedPart>,
    /// How it is written beside other edges; absent if it is not.
    #[serde(default)]
    pub by_inode: Option<ByInodePart>,
    /// Calls that are answered at level 2; absent if none are.
    #[serde(default)]
    pub level_two: Option<LevelTwoPart>,
    /// What of the service's wishes is in force; absent for an edge that did not join.
    #[serde(default)]
    pub desired: Option<DesiredPart>,
    /// The edge's access log; absent if nothing is logged.
    #[serde(default)]
    pub access_log: Option<AccessLogPart>,
}

/// How one of several volumes stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeState {
    /// As the configuration names it.
    pub name: String,
    /// `opening`, `ended`, or that of its snapshot.
    pub state: String,
    /// Why it is so.
    pub reason: Option<String>,
    /// If it is open.
    pub snapshot: Option<Box<Snapshot>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumePart {
    pub name: String,
    pub id: String,
    /// The family: whose log it is in, and what a cleaner is told to clean.
    #[serde(default)]
    pub family: String,
    /// `serving`, `stopping`, `fenced` or `failed`.
    pub state: String,
    /// Why it failed.
    pub reason: Option<String>,
    pub up_ms: u64,
    pub files: u64,
    pub used_bytes: u64,
    pub quota_bytes: u64,
    /// The key epoch that new data is sealed under.
    #[serde(default)]
    pub key_epoch: u32,
}

/// Whose volume it is: as given when this edge started, which only a takeover changes (and that fences this edge).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OwnerPart {
    pub name: String,
    pub epoch: u64,
}

/// What is acknowledged and safe on this machine's disk (level 1, journal) but not yet in the cloud (level 2).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UncommittedPart {
    pub bytes: u64,
    pub inodes: u64,
    pub oldest_ms: Option<u64>,
    /// The durability level of the oldest change: 1 while anything waits, else 2.
    pub level: u8,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommitsPart {
    pub checkpoints: u64,
    /// Milliseconds since 1970.
    pub last_at_ms: Option<i64>,
    pub last_age_ms: Option<u64>,
    pub building: bool,
    pub uploaded_segments: u64,
    pub uploaded_bytes: u64,
    pub upload_failures: u64,
    pub last_error: Option<String>,
    /// Segments that the store acknowledged and has lost.
    #[serde(default)]
    pub lost_segments: u64,
    /// The first of them, by key.
    #[serde(default)]
    pub lost_keys: Vec<String>,
    /// Segments that the store acknowledged and whose end was not read back yet.
    #[serde(default)]
    pub unconfirmed_segments: u64,
    /// Bytes of them that are pinned on the local disk.
    #[serde(default)]
    pub pinned_bytes: u64,
    /// Segments that the store had dropped and that were put again.
    #[serde(default)]
    pub segments_put_again: u64,
    /// Segments of which the store has other bytes than were put.
    #[serde(default)]
    pub altered_segments: u64,
    /// The first of them, by key.
    #[serde(default)]
    pub altered_keys: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JournalPart {
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub records: u64,
    pub record_bytes: u64,
    pub writes: u64,
    pub syncs: u64,
    pub space_waits: u64,
    pub stalled: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachePart {
    pub memory_bytes: u64,
    pub memory_capacity_bytes: u64,
    pub disk_bytes: u64,
    pub disk_capacity_bytes: u64,
    /// Evicted because the disk was full: the journal goes first.
    #[serde(default)]
    pub disk_given_up_bytes: u64,
    pub memory_hits: u64,
    pub disk_hits: u64,
    pub misses: u64,
    pub cache_damages: u64,
    /// Wrong bytes from the store that were right when asked for again.
    pub store_damages: u64,
    /// Wrong bytes from the store that stayed wrong.
    #[serde(default)]
    pub store_damaged: u64,
    /// Segments that the store did not have.
    #[serde(default)]
    pub store_missing: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StorePart {
    pub url: String,
    pub requests: u64,
    pub usage: Usage,
    /// Which prices the money is by; a directory store is free, and shown at what a bucket would have cost.
    pub price_book: String,
    pub prices_as_of: String,
    pub requests_nanodollars: u64,
    pub transfer_nanodollars: u64,
    pub nanodollars: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TablePart {
    pub url: String,
    pub requests: u64,
    pub gets: u64,
    pub queries: u64,
    pub transactions: u64,
    pub condition_failures: u64,
    pub unavailable: u64,
    pub read_units: u64,
    pub write_units: u64,
    pub nanodollars: u64,
}

/// What the volume took over of what a cleaner moved, wherever that runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MergingPart {
    pub proposals: u64,
    pub adopted: u64,
    pub rewritten: u64,
    /// Why the last proposal that was refused was refused.
    pub refused: Option<String>,
}

impl Snapshot {
    /// Whether clients are served.
    pub fn is_serving(&self) -> bool {
        self.volume.state == "serving"
    }

    /// Files that cannot be read whole, each once; those whose path is not known by their inode.
    pub fn damaged_files(&self) -> Vec<String> {
        let mut files: Vec<String> = self.damages.iter().map(DamagePart::file).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Calls of all procedures.
    pub fn calls(&self) -> u64 {
        self.nfs.operations.iter().map(|operation| operation.calls).sum()
    }
}

/// Everything of an edge that snapshots are taken of.
pub struct Observed {
    pub env: firn_env::Env,
    pub volume: Volume,
    pub volume_name: String,
    pub volume_id: String,
    pub family: String,
    pub owner: OwnerPart,
    pub limits: VolumeConfig,
    pub store_url: String,
    pub meter: Meter,
    pub book: ProviderPrices,
    pub table_url: String,
    pub roots: Roots,
    pub cleaner: Arc<InsideCleaner>,
    pub auditor: Arc<Auditor>,
    requests: Arc<RequestBudget>,
    pub second: Option<Arc<Second>>,
    keys: Keys,
    detached: Option<Arc<Detached>>,
    reporting: Option<Arc<Reporting>>,
    pub nfs: Arc<NfsServer>,
    member: Option<Member>,
    salvaged: Option<SalvagedBeside>,
    config: Config,
    /// Of this volume among others; none: all are.
    exports: Option<Vec<String>>,
    service: Mutex<Option<Service>>,
}

/// The parts of an [`Observed`] that do not change.
pub struct Fixed {
    pub volume_name: String,
    pub volume_id: String,
    pub family: String,
    pub owner: OwnerPart,
    pub store_url: String,
    pub table_url: String,
    pub book: ProviderPrices,
    pub keys: Keys,
    pub reporting: Option<Arc<Reporting>>,
    pub nfs: Arc<NfsServer>,
    pub second: Option<Arc<Second>>,
    /// Of a shared volume.
    pub member: Option<Member>,
    /// Of a volume that is written beside other edges.
    pub salvaged: Option<SalvagedBeside>,
    pub config: Config,
    /// This volume's, if others have some too.
    pub exports: Option<Vec<String>>,
}

impl Observed {
    fn by_inode_part(&self) -> Option<ByInodePart> {
        let status = self.volume.by_inode_status()?;
        Some(ByInodePart::new(status, self.salvaged.clone()))
    }

    /// The member of a shared volume.
    pub fn member(&self) -> Option<Member> {
        self.member.clone()
    }

    pub fn new(
        outside: &crate::parts::Outside,
        volume: &Volume,
        limits: VolumeConfig,
        fixed: Fixed,
        (cleaner, auditor): (Arc<InsideCleaner>, Arc<Auditor>),
        (service, detached): (Service, Option<Arc<Detached>>),
    ) -> Self {
        Self {
            env: outside.env.clone(),
            volume: volume.clone(),
            volume_name: fixed.volume_name,
            volume_id: fixed.volume_id,
            family: fixed.family,
            owner: fixed.owner,
            limits,
            store_url: fixed.store_url,
            meter: outside.stack.meter.clone(),
            book: fixed.book,
            table_url: fixed.table_url,
            roots: outside.roots.clone(),
            cleaner,
            auditor,
            requests: outside.requests.clone(),
            second: fixed.second,
            keys: fixed.keys,
            reporting: fixed.reporting,
            detached,
            nfs: fixed.nfs,
            member: fixed.member,
            salvaged: fixed.salvaged,
            config: fixed.config,
            exports: fixed.exports,
            service: Mutex::new(Some(service)),
        }
    }

    /// As the file says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The server of NFS and the lock table of all protocols.
    pub fn nfs(&self) -> &NfsServer {
        &self.nfs
    }

    fn service(&self) -> MutexGuard<'_, Option<Service>> {
        self.service.lock().expect("no panic under this lock")
    }

    /// Takes the service away, to shut it down; snapshots then show no clients.
    pub fn take_service(&self) -> Option<Service> {
        self.service().take()
    }

    /// Has mounts forget what they have cached: the volume was changed beside them.
    pub async fn drop_caches(&self) {
        let changes = self.service().as_ref().map(Service::changes);
        if let Some(changes) = changes {
            changes.announce_unknown().await;
        }
    }

    /// The outage in which this edge serves, if there is one.
    pub fn detached(&self) -> Option<DetachedPart> {
        self.detached.as_ref().map(|detached| detached.part())
    }

    /// Calls of NFS about files of the volume, since the process began: the server outlives what it serves.
    pub fn calls(&self) -> u64 {
        self.nfs.calls(self.exports.as_deref())
    }

    /// SMB, if it is configured.
    pub fn smb(&self) -> Option<SmbPart> {
        self.service().as_ref().and_then(Service::smb)
    }

    /// Requests by mounts of this machine and over SMB, since the volume was opened.
    pub fn mount_requests(&self) -> u64 {
        let mut mounts = self.service().as_ref().map(Service::mounts).unwrap_or_default();
        mounts.extend(self.smb().and_then(|smb| smb.mount));
        mounts.iter().map(|mount| mount.requests).sum()
    }

    /// What was asked of the volume: over NFS, by mounts of this machine, over SMB.
    pub fn requests(&self) -> u64 {
        self.calls() + self.mount_requests()
    }

    /// This moment.
    pub fn snapshot(&self) -> Snapshot {
        let status = self.volume.status();
        let (state, reason) = match status.serving_state {
            ServingState::Serving => ("serving", None),
            ServingState::Stopping => ("stopping", None),
            ServingState::Fenced => ("fenced", None),
            ServingState::Broken(reason) => ("opening", Some(reason)),
            ServingState::Failed(reason) => ("failed", Some(reason)),
        };
        let usage = self.meter.usage();
        let cost = self.book.cost(&usage, Route::Internet);
        let table = self.roots.usage();
        let wall_ms = self.env.wall().as_millis();
        let (journal, objects, following) = (status.journal, status.objects, status.following);
        let owner = following
            .as_ref()
            .map(|following| following.owner.clone().unwrap_or_default());
        let (mounts, smb, access_log) = match &*self.service() {
            Some(service) => (service.mounts(), service.smb(), service.access_log()),
            None => Default::default(),
        };
        let exports = self.exports.as_deref();
        let nfs = self.nfs.part(exports);
        Snapshot {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            volume: VolumePart {
                name: self.volume_name.clone(),
                id: self.volume_id.clone(),
                family: self.family.clone(),
                state: state.into(),
                reason,
                up_ms: millis(status.up),
                files: status.files,
                used_bytes: status.used_bytes,
                quota_bytes: status.quota_bytes,
                key_epoch: self.keys.current().0,
            },
            owner: OwnerPart {
                name: owner.unwrap_or_else(|| self.owner.name.clone()),
                epoch: self.owner.epoch,
            },
            uncommitted: UncommittedPart {
                bytes: status.dirty_bytes,
                inodes: status.dirty_inodes,
                oldest_ms: status.oldest_uncommitted.map(millis),
                level: if status.oldest_uncommitted.is_some() { 1 } else { 2 },
                memory_bytes: status.dirty_memory_bytes,
            },
            commits: CommitsPart {
                checkpoints: status.checkpoints,
                last_at_ms: status.last_commit_ms,
                last_age_ms: status
                    .last_commit_ms
                    .map(|at| wall_ms.saturating_sub(at).max(0).unsigned_abs()),
                building: status.building,
                uploaded_segments: status.uploaded_segments,
                uploaded_bytes: status.uploaded_bytes,
                upload_failures: status.upload_failures,
                last_error: status.last_error,
                lost_segments: status.lost_segments.as_ref().map_or(0, |lost| lost.count),
                lost_keys: status.lost_segments.map(|lost| lost.keys).unwrap_or_default(),
                unconfirmed_segments: status.read_back.unconfirmed,
                pinned_bytes: status.read_back.pinned_bytes,
                segments_put_again: status.read_back.put_again,
                altered_segments: status.read_back.altered,
                altered_keys: status.read_back.altered_keys,
            },
            journal: JournalPart {
                used_bytes: journal.used_bytes,
                capacity_bytes: journal.capacity_bytes,
                records: journal.records,
                record_bytes: journal.record_bytes,
                writes: journal.writes,
                syncs: journal.syncs,
                space_waits: journal.space_waits,
                stalled: journal.stalled,
            },
            cache: CachePart {
                memory_bytes: objects.memory_bytes,
                memory_capacity_bytes: self.limits.memory_cache_bytes,
                disk_bytes: objects.disk_bytes,
                disk_capacity_bytes: self.limits.disk_cache_bytes,
                disk_given_up_bytes: objects.disk_given_up_bytes,
                memory_hits: objects.memory_hits,
                disk_hits: objects.disk_hits,
                misses: objects.misses,
                cache_damages: objects.cache_damages,
                store_damages: objects.damages.healed,
                store_damaged: objects.damages.damaged,
                store_missing: objects.damages.missing,
            },
            store: StorePart {
                url: self.store_url.clone(),
                requests: usage.requests(),
                usage,
                price_book: self.book.name.clone(),
                prices_as_of: self.book.as_of.clone(),
                requests_nanodollars: cost.requests.nanos(),
                transfer_nanodollars: cost.transfer().nanos(),
                nanodollars: cost.total().nanos(),
            },
            table: TablePart {
                url: self.table_url.clone(),
                requests: table.requests(),
                gets: table.gets,
                queries: table.queries,
                transactions: table.transactions,
                condition_failures: table.condition_failures,
                unavailable: table.unavailable,
                read_units: table.read_units,
                write_units: table.write_units,
                nanodollars: table.nano_dollars,
            },
            protocols: protocols::protocols(&nfs, &mounts, smb.as_ref(), &self.nfs.table()),
            nfs,
            mounts,
            smb,
            cleaner: self.cleaner.part(),
            audit: self.auditor.part(),
            background: self.requests.statistics(),
            manifest: ManifestPart::of(self.volume.manifest_status(), status.used_bytes),
            second: self.second.as_ref().map(|second| second.part()),
            merging: MergingPart {
                proposals: status.merging.merged,
                adopted: status.merging.adopted,
                rewritten: status.merging.rewritten,
                refused: status.merging.refused,
            },
            damages: status.damages.0.into_iter().map(DamagePart::from).collect(),
            more_damages: status.damages.1,
            detached: self.detached(),
            following: following.map(|status| FollowingPart::new(&self.env, &status)),
            shared: self.member.as_ref().map(SharedPart::new),
            by_inode: self.by_inode_part(),
            level_two: LevelTwoPart::new(&self.config, status.cloud_waits),
            desired: self.reporting.as_ref().map(|reporting| reporting.part()),
            access_log,
        }
    }
}
