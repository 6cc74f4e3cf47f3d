//! Options of a node, and the security of its connections.

use crate::auth::Authenticator;
use bytes::Bytes;
use firn_blockd_protocol::{ServerLimits, Transport};
use std::{sync::Arc, time::Duration};

/// Four movements of an arm: then commits for those who fill the disk take a fifth of its time, not half.
const COMMIT_WAIT_MAX: Duration = Duration::from_millis(32);

/// How a node works.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where it listens, `host:port`.
    pub listen: String,
    /// Where others find it; nothing: where it listens.
    pub advertise: Option<String>,
    /// What fails together with it.
    pub domain: String,
    /// Between two heartbeats; several must fit into the time after which the coordinator takes a node for dead.
    pub heartbeat: Duration,
    /// Requests that use the disk at once: about what keeps it busy. More would only move the queue from where tenants take
    /// turns to where they do not. [`NodeOptions::with_arm`] for disks that seek.
    pub permits: usize,
    /// What a request costs its tenant beside its bytes: a solid disk does not seek, but each of its requests takes a processor's
    /// time, and small ones fill its channels less.
    pub request_cost_bytes: u64,
    /// How long a durable write waits for somebody else's commit while its tenant has requests waiting for a permit.
    pub commit_wait_max: Duration,
    /// Rows copied at once when the node joins.
    pub copies_at_once: usize,
    /// Bytes a second for copying.
    pub copy_bytes_per_second: u64,
    /// Bytes a second for scrubbing.
    pub scrub_bytes_per_second: u64,
    /// From the end of one round of scrubbing to the beginning of the next.
    pub scrub_interval: Duration,
    /// How long tracts are kept that are no longer this node's, in case somebody wants them back.
    pub drop_after: Duration,
    /// Of each connection.
    pub limits: ServerLimits,
    /// Connections open at once. Their owners share them, so that one that is alone gets half.
    pub connections: usize,
    /// Bytes of requests and replies in flight on all connections, shared alike; at least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: usize,
}

/// A few of the largest requests.
pub const MEMORY_BYTES_MIN: usize = 8 << 20;

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:7300".into(),
            advertise: None,
            domain: "default".into(),
            heartbeat: Duration::from_secs(2),
            permits: 32,
            request_cost_bytes: 64 << 10,
            commit_wait_max: Duration::ZERO,
            copies_at_once: 8,
            copy_bytes_per_second: 64 << 20,
            scrub_bytes_per_second: 8 << 20,
            scrub_interval: Duration::from_secs(7 * 86_400),
            drop_after: Duration::from_secs(3600),
            limits: ServerLimits::default(),
            connections: 1024,
            // What keeps the disk busy is 32 requests of a mebibyte; this is eight times as much, or four tenants' share of it.
            memory_bytes: 256 << 20,
        }
    }
}

impl NodeOptions {
    /// For a disk that serves one request after the other, each after a movement that takes as long as so many bytes: what is
    /// given to it cannot be overtaken any more, so it is given one thing at a time.
    pub fn with_arm(self, seek_bytes: u64) -> Self {
        Self {
            permits: 1,
            request_cost_bytes: seek_bytes,
            commit_wait_max: COMMIT_WAIT_MAX,
            ..self
        }
    }
}

/// How a node knows whom it speaks to.
#[derive(Clone)]
pub struct Security {
    /// What all its connections travel over.
    pub transport: Transport,
    /// What a capability allows.
    pub authenticator: Arc<dyn Authenticator>,
    /// The capability by which it copies from other nodes, asked anew for each connection; nothing where the name in its
    /// certificate is enough.
    pub capability: Arc<dyn Fn() -> Option<Bytes> + Send + Sync>,
}
