//! The parts of a snapshot that tell of clients: NFS, mounts of this machine, locks.

use super::TrafficPart;
use crate::junctions::JunctionPart;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NfsPart {
    /// Locks of all volumes and protocols.
    #[serde(default)]
    pub locks: LocksPart,
    pub address: String,
    pub connections: u64,
    #[serde(default)]
    pub turned: TurnedPart,
    /// Calls that took as long as `log.slow_call` or longer.
    #[serde(default)]
    pub slow_calls: u64,
    /// Where other exports are shown in the volume's.
    #[serde(default)]
    pub junctions: Vec<JunctionPart>,
    pub mounts: Vec<MountPart>,
    /// Procedures that were called.
    pub operations: Vec<OperationPart>,
}

/// Byte-range locks and share reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocksPart {
    pub held: u64,
    pub waiting: u64,
    /// Who holds them: NFS clients, mounts, SMB.
    pub clients: u64,
    /// NFS clients of before the start may reclaim theirs, and nobody gets new ones.
    pub in_grace: bool,
}

/// Peers that were not served, since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnedPart {
    /// Connections and datagrams of addresses that no export admits.
    pub strangers: u64,
    /// Connections for which no other could give way.
    pub full: u64,
    /// Connections that could not be accepted.
    pub failed: u64,
    /// Connections that held memory, were slow, and kept others waiting.
    pub slow: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountPart {
    pub client: String,
    pub path: String,
}

/// A mount on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMountPart {
    pub path: String,
    pub read_only: bool,
    /// False: somebody unmounted it.
    pub is_mounted: bool,
    pub open_files: u64,
    /// Files and directories that the kernel knows.
    pub known_files: u64,
    pub requests: u64,
    /// How they were answered.
    #[serde(default)]
    pub traffic: TrafficPart,
    /// Of them those that list a directory.
    #[serde(default)]
    pub listings: u64,
    /// The index by which smbd finds names in whatever case.
    #[serde(default)]
    pub case_index: Option<CaseIndexPart>,
    /// Changes of others that the kernel's caches were told of.
    pub invalidations: u64,
    /// Times everything was dropped since there were too many.
    pub rescans: u64,
    /// The kernel does not answer: changes of others may be seen late.
    pub is_stalled: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OperationPart {
    pub program: String,
    pub procedure: String,
    pub calls: u64,
    pub failed: u64,
    pub refused: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub latency_sum_us: u64,
    /// Calls by latency: entry `i` those that took less than 2^i µs and at least half of it.
    #[serde(default)]
    pub latency: Vec<u64>,
}

/// How the index of folded names is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseIndexPart {
    /// Names that were asked for.
    pub questions: u64,
    /// Directories that were listed for it.
    pub listings: u64,
    /// Directories that it has.
    pub directories: u64,
    /// Its memory.
    pub bytes: u64,
}
