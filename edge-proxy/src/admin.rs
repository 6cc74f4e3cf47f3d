//! The administrator's way into a running edge: a unix socket in the state directory, which only its owner may open.
//!
//! One connection carries one request and its replies, each a line of JSON:
//!
//! ```text
//! request = {"version": 1, "volume": NAME if there are several, "command": "status" | "sync" | "drain" | "verify" |
//!            {"audit" | "clean" | "id" | "locks" | "manifest" | "rekey" | "repair" | "snapshot" | "restore" | "clone": {…}}}
//! reply   = {"reply": "progress", …}* then one of {"reply": "status" | "done" | "verified" | "audited" | "snapshots" | "id" | "locks" |
//!            "manifest" | "rekey" | "repaired" | "error", …}
//! ```
//!
//! Lines, connections and waits are bounded, so that a stuck client costs the edge nothing. What is not understood is
//! answered with an error that names the versions, and the connection is closed.

mod audit;
mod client;
mod id;
mod locks;
mod manifest;
mod members;
mod rekey;
mod repair;
mod server;
mod snapshots;

pub use client::{Client, expect_end};
pub use server::{Admin, DrainRequest, serve};

use crate::{
    id::{Answer, Question},
    locks::{LockCommand, LockLine},
    manifest::{ManifestCommand, ManifestPart},
    rekey::{RekeyCommand, RekeyPart},
    repair::RepairReport,
    snapshot::{Snapshot, VolumeState},
    snapshots::{SnapshotCommand, SnapshotLine},
};
use firn_cleaner::AuditReport;
use firn_quantity::Money;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a client of before meant, who could not say.
fn yes() -> bool {
    true
}

/// Version of the protocol.
const VERSION: u32 = 1;

/// The longest request line.
const REQUEST_BYTES_MAX: u64 = 4 << 10;

/// The longest reply line: a damage names a path of at most 64 KiB, a status some hundred mounts, a list a thousand snapshots
/// with names of 255 bytes, each of which may be escaped.
const REPLY_BYTES_MAX: u64 = 2 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A [`Snapshot`]; of several volumes, if none is named, how each stands.
    Status,
    /// Wait until everything acknowledged so far is in the cloud (level 2).
    Sync,
    /// Stop serving, bring everything into the cloud, give the volume up and end.
    Drain,
    /// Read everything committed from the store and check it.
    Verify,
    /// Read a random sample of it and check that.
    Audit {
        /// Bytes that are drawn.
        challenges: u32,
        /// What the store may charge.
        budget: Money,
        /// What the draws follow from, if not random.
        seed: Option<[u8; 32]>,
        /// Of the second store as well.
        #[serde(default = "yes")]
        second: bool,
        /// Beginning where the last one was cut off.
        #[serde(default)]
        goes_on: bool,
    },
    /// One run of the cleaner inside, or a look at what it would do.
    Clean { plan: bool },
    /// Write what the store lost anew from the second store, or tell what would be.
    Repair { plan: bool, all: bool },
    /// Something about snapshots.
    Snapshot { what: SnapshotCommand },
    /// Who somebody is, and whether an access is granted.
    Id { question: Question },
    /// Something about locks.
    Locks { what: LockCommand },
    /// Give up what is kept for a member that was broken, or tell what would be.
    GiveUp {
        /// Its number.
        member: u32,
        /// Do it.
        yes: bool,
    },
    /// Something about keys.
    Rekey { what: RekeyCommand },
    /// Something about the manifest of segments.
    Manifest { what: ManifestCommand },
    /// Copy from a snapshot.
    Restore {
        snapshot: String,
        path: String,
        to: String,
        replace: bool,
    },
    /// A new volume of a snapshot, or of the present state.
    Clone { snapshot: Option<String>, name: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    command: Command,
    /// As the configuration names it; none: the only one, or all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Not done yet.
    Progress {
        /// For people.
        text: String,
    },
    /// The answer to [`Command::Status`].
    Status {
        /// The moment.
        snapshot: Box<Snapshot>,
    },
    /// One of several volumes, before [`Reply::Done`].
    Volume {
        /// The moment.
        volume: VolumeState,
    },
    /// One of the things that a verification found, before [`Reply::Verified`].
    Damage {
        inode: u64,
        path: Option<String>,
        detail: String,
    },
    /// The end of a verification.
    Verified {
        inodes: u64,
        blocks: u64,
        bytes: u64,
        /// Those listed and those beyond the list.
        damages: u64,
        /// Snapshots gone through.
        #[serde(default)]
        snapshots: u64,
        /// Segments that are not in the store.
        #[serde(default)]
        missing_segments: u64,
        /// Files to which the way is lost.
        #[serde(default)]
        unreachable: u64,
        /// Directories parts of whose names are lost.
        #[serde(default)]
        lost_directories: u64,
        /// The epochs of the keys that open what was read.
        #[serde(default)]
        epochs: Vec<u32>,
    },
    /// The end of an audit.
    Audited {
        report: Box<AuditReport>,
        /// Why what was found is no signed report.
        #[serde(default)]
        not_signed: Option<String>,
    },
    /// The end of a repair.
    Repaired { repaired: Box<RepairReport> },
    /// The snapshots there are.
    Snapshots { snapshots: Vec<SnapshotLine> },
    /// Who it is, and the verdicts.
    Id { answer: Box<Answer> },
    /// Locks, how many there are in all, and whether clients are waited for to reclaim theirs.
    Locks {
        locks: Vec<LockLine>,
        all: u64,
        in_grace: bool,
    },
    /// Which keys the volume needs.
    Rekey { rekey: Box<RekeyPart> },
    /// Whether the volume has a manifest.
    Manifest { manifest: Box<ManifestPart> },
    /// Done.
    Done {
        /// For people.
        text: String,
    },
    /// It failed.
    Error {
        /// For people.
        text: String,
    },
}

/// Where the socket is.
pub fn socket(state_directory: &Path) -> PathBuf {
    state_directory.join("admin.sock")
}
