//! Reading a root: the checkpoint, the engine's own part of it, and what must be in memory from the start.

use crate::{
    checkpoint::{CheckpointPayload, HISTORY_MAX, SealedSnapshot},
    error::VolumeError,
    manifest::Manifest,
    objects::{Object, Objects, ReadError},
    parts::file_system_id,
    read_view::decode_inode,
    state::{Retained, Snapshot, State},
    tree,
};
use firn_anchor::Root;
use firn_format::{
    Checkpoint, FamilyId, FormatError, ORPHAN_MAP, Place, Pointer, TreeRoot, Uid, Version, VolumeId,
    checkpoint_place, decode_object,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// A root that was read.
pub(crate) struct LoadedRoot {
    pub payload: CheckpointPayload,
    pub state: State,
    pub orphan_pointers: BTreeMap<u64, Pointer>,
    /// Commits up to this one, oldest first.
    pub history: VecDeque<(Version, Uid)>,
    /// The newest proposal of the cleaner that is merged.
    pub cleaner_sequence: u64,
    /// The usage map.
    pub usage: Option<TreeRoot>,
    /// The manifest.
    pub manifest: Manifest,
}

/// A checkpoint that was read, without its orphans.
pub(crate) struct LoadedCheckpoint {
    pub checkpoint: Checkpoint,
    pub payload: CheckpointPayload,
    pub snapshots: Vec<Snapshot>,
    /// Commits up to this one, oldest first.
    pub history: VecDeque<(Version, Uid)>,
}

/// Reads a root's checkpoint, and nothing more.
pub(crate) async fn load_newest(
    objects: &Objects,
    (family, volume): (FamilyId, VolumeId),
    root: &Root,
) -> Result<LoadedCheckpoint, VolumeError> {
    let pointer = Pointer {
        uid: root.uid,
        location: root.location,
    };
    let object = read_checkpoint(objects, family, root.version, pointer).await?;
    opened_checkpoint(volume, (root.version, root.uid), &object)
}

/// Reads a root's checkpoint and its orphans.
pub(crate) async fn load_root(
    objects: &Objects,
    (family, volume): (FamilyId, VolumeId),
    root: &Root,
) -> Result<LoadedRoot, VolumeError> {
    let pointer = Pointer {
        uid: root.uid,
        location: root.location,
    };
    let object = read_checkpoint(objects, family, root.version, pointer).await?;
    let mut loaded = load_checkpoint(objects, volume, (root.version, root.uid), &object).await?;
    loaded.manifest.lies_in(root.location.segment, root.version);
    Ok(loaded)
}

/// What a checkpoint object says, and its orphans.
pub(crate) async fn load_checkpoint(
    objects: &Objects,
    volume: VolumeId,
    (version, uid): (Version, Uid),
    object: &Object,
) -> Result<LoadedRoot, VolumeError> {
    let LoadedCheckpoint {
        checkpoint,
        payload,
        snapshots,
        history,
    } = opened_checkpoint(volume, (version, uid), object)?;
    let mut state = State::new(
        file_system_id(volume),
        payload.counters.clone(),
        checkpoint.inode_map,
    );
    state.applied = payload.covered;
    state.restore_completed(payload.completed.clone());
    state.restore_snapshots(snapshots);
    let mut orphan_pointers = BTreeMap::new();
    if let Some(orphans) = &checkpoint.orphans {
        let listed = tree::range(objects, ORPHAN_MAP, orphans, 0, u64::MAX, usize::MAX).await;
        for (number, pointer) in unless_lost(listed)?.unwrap_or_default() {
            let place = Place {
                inode: ORPHAN_MAP,
                level: 0,
                index: number,
            };
            let Some(object) = unless_lost(objects.get(&pointer, place).await)? else {
                continue;
            };
            let (inode, content) = decode_inode(&object).map_err(|detail| VolumeError::Undecodable {
                what: "an unlinked inode",
                detail,
            })?;
            state.install_orphan(inode, content);
            orphan_pointers.insert(number, pointer);
        }
    }
    Ok(LoadedRoot {
        payload,
        state,
        orphan_pointers,
        history,
        cleaner_sequence: checkpoint.cleaner_sequence,
        usage: checkpoint.usage,
        manifest: Manifest::found(checkpoint.manifest),
    })
}

fn opened_checkpoint(
    volume: VolumeId,
    (version, uid): (Version, Uid),
    object: &Object,
) -> Result<LoadedCheckpoint, VolumeError> {
    let checkpoint = Checkpoint::from_plain_and_children(&object.header.plain, &object.header.children)?;
    // Its keys and its tree are those of the whole family: only its own word tells a volume's root from a clone's.
    if checkpoint.volume != volume {
        return Err(VolumeError::ForeignRoot {
            volume,
            found: checkpoint.volume,
        });
    }
    let payload = CheckpointPayload::decode(object.payload.clone())?;
    let snapshots = listed_snapshots(&checkpoint, &payload)?;
    let mut history: VecDeque<_> = payload.history.iter().copied().collect();
    history.push_back((version, uid));
    while history.len() > HISTORY_MAX {
        history.pop_front();
    }
    Ok(LoadedCheckpoint {
        checkpoint,
        payload,
        snapshots,
        history,
    })
}

/// Reads the checkpoint object itself.
///
/// # Errors
/// [`VolumeError::CheckpointLost`] if the store has lost or altered it: without it there is nothing to serve.
/// [`VolumeError::NewerCheckpoint`] if it is of a version that this build does not read.
pub(crate) async fn read_checkpoint(
    objects: &Objects,
    family: FamilyId,
    version: Version,
    pointer: Pointer,
) -> Result<Arc<Object>, VolumeError> {
    match objects.get(&pointer, checkpoint_place(version)).await {
        Ok(object) => Ok(object),
        Err(error @ ReadError::Unavailable { .. }) => Err(error.into()),
        Err(ReadError::KeyNotAtHand { epoch, newest, .. }) => {
            Err(VolumeError::KeyNotAtHand { epoch, newest })
        }
        Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
            let key = pointer.location.segment.key(&family);
            Err(match newer_version(objects, &pointer).await {
                Some(detail) => VolumeError::NewerCheckpoint {
                    version: version.0,
                    key,
                    detail,
                },
                None => VolumeError::CheckpointLost {
                    version: version.0,
                    key,
                    detail: error.to_string(),
                },
            })
        }
    }
}

