//! The access log of this edge (`[access_log]`): where it lies, of which exports and mounts it is, whose names it knows.
//!
//! One log for all volumes. A volume of which anything is logged is followed wherever it is served, so that paths stay right.

mod domain_names;
mod smb_peers;
mod users;

pub use smb_peers::SmbPeers;

use crate::{
    config::{Config, EdgeConfig},
    failure::Failure,
};
use async_trait::async_trait;
use firn_access_log::{
    AccessLog, AccessLogOptions, AccessLogStatus, Paths, Recorder, Resolving, SyslogStatus,
};
use firn_env::{Env, RealDisk};
use firn_quantity::Size;
use firn_store::StoreUrl;
use firn_vfs::{FileHandle, Vfs};
use firn_volume::Volume;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use users::Users;

/// Files that a directory is listed with in a moment.
const FILES_MAX: u32 = 1000;
/// Below it a file holds some thousand lines.
const FILE_BYTES_MIN: u64 = 1 << 20;
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Where the log lies, and how long it may get.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLogSection {
    /// By default below the state directory.
    pub directory: Option<PathBuf>,
    /// At this length a file is closed.
    pub file: Size,
    /// With the one that is written.
    pub files: u32,
    /// A socket that gets a copy of each line, as the machine's syslog `/dev/log`.
    pub syslog: Option<PathBuf>,
}

impl Default for AccessLogSection {
    fn default() -> Self {
        Self {
            directory: None,
            file: Size(16 << 20),
            files: 8,
            syslog: None,
        }
    }
}

/// What `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogPart {
    pub lines: u64,
    pub bytes: u64,
    /// Events that were not written: the disk refused them, or clients were faster.
    pub lost: u64,
    /// Events that wait to be written.
    pub waiting: u64,
    /// Why it cannot be written now.
    pub failing: Option<String>,
    /// The copy for syslog, if there is one.
    #[serde(default)]
    pub syslog: Option<SyslogPart>,
}

/// The copy of the log that goes to syslog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyslogPart {
    pub sent: u64,
    /// Lines that syslog did not take; the file has them.
    pub lost: u64,
    /// Why it takes none now.
    pub failing: Option<String>,
}

impl AccessLogPart {
    pub fn new(log: &AccessLog) -> Self {
        let AccessLogStatus {
            lines,
            bytes,
            lost,
            waiting,
            failing,
            syslog,
            ..
        } = log.status();
        let syslog = syslog.map(|SyslogStatus { sent, lost, failing }| SyslogPart { sent, lost, failing });
        Self {
            lines,
            bytes,
            lost,
            waiting,
            failing,
            syslog,
        }
    }
}

impl fmt::Display for AccessLogPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} lines", self.lines)?;
        if self.lost > 0 {
            write!(
                out,
                "; {} events were LOST, which the log says in their place",
                self.lost
            )?;
        }
        if let Some(why) = &self.failing {
            write!(out, "; CANNOT BE WRITTEN: {why}; {} events wait", self.waiting)?;
        }
        let Some(syslog) = &self.syslog else {
            return Ok(());
        };
        write!(out, "; {} to syslog, {} not taken", syslog.sent, syslog.lost)?;
        match &syslog.failing {
            Some(why) => write!(out, ": {why}"),
            None => Ok(()),
        }
    }
}

fn directory(edge: &EdgeConfig) -> PathBuf {
    let section = &edge.common().access_log;
    let own = || edge.directory().join("access-log");
    section.directory.clone().unwrap_or_else(own)
}

/// Whether anything of a volume is logged.
fn is_logged(config: &Config) -> bool {
    config.exports.iter().any(|export| export.access_log)
        || config.mounts.iter().any(|mount| mount.access_log)
}

