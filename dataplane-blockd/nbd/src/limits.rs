//! Limits of a server: connections, and requests and bytes in flight on each.

use std::time::Duration;

/// Bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once. For more, those that have chosen no export give way, the oldest first; then they wait.
    pub connections: usize,
    /// Requests in flight on one connection.
    pub requests: usize,
    /// Bytes of payload in flight on one connection, in both directions.
    pub bytes: u32,
    /// How long a client may haggle before it chooses an export.
    pub negotiation: Duration,
}

impl Default for Limits {
    /// 256 requests are twice the kernel client's deepest queue; 64 MiB are two of the longest payloads, so that one can be
    /// received while another is sent; a minute is long for a program, and a person at a prompt can be quicker.
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 256,
            bytes: 64 << 20,
            negotiation: Duration::from_secs(60),
        }
    }
}
