//! From where the clients of smbd's processes come: each process has one client, and the kernel knows its connection.
//!
//! ```text
//! /proc/PID/fd ──▶ its sockets        /proc/PID/net/tcp, tcp6 ──▶ local port, remote address and socket of each connection
//! ```

use firn_env::{Env, Monotonic};
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Mutex,
    time::Duration,
};

/// A process's number may be given to another one's client after so long.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// Processes remembered at a time.
const KNOWN_MAX: usize = 8192;
/// The state of an established connection.
const ESTABLISHED: &str = "01";

/// See the module.
pub struct SmbPeers {
    env: Env,
    port: u16,
    known: Mutex<HashMap<u32, (Monotonic, Option<IpAddr>)>>,
}

impl SmbPeers {
    /// Of clients of this port.
    pub fn new(env: &Env, port: u16) -> Self {
        Self {
            env: env.clone(),
            port,
            known: Mutex::default(),
        }
    }

    /// The address of the client for whom the process works, if it can be told.
    pub fn address_of(&self, process: u32) -> Option<IpAddr> {
        let now = self.env.now();
        let mut known = self.known.lock().expect("no panic under this lock");
        if let Some((at, address)) = known.get(&process)
            && now.since(*at) < KNOWN_FOR
        {
            return *address;
        }
        let address = find(process, self.port);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(process, (now, address));
        address
    }
}

fn find(process: u32, port: u16) -> Option<IpAddr> {
    let mut sockets = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let number = target
            .to_str()
            .and_then(|text| text.strip_prefix("socket:["))
            .and_then(|text| text.strip_suffix(']'));
        sockets.extend(number.map(str::to_owned));
    }
    ["tcp", "tcp6"].iter().find_map(|table| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{table}")).ok()?;
        remote_in(&table, port, &sockets)
    })
}

fn remote_in(table: &str, port: u16, sockets: &BTreeSet<String>) -> Option<IpAddr> {
    let own = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, _, _, _, _, _, socket, ..] = fields[..] else {
            return None;
        };
        (local.ends_with(&own) && state == ESTABLISHED && sockets.contains(socket))
            .then(|| address(remote.split(':').next()?))?
    })
}

/// An address as these tables have it: words of four bytes, each in the machine's order.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok();
    if hex.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into());
    }
    let mut octets = [0; 16];
    for (at, part) in octets.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(at)?.to_ne_bytes());
    }
    Some(Ipv6Addr::from(octets).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_address_of_the_connection_that_it_holds() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 00000000:01BD 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1\n\
            1: 0100007F:01BD 0200000A:8000 01 00000000:00000000 00:00000000 00000000 0 0 12 1\n\
            2: 0100007F:01BD 0300000A:8001 01 00000000:00000000 00:00000000 00000000 0 0 13 1\n";
        let holds = |socket: &str| remote_in(table, 445, &BTreeSet::from([socket.to_owned()]));
        assert_eq!(holds("13"), Some([10, 0, 0, 3].into()));
        assert_eq!((holds("11"), holds("14")), (None, None));
        assert_eq!(
            address("0000000000000000FFFF00000700000A"),
            Some([10, 0, 0, 7].into())
        );
        assert_eq!(
            address("B80D0120000000000000000001000000"),
            Some("2001:db8::1".parse().expect("an address"))
        );
    }
}
