//! Fitness of the ports that an edge listens on: whether each can be had, and who has it otherwise.
//!
//! A free port is listened on for an instant, as the edge would do it, since only that tells addresses that this machine does not have and
//! rights that this user lacks. Whose a taken one is stands in `/proc`: sockets by number, and processes by the sockets they hold.

use super::Subject;
use crate::finding::Finding;
use firn_nfs::portmap;
use std::{fmt, io, path::Path};

/// The state of a socket that listens, and of one for datagrams, in the kernel's tables.
const LISTENING: &str = "0A";
const UNCONNECTED: &str = "07";

/// How a port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

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
        some => some.join(", "),
    };
    let is = |name: &str| holders.iter().any(|holder| holder.starts_with(name));
    let is_own = is("firn-edge ") || (*what == "smb.port" && is("smbd ")) || holders.is_empty();
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
    } else if is("smbd ") {
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

/// The sockets that have the port, as links to them read.
fn sockets(port: u16, transport: Transport) -> Vec<String> {
    let (tables, state) = match transport {
        Transport::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], LISTENING),
        Transport::Udp => (["/proc/net/udp", "/proc/net/udp6"], UNCONNECTED),
    };
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| inode(line, port, state))
        .map(|inode| format!("socket:[{inode}]"))
        .collect()
}

/// Who has the port: `NAME (process ID)` of each process that may be looked at.
fn holders(port: u16, transport: Transport) -> Vec<String> {
    let sockets = sockets(port, transport);
    if sockets.is_empty() {
        return Vec::new();
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    numbered
        .filter(|process| has_one(&process.path(), &sockets))
        .map(|process| {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("{} (process {})", name.trim(), process.file_name().display())
        })
        .collect()
}

fn has_one(process: &Path, sockets: &[String]) -> bool {
    let descriptors = std::fs::read_dir(process.join("fd"));
    let mut targets = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

/// The number of a line's socket, if it has this local port and state.
fn inode(line: &str, port: u16, state: &str) -> Option<String> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, local) = fields.next()?.rsplit_once(':')?;
    if u16::from_str_radix(local, 16).ok()? != port || fields.nth(1)? != state {
        return None;
    }
    fields.nth(5).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_of_the_kernels_table_names_its_socket() {
        let line = "   1: 00000000:006F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15718 1 0000 100 0 0 10 0";
        assert_eq!(super::inode(line, 111, "0A").as_deref(), Some("15718"));
        assert_eq!(super::inode(line, 111, "07"), None);
        assert_eq!(super::inode(line, 112, "0A"), None);
        assert_eq!(super::inode("sl local_address", 111, "0A"), None);
    }
}
