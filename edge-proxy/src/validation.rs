//! Everything about a configuration that can be wrong without asking store or table: `check-config` says "fine" exactly to what
//! `run` takes.
//!
//! It is part of loading the file, so no command can pass it by. What it refuses ends with exit code 2, on which systemd does not
//! start again: trying again would not help.

use crate::{
    anchor::AnchorAt,
    bounds,
    cloud_session::CredentialsFrom,
    config::{Config, EdgeConfig, LimitsSection, NfsSection},
    durability, junctions,
};
use firn_nfs::Export;
use firn_quantity::Size;
use firn_store::StoreUrl;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Component, Path},
};

/// The port of the port mapper, which `nfs.portmap` serves.
const PORT_MAPPER: u16 = 111;

/// The longest path of a unix socket, without the zero at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The largest disk cache: beyond it a mistyped unit is likelier than a disk.
const DISK_CACHE_MAX: u64 = 256 << 40;

/// Mounts in all: while the kernel drops what it has cached, each may hold one of the threads for blocking work, of which there are
/// eight at least.
const MOUNTS_MAX: usize = 4;

/// Says what is wrong, in the file's own words.
pub fn check(edge: &EdgeConfig) -> Result<(), String> {
    for config in &edge.volumes {
        volume(config).map_err(|error| match edge.has_names() {
            true if error.starts_with("limits.") && edge.volumes.len() > 1 => format!(
                "volume {}: {error}; what stands in [limits] is divided by the volumes' shares",
                config.volume.name
            ),
            true => format!("volume {}: {error}", config.volume.name),
            false => error,
        })?;
    }
    let common = edge.common();
    memory(edge)?;
    addresses(edge)?;
    admin_socket(edge)?;
    common.keys.check()?;
    log_level(common)?;
    traces(common)?;
    crate::access_log::check(edge)?;
    side_by_side(edge)?;
    junctions::check(edge)
}

/// What can be wrong with a volume by itself.
fn volume(config: &Config) -> Result<(), String> {
    limits(&config.limits)?;
    exports(config)?;
    mounts(config)?;
    crate::smb::check(config)?;
    following(config)?;
    durability::check(config)?;
    crate::by_inode::check(config)?;
    bounds::check(&config.nfs, &config.exports)?;
    cleaner(config)?;
    audits(config)?;
    if let Some(second) = &config.second {
        second.check(&config.volume.store)?;
    }
    if let Some(parity) = &config.parity {
        parity.check(config.second.as_ref())?;
    }
    config.retention()?;
    config.price_book().map_err(|error| error.to_string())?;
    Ok(())
}

/// Who may not cache of a volume that other edges change.
fn following(config: &Config) -> Result<(), String> {
    let of_others = config.volume.has_other_writers();
    let has_shares = config.exports.iter().any(|export| export.smb.is_some());
    if of_others && has_shares && config.smb.as_ref().is_some_and(|smb| smb.exclusive) {
        return Err(
            "smb.exclusive: other edges change the volume (volume.follow or volume.shared), of which clients of SMB that cache would not be \
             told; leave it out"
                .into(),
        );
    }
    Ok(())
}

/// What can be wrong with several volumes though each is right.
fn side_by_side(edge: &EdgeConfig) -> Result<(), String> {
    let mut names = BTreeMap::new();
    let mut directories = BTreeMap::new();
    let mut exported: Vec<(&str, &str)> = Vec::new();
    let mut sharing: Option<&str> = None;
    for config in &edge.volumes {
        let name = config.volume.name.as_str();
        if names.insert(name, ()).is_some() {
            return Err(format!("[[volume]]: two are named {name}"));
        }
        let directory = config.volume.state_directory.as_path();
        if let Some(other) = directories.insert(directory, name) {
            return Err(format!(
                "[[volume]]: {other} and {name} have one state_directory, {}; each needs a directory of its own",
                directory.display()
            ));
        }
        if !config.exports.is_empty() && config.smb.is_some() {
            if let Some(other) = sharing {
                return Err(format!(
                    "[export.smb]: shares of {other} and of {name}; one edge shares one volume over SMB"
                ));
            }
            sharing = Some(name);
        }
        for export in &config.exports {
            let path = Export::checked_path(&export.path).map_err(|error| format!("[[export]]: {error}"))?;
            for (other, of) in exported.iter().filter(|(_, of)| *of != name) {
                let (one, two) = (Path::new(path), Path::new(other));
                if one == two {
                    return Err(format!(
                        "[[export]]: {path} is exported twice, of {of} and of {name}"
                    ));
                }
                if one.starts_with(two) || two.starts_with(one) {
                    return Err(format!(
                        "[[export]]: {other} of {of} and {path} of {name} lie one below the other; give one another path"
                    ));
                }
            }
            exported.push((path, name));
        }
    }
    if edge.volumes.len() > 1 {
        all_mounts(edge)?;
    }
    Ok(())
}

