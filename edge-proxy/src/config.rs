//! The configuration of a volume of an edge. `firn-edge.example.toml` explains every key of the file ([`EdgeConfig`]); a test holds the
//! two together.

mod audit;
mod cleaner;
mod file;
mod junctions;
mod parity;
mod second;
mod shares;
mod snapshots;

pub use audit::AuditSection;
pub use cleaner::CleanerSection;
pub use file::EdgeConfig;
pub use junctions::JunctionSection;
pub use parity::ParitySection;
pub use second::SecondSection;
pub use snapshots::SnapshotsSection;

use crate::{
    access_log::AccessLogSection,
    anchor::AnchorAt,
    by_inode::{self, ByInodeOptions},
    cloud_session::CredentialsFrom,
    durability::{WrittenDurability, WrittenOnDisconnect},
    failure::Failure,
    granted::VolumeOwner,
    rings::KeysSection,
    second::usual_book,
    smb::{ShareSection, SmbSection},
};
use firn_nfs::{ClientNetwork, NOBODY, Squash};
use firn_quantity::{Size, Span};
use firn_store::{BackgroundPolicy, ProviderPrices, Route, StoreUrl, UploadSchedule};
use firn_vfs::Durability;
use firn_volume::{
    Cadence, FetchPolicy, FetchPrices, FollowOptions, MemberOptions, OnDisconnect, RetentionPolicy,
    RetentionTiers, VolumeConfig,
};
use serde::{Deserialize, Deserializer, de::Error};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// One volume, and what it has in common with the others of its edge.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) edge: EdgePlace,
    pub(crate) volume: VolumeSection,
    /// This volume's share.
    pub(crate) limits: LimitsSection,
    pub(crate) nfs: NfsSection,
    /// This volume's.
    pub(crate) exports: Vec<ExportSection>,
    /// This volume's.
    pub(crate) mounts: Vec<MountSection>,
    /// If this is the volume that has shares.
    pub(crate) smb: Option<SmbSection>,
    pub(crate) log: LogSection,
    pub(crate) metrics: MetricsSection,
    pub(crate) traces: TracesSection,
    pub(crate) costs: CostsSection,
    pub(crate) snapshots: SnapshotsSection,
    pub(crate) cleaner: CleanerSection,
    pub(crate) audit: AuditSection,
    /// The mirror of the volume's store, if there is one.
    pub(crate) second: Option<SecondSection>,
    /// Parity groups in it, if they are wanted.
    pub(crate) parity: Option<ParitySection>,
    pub(crate) keys: KeysSection,
    pub(crate) access_log: AccessLogSection,
}

/// Where what belongs to the edge is, and not to one of its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgePlace {
    pub directory: PathBuf,
    /// Whether the file has `[[volume]]`s.
    pub has_names: bool,
}

/// Which volume, and where everything of it is.
#[derive(Clone, Debug)]
pub struct VolumeSection {
    pub name: String,
    pub edge_name: String,
    pub store: StoreUrl,
    /// Where the roots are.
    pub anchor: AnchorAt,
    /// Of the store.
    pub credentials: CredentialsFrom,
    pub state_directory: PathBuf,
    /// Whose it is, if it is another tenant's, granted to this edge's.
    pub owner: Option<VolumeOwner>,
    /// How it is followed, if another edge owns it.
    pub follow: Option<FollowOptions>,
    /// How it is shared, if edges own it by turns.
    pub shared: Option<MemberOptions>,
    /// How it is served, if edges write it at the same moment.
    pub by_inode: Option<ByInodeOptions>,
    /// Of exports and mounts that say nothing else.
    pub durability: Durability,
    pub on_disconnect: Option<WrittenOnDisconnect>,
}

impl VolumeSection {
    /// Whether other edges change the volume, too.
    pub fn has_other_writers(&self) -> bool {
        self.follow.is_some() || self.shared.is_some() || self.by_inode.is_some()
    }