/// What this build does not know of an object that lies where the pointer says.
async fn newer_version(objects: &Objects, pointer: &Pointer) -> Option<String> {
    let bytes = objects.sealed(&pointer.location).await?;
    let error = decode_object(bytes).err()?;
    let is_newer = matches!(
        error,
        FormatError::UnknownVersion { .. } | FormatError::UnknownFeatures { .. }
    );
    is_newer.then(|| error.to_string())
}

/// What was removed while it was open has no name and no reader after a start: if the store lost it, only its space is not
/// accounted for, and the volume is served without it.
fn unless_lost<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => Err(error),
        Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
            tracing::warn!(%error, "a file that was removed while it was open is lost; nobody can name it");
            Ok(None)
        }
    }
}

/// The snapshots of a checkpoint: what its plain section says of each, and what is sealed of it.
pub(crate) fn listed_snapshots(
    checkpoint: &Checkpoint,
    payload: &CheckpointPayload,
) -> Result<Vec<Snapshot>, VolumeError> {
    let sealed: BTreeMap<u64, &SealedSnapshot> = payload
        .snapshots
        .iter()
        .map(|snapshot| (snapshot.id, snapshot))
        .collect();
    let listed = checkpoint.snapshots.iter().map(|root| {
        let sealed = sealed.get(&root.id).ok_or_else(|| VolumeError::Undecodable {
            what: "the list of snapshots",
            detail: format!("snapshot {:016x} has no name", root.id),
        })?;
        Ok(Snapshot {
            id: root.id,
            name: sealed.name.clone(),
            created_ms: root.created_ms,
            protected_until_ms: root.protected_until_ms,
            files: sealed.files,
            used_bytes: sealed.used_bytes,
            retained: Some(Retained {
                version: root.version,
                inode_map: root.inode_map,
                orphans: root.orphans,
            }),
        })
    });
    listed.collect()
}
