//! The part of a snapshot that tells protocols apart: who uses the volume by which, how much, and how fast they are answered.

use super::{LocalMountPart, NfsPart};
use crate::smb::SmbPart;
use firn_session::{LockProtocol, LockTable};
use serde::{Deserialize, Serialize};

/// One protocol, since the start of what serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolPart {
    /// `nfs` (of all volumes: one server has them), `mount` or `smb`.
    pub protocol: String,
    /// Connections of NFS and SMB clients; mounts.
    pub clients: u64,
    /// Files that are open; NFSv3 opens none.
    pub open_files: u64,
    /// Ranges and shares that its clients have locked.
    pub locks: u64,
    #[serde(flatten)]
    pub traffic: TrafficPart,
}

/// Requests, bytes and latencies. Those of SMB are what smbd asks of its mount: the clients' own are encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficPart {
    /// Requests answered.
    pub operations: u64,
    /// Of them with an error; a name that is not there is one.
    pub failed: u64,
    /// Bytes of requests, with what is written.
    pub received_bytes: u64,
    /// Bytes of replies, with what is read.
    pub sent_bytes: u64,
    pub latency_sum_us: u64,
    /// Requests by latency: entry `i` those that took less than 2^i µs and at least half of it.
    pub latency: Vec<u64>,
}

impl TrafficPart {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.failed += other.failed;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.latency_sum_us += other.latency_sum_us;
        add_buckets(&mut self.latency, &other.latency);
    }

    /// What came since `before`; all of it, if that is of an earlier start.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if before.operations > self.operations {
            return self.clone();
        }
        let bucket = |index: usize| before.latency.get(index).copied().unwrap_or(0);
        Self {
            operations: self.operations - before.operations,
            failed: self.failed.saturating_sub(before.failed),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            latency_sum_us: self.latency_sum_us.saturating_sub(before.latency_sum_us),
            latency: self
                .latency
                .iter()
                .enumerate()
                .map(|(index, count)| count.saturating_sub(bucket(index)))
                .collect(),
        }
    }

    /// The mean; `None` without requests.
    pub fn mean_us(&self) -> Option<u64> {
        self.latency_sum_us.checked_div(self.operations)
    }

    /// A bound that this part of all requests stayed below, within a factor of two; `None` without requests.
    pub fn within_us(&self, part: f64) -> Option<u64> {
        let all: u64 = self.latency.iter().sum();
        let wanted = (all as f64 * part).ceil() as u64;
        let mut seen = 0;
        let bucket = self.latency.iter().position(|count| {
            seen += count;
            seen >= wanted && wanted > 0
        });
        bucket.map(|bucket| 1 << bucket)
    }
}

/// Adds counts bucket by bucket.
pub fn add_buckets(to: &mut Vec<u64>, from: &[u64]) {
    to.resize(to.len().max(from.len()), 0);
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// All that are served.
pub(super) fn protocols(
    nfs: &NfsPart,
    mounts: &[LocalMountPart],
    smb: Option<&SmbPart>,
    locks: &LockTable,
) -> Vec<ProtocolPart> {
    let held = |protocols: &[LockProtocol]| -> u64 {
        let each = protocols.iter().map(|protocol| locks.held_by(*protocol) as u64);
        each.sum()
    };
    let mut parts = Vec::new();
    if !nfs.address.is_empty() {
        let mut traffic = TrafficPart::default();
        for operation in &nfs.operations {
            traffic.add(&TrafficPart {
                operations: operation.calls,
                failed: operation.failed,
                received_bytes: operation.received_bytes,
                sent_bytes: operation.sent_bytes,
                latency_sum_us: operation.latency_sum_us,
                latency: operation.latency.clone(),
            });
        }
        parts.push(ProtocolPart {
            protocol: "nfs".into(),
            clients: nfs.connections,
            open_files: 0,
            locks: held(&[LockProtocol::Nlm, LockProtocol::Nfs4]),
            traffic,
        });
    }
    if !mounts.is_empty() {
        let mut traffic = TrafficPart::default();
        mounts.iter().for_each(|mount| traffic.add(&mount.traffic));
        parts.push(ProtocolPart {
            protocol: "mount".into(),
            clients: mounts.iter().filter(|mount| mount.is_mounted).count() as u64,
            open_files: mounts.iter().map(|mount| mount.open_files).sum(),
            locks: held(&[LockProtocol::Local]),
            traffic,
        });
    }
    if let Some(smb) = smb {
        let mount = smb.mount.as_ref();
        parts.push(ProtocolPart {
            protocol: "smb".into(),
            clients: smb.connections,
            open_files: mount.map_or(0, |mount| mount.open_files),
            locks: held(&[LockProtocol::Smb]),
            traffic: mount.map(|mount| mount.traffic.clone()).unwrap_or_default(),
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_came_since_and_a_bound_holds_for_its_part() {
        let mut before = TrafficPart {
            operations: 100,
            latency_sum_us: 100,
            latency: vec![0, 100],
            ..TrafficPart::default()
        };
        let mut after = before.clone();
        after.add(&TrafficPart {
            operations: 100,
            failed: 1,
            sent_bytes: 5,
            latency_sum_us: 1200,
            latency: vec![0, 0, 0, 98, 0, 0, 0, 0, 0, 0, 2],
            ..TrafficPart::default()
        });
        let since = after.since(&before);
        assert_eq!((since.operations, since.failed, since.sent_bytes), (100, 1, 5));
        assert_eq!(
            (since.mean_us(), since.within_us(0.5), since.within_us(0.99)),
            (Some(12), Some(8), Some(1024))
        );
        before.operations = 1000;
        assert_eq!(after.since(&before), after, "it was started anew");
        let none = TrafficPart::default();
        assert_eq!((none.mean_us(), none.within_us(0.99)), (None, None));
    }
}
