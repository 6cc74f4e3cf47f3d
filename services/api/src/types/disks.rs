//! Disks and nodes.

use super::DiskAttachment;
use crate::names::DisplayName;
use firn_identity::{DiskId, EdgeId, NodeId, UnixTime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The smallest disk, and the unit of its size: one tract.
pub const TRACT_BYTES: u64 = 8 << 20;
/// The largest disk: 64 TiB, which is 8 Mi tracts.
pub const MAX_DISK_BYTES: u64 = 64 << 40;

/// The most copies of a tract: two nodes may be lost at once.
pub const REPLICAS_MAX: u8 = 3;

/// Asks for a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateDisk {
    /// What it is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
    /// Its size, a multiple of 8 MiB.
    #[schema(minimum = 8_388_608, maximum = 70_368_744_177_664_u64)]
    pub size_bytes: u64,
    /// Copies of each tract.
    #[serde(default = "three")]
    #[schema(minimum = 1, maximum = 3)]
    pub replicas: u8,
}

fn three() -> u8 {
    3
}

/// Makes a disk larger.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowDisk {
    /// Its new size, a multiple of 8 MiB.
    #[schema(minimum = 8_388_608, maximum = 70_368_744_177_664_u64)]
    pub size_bytes: u64,
}

/// What a disk's life has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// Its tracts are being placed.
    Creating,
    /// In use.
    Ready,
    /// It is being made larger; it can be used meanwhile at its old size.
    Growing,
    /// Its tracts are being removed.
    Deleting,
}

/// A disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Its id.
    #[schema(value_type = String)]
    pub id: DiskId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// Its size.
    pub size_bytes: u64,
    /// Copies of each tract.
    pub replicas: u8,
    /// What its life has come to.
    pub state: DiskState,
    /// The number of the newest attachment.
    pub fence: u64,
    /// Who has it attached; absent if nobody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<DiskAttachment>,
    /// When it was made.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// Attaches a disk, which ends the attachment before.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachDisk {
    /// Only to read: others stay attached.
    #[serde(default)]
    pub read_only: bool,
    /// The edge that attaches it: the capability is good on connections with its certificate only. Absent: the one whose
    /// certificate the request comes with.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub edge: Option<EdgeId>,
}

/// What a client of a disk shows to its nodes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskAttached {
    /// The capability, base64 without padding.
    pub capability: String,
    /// The key nodes check it with, 64 hex digits.
    pub capability_key: String,
    /// The attachment's number.
    pub fence: u64,
    /// When the capability expires.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
}

/// Invites a node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteNode {
    /// What it is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
    /// What fails together with it: copies of a tract never share one.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9._-]+$")]
    pub failure_domain: String,
    /// SHA-256 of the join secret's authenticator, 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub authenticator_hash: String,
}

/// Joins as a node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinNode {
    /// The secret's authenticator.
    #[schema(min_length = 43, max_length = 43)]
    pub authenticator: String,
    /// The certificate request for a node of the fleet, `node/<node>`, base64 without padding. It counts if the tenant's nodes
    /// are the fleet's.
    #[schema(min_length = 1, max_length = 1024)]
    pub certificate_request: String,
    /// The certificate request for a node that the tenant runs for itself, `tenant/<tenant>/node/<node>`, base64 without
    /// padding. It counts if the tenant's nodes are its own.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 1024)]
    pub tenant_certificate_request: Option<String>,
    /// Where it is reached.
    #[schema(min_length = 1, max_length = 256)]
    pub address: String,
    /// What its disk holds. Taken as a claim: placement believes what heartbeats and writes show.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub capacity_bytes: u64,
}

/// What a node learns when it joins.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeJoined {
    /// The node.
    pub node: Node,
    /// Its first certificate.
    pub certificate: super::CertificateIssued,
    /// The key disk capabilities are checked with, 64 hex digits.
    pub capability_key: String,
}

/// Says that a node is alive.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// What is free on its disk; no more than it said it has.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub free_bytes: u64,
}

/// What a node's life has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Its invitation waits.
    Invited,
    /// It serves.
    Active,
    /// It was not heard of for too long; it takes nothing new until it is.
    Lost,
    /// It takes nothing new, and is being emptied.
    Draining,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    #[schema(value_type = String)]
    pub id: NodeId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// What fails together with it.
    pub failure_domain: String,
    /// What its life has come to.
    pub state: NodeState,
    /// Where it is reached, once it joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What it said its disk holds.
    pub capacity_bytes: u64,
    /// What it last said is free.
    pub free_bytes: u64,
    /// The machine that the service started for it, as what gave it calls it; absent for a node somebody else runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// What launches or drains it, while that goes on: look at it under `operations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// When it was last heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub last_seen: Option<UnixTime>,
    /// When it was invited.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// How far a piece of work of several steps has come.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// What is done: `disk.create`, `disk.delete`, `disk.grow`, `volume.erase`, `edge.remove`,
    /// `node.launch` or `node.drain`.
    pub kind: String,
    /// To what.
    pub target: String,
    /// Steps done.
    pub steps_done: u32,
    /// What it is doing, for people: `placing copies on nodes`.
    #[serde(default)]
    pub doing: String,
    /// `running`, `done` or `undone`.
    pub state: String,
    /// Why it was undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A disk and the operation that was started on it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskChange {
    /// The disk as it is now.
    pub disk: Disk,
    /// What was started: look at it by its id until it is done or undone.
    pub operation: Operation,
}