    /// For how long those who are not told of changes may believe what they have read, if other edges change the volume.
    pub fn cached_for(&self) -> Option<Duration> {
        let shared = self.shared.as_ref().map(|shared| shared.follow);
        self.follow.or(shared).map(|follow| follow.freshness)
    }
}

/// What the edge may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    pub memory_cache: Size,
    pub disk_cache: Size,
    pub journal: Size,
    pub dirty_memory: Size,
    pub quota: Size,
    pub segment: Size,
    pub uploads: usize,
    pub fetch: Fetch,
    pub checkpoint_busy: Span,
    pub checkpoint_trickle: Span,
    pub checkpoint_bytes: Size,
    #[serde(deserialize_with = "schedule")]
    pub upload_limit: UploadSchedule,
    /// What audits, repairs, the mirror and the cleaner inside may ask of the stores.
    pub background: BackgroundPolicy,
}

/// How much of a segment is fetched at once.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Fetch {
    Adaptive,
    Exact,
    Full,
}

/// Where NFS is served.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NfsSection {
    pub listen: String,
    pub nfs_port: u16,
    pub mount_port: Option<u16>,
    pub portmap: bool,
    pub grace_seconds: u64,
    pub connections: usize,
    pub connections_per_client: usize,
}

/// What is exported to whom.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportSection {
    pub path: String,
    /// Which volume it is of; the only one needs no name.
    #[serde(default)]
    pub volume: Option<String>,
    #[serde(deserialize_with = "networks")]
    pub clients: Vec<ClientNetwork>,
    #[serde(default, deserialize_with = "networks")]
    pub read_only_clients: Vec<ClientNetwork>,
    #[serde(default)]
    pub squash: SquashKind,
    #[serde(default = "default_nobody")]
    pub anonymous_uid: u32,
    #[serde(default = "default_nobody")]
    pub anonymous_gid: u32,
    #[serde(default = "default_true")]
    pub require_privileged_port: bool,
    pub connections_per_client: Option<usize>,
    /// Whether what clients do is logged.
    #[serde(default)]
    pub access_log: bool,
    /// The volume's, if it says nothing.
    #[serde(default)]
    pub durability: Option<WrittenDurability>,
    /// The same over SMB.
    #[serde(default)]
    pub smb: Option<ShareSection>,
    /// Where other exports are shown in it.
    #[serde(rename = "junction", default)]
    pub junctions: Vec<JunctionSection>,
}

/// Where on this machine the volume is mounted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSection {
    pub path: PathBuf,
    /// Which volume it is of; the only one needs no name.
    #[serde(default)]
    pub volume: Option<String>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default = "default_true")]
    pub allow_other: bool,
    /// Whether what processes do is logged.
    #[serde(default)]
    pub access_log: bool,
    /// The volume's, if it says nothing.
    #[serde(default)]
    pub durability: Option<WrittenDurability>,
}

/// See [`Squash`].
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SquashKind {
    None,
    #[default]
    Root,
    All,
}

impl From<SquashKind> for Squash {
    fn from(kind: SquashKind) -> Self {
        match kind {
            SquashKind::None => Self::None,
            SquashKind::Root => Self::Root,
            SquashKind::All => Self::All,
        }
    }
}

/// What is logged, to standard error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    pub level: String,
    pub json: bool,
    /// Calls that take as long are logged with what they waited for; zero logs none.
    pub slow_call: Span,
}

/// What is shown to monitoring.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSection {
    pub listen: Option<String>,
}

/// Where spans of calls are exported.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesSection {
    /// A collector of OpenTelemetry's, for OTLP over HTTP.
    pub endpoint: Option<String>,
    pub sample_percent: f64,
}

impl Default for TracesSection {
    fn default() -> Self {
        Self {
            endpoint: None,
            sample_percent: 1.0,
        }
    }
}

/// By which prices money is shown and fetches are decided.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostsSection {
    pub price_book: Option<String>,
}

