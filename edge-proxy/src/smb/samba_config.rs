//! Samba's configuration, made of the edge's.
//!
//! With NFS clients and mounts on the same files no SMB client may cache: oplocks and leases are off, and byte-range locks go by
//! fcntl through the mount into the lock table of all protocols. `smb.exclusive` turns that round, as far as Samba can.

use super::{
    paths::{self, Paths},
    section::{Encryption, Protocol, ShareSection, SmbSection, is_read_only},
    users::{self, Table},
};
use crate::config::{Config, ExportSection, SquashKind};
use firn_nfs::ClientNetwork;
use firn_volume::SNAPSHOTS_DIRECTORY;
use std::{fmt::Write, net::IpAddr};

/// Of each log file; Samba keeps one old one.
const LOG_KIB: u32 = 4096;

/// Processes that smbd counts beside those of connections: one notifies, one cleans up.
const HELPERS: u32 = 2;

/// The whole file. Everything of others that is put in was checked when the configuration was loaded.
pub fn text(config: &Config, smb: &SmbSection, paths: &Paths, machine: &str) -> String {
    let mut out =
        String::from("# Written by firn-edge at each start; changes made here are lost.\n[global]\n");
    let mut set = |key: &str, value: &str| {
        let _ = writeln!(out, "\t{key} = {value}");
    };
    let at = |path: std::path::PathBuf| path.display().to_string();
    match &smb.domain {
        Some(domain) => {
            for (key, value) in domain.settings() {
                set(&key, &value);
            }
        }
        None => {
            set("server role", "standalone server");
            set("security", "user");
            set("workgroup", &smb.workgroup);
        }
    }
    set("netbios name", smb.server_name.as_deref().unwrap_or(machine));
    set("server string", "Firn");
    set("disable netbios", "yes");
    set("smb ports", &smb.port.to_string());
    if !smb.listen.is_unspecified() {
        set("interfaces", &smb.listen.to_string());
        set("bind interfaces only", "yes");
    }
    set(
        "max smbd processes",
        &smb.connections.saturating_add(HELPERS).to_string(),
    );
    // Where it keeps what: nothing outside the state directory, of which its users see `run` only.
    let run = paths.run_seen_at();
    set("passdb backend", &format!("tdbsam:{}", at(paths.passdb())));
    set("private dir", &at(paths.private()));
    for key in [
        "lock directory",
        "state directory",
        "cache directory",
        "pid directory",
    ] {
        set(key, &run);
    }
    set("ncalrpc dir", &format!("{run}/ncalrpc"));
    set("usershare max shares", "0");
    set("logging", "file");
    set("log file", &at(paths.log().join("log.smbd")));
    set("max log size", &LOG_KIB.to_string());
    set("log level", "1");
    set("socket options", SOCKETS);
    for (key, value) in PRINTING {
        set(key, value);
    }
    // Who, and by what.
    set(
        "server min protocol",
        match smb.minimum_protocol {
            Protocol::Smb2 => "SMB2_10",
            // `SMB3` would be its newest, 3.1.1.
            Protocol::Smb3 => "SMB3_00",
        },
    );
    set("server signing", "mandatory");
    set(
        "server smb encrypt",
        match smb.encryption {
            Encryption::Required => "required",
            Encryption::Desired => "desired",
        },
    );
    set("map to guest", "never");
    set("ntlm auth", "ntlmv2-only");
    set("restrict anonymous", "2");
    let networks = shared(config).flat_map(|(export, _)| networks(export));
    set("hosts allow", &hosts(networks, Some(smb.listen)));
    set("hosts deny", "ALL");
    set("vfs objects", &modules(asks_for_names(smb)));
    for (key, value) in FILES {
        set(key, value);
    }
    for (key, value) in if smb.exclusive { ALONE } else { SHARED } {
        set(key, value);
    }
    for (export, share) in shared(config) {
        put_share(&mut out, config, (export, share), paths);
    }
    out
}

const PRINTING: [(&str, &str); 4] = [
    ("load printers", "no"),
    ("printing", "bsd"),
    ("printcap name", "/dev/null"),
    ("disable spoolss", "yes"),
];

/// A client that vanishes without a word keeps its locks and opens from all others until its connection ends. That is two minutes after its last
/// word, whether it owes an acknowledgement or not; by the kernel's own measure it would be two hours.
const SOCKETS: &str =
    "TCP_NODELAY SO_KEEPALIVE TCP_KEEPIDLE=60 TCP_KEEPINTVL=10 TCP_KEEPCNT=6 TCP_USER_TIMEOUT=120000";

/// Asks a mount how a name is written that is asked for in another case, instead of listing the directory (decision 0139). Made for another file
/// system's mounts, and free of it; it also names files by the mount's source instead of the number the kernel gave it.
const CASE_MODULE: &str = "glusterfs_fuse";

/// Whether this Samba has [`CASE_MODULE`].
pub fn asks_for_names(smb: &SmbSection) -> bool {
    paths::module(&smb.program, CASE_MODULE).is_some()
}

/// Samba's modules; their order is that of their manual pages: `fruit` before `streams_xattr`, both behind `catia`, [`CASE_MODULE`] last.
fn modules(has_case_module: bool) -> String {
    let mut modules = vec!["acl_xattr", "shadow_copy2", "catia", "fruit", "streams_xattr"];
    modules.extend(has_case_module.then_some(CASE_MODULE));
    modules.join(" ")
}

