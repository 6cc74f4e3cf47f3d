//! The configuration file as it is written: one `[volume]`, or several `[[volume]]`; and the configuration of each that it comes to.
//!
//! ```text
//! [volume]                        one volume; its state directory is the edge's
//! [edge] + [[volume]] × n         several; exports and mounts name theirs, [limits] are of all together (shares.rs)
//! ```
//!
//! The rest of the program knows [`Config`], the configuration of one volume.

#[cfg(test)]
mod tests;

use super::{
    AuditSection, CleanerSection, Config, CostsSection, EdgePlace, ExportSection, LimitsSection, LogSection,
    MetricsSection, MountSection, NfsSection, ParitySection, SecondSection, SnapshotsSection, TracesSection,
    VolumeSection, default_edge, default_name, from_text, shares::Shares,
};
use crate::{
    access_log::AccessLogSection,
    anchor::AnchorAt,
    by_inode::{self, WrittenLeases},
    cloud_session::CredentialsFrom,
    durability::{WrittenDurability, WrittenOnDisconnect},
    failure::Failure,
    following::{self, WrittenStaleReads},
    granted,
    rings::KeysSection,
    sharing,
    smb::SmbSection,
    validation,
};
use firn_identity::TenantId;
use firn_quantity::Span;
use firn_store::StoreUrl;
use firn_vfs::Durability;
use serde::{
    Deserialize, Deserializer,
    de::{
        MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Volumes of one edge: each has a journal, a log in the cloud and some 40 tasks of its own, and a share of the limits.
pub const VOLUMES_MAX: usize = 16;

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    edge: Option<EdgeSection>,
    volume: Volumes,
    #[serde(default)]
    limits: LimitsSection,
    #[serde(default)]
    nfs: NfsSection,
    #[serde(rename = "export", default)]
    exports: Vec<ExportSection>,
    #[serde(rename = "mount", default)]
    mounts: Vec<MountSection>,
    #[serde(default)]
    smb: Option<SmbSection>,
    #[serde(default)]
    log: LogSection,
    #[serde(default)]
    metrics: MetricsSection,
    #[serde(default)]
    traces: TracesSection,
    #[serde(default)]
    costs: CostsSection,
    #[serde(default)]
    snapshots: SnapshotsSection,
    #[serde(default)]
    cleaner: CleanerSection,
    #[serde(default)]
    audit: AuditSection,
    #[serde(default)]
    second: Option<SecondSection>,
    #[serde(default)]
    parity: Option<ParitySection>,
    #[serde(default)]
    keys: KeysSection,
    #[serde(default)]
    access_log: AccessLogSection,
}

/// What is of an edge with several volumes, and not of one of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeSection {
    state_directory: PathBuf,
}

/// `[volume]` or `[[volume]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenVolume {
    #[serde(default)]
    name: Option<String>,
    #[serde(default = "default_edge")]
    edge_name: String,
    #[serde(deserialize_with = "from_text")]
    store: StoreUrl,
    /// It was called `table` when there were only tables.
    #[serde(deserialize_with = "from_text", alias = "table")]
    anchor: AnchorAt,
    #[serde(default)]
    credentials: CredentialsFrom,
    #[serde(default)]
    state_directory: Option<PathBuf>,
    /// Of the limits; 1 for who says nothing.
    #[serde(default)]
    share: Option<u32>,
    /// Another tenant's, granted to this edge's.
    #[serde(default)]
    owner: Option<TenantId>,
    #[serde(default)]
    owner_key: Option<String>,
    /// Another edge owns it.
    #[serde(default)]
    follow: bool,
    /// Edges own it by turns.
    #[serde(default)]
    shared: bool,
    /// By what those keep each other from changing the same.
    #[serde(default)]
    leases: Option<WrittenLeases>,
    #[serde(default)]
    freshness: Option<Span>,
    /// How long what is unpublished may take the uplink, of a volume with leases by inode.
    #[serde(default)]
    recall_within: Option<Span>,
    #[serde(default)]
    stale_reads: Option<WrittenStaleReads>,
    #[serde(default)]
    on_disconnect: Option<WrittenOnDisconnect>,
    #[serde(default)]
    durability: Option<WrittenDurability>,
}

enum Volumes {
    One(Box<WrittenVolume>),
    Several(Vec<WrittenVolume>),
}

// By hand, since serde's untagged enums lose what was wrong and where.
impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Volumes;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("[volume], or several [[volume]]")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Volumes, A::Error> {
                WrittenVolume::deserialize(MapAccessDeserializer::new(map))
                    .map(Box::new)
                    .map(Volumes::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<Volumes, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(sequence)).map(Volumes::Several)
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// The configuration of an edge: of each of its volumes.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// At least one. What is not a volume's own is the same in all.
    pub(crate) volumes: Vec<Config>,
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the configuration {}: {error}",
            path.display()
        ))
    })
}

