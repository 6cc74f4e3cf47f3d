//! Replaying the journal onto the newest root (I6).

use crate::{
    branch::pack_dirty,
    checkpoint::{Packer, PackerContext},
    error::{NotDetachable, VolumeError},
    extents::WriteBuffer,
    journal::{Journal, Replay},
    objects::Objects,
    read_view::decode_inode,
    record::{Operation, Record},
    state::{Missing, Retained, State},
    tree,
    usage::UsageChanges,
};
use firn_format::{Place, Pointer, Version};
use std::collections::BTreeMap;

/// What recovery did, for the log and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The committed version that recovery began with.
    pub version: u64,
    /// Records replayed from the journal on top of it.
    pub records: u64,
    /// Bytes of file data among them.
    pub data_bytes: u64,
    /// Unlinked files that were open at the stop and are now freed.
    pub orphans_freed: u64,
    /// What was found torn at the end of the journal, and dropped: it was never acknowledged.
    pub torn_tail: Option<String>,
}

/// A replay onto a root, and what it needs to pack the trees of the snapshots it meets.
pub(crate) struct Replaying<'a> {
    pub state: &'a mut State,
    pub objects: &'a Objects,
    pub orphan_pointers: &'a mut BTreeMap<u64, Pointer>,
    pub journal: &'a Journal,
    pub packer: &'a PackerContext,
    pub block_bytes: u32,
    /// The newest version given to anything packed.
    pub version: Version,
    /// What packing changed of the live bytes of segments.
    pub usage: UsageChanges,
    /// Whether trees may be packed: not without the cloud.
    pub packs: bool,
}

impl Replaying<'_> {
    /// Applies every record of the journal to the state, loading what it misses; those that do not go on are left out, as done elsewhere.
    pub async fn run(
        &mut self,
        replay: &mut Replay,
        report: &mut RecoveryReport,
        mut goes_on: impl FnMut(&Operation) -> bool,
    ) -> Result<(), VolumeError> {
        while let Some(found) = replay.next().await? {
            let payload_bytes = found.payload.len();
            let (record, data) = Record::decode(found.payload)?;
            if !goes_on(&record.operation) {
                self.state.leave_out(found.sequence, &record.operation);
                continue;
            }
            let buffer = match &record.operation {
                Operation::Write { .. } => {
                    report.data_bytes += data.len() as u64;
                    Some(WriteBuffer::on_disk(
                        data.len(),
                        payload_bytes - data.len(),
                        found.record.clone(),
                    ))
                }
                _ => None,
            };
            while let Err(missing) = self.state.apply(found.sequence, &record, buffer.as_ref()) {
                load_for_replay(self.state, self.objects, missing).await?;
            }
            report.records += 1;
            if matches!(record.operation, Operation::CreateSnapshot { .. })
                && !firn_env::planted!("volume.snapshot_later_changes")
            {
                self.pack_snapshots().await?;
            }
        }
        report.torn_tail = replay.torn_tail();
        Ok(())
    }

    /// Packs the tree as it is here, between two records, for the snapshots that were frozen here. The next checkpoint commits
    /// it with them; each gets a version of its own, since births tell which snapshot holds what (I4).
    async fn pack_snapshots(&mut self) -> Result<(), VolumeError> {
        if !self.packs {
            return Err(NotDetachable::SnapshotUncommitted.into());
        }
        let (_, pending) = self.state.freeze_snapshots();
        self.version = Version(self.version.0 + 1);
        let mut packer = Packer::new(self.packer.clone(), self.version);
        let orphans = pack_dirty(
            &mut packer,
            Some(self.journal),
            self.state,
            self.orphan_pointers,
            self.block_bytes,
        )
        .await?;
        packer.finish().await?;
        self.usage.absorb(packer.take_usage());
        self.state.snapshots_to_be_written();
        if let Some(inode_map) = self.state.inode_map {
            let version = self.version;
            let retained = Retained {
                version,
                inode_map,
                orphans,
            };
            self.state.retain_pending(&pending, retained);
        }
        Ok(())
    }
}

/// As a request's loading, but with the state to oneself.
pub(crate) async fn load_for_replay(
    state: &mut State,
    objects: &Objects,
    missing: Missing,
) -> Result<(), VolumeError> {
    let broken = |detail: String| VolumeError::Undecodable {
        what: "what the journal changes",
        detail,
    };
    match missing {
        Missing::Inode(number) => {
            let root = state
                .inode_map
                .ok_or_else(|| broken(format!("inode {number} in an empty volume")))?;
            let pointer = tree::lookup(objects, firn_format::INODE_MAP, &root, number).await?;
            let pointer = pointer.ok_or_else(|| broken(format!("inode {number} is not in the root")))?;
            let place = Place {
                inode: firn_format::INODE_MAP,
                level: 0,
                index: number,
            };
            let object = objects.get(&pointer, place).await?;
            let (inode, content) = decode_inode(&object).map_err(broken)?;
            state.install_inode(number, inode, content);
        }
        Missing::Page { directory, key } => {
            let (content, shape) = match state.entry(directory) {
                Ok(Some(entry)) => (
                    entry.content.clone(),
                    entry.inode.as_ref().expect("no tombstone").directory,
                ),
                Ok(None) | Err(_) => return Err(broken(format!("directory {directory} does not exist"))),
            };
            let (place, page) = crate::read_view::find_page(objects, directory, &content, shape, key)
                .await?
                .ok_or_else(|| broken(format!("directory {directory} has no page for {key:016x}")))?;
            state.install_page(directory, &content, place, page);
        }
    }
    Ok(())
}
