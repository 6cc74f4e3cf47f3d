//! Fitness of the ports that an edge listens on: whether each can be had, and who has it otherwise.
//!
//! A free port is listened on for an instant, as the edge would do it, since only that tells addresses that this machine does not have and
//! rights that this user lacks.

use super::Subject;
use crate::{
    finding::Finding,
    port_holders::{Holder, Transport, holders, listed, sockets},
    smb,
};
use firn_nfs::portmap;
use std::io;

/// What is listened on.
struct Wanted {
    /// By which setting.
    what: &'static str,
    address: String,
    port: u16,
    transports: &'static [Transport],
}

const BOTH: &[Transport] = &[Transport::Tcp, Transport::Udp];

fn wanted(subject: &Subject<'_>) -> Vec<Wanted> {
    let common = subject.edge.common();
    let nfs = &common.nfs;
    let at = |what, host: &str, port, transports| Wanted {
        what,
        address: format!("{host}:{port}"),
        port,
        transports,
    };
    let mut wanted = vec![at("nfs.nfs_port", &nfs.listen, nfs.nfs_port, BOTH)];
    if let Some(port) = nfs.mount_port {
        wanted.push(at("nfs.mount_port", &nfs.listen, port, BOTH));
    }
    if nfs.portmap {
        wanted.push(at("nfs.portmap", &nfs.listen, portmap::PORT, BOTH));
    }
    if let Some(smb) = subject.edge.volumes.iter().find_map(|config| config.smb.as_ref()) {
        let host = match smb.listen {
            std::net::IpAddr::V4(address) => address.to_string(),
            std::net::IpAddr::V6(address) => format!("[{address}]"),
        };
        wanted.push(at("smb.port", &host, smb.port, &[Transport::Tcp]));
    }
    if let Some(address) = &common.metrics.listen {
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        wanted.push(Wanted {
            what: "metrics.listen",
            address: address.clone(),
            port: port.unwrap_or(0),
            transports: &[Transport::Tcp],
        });
    }
    wanted
}

/// The ports that clients must reach.
pub fn of_clients(subject: &Subject<'_>) -> Vec<u16> {
    let wanted = wanted(subject).into_iter();
    let of_clients = wanted.filter(|wanted| wanted.what != "metrics.listen");
    of_clients.map(|wanted| wanted.port).collect()
}

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for wanted in wanted(subject) {
        found.push(port(subject, &wanted).await.figure("port", wanted.port));
    }
    let text = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").unwrap_or_default();
    if text.trim() == "1" && subject.edge.common().nfs.listen.contains("::") {
        found.push(Finding::hurts(
            "port",
            "net.ipv6.bindv6only is 1: on [::] only IPv6 clients are served",
            "sysctl net.ipv6.bindv6only=0, or set nfs.listen = \"0.0.0.0\"",
        ));
    }
    found
}

async fn port(subject: &Subject<'_>, wanted: &Wanted) -> Finding {
    const SUBJECT: &str = "port";
    let Wanted {
        what, address, port, ..
    } = wanted;
    for transport in wanted.transports {
        let network = subject.env.network();
        let tried = match transport {
            Transport::Tcp => network.listen(address).await.map(drop),
            Transport::Udp => network.bind_datagram(address).await.map(drop),
        };
        let error = match tried {
            Ok(()) => continue,
            Err(error) => error,
        };
        let said = format!("{what} {address} ({transport}): {error}");
        return match error.kind() {
            io::ErrorKind::AddrInUse => taken(subject, wanted, *transport).await,
            // The kernel asks for the right first.
            io::ErrorKind::PermissionDenied if !sockets(*port, *transport).is_empty() => {
                taken(subject, wanted, *transport).await
            }
            io::ErrorKind::AddrNotAvailable => Finding::fails(
                SUBJECT,
                format!("{what} {address}: this machine has no such address"),
                "name one that `ip address` shows, or all: \"[::]\", without IPv6 \"0.0.0.0\"",
            ),
            io::ErrorKind::PermissionDenied => Finding::not_seen(
                SUBJECT,
                format!(
                    "{what} {address}: nobody has it, and this user may not listen below 1024; the unit gives the edge that right, \
                     elsewhere it needs CAP_NET_BIND_SERVICE"
                ),
            ),
            _ if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
                Finding::fails(
                    SUBJECT,
                    format!("{what} {address}: this machine has no IPv6"),
                    "set nfs.listen = \"0.0.0.0\" (smb.listen and metrics.listen likewise)",
                )
            }
            _ => Finding::fails(SUBJECT, said, "name an address and a port of this machine"),
        };
    }
    Finding::fine(SUBJECT, format!("{what} {address}: free"))
}

/// What can be said of a port that somebody has.
async fn taken(subject: &Subject<'_>, wanted: &Wanted, transport: Transport) -> Finding {
    const SUBJECT: &str = "port";
    let Wanted { what, port, .. } = wanted;
    let holders = holders(*port, transport);
    let who = match &holders[..] {
        [] if rustix::process::geteuid().is_root() => "the kernel (its NFS server?)".into(),
        [] => "a process of another user (as root this says which)".into(),
        some => listed(some),
    };
    let is = |name: &str| holders.iter().any(|holder| holder.name == name);
    // The distribution's own smbd is not the edge's.
    let is_own_smbd = |holder: &Holder| {
        let mut volumes = subject.edge.volumes.iter();
        volumes.any(|config| holder.was_started_with(&smb::configuration(config)))
    };
    let is_own =
        is("firn-edge") || (*what == "smb.port" && holders.iter().any(is_own_smbd)) || holders.is_empty();
    if subject.is_running && is_own {
        return Finding::fine(SUBJECT, format!("{what} {port}: the running edge has it ({who})"));
    }
    if *port == portmap::PORT {
        let socket = portmap::RPCBIND_SOCKET;
        return match subject.env.network().connect(socket).await {
            Ok(_) => Finding::fine(
                SUBJECT,
                format!(
                    "{what} {port}: {who} has it, and rpcbind answers on {socket}: the edge registers there"
                ),
            ),
            Err(error) => Finding::fails(
                SUBJECT,
                format!(
                    "{what} {port}: {who} has it, and no rpcbind takes registrations ({socket}: {error})"
                ),
                "stop it, or start rpcbind, or set nfs.portmap = false and mount with port= and mountport=",
            ),
        };
    }
    let stop = if holders.is_empty() && rustix::process::geteuid().is_root() {
        "systemctl disable --now nfs-server"
    } else if is("smbd") {
        "systemctl disable --now smbd nmbd"
    } else {
        "stop it"
    };
    Finding::fails(
        SUBJECT,
        format!("{what} {port} ({transport}): {who} has it"),
        format!("{stop}, or set {what} to another port"),
    )
}
