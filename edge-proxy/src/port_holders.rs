//! The holders of a port of this machine, by the kernel's tables in `/proc`: sockets by number, and processes by the sockets they hold.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// The state of a socket that listens, and of one for datagrams, in the kernel's tables.
const LISTENING: &str = "0A";
const UNCONNECTED: &str = "07";

/// How a port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
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

/// A process that has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    directory: PathBuf,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.directory.file_name().unwrap_or_default();
        write!(formatter, "{} (process {})", self.name, number.display())
    }
}

impl Holder {
    /// Whether this is one of the arguments that it was started with.
    pub fn was_started_with(&self, argument: &Path) -> bool {
        let line = fs::read(self.directory.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|given| given == argument.as_os_str().as_encoded_bytes())
    }
}

/// The sockets that have the port, as links to them read.
pub fn sockets(port: u16, transport: Transport) -> Vec<String> {
    let (tables, state) = match transport {
        Transport::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], LISTENING),
        Transport::Udp => (["/proc/net/udp", "/proc/net/udp6"], UNCONNECTED),
    };
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| inode(line, port, state))
        .map(|inode| format!("socket:[{inode}]"))
        .collect()
}

/// Who has the port, of the processes that may be looked at.
pub fn holders(port: u16, transport: Transport) -> Vec<Holder> {
    let sockets = sockets(port, transport);
    if sockets.is_empty() {
        return Vec::new();
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    numbered
        .map(|process| process.path())
        .filter(|process| has_one(process, &sockets))
        .map(|directory| {
            let name = fs::read_to_string(directory.join("comm")).unwrap_or_default();
            Holder {
                name: name.trim().to_owned(),
                directory,
            }
        })
        .collect()
}

/// For people: `NAME (process ID)` of each.
pub fn listed(holders: &[Holder]) -> String {
    let named: Vec<String> = holders.iter().map(Holder::to_string).collect();
    named.join(", ")
}

fn has_one(process: &Path, sockets: &[String]) -> bool {
    let descriptors = fs::read_dir(process.join("fd"));
    let mut targets = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
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
    use super::*;

    #[test]
    fn a_line_of_the_kernels_table_names_its_socket() {
        let line = "   1: 00000000:006F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15718 1 0000 100 0 0 10 0";
        assert_eq!(inode(line, 111, "0A").as_deref(), Some("15718"));
        assert_eq!(inode(line, 111, "07"), None);
        assert_eq!(inode(line, 112, "0A"), None);
        assert_eq!(inode("sl local_address", 111, "0A"), None);
    }

    #[test]
    fn whoever_listens_is_found_and_known_by_how_it_was_started() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let found = holders(port, Transport::Tcp);
        let own = format!("(process {})", std::process::id());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(listed(&found).ends_with(&own), "{}", listed(&found));
        let program = std::env::args_os().next().expect("a program");
        assert!(found[0].was_started_with(Path::new(&program)));
        assert!(!found[0].was_started_with(Path::new("/nothing of the kind")));
    }
}