impl Default for LimitsSection {
    fn default() -> Self {
        let volume = VolumeConfig::default();
        Self {
            memory_cache: Size(volume.memory_cache_bytes),
            disk_cache: Size(volume.disk_cache_bytes),
            journal: Size(volume.journal_bytes),
            dirty_memory: Size(volume.dirty_memory_bytes),
            quota: Size(volume.quota_bytes),
            segment: Size(volume.segment_bytes),
            uploads: volume.uploads_max,
            fetch: Fetch::Adaptive,
            checkpoint_busy: Span(volume.cadence.busy),
            checkpoint_trickle: Span(volume.cadence.trickle),
            checkpoint_bytes: Size(volume.cadence.busy_bytes),
            upload_limit: UploadSchedule::default(),
            background: BackgroundPolicy::default(),
        }
    }
}

impl Default for NfsSection {
    fn default() -> Self {
        Self {
            listen: "[::]".into(),
            nfs_port: 2049,
            mount_port: None,
            portmap: true,
            grace_seconds: 45,
            connections: 1024,
            connections_per_client: 64,
        }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            level: "info".into(),
            json: false,
            slow_call: Span(Duration::from_secs(1)),
        }
    }
}

fn default_name() -> String {
    "main".into()
}

fn default_edge() -> String {
    "edge".into()
}

fn default_nobody() -> u32 {
    NOBODY
}

fn default_true() -> bool {
    true
}

fn from_text<'de, D: Deserializer<'de>, T: std::str::FromStr<Err: std::fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(D::Error::custom)
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ClientNetwork>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts
        .iter()
        .map(|text| text.parse().map_err(D::Error::custom))
        .collect()
}

fn schedule<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UploadSchedule, D::Error> {
    UploadSchedule::deserialize(deserializer)
}

