//! The checkpoint object: the root of a version, with what is sealed of its snapshots.

use super::{CheckpointError, CheckpointPayload, Packer, SealedSnapshot, ToPack};
use crate::state::Snapshot;
use bytes::Bytes;
use firn_format::{Checkpoint, Kind, Pointer, checkpoint_place};

/// The part of the snapshots' list that is sealed.
pub(crate) fn sealed_snapshots(snapshots: &[Snapshot]) -> Vec<SealedSnapshot> {
    let sealed = |snapshot: &Snapshot| SealedSnapshot {
        id: snapshot.id,
        name: snapshot.name.clone(),
        files: snapshot.files,
        used_bytes: snapshot.used_bytes,
    };
    snapshots.iter().map(sealed).collect()
}

/// Packs the checkpoint object itself, and returns it sealed as well.
pub(crate) async fn pack_checkpoint(
    packer: &mut Packer,
    checkpoint: &Checkpoint,
    payload: &CheckpointPayload,
) -> Result<(Pointer, Bytes), CheckpointError> {
    let (plain, children) = checkpoint.to_plain_and_children();
    let object = ToPack {
        kind: Kind::Checkpoint,
        place: checkpoint_place(checkpoint.version),
        plain,
        children,
        payload: payload.encode(),
    };
    packer.pack_copied(object).await
}
