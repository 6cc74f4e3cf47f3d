//! The snapshots of a volume, as its state knows them.
//!
//! A snapshot is a name for the tree of one commit. Its record is journaled at the very instant at which a checkpoint freezes
//! the tree, so that the record's place in the journal says what the snapshot holds; between that instant and the commit its
//! roots are not built yet and it is *pending*. A start that finds the record again without its commit packs the tree at the
//! same place (see `open`), so a snapshot never shows anything but the prefix of the history before its record.

use super::State;
use bytes::Bytes;
use firn_format::{SnapshotRoot, TreeRoot, Version};

/// Most snapshots of one volume. Each costs a checkpoint about 120 bytes, so at this number a checkpoint has 120 KiB of them:
/// 3 % of what a busy volume uploads with each.
pub const SNAPSHOTS_MAX: usize = 1000;

/// The longest name of a snapshot: it is a directory's name to clients.
pub const NAME_BYTES_MAX: usize = firn_vfs::Name::MAX_BYTES;

/// What a snapshot keeps of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The version whose tree it is.
    pub version: Version,
    /// Its inodes.
    pub inode_map: TreeRoot,
    /// Its unlinked but open inodes.
    pub orphans: Option<TreeRoot>,
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Drawn at random, so that no two snapshots of a volume ever share it, whatever is lost in a takeover.
    pub id: u64,
    pub name: Bytes,
    pub created_ms: i64,
    /// 0: not protected.
    pub protected_until_ms: i64,
    /// Inodes of the volume when it was taken.
    pub files: u64,
    /// Bytes of data of the volume when it was taken.
    pub used_bytes: u64,
    /// `None` until the checkpoint that froze it is built.
    pub retained: Option<Retained>,
}

impl Snapshot {
    /// As the checkpoint's plain section has it.
    pub fn root(&self) -> Option<SnapshotRoot> {
        self.retained.map(|retained| SnapshotRoot {
            id: self.id,
            version: retained.version,
            created_ms: self.created_ms,
            protected_until_ms: self.protected_until_ms,
            inode_map: retained.inode_map,
            orphans: retained.orphans,
        })
    }
}

impl State {
    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// The snapshot of that name.
    pub fn snapshot_named(&self, name: &[u8]) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }

    /// Takes over what a checkpoint lists.
    pub fn restore_snapshots(&mut self, snapshots: Vec<Snapshot>) {
        self.snapshots = snapshots;
    }

    /// What was packed or committed holds the tree of every snapshot that was pending when it was frozen.
    pub fn retain_pending(&mut self, pending: &[u64], retained: Retained) {
        for snapshot in &mut self.snapshots {
            if pending.contains(&snapshot.id) {
                snapshot.retained = Some(retained);
            }
        }
    }

    /// Takes over where the roots of snapshots lie now.
    pub fn relocate_snapshots(&mut self, relocated: &[Snapshot]) {
        for moved in relocated {
            if let Some(snapshot) = self.snapshots.iter_mut().find(|one| one.id == moved.id) {
                snapshot.retained = moved.retained;
            }
        }
    }

    /// The list as it is frozen now, and the snapshots in it whose tree this freeze is.
    pub fn freeze_snapshots(&mut self) -> (Vec<Snapshot>, Vec<u64>) {
        self.snapshots_changed = false;
        let pending = self
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.retained.is_none());
        let pending = pending.map(|snapshot| snapshot.id).collect();
        (self.snapshots.clone(), pending)
    }

    /// A freeze outside the checkpointer packed the tree but committed nothing: the list is still to be written.
    pub fn snapshots_to_be_written(&mut self) {
        self.snapshots_changed = true;
    }

    pub(super) fn create_snapshot(
        &mut self,
        id: u64,
        name: &Bytes,
        created_ms: i64,
        protected_until_ms: i64,
    ) {
        self.snapshots.push(Snapshot {
            id,
            // Copied, so that a name does not keep a journal buffer alive.
            name: Bytes::copy_from_slice(name),
            created_ms,
            protected_until_ms,
            files: self.counters.files,
            used_bytes: self.counters.used_bytes,
            retained: None,
        });
        self.snapshots_changed = true;
    }

    pub(super) fn delete_snapshot(&mut self, id: u64) {
        self.snapshots.retain(|snapshot| snapshot.id != id);
        self.snapshots_changed = true;
    }

    pub(super) fn protect_snapshot(&mut self, id: u64, until_ms: i64) {
        for snapshot in self.snapshots.iter_mut().filter(|snapshot| snapshot.id == id) {
            snapshot.protected_until_ms = until_ms;
        }
        self.snapshots_changed = true;
    }
}
