//! The count of connected clients, by the kernel's table: to ask Samba would take a process each time.

use std::fs;

/// The state of an established connection in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// Connections to this port of this machine.
pub fn count(port: u16) -> u64 {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .map(|table| count_in(&table, port))
        .sum()
}

fn count_in(table: &str, port: u16) -> u64 {
    let own = format!(":{port:04X}");
    let is_ours = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(&own)) && state == Some(ESTABLISHED)
    };
    table.lines().skip(1).filter(is_ours).count() as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_established_connections_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                        0: 00000000:01BD 00000000:0000 0A 0:0\n\
                        1: 0100007F:01BD 0100007F:8000 01 0:0\n\
                        2: 0100007F:8000 0100007F:01BD 01 0:0\n\
                        3: 0100007F:01BD 0100007F:8001 06 0:0\n";
        assert_eq!(super::count_in(table, 445), 1);
    }
}