/// How files look.
const FILES: [(&str, &str); 20] = [
    // The mount's index answers as fast. Samba's cache of spellings would give a new name that of an old one which another client or protocol
    // has removed.
    ("stat cache", "no"),
    ("nt acl support", "yes"),
    ("ea support", "yes"),
    ("store dos attributes", "yes"),
    ("map archive", "no"),
    ("map hidden", "no"),
    ("map system", "no"),
    ("map readonly", "no"),
    // As an NFS client with the umask 022 makes them; a default ACL of the directory counts instead.
    ("create mask", "0755"),
    ("directory mask", "0755"),
    ("inherit acls", "yes"),
    ("wide links", "no"),
    ("strict sync", "yes"),
    ("kernel share modes", "no"),
    ("kernel oplocks", "no"),
    // An Apple client sees its metadata and its resource forks as streams, and no files of its own beside them.
    ("fruit:metadata", "stream"),
    ("fruit:resource", "stream"),
    ("fruit:nfs_aces", "no"),
    ("fruit:wipe_intentionally_left_blank_rfork", "yes"),
    ("fruit:delete_empty_adfiles", "yes"),
];

/// Beside NFS and mounts.
const SHARED: &[(&str, &str)] = &[
    ("oplocks", "no"),
    ("level2 oplocks", "no"),
    ("smb2 leases", "no"),
    ("posix locking", "yes"),
    ("strict locking", "yes"),
    ("durable handles", "no"),
];

/// Without any other protocol: caching, and opens that survive a broken connection, which Samba has only without locks of the kernel.
const ALONE: &[(&str, &str)] = &[
    ("oplocks", "yes"),
    ("level2 oplocks", "yes"),
    ("smb2 leases", "yes"),
    ("posix locking", "no"),
    ("strict locking", "auto"),
    ("durable handles", "yes"),
];

/// The exports that are shares.
pub fn shared(config: &Config) -> impl Iterator<Item = (&ExportSection, &ShareSection)> {
    config
        .exports
        .iter()
        .filter_map(|export| Some((export, export.smb.as_ref()?)))
}

/// Whose clients may use a share.
pub fn networks(export: &ExportSection) -> impl Iterator<Item = ClientNetwork> + '_ {
    export.clients.iter().chain(&export.read_only_clients).copied()
}

/// `own`: also this machine's address, by which the edge asks whether smbd answers. It gets no further than that.
fn hosts(networks: impl Iterator<Item = ClientNetwork>, own: Option<IpAddr>) -> String {
    let mut all: Vec<String> = networks
        .map(|network| match network {
            ClientNetwork::Everyone => "ALL".into(),
            network => network.to_string(),
        })
        .collect();
    if let Some(own) = own {
        all.push(IpAddr::from([127, 0, 0, 1]).to_string());
        all.extend((!own.is_unspecified()).then(|| own.to_string()));
    }
    all.sort();
    all.dedup();
    all.join(" ")
}

fn put_share(
    out: &mut String,
    config: &Config,
    (export, share): (&ExportSection, &ShareSection),
    paths: &Paths,
) {
    let _ = writeln!(out, "[{}]", share.share);
    let mut set = |key: &str, value: &str| {
        let _ = writeln!(out, "\t{key} = {value}");
    };
    let yes = |is: bool| if is { "yes" } else { "no" };
    let root = &paths.seen_at();
    set("path", root);
    set("comment", &export.path);
    set(
        "read only",
        yes(is_read_only(export) || config.volume.follow.is_some()),
    );
    set("browseable", yes(!share.share.ends_with('$')));
    set("hosts allow", &hosts(networks(export), None));
    set("hosts deny", "ALL");
    if !share.users.is_empty() {
        let quoted: Vec<String> = share.users.iter().map(|user| format!("\"{user}\"")).collect();
        set("valid users", &quoted.join(" "));
    }
    if let Some((uid, gid)) = forced_user(export) {
        set("force user", &users::anonymous_name(uid));
        set("force group", &users::group_name(gid));
    }
    // Previous versions: the private mount names each snapshot by its time, as clients ask for it.
    set("shadow:snapdir", SNAPSHOTS_DIRECTORY);
    set("shadow:mountpoint", root);
    set("shadow:sort", "desc");
    set("shadow:localtime", "no");
    set("veto files", &format!("/{SNAPSHOTS_DIRECTORY}/"));
}

/// A machine's name as NetBIOS takes it.
pub fn netbios_name(host: &str) -> String {
    let first = host.split('.').next().unwrap_or_default();
    let name: String = first
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-')
        .take(15)
        .collect();
    if name.is_empty() {
        "FIRN".into()
    } else {
        name.to_uppercase()
    }
}

/// The user and group that everybody is who uses the share.
pub fn forced_user(export: &ExportSection) -> Option<(u32, u32)> {
    (export.squash == SquashKind::All).then_some((export.anonymous_uid, export.anonymous_gid))
}

/// The anonymous users that exports turn everybody into.
pub fn anonymous(config: &Config) -> Vec<(u32, u32)> {
    shared(config)
        .filter_map(|(export, _)| forced_user(export))
        .collect()
}

/// What smbd sees as the files of accounts.
pub fn accounts(config: &Config, table: &Table) -> (String, String) {
    table.accounts(&anonymous(config))
}