/// The mounts of all volumes, which share one machine.
fn all_mounts(edge: &EdgeConfig) -> Result<(), String> {
    let all = edge.volumes.iter().flat_map(|config| &config.mounts);
    let mounts: Vec<_> = all.cloned().collect();
    for config in &edge.volumes {
        // Beside this volume's directories, too.
        let config = Config {
            mounts: mounts.clone(),
            ..config.clone()
        };
        self::mounts(&config)?;
    }
    Ok(())
}

fn limits(limits: &LimitsSection) -> Result<(), String> {
    if !(64 << 10..=16 << 20).contains(&limits.segment.0) {
        return Err("limits.segment must be between 64 KiB and 16 MiB".into());
    }
    if !(1..=32).contains(&limits.uploads) {
        return Err("limits.uploads must be between 1 and 32".into());
    }
    if let Err(why) = limits.background.check() {
        return Err(format!("limits.background: {why}"));
    }
    if limits.journal.0 < 8 << 20 {
        return Err("limits.journal must be at least 8 MiB".into());
    }
    if limits.disk_cache.0 > DISK_CACHE_MAX {
        return Err(format!(
            "limits.disk_cache must be at most {} TiB",
            DISK_CACHE_MAX >> 40
        ));
    }
    Ok(())
}

/// What all volumes together may take of it.
fn memory(edge: &EdgeConfig) -> Result<(), String> {
    let memory = edge.volumes.iter().fold(0_u64, |sum, config| {
        let limits = &config.limits;
        sum.saturating_add(limits.memory_cache.0)
            .saturating_add(limits.dirty_memory.0)
    });
    if let Some(there) = memory_bytes("MemTotal:").filter(|there| memory > *there) {
        return Err(format!(
            "limits.memory_cache and limits.dirty_memory are {} together, and this machine has {} of memory",
            crate::report::size(memory),
            crate::report::size(there)
        ));
    }
    Ok(())
}

/// A figure of the machine's memory, as the kernel says; `field` is a line of `/proc/meminfo`.
pub fn memory_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Size(kib.saturating_mul(1024)).0)
}

fn exports(config: &Config) -> Result<(), String> {
    if config.exports.is_empty() && config.mounts.is_empty() {
        return Err("it exports nothing; add an [[export]]".into());
    }
    let mut seen = BTreeMap::new();
    for export in &config.exports {
        let path = Export::checked_path(&export.path).map_err(|error| format!("[[export]]: {error}"))?;
        if seen.insert(path.to_owned(), ()).is_some() {
            return Err(format!("[[export]]: {path} is exported twice"));
        }
        if export.clients.is_empty() && export.read_only_clients.is_empty() {
            return Err(format!(
                "[[export]]: {path} is exported to no network; name at least one in clients or read_only_clients"
            ));
        }
    }
    Ok(())
}

/// Directories of this machine; not one that the edge itself needs, which could then wait for itself.
fn mounts(config: &Config) -> Result<(), String> {
    if config.mounts.len() > MOUNTS_MAX {
        return Err(format!("[[mount]]: at most {MOUNTS_MAX} are possible"));
    }
    let mut seen: Vec<&Path> = Vec::new();
    for mount in &config.mounts {
        let (path, shown) = (mount.path.as_path(), mount.path.display());
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(is_plain) {
            return Err(format!("[[mount]]: {shown} must be absolute, without `..`"));
        }
        if path.parent().is_none() {
            return Err(format!(
                "[[mount]]: {shown} must be a directory of its own, not the root"
            ));
        }
        for state in [&config.volume.state_directory, &config.edge.directory] {
            if state.starts_with(path) || path.starts_with(state) {
                return Err(format!(
                    "[[mount]]: {shown} and the state directory {} lie in each other; mount elsewhere",
                    state.display()
                ));
            }
        }
        if let StoreUrl::Directory { path: store } = &config.volume.store
            && store.starts_with(path)
        {
            return Err(format!(
                "[[mount]]: {shown} would cover the store {}; mount elsewhere",
                store.display()
            ));
        }
        for other in &seen {
            if path == *other {
                return Err(format!("[[mount]]: {shown} is mounted on twice"));
            }
            if path.starts_with(other) || other.starts_with(path) {
                return Err(format!(
                    "[[mount]]: {shown} and {} lie one below the other",
                    other.display()
                ));
            }
        }
        seen.push(path);
    }
    Ok(())
}

