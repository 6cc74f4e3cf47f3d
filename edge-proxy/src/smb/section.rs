//! `[smb]` and `[export.smb]` of the configuration file, and what of them can be wrong.

use super::{domain::DomainSection, users};
use crate::config::{Config, ExportSection};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// Where Debian, Ubuntu, Red Hat and SUSE install it.
const PROGRAM: &str = "/usr/sbin/smbd";

/// More processes than this need a machine of another kind; each is some 10 MiB and a connection.
const CONNECTIONS_MAX: u32 = 4096;

/// Longest name of a share that all clients take.
const SHARE_NAME_BYTES_MAX: usize = 80;
/// Longest NetBIOS name, which clients are told.
const SERVER_NAME_BYTES_MAX: usize = 15;

/// Names that mean something else to Samba or to its clients.
const RESERVED: [&str; 7] = [
    "global", "homes", "printers", "print$", "ipc$", "admin$", "netlogon",
];

/// How SMB is served.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct SmbSection {
    pub listen: IpAddr,
    pub port: u16,
    pub program: PathBuf,
    pub encryption: Encryption,
    pub minimum_protocol: Protocol,
    /// No NFS client and no mount uses the shared files: clients may cache.
    pub exclusive: bool,
    pub workgroup: String,
    /// The Active Directory domain whose users log in beside those of the table.
    pub domain: Option<DomainSection>,
    /// What clients are told; by default the machine's name.
    pub server_name: Option<String>,
    /// At one time; each is a process.
    pub connections: u32,
}

impl Default for SmbSection {
    fn default() -> Self {
        Self {
            listen: IpAddr::from([0_u16; 8]),
            port: 445,
            program: PROGRAM.into(),
            encryption: Encryption::Required,
            minimum_protocol: Protocol::Smb3,
            exclusive: false,
            workgroup: "WORKGROUP".into(),
            domain: None,
            server_name: None,
            connections: 128,
        }
    }
}

impl SmbSection {
    /// Comes with the same Samba.
    pub fn winbindd(&self) -> PathBuf {
        self.program.with_file_name("winbindd")
    }
}

/// What of the traffic is encrypted. It is always signed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// All; who cannot is refused.
    Required,
    /// That of clients that can.
    Desired,
}

/// The oldest dialect that is spoken. SMB1 never is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Windows 7.
    Smb2,
    /// Windows 8, macOS 10.10.
    Smb3,
}

/// How an export is shared over SMB.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ShareSection {
    /// With `$` at its end it is not shown to who browses.
    pub share: String,
    /// Of the table of users, `@` before a group; empty: all users.
    #[serde(default)]
    pub users: Vec<String>,
}

/// Whether all clients of this export may only read. SMB knows one right for a share: [`check`] refuses exports with both kinds.
pub fn is_read_only(export: &ExportSection) -> bool {
    export.clients.is_empty()
}

/// Says what is wrong, in the file's own words.
pub fn check(config: &Config) -> Result<(), String> {
    let shares: Vec<_> = config
        .exports
        .iter()
        .filter_map(|export| Some((export, export.smb.as_ref()?)))
        .collect();
    let Some(smb) = &config.smb else {
        return match shares.first() {
            Some((export, _)) => Err(format!(
                "[export.smb] of {}: nothing serves it; add an [smb] section",
                export.path
            )),
            None => Ok(()),
        };
    };
    if shares.is_empty() {
        return Err(
            "[smb]: it shares nothing; add [export.smb] with a share = \"NAME\" to an [[export]]".into(),
        );
    }
    section(smb, config)?;
    let mut seen = BTreeSet::new();
    for (export, share) in shares {
        check_share(smb, export, share)?;
        if !seen.insert(share.share.to_lowercase()) {
            return Err(format!(
                "[export.smb]: two shares are named {}; upper and lower case are the same to clients",
                share.share
            ));
        }
    }
    Ok(())
}