impl Config {
    /// Reads and checks the file of an edge with one volume.
    ///
    /// # Errors
    /// [`Failure`] if something is wrong with it, or it has several.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        EdgeConfig::load(path)?.one(None).cloned()
    }

    #[cfg(test)]
    fn parse(text: &str) -> Result<Self, String> {
        let edge = EdgeConfig::parse(text)?;
        edge.one(None).cloned().map_err(|failure| failure.to_string())
    }

    /// The policy by which snapshots are made and deleted; `None` if there is none.
    pub fn retention(&self) -> Result<Option<RetentionPolicy>, String> {
        let section = &self.snapshots;
        if section.every.is_none() && section.after_written.is_none() {
            return Ok(None);
        }
        let tiers = RetentionTiers {
            last: section.keep_last,
            hourly: section.keep_hourly,
            daily: section.keep_daily,
            weekly: section.keep_weekly,
            monthly: section.keep_monthly,
        };
        let (every, after) = (
            section.every.map(|span| span.0),
            section.after_written.map(|size| size.0),
        );
        RetentionPolicy::new(tiers, &section.time_zone, every, after)
            .map(Some)
            .map_err(|error| format!("[snapshots]: {error}"))
    }

    /// The prices by which money is shown and fetches are decided: those of the store's provider if nothing else is said. A directory costs nothing;
    /// it is shown at what a bucket of Amazon's would cost.
    pub fn price_book(&self) -> Result<ProviderPrices, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("costs.price_book: {error}"));
        let name = match (&self.costs.price_book, &self.volume.store) {
            (Some(path), _) if path.contains('/') => {
                let text =
                    std::fs::read_to_string(path).map_err(|error| wrong(&format!("{path}: {error}")))?;
                return ProviderPrices::parse(&text).map_err(|error| wrong(&error));
            }
            (Some(name), _) => name,
            (None, url) => usual_book(url),
        };
        ProviderPrices::named(name)
            .cloned()
            .map_err(|error| wrong(&error))
    }

    /// As the engine wants it.
    ///
    /// # Errors
    /// If the price book, by which the engine weighs a request against bytes fetched in vain, cannot be read.
    pub fn volume_config(&self) -> Result<VolumeConfig, Failure> {
        let (limits, on_disconnect) = (&self.limits, self.volume.on_disconnect);
        Ok(VolumeConfig {
            owner_name: self.volume.edge_name.clone(),
            segment_bytes: limits.segment.0,
            uploads_max: limits.uploads,
            memory_cache_bytes: limits.memory_cache.0,
            disk_cache_bytes: limits.disk_cache.0,
            journal_bytes: limits.journal.0,
            journal_file_bytes: (limits.journal.0 / 8).clamp(4 << 20, 64 << 20),
            dirty_memory_bytes: limits.dirty_memory.0,
            quota_bytes: limits.quota.0,
            fetch: match limits.fetch {
                Fetch::Adaptive => FetchPolicy::Adaptive,
                Fetch::Exact => FetchPolicy::Exact,
                Fetch::Full => FetchPolicy::FullSegment,
            },
            fetch_prices: FetchPrices::of_book(&self.price_book()?, Route::Internet),
            recall_within: by_inode::recall_within(self.volume.by_inode),
            cadence: Cadence {
                busy: limits.checkpoint_busy.0,
                busy_bytes: limits.checkpoint_bytes.0,
                trickle: limits.checkpoint_trickle.0,
            },
            on_disconnect: on_disconnect.map(OnDisconnect::from).unwrap_or_default(),
            ..VolumeConfig::default()
        })
    }

    /// How long clients have to reclaim locks after a start.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.nfs.grace_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_cleaner::Limits;

    const MINIMAL: &str = r#"
        [volume]
        store = "file:///srv/store"
        table = "redb:/srv/table.redb"
        state_directory = "/var/lib/firn"
        [[export]]
        path = "/export"
        clients = ["192.168.0.0/16"]
    "#;

    #[test]
    fn the_example_is_the_defaults() {
        let example = Config::parse(include_str!("../firn-edge.example.toml")).expect("the example parses");
        let minimal = Config::parse(MINIMAL).expect("the minimum parses");
        assert_eq!(format!("{:?}", example.limits), format!("{:?}", minimal.limits));
        assert_eq!(format!("{:?}", example.nfs), format!("{:?}", minimal.nfs));
        assert_eq!(example.volume.credentials, minimal.volume.credentials);
        assert_eq!(format!("{:?}", example.log), format!("{:?}", minimal.log));
        assert_eq!(format!("{:?}", example.metrics), format!("{:?}", minimal.metrics));
        assert_eq!(format!("{:?}", example.traces), format!("{:?}", minimal.traces));
        assert_eq!(format!("{:?}", example.costs), format!("{:?}", minimal.costs));
        assert_eq!(
            format!("{:?}", example.snapshots),
            format!("{:?}", minimal.snapshots)
        );
        assert_eq!(format!("{:?}", example.cleaner), format!("{:?}", minimal.cleaner));
        assert_eq!(example.access_log, minimal.access_log);
        assert_eq!(format!("{:?}", example.audit), format!("{:?}", minimal.audit));
    }

    #[test]
    fn an_unknown_key_is_named_and_a_missing_one_too() {
        let error = Config::parse(&MINIMAL.replace("store =", "stor =")).unwrap_err();
        assert!(error.contains("stor"), "{error}");
        let error = Config::parse(&MINIMAL.replace("192.168.0.0/16", "192.168.0.0/40")).unwrap_err();
        assert!(error.contains("192.168.0.0/40"), "{error}");
    }

    #[test]
    fn a_mount_is_on_a_path_that_means_one_directory() {
        let with = |more: &str| Config::parse(&format!("{MINIMAL}\n{more}"));
        let mount = |path: &str| format!("[[mount]]\npath = \"{path}\"\n");
        let config = with(&mount("/srv/files")).expect("fine");
        assert!(config.mounts[0].allow_other && !config.mounts[0].read_only);
        for (wrong, said) in [
            (mount("srv/files"), "absolute"),
            (mount("/srv/../files"), "absolute"),
            (mount("/"), "not the root"),
            (mount("/mnt") + &mount("/mnt/"), "twice"),
            (mount("/mnt") + &mount("/mnt/below"), "below"),
            (mount("/srv"), "would cover the store"),
            (mount("/var/lib"), "state directory"),
            (mount("/var/lib/firn/mnt"), "state directory"),
            (mount("/mnt") + "user = 1", "user"),
            (mount("/mnt").repeat(5), "at most 4"),
        ] {
            let error = with(&wrong).expect_err(&wrong);
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_policy_that_keeps_nothing_or_knows_no_zone_is_refused() {
        let with = |more: &str| Config::parse(&format!("{MINIMAL}\n[snapshots]\n{more}"));
        assert!(
            with("every = \"1 h\"")
                .expect("fine")
                .retention()
                .expect("fine")
                .is_some()
        );
        assert!(
            with("visible = true")
                .expect("fine")
                .retention()
                .expect("fine")
                .is_none()
        );
        let nothing = "every = \"1 h\"\nkeep_last = 0\nkeep_hourly = 0\nkeep_daily = 0\nkeep_weekly = 0\nkeep_monthly = 0";
        let error = with(nothing).unwrap_err();
        assert!(error.contains("keeps no snapshot"), "{error}");
        let error = with("after_written = \"1 GiB\"\ntime_zone = \"Mars/Olympus\"").unwrap_err();
        assert!(error.contains("Mars/Olympus"), "{error}");
    }

    #[test]
    fn a_cleaner_without_time_or_memory_is_refused_with_its_bounds() {
        let with = |more: &str| Config::parse(&format!("{MINIMAL}\n[cleaner]\n{more}"));
        let section = with("every = \"15 min\"\nmemory = \"128 MiB\"")
            .expect("fine")
            .cleaner;
        let (limits, default) = (section.limits(), Limits::default());
        assert_eq!(
            (limits.batch_bytes, limits.cache_bytes),
            (default.batch_bytes, default.cache_bytes)
        );
        let kept = MINIMAL.replace("redb:/srv/table.redb", "service");
        assert!(Config::parse(&kept).is_ok());
        let error = Config::parse(&format!("{kept}\n[cleaner]\nevery = \"15 min\"")).unwrap_err();
        assert!(error.contains("lets no edge clean"), "{error}");
        let given = MINIMAL.replace("state_directory", "credentials = \"service\"\nstate_directory");
        assert!(Config::parse(&given).is_ok());
        let error = Config::parse(&format!("{given}\n[cleaner]\nevery = \"15 min\"")).unwrap_err();
        assert!(error.contains("delete nothing"), "{error}");
        for (wrong, said) in [
            ("every = \"0 s\"", "at least 1 s"),
            ("run = \"0 s\"", "between 1 s and 1 h"),
            ("memory = \"1 MiB\"", "between 16 MiB"),
            ("free_percent = 0", "cleaner.free_percent"),
            ("cold_free_percent = 101", "cleaner.cold_free_percent"),
            ("eager = true", "eager"),
        ] {
            let error = with(wrong).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn money_is_by_the_providers_prices_or_those_that_were_named() {
        let book = |text: &str| Config::parse(text).expect("it parses").price_book();
        assert_eq!(book(MINIMAL).expect("a book").name, "s3-us-east-1");
        let azure = MINIMAL.replace("file:///srv/store", "azure://container?account=name");
        assert_eq!(book(&azure).expect("a book").name, "azure-hot-east-us");
        let named = format!("{MINIMAL}\n[costs]\nprice_book = \"s3-2011-09\"");
        assert_eq!(book(&named).expect("a book").as_of, "2011-09-01");
        let get_nanodollars = |text: &str| {
            let config = Config::parse(text).expect("it parses").volume_config();
            config.expect("a book").fetch_prices.get_nanodollars
        };
        assert_eq!(
            (get_nanodollars(MINIMAL), get_nanodollars(&named)),
            (400.0, 1000.0)
        );
        let error = Config::parse(&named.replace("2011-09", "2011-13")).unwrap_err();
        assert!(error.contains("s3-us-east-1"), "{error}");
    }
}