/// What is served on one address cannot share a port.
fn addresses(edge: &EdgeConfig) -> Result<(), String> {
    let config = edge.common();
    let smb = edge.volumes.iter().find_map(|config| config.smb.as_ref());
    let metrics = config.metrics.listen.as_ref().map(|address| {
        address.parse::<SocketAddr>().map_err(|_| {
            format!(
                "metrics.listen must be an address and a port such as \"127.0.0.1:9464\", not {address:?}"
            )
        })
    });
    let metrics = metrics.transpose()?;
    let NfsSection {
        listen,
        nfs_port,
        mount_port,
        portmap,
        ..
    } = &config.nfs;
    let mut taken: BTreeMap<u16, &str> = BTreeMap::new();
    let ports = [
        ("nfs.nfs_port", Some(*nfs_port)),
        ("nfs.mount_port", *mount_port),
        ("the port mapper (nfs.portmap)", portmap.then_some(PORT_MAPPER)),
        ("smb.port", smb.map(|smb| smb.port)),
    ];
    for (what, port) in ports {
        // Any free one.
        let Some(port) = port.filter(|port| *port != 0) else {
            continue;
        };
        if let Some(other) = taken.insert(port, what) {
            return Err(format!(
                "{other} and {what} are both {port}; each needs a port of its own"
            ));
        }
    }
    if let Some(address) = metrics
        && let Some(other) = taken.get(&address.port())
        && may_be_same(address.ip(), listen)
    {
        return Err(format!(
            "metrics.listen and {other} are both {}; each needs a port of its own",
            address.port()
        ));
    }
    Ok(())
}

/// Whether listening on both could meet on one address.
fn may_be_same(one: IpAddr, listen: &str) -> bool {
    let bare = listen.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(other) => one.is_unspecified() || other.is_unspecified() || one == other,
        // A name: what it stands for is known when it is served.
        Err(_) => true,
    }
}

fn admin_socket(edge: &EdgeConfig) -> Result<(), String> {
    let socket = crate::admin::socket(edge.directory());
    let length = socket.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let section = if edge.has_names() { "edge" } else { "volume" };
        return Err(format!(
            "{section}.state_directory is too long: the admin socket in it would have a path of {length} bytes, and \
             {SOCKET_PATH_BYTES_MAX} are possible"
        ));
    }
    Ok(())
}

fn audits(config: &Config) -> Result<(), String> {
    config.audit.check()?;
    if config.audit.every.is_some() && config.volume.follow.is_some() {
        return Err("audit.every: the edge that owns the volume audits it; leave it out here".into());
    }
    Ok(())
}

fn cleaner(config: &Config) -> Result<(), String> {
    config.cleaner.check()?;
    if config.cleaner.every.is_some() && !matches!(config.volume.anchor, AnchorAt::Table(_)) {
        return Err("cleaner.every: a service that keeps the roots lets no edge clean; leave it out, and run a cleaner beside it".into());
    }
    if config.cleaner.every.is_some() && config.volume.credentials == CredentialsFrom::Service {
        return Err(
            "cleaner.every: the service's credentials for edges delete nothing; leave it out, and run a cleaner with its own".into(),
        );
    }
    Ok(())
}

fn traces(config: &Config) -> Result<(), String> {
    match &config.traces.endpoint {
        None => Ok(()),
        Some(endpoint) => firn_telemetry::check(endpoint, config.traces.sample_percent)
            .map_err(|error| format!("[traces]: {error}")),
    }
}

fn log_level(config: &Config) -> Result<(), String> {
    tracing_subscriber::EnvFilter::try_new(&config.log.level)
        .map(drop)
        .map_err(|error| format!("log.level: {error}"))
}