/// Says what is wrong, in the file's own words.
pub fn check(edge: &EdgeConfig) -> Result<(), String> {
    let section = &edge.common().access_log;
    if !(FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&section.file.0) {
        return Err("access_log.file must be between 1 MiB and 4 GiB".into());
    }
    if !(1..=FILES_MAX).contains(&section.files) {
        return Err(format!("access_log.files must be between 1 and {FILES_MAX}"));
    }
    if let Some(syslog) = section.syslog.as_ref().filter(|path| !path.is_absolute()) {
        return Err(format!(
            "access_log.syslog: {} must be absolute, as /dev/log",
            syslog.display()
        ));
    }
    let Some(directory) = &section.directory else {
        return Ok(());
    };
    let shown = directory.display();
    if !directory.is_absolute() {
        return Err(format!("access_log.directory: {shown} must be absolute"));
    }
    // Each line would make another, and the edge wait for itself.
    let mounts = edge.volumes.iter().flat_map(|config| &config.mounts);
    if let Some(mount) = mounts
        .map(|mount| &mount.path)
        .find(|path| directory.starts_with(path))
    {
        return Err(format!(
            "access_log.directory: {shown} is on the edge's own [[mount]] {}; keep the log elsewhere",
            mount.display()
        ));
    }
    let stores = edge.volumes.iter().map(|config| &config.volume.store);
    for store in stores {
        if let StoreUrl::Directory { path } = store
            && directory.starts_with(path)
        {
            return Err(format!(
                "access_log.directory: {shown} is in the store {}; keep the log elsewhere",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Begins the log, if anything is logged.
///
/// # Errors
/// [`Failure`] if its directory cannot be made. A disk that is full is waited out.
pub fn start(env: &Env, edge: &EdgeConfig) -> Result<Option<AccessLog>, Failure> {
    if !edge.volumes.iter().any(is_logged) {
        return Ok(None);
    }
    let directory = directory(edge);
    let disk = make(&directory).map_err(|error| {
        Failure::usage(format!(
            "the access log's directory {} cannot be used (access_log.directory): {error}",
            directory.display()
        ))
    })?;
    let section = &edge.common().access_log;
    let options = AccessLogOptions {
        disk: Arc::new(disk),
        file_bytes_max: section.file.0,
        files_max: section.files,
        syslog: section.syslog.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let users = Users::new(env, edge);
    Ok(Some(AccessLog::start(env, options, Arc::new(users))))
}

fn make(directory: &Path) -> Result<RealDisk, Box<dyn std::error::Error>> {
    // Who did what is nobody else's business.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    Ok(RealDisk::open(directory)?)
}

/// The log's end for an export or mount of a volume; `None` if nothing of the volume is logged.
pub fn recorder(
    log: Option<&AccessLog>,
    config: &Config,
    is_logged: bool,
    export: Option<&str>,
) -> Option<Recorder> {
    let name = &config.volume.name;
    match is_logged {
        true => Some(log?.recorder(name, export)),
        false if self::is_logged(config) => Some(log?.follower(name)),
        false => None,
    }
}

/// Of the private mount under SMB, through which all shares come.
pub fn smb_recorder(log: Option<&AccessLog>, config: &Config) -> Option<Recorder> {
    let shares = || config.exports.iter().filter(|export| export.smb.is_some());
    let only = match &shares().collect::<Vec<_>>()[..] {
        [only] => Some(only.path.as_str()),
        _ => None,
    };
    recorder(log, config, shares().any(|export| export.access_log), only)
}

/// The engine's knowledge of paths, as long as the volume is open.
pub fn resolve(log: Option<&AccessLog>, config: &Config, volume: &Volume) -> Option<Resolving> {
    let paths = VolumePaths(volume.clone());
    is_logged(config)
        .then_some(log)?
        .map(|log| log.resolve_by(&config.volume.name, Arc::new(paths)))
}

struct VolumePaths(Volume);

#[async_trait]
impl Paths for VolumePaths {
    async fn path_of(&self, file: FileHandle) -> Option<String> {
        // Snapshots have the same numbers.
        match file.file_system == self.0.root().file_system {
            true => self.0.path_of(file.inode).await,
            false => None,
        }
    }
}