impl EdgeConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`Failure`] with what is wrong, in the file's own words.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        Self::parse(&read(path)?).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let edge = Self::of(file)?;
        validation::check(&edge)?;
        Ok(edge)
    }

    /// The same for one volume of the file that is only mounted: without exports, shares and what watches them.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_to_mount(path: &Path, volume: Option<&str>, mount: MountSection) -> Result<Self, Failure> {
        Self::parse_to_mount(&read(path)?, volume, mount)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    }

    fn parse_to_mount(text: &str, volume: Option<&str>, mount: MountSection) -> Result<Self, String> {
        let mut file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        file.exports.clear();
        file.mounts.clear();
        file.smb = None;
        file.metrics.listen = None;
        let only = Self::of(file)?;
        let mut config = only.one(volume).map_err(|failure| failure.to_string())?.clone();
        config.mounts = vec![mount];
        let edge = Self::of_one(&config);
        validation::check(&edge)?;
        Ok(edge)
    }

    /// An edge with this volume alone.
    pub(crate) fn of_one(config: &Config) -> Self {
        Self {
            volumes: vec![config.clone()],
        }
    }

    /// Whatever is not of one volume.
    pub(crate) fn common(&self) -> &Config {
        &self.volumes[0]
    }

    /// Where what belongs to the process is: the admin socket, the list of clients with locks.
    pub(crate) fn directory(&self) -> &Path {
        &self.common().edge.directory
    }

    /// Whether the file has `[[volume]]`s: volumes are then named wherever something is shown or asked.
    pub(crate) fn has_names(&self) -> bool {
        self.common().edge.has_names
    }

    /// The volume of this name; the only one needs none.
    pub(crate) fn one(&self, name: Option<&str>) -> Result<&Config, Failure> {
        let names = || {
            let names: Vec<_> = self
                .volumes
                .iter()
                .map(|config| config.volume.name.as_str())
                .collect();
            names.join(", ")
        };
        match (name, &self.volumes[..]) {
            (None, [only]) => Ok(only),
            (None, _) => Err(Failure::usage(format!(
                "this edge serves several volumes ({}): name one with --volume. Nothing was changed",
                names()
            ))),
            (Some(name), volumes) => {
                let found = volumes.iter().find(|config| config.volume.name == name);
                found.ok_or_else(|| {
                    Failure::usage(format!(
                        "the configuration has no volume {name}, but {}. Nothing was changed",
                        names()
                    ))
                })
            }
        }
    }

    fn of(file: File) -> Result<Self, String> {
        match &file.volume {
            Volumes::One(volume) => {
                if file.edge.is_some() {
                    return Err("[edge] is for several [[volume]]s; the state directory of the one [volume] is the edge's: leave [edge] out".into());
                }
                if volume.share.is_some() {
                    return Err(
                        "volume.share: there is one [volume], and all limits are its own; leave it out"
                            .into(),
                    );
                }
                let directory = volume
                    .state_directory
                    .clone()
                    .ok_or("[volume]: state_directory must be given")?;
                let place = EdgePlace {
                    directory: directory.clone(),
                    has_names: false,
                };
                let name = volume.name.clone().unwrap_or_else(default_name);
                for (what, named) in named(&file) {
                    if named != name {
                        return Err(format!(
                            "{what} is of the volume {named}, and there is only {name}"
                        ));
                    }
                }
                let (exports, mounts) = (file.exports.clone(), file.mounts.clone());
                let volume = section(volume, name, directory)?;
                let limits = file.limits.clone();
                let volumes = vec![config(&file, place, volume, limits, exports, mounts)];
                Ok(Self { volumes })
            }
            Volumes::Several(volumes) => Self::of_several(&file, volumes),
        }
    }

    fn of_several(file: &File, volumes: &[WrittenVolume]) -> Result<Self, String> {
        if !(1..=VOLUMES_MAX).contains(&volumes.len()) {
            return Err(format!(
                "an edge serves 1 to {VOLUMES_MAX} [[volume]]s, not {}",
                volumes.len()
            ));
        }
        let Some(edge) = &file.edge else {
            return Err(
                "with [[volume]]s an [edge] section must say the state_directory of the edge itself".into(),
            );
        };
        let name_of = |volume: &WrittenVolume| {
            let name = volume.name.clone();
            name.ok_or("[[volume]]: each must have a name, which exports and mounts refer to")
        };
        let names = volumes.iter().map(name_of).collect::<Result<Vec<_>, _>>()?;
        for (what, named) in named(file) {
            if !names.contains(&named) {
                return Err(format!(
                    "{what} is of the volume {named}, and there is no [[volume]] of that name, but {}",
                    names.join(", ")
                ));
            }
        }
        if file.smb.is_some() && file.exports.iter().all(|export| export.smb.is_none()) {
            return Err(
                "[smb]: it shares nothing; add [export.smb] with a share = \"NAME\" to an [[export]]".into(),
            );
        }
        let shares = Shares::new(volumes.iter().map(|volume| volume.share))?;
        let mut configs = Vec::new();
        for (at, (written, name)) in volumes.iter().zip(&names).enumerate() {
            let is_own = |named: &Option<String>, what: &dyn Fn() -> String| match named {
                Some(named) => Ok(named == name),
                None if names.len() == 1 => Ok(true),
                None => Err(format!(
                    "{}: it must say which volume it is of: volume = \"{}\", for example",
                    what(),
                    names[0]
                )),
            };
            let mut exports = Vec::new();
            for export in &file.exports {
                if is_own(&export.volume, &|| format!("[[export]] {}", export.path))? {
                    exports.push(export.clone());
                }
            }
            let mut mounts = Vec::new();
            for mount in &file.mounts {
                if is_own(&mount.volume, &|| format!("[[mount]] {}", mount.path.display()))? {
                    mounts.push(mount.clone());
                }
            }
            let directory = match &written.state_directory {
                Some(directory) => directory.clone(),
                None => edge.state_directory.join("volumes").join(directory_name(name)?),
            };
            let place = EdgePlace {
                directory: edge.state_directory.clone(),
                has_names: true,
            };
            let limits = shares.of(at, &file.limits)?;
            let volume = section(written, name.clone(), directory)?;
            configs.push(Config {
                cleaner: shares.of_cleaner(at, &file.cleaner),
                ..config(file, place, volume, limits, exports, mounts)
            });
        }
        Ok(Self { volumes: configs })
    }
}