fn section(smb: &SmbSection, config: &Config) -> Result<(), String> {
    if smb.port == 0 {
        return Err("smb.port must be a port, since clients have to know it".into());
    }
    if !(1..=CONNECTIONS_MAX).contains(&smb.connections) {
        return Err(format!("smb.connections must be between 1 and {CONNECTIONS_MAX}"));
    }
    if !smb.program.is_absolute() {
        return Err(format!("smb.program {} must be absolute", smb.program.display()));
    }
    if !is_netbios(&smb.workgroup) {
        return Err(format!(
            "smb.workgroup {:?} must be 1 to {SERVER_NAME_BYTES_MAX} letters, digits or hyphens",
            smb.workgroup
        ));
    }
    if let Some(name) = smb.server_name.as_ref().filter(|name| !is_netbios(name)) {
        return Err(format!(
            "smb.server_name {name:?} must be 1 to {SERVER_NAME_BYTES_MAX} letters, digits or hyphens"
        ));
    }
    if let Some(domain) = &smb.domain {
        domain.check()?;
        if smb.workgroup != SmbSection::default().workgroup {
            return Err("smb.workgroup: with [smb.domain] it is smb.domain.short_name; leave it out".into());
        }
    }
    if smb.exclusive && !config.mounts.is_empty() {
        return Err("smb.exclusive: a [[mount]] is on the same files, which clients of SMB would then cache without being told of its changes; leave one of the two out".into());
    }
    if smb.encryption == Encryption::Required && smb.minimum_protocol == Protocol::Smb2 {
        return Err(
            "smb.minimum_protocol = \"smb2\": SMB2 cannot encrypt; set smb.encryption = \"desired\" with it"
                .into(),
        );
    }
    // Quotation marks are how such a path is written down for Samba.
    let state = config.volume.state_directory.to_str();
    if !state.is_some_and(|path| path.starts_with('/') && is_plain(path)) {
        return Err(format!(
            "volume.state_directory {}: with [smb] it must be absolute, of letters, digits and `/._-`, since Samba's configuration names it",
            config.volume.state_directory.display()
        ));
    }
    Ok(())
}

/// A path that Samba's configuration can name: `%` and quotation marks mean something else there.
fn is_plain(path: &str) -> bool {
    path.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte))
}

pub fn is_netbios(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=SERVER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

fn check_share(smb: &SmbSection, export: &ExportSection, share: &ShareSection) -> Result<(), String> {
    let name = &share.share;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._- $".contains(&byte);
    let is_name =
        (1..=SHARE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) && name.trim() == name;
    if !is_name || RESERVED.contains(&name.to_lowercase().as_str()) {
        return Err(format!(
            "[export.smb]: {name:?} cannot be a share's name: 1 to {SHARE_NAME_BYTES_MAX} letters, digits, spaces or `._-$`, and none \
             that Windows reserves"
        ));
    }
    if !export.clients.is_empty() && !export.read_only_clients.is_empty() {
        return Err(format!(
            "[export.smb]: {} has clients and read_only_clients, and a share is for either; add an [[export]] for those that only read",
            export.path
        ));
    }
    for user in &share.users {
        let bare = user.strip_prefix('@').unwrap_or(user);
        let of_domain = match &smb.domain {
            Some(domain) => domain.account(bare),
            None => Ok(None),
        };
        let of_domain =
            of_domain.map_err(|error| format!("[export.smb] of {}: users: {error}", export.path))?;
        if of_domain.is_some() {
            continue;
        }
        users::check_name(bare)
            .map_err(|error| format!("[export.smb] of {}: users: {error}", export.path))?;
    }
    Ok(())
}

/// Why SMB would not be served here at present though the configuration is right; everything else would be.
pub fn unserved(config: &Config) -> Option<String> {
    let smb = config.smb.as_ref()?;
    if !rustix::process::geteuid().is_root() {
        return Some("smbd must be started by root, so that it can work as its users; see packaging/firn-edge-smb.conf".into());
    }
    missing(&smb.program).or_else(|| smb.domain.as_ref().and_then(|_| missing_for_domain(smb)))
}

/// Why no domain can be served: winbindd is missing, or the module by which smbd finds its users.
fn missing_for_domain(smb: &SmbSection) -> Option<String> {
    let winbindd = smb.winbindd();
    if !winbindd.is_file() {
        return Some(format!(
            "{} is not there, and [smb.domain] needs it: apt-get install winbind libnss-winbind",
            winbindd.display()
        ));
    }
    let is_module = |directory: PathBuf| directory.join("libnss_winbind.so.2").is_file();
    let mut directories = vec![
        PathBuf::from("/lib64"),
        "/usr/lib64".into(),
        "/lib".into(),
        "/usr/lib".into(),
    ];
    // Debian's, one for each architecture.
    let of_architectures = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    directories.extend(of_architectures.map(|entry| entry.path()));
    (!directories.into_iter().any(is_module)).then(|| {
        "libnss_winbind.so.2 is not there, and smbd finds the domain's users by it: apt-get install libnss-winbind".into()
    })
}

/// Why Samba cannot be run.
pub fn missing(program: &Path) -> Option<String> {
    if program.is_file() {
        return None;
    }
    Some(format!(
        "{} is not there: install Samba (Debian, Ubuntu: apt-get install samba samba-vfs-modules), or name it in smb.program",
        program.display()
    ))
}