/// What names a volume, and which.
fn named(file: &File) -> Vec<(String, String)> {
    let exports = file
        .exports
        .iter()
        .filter_map(|export| Some((format!("[[export]] {}", export.path), export.volume.clone()?)));
    let mounts = file.mounts.iter().filter_map(|mount| {
        Some((
            format!("[[mount]] {}", mount.path.display()),
            mount.volume.clone()?,
        ))
    });
    exports.chain(mounts).collect()
}

/// A name that a directory can have.
fn directory_name(name: &str) -> Result<&str, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.starts_with('.') || name.len() > 100 || !name.bytes().all(fits) {
        return Err(format!(
            "[[volume]] {name:?}: no directory can be named after it (letters, digits and `._-`); give it a state_directory"
        ));
    }
    Ok(name)
}

fn section(written: &WrittenVolume, name: String, state_directory: PathBuf) -> Result<VolumeSection, String> {
    let (freshness, stale_reads) = (written.freshness, written.stale_reads);
    let by_inode = by_inode::options(
        (written.leases, written.shared, written.follow),
        (freshness, written.recall_within),
        stale_reads,
        written.on_disconnect,
    )?;
    let shared = sharing::options(
        written.shared && by_inode.is_none(),
        written.follow,
        freshness,
        stale_reads,
        written.on_disconnect,
    )?;
    let follow = match (&shared, by_inode) {
        (Some(_), _) | (_, Some(_)) => None,
        (None, None) => following::options(written.follow, freshness, stale_reads)?,
    };
    let key = written.owner_key.as_ref().map(|key| key.parse());
    let key = key
        .transpose()
        .map_err(|why: &str| format!("volume.owner_key: {why}"))?;
    let owner = granted::owner(written.owner, key, written.anchor == AnchorAt::Service)?;
    if owner.is_some() && follow.is_none() && !written.shared {
        return Err(
            "volume.owner: a volume of another tenant is followed or shared: follow = true, or shared = true"
                .into(),
        );
    }
    Ok(VolumeSection {
        owner,
        follow,
        shared,
        by_inode,
        durability: written.durability.map(Durability::from).unwrap_or_default(),
        on_disconnect: written.on_disconnect,
        name,
        edge_name: written.edge_name.clone(),
        store: written.store.clone(),
        anchor: written.anchor.clone(),
        credentials: written.credentials,
        state_directory,
    })
}

fn config(
    file: &File,
    edge: EdgePlace,
    volume: VolumeSection,
    limits: LimitsSection,
    exports: Vec<ExportSection>,
    mounts: Vec<MountSection>,
) -> Config {
    // One smbd, over one volume: of the volume that has shares.
    let shares = exports.iter().any(|export| export.smb.is_some());
    Config {
        smb: file.smb.clone().filter(|_| shares || !edge.has_names),
        edge,
        volume,
        limits,
        nfs: file.nfs.clone(),
        exports,
        mounts,
        log: file.log.clone(),
        metrics: file.metrics.clone(),
        traces: file.traces.clone(),
        costs: file.costs.clone(),
        snapshots: file.snapshots.clone(),
        cleaner: file.cleaner.clone(),
        audit: file.audit.clone(),
        second: file.second.clone(),
        parity: file.parity.clone(),
        keys: file.keys.clone(),
        access_log: file.access_log.clone(),
    }
}
